"""Tensors that a model's vectors cannot hold are refused at the start, in one line that names them."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

import offbeat as ob
from offbeat.core.tensor_kinds import overlaps

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*(Sparse|sparse|nested|quantiz|TypedStorage)"),
]
POINTS = torch.rand(24, 4, generator=torch.Generator().manual_seed(0))
DATA = ob.federate((POINTS, (POINTS[:, 0] > 0.5).long()), None, np.array_split(np.arange(24), 2))


def ragged(layout: torch.layout) -> Tensor:
    return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=layout)


REFUSED: list[tuple[Callable[[], Tensor], str]] = [
    (lambda: torch.eye(3).to_sparse(), "has layout sparse_coo: use a dense one"),
    (lambda: torch.eye(3).to_sparse_csr(), "has layout sparse_csr"),
    (lambda: ragged(torch.jagged), "is a nested tensor, whose rows differ in length"),
    (lambda: ragged(torch.strided), "is a nested tensor"),
    (lambda: torch.ones(3, device="meta"), "is on the device meta and has no values"),
    (lambda: torch.ones(1).expand(3), "is expanded: its elements share memory"),
    (lambda: torch.ones(1, dtype=torch.int64).expand(3), "is expanded"),
    (lambda: torch.ones(6).as_strided((3, 3), (1, 1)), "is expanded"),
    (lambda: torch.ones(3, dtype=torch.complex64), "is complex"),
    (lambda: torch.ones(3, dtype=torch.float64), "has dtype torch.float64"),
    (lambda: torch.ones(3).to(torch.float8_e4m3fn), "has dtype torch.float8_e4m3fn"),
    (lambda: torch.ones(3).to_mkldnn(), "has layout _mkldnn"),
]
HELD: list[Callable[[], Tensor]] = [
    lambda: torch.tensor(1.5), lambda: torch.zeros(0, 3), lambda: torch.rand(3, 4).t(),
    lambda: torch.ones(3, dtype=torch.float16), lambda: torch.ones(3, dtype=torch.bfloat16),
    lambda: torch.tensor([True, False]), lambda: torch.ones(3, dtype=torch.uint8),
    lambda: torch.rand(4, 4)[:, ::2], lambda: TwoTensor(torch.ones(3), torch.ones(3)),
]  # fmt: skip
CONSTANT: list[Callable[[], Tensor]] = [  # beside the model, where they are only copied
    lambda: torch.eye(3).to_sparse(), lambda: torch.ones(3, dtype=torch.complex64),
    lambda: torch.ones(3, dtype=torch.float64), lambda: ragged(torch.jagged),
]  # fmt: skip


def with_buffer(make: Callable[[], Tensor], persistent: bool = True) -> Callable[[], nn.Module]:
    def module() -> nn.Module:
        made = nn.Linear(4, 2)
        made.register_buffer("extra", make(), persistent=persistent)
        return made

    return module


def start(module: nn.Module | Callable[[], nn.Module]) -> ob.Run:
    learner = ob.TorchLearner(module, DATA, ob.Training(batch_size=4))
    return ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None)


@pytest.mark.parametrize("given", [True, False])
@pytest.mark.parametrize(("make", "why"), REFUSED)
def test_a_tensor_that_no_model_holds(make: Callable[[], Tensor], why: str, given: bool) -> None:
    """Of a module that is given, and of one that a function makes."""
    module = with_buffer(make)
    with pytest.raises(ob.UsageError, match=f"^model tensor extra {why}") as refused:
        start(module() if given else module)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("make", HELD)
def test_a_tensor_that_a_model_holds(make: Callable[[], Tensor]) -> None:
    module = nn.Linear(4, 2)
    module.register_buffer("extra", kept := make())
    found = start(module).model.state_dict()
    assert found["extra"].dtype == kept.dtype
    assert torch.equal(found["extra"], torch.empty(kept.shape, dtype=kept.dtype).copy_(kept))


@pytest.mark.parametrize("make", CONSTANT)
def test_a_constant_beside_the_model_may_be_of_other_kinds(make: Callable[[], Tensor]) -> None:
    assert "extra" not in start(with_buffer(make, persistent=False)).model.state_dict()


def test_a_constant_that_cannot_be_copied_is_refused() -> None:
    for make in (lambda: torch.eye(3).to_sparse_csr(), lambda: torch.ones(1).expand(3)):
        with pytest.raises(ob.UsageError, match=r"^model tensor extra "):
            start(with_buffer(make, persistent=False))


def test_a_loops_own_module_with_an_expanded_parameter_is_refused() -> None:
    """It is trained itself, and not a copy of it."""
    module = nn.Linear(4, 2)
    module.bias = nn.Parameter(torch.ones(1).expand(2))

    def train(task: ob.ClientTask) -> None:
        task.load_into(module)

    learner = ob.LoopLearner(train, nn.Linear(4, 2), samples=[4, 4])
    with pytest.raises(ob.UsageError, match="model tensor bias is expanded"):
        ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2))


@pytest.mark.parametrize(
    ("tensor", "shares"),
    [
        (torch.ones(2, 3).t(), False), (torch.ones(4, 4)[:, ::2], False), (torch.ones(()), False),
        (torch.ones(1, 3).expand(1, 3), False), (torch.ones(3, 1).expand(3, 2), True),
        (torch.ones(6).as_strided((2, 3), (2, 1)), True), (torch.ones(0, 3).expand(0, 3), False),
    ],
)  # fmt: skip
def test_whether_elements_share_memory(tensor: Tensor, shares: bool) -> None:
    assert overlaps(tensor) == shares

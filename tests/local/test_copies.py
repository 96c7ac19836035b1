"""Modules that cannot be copied: one that is given is refused, a function makes one of its own."""

import sys
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune

import offbeat as ob

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*weight_norm"),  # that it is deprecated
    pytest.mark.filterwarnings("ignore:.*Lazy"),
]
X = torch.rand(32, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
DATA = ob.federate((X, (X[:, 0] > 0).long()), None, np.array_split(np.arange(32), 2))


class With(nn.Module):
    """Two layers, and something beside them."""

    def __init__(self, held: object = None) -> None:
        super().__init__()
        self.first, self.last, self.held = nn.Linear(4, 8), nn.Linear(8, 2), held

    def forward(self, x: Tensor) -> Tensor:
        self.inner = torch.tanh(self.first(x))
        return self.last(self.inner)


def normed() -> nn.Module:
    module = With()
    nn.utils.weight_norm(module.first)
    return module


def pruned() -> nn.Module:
    module = With()
    prune.l1_unstructured(module.first, "weight", 0.5)
    return module


def called() -> nn.Module:
    module = With()
    module(X[:2])  # keeps a tensor with its graph
    return module


UNCOPIED: list[Callable[[], nn.Module]] = [
    lambda: With(threading.Lock()), lambda: With(i for i in range(3)), lambda: With(sys.__stdout__),
    normed, pruned, called,
]  # fmt: skip


def simulated(module: nn.Module | Callable[[], nn.Module], seed: int = 0, **options: object) -> ob.Run:
    learner = ob.TorchLearner(module, DATA, ob.Training(lr=0.1, batch_size=8))
    return ob.simulate(
        ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None, seed=seed, **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize("make", UNCOPIED)
def test_a_module_that_cannot_be_copied(make: Callable[[], nn.Module]) -> None:
    with pytest.raises(ob.UsageError, match=r"cannot be copied .*: give a function that makes it") as refused:
        ob.TorchLearner(make(), DATA)
    assert "\n" not in str(refused.value)
    run = simulated(make)
    assert torch.equal(run.model.values, simulated(make).model.values)
    make().load_state_dict(run.client_model(0))
    with pytest.raises(ob.UsageError, match="executor batched cannot train"):
        simulated(make, executor=ob.Batched(2))


def test_what_cannot_be_copied_does_not_change_the_training() -> None:
    runs = [simulated(make).model.values for make in (lambda: With(threading.Lock()), With)]
    assert torch.equal(*runs)


def test_a_function_that_gives_one_module_each_time_is_no_remedy() -> None:
    """Its initial weights would be those that are being trained."""
    one = With(threading.Lock())
    with pytest.raises(ob.UsageError, match="cannot be copied"):
        simulated(lambda: one)


def test_a_lazy_module_is_refused_by_its_tensor() -> None:
    for module in (nn.Sequential(nn.LazyLinear(2)), nn.Sequential(nn.Linear(4, 2), nn.LazyBatchNorm1d())):
        with pytest.raises(ob.UsageError, match=r"model tensor .* has no shape yet: call the module once"):
            ob.TorchLearner(module, DATA)


def test_workers_say_what_they_cannot_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)  # no notebook
    for module in (With(lambda x: x), lambda: With()):
        with pytest.raises(
            ob.UsageError, match=r"can be pickled \(.*: give a function that makes .* without lambdas"
        ):
            simulated(module, workers=1)

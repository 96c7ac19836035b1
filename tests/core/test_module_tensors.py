"""Names of a module's tensors: without the prefixes of wrappers, and all of a tensor that has several."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import offbeat as ob
from offbeat.core.layout import Layout, frozen_digest
from offbeat.core.model import Model
from offbeat.core.module_tensors import PlainNames, found_by_name, unwrapped
from tests.sampling import thorough

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of what PyTorch's compiler imports
    pytest.mark.filterwarnings("ignore:The .grad attribute"),  # which it reads
]
TOKENS = torch.randint(0, 20, (24, 5), generator=torch.Generator().manual_seed(0))
DATA = ob.federate((TOKENS, TOKENS[:, 0] % 2), None, np.array_split(np.arange(24), 2))
UNTIL = ob.Until(versions=3)


class Tied(nn.Module):
    """An output layer with the embedding's weight, and one layer under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.output = nn.Embedding(20, 8), nn.Linear(8, 20, bias=False)
        self.output.weight = self.embedding.weight
        self.body = nn.Sequential(nn.Linear(20, 20), nn.BatchNorm1d(20))
        self.again, self.head = self.body, nn.Linear(20, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.again(self.body(self.output(self.embedding(tokens).mean(1)))))


def compiled(module: nn.Module) -> nn.Module:
    return torch.compile(module, backend="eager")  # type: ignore[return-value]


def compiled_part() -> nn.Module:
    module = Tied()
    module.head = compiled(module.head)
    return module


WRAPPED: list[Callable[[], nn.Module]] = [
    lambda: compiled(Tied()), lambda: nn.DataParallel(Tied()), lambda: nn.DataParallel(compiled(Tied())),
    compiled_part,
]  # fmt: skip


@pytest.mark.parametrize("buffers", ["follow", "local"])
@pytest.mark.parametrize("personal", [(), ("head.*",), ("embedding.*", "body.0.*")])
@pytest.mark.parametrize("stays", [True, False])
def test_every_state_dict_of_a_run_loads_strictly(
    personal: tuple[str, ...], buffers: str, stays: bool, tmp_path: Path
) -> None:
    """Of tied weights and shared layers each name is there: in memory, in files and at clients."""
    learner = ob.TorchLearner(Tied, DATA, ob.Training(batch_size=4), personal=personal)
    out = None if stays else tmp_path / "run"
    algorithm = replace(ob.fedavg(steps=2), buffers=buffers)
    run = ob.simulate(algorithm, learner=learner, until=UNTIL, evaluate=None, out=out)
    for client in range(2):
        Tied().load_state_dict(run.client_model(client))
    if not personal:
        Tied().load_state_dict(run.model.state_dict())
    if out is not None and not personal:
        Tied().load_state_dict(load_file(out / "model.safetensors"))
        Tied().load_state_dict(load_file(ob.export(out, tmp_path / "m.safetensors", module=Tied).path))


def test_the_vectors_of_a_model_hold_each_tensor_once() -> None:
    layout = Layout.of(Tied())
    assert [entry.name for entry in layout.entries][:2] == ["embedding.weight", "body.0.weight"]
    assert ("output.weight", "embedding.weight") in layout.aliases
    model = Model.of(Tied())
    assert "output.weight" in model.state_dict()
    assert "output.weight" not in model.arrays()
    assert layout == Layout.of(Tied())


def test_a_personal_pattern_of_a_further_name_is_refused_with_the_first() -> None:
    learner = ob.TorchLearner(Tied, DATA, personal=["output.*"])
    with pytest.raises(ob.UsageError, match=r"matches output\.weight, which is the tensor embedding\.weight"):
        learner.initial(0)


@pytest.mark.parametrize("make", [WRAPPED[2], *thorough(*WRAPPED[:2], compiled_part)])
def test_names_are_those_of_the_plain_module(make: Callable[[], nn.Module], tmp_path: Path) -> None:
    """The run of a wrapped module is that of the plain one, and so are its files."""
    training = ob.Training(batch_size=4)
    runs = [
        ob.simulate(
            ob.scaffold(steps=2), until=UNTIL, evaluate=None, out=tmp_path / str(number),
            learner=ob.TorchLearner(module, DATA, training, personal=["head.*"]),
        )
        for number, module in enumerate((make, Tied))
    ]  # fmt: skip
    found, plain = (run.client_model(0) for run in runs)
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)
    Tied().load_state_dict(found)


def test_a_wrapped_module_is_loaded_exported_and_digested_like_the_plain_one(tmp_path: Path) -> None:
    def frozen() -> nn.Module:
        module = Tied()
        module.head.requires_grad_(False)
        return module

    learner = ob.TorchLearner(lambda: compiled(frozen()), DATA, ob.Training(batch_size=4))
    assert learner.frozen_digest(3) == ob.TorchLearner(frozen, DATA).frozen_digest(3)
    run = ob.simulate(ob.fedavg(steps=2), learner=learner, until=UNTIL, evaluate=None, out=tmp_path / "run")
    made = ob.export(tmp_path / "run", tmp_path / "run.pt", module=lambda: compiled(frozen()))
    frozen().load_state_dict(torch.load(made.path, weights_only=True))
    module = run.model.load_into(nn.DataParallel(compiled(Tied())))
    assert torch.equal(unwrapped(module).body[0].weight, run.model.state_dict()["body.0.weight"])
    program = tmp_path / "run.pt2"
    ob.export(tmp_path / "run", program, module=lambda: compiled(frozen()), example=TOKENS[:3])
    assert torch.export.load(program).module()(TOKENS[:5]).shape == (5, 2)


def test_a_digest_has_no_prefixes() -> None:
    module = nn.DataParallel(nn.Linear(2, 2).requires_grad_(False))
    assert frozen_digest(module) == frozen_digest(unwrapped(module)) != ""


@pytest.mark.parametrize("prefix", ["", "_orig_mod.", "module.", "module._orig_mod."])
def test_a_run_starts_from_a_file_with_or_without_prefixes(prefix: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    given = {name: tensor.clone() for name, tensor in Tied().state_dict().items()}
    save_file({prefix + name: tensor for name, tensor in given.items()}, tmp_path / "given.safetensors")
    learners = [ob.TorchLearner(make, DATA, ob.Training(batch_size=4)) for make in (Tied, WRAPPED[2])]
    runs = [
        ob.simulate(
            ob.fedavg(steps=2), learner=learner, until=UNTIL, evaluate=None,
            initial=tmp_path / "given.safetensors",
        )
        for learner in learners
    ]  # fmt: skip
    assert torch.equal(runs[0].model.values, runs[1].model.values)


def test_an_attribute_called_module_keeps_its_name() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.module, self.other = nn.Linear(2, 2), nn.Linear(2, 2)

    assert next(iter(Model.of(Own()).state_dict())) == "module.weight"
    assert PlainNames(nn.DataParallel(Own()))("module.module.weight") == "module.weight"
    tensors = {"module.weight": torch.zeros(1), "weight": torch.ones(1)}
    assert found_by_name(tensors, "weight") is tensors["weight"]
    assert found_by_name(tensors, "_orig_mod.weight") is None  # two could be meant
    assert found_by_name(tensors, "bias") is None

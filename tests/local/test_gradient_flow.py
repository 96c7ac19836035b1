"""Modules whose parameters are not what the loss follows from: nothing is trained, and it is said so."""

import logging
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.learner import NO_INPUTS, LocalTask
from offbeat.local.examples_privacy import ExamplesPrivacy
from offbeat.local.objectives import Plain

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:.*torch.jit"),  # that it is deprecated
    pytest.mark.filterwarnings("ignore:.*(quantiz|TypedStorage)"),
]
X = torch.rand(32, 4, generator=torch.Generator().manual_seed(0)) * 2 - 1
DATA = ob.federate((X, (X[:, 0] * X[:, 1] > 0).long()), None, np.array_split(np.arange(32), 2))
TRAINING = ob.Training(lr=0.1, batch_size=8)
UNTIL = ob.Until(versions=2)


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


class Around(nn.Module):
    """Computes with layers that it keeps somewhere, beside a registered one."""

    def __init__(self, keep: Callable[[nn.Module], object], also: bool = False) -> None:
        super().__init__()
        self.registered, self.also = nn.Linear(4, 2), also
        self.__dict__["kept"] = keep(net())

    def forward(self, x: Tensor) -> Tensor:
        kept = self.__dict__["kept"]
        while isinstance(kept, list | dict | tuple):
            kept = next(iter(kept.values() if isinstance(kept, dict) else kept))
        return kept(x) + (self.registered(x) if self.also else 0.0)


class Bare(nn.Module):
    """Computes with a tensor that is no parameter."""

    def __init__(self, parameters: bool = True) -> None:
        super().__init__()
        self.weight = torch.zeros(4, 2, requires_grad=True)
        if parameters:
            self.unused = nn.Parameter(torch.zeros(2))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Ends(nn.Module):
    """Ends gradients, before its last layer or behind it."""

    def __init__(self, how: Callable[[Tensor], Tensor], before_last: bool = False) -> None:
        super().__init__()
        self.first, self.last, self.how, self.before = nn.Linear(4, 8), nn.Linear(8, 2), how, before_last

    def forward(self, x: Tensor) -> Tensor:
        inner = torch.tanh(self.first(x))
        return self.last(self.how(inner)) if self.before else self.how(self.last(inner))


OTHER = net()


def other_step(module: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Trains another module than the one that is given."""
    return functional.cross_entropy(OTHER(batch[0]), batch[1])


def learner(make: nn.Module | Callable[[], nn.Module], **options: object) -> ob.TorchLearner:
    return ob.TorchLearner(make, DATA, TRAINING, **options)  # type: ignore[arg-type]


def simulated(of: ob.TorchLearner, executor: ob.Batched | None = None) -> ob.Run:
    return ob.simulate(ob.fedavg(steps=2), learner=of, until=UNTIL, evaluate=None, executor=executor)


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("how", [torch.jit.script, lambda module: torch.jit.trace(module, X[:3])])
def test_a_scripted_module_is_trained_like_the_module_itself(
    how: Callable[[nn.Module], nn.Module], whole: bool
) -> None:
    """A copy of one has parameters that no gradient would reach."""

    def scripted() -> nn.Module:
        module = net()
        if whole:
            return how(module)
        module[0] = torch.jit.script(module[0])
        return module

    runs = [simulated(learner(make)) for make in (scripted, net)]
    torch.testing.assert_close(runs[0].model.values, runs[1].model.values)
    torch.manual_seed(5)
    given = scripted()
    before = [parameter.detach().clone() for parameter in given.parameters()]
    moved = simulated(learner(given)).model.values
    assert not torch.equal(moved, torch.cat([parameter.flatten() for parameter in before]))
    assert all(torch.equal(a, b) for a, b in zip(before, given.parameters(), strict=True))
    net().load_state_dict(simulated(learner(given)).model.state_dict())


@pytest.mark.parametrize("executor", [None, ob.Batched(2)])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: Around(lambda module: [module]), r"kept\[0\]\.0\.weight"),
        (lambda: Around(lambda module: {"a": (module,)}), r"kept\['a'\]\[0\]\.0\.weight"),
        (lambda: Around(lambda module: module), r"kept\.0\.weight"),
        (lambda: nn.Sequential(Bare()), r"0\.weight"),
    ],
)
def test_what_the_loss_follows_from_in_place_of_parameters_is_named(
    make: Callable[[], nn.Module], found: str, executor: ob.Batched | None
) -> None:
    why = rf"nothing is trained, as no gradient reaches any of .* follows from {found}.*nn\.ModuleList"
    with pytest.raises(ob.UsageError, match=why):
        simulated(learner(make), executor)
    with pytest.raises(ob.UsageError, match=why):
        learner(make, examples=ExamplesPrivacy(delta=1e-3)).initial(0)


def test_another_module_than_the_one_that_is_given() -> None:
    with pytest.raises(ob.UsageError, match=r"follows from 4 tensors .* of shape \[.*not with another"):
        simulated(learner(net, step=other_step))


def test_gradients_that_a_step_clears() -> None:
    class Dropped(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: object, gradient: Tensor) -> None:
            return None

    with pytest.raises(ob.UsageError, match=r"nothing is trained.*drops gradients"):
        simulated(learner(lambda: Ends(Dropped.apply)))


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: Bare(parameters=False), "weight: not registered as parameters"),
        (lambda: torch.jit.freeze(torch.jit.script(net().eval())), "give the module before torch.jit.freeze"),
        (
            lambda: torch.ao.quantization.quantize_dynamic(net(), {nn.Linear}),
            "its Linear is quantized: train the float module",
        ),
        (lambda: net().requires_grad_(False), "all are frozen"),
    ],
)
def test_a_module_without_a_parameter_says_why(make: Callable[[], nn.Module], found: str) -> None:
    with pytest.raises(ob.UsageError, match=f"has no parameter to train: {found}|{found}"):
        learner(make).initial(0)


@pytest.mark.parametrize("executor", [None, ob.Batched(2)])
@pytest.mark.parametrize("how", [Tensor.detach, lambda x: torch.nn.functional.one_hot(x.argmax(1)).float()])
def test_a_loss_without_gradients(how: Callable[[Tensor], Tensor], executor: ob.Batched | None) -> None:
    with pytest.raises(ob.UsageError, match=r"depends on no parameter that is trained: .*detach, \.data"):
        simulated(learner(lambda: Ends(how)), executor)


def test_gradients_that_are_off() -> None:
    for off in (torch.no_grad, torch.inference_mode):
        with off(), pytest.raises(ob.UsageError, match=r"gradients are off here.*torch\.no_grad"):
            learner(net).train(learner(net).initial(0), LocalTask(0, 0, 0, 2, 0), Plain(), NO_INPUTS)


@pytest.mark.parametrize("executor", [None, ob.Batched(2)])
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (lambda: Ends(Tensor.detach, before_last=True), r"2 of the 4 .*\(first\.weight, first\.bias\)"),
        (lambda: Around(lambda module: [module], also=True), r"a part of Around is not trained: .*kept\[0\]"),
        (lambda: Ends(torch.round), "changes no parameter of Ends: each gradient is 0"),
    ],
)
def test_a_part_that_is_not_trained_is_told_once(
    make: Callable[[], nn.Module], found: str, executor: ob.Batched | None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        simulated(learner(make), executor)
    assert len(caplog.messages) == 1
    assert re.search(found, caplog.messages[0])


def test_steps_that_are_lost_in_rounding(caplog: pytest.LogCaptureFixture) -> None:
    of = ob.TorchLearner(net, DATA, ob.Training(lr=1e-12, batch_size=8))
    simulated(of)
    assert "the steps are lost in rounding (lr = 1e-12; parameters are float32)" in caplog.text


def test_a_module_that_is_trained_is_told_nothing_about(caplog: pytest.LogCaptureFixture) -> None:
    for executor in (None, ob.Batched(2)):
        simulated(learner(net), executor)
    simulated(learner(net, personal=["2.*"]))
    assert not caplog.messages


class Replaced(nn.Module):
    """Makes a new tensor of a buffer at each step, of the same shape or a longer one."""

    def __init__(self, grows: bool = False, persistent: bool = True) -> None:
        super().__init__()
        self.layer, self.grows = nn.Linear(4, 2), grows
        self.register_buffer("mean", torch.zeros(4), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = torch.cat([self.mean, x[0]]) if self.grows else 0.5 * self.mean + 0.5 * x.mean(0)
        return self.layer(x)


class InPlace(Replaced):
    """The same, written in place."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.copy_(0.5 * self.mean + 0.5 * x.mean(0))
        return self.layer(x)


def test_a_buffer_that_is_made_anew_is_the_models_as_one_that_is_written() -> None:
    runs = [simulated(learner(make)) for make in (Replaced, InPlace)]
    assert bool(runs[0].model.state_dict()["mean"].any())
    assert torch.equal(runs[0].model.values, runs[1].model.values)


def test_a_buffer_that_grows() -> None:
    with pytest.raises(ob.UsageError, match=r"gives its tensor mean \[4\] shape \[12\] in training"):
        simulated(learner(lambda: Replaced(grows=True)))
    of = learner(lambda: Replaced(grows=True, persistent=False))
    assert simulated(of).summary.versions == 2


class Anew(nn.Module):
    """Makes its parameter anew at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        self.layer.weight = nn.Parameter(self.layer.weight.detach().clone())
        return self.layer(x)


class Thaws(nn.Module):
    """Unfreezes its first layer as it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.first.requires_grad_(True)(x))


def test_parameters_that_a_module_makes_or_unfreezes_later(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(
        ob.UsageError, match=r"follows from layer\.weight, which the module has made .* later"
    ):
        simulated(learner(Anew))
    with caplog.at_level(logging.WARNING):
        simulated(learner(Thaws))
    assert "follows from first.weight, first.bias, which the module has made or unfrozen later" in caplog.text


def test_an_optimizer_of_other_tensors() -> None:
    training = ob.Training(optimizer=lambda parameters, lr: torch.optim.SGD(OTHER.parameters(), lr))
    with pytest.raises(ob.UsageError, match="an optimizer of other tensors than the parameters"):
        simulated(ob.TorchLearner(net, DATA, training))

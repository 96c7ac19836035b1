"""Modules, data, losses and optimizers of a user's own."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalTask, TaskInputs
from offbeat.data import Dataset, FederatedData, MapDataset, federate
from offbeat.local.objectives import Plain, Proximal
from offbeat.local.training import ExponentialDecay

CLIENTS, EACH = 3, 8
TASK = LocalTask(0, 1, 0, 5, seed=3)
pytestmark = pytest.mark.usefixtures("one_thread")


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X = numbers(CLIENTS * EACH, 4)
Y = (X[:, 0] > 0).long()
PARTS = np.split(np.arange(CLIENTS * EACH), CLIENTS)


def tensors() -> FederatedData:
    return federate(Dataset(X, Y, 2), Dataset(X, Y, 2), PARTS)


def linear() -> nn.Module:
    return nn.Linear(4, 2)


def trained(learner: ob.TorchLearner, task: LocalTask = TASK) -> Tensor:
    return learner.train(learner.initial(3), task, Plain()).delta


class Listed:
    """A map-style dataset without tensors of its own."""

    def __init__(self, rows: range = range(CLIENTS * EACH)) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return X[self.rows[i]], int(Y[self.rows[i]])


class Fetched(Listed):
    """Reads a batch by one call."""

    def __getitems__(self, rows: list[int]) -> list[tuple[Tensor, int]]:
        return [super(Fetched, self).__getitem__(i) for i in rows]

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        raise AssertionError("a batch is one call")


@pytest.mark.parametrize(
    "data",
    [
        federate((X.numpy(), Y.numpy()), None, PARTS),
        federate(TensorDataset(X, Y), None, PARTS),
        federate(MapDataset(Listed()), None, PARTS),
        federate(Fetched(), None, PARTS),
        federate([Listed(range(i * EACH, (i + 1) * EACH)) for i in range(CLIENTS)]),
        federate([(X[p], Y[p]) for p in PARTS]),
        federate([Dataset(X[p], Y[p], 2) for p in PARTS]),
    ],
    ids=["arrays", "tensor dataset", "map-style", "fetched", "map-style each", "pairs each", "tensors each"],
)
def test_data_of_any_kind_trains_alike(data: FederatedData) -> None:
    """Bit for bit as the tensors do."""
    assert torch.equal(trained(ob.TorchLearner(linear, data)), trained(ob.TorchLearner(linear, tensors())))


class Output(dict[str, Tensor]):
    """As transformers' outputs: a mapping, and attributes."""

    def __getattr__(self, name: str) -> Tensor:
        return self[name]


class Named(nn.Module):
    """Takes named arguments, and computes its loss where it gets labels."""

    def __init__(self, both: bool = True) -> None:
        super().__init__()
        self.layer, self.both = nn.Linear(4, 2), both

    def forward(self, left: Tensor, right: Tensor, labels: Tensor | None = None) -> Output:
        logits = self.layer(torch.cat([left, right], 1))
        own = {} if labels is None or not self.both else {"loss": functional.cross_entropy(logits, labels)}
        return Output(logits=logits, **own)


class Pair(nn.Module):
    """Takes two arguments, gives a tuple."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor) -> tuple[Tensor, str]:
        return self.layer(torch.cat([left, right], 1)), "and more"


def halves(labels: bool) -> FederatedData:
    x = {"left": X[:, :2], "right": X[:, 2:]}
    whole = Dataset({**x, "labels": Y}) if labels else Dataset(x, Y, 2)
    return federate(whole, whole, PARTS)


def two_arguments(items: list[tuple[Tensor, int]]) -> Any:
    x = torch.stack([item[0] for item in items])
    return (x[:, :2], x[:, 2:]), torch.tensor([item[1] for item in items])


def by_hand(module: nn.Module, batch: Any) -> Tensor:
    x, y = batch
    return functional.cross_entropy(module(x), y)


@pytest.mark.parametrize(
    ("module", "data", "options"),
    [
        (Named, halves(True), {}),
        (Named, halves(False), {}),
        (
            lambda: Named(both=False),
            halves(False),
            {"loss": lambda out, y: functional.cross_entropy(out.logits, y)},
        ),
        (Pair, federate(MapDataset(Listed(), two_arguments), None, PARTS), {}),
        (linear, tensors(), {"step": by_hand}),
        (linear, tensors(), {"loss": functional.cross_entropy}),
    ],
    ids=["labels inside", "named", "own loss of an output", "two arguments", "own step", "loss"],
)
def test_modules_of_any_form_train_alike(
    module: Any, data: FederatedData, options: Mapping[str, Any]
) -> None:
    delta = trained(ob.TorchLearner(module, data, **options))
    assert torch.equal(delta, trained(ob.TorchLearner(linear, tensors())))


def test_an_evaluation_finds_scores_in_any_form() -> None:
    plain = ob.TorchLearner(linear, tensors())
    expected = plain.evaluate(plain.initial(0))
    for module, data in ((Named, halves(True)), (Named, halves(False))):
        learner = ob.TorchLearner(module, data)
        assert learner.evaluate(learner.initial(0)) == expected
    own = ob.TorchLearner(linear, tensors(), step=by_hand)
    assert own.evaluate(own.initial(0)) == {"loss": expected["loss"]}
    scored = ob.TorchLearner(
        linear, tensors(), step=by_hand, evaluate=lambda module, batch: (module(batch[0]), batch[1])
    )
    assert scored.evaluate(scored.initial(0)) == expected
    counted = ob.TorchLearner(
        linear,
        tensors(),
        ob.Training(evaluation_batch_size=5),
        evaluate=lambda _, batch: {"size": len(batch[1])},
    )
    assert counted.evaluate(counted.initial(0)) == {"size": (4 * 5 * 5 + 4 * 4) / 24}  # weighted by samples


def test_probabilities_are_no_logits() -> None:
    """A module that ends in a sigmoid, with a loss that says so: 0.4 is below its threshold."""

    def probable() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 1), nn.Sigmoid())

    y = Y.float().unsqueeze(1)
    data = federate((X, y), (X, y), PARTS)
    one = ob.TorchLearner(probable, data, loss=functional.binary_cross_entropy)
    module = one.initial(0).load_into(probable())
    right = ((module(X) > 0.5).float() == y).float().mean()
    assert one.evaluate(one.initial(0))["accuracy"] == pytest.approx(float(right))


def test_a_module_without_targets_reconstructs() -> None:
    def reconstruction(module: nn.Module, batch: Tensor) -> Tensor:
        return (module(batch) - batch).square().mean()

    learner = ob.TorchLearner(
        lambda: nn.Linear(4, 4), federate(X, X, PARTS), ob.Training(lr=0.3), step=reconstruction
    )
    run = ob.simulate(ob.fedbuff(size=2, steps=10), learner=learner, until=ob.Until(versions=20))
    losses = [row["loss"] for row in run.metrics]
    assert losses[-1] < losses[0] / 4


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw", "rmsprop", "adagrad", "nadam", "adadelta"])
def test_an_optimizer_by_name_is_pytorchs(optimizer: str) -> None:
    learner = ob.TorchLearner(linear, tensors(), ob.Training(optimizer=optimizer, lr=0.05, weight_decay=0.01))
    module = learner.initial(3).load_into(linear())
    kind = {name.lower(): kind for name, kind in vars(torch.optim).items()}[optimizer]
    reference = kind(module.parameters(), lr=0.05, weight_decay=0.01)
    for x, y in (part.batch for parts in learner._batches(TASK) for part in parts):
        reference.zero_grad()
        functional.cross_entropy(module(x), y).backward()
        reference.step()
    moved = torch.cat([p.detach().flatten() for p in module.parameters()])
    torch.testing.assert_close(trained(learner), moved - learner.initial(3).values, rtol=1e-4, atol=1e-6)


def test_an_optimizer_of_ones_own() -> None:
    named = ob.Training(optimizer="sgd", lr=0.05, optimizer_options={"momentum": 0.9, "nesterov": True})
    own = ob.Training(optimizer=lambda p, lr: torch.optim.SGD(p, lr, momentum=0.9, nesterov=True), lr=0.05)
    one, other = (trained(ob.TorchLearner(linear, tensors(), training)) for training in (named, own))
    assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"optimizer": "adamm"}, 'did you mean "adam"'),
        ({"optimizer": "lbfgs"}, "unknown"),
        ({"optimizer": "adam", "momentum": 0.5}, "momentum = 0.5 is for sgd"),
        ({"optimizer": lambda p, lr: None, "momentum": 0.5}, "momentum is for optimizers by name"),
        ({"decay_per": "step"}, "needs a decay"),
        ({"clip_norm": 0.0}, "clip_norm"),
    ],
)
def test_wrong_options_of_the_training(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ob.Training(**options)


def test_options_that_the_optimizer_does_not_take() -> None:
    learner = ob.TorchLearner(linear, tensors(), ob.Training(optimizer_options={"nestrov": True}))
    with pytest.raises(UsageError, match=r"optimizer = 'sgd' with .*nestrov"):
        trained(learner)


def test_clipping_bounds_every_step() -> None:
    """With plain SGD a step is at most lr times the bound."""
    free = trained(ob.TorchLearner(linear, tensors(), ob.Training(lr=0.5)))
    bound = trained(ob.TorchLearner(linear, tensors(), ob.Training(lr=0.5, clip_norm=0.01)))
    assert bound.norm() <= 0.5 * 0.01 * TASK.steps * (1 + 1e-5) < free.norm()
    loose = trained(ob.TorchLearner(linear, tensors(), ob.Training(lr=0.5, clip_norm=1e6)))
    torch.testing.assert_close(loose, free)


@pytest.mark.parametrize("parts", [2, 3, 100])
def test_a_batch_in_parts_is_the_whole_batch(parts: int) -> None:
    """Also where the parts differ in size, and with a term of the objective."""
    whole, cut = (
        ob.TorchLearner(linear, tensors(), ob.Training(batch_size=7, accumulate=n)) for n in (1, parts)
    )
    for objective in (Plain(), Proximal(0.5)):
        one, other = (each.train(each.initial(3), TASK, objective) for each in (whole, cut))
        torch.testing.assert_close(one.delta, other.delta, rtol=1e-4, atol=1e-6)
        assert one.metrics == pytest.approx(other.metrics, rel=1e-5)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_mixed_precision_is_near_float32(precision: Any) -> None:
    exact, mixed = (
        trained(ob.TorchLearner(linear, tensors(), ob.Training(precision=p))) for p in ("float32", precision)
    )
    assert not torch.equal(exact, mixed)
    torch.testing.assert_close(mixed, exact, rtol=0.05, atol=0.01)


def test_a_schedule_within_a_task() -> None:
    """Three batches an epoch; the learning rate that is reported is the mean one."""
    decay = ExponentialDecay(gamma=0.5)
    options = {"batch_size": 3, "lr": 0.1, "decay": decay}
    steps = ob.TorchLearner(linear, tensors(), ob.Training(**options, decay_per="step"))
    epochs = ob.TorchLearner(linear, tensors(), ob.Training(**options, decay_per="epoch"))
    task = replace_steps(4)
    assert steps.train(steps.initial(3), task, Plain()).lr == pytest.approx(
        0.1 * (1 + 0.5 + 0.25 + 0.125) / 4
    )
    assert epochs.train(epochs.initial(3), task, Plain()).lr == pytest.approx(0.1 * 3.5 / 4)
    one = ob.TorchLearner(linear, tensors(), ob.Training(batch_size=3, lr=0.1))
    assert torch.equal(trained(one, replace_steps(1)), trained(steps, replace_steps(1)))
    assert not torch.equal(trained(one, task), trained(steps, task))


def replace_steps(steps: int) -> LocalTask:
    return LocalTask(0, 1, 0, steps, seed=3)


@pytest.mark.parametrize(
    "options", [{"precision": "float16"}, {"decay": ExponentialDecay(0.5), "decay_per": "step"}]
)
def test_a_task_goes_on_from_a_checkpoint(options: dict[str, Any]) -> None:
    learner = ob.TorchLearner(linear, tensors(), ob.Training(batch_size=3, **options))
    base, inputs = learner.initial(3), TaskInputs()
    saved = learner.train_until(base, TASK, Plain(), inputs, 3)
    result = learner.train_from(base, TASK, Plain(), inputs, 3, saved)
    whole = learner.train(base, TASK, Plain())
    assert torch.equal(result.delta, whole.delta)
    assert (result.metrics, result.lr) == (whole.metrics, whole.lr)


def test_class_weights_serve_training_after_an_evaluation() -> None:
    one = ob.TorchLearner(linear, tensors(), ob.Training(class_weights=(1.0, 3.0)))
    base = one.initial(0)
    one.evaluate(base)
    assert one.train(base, LocalTask(0, 0, 0, 2, 0), Plain()).delta.any()


def test_class_weights() -> None:
    weighted = ob.TorchLearner(linear, tensors(), ob.Training(class_weights=(1.0, 3.0)))
    own = ob.TorchLearner(
        linear, tensors(), loss=lambda out, y: functional.cross_entropy(out, y, torch.tensor([1.0, 3.0]))
    )
    assert torch.equal(trained(weighted), trained(own))
    with pytest.raises(UsageError, match="class_weights are for the default"):
        ob.TorchLearner(linear, tensors(), ob.Training(class_weights=(1.0, 3.0)), functional.cross_entropy)


def body_and_head() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 2))


def test_a_head_stays_at_its_client() -> None:
    """FedPer: each client goes on with its own head, and the server never sees one."""
    learner = ob.TorchLearner(body_and_head, tensors(), personal=["2.*"])
    base = learner.initial(3)
    assert [e.name for e in base.layout.entries] == ["0.weight", "0.bias"]
    first = learner.train(base, TASK, Plain())
    assert len(first.delta) == 4 * 6 + 6
    again = learner.train(base, TASK, Plain(), TaskInputs(first.state))
    assert not torch.equal(first.state["personal.2.weight"], again.state["personal.2.weight"])
    anew = learner.train(base, TASK, Plain())  # another client's task starts from the initial head
    assert torch.equal(anew.delta, first.delta)
    run = ob.simulate(ob.fedbuff(size=2, steps=3), learner=learner, until=ob.Until(versions=6), evaluate=None)
    assert set(run.model.state_dict()) == {"0.weight", "0.bias"}


def test_a_client_evaluates_on_what_it_holds_out_with_its_own_head() -> None:
    data = federate(Dataset(X, Y, 2), None, PARTS, validation=0.25)
    assert [data.samples(i) for i in range(CLIENTS)] == [6, 6, 6]
    learner = ob.TorchLearner(body_and_head, data, personal=["2.*"])
    base = learner.initial(3)
    state = learner.train(base, TASK, Plain()).state
    count, before = learner.evaluate_client(base, 1)
    assert count == 2
    _, after = learner.evaluate_client(base, 1, TaskInputs(state))
    assert before["loss"] != after["loss"]
    assert ob.TorchLearner(linear, tensors()).evaluate_client(
        ob.TorchLearner(linear, tensors()).initial(3), 0
    ) == (0, {})


class Raises(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        raise KeyError("no such\nword")


@pytest.mark.parametrize(
    ("module", "options", "message"),
    [
        (
            lambda: nn.Linear(5, 2),
            {},
            r"client 1: Linear cannot be trained on a batch of \(float32 \[8, 4\], int64 \[8\]\): Runtime",
        ),
        (Raises, {}, "client 1: Raises cannot be trained .* KeyError: 'no such"),
        (
            linear,
            {"loss": lambda out, y: functional.cross_entropy(out, y, reduction="none")},
            r"the loss has shape \[8\]",
        ),
        (linear, {"step": lambda module, batch: 0.5}, "the loss is a float"),
        (linear, {"personal": ["heda.*"]}, "'heda.*' matches no tensor"),
        (body_and_head, {"personal": ["2"]}, r"personal: '2' matches no tensor .*; did you mean \"2\.\*\"\?"),
        (linear, {"personal": ["*"]}, "has no parameter to train.*stay at the clients"),
        (linear, {"metrics": ["acuracy"]}, "accuracy"),
        (linear, {"step": by_hand, "loss": functional.cross_entropy}, "loss and step: give one"),
    ],
)
def test_what_cannot_be_trained_is_said_in_one_line(
    module: Any, options: Mapping[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        trained(ob.TorchLearner(module, tensors(), **options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": by_hand, "metrics": ["accuracy"]}, "no scores and targets"),
        ({"evaluate": lambda module, batch: 0.5}, "must return numbers by name"),
        (
            {"evaluate": lambda module, batch: {"mine": torch.zeros(3)}},
            r"mine of a batch is a tensor of shape \[3\]",
        ),
        ({"metrics": {"mine": lambda scores, target: None}}, '"mine" is None'),
    ],
)
def test_what_cannot_be_evaluated_is_said_in_one_line(options: Mapping[str, Any], message: str) -> None:
    learner = ob.TorchLearner(linear, tensors(), **options)
    with pytest.raises(UsageError, match=message) as caught:
        learner.evaluate(learner.initial(0))
    assert "\n" not in str(caught.value)


def test_without_a_test_set() -> None:
    learner = ob.TorchLearner(linear, federate(Dataset(X, Y, 2), None, PARTS))
    with pytest.raises(UsageError, match="the test set has no samples"):
        learner.evaluate(learner.initial(0))

"""What a learner cannot train or evaluate is said in one line, with the client, the step and the batch."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.core.learner import NO_INPUTS, LocalTask
from offbeat.data import MapDataset, federate
from offbeat.local.objectives import Plain

X = torch.randn(24, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()
PARTS = np.split(np.arange(24), 3)
FOURS = ob.Training(batch_size=4)
TASK = LocalTask(7, 1, 0, 5, seed=3)
pytestmark = pytest.mark.usefixtures("one_thread")


def linear() -> nn.Module:
    return nn.Linear(4, 2)


def one_output() -> nn.Module:
    return nn.Linear(4, 1)


def with_nan(row: int) -> Tensor:
    x = X.clone()
    x[row, 2] = float("nan")
    return x


def frozen() -> nn.Module:
    return linear().requires_grad_(False)


def message(learner: ob.TorchLearner, kind: type[OffbeatError] = UsageError) -> str:
    """The one line of what training raises."""
    with pytest.raises(kind) as caught:
        learner.train(learner.initial(3), TASK, Plain())
    assert "\n" not in str(caught.value)
    return str(caught.value)


def learner(
    module: Any = linear,
    x: Any = X,
    y: Any = Y,
    training: ob.Training = FOURS,
    **options: Any,
) -> ob.TorchLearner:
    return ob.TorchLearner(module, federate((x, y), (x, y), PARTS), training, **options)


def diverging() -> ob.TorchLearner:
    training = ob.Training(lr=10.0, batch_size=4)
    return learner(one_output, X * 100, Y.float().unsqueeze(1), training, loss=nn.MSELoss())


@pytest.mark.parametrize("mapped", [False, True])
def test_data_with_nan_are_told_from_a_training_that_diverges(mapped: bool) -> None:
    x = with_nan(12)
    data = federate(MapDataset([*zip(x, Y, strict=True)]) if mapped else (x, Y), None, PARTS)
    told = message(ob.TorchLearner(linear, data, ob.Training(batch_size=8)))
    assert told.startswith(
        "client 1, task 7, step 1 of 5: the loss is not finite: sample 12 of the train set"
    )

    own = federate([(x[part], Y[part]) for part in PARTS])
    told = message(ob.TorchLearner(linear, own, ob.Training(batch_size=8)))
    first = int(PARTS[1][0])
    assert f"the loss is not finite: sample {12 - first} of the client's dataset has NaN" in told

    told = message(diverging(), RunError)
    assert "of 5: the loss is not finite, though the samples" in told
    assert "smaller learning rate" in told


def test_the_step_is_the_first_with_that_sample() -> None:
    """By the batches of the task, also where they go through the module in parts."""
    for accumulate in (1, 2):
        broken = learner(x=with_nan(12), training=ob.Training(batch_size=4, accumulate=accumulate))
        drawn = broken._task_batches.rows(broken.prepare(), TASK)
        first = next(step for step, rows in enumerate(drawn) if 12 in rows)
        assert f"step {first + 1} of 5" in message(broken)


def test_a_model_that_has_diverged_before() -> None:
    one = learner()
    base = one.initial(3)
    base.values[0] = float("inf")
    with pytest.raises(RunError, match="version 0 of the model, from which the task starts, has NaN or inf"):
        one.train(base, TASK, Plain())


def test_checkpoints_are_of_finite_losses() -> None:
    one = learner(x=with_nan(12))
    with pytest.raises(UsageError, match="sample 12"):
        one.train_until(one.initial(3), TASK, Plain(), NO_INPUTS, 4)


def test_batched_training_says_the_same() -> None:
    for executor in (ob.Batched(), None):
        with pytest.raises(RunError, match=r"client \d, task \d, step \d+ of 30: .* has diverged"):
            ob.simulate(ob.fedavg(steps=30), learner=diverging(), evaluate=None, executor=executor)


def test_a_worker_process_says_the_same() -> None:
    run = {"learner": learner(x=X[:, :3]), "until": ob.Until(versions=5), "evaluate": None}
    with pytest.raises(UsageError, match=r"client 0: Linear cannot be trained on a batch of") as alone:
        ob.simulate(ob.fedavg(steps=3), **run)
    with pytest.raises(UsageError) as there:
        ob.simulate(ob.fedavg(steps=3), **run, workers=1)
    assert str(there.value) == str(alone.value)


def test_a_test_set_with_nan() -> None:
    one = ob.TorchLearner(linear, federate((X, Y), (with_nan(3), Y), PARTS))
    with pytest.raises(UsageError, match=r"the test set: .* loss is NaN, as values in it are"):
        one.evaluate(one.initial(0))


def no_mean(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none")


def no_gradient(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.detach(), target)


def binary(output: Tensor, target: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(output, target)


@pytest.mark.parametrize(
    ("one", "told"),
    [
        (lambda: learner(frozen), "Linear has no parameter to train: all are frozen"),
        (lambda: learner(nn.Identity), "Identity has no parameter to train"),
        (
            lambda: learner(x=X[:, :3]),
            "client 1: Linear cannot be trained on a batch of (float32 [4, 3]",
        ),
        (lambda: learner(x=X.double()), "convert the samples to float32"),
        (lambda: learner(loss=no_mean), "the loss has shape [4], and must be a scalar"),
        (lambda: learner(loss=no_gradient), "the loss depends on no parameter that is trained"),
        (
            lambda: learner(one_output, y=Y[:, None], loss=binary),
            "convert the targets to float32",
        ),
        (lambda: learner(step=lambda module, batch: None), "the loss is a NoneType"),
        (
            lambda: learner(one_output),
            "client 1: scores float32 [4, 1] with target int64 [4]: the default loss is the cross entropy",
        ),
        (lambda: learner(y=torch.ones(24, 2)), "nn.BCEWithLogitsLoss() for several labels"),
        (
            lambda: learner(y=Y.float(), loss=nn.MSELoss()),
            "client 1: scores float32 [4, 2] with target float32 [4]: MSELoss compares each score",
        ),
        (lambda: learner(y=Y.float(), loss=functional.l1_loss), "give them one shape"),
        (
            lambda: learner(training=ob.Training(optimizer="sparseadam")),
            "SparseAdam cannot take a step: SparseAdam does not support dense",
        ),
        (
            lambda: learner(training=ob.Training(optimizer=lambda p, lr: torch.optim.LBFGS(p, lr))),
            "LBFGS cannot take a step",
        ),
        (lambda: learner(lambda: None), "returned a NoneType: return an nn.Module"),
    ],
)
def test_what_cannot_be_trained(one: Any, told: str) -> None:
    assert told in message(one())


def conv(channels: int, values: int = 64) -> nn.Module:
    return nn.Sequential(nn.Conv2d(channels, 4, 1), nn.Flatten(), nn.Linear(values, 2))


PIXELS = torch.arange(24 * 3 * 4 * 4).reshape(24, 3, 4, 4).to(torch.uint8)
IMAGES = PIXELS.float()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(
    ("module", "x", "told"),
    [
        (conv(3), PIXELS, r"make numbers of pixels from 0 to 255, with \.float\(\) / 255"),
        (nn.Linear(48, 2), PIXELS.flatten(1), r"make numbers of pixels from 0 to 255"),
        (nn.Linear(48, 2), PIXELS.flatten(1).long(), r"convert the samples to float32, with \.float\(\)"),
        (conv(3), PIXELS.long(), "convert the samples to float32"),
        (nn.Linear(48, 2), IMAGES.flatten(1) > 1, "convert the samples to float32"),
        (conv(3), IMAGES > 1, "convert the samples to float32"),
        (nn.Linear(48, 2), IMAGES.flatten(1).double(), "convert the samples to float32"),
        (conv(3), IMAGES.double(), "convert the samples to float32"),
        (conv(3), IMAGES.half(), "convert the samples to float32"),
        (nn.Linear(48, 2), IMAGES.flatten(1).half(), "convert the samples to float32"),
        (conv(3), IMAGES.permute(0, 2, 3, 1), r"channels first, .*give x\.permute\(0, 3, 1, 2\)"),
        (conv(1, 64), IMAGES[:, 0], r"one channel, by x\.unsqueeze\(1\)"),
        (conv(3), IMAGES[:, :1], "give the samples 3 channels"),
        (conv(1), IMAGES.flatten(1), r"a convolution takes \[N, C, H, W\]"),
        (nn.Linear(48, 2), IMAGES, r"takes 48 values and gets 4: .*nn\.Flatten\(\) for images$"),
        (nn.Linear(5, 2), X, "takes 5 values and gets 4: give it as many$"),
    ],
)
def test_samples_that_a_module_cannot_take_are_told_what_to_do(
    module: nn.Module, x: Tensor, told: str, lazy: bool
) -> None:
    data: Any = MapDataset(list(zip(x, Y, strict=True))) if lazy else (x, Y)
    one = ob.TorchLearner(module, ob.federate(data, None, [range(12), range(12, 24)]))
    text = message(one)
    assert re.search(told, text), text


@pytest.mark.parametrize(
    ("samples", "told"),
    [
        ([{"image": x, "label": int(y)} for x, y in zip(X, Y, strict=True)], "or make (x, y) of each sample"),
        ([(x, "healthy") for x in X], "(str, 12 in all)"),
        ([(object(), int(y)) for y in Y], "give the dataset a transform that makes tensors"),
    ],
)
def test_samples_of_other_kinds_are_told_what_to_do(samples: Any, told: str) -> None:
    data = ob.federate(samples, None, [range(12), range(12, 24)])
    assert told in message(ob.TorchLearner(nn.Linear(4, 2), data, ob.Training(batch_size=12)))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"module": nn.Linear}, "module = Linear cannot be called"),
        ({"loss": "mse"}, "loss = 'mse' is not allowed"),
        ({"loss": nn.MSELoss}, "loss = MSELoss is not allowed: give a function, or an object"),
        ({"step": 3}, "step = 3 is not allowed"),
        ({"personal": "bias"}, "personal = 'bias' is not allowed: give a list, such as ['bias']"),
    ],
)
def test_wrong_arguments(options: Mapping[str, Any], told: str) -> None:
    with pytest.raises(UsageError) as caught:
        learner(**options)
    assert told in str(caught.value)


def test_data_that_belong_to_no_client() -> None:
    with pytest.raises(UsageError, match="data = a tuple is not allowed: divide it among clients"):
        ob.TorchLearner(linear, (X, Y))  # type: ignore[arg-type]


def test_integer_labels_of_any_width() -> None:
    narrow, wide = (one.train(one.initial(3), TASK, Plain()) for one in (learner(y=Y.int()), learner()))
    assert torch.equal(narrow.delta, wide.delta)


def test_targets_of_several_dimensions_in_a_batch_of_clients() -> None:
    """[N, 1] and [N, 3], as one logit and several labels have: equal up to rounding."""
    for outputs in (1, 3):
        one = learner(nn.Linear(4, outputs), y=(X[:, :outputs] > 0).float(), loss=nn.BCEWithLogitsLoss())
        together, apart = (
            ob.simulate(
                ob.fedavg(steps=3), learner=one, until=ob.Until(versions=4), evaluate=None, executor=executor
            ).model.values
            for executor in (ob.Batched(), None)
        )
        torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-6)


def test_a_module_whose_output_no_batch_of_clients_can_have() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"logits": self.layer(x)}

    with pytest.raises(UsageError, match="executor batched cannot train Own"):
        ob.simulate(ob.fedavg(), learner=learner(Own()), until=ob.Until(versions=1), executor=ob.Batched())


@pytest.mark.parametrize("weighted", ["training", "loss"])
def test_labels_of_class_weight_0_are_no_divergence(weighted: str) -> None:
    weights = (0.0, 1.0)
    own = {"training": ob.Training(batch_size=4, class_weights=weights)}
    if weighted == "loss":
        own = {"loss": nn.CrossEntropyLoss(torch.tensor(weights))}  # type: ignore[dict-item]
    told = message(learner(y=torch.zeros(24, dtype=torch.int64), **own))  # type: ignore[arg-type]
    assert "no label of the batch counts: all are those that the loss ignores, or have class weight 0" in told


@pytest.mark.parametrize("names", [{}, {"x": ("age", "bp", "dose", "weight")}])
def test_a_value_with_which_training_diverges_is_named(names: Any) -> None:
    x = X.clone()
    x[12, 2] = 1e30
    target = Y.float().unsqueeze(1)
    data = federate(ob.Dataset(x, target, columns=names), None, PARTS)
    told = message(ob.TorchLearner(one_output, data, FOURS, loss=nn.MSELoss()), RunError)
    column = "'dose'" if names else "2"
    assert f"the loss is not finite: sample 12 of the train set has 1e+30 in column {column}, with" in told
    infinite = federate(ob.Dataset(with_nan(12), Y, columns=names), None, PARTS)
    told = message(ob.TorchLearner(linear, infinite, FOURS))
    assert f"sample 12 of the train set has NaN or infinite values in column {column};" in told

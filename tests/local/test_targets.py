"""Targets that a loss cannot mean are refused, by the sample and its client; others train as ever."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import offbeat as ob
from offbeat.core.errors import DivergedError, RunError, UsageError
from offbeat.data import MapDataset
from offbeat.local.losses import LOSSES, dice_loss
from offbeat.local.targets import check_form, check_targets, scores_of, wrong_target
from tests.sampling import thorough

pytestmark = pytest.mark.usefixtures("one_thread")
X = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
LABELS = (X[:, 0] > 0).long()
BINARY = LABELS.float().unsqueeze(1)
PARTS = np.array_split(np.arange(40), 4)


def run(
    y: Any, loss: Any = None, outputs: int = 2, test: Any = None, *, lazy: bool = False, module: Any = None,
    **options: Any,
) -> ob.Run:  # fmt: skip
    whole: Any = MapDataset(list(zip(X, y, strict=True))) if lazy else (X, y)
    learner = ob.TorchLearner(
        module or (lambda: nn.Linear(3, outputs)), ob.federate(whole, test, PARTS),
        ob.Training(batch_size=10, **options.pop("training", {})), loss, **options,
    )  # fmt: skip
    every = None if test is None else ob.Every(versions=1)
    return ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=every)


def put(y: torch.Tensor, value: float, at: int = 25) -> torch.Tensor:
    """The targets with another one of client 2."""
    changed = y.clone()
    changed[at] = value
    return changed


WRONG = [
    (put(BINARY, 2), functional.binary_cross_entropy_with_logits, 1, r"the target 2\.0, .*\[0, 1\]"),
    (put(BINARY, -1), nn.BCEWithLogitsLoss(), 1, r"the target -1\.0"),
    (put(BINARY, 1.5), partial(functional.binary_cross_entropy_with_logits, reduction="mean"), 1, "1.5"),
    (put(torch.ones(40, 3), 2), nn.MultiLabelSoftMarginLoss(), 3, r"the target \[2\.0, 2\.0, 2\.0\]"),
    (put(2 * BINARY - 1, 0), nn.SoftMarginLoss(), 1, "targets −1 and 1"),
    (put(BINARY, -2), nn.PoissonNLLLoss(), 1, "targets from 0"),
    (put(LABELS, -1), functional.cross_entropy, 2, "the target -1, and cross_entropy takes classes from 0"),
    (put(LABELS, -100), nn.CrossEntropyLoss(ignore_index=7), 2, "the target -100"),
    (put(LABELS, -1), nn.MultiMarginLoss(), 2, "the target -1"),
    (put(functional.one_hot(LABELS, 2).float(), 1), nn.CrossEntropyLoss(), 2, "probabilities that add up to"),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("y", "loss", "outputs", "told"), WRONG)
def test_a_target_out_of_range_names_its_client_and_sample(y, loss, outputs, told, lazy):
    with pytest.raises(UsageError, match=rf"^client 2: sample 25 of the train set has .*{told}") as caught:
        run(y, loss, outputs, lazy=lazy)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("y", "loss", "outputs", "told"), WRONG)
def test_a_test_set_is_checked_too(y, loss, outputs, told):
    fine = {1: BINARY, 3: torch.ones(40, 3)}.get(outputs, LABELS)
    fine = 2 * BINARY - 1 if isinstance(loss, nn.SoftMarginLoss) else fine
    with pytest.raises(UsageError, match=rf"^the test set: sample 25 has .*{told}"):
        run(fine, loss, outputs, test=(X, y))
    with pytest.raises(UsageError, match=rf"^the test set: sample 25 has .*{told}"):
        run(fine, loss, outputs, test=list(zip(X, y, strict=True)))


def test_what_a_client_holds_out_is_checked():
    held = [(X[rows], BINARY[rows]) for rows in PARTS]
    held[1] = held[1][0], put(held[1][1], 3, at=4)
    data = ob.federate(held, validation=held)
    learner = ob.TorchLearner(lambda: nn.Linear(3, 1), data, loss=nn.BCEWithLogitsLoss())
    with pytest.raises(UsageError, match=r"^client 1: sample 4 of the client's dataset has the target 3"):
        learner.initial(0)


@pytest.mark.parametrize(
    ("y", "loss", "outputs", "told"),
    [
        (LABELS * 0, LOSSES["cross_entropy"], 1, "the loss of one score for all classes is always the same"),
        (LABELS * 0, nn.CrossEntropyLoss(), 1, "the loss of one score"),
        (LABELS * 0, nn.NLLLoss(), 1, "the loss of one score"),
        (LABELS.float(), LOSSES["cross_entropy"], 2, r"labels int64, .* convert labels with \.long\(\)"),
        (LABELS.float(), None, 2, r"labels of classes are int64: convert them with \.long\(\)"),
        (LABELS.float(), None, 1, r"BCEWithLogitsLoss\(\) for targets 0 and 1"),
        (X[:, 0], None, 2, r"for numbers give loss=, such as nn\.MSELoss\(\)"),
        (functional.one_hot(LABELS, 2), None, 2, r"make classes of one-hot targets by \.argmax\(1\)"),
        (functional.one_hot(LABELS, 2).bool(), nn.CrossEntropyLoss(), 2, r"one-hot targets by \.argmax"),
        (functional.one_hot(LABELS, 2).float(), None, 2, r"one-hot targets by \.argmax"),
        (torch.ones(40, 2, dtype=torch.int64), None, 2, r"BCEWithLogitsLoss\(\) for several labels"),
        (LABELS.repeat(3, 1).T, None, 2, r"take a class at each place, here a target of \[\d+\]"),
        (LABELS, nn.BCEWithLogitsLoss(), 2, "compares each score with a target: give them one shape"),
        (BINARY[:, :, None], nn.MSELoss(), 1, "compares each score with a target: give them one shape"),
        (LABELS + 1, None, 2, "renumber them .y - 1 if they are from 1"),
        (LABELS, LOSSES["nll_loss"], 2, "takes logarithms of probabilities, which are at most 0"),
        (LABELS + 3, None, 2, "labels are 0 to C − 1 for a module with C scores"),
        (LABELS - 1, None, 2, "labels are 0 to C − 1"),
        (BINARY, nn.BCELoss(), 1, "end the module in a sigmoid"),
    ],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_form_that_fits_no_loss_is_refused(y, loss, outputs, told, lazy):
    with pytest.raises(UsageError, match=rf"^client \d: .*{told}") as caught:
        run(y, loss, outputs, lazy=lazy)
    assert "\n" not in str(caught.value)


def test_scores_without_classes_are_no_distribution_over_the_batch():
    """PyTorch takes scores [N] with targets [N] for one sample of N classes."""
    with pytest.raises(UsageError, match="the loss of one score for all classes"):
        check_form(nn.CrossEntropyLoss(), torch.zeros(10), torch.full((10,), 0.1))


def test_the_dice_loss_needs_two_classes():
    with pytest.raises(UsageError, match="the softmax of one is always 1"):
        dice_loss(torch.zeros(2, 1, 4), torch.zeros(2, 4, dtype=torch.int64))


@pytest.mark.parametrize(
    ("y", "loss", "outputs"),
    [
        (BINARY, nn.BCEWithLogitsLoss(), 1),
        (BINARY * 0.9 + 0.05, nn.BCEWithLogitsLoss(), 1),
        (functional.one_hot(LABELS, 2).float(), nn.CrossEntropyLoss(), 2),
        (put(LABELS, -100), nn.CrossEntropyLoss(), 2),
        (put(LABELS, 7), nn.CrossEntropyLoss(ignore_index=7), 2),
        (put(LABELS, -1), partial(functional.cross_entropy, ignore_index=-1), 2),
        (BINARY + 1, nn.MSELoss(), 1),
        (BINARY + 5, lambda output, target: (output - target).square().mean(), 1),
    ],
)
def test_what_a_loss_means_trains(y, loss, outputs):
    assert run(y, loss, outputs).summary.versions == 2


IMAGES = torch.randn(40, 1, 4, 4, generator=torch.Generator().manual_seed(1))
MASKS = (IMAGES[:, 0] > 0).long()
FORMS: list[Any] = [
    # The targets, others that mean the same, the loss, the number of scores.
    (LABELS, LABELS[:, None], None, 2),
    (LABELS, LABELS[:, None].bool(), nn.CrossEntropyLoss(), 2),
    (LABELS, LABELS.int(), nn.CrossEntropyLoss(), 2),
    (LABELS, LABELS.to(torch.uint8)[:, None], partial(functional.cross_entropy, label_smoothing=0.1), 2),
    (MASKS, MASKS[:, None], None, 2),
    (MASKS, MASKS[:, None].bool(), LOSSES["dice_loss"], 2),
    (MASKS[:, None].float(), MASKS, nn.BCEWithLogitsLoss(), 1),
    (BINARY, LABELS, nn.BCEWithLogitsLoss(), 1),
    (BINARY, LABELS.bool(), functional.binary_cross_entropy_with_logits, 1),
    (BINARY, BINARY[:, 0], nn.MSELoss(), 1),
    (2 * BINARY - 1, 2 * LABELS - 1, nn.SoftMarginLoss(), 1),
    (BINARY, LABELS, functional.poisson_nll_loss, 1),
]


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize(("y", "other", "loss", "outputs"), FORMS)
def test_a_target_of_another_form_with_one_meaning_trains_alike(y, other, loss, outputs, lazy):
    x = IMAGES if y.ndim > 2 else X

    def trained(y: torch.Tensor) -> ob.Run:
        def module() -> nn.Module:
            return nn.Conv2d(1, outputs, 3, padding=1) if x is IMAGES else nn.Linear(3, outputs)

        data: Any = MapDataset(list(zip(x, y, strict=True))) if lazy else (x, y)
        learner = ob.TorchLearner(module, ob.federate(data, data, PARTS), ob.Training(batch_size=7), loss)
        return ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2))

    wanted, found = trained(y), trained(other)
    assert torch.equal(found.model.values, wanted.model.values)
    assert found.metrics == wanted.metrics


def test_clients_trained_together_take_the_same_forms():
    def trained(y: torch.Tensor, loss: Any, outputs: int) -> torch.Tensor:
        learner = ob.TorchLearner(lambda: nn.Linear(3, outputs), ob.federate((X, y), None, PARTS), loss=loss)
        return ob.simulate(
            ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None,
            executor=ob.Batched(),
        ).model.values  # fmt: skip

    assert torch.equal(trained(LABELS[:, None].int(), None, 2), trained(LABELS, None, 2))
    binary = nn.BCEWithLogitsLoss()
    assert torch.equal(trained(LABELS, binary, 1), trained(BINARY, binary, 1))


class WithFeatures(nn.Module):
    """Returns its scores, and something else."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(3, outputs)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.linear(x), x


@pytest.mark.parametrize(
    ("y", "loss", "outputs"), [(LABELS, nn.CrossEntropyLoss(), 2), (BINARY, nn.MSELoss(), 1)]
)
def test_a_loss_of_pytorch_gets_the_scores_of_a_module_that_returns_more(y, loss, outputs):
    found = run(y, loss, module=partial(WithFeatures, outputs), test=(X, y))
    wanted = run(y, loss, outputs, test=(X, y))
    assert found.metrics == wanted.metrics


def test_a_loss_of_ones_own_gets_output_and_target_as_they_come():
    seen = []

    def loss(output: Any, target: Any) -> torch.Tensor:
        seen.append((type(output), target.dtype, tuple(target.shape[1:])))
        return functional.cross_entropy(output[0], target[:, 0].long())

    run(LABELS[:, None].int(), loss, module=partial(WithFeatures, 2))
    assert set(seen) == {(tuple, torch.int32, (1,))}


def test_labels_that_are_all_ignored_are_no_divergence():
    for ignored in (put(LABELS, -100, at=slice(10, 20)), torch.full((40,), -100)):
        with pytest.raises(
            UsageError, match=r"client \d, task \d, step 1 of 2: .* no label of the batch counts"
        ):
            run(ignored)
    own = nn.CrossEntropyLoss(ignore_index=0)
    with pytest.raises(UsageError, match="no label of the batch counts"):
        run(LABELS * 0, own)
    with pytest.raises(UsageError, match=r"the test set: .* no label of the batch counts"):
        run(LABELS, test=(X, torch.full((40,), -100)))


def test_training_that_diverges_is_told_as_such():
    with pytest.raises(DivergedError, match="the training has diverged"):
        run(BINARY * 1e30, nn.MSELoss(), 1, training={"lr": 1e6})


def test_an_infinite_value_of_a_batch_before_is_found():
    """It makes the weights infinite in one step, and the loss of the next one."""
    x = X.clone()
    x[3, 1] = float("inf")
    module = nn.Sequential(nn.Linear(3, 4), nn.Sigmoid(), nn.Linear(4, 2))
    learner = ob.TorchLearner(module, ob.federate([(x, LABELS)]), ob.Training(batch_size=1))
    with pytest.raises(UsageError, match="the loss is not finite: sample 3 of the client's dataset has NaN"):
        ob.simulate(ob.fedavg(steps=40), learner=learner, until=ob.Until(versions=1), evaluate=None)


def test_tasks_trained_together_name_what_is_wrong():
    def together(y: torch.Tensor) -> None:
        data = ob.federate((X, y), None, PARTS)
        learner = ob.TorchLearner(lambda: nn.Linear(3, 2), data)
        ob.simulate(
            ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=1), evaluate=None,
            executor=ob.Batched(4),
        )  # fmt: skip

    with pytest.raises(UsageError, match="on labels of -100, which the loss ignores"):
        together(put(LABELS, -100))
    with pytest.raises(UsageError, match=r"0 to C − 1|classes 0 to 1"):
        together(put(LABELS, 2))


def test_the_number_of_scores_bounds_the_classes():
    assert wrong_target(nn.CrossEntropyLoss(), LABELS, 2) is None
    with pytest.raises(
        UsageError, match="ward 3 has the target 4, and CrossEntropyLoss takes classes 0 to 1"
    ):
        check_targets(nn.CrossEntropyLoss(), put(LABELS, 4, at=3), "ward {}".format, 2)
    module = nn.Sequential(nn.Linear(3, 5), nn.Dropout())
    before = torch.get_rng_state()
    assert scores_of(module, X[:1], lambda own, x: own(x)) == 5
    assert module.training
    assert torch.equal(before, torch.get_rng_state())


# ---- data that fail ----


class Failing:
    """A map-style dataset that cannot give one sample."""

    def __init__(self, at: int = 25) -> None:
        self.at = at

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Any:
        if row == self.at:
            raise FileNotFoundError("no scan\nof this patient")
        return X[row], LABELS[row]


class FailingTogether(Failing):
    def __getitems__(self, rows: list[int]) -> list[Any]:
        return [self[row] for row in rows]


def linear() -> nn.Module:
    return nn.Linear(3, 2)


TOLD = r"sample 25 of the train set cannot be read: test_targets\.py, line \d+: FileNotFoundError: no scan of"


@pytest.mark.parametrize(
    ("kind", "workers"), [(Failing, 1), (FailingTogether, 0), *thorough((Failing, 0), (FailingTogether, 1))]
)
def test_a_dataset_that_raises_names_client_and_sample(kind, workers):
    learner = ob.TorchLearner(linear, ob.federate(kind(), None, PARTS), ob.Training(batch_size=10))
    with pytest.raises(RunError, match=f"^client 2: {TOLD}") as caught:
        ob.simulate(
            ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None, workers=workers
        )
    assert "\n" not in str(caught.value)


def test_a_test_set_and_a_held_out_one_that_raise():
    learner = ob.TorchLearner(linear, ob.federate((X, LABELS), Failing(), PARTS))
    with pytest.raises(RunError, match=r"^the test set: sample 25 cannot be read: "):
        learner.evaluate(learner.initial(0))
    sets = [Failing(99), Failing(99)]
    learner = ob.TorchLearner(linear, ob.federate(sets, validation=[Failing(99), Failing(7)]))
    with pytest.raises(
        RunError, match=r"^client 1: sample 7 of those that the client holds out cannot be read"
    ):
        learner.evaluate_client(learner.initial(0), 1)
    sets = [Failing(99), Failing(7)]
    learner = ob.TorchLearner(linear, ob.federate(sets))
    with pytest.raises(RunError, match=r"^client 1: sample 7 of the client's dataset cannot be read"):
        ob.simulate(ob.fedavg(steps=9), learner=learner, until=ob.Until(versions=1), evaluate=None)


def test_samples_that_make_no_batch_name_the_client():
    uneven = [(torch.ones(3 + (row == 25)), 0) for row in range(40)]
    learner = ob.TorchLearner(linear, ob.federate(uneven, None, PARTS))
    with pytest.raises(UsageError, match=r"^client 2: the samples of a list do not make a batch"):
        ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None)

    def collate(samples: list[Any]) -> Any:
        raise KeyError("pixels")

    learner = ob.TorchLearner(linear, ob.federate([MapDataset(uneven, collate)]))
    with pytest.raises(UsageError, match=r"^client 0: .* \(test_targets\.py, line \d+: KeyError: 'pixels'\)"):
        ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None)


def test_a_loop_of_ones_own_that_raises_tells_its_client():
    def train(task: ob.ClientTask) -> None:
        raise KeyError("pixels")

    learner = ob.LoopLearner(train, linear(), [5, 5])
    with pytest.raises(KeyError) as caught:
        ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None)
    assert caught.value.__notes__ == ["in the loop's task 0 of client 0"]

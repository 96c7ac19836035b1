"""Which evaluations are a collapse: by hand, and none of an honest run."""

from collections.abc import Mapping
from math import inf, nan
from typing import Any

import pytest

import offbeat as ob
from offbeat.net.server.collapse import CollapseDetector
from tests.sampling import thorough
from tests.sim.three_classes import OPTIONS, net


def judged(*losses: float | None, accuracies: tuple[float, ...] | None = None) -> list[bool | str]:
    """For each loss whether it is the lowest so far, or why the model has collapsed."""
    detector, found = CollapseDetector(), []
    for k, loss in enumerate(losses):
        metrics = {"loss": loss} if accuracies is None else {"loss": loss, "accuracy": accuracies[k]}
        found.append(detector.judge(metrics) or detector.good)
    return found


def test_a_jump_by_hand() -> None:
    """l* is the first loss before five are there, then their median: 0.6 of 2.3, 1.0, 0.6, 0.5, 0.6."""
    assert judged(2.3, *[11.6] * 5)[-1] == "its loss, 11.6, is above 11.5 at 5 evaluations in a row"
    assert judged(2.3, *[11.6] * 4, 2.0, 11.6)[1:] == [False] * 4 + [True, False]
    found = judged(2.3, 1.0, 0.6, 0.5, 0.6, 2.9, *[3.1] * 5)
    assert found[:-1] == [True] * 4 + [False] * 6
    assert found[-1] == "its loss, 3.1, is above 3 at 5 evaluations in a row"


def test_what_is_better_than_the_initial_model_is_no_jump() -> None:
    assert judged(2.0, *[0.1] * 10, *[1.75] * 9)[-9:] == [False] * 9
    found = judged(2.0, *[0.1] * 10, *[2.01] * 5)
    assert found[-1] == "its loss, 2.01, is above 2 at 5 evaluations in a row"


RISING = [0.31 + 0.03 * k for k in range(57)]
LOST = "its loss, 1.99, has lost more than 7/8 of what was gained from 2 to 0.2, at 8 evaluations in a row"


def test_what_is_lost_slowly_with_its_metric_is_a_collapse() -> None:
    """From 2.0 to 0.2: seven eighths of the gain are lost at 1.775. The loss rises by 0.03 each time.

    Above 2.0 is a jump, which it never reaches. The accuracy's gain of 0.8 is lost at 0.2.
    """
    found = judged(2.0, *[0.2] * 10, *RISING, accuracies=(0.1, *[0.9] * 59, *[0.19] * 8))
    assert found[-1] == LOST
    assert not any(isinstance(told, str) for told in found[:-1])
    kept = judged(2.0, *[0.2] * 10, *RISING, accuracies=(0.1, *[0.9] * 59, *[0.21] * 8))
    assert not any(isinstance(told, str) for told in kept)


def test_a_loss_alone_that_rises_slowly_is_a_warning() -> None:
    detector, told = CollapseDetector(), []
    for loss in (2.0, *[0.2] * 10, *RISING):
        assert detector.judge({"loss": loss}) is None
        told.append(detector.warning)
    assert told == [*[None] * 67, f"{LOST}: the model overfits, or an attack leads it away"]
    detector.judge({"loss": 0.2})
    assert detector.warning is None


def test_a_metric_that_keeps_its_gain_spares_the_warning() -> None:
    detector = CollapseDetector()
    for k, loss in enumerate((2.0, *[0.2] * 10, *RISING)):
        assert detector.judge({"loss": loss, "own_auroc": 0.55 if k == 0 else 0.92}) is None
        assert detector.warning is None


def test_what_stays_worse_than_the_initial_model_is_a_collapse() -> None:
    """Twice 2.0 is 4.0: five in a row, and one of 4.0 begins anew."""
    assert judged(2.0, *[4.01] * 5)[-1] == "its loss, 4.01, is above 4 at 5 evaluations in a row"
    assert judged(2.0, *[4.01] * 4, 4.0, *[4.01] * 4)[1:] == [False] * 9
    found = judged(2.0, *[4.01] * 10)
    assert [isinstance(told, str) for told in found].count(True) == 3  # the later ones soon after a collapse


@pytest.mark.parametrize(("accuracy", "collapsed"), [(0.27, True), (0.29, False)])
def test_a_fifth_of_the_accuracy_that_can_be_gained_is_worth_the_loss(
    accuracy: float, collapsed: bool
) -> None:
    """From 0.1 that is 0.28."""
    found = judged(2.0, *[4.5] * 5, accuracies=(0.1, *[accuracy] * 5))
    assert isinstance(found[-1], str) == collapsed


def test_what_stays_worse_never_becomes_usual() -> None:
    found = judged(2.0, *[0.1] * 9, *[50.0] * 20)
    assert [isinstance(told, str) for told in found].count(True) == 8
    assert found[-20:].count(True) == 0  # none of them is one to go back to


def test_the_best_is_the_one_to_go_back_to() -> None:
    assert judged(2.0, 1.0, 1.5, 0.5, 0.7, 0.4) == [True, True, False, True, False, True]


def test_a_gain_of_less_than_two_fifths_is_none_that_can_be_lost() -> None:
    assert judged(2.0, *[1.25] * 10, *[1.95] * 10)[-10:] == [False] * 10
    accuracies = 0.1, *[0.9] * 10, *[0.1] * 10
    assert judged(2.0, *[1.25] * 10, *[1.95] * 10, accuracies=accuracies)[-10:] == [False] * 10
    assert isinstance(judged(2.0, *[1.15] * 10, *[1.95] * 8, accuracies=accuracies)[-1], str)


def far(norm: float, loss: float, accuracy: float | None = None) -> list[bool | str]:
    """The judgements of five evaluations of a model of a norm, after a first one of 2.0 and 0.1."""
    detector = CollapseDetector()
    detector.judge({"loss": 2.0, "accuracy": 0.1})
    metrics = {"loss": loss} | ({} if accuracy is None else {"accuracy": accuracy})
    found = (detector.judge({**metrics, **detector.to_record(metrics, norm)}) for _ in range(5))
    return [reason or detector.good for reason in found]


@pytest.mark.parametrize(
    ("norm", "loss", "accuracy", "collapsed"),
    [
        (0.24, 1.61, None, True),  # a fifth less than 2.0 is 1.6
        (0.24, 1.59, None, False),
        (0.26, 1.61, None, False),
        (0.0, 1.61, None, True),
        (4.1, 2.41, None, True),  # a fifth more is 2.4
        (4.1, 2.39, None, False),
        (3.9, 2.41, None, False),
        (inf, 2.41, None, False),  # the initial model was zero
        (4.1, 2.41, 0.39, True),  # a third of what lies between 0.1 and 1 is 0.4
        (4.1, 2.41, 0.41, False),
        (0.1, 1.9, 0.41, False),
    ],
)
def test_weights_far_from_the_initial_ones_without_a_gain(
    norm: float, loss: float, accuracy: float | None, collapsed: bool
) -> None:
    found = far(norm, loss, accuracy)
    assert isinstance(found[-1], str) == collapsed
    assert not any(isinstance(told, str) for told in found[:-1])
    if collapsed:
        assert "far from the initial one, without a gain, at 5 evaluations" in str(found[-1])
        assert not any(told is True for told in found)  # none of them is one to go back to


def test_an_ordinary_model_is_recorded_by_its_metrics_alone() -> None:
    detector = CollapseDetector()
    assert detector.to_record({"loss": 2.0}, 1.0) == {}
    assert detector.to_record({"auroc": 0.5}, 0.0) == {}


@pytest.mark.parametrize("loss", [nan, inf, None])
def test_what_is_not_finite_is_a_collapse_at_once(loss: float | None) -> None:
    assert judged(2.0, 1.0, loss) == [True, True, "its loss is not finite"]
    assert judged(loss) == ["its loss is not finite"]


def test_one_far_worse_evaluation_is_none() -> None:
    assert judged(2.0, 0.1, 0.1, 50.0, 0.1, 50.0, 0.1) == [True, True, False, False, False, False, False]


def test_an_overconfident_model_has_not_collapsed() -> None:
    """Its loss grows to thirty times the lowest, its accuracy stays."""
    losses = [2.0, *[0.1] * 10, *[0.3 * k for k in range(10)], *[3.0] * 10]
    assert not any(isinstance(told, str) for told in judged(*losses, accuracies=(0.1, *[0.9] * 30)))
    lost = judged(*losses, accuracies=(0.1, *[0.9] * 20, *[0.2] * 10))
    assert any(isinstance(told, str) for told in lost)


OVERFITTING = [0.7, *[0.7 - 0.05 * k for k in range(1, 11)], *[0.2 + 0.02 * k for k in range(100)]]
"""A loss that falls from 0.7 to 0.2, and rises to 2.18: first slowly, then above all limits."""


def along(metrics: Mapping[str, tuple[float, float, float]], **options: Any) -> list[str]:
    """The collapses of an overfitting run, whose metrics have a first value, a best one and a last one."""
    detector, found = CollapseDetector(**options), []
    for k, loss in enumerate(OVERFITTING):
        at = 0 if k == 0 else 1 if k < 20 else 2
        reason = detector.judge({"loss": loss, **{name: values[at] for name, values in metrics.items()}})
        found += [reason] if reason is not None else []
    return found


@pytest.mark.parametrize(
    "metrics",
    [
        {"own_auroc": (0.55, 0.95, 0.921)},
        {"r2": (-3.0, 0.8, 0.6)},
        {"rmse": (2.0, 0.7, 0.9)},
        {"perplexity": (20.0, 7.0, 12.0)},
        {"dice": (0.0, 0.7, 0.6)},
        {"bleu": (0.5, 30.0, 25.0)},
        {"balanced_accuracy": (0.5, 0.6, 0.57)},  # a small gain is one
        {"accuracy": (0.9, 0.92, 0.915)},
        {
            "accuracy": (0.1, 0.9, 0.8),
            "calibration_error": (0.1, 0.05, 0.4),
        },  # which measures what the loss does
        {"specificity": (0.5, 0.9, 0.85), "auroc": (0.5, 0.9, 0.85)},
        {"auroc": (0.6, 0.85, 0.82), "sensitivity": (0.7, 0.85, 0.85), "specificity": (0.5, 0.9, 0.57)},
        {"specificity": (1.0, 0.9, 0.9), "auroc": (0.5, 0.9, 0.85)},  # nothing was gained that can be kept
    ],
)
def test_a_metric_that_keeps_its_gain_excuses_whatever_its_name_and_range(
    metrics: dict[str, tuple[float, float, float]],
) -> None:
    assert along(metrics) == []


@pytest.mark.parametrize(
    "metrics",
    [
        {},
        {"own_auroc": (0.55, 0.95, 0.56)},
        {"rmse": (2.0, 0.7, 1.9)},
        {"perplexity": (20.0, 7.0, 19.0)},
        {"r2": (-3.0, 0.8, -2.9)},
        {"bleu": (0.5, 30.0, 1.0)},
        {"auroc": (0.5, 0.9, 0.5), "specificity": (0.5, 0.9, 1.0)},
        {"specificity": (0.5, 0.9, 1.0), "auroc": (0.5, 0.9, 0.5)},
        {"specificity": (0.5, 0.9, 1.0), "sensitivity": (0.5, 0.9, 0.0), "auroc": (0.5, 0.9, 0.5)},
        {"clients.accuracy": (0.1, 0.9, 0.9)},  # clients may invent it
    ],
)
def test_metrics_that_have_lost_their_gains_excuse_nothing(
    metrics: dict[str, tuple[float, float, float]],
) -> None:
    assert along(metrics)


def test_the_metric_by_which_the_run_is_compared_is_the_one_that_must_keep() -> None:
    metrics = {"accuracy": (0.1, 0.9, 0.85), "own": (0.1, 0.9, 0.1), "f1": (0.1, 0.9, 0.85)}
    assert along(metrics) == []
    assert along(metrics, metric="own")
    assert along({"cost": (5.0, 1.0, 1.5)}, higher_is_better={"cost": False}) == []
    assert along({"cost": (5.0, 1.0, 1.5)})


def test_a_gain_is_of_medians_and_not_of_one_lucky_value() -> None:
    """One loss of 0.01 does not make a loss of 0.2 a jump; one accuracy of 1.0 does not make 0.45 a loss."""
    assert not any(isinstance(told, str) for told in judged(0.1, 0.05, 0.05, 0.001, *[0.05] * 5, *[0.2] * 9))
    losses, lucky = (2.0, *[0.1] * 10, *[3.0] * 10), (0.1, 0.5, 0.5, 1.0, *[0.5] * 7, *[0.4] * 10)
    assert not any(isinstance(told, str) for told in judged(*losses, accuracies=lucky))


def test_a_metric_gains_nothing_while_the_loss_is_high() -> None:
    """An attack from the beginning leaves an accuracy of 0.25, of which 0.15 are no gain."""
    found = judged(2.0, *[2.5] * 5, *[4.5] * 5, accuracies=(0.1, *[0.25] * 10))
    assert isinstance(found[-1], str)
    found = judged(2.0, *[2.3] * 5, *[4.5] * 5, accuracies=(0.1, *[0.25] * 10))
    assert not isinstance(found[-1], str)


def test_small_weights_are_excused_by_much_and_large_ones_by_a_kept_gain() -> None:
    """The accuracy of an attacked model may be 0.25 by chance, while its loss is near the first one."""

    def recorded(norm: float, accuracy: float) -> bool:
        detector = CollapseDetector()
        for metrics in ({"loss": 2.0, "accuracy": 0.1}, *[{"loss": 1.9, "accuracy": 0.25}] * 6):
            detector.judge(metrics)
        return "relative_norm" in detector.to_record({"loss": 2.5, "accuracy": accuracy}, norm)

    assert recorded(0.1, 0.25)
    assert not recorded(0.1, 0.41)
    assert not recorded(10.0, 0.25)
    assert recorded(10.0, 0.12)


def test_losses_below_zero() -> None:
    assert judged(-0.5, -0.4, -0.6, -0.4, -3.0, -0.3) == [True, False, True, False, True, False]
    assert isinstance(judged(-0.5, -3.0, -3.0, -3.0, -3.0, *[12.5] * 5)[-1], str)


def test_without_a_loss_nothing_is_said() -> None:
    detector = CollapseDetector()
    assert detector.judge({"auroc": nan}) is None
    assert not detector.good


@pytest.mark.parametrize("lr", thorough(0.02, 0.1, 0.3, 1.0))
@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_no_false_alarm(name: str, lr: float, learner: ob.TorchLearner) -> None:
    """Ten clients with three classes each, every version evaluated; the guard skips none."""
    world = ob.World(seconds_per_step=ob.laws.Uniform(0.5, 2.0), channel=ob.Channel(50_000))
    trained = ob.TorchLearner(net, learner.data, ob.Training(lr=lr, batch_size=32))
    # Rennala and Malenia make a version of many updates.
    until, every = ob.Until(tasks=1000 if name in ("malenia", "rennala") else 250), ob.Every(versions=1)
    run = ob.simulate(
        ob.ALGORITHMS[name](**OPTIONS[name]), world, trained, seed=1, until=until, evaluate=every
    )
    assert not run.entries("skipped")
    detector = CollapseDetector()
    found = [detector.judge(row) for row in run.metrics]
    assert len(found) > 20
    assert not any(found)


def test_soon_after_a_collapse_two_losses_above_the_first_suffice() -> None:
    """Two of 2.01 say nothing before; after five of 50 they do, for 50 evaluations."""
    assert judged(2.0, 1.0, 2.01, 2.01)[1:] == [True, False, False]
    found = judged(2.0, 1.0, *[50.0] * 5, 1.0, 2.01, 2.01)
    assert (
        found[-1]
        == "its loss, 2.01, is above the first one, at 2 evaluations in a row, soon after a collapse"
    )
    assert judged(2.0, 1.0, *[50.0] * 5, *[1.0] * 49, 2.01, 2.01)[-2:] == [False, False]
    assert judged(2.0, 1.0, *[50.0] * 5, 2.01, 1.0, 2.01, 1.0)[-4:] == [False] * 4


def test_eagerness_does_not_renew_itself() -> None:
    """A run whose losses begin above the first one goes back a few times, and is then left alone."""
    found = judged(2.0, *[5.0] * 5, *[2.5] * 200)
    assert sum(isinstance(told, str) for told in found) == 1 + 25
    assert found[-150:] == [False] * 150


def test_a_version_without_a_gain_is_none_to_go_back_to() -> None:
    """A tenth of 2.0 is 0.2; or a fifth of the accuracy that can be gained, from 0.1 to 0.28."""
    assert judged(2.0, 1.81, 1.79, 1.78) == [True, False, True, True]
    assert judged(2.0, 1.9, 1.9, accuracies=(0.1, 0.27, 0.29)) == [True, False, True]

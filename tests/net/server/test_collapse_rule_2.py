"""The second rule of collapse: by hand, and none of an honest run. Runs that began by it go on by it."""

from math import inf, nan

import pytest

import offbeat as ob
from offbeat.core.guard import GUARD_RULE
from offbeat.net.server.collapse import CollapseDetector
from offbeat.net.server.collapse_rule_1 import CollapseDetectorRule1
from offbeat.net.server.collapse_rule_2 import CollapseDetectorRule2
from offbeat.net.server.recovery import EARLIER
from tests.sampling import thorough
from tests.sim.three_classes import OPTIONS, net


def judged(*losses: float | None, accuracies: tuple[float, ...] | None = None) -> list[bool | str]:
    """For each loss whether it is the lowest so far, or why the model has collapsed."""
    detector, found = CollapseDetectorRule2(), []
    for k, loss in enumerate(losses):
        metrics = {"loss": loss} if accuracies is None else {"loss": loss, "accuracy": accuracies[k]}
        found.append(detector.judge(metrics) or detector.good)
    return found


def test_a_jump_by_hand() -> None:
    """l* is the first loss before five are there, then their median: 0.6 of 2.3, 1.0, 0.6, 0.5, 0.6."""
    assert judged(2.3, *[11.6] * 3)[-1] == "its loss, 11.6, is above 11.5 at 3 evaluations in a row"
    assert judged(2.3, 11.6, 11.6, 2.0, 11.6) == [True, False, False, True, False]
    found = judged(2.3, 1.0, 0.6, 0.5, 0.6, 2.9, 3.1, 3.1, 3.1)
    assert found == [
        True,
        True,
        True,
        True,
        False,
        False,
        False,
        False,
        "its loss, 3.1, is above 3 at 3 evaluations in a row",
    ]


def test_what_is_better_than_the_initial_model_is_no_jump() -> None:
    assert judged(2.0, *[0.1] * 10, *[1.99] * 3)[-3:] == [False] * 3
    found = judged(2.0, *[0.1] * 10, *[2.01] * 3)
    assert found[-1] == "its loss, 2.01, is above 2 at 3 evaluations in a row"


def test_what_is_lost_slowly_is_a_collapse() -> None:
    """From 2.0 to 0.2: two thirds of the gain are lost at 1.4. The loss rises by 0.05 each time.

    Above 2.0 is a jump, which it never reaches.
    """
    rising = [0.41 + 0.05 * k for k in range(25)]
    found = judged(2.0, *[0.2] * 10, *rising)
    assert found[-1] == (
        "its loss, 1.61, has lost more than two thirds of what was gained from 2 to 0.2, "
        "at 5 evaluations in a row"
    )
    assert not any(isinstance(told, str) for told in found[:-1])


def test_what_stays_worse_than_the_initial_model_is_a_collapse() -> None:
    """1.75 times 2.0 is 3.5: five in a row, and one of 3.5 begins anew."""
    assert judged(2.0, *[3.51] * 5)[-1] == "its loss, 3.51, is above 3.5 at 5 evaluations in a row"
    assert judged(2.0, *[3.51] * 4, 3.5, *[3.51] * 4)[1:] == [False] * 9
    found = judged(2.0, *[3.51] * 10)
    assert [isinstance(told, str) for told in found].count(True) == 2


@pytest.mark.parametrize(("accuracy", "collapsed"), [(0.27, True), (0.29, False)])
def test_a_fifth_of_the_accuracy_that_can_be_gained_is_worth_the_loss(
    accuracy: float, collapsed: bool
) -> None:
    """From 0.1 that is 0.28."""
    found = judged(2.0, *[4.0] * 5, accuracies=(0.1, *[accuracy] * 5))
    assert isinstance(found[-1], str) == collapsed


def test_what_stays_worse_never_becomes_usual() -> None:
    found = judged(2.0, *[0.1] * 9, *[50.0] * 20)
    assert [isinstance(told, str) for told in found].count(True) == 6
    assert found[-20:].count(True) == 0  # none of them is one to go back to


def test_the_best_is_the_one_to_go_back_to() -> None:
    assert judged(2.0, 1.0, 1.5, 0.5, 0.7, 0.4) == [True, True, False, True, False, True]


def test_a_gain_of_less_than_two_fifths_is_none_that_can_be_lost() -> None:
    assert judged(2.0, *[1.25] * 10, *[1.95] * 10)[-10:] == [False] * 10
    assert isinstance(judged(2.0, *[1.15] * 10, *[1.75] * 5)[-1], str)


def far(norm: float, loss: float, accuracy: float | None = None) -> list[bool | str]:
    """The judgements of five evaluations of a model of a norm, after a first one of 2.0 and 0.1."""
    detector = CollapseDetectorRule2()
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
    detector = CollapseDetectorRule2()
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


def test_losses_below_zero() -> None:
    assert judged(-0.5, -0.4, -0.6, -0.4, -3.0, -0.3) == [True, False, True, False, True, False]
    assert isinstance(judged(-0.5, -3.0, -3.0, -3.0, -3.0, *[12.5] * 3)[-1], str)


def test_without_a_loss_nothing_is_said() -> None:
    detector = CollapseDetectorRule2()
    assert detector.judge({"auroc": nan}) is None
    assert not detector.good


@pytest.mark.parametrize("lr", thorough(0.02, 0.1, 0.3, 1.0))
@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_no_false_alarm(name: str, lr: float, learner: ob.TorchLearner) -> None:
    """Ten clients with three classes each, every version evaluated; the guard skips none."""
    world = ob.World(seconds_per_step=ob.laws.Uniform(0.5, 2.0), channel=ob.Channel(50_000))
    trained = ob.TorchLearner(net, learner.data, ob.Training(lr=lr, batch_size=32))
    until, every = ob.Until(tasks=250), ob.Every(versions=1)
    run = ob.simulate(
        ob.ALGORITHMS[name](**OPTIONS[name]), world, trained, seed=1, until=until, evaluate=every
    )
    assert not run.entries("skipped")
    detector = CollapseDetectorRule2()
    found = [detector.judge(row) for row in run.metrics]
    assert len(found) > 20
    assert not any(found)


def test_a_recorded_number_says_which_rule_is_followed() -> None:
    """Three losses far above the first one are a collapse by the second rule, and none by the third."""
    jump = [2.3, 11.6, 11.6, 11.6]
    told = {
        rule: [detector.judge({"loss": loss}) for loss in jump][-1] is not None
        for rule, detector in ((rule, EARLIER.get(rule, CollapseDetector)()) for rule in (2, 3, GUARD_RULE))
    }
    assert told == {2: True, 3: False, GUARD_RULE: False}
    assert EARLIER[1] is CollapseDetectorRule1

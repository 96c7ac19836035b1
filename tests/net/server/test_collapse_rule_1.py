"""Which losses are a collapse: by hand, and none of an honest run."""

from math import inf, nan

import pytest

import offbeat as ob
from offbeat.net.server.collapse_rule_1 import CollapseDetectorRule1
from tests.sampling import thorough
from tests.sim.three_classes import OPTIONS, net


def judged(*losses: float | None) -> list[bool | str]:
    """For each loss whether it is good, or why the model has collapsed."""
    detector = CollapseDetectorRule1()
    return [detector.judge({"loss": loss}) or detector.good for loss in losses]


def test_the_numbers_by_hand() -> None:
    """The median of 2.3, 1.0, 0.6, 0.5 is 0.6, so 3.0 is the limit; of 2.3, 1.0, 0.6, 0.5, 3.1 it is 1.0."""
    assert judged(2.3, 1.0, 0.6, 0.5, 3.1, 4.9, 5.1) == [True, True, True, True, False, True, False]
    assert judged(2.3, 1.0, 0.6, 0.5, 3.1, 5.1)[-1] == "its loss, 5.1, is above 5 at 2 evaluations in a row"


def test_nine_tenths_of_the_first_loss_are_allowed() -> None:
    assert judged(2.0, *[0.1] * 10, 1.79, 1.79) == [True] * 13
    assert judged(2.0, *[0.1] * 10, 1.81, 1.81)[-2:] == [
        False, "its loss, 1.81, is above 1.8 at 2 evaluations in a row",
    ]  # fmt: skip


@pytest.mark.parametrize("loss", [nan, inf, None])
def test_what_is_not_finite_is_a_collapse_at_once(loss: float | None) -> None:
    assert judged(2.0, 1.0, loss) == [True, True, "its loss is not finite"]
    assert judged(loss) == ["its loss is not finite"]


def test_one_far_worse_evaluation_is_none() -> None:
    assert judged(2.0, 0.1, 0.1, 50.0, 0.1, 50.0, 0.1) == [True, True, True, False, True, False, True]


def test_what_stays_worse_is_soon_the_usual() -> None:
    found = judged(2.0, *[0.1] * 9, *[50.0] * 10)
    assert [isinstance(told, str) for told in found].count(True) == 3
    assert found[-4:] == [True] * 4


def test_losses_below_zero() -> None:
    assert judged(-0.5, -0.4, -0.6, -0.4, -3.0, -0.3) == [True] * 6
    assert judged(-0.5, -3.0, -3.0, -3.0, 12.5, 12.5)[-1] == (
        "its loss, 12.5, is above 9 at 2 evaluations in a row"
    )


def test_without_a_loss_nothing_is_said() -> None:
    detector = CollapseDetectorRule1()
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
    found = judged(*(row.loss for row in run.evaluations()))
    assert len(found) > 20
    assert all(told is True for told in found)

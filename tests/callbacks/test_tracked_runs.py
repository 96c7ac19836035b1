"""Trackers of simulated runs, which fail and are resumed."""

import logging
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.callbacks import CSVTracker, TensorBoardTracker
from offbeat.core.model import Model
from offbeat.runs.schema import Metric
from tests.callbacks.test_csv_tracker import read as rows
from tests.callbacks.test_tensorboard_tracker import read as events
from tests.callbacks.test_tensorboard_tracker import scalars
from tests.sim.sim_worlds import digits

ALGORITHM, WORLD, UNTIL = ob.fedbuff(2, steps=2), ob.World([1.0, 1.3, 2.9, 3.7, 4.1]), ob.Until(versions=6)


class Fails(ob.Callback):
    """Fails at a version; it is told after the trackers."""

    def on_evaluation(self, run: ob.LiveRun, metrics: Metric, model: Model) -> None:
        if metrics.version == 4:
            raise OSError("no space left")


@pytest.mark.parametrize("checkpoint_seconds", [0.0, 3600.0])
def test_a_run_that_was_told_evaluations_twice_has_each_once(tmp_path: Path, checkpoint_seconds: float):
    learner, every, trackers = digits(), ob.Every(versions=1), [CSVTracker(), TensorBoardTracker()]
    whole, failed = tmp_path / "whole", tmp_path / "failed"
    run = ob.simulate(ALGORITHM, WORLD, learner, until=UNTIL, evaluate=every, out=whole, callbacks=trackers)
    with pytest.raises(ob.RunError, match=r"Fails\.on_evaluation has failed: OSError: no space left"):
        ob.simulate(
            ALGORITHM, WORLD, learner, until=UNTIL, evaluate=every, out=failed,
            checkpoint_seconds=checkpoint_seconds, callbacks=[*trackers, Fails()],
        )  # fmt: skip
    assert [row["version"] for row in rows(failed / "metrics.csv")] == ["0", "1", "2", "3", "4"]
    ob.resume(failed, ALGORITHM, WORLD, learner, until=UNTIL, evaluate=every, callbacks=trackers)
    assert (failed / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert scalars(events(failed / "tensorboard")) == scalars(events(whole / "tensorboard"))
    found = [(float(row["t"]), int(row["tasks"]), float(row["loss"])) for row in rows(whole / "metrics.csv")]
    assert found == [(row["t"], row["tasks"], row["loss"]) for row in run.metrics]


def test_a_resumption_without_the_callbacks_of_the_run_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    learner = digits()

    def lines() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
        caplog.clear()
        return found

    def failed(name: str) -> Path:
        with pytest.raises(ob.RunError, match="no space left"):
            ob.simulate(
                ALGORITHM, WORLD, learner, until=UNTIL, out=tmp_path / name, callbacks=[CSVTracker(), Fails()]
            )
        return tmp_path / name

    dropped, meant = failed("dropped"), failed("meant")
    assert not lines()
    ob.resume(dropped, ALGORITHM, WORLD, learner, until=UNTIL)
    (line,) = lines()
    assert "the run goes on without its callbacks ['CSVTracker', 'Fails']" in line
    assert "give resume callbacks=" in line
    ob.resume(dropped, ALGORITHM, WORLD, learner, until=UNTIL)
    ob.resume(meant, ALGORITHM, WORLD, learner, until=UNTIL, callbacks=[])
    assert not lines(), "a run that had ended, and callbacks that are left out on purpose"

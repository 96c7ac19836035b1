"""Callbacks, early stopping and the best model of a simulation, also of one that is interrupted."""

import json
from dataclasses import dataclass, field, replace
from math import inf, nan
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

import offbeat as ob
from offbeat.core.layout import Layout
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, NoTraining, TaskControl, TaskInputs
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.runs.best import BestModel
from offbeat.runs.store import RunStore
from tests.sampling import thorough
from tests.sim.sim_worlds import digits, normed, outcome

WORLD = ob.World([1.0, 1.3, 4.1])  # no two updates arrive at the same time
BUFFERED = ob.fedbuff(1, steps=2, server_lr=1.0, staleness=ob.constant())
SCORES = (0.1, 0.3, 0.2, 0.6, nan, 0.6, 0.5, 0.4, 0.55, 0.59, 0.9, 1.0)  # of versions 0, 1, …
UNTIL = ob.Until(versions=11)
SIX = ob.Until(versions=11, early_stopping=ob.EarlyStopping("score", 6))  # the best is 0.6, of version 3
BEST = ob.Every(versions=1, keep_best="score")
CLOCK = [0.0]  # real seconds: an evaluation takes one, all else none


@pytest.fixture(autouse=True)
def checkpoint_after_each_evaluation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a run has a checkpoint every 0 seconds."""
    monkeypatch.setattr("offbeat.sim.event_loop.time", SimpleNamespace(monotonic=lambda: CLOCK[0]))


@dataclass(frozen=True)
class Scored(NoTraining):
    """The model of version v is v, whose score is the v-th of a list; it interrupts an evaluation."""

    scores: tuple[float, ...] = SCORES
    interrupts: list[int] = field(default_factory=list)

    def initial(self, seed: int) -> Model:
        return Model.empty(Layout.flat(1))

    def train(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs = NO_INPUTS,
        watch: TaskControl | None = None,
    ) -> LocalResult:  # fmt: skip
        return LocalResult(torch.ones(1), base.integers)

    def evaluate(self, model: Model) -> Any:
        CLOCK[0] += 1
        version = int(model.values[0])
        if version in self.interrupts:
            self.interrupts.remove(version)
            raise KeyboardInterrupt
        return {"score": self.scores[version], "loss": 2.0 - version / 10}


class Told(ob.Callback):
    """Writes down what it is told."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.heard: list[tuple[Any, ...]] = []
        self.run: Any = None
        self._stop_at = stop_at

    def on_start(self, run: ob.LiveRun) -> None:
        self.run = run
        self.heard.append(("start", len(run.past)))
        if self._stop_at == -1:
            run.stop("at once")

    def on_evaluation(self, run: ob.LiveRun, metrics: Any, model: Model) -> None:
        assert run is self.run
        assert model.state_dict()["w"].tolist() == [metrics.version]
        self.heard.append((metrics.version, metrics.found["loss"]))
        if metrics.version == self._stop_at:
            run.stop("seen enough")
            run.stop("and again")

    def on_end(self, run: ob.LiveRun, reason: str, model: Model) -> None:
        if run.directory is not None:
            assert ob.read_run(run.directory).status == "finished"
        self.heard.append(("end", reason, model.values.item()))

    def on_exception(self, run: ob.LiveRun, error: BaseException) -> None:
        self.heard.append(("exception", type(error).__name__))


def simulate(learner: Any = None, **options: Any) -> ob.Run:
    return ob.simulate(BUFFERED, WORLD, learner or Scored(3), **{"until": UNTIL, "evaluate": BEST, **options})


def resume(directory: Path, learner: Any = None, **options: Any) -> ob.Run:
    given = {"until": UNTIL, "evaluate": BEST, **options}
    return ob.resume(directory, BUFFERED, WORLD, learner or Scored(3), **given)


def best_file(directory: Path) -> tuple[dict[str, str], dict[str, list[float]]]:
    """Metadata, without the checksum, and tensors of the best model."""
    with safe_open(directory / "best.safetensors", "pt") as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        metadata = {name: value for name, value in file.metadata().items() if name != "xxh3_64"}
        return metadata, {name: tensor.tolist() for name, tensor in tensors.items()}


# ---- callbacks ----


@pytest.mark.parametrize("to", ["memory", "directory"])
def test_callbacks_are_told_of_every_evaluation_in_order(to: str, tmp_path: Path) -> None:
    first, second = Told(), Told()
    out = tmp_path / "run" if to == "directory" else None
    run = simulate(callbacks=[first, second], out=out, seed=3, label="mine", recipe={"clients": 3})
    expected: list[Any] = [("start", 0), *((v, 2.0 - v / 10) for v in range(12))]
    assert first.heard == second.heard == [*expected, ("end", "reached 11 versions", 11.0)]
    live = first.run
    assert (live.label, live.seed, live.clients, live.directory) == ("mine", 3, 3, out)
    assert live.algorithm["name"] == "fedbuff"
    assert live.recipe == {"clients": 3}
    assert set(live.versions) == {"offbeat", "torch", "python"}
    assert outcome(run) == outcome(simulate(seed=3))


@pytest.mark.parametrize("workers", [0, *thorough(1)])
def test_they_get_complete_models_also_while_other_processes_train(workers: int) -> None:
    class Kept(ob.Callback):
        def __init__(self) -> None:
            self.models: list[Model] = []

        def on_evaluation(self, run: ob.LiveRun, metrics: Any, model: Model) -> None:
            self.models.append(model)

    kept, learner = Kept(), digits(normed)
    run = ob.simulate(
        replace(ob.fedavg(), buffers="recompute"), ob.World([1.0] * 5), learner,
        workers=workers, callbacks=[kept], until=ob.Until(versions=2),
        evaluate=ob.Every(versions=1, keep_best="loss"),
    )  # fmt: skip
    assert [learner.evaluate(model) for model in kept.models] == [m.found for m in run.evaluations()]
    assert kept.models[-1].digest() == run.model.digest()
    losses = [m.loss or inf for m in run.evaluations()]
    assert run.best is not None
    assert run.best.digest() == kept.models[losses.index(min(losses))].digest()


@pytest.mark.parametrize("every", [BEST, ob.Every(seconds=0.25), ob.Every(versions=4)])
def test_a_callback_ends_the_run(every: ob.Every, tmp_path: Path) -> None:
    told = Told(stop_at=4)
    run = simulate(callbacks=[told], out=tmp_path / "run", evaluate=every)
    assert run.stop_reason == "seen enough"
    assert run.model.values.item() == 4
    assert told.heard[-1] == ("end", "seen enough", 4.0)
    assert [row["version"] for row in run.metrics].count(4) == 1  # it is not evaluated again
    record = ob.read_run(tmp_path / "run")
    assert (record.status, record.stop_reason) == ("finished", "seen enough")
    assert ob.resume(tmp_path / "run", BUFFERED, WORLD, Scored(3), callbacks=[Told()]).summary == run.summary


@pytest.mark.parametrize("every", [BEST, ob.Every(seconds=3.0)])
def test_a_callback_may_end_the_run_before_it_begins(every: ob.Every) -> None:
    run = simulate(callbacks=[told := Told(stop_at=-1)], evaluate=every)
    assert told.heard == [("start", 0), (0, 2.0), ("end", "at once", 0.0)]
    assert run.summary.versions == 0


def test_an_interrupted_run_tells_and_goes_on_where_it_was(tmp_path: Path) -> None:
    whole = simulate(out=tmp_path / "whole")
    first, second = Told(), Told()
    with pytest.raises(KeyboardInterrupt):
        simulate(Scored(3, interrupts=[7]), out=tmp_path / "run", callbacks=[first], checkpoint_seconds=0)
    assert first.heard[-2:] == [(6, 1.4), ("exception", "KeyboardInterrupt")]
    resumed = resume(tmp_path / "run", callbacks=[second])
    past = second.run.past
    assert second.heard[:2] == [("start", len(past)), (past[-1].version + 1, 2.0 - len(past) / 10)]
    assert [v for v, *_ in second.heard[1:-1]] == list(range(len(past), 12))
    assert [metric.version for metric in past] == list(range(len(past)))
    assert second.run.label == "fedbuff"
    assert outcome(resumed) == outcome(whole)


def test_a_callback_that_fails_fails_the_run_which_can_go_on(tmp_path: Path) -> None:
    class Broken(Told):
        def on_evaluation(self, run: ob.LiveRun, metrics: Any, model: Model) -> None:
            super().on_evaluation(run, metrics, model)
            if metrics.version == 7:
                raise ValueError("no such\n  place")

        def on_exception(self, run: ob.LiveRun, error: BaseException) -> None:
            raise TypeError("here too")

    told = Told()
    with pytest.raises(ob.RunError) as failed:
        simulate(callbacks=[Broken(), told], out=tmp_path / "run", checkpoint_seconds=0)
    words = "the callback Broken.on_evaluation has failed: ValueError: no such place (" + __file__
    assert str(failed.value).startswith(words)
    assert isinstance(failed.value.__cause__, ValueError)
    assert failed.value.__notes__[0].startswith("the callback Broken.on_exception has failed: TypeError: ")
    assert told.heard[-2:] == [(6, 1.4), ("exception", "RunError")]
    assert ob.read_run(tmp_path / "run").status == "failed"
    assert outcome(resume(tmp_path / "run")) == outcome(simulate())


def test_a_callback_that_fails_at_the_start_or_at_the_end(tmp_path: Path) -> None:
    class AtStart(Told):
        def on_start(self, run: ob.LiveRun) -> None:
            raise KeyError("x")

    class AtEnd(Told):
        def on_end(self, run: ob.LiveRun, reason: str, model: Model) -> None:
            raise KeyError("x")

    with pytest.raises(ob.RunError, match=r"AtStart.on_start has failed: KeyError"):
        simulate(callbacks=[AtStart()], out=tmp_path / "start")
    assert ob.read_run(tmp_path / "start").status == "failed"
    assert outcome(resume(tmp_path / "start")) == outcome(simulate())
    told = Told()
    with pytest.raises(ob.RunError, match=r"AtEnd.on_end has failed: KeyError"):
        simulate(callbacks=[AtEnd(), told], out=tmp_path / "end")
    assert told.heard[-1] == ("end", "reached 11 versions", 11.0)
    assert ob.read_run(tmp_path / "end").status == "finished"


def test_what_is_no_callback_is_refused(tmp_path: Path) -> None:
    for wrong in (Told, print):
        with pytest.raises(ob.UsageError, match=r"callbacks\[0\] = <.*> is not allowed: give an object of"):
            simulate(callbacks=[wrong], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


# ---- early stopping ----


def test_a_run_that_stops_early_stops_there_however_it_was_interrupted(tmp_path: Path) -> None:
    whole = simulate(until=SIX, out=tmp_path / "whole")
    assert whole.stop_reason == "no better score in 6 evaluations (best 0.6 at version 3)"
    assert whole.summary.versions == 9
    learner = Scored(3, interrupts=[2, 4, 5, 9, 9])
    with pytest.raises(KeyboardInterrupt):
        simulate(learner, until=SIX, out=tmp_path / "run", checkpoint_seconds=0)
    for _ in range(4):
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run", learner, until=SIX, checkpoint_seconds=0)
    resumed = resume(tmp_path / "run", learner, until=SIX)
    assert resumed.stop_reason == whole.stop_reason
    assert outcome(resumed) == outcome(whole)
    assert best_file(tmp_path / "run") == best_file(tmp_path / "whole")


def test_early_stopping_alone_is_an_end_and_needs_its_metric() -> None:
    only = ob.Until(early_stopping=ob.EarlyStopping("loss", 2, 0.25))
    assert simulate(until=only).stop_reason.startswith("no better loss by more than 0.25 in 2 evaluations")
    with pytest.raises(ob.UsageError, match=r"^until.early_stopping of loss needs evaluations: give eval"):
        simulate(until=only, evaluate=None)
    with pytest.raises(ob.UsageError, match=r"there is no metric 'auc': evaluations give score, loss"):
        simulate(until=ob.Until(versions=5, early_stopping=ob.EarlyStopping("auc", 2)))


# ---- the best model ----


def test_the_best_model_is_kept(tmp_path: Path) -> None:
    run = simulate(out=tmp_path / "run", until=SIX)
    metadata, tensors = best_file(tmp_path / "run")
    time = next(row["t"] for row in run.metrics if row["version"] == 3)
    assert metadata == {"metric": "score", "value": "0.6", "version": "3", "t": str(time)}
    assert tensors == {"w": [3.0]}
    for found in (run.best, simulate(until=SIX).best, resume(tmp_path / "run", until=SIX).best):
        assert found is not None
        assert found.values.tolist() == [3.0]
    assert {path.name for path in (tmp_path / "run").glob("[mb]*.safetensors")} == {
        "model.safetensors", "best.safetensors",
    }  # fmt: skip
    again = simulate(initial=tmp_path / "run" / "best.safetensors", until=ob.Until(versions=1))
    assert again.metrics[0]["score"] == 0.6


def test_less_may_be_better_and_nothing_may_be_finite(tmp_path: Path) -> None:
    run = simulate(out=tmp_path / "loss", evaluate=ob.Every(versions=1, keep_best="loss"))
    assert run.best is not None
    assert run.best.values.item() == 11
    for out in (tmp_path / "none", None):
        assert simulate(Scored(3, scores=(nan, inf) * 6), out=out).best is None
    assert simulate(evaluate=ob.Every(versions=1)).best is None


def test_a_crash_at_any_moment_leaves_a_whole_file_that_tells_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies in each of its writes: before and after the best model, and after the checkpoint."""
    until = ob.Until(versions=4)
    whole = simulate(out=tmp_path / "whole", until=until)

    class Died(BaseException):
        pass

    deaths = {"left": 0}

    def dying(function: Any) -> Any:
        def call(*arguments: Any) -> Any:
            deaths["left"] -= 1
            if deaths["left"] == 0:
                raise Died
            result = function(*arguments)
            deaths["left"] -= 1
            if deaths["left"] == 0:
                raise Died
            return result

        return call

    written: list[str] = []

    def noting(best: BestModel) -> None:
        if best.model is not None:
            written.append(str(best.model.values.item()))
        write(best)

    write, flush = BestModel.write, RunStore.flush
    monkeypatch.setattr(BestModel, "write", dying(noting))
    monkeypatch.setattr(RunStore, "flush", dying(flush))
    monkeypatch.setattr(RunStore, "abandon", lambda store, status: store.close())
    for death in range(1, 100):
        directory = tmp_path / f"run-{death}"
        deaths["left"], written[:] = death, []
        try:
            simulate(out=directory, until=until, checkpoint_seconds=0)
            break
        except Died:
            pass
        if (directory / "best.safetensors").exists():
            metadata, tensors = best_file(directory)
            version = int(metadata["version"])
            assert tensors == {"w": [version]}
            assert float(metadata["value"]) == SCORES[version] == max(s for s in SCORES[: version + 1])
            recorded = [row["score"] for row in ob.read_run(directory).metrics]
            assert not recorded or SCORES[version] >= max(recorded)
        deaths["left"] = 0
        assert outcome(resume(directory, until=until, checkpoint_seconds=0)) == outcome(whole)
        assert best_file(directory) == best_file(tmp_path / "whole")
    else:
        pytest.fail("it never came to an end")
    assert death > 15
    assert written == ["1.0", "3.0"]


def test_a_resumed_run_does_not_write_an_equal_best_again(tmp_path: Path) -> None:
    learner = Scored(3, interrupts=[5])
    with pytest.raises(KeyboardInterrupt):
        simulate(learner, until=SIX, out=tmp_path / "run", checkpoint_seconds=0)
    before = (tmp_path / "run" / "best.safetensors").stat()
    assert resume(tmp_path / "run", until=SIX).summary.versions == 9
    after = (tmp_path / "run" / "best.safetensors").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def test_the_best_by_another_metric_is_not_overwritten(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        simulate(Scored(3, interrupts=[5]), out=tmp_path / "run", checkpoint_seconds=0)
    with pytest.raises(ob.UsageError, match=r"is the best model by score: give evaluate.keep_best = 'score'"):
        resume(tmp_path / "run", evaluate=ob.Every(versions=1, keep_best="loss"))
    assert outcome(resume(tmp_path / "run")) == outcome(simulate())


def test_a_best_model_of_no_run_is_not_taken_for_one(tmp_path: Path) -> None:
    simulate(out=tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.name != "best.safetensors":
            path.unlink()
    simulate(out=tmp_path / "run", until=ob.Until(versions=2))
    assert best_file(tmp_path / "run")[0]["version"] == "1"


def test_metadata_are_read_back_as_the_recorded_numbers(tmp_path: Path) -> None:
    run = simulate(Scored(3, scores=tuple(1 / (13 - v) for v in range(12))), out=tmp_path / "run")
    metadata, _ = best_file(tmp_path / "run")
    last = run.metrics[-1]
    assert (float(metadata["value"]), json.loads(metadata["t"])) == (last["score"], last["t"])

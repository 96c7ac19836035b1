"""The executor that trains many clients together: close to the others, and as repeatable."""

from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

import offbeat as ob
from offbeat.cli import commands
from offbeat.core.learner import NO_INPUTS, LocalTask
from offbeat.local.fast.batched import BatchedTask, BatchedTrainer
from offbeat.local.objectives import Plain
from offbeat.sim.executors.batched import BatchTraining
from tests.sampling import mostly_thorough, thorough
from tests.sim.sim_worlds import CALM, WORLDS, Wrapped, digits, make, normed, on_disk, outcome

UNTIL = ob.Until(tasks=60)
ALGORITHMS = ["fedavg", "fedprox", "fedbuff", "fedasync", "fedcompass", "fedat", "wireless"]
SOME = {"fedprox", "fedbuff", "fedcompass", "wireless"}
"""An objective of its own, a buffer, groups, a radio."""


def run(algorithm: str, learner: Any, world: ob.World = CALM, **more: Any) -> ob.Run:
    return ob.simulate(make(algorithm), world, learner, seed=4, until=UNTIL, **more)


@pytest.mark.parametrize("algorithm", mostly_thorough(ALGORITHMS, SOME))
@pytest.mark.parametrize("world", ["hard", *thorough("calm")])
def test_it_ends_close_to_the_others(algorithm: str, world: str, learner: ob.TorchLearner) -> None:
    one = run(algorithm, learner, WORLDS[world])
    many = run(algorithm, learner, WORLDS[world], executor=ob.Batched(4))
    torch.testing.assert_close(many.model.values, one.model.values, rtol=1e-3, atol=1e-5)
    happened = ("t", "name", "client", "task", "version")
    for row, expected in zip(many.journal, one.journal, strict=True):
        assert [row[key] for key in happened] == [expected[key] for key in happened]
    assert many.summary.tasks == one.summary.tasks


@pytest.mark.parametrize(
    "algorithm",
    [
        pytest.param("fedbuff", marks=pytest.mark.bits),
        *mostly_thorough([name for name in ALGORITHMS if name != "fedbuff"], SOME),
    ],
)
def test_the_same_seed_gives_the_same_bits_however_many_are_together(
    algorithm: str, learner: ob.TorchLearner
) -> None:
    results = [run(algorithm, learner, WORLDS["hard"], executor=ob.Batched(n)) for n in (1, 3, 64)]
    for other in results[1:]:
        assert outcome(other) == outcome(results[0])


def test_convolutions_are_trained_one_after_the_other(caplog: pytest.LogCaptureFixture) -> None:
    def cnn() -> torch.nn.Module:
        return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.Flatten(), torch.nn.Linear(72, 10))

    one = run("fedbuff", digits(cnn))
    assert outcome(run("fedbuff", digits(cnn), executor=ob.Batched(4))) == outcome(one)
    (record,) = (record for record in caplog.records if "executor batched" in record.message)
    assert "convolutions gain nothing together on a CPU" in record.message
    with pytest.raises(ob.UsageError, match="executor batched cannot train"):
        run("scaffold", digits(cnn), executor=ob.Batched(4))


class Scarce:
    """Memory for so many tasks together."""

    def __init__(self, tasks: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.trained: list[int] = []
        train = BatchedTrainer.train

        def limited(trainer: BatchedTrainer, pairs: list[BatchedTask]) -> Any:
            if len(pairs) > tasks:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has")
            self.trained.append(len(pairs))
            return train(trainer, pairs)

        monkeypatch.setattr(BatchedTrainer, "train", limited)


def test_fewer_are_trained_together_when_memory_runs_out(
    learner: ob.TorchLearner, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = outcome(run("fedbuff", learner, executor=ob.Batched(16)))
    scarce = Scarce(2, monkeypatch)
    assert outcome(run("fedbuff", learner, executor=ob.Batched(16))) == expected
    assert max(scarce.trained) == 2
    said = [record.getMessage() for record in caplog.records]
    assert said[-1] == (
        "cpu has not enough memory (CUDA out of memory): at most 2 tasks are trained together from now on"
    )


def test_memory_for_no_task_ends_the_run_in_a_sentence(
    learner: ob.TorchLearner, monkeypatch: pytest.MonkeyPatch
) -> None:
    Scarce(0, monkeypatch)
    with pytest.raises(ob.UsageError, match=r"^cpu has not enough memory to train one task \(CUDA out of"):
        run("fedbuff", learner, executor=ob.Batched(4))


def test_with_batch_norm_it_ends_close_to_the_others() -> None:
    learner = digits(normed)
    one, many = (run("fedbuff", learner, executor=executor) for executor in (None, ob.Batched(4)))
    torch.testing.assert_close(many.model.values, one.model.values, rtol=1e-3, atol=1e-4)
    assert torch.equal(many.model.integers, one.model.integers)


def test_statistics_that_stay_at_clients_are_refused() -> None:
    algorithm = ob.compose(ob.fedbuff(2, steps=2), buffers="local")
    with pytest.raises(ob.UsageError, match="cannot train with buffers = 'local' or 'recompute'"):
        ob.simulate(algorithm, CALM, digits(normed), until=UNTIL, executor=ob.Batched(4))


def test_it_is_an_own_arithmetic(learner: ob.TorchLearner) -> None:
    """Otherwise the tests of how a run is resumed would show nothing."""
    one, many = run("fedbuff", learner), run("fedbuff", learner, executor=ob.Batched())
    assert not torch.equal(one.model.values, many.model.values)


# ---- interrupted ----


def interrupted(directory: Path, learner: ob.TorchLearner, executor: ob.Batched | None) -> None:
    """A run that is interrupted after some versions, with tasks trained ahead."""

    def stop(progress: Any) -> None:
        if progress.tasks >= 23:
            raise KeyboardInterrupt

    more: dict[str, Any] = {"out": directory, "executor": executor, "watch": stop}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offbeat.sim.event_loop.WATCH_SECONDS", -1.0)
        with pytest.raises(KeyboardInterrupt):
            run("fedbuff", learner, WORLDS["hard"], checkpoint_seconds=0.0, **more)
    assert ob.read_run(directory).checkpoint() is not None


def resume(directory: Path, learner: ob.TorchLearner, **more: Any) -> ob.Run:
    return ob.resume(directory, make("fedbuff"), WORLDS["hard"], learner, until=UNTIL, **more)


@pytest.mark.bits
def test_an_interrupted_run_ends_as_if_it_never_had_been(tmp_path: Path, learner: ob.TorchLearner) -> None:
    """Other tasks are trained together after it than would have been without."""
    whole = run("fedbuff", learner, WORLDS["hard"], out=tmp_path / "whole", executor=ob.Batched(3))
    interrupted(tmp_path / "run", learner, ob.Batched(3))
    again = resume(tmp_path / "run", learner, executor=ob.Batched(3))
    assert torch.equal(again.model.values, whole.model.values)
    for table in ("journal", "metrics", "model"):
        assert on_disk(tmp_path / "run")[table] == on_disk(tmp_path / "whole")[table]


@pytest.mark.parametrize(
    ("then", "now", "complaint"),
    [
        (ob.Batched(), None, "was started with executor batched, which rounds differently"),
        (None, ob.Batched(), "was started without executor batched, which rounds differently"),
    ],
)
def test_a_run_is_not_resumed_with_other_bits(
    then: Any, now: Any, complaint: str, tmp_path: Path, learner: ob.TorchLearner
) -> None:
    interrupted(tmp_path / "run", learner, then)
    with pytest.raises(ob.RunError, match=complaint):
        resume(tmp_path / "run", learner, executor=now)
    assert resume(tmp_path / "run", learner, executor=then).summary.tasks == 60


# ---- the executor by itself ----


class Counting(BatchTraining):
    """Remembers which tasks were trained together."""

    def __init__(self, learner: ob.TorchLearner, clients: int) -> None:
        super().__init__(learner, Plain(), ob.Batched(clients))
        self.groups: list[list[int]] = []
        train = self._trainer.train

        def counted(jobs: list[BatchedTask]) -> Any:
            self.groups.append([task.task for task, _ in jobs])
            return train(jobs)

        self._trainer.train = counted  # type: ignore[method-assign, assignment]


def test_who_is_due_next_is_trained_too(learner: ob.TorchLearner) -> None:
    executor, base = Counting(learner, 3), learner.initial(0)
    for task, due in enumerate([9.0, 2.0, 5.0, 2.0, 3.0]):
        executor.submit(LocalTask(task, task, 0, 2, seed=1), base, due, NO_INPUTS)
    for task in (1, 3, 4, 2, 0):
        executor.result(task)
    assert executor.groups == [[1, 3, 4], [2, 0]]


def test_a_task_submitted_anew_is_trained_anew(learner: ob.TorchLearner) -> None:
    executor, base = Counting(learner, 3), learner.initial(0)
    first, shorter = LocalTask(1, 1, 0, 6, seed=1), LocalTask(1, 1, 0, 2, seed=1)
    executor.submit(LocalTask(0, 0, 0, 4, seed=1), base, 1.0, NO_INPUTS)
    executor.submit(first, base, 2.0, NO_INPUTS)
    executor.submit(LocalTask(2, 2, 0, 4, seed=1), base, 3.0, NO_INPUTS)
    executor.result(0)
    executor.cancel(1)
    executor.cancel(2)
    executor.submit(shorter, base, 1.5, NO_INPUTS)
    assert torch.equal(
        executor.result(1).delta, BatchedTrainer(learner, Plain(), 1).train([(shorter, base)])[0].delta
    )
    assert executor.groups == [[0, 1, 2], [1]]


# ---- refusals ----


@pytest.mark.parametrize("clients", [0, -3])
def test_how_many_at_least(clients: int) -> None:
    with pytest.raises(ob.UsageError, match=f"clients = {clients} is not allowed in batches: give a number"):
        ob.Batched(clients)


class Own(Wrapped):
    def before(self, task: LocalTask) -> None:
        pass


@pytest.mark.parametrize(
    ("algorithm", "made", "complaint"),
    [
        ("fedavg", lambda: Own(digits()), "cannot train with Own, only with a TorchLearner"),
        ("scaffold", digits, "cannot train objective ControlVariates"),
        ("moon", digits, "cannot train objective Contrastive"),
        ("fedasmu", digits, "cannot train objective FreshMerge"),
    ],
)
def test_what_it_does_not_do(algorithm: str, made: Any, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ob.UsageError, match=f"executor batched {complaint}"):
        run(algorithm, made(), executor=ob.Batched(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_not_beside_workers(learner: ob.TorchLearner) -> None:
    with pytest.raises(ob.UsageError, match="workers = 2 is not allowed beside an executor"):
        run("fedavg", learner, workers=2, executor=ob.Batched())


@pytest.mark.parametrize(
    ("device", "options", "complaint"),
    [
        ("mps", {"workers": 2}, "workers = 2 is not allowed with device = 'mps': .* on cpu or cuda"),
        (
            "cuda:0",
            {"executor": ob.OnRay()},
            "executor ray is not allowed with device = 'cuda:0': .* on cpu;",
        ),
    ],
)
def test_processes_train_on_some_devices(
    device: str, options: dict[str, Any], complaint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("offbeat.local.torch_learner.check_device", lambda _: None)
    there = ob.TorchLearner(lambda: torch.nn.Linear(64, 10), digits().data, ob.Training(device=device))
    with pytest.raises(ob.UsageError, match=complaint):
        run("fedavg", there, **options)


# ---- the command line ----


def test_the_command_line(tmp_path: Path) -> None:
    """Run, and compare, and a resumption by comparing again."""
    small = ["--set", "until={tasks: 12}", "--set", "algorithm=fedbuff"]
    place = str(tmp_path / "run")
    answer = CliRunner().invoke(
        commands.app, ["run", "digits", "--out", place, "--executor", "batched", *small]
    )
    assert answer.exit_code == 0
    assert ob.read_run(tmp_path / "run").meta["batched"] is True
    both = ["compare", "digits", "-a", "fedbuff", "--seeds", "1", "--workers", "1", "--executor", "batched"]
    answer = CliRunner().invoke(
        commands.app, [*both, "--out", str(tmp_path / "all"), "--set", "until={tasks: 12}"]
    )
    assert answer.exit_code == 0
    assert ob.read_run(tmp_path / "all" / "fedbuff" / "seed-0").meta["batched"] is True


def test_the_command_line_refuses_workers(tmp_path: Path) -> None:
    options = ["run", "digits", "--out", str(tmp_path / "run"), "--executor", "batched", "--workers", "2"]
    answer = CliRunner().invoke(commands.app, options)
    assert isinstance(answer.exception, ob.UsageError)
    assert "--workers 2 is not allowed with --executor batched" in str(answer.exception)

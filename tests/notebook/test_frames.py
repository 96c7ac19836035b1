"""A run as data frames: every row, every evaluation, and every task with its fate."""

import re
import sys
from collections import Counter
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.core.installation import install_hint
from offbeat.world.channel import Channel

pandas = pytest.importorskip("pandas")

WORLD = ob.World(
    ob.laws.Exponential(1.0),
    clients=6,
    jitter=0.5,
    availability=ob.Availability(dropout=0.1, period=60, present=0.7),
)
RADIO = ob.World(1.0, clients=6, channel=Channel())


@pytest.mark.parametrize(
    ("algorithm", "world"),
    [
        (ob.fedcompass(q_min=5, q_max=20), WORLD),
        (ob.fedfa(size=3, steps=5), WORLD),
        (ob.wireless(steps=4, scheduled=2, policy={"kind": "best_channel"}), RADIO),
        (ob.fedasync(steps=5), ob.World(clients=2)),
    ],
    ids=lambda given: getattr(given, "name", ""),
)
def test_the_fates_of_the_tasks_are_those_of_the_summary(algorithm: ob.Algorithm, world: ob.World) -> None:
    run = ob.simulate(algorithm, world, until=ob.Until(seconds=300))
    tasks, summary = run.to_pandas().tasks, run.summary
    counts = Counter(tasks["fate"])
    named = ("aggregated", "dropped", "lost", "held", "running")
    assert {name: counts[name] for name in named} == {name: getattr(summary, name) for name in named}
    assert list(tasks.index) == list(range(summary.dispatched))
    arrived = tasks[tasks["staleness"].notna()]
    assert len(arrived) == summary.tasks
    assert arrived["staleness"].mean() == pytest.approx(summary.mean_staleness)
    assert tasks["version"].notna().sum() == summary.aggregated
    assert (tasks["end"] >= tasks["start"]).sum() == summary.dispatched - summary.running


def test_rows_and_evaluations_are_as_in_the_run(tmp_path: Path) -> None:
    data = ob.federate(
        ob.load("digits", samples=64, test_samples=20, seed=0), None, [range(32), range(32, 64)]
    )
    learner = ob.TorchLearner(make_module, data)
    run = ob.simulate(
        ob.fedbuff(size=1, steps=3), learner=learner, until=ob.Until(versions=4), out=tmp_path / "run"
    )
    for frames in (run.to_pandas(), ob.read_run(tmp_path / "run").to_pandas()):
        assert frames.metrics.to_dict("records") == run.metrics
        assert list(frames.journal["name"]) == [entry["name"] for entry in run.journal]
        assert frames.journal.index.name == "seq"
        assert frames.journal.loc[0, "client"] == 0
        assert frames.journal["task"].isna()[0]
        train, arrived = run.entries("train")[1], run.entries("arrived")
        (told,) = (entry for entry in arrived if entry["task"] == train["task"])
        task = frames.tasks.loc[train["task"]]
        assert (task["client"], task["base"], task["steps"]) == (train["client"], train["base"], 3)
        assert (task["start"], task["end"]) == (train["t"], told["t"])
        assert (task["staleness"], task["loss"]) == (told["staleness"], told["loss"])
        assert frames.tasks["client"].dtype == frames.journal["staleness"].dtype == "Int64"


def make_module() -> object:
    from torch import nn

    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def test_a_run_without_a_task_or_an_evaluation() -> None:
    run = ob.simulate(ob.fedavg(steps=1), ob.World(clients=1), until=ob.Until(seconds=0.1), evaluate=None)
    frames = run.to_pandas()
    assert (len(frames.metrics), len(frames.tasks)) == (0, 1)
    assert frames.tasks.loc[0, "fate"] == "running"
    assert pandas.isna(frames.tasks.loc[0, "end"])


def test_without_pandas_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    run = ob.simulate(ob.fedavg(steps=1), ob.World(clients=1), until=ob.Until(versions=1))
    hint = re.escape(install_hint("pandas"))
    with pytest.raises(UsageError, match=f"^to_pandas: pandas is not installed: {hint}"):
        run.to_pandas()

"""What is asked of Ray wrongly is refused before anything starts, with or without Ray installed."""

import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import offbeat as ob
from offbeat.cli.commands import app
from offbeat.recipes import build, compare
from offbeat.recipes.run_pool import PlannedRun
from offbeat.sim.execution import Execution


@pytest.mark.parametrize(
    "address", ["ray://10.0.0.1:10001", "10.0.0.1", ":6379", "head:port", "head:70000", ""]
)
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(ob.UsageError, match=r"ray address .* is not allowed: give HOST:PORT.*or auto"):
        ob.OnRay(address)


@pytest.mark.parametrize("address", [None, "auto", "head:6379", "10.0.0.1:6379", "[::1]:6379"])
def test_addresses_that_may_be(address: str | None) -> None:
    assert ob.OnRay(address).address == address


@pytest.mark.parametrize("options", [{"workers": 0}, {"workers": -1}, {"share": 0}])
def test_numbers_below_one(options: dict[str, int]) -> None:
    with pytest.raises(
        ob.UsageError, match=r"(workers|share) = -?\d is not allowed on Ray: give a number from 1"
    ):
        ob.OnRay(**options)


def test_without_ray_one_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ob.UsageError, match=r"executor ray: ray is not installed: pip install"):
        ob.simulate(ob.fedavg(steps=1), learner=ob.NoTraining(2), executor=ob.OnRay(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    out = tmp_path / "runs"
    command = ["compare", "digits", "-a", "fedavg", "-a", "fedbuff", "--out", str(out), "--executor", "ray"]
    answer = CliRunner().invoke(app, command)
    assert isinstance(answer.exception, ob.UsageError)  # before any run begins, and so said once
    assert str(answer.exception).count("ray is not installed") == 1
    assert not list(out.iterdir())


def test_processes_and_a_cluster_at_once() -> None:
    with pytest.raises(ob.UsageError, match=r"workers = 2 is not allowed beside an executor"):
        ob.simulate(ob.fedavg(steps=1), learner=ob.NoTraining(2), workers=2, executor=ob.OnRay())


@pytest.mark.parametrize("command", ["run", "compare"])
@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--ray-address", "head:1"], "--ray-address head:1 is not allowed without --executor ray"),
        (["--executor", "ray", "--ray-address", "head"], "ray address head is not allowed"),
    ],
)
def test_the_command_line_refuses(command: str, options: list[str], complaint: str, tmp_path: Path) -> None:
    answer = CliRunner().invoke(app, [command, "digits", "--out", str(tmp_path / "run"), *options])
    assert isinstance(answer.exception, ob.UsageError)  # exit code 2, by main
    assert complaint in str(answer.exception)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], Execution()),
        (["--workers", "3"], Execution(3)),
        (["--executor", "ray"], Execution(executor=ob.OnRay())),
        (
            ["--executor", "ray", "--ray-address", "head:1", "--workers", "3"],
            Execution(executor=ob.OnRay("head:1", 3)),
        ),
        (["--executor", "ray", "--workers", "auto"], Execution(executor=ob.OnRay())),
    ],
)
def test_what_the_command_line_asks_for(
    options: list[str], expected: Execution, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Execution] = []

    def stop(recipe: Any, execution: Execution, **_: Any) -> Any:
        asked.append(execution)
        raise ob.RunError("enough")

    monkeypatch.setattr(build, "run_recipe", stop)
    CliRunner().invoke(app, ["run", "digits", "--out", str(tmp_path / "run"), *options])
    assert asked == [expected]


@pytest.mark.parametrize(("jobs", "share"), [([], 1), (["--workers", "3"], 3)])
def test_a_comparison_shares_the_cluster(
    jobs: list[str], share: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Any] = []

    def stop(planned: list[PlannedRun], processes: int, _: Any) -> Any:
        asked.append((processes, {job.execution.executor for job in planned}))
        raise ob.RunError("enough")

    monkeypatch.setattr(compare, "compare", stop)
    command = ["compare", "digits", "--out", str(tmp_path / "runs"), "--executor", "ray", *jobs]
    CliRunner().invoke(app, command)
    assert asked == [(share, {ob.OnRay(share=share)})]

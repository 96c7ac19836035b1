"""A new project runs as it stands, and nothing is overwritten."""

import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from offbeat.cli.commands import app
from offbeat.core.errors import UsageError
from offbeat.project.create import TEMPLATES, create_project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A new project, as the current folder; its modules are forgotten afterwards."""
    create_project(tmp_path / "clinics")
    monkeypatch.chdir(tmp_path / "clinics")
    monkeypatch.syspath_prepend(tmp_path / "clinics")
    monkeypatch.delitem(sys.modules, "federation", raising=False)
    yield tmp_path / "clinics"
    sys.modules.pop("federation", None)


def test_its_own_tests_pass(project: Path) -> None:
    tests = runpy.run_path(str(project / "test_federation.py"))
    ran = [tests[name]() for name in tests if name.startswith("test_")]
    assert len(ran) == 2


def test_its_recipe_runs(project: Path) -> None:
    words = ["run", "recipe.yaml", "--allow", "federation", "--set", "until.seconds=5", "--out", "runs/first"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    assert "reached 5 seconds" in done.output


@pytest.mark.parametrize("source", ["flower", "flower-app"])
def test_a_flower_project_simulates_and_its_tests_pass(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "flower-app":
        pytest.importorskip("flwr")
    create_project(tmp_path / "clinics", source)
    monkeypatch.chdir(tmp_path / "clinics")
    monkeypatch.syspath_prepend(tmp_path / "clinics")
    try:
        tests = runpy.run_path("test_federation.py")
        assert len([tests[name]() for name in tests if name.startswith("test_")]) == 2
        runpy.run_path("simulate.py")["main"](tmp_path / "runs", seconds=3)
    finally:
        for name in ("client", "federation"):
            sys.modules.pop(name, None)
    assert (tmp_path / "runs" / "report.html").is_file()


def test_every_table_has_the_columns_that_the_code_reads(project: Path) -> None:
    module = runpy.run_path(str(project / "federation.py"))
    sizes = {path.stem: len(module["read"](path)[1]) for path in sorted((project / "data").glob("*.csv"))}
    assert sizes == {"east": 120, "north": 240, "south": 60, "test": 200}


def test_it_is_named_and_its_script_can_be_run(project: Path) -> None:
    assert "title: clinics\n" in (project / "recipe.yaml").read_text()
    assert (project / "README.md").read_text().startswith("# clinics\n")
    assert (project / "deploy.sh").stat().st_mode & 0o100
    subprocess.run(["sh", "-n", "deploy.sh"], check=True)


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("mine")
    with pytest.raises(UsageError, match="is not empty: give the name of a new folder"):
        create_project(tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        create_project(tmp_path / "kept")
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "mine"


def test_an_empty_folder_is_used_and_a_file_above_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert create_project(tmp_path / "empty")
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot be written"):
        create_project(tmp_path / "file" / "below")


def test_a_folder_that_cannot_be_seen_is_wrong_usage(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written: File name too long; give another folder"):
        create_project(tmp_path / ("x" * 300))


def test_an_unknown_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"--from fedml is unknown: choose {' or '.join(TEMPLATES)}"):
        create_project(tmp_path / "x", "fedml")
    assert not (tmp_path / "x").exists()

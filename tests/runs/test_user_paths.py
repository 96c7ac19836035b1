"""Directories as a user may name them: with ~, and with a name that SQLite could take for an URI."""

from pathlib import Path
from typing import Any

import pytest
from torch import nn

import offbeat as ob
from offbeat.backup.run_copy import copy_run
from offbeat.core.errors import UsageError
from offbeat.data import federate
from offbeat.documents import read_text, user_path
from offbeat.report import make_table, write_html, write_table
from offbeat.runs.record import find_runs, read_run

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory; the working directory is beside it."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "home"


def simulated(out: str, **options: Any) -> ob.Run:
    data = federate([([[0.0], [1.0]], [0, 1])] * 2)
    learner = ob.TorchLearner(lambda: nn.Linear(1, 2), data)
    return ob.simulate(
        ob.fedavg(steps=1), learner=learner, until=ob.Until(versions=2), evaluate=None, out=out, **options
    )


def test_a_tilde_is_the_home_directory_in_python(home: Path) -> None:
    simulated("~/run")
    assert [path.name for path in home.iterdir()] == ["run"]
    assert read_run("~/run").path == home / "run"
    assert len(find_runs("~")) == 1
    simulated("~/second", initial="~/run")
    assert write_html(find_runs("~"), "~/page.html") == home / "page.html"
    assert write_table(make_table(find_runs("~")), "~/table.md") == home / "table.md"
    assert list(Path.cwd().iterdir()) == []


def test_a_file_that_a_recipe_names_may_begin_with_a_tilde(home: Path) -> None:
    (home / "text").write_text("found", encoding="utf-8")
    assert read_text(Path("~/text")) == "found"


def test_a_tilde_elsewhere_is_a_character_and_an_unknown_user_is_refused() -> None:
    assert user_path("a/~/b") == Path("a/~/b")
    with pytest.raises(UsageError, match="~nobody-here/x: there is no such home directory"):
        user_path("~nobody-here/x")


def test_a_name_that_begins_like_an_uri_is_that_of_a_directory(home: Path) -> None:
    directory = Path("file:run?mode=ro")
    simulated(str(directory))
    assert read_run(directory).status == "finished"
    Path("file:copy").mkdir()
    copy_run(directory, Path("file:copy"))
    assert read_run("file:copy").length == read_run(directory).length
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["file:copy", directory.name]

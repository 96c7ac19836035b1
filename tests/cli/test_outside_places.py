"""Callbacks of a stranger's recipe or run that leave the run's directory: no command makes them unasked."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat.allowed import NotAllowedError
from offbeat.recipes.build import run_recipe
from offbeat.recipes.built_in import built_in
from offbeat.recipes.load import load_recipe
from offbeat.recipes.names import check_names
from tests.cli.test_command_line import RECIPE

PLACE = "~/.bashrc"
OWN = "# mine\n"
CALLBACKS = [{"name": "csv", "path": PLACE}]
REFUSED = "callbacks csv: path = '~/.bashrc' is outside of the run's directory; if you trust"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory with a file, and the current directory with a stranger's recipe."""
    for name in ("home", "work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home" / ".config"))
    monkeypatch.chdir(tmp_path / "work")
    own = {"callbacks": CALLBACKS, "scales": {"s": {"callbacks": CALLBACKS}}}
    recipe = RECIPE | {"until": {"tasks": 4}} | own
    Path("r.yaml").write_text(yaml.safe_dump(recipe))
    (tmp_path / "home" / ".bashrc").write_text(OWN)
    return tmp_path / "home"


@pytest.mark.parametrize(
    "words",
    [
        ["run", "r.yaml", "--out", "new"],
        ["run", "r.yaml", "--out", "new", "--scale", "s", "--allow", "csv:reader"],
        ["compare", "r.yaml", "-a", "fedavg", "--seeds", "1", "--out", "new"],
        ["serve", "r.yaml", "--state", "new"],
        ["serve", "r.yaml", "--state", "new", "--check"],
        ["federate", "r.yaml", "--out", "new"],
    ],
    ids=" ".join,
)
def test_a_recipe_writes_no_file_of_the_users(home: Path, offbeat: Any, words: list[str]) -> None:
    said = offbeat(*words)
    assert said.code == 2
    assert REFUSED in said.err
    assert (home / ".bashrc").read_text() == OWN
    assert not Path("new").exists()


def test_a_runs_directory_writes_none_either(home: Path, offbeat: Any) -> None:
    typed = json.dumps([{"name": "csv", "path": "own.csv"}])
    assert offbeat("run", "r.yaml", "--out", "one", "--set", f"callbacks={typed}").code == 0
    assert Path("own.csv").exists()  # what a person types needs no more words
    Path("own.csv").unlink()
    for words in (["simulate-like", "one", "--out", "new"], ["resume", "one", "--set", "until.tasks=8"]):
        assert "callbacks csv: path = 'own.csv' is outside" in offbeat(*words).complaint()
    assert not Path("own.csv").exists()
    assert offbeat("simulate-like", "one", "--out", "new", "--set", "callbacks=[csv]").code == 0
    assert Path("new/metrics.csv").exists()
    assert not Path("own.csv").exists()
    assert offbeat("resume", "one", "--set", "until.tasks=8", "--allow", "csv").code == 0
    assert Path("own.csv").exists()


def test_what_is_checked_before_the_runs_of_studies_has_the_rule(home: Path) -> None:
    with pytest.raises(NotAllowedError, match="csv: path"):
        check_names(load_recipe("r.yaml"), [])
    check_names(load_recipe("r.yaml"), ["csv"])


def test_a_person_may_allow_it(home: Path, offbeat: Any) -> None:
    with pytest.raises(ob.UsageError, match="csv: path"):
        run_recipe(load_recipe("r.yaml"), out=Path("python"))
    assert offbeat("run", "r.yaml", "--out", "one", "--allow", "csv").code == 0
    assert (home / ".bashrc").read_text().startswith("version,")
    (home / ".bashrc").write_text(OWN)
    file = home / ".config" / "offbeat" / "allowed-names"
    file.parent.mkdir(parents=True, mode=0o755)
    file.write_text("csv\n")
    file.chmod(0o600)
    assert offbeat("run", "r.yaml", "--out", "two").code == 0
    assert (home / ".bashrc").read_text().startswith("version,")


def test_the_recipes_of_offbeat_need_no_word() -> None:
    assert all(not load_recipe(name).callbacks for name in built_in())

"""`--allow`, and the person's file of allowed names: what counts, and what does not."""

import os
from pathlib import Path

import pytest

from offbeat.allowed import Allowed, NotAllowedError
from offbeat.cli.allow import allowed_names, names_file, recipe_folder, typed_names
from offbeat.core.errors import UsageError


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("OFFBEAT_ALLOWED_NAMES", raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path


def write(text: str) -> Path:
    file = names_file()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    file.chmod(0o600)
    file.parent.chmod(0o700)
    return file


def refusal(allowed: Allowed, name: str = "json:loads") -> str:
    with pytest.raises(NotAllowedError) as refused:
        allowed.load(name, "model")
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_names_of_the_option_and_of_the_file() -> None:
    write("# mine\njson:loads   # to read\n\nclinic\n")
    allowed = allowed_names(["ward", "ward:make"])
    assert (allowed.names, allowed.installed) == (("ward", "ward:make"), ("json:loads", "clinic"))
    assert allowed.load("json:loads", "model")("2") == 2
    assert "is not allowed" in refusal(allowed, "json:dumps")
    with pytest.raises(UsageError, match=r"^--allow a b is not allowed: give MODULE or MODULE:FUNCTION"):
        allowed_names(["a b"])


def test_what_is_typed_is_allowed_by_name_only(home: Path) -> None:
    typed = ["algorithm=mine:schedule", "training.lr=0.1", "data={dataset: 'a.b:c', options: {x: [d:e]}}"]
    assert allowed_names(None, [], typed, None, ["f:g", "csv"]).names == (
        "mine:schedule",
        "a.b:c",
        "d:e",
        "f:g",
    )
    assert list(typed_names("loss=clinic:loss,clinic:other")) == ["clinic:loss", "clinic:other"]  # a sweep
    assert list(typed_names("callbacks=[{name: my:Notes}]")) == ["my:Notes"]
    assert list(typed_names("algorithms.a:b.steps=3")) == []
    assert list(typed_names("callbacks=[mlflow, {name: csv, path: a}, cvs, 3]")) == ["mlflow", "csv"]
    for text in ("callbacks=csv", "algorithm=csv", "data.options={callbacks: [csv]}", "csv"):
        assert list(typed_names(text)) == []


def test_a_file_that_others_can_write_does_not_count(home: Path) -> None:
    file = write("json:loads\n")
    file.chmod(0o620)
    assert f"does not count: others can write {file} (chmod go-w {file})" in refusal(allowed_names(None))
    file.chmod(0o600)
    file.parent.chmod(0o777)
    assert f"others can write {file.parent}" in refusal(allowed_names(None))
    file.parent.chmod(0o755)
    assert allowed_names(None).load("json:loads", "model")


@pytest.mark.skipif(os.name != "posix" or os.getuid() != 0, reason="files of another user are made by root")
def test_a_file_of_another_user_does_not_count() -> None:
    file = write("json:loads\n")
    os.chown(file, 12345, 12345)
    assert "is another user's" in refusal(allowed_names(None))


def test_a_file_beside_the_recipe_or_the_record_does_not_count(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write("json:loads\n")
    assert "lies in a folder with what names functions" in refusal(allowed_names(None, [home]))
    assert allowed_names(None, [home / "work", None]).load("json:loads", "model")
    link = home / "work" / "names"
    link.symlink_to(file)
    monkeypatch.setenv("OFFBEAT_ALLOWED_NAMES", str(link))
    assert "lies in a folder" in refusal(allowed_names(None, [Path()]))
    assert allowed_names(None, [home / "elsewhere"]).load("json:loads", "model")
    monkeypatch.setenv("OFFBEAT_ALLOWED_NAMES", "names")
    assert "OFFBEAT_ALLOWED_NAMES must be an absolute path" in refusal(allowed_names(None, [home / "x"]))


def test_a_file_that_cannot_be_read_or_has_something_else_does_not_count(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write("json:loads\nos system\n")
    assert "'os system' is neither MODULE nor MODULE:FUNCTION" in refusal(allowed_names(None))
    names_file().write_bytes(b"\xff")
    assert "cannot be read" in refusal(allowed_names(None))
    os.truncate(names_file(), 2**21)
    assert "not a file of at most 1048576 bytes" in refusal(allowed_names(None))
    names_file().unlink()
    os.mkfifo(names_file())
    assert "not a file of at most" in refusal(allowed_names(None))
    monkeypatch.setenv("XDG_CONFIG_HOME", "relative")
    monkeypatch.setenv("HOME", str(home))
    assert names_file() == home / ".config" / "offbeat" / "allowed-names"


def test_the_folder_of_a_recipe(home: Path) -> None:
    Path("r.yaml").write_text("{}")
    assert recipe_folder("r.yaml") == (home / "work").resolve()
    assert recipe_folder("digits") is None

"""Files for secrets that a command makes: private, new, and written before an older secret ends."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from offbeat.core.errors import UsageError
from offbeat.net.auth import tokens
from offbeat.net.auth.tokens import Tokens
from offbeat.net.client.join import model_keeper
from offbeat.runs import durable_files
from offbeat.runs.permissions import why_unwritable

ADDRESS = "127.0.0.1:7117"


def full_disk(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let the disk of a folder be full."""
    write = os.open

    def refuse(path: Any, *others: Any, **named: Any) -> int:
        if Path(path).parent == folder and others[0] & os.O_CREAT:
            raise OSError(28, "No space left on device", str(path))
        return write(path, *others, **named)

    monkeypatch.setattr(durable_files.os, "open", refuse)


@pytest.mark.parametrize(
    ("command", "kept", "name"),
    [("enrol north", "tokens.json", "north"), ("enrol --dashboard", "dashboard-token", tokens.DASHBOARD)],
)
def test_a_token_in_a_file_is_its_owners_and_not_printed(
    offbeat: Any, tmp_path: Path, command: str, kept: str, name: str
) -> None:
    file, state = tmp_path / "north.token", tmp_path / "run"
    before = os.umask(0)
    try:
        code, said, _ = offbeat(*command.split(), "--state", state, "--out", file)
    finally:
        os.umask(before)
    token = file.read_text("ascii").strip()
    assert (code, token in said, Tokens(state / kept).name(token)) == (0, False, name)
    assert file.stat().st_mode & 0o777 == 0o600
    code, _, said = offbeat(*command.split(), "--state", state, "--out", file)
    assert (code, "is there already: delete it, or choose another name" in said) == (2, True)
    assert Tokens(state / kept).name(token) == name


@pytest.mark.parametrize("options", [("--out",), ("--address", ADDRESS, "-o")])
def test_a_full_disk_leaves_the_old_token_valid(
    offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...]
) -> None:
    state, disk = tmp_path / "run", tmp_path / "disk"
    disk.mkdir()
    token = offbeat("enrol", "north", "--state", state)[1].strip()
    full_disk(monkeypatch, disk)
    code, _, said = offbeat("enrol", "north", "--state", state, *options, disk / "north")
    assert (code, said.endswith("No space left on device; no token has changed\n")) == (2, True), said
    assert Tokens(state / "tokens.json").name(token) == "north"
    assert list(disk.iterdir()) == []


def test_tokens_that_cannot_be_replaced_leave_no_kit(
    offbeat: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, kit = tmp_path / "run", tmp_path / "north.kit"
    token = offbeat("enrol", "north", "--state", state)[1].strip()
    full_disk(monkeypatch, state)
    code, _, said = offbeat("enrol", "north", "--state", state, "-o", kit, "--address", ADDRESS)
    assert (code, "tokens.json: the file cannot be written (No space left" in said) == (2, True), said
    monkeypatch.undo()
    assert Tokens(state / "tokens.json").name(token) == "north"
    assert not kit.exists()


@pytest.mark.parametrize("command", ["enrol north", "enrol --dashboard"])
def test_a_directory_that_was_not_there_is_told(offbeat: Any, tmp_path: Path, command: str) -> None:
    code, said, warned = offbeat(*command.split(), "--state", tmp_path / "typo")
    assert (code, said.count("\n")) == (0, 1)
    assert f"made {tmp_path / 'typo'}: no run and no certificate is there" in warned
    assert offbeat(*command.split(), "--state", tmp_path / "typo")[2] == ""


def test_why_a_directory_cannot_be_written_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert why_unwritable(tmp_path) is None
    assert why_unwritable(tmp_path / "none") == f"{tmp_path / 'none'} is no directory"
    monkeypatch.setattr(os, "access", lambda *_, **__: False)
    assert why_unwritable(tmp_path) == f"this user cannot write to {tmp_path}"
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert why_unwritable(tmp_path) == f"{tmp_path} is on a read-only file system"
    with pytest.raises(UsageError, match=r"cannot be written: .* is on a read-only file system"):
        model_keeper(tmp_path / "model.safetensors")

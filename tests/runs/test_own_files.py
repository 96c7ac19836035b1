"""Files in directories of others: what is written stays in the directory, and waits for nobody."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from offbeat.callbacks.csv_tracker import CSVFile
from offbeat.core.errors import OffbeatError
from offbeat.inference.model_card import write_card
from offbeat.net.secure.release_seeds import SecretsFile
from offbeat.net.server.state_files import UpdateLog
from offbeat.runs.durable_files import write_pieces, write_private
from offbeat.runs.files import write_tensors
from offbeat.runs.own_files import check_own, make_new, open_own, replacing, write_own
from offbeat.runs.schema import Metric
from offbeat.secure.helper_file import HelperFile

TENSORS = {"w": torch.ones(3)}


def append_to_csv(place: Path) -> None:
    """A table whose file has become another one, as it is appended to."""
    path, aside = place / "metrics.csv", place / "aside"
    path.rename(aside)
    file = CSVFile(path, [])
    aside.rename(path)
    file.log(Metric(0, 0.0, 0, 0, 0, 0, None, None, None))


REPLACED: dict[str, Callable[[Path], object]] = {
    "state-3.part": lambda place: write_tensors(place / "state-3.safetensors", TENSORS),
    "state-3.safetensors": lambda place: write_tensors(place / "state-3.safetensors", TENSORS),
    "tokens.json": lambda place: write_private(place / "tokens.json", b"{}"),
    "metrics.csv": lambda place: CSVFile(place / "metrics.csv", []),
    "metrics.csv.part": lambda place: CSVFile(place / "metrics.csv", []),
    "m.pt.md": lambda place: write_card("text", place / "m.pt"),
    "m.pt.md.part": lambda place: write_card("text", place / "m.pt"),
    "server.json": lambda place: write_own(place / "server.json", "{}"),
}
OPENED: dict[str, Callable[[Path], object]] = {
    "updates.log": UpdateLog,
    "secrets.db": SecretsFile,
    "secrets.db-journal": SecretsFile,
    "helper.db": lambda place: HelperFile(place / "helper.db"),
    "helper.db-journal": lambda place: HelperFile(place / "helper.db"),
    "metrics.csv": append_to_csv,
}


@pytest.mark.parametrize("name", REPLACED)
def test_a_link_is_replaced_and_what_it_leads_to_stays(name: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    place = tmp_path / "run"
    place.mkdir()
    (place / name).symlink_to(precious)
    REPLACED[name](place)
    assert precious.read_text() == "precious"
    assert not any(path.is_symlink() for path in place.iterdir() if path.suffix != ".md")


@pytest.mark.parametrize("name", OPENED)
@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_what_is_no_file_is_not_opened(name: str, kind: str, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    if kind == "link":
        precious.write_text("precious")
        precious.chmod(0o640)
    place = tmp_path / "run"
    place.mkdir()
    os.mkfifo(place / name) if kind == "pipe" else (place / name).symlink_to(precious)
    with pytest.raises((OSError, OffbeatError), match=f"{name} is a link, a folder, a pipe or a device"):
        OPENED[name](place)
    assert precious.exists() is (kind == "link")
    if kind == "link":
        assert precious.read_text() == "precious"
        assert precious.stat().st_mode & 0o777 == 0o640


def test_a_file_is_opened_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("before")
    path.chmod(0o640)
    check_own(path)
    file = open_own(path)
    assert os.read(file, 10) == b"before"
    os.close(file)
    assert path.stat().st_mode & 0o777 == 0o640
    os.close(open_own(path, 0o600))
    assert path.stat().st_mode & 0o777 == 0o600
    os.close(make_new(path))
    assert path.read_bytes() == b""


def test_what_fails_midway_leaves_the_file_before(tmp_path: Path) -> None:
    write_own(tmp_path / "a", "before")
    with pytest.raises(TypeError), replacing(tmp_path / "a") as file:
        write_pieces(file, [b"half", 0])  # type: ignore[list-item]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_text() == "before"

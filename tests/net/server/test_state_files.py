"""The file of the large updates: what the database names is there, whatever is written after it."""

import os
from pathlib import Path

import pytest
import torch

from offbeat.core.errors import RunError
from offbeat.core.model import Tensors
from offbeat.net.server.read_updates import read_update
from offbeat.net.server.state_files import UpdateLog
from offbeat.net.server.stored_updates import UPDATES


def update(value: float, size: int = 1000) -> Tensors:
    return {
        "delta": torch.full((size,), value),
        "integers": torch.arange(3),
        "lr": torch.tensor([value], dtype=torch.float64),
        "shared": torch.zeros(0),
    }


def same(found: Tensors, wanted: Tensors) -> bool:
    return found.keys() == wanted.keys() and all(
        found[name].dtype == tensor.dtype and torch.equal(found[name], tensor)
        for name, tensor in wanted.items()
    )


def test_each_update_comes_back_from_where_it_was_put(tmp_path: Path) -> None:
    log = UpdateLog(tmp_path)
    places = [log.append(update(value, size)) for value, size in ((1.0, 1000), (2.0, 1), (3.0, 77))]
    log.sync()
    log.close()
    for place, (value, size) in zip(places, ((1.0, 1000), (2.0, 1), (3.0, 77)), strict=True):
        assert same(read_update(tmp_path, *place), update(value, size))


def test_a_vector_that_is_part_of_another_is_written_alone(tmp_path: Path) -> None:
    log = UpdateLog(tmp_path)
    place = log.append({"delta": torch.arange(20.0)[::2]})
    log.close()
    assert torch.equal(read_update(tmp_path, *place)["delta"], torch.arange(20.0)[::2])


def test_the_file_is_written_again_from_its_start_once_it_is_cleared(tmp_path: Path) -> None:
    log = UpdateLog(tmp_path)
    first, second = log.append(update(1.0)), log.append(update(2.0))
    length = (tmp_path / UPDATES).stat().st_size
    log.clear()
    assert log.append(update(3.0)) == first
    assert same(read_update(tmp_path, *first), update(3.0))
    assert same(read_update(tmp_path, *second), update(2.0))  # not touched yet
    assert (tmp_path / UPDATES).stat().st_size == length
    log.close()


def test_who_opens_it_again_keeps_what_is_there(tmp_path: Path) -> None:
    """A server that has died left updates that the database names until the next checkpoint."""
    before = UpdateLog(tmp_path)
    place = before.append(update(1.0))
    before.close()
    after = UpdateLog(tmp_path)
    after.append(update(2.0))
    after.close()
    assert same(read_update(tmp_path, *place), update(1.0))


def test_an_update_that_did_not_fit_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, write = UpdateLog(tmp_path), os.write
    first = log.append(update(1.0))
    written: list[int] = []

    def full(file: int, data: memoryview) -> int:
        if written:
            raise OSError(28, "No space left on device")
        written.append(write(file, data[:50]))
        return written[0]

    with monkeypatch.context() as broken:
        broken.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space"):
            log.append(update(2.0))
    place = log.append(update(3.0))
    log.close()
    assert place[0] == sum(first)
    assert same(read_update(tmp_path, *place), update(3.0))


def test_short_writes_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:100]))
    log = UpdateLog(tmp_path)
    place = log.append(update(1.0))
    log.close()
    assert same(read_update(tmp_path, *place), update(1.0))


def test_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=rf"{UPDATES} is missing; lost: updates that arrived after"):
        read_update(tmp_path, 0, 1)
    (tmp_path / UPDATES).write_bytes(b"x" * 9)
    with pytest.raises(RunError, match=rf"{UPDATES} does not have what run.db says"):
        read_update(tmp_path, 0, 10)

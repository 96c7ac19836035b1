"""Files of tensors: what is read is what was written, or an error that names the file."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from offbeat.core.errors import DamageError, RunError
from offbeat.core.layout import Layout
from offbeat.core.model import Tensors
from offbeat.runs.durable_files import write_private
from offbeat.runs.files import read_file, read_model, read_tensors, write_tensors
from offbeat.runs.packing import pack_tensors, unpack_tensors

TENSORS = {
    "w": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0),
}


def same(found: Tensors, wanted: Tensors = TENSORS) -> bool:
    return found.keys() == wanted.keys() and all(
        found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in wanted.items()
    )


def test_what_is_written_is_read(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", TENSORS, {"version": "3"})
    tensors, metadata = read_file(tmp_path / "a.safetensors")
    assert same(tensors)
    assert metadata == {"version": "3"}
    assert same(unpack_tensors(pack_tensors(TENSORS)))
    columns = {"t": TENSORS["w"].T}  # which does not lie in memory in this order
    assert same(unpack_tensors(pack_tensors(columns)), {"t": TENSORS["w"].T.contiguous()})


def test_a_file_without_a_checksum_is_read(tmp_path: Path) -> None:
    save_file(TENSORS, tmp_path / "old.safetensors")
    assert same(read_tensors(tmp_path / "old.safetensors"))


def test_no_flipped_bit_changes_a_tensor(tmp_path: Path) -> None:
    path = tmp_path / "state-3.safetensors"
    write_tensors(path, TENSORS, {"version": "3"})
    whole, refused = path.read_bytes(), 0
    for at in range(len(whole)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        try:
            found = read_tensors(path)
        except DamageError as error:
            refused += str(error).startswith(f"{path} ") and "\n" not in str(error)
        else:
            assert same(found), at  # a key of the metadata is another one
    assert refused > 0.9 * len(whole)


@pytest.mark.parametrize(
    ("content", "problem"), [(None, "is missing"), (b"", "is empty"), (b"x" * 40, r"cannot be read \(")]
)
def test_an_error_says_what_is_lost_and_what_to_do(
    content: bytes | None, problem: str, tmp_path: Path
) -> None:
    path = tmp_path / "version-7.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunError, match=rf"version-7\.safetensors {problem}") as caught:
        read_tensors(path)
    assert isinstance(caught.value, DamageError)
    assert caught.value.lost == "a version that tasks of the checkpoint started from"
    assert caught.value.remedy.startswith("restore the directory from a copy")


def test_a_file_that_cannot_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_tensors(tmp_path / "a.safetensors", TENSORS)
    before, write = (tmp_path / "a.safetensors").read_bytes(), os.write

    def full(file: int, data: memoryview) -> int:
        if os.fstat(file).st_size:
            raise OSError(28, "No space left on device")
        return write(file, data[:50])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left on device"):
        write_tensors(tmp_path / "a.safetensors", {"w": torch.zeros(9)})
    assert [path.name for path in tmp_path.iterdir()] == ["a.safetensors"]
    assert (tmp_path / "a.safetensors").read_bytes() == before


def test_a_model_of_another_layout_is_damage(tmp_path: Path) -> None:
    write_tensors(tmp_path / "model.safetensors", {"v": torch.zeros(3)})
    with pytest.raises(DamageError, match=r"model\.safetensors cannot be read \(KeyError: 'w'\)"):
        read_model(tmp_path / "model.safetensors", Layout.flat(3))


@pytest.mark.parametrize(
    "write",
    [lambda path: write_private(path, b"secret"), lambda path: write_tensors(path, {"w": torch.ones(1)})],
)
def test_a_pipe_or_a_device_stays(write: Callable[[Path], object], tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="it is a device or a pipe; give the name of a file"):
        write(pipe)
    assert pipe.is_fifo()
    assert list(tmp_path.iterdir()) == [pipe]

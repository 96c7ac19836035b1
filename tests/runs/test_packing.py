"""Tensors as bytes: those of safetensors, read into memory of their own, or an error."""

import json
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load, save

from offbeat.core.errors import RunError
from offbeat.core.model import Tensors
from offbeat.runs.files import write_tensors
from offbeat.runs.packing import pack_tensors, read_packed, read_pieces, unpack_tensors


def known(dtype: torch.dtype) -> bool:
    """Whether the version of safetensors that is installed knows a dtype."""
    try:
        return bool(load(save({"w": torch.zeros(1, dtype=dtype)})))
    except (KeyError, SafetensorError):
        return False


DTYPES = [dtype for dtype in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16,
    torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8, torch.bool, torch.complex64,
    torch.float8_e4m3fn, torch.float8_e5m2,
) if known(dtype)]  # fmt: skip
TENSORS = {
    "w": torch.arange(6.0).reshape(2, 3),
    "half": torch.ones(3, dtype=torch.bfloat16),
    "count": torch.tensor(7),
    "mask": torch.tensor([True, False]),
    "none": torch.zeros(0, 5),
}


def same(found: Tensors, wanted: Tensors = TENSORS) -> bool:
    return found.keys() == wanted.keys() and all(
        found[n].dtype == t.dtype and torch.equal(found[n], t) for n, t in wanted.items()
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_safetensors_and_this_read_each_other(dtype: torch.dtype) -> None:
    tensors = {"b": torch.tensor([1, 0, 1]).to(dtype), "a": torch.zeros(2, dtype=torch.bool)}
    octets = {name: tensor.view(torch.uint8) for name, tensor in tensors.items()}
    for found in (
        load(pack_tensors(tensors)),
        unpack_tensors(save(tensors)),
        unpack_tensors(pack_tensors(tensors)),
    ):
        assert {name: tensor.dtype for name, tensor in found.items()} == {"a": torch.bool, "b": dtype}
        assert same({name: tensor.view(torch.uint8) for name, tensor in found.items()}, octets)


def test_each_tensor_begins_at_a_multiple_of_its_width() -> None:
    tensors = {"a": torch.tensor([True]), "b": torch.zeros(2), "c": torch.zeros(1, dtype=torch.float64)}
    data = pack_tensors(tensors)
    head = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    begins = {name: own["data_offsets"][0] for name, own in head.items() if name in tensors}
    assert begins == {"c": 0, "b": 8, "a": 16}


def test_tensors_are_read_from_within_a_file_in_the_order_of_their_names() -> None:
    data = pack_tensors(TENSORS)
    file = BytesIO(b"before" + data + b"after")
    file.seek(6)
    tensors, metadata = read_pieces(file, len(data))
    assert same(tensors)
    assert list(tensors) == sorted(TENSORS)
    assert metadata.keys() == {"xxh3_64"}
    assert file.read() == b"after"


def test_no_bytes_of_tensors_are_held_beside_them() -> None:
    class Watched(BytesIO):
        most = 0

        def read(self, size: int | None = -1) -> bytes:
            data = super().read(size)
            self.most = max(self.most, len(data))
            return data

    data = pack_tensors({"w": torch.zeros(10_000)})
    file = Watched(data)
    read_packed(file, len(data))
    assert 0 < file.most < 200


def test_tensors_can_be_written_to_and_share_nothing() -> None:
    data = pack_tensors(TENSORS)
    unpack_tensors(data)["w"].fill_(9)
    assert same(unpack_tensors(data))


def entry(dtype: str = "F32", shape: tuple[int, ...] = (1,), begin: int = 0, end: int = 4) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


@pytest.mark.parametrize(
    ("head", "size", "problem"),
    [
        ([], 0, "its head cannot be read"),
        ({"w": {"dtype": "F32", "shape": [1]}}, 4, "its head cannot be read"),
        ({"w": entry(shape=(-1,))}, 4, "its head cannot be read"),
        ({"__metadata__": {"a": 1}}, 0, "its head cannot be read"),
        ({"w": entry("F33")}, 4, "the dtype of w, F33, is not known"),
        ({"w": entry(shape=(2,))}, 4, "the bytes of w, 0 to 4, are not those of its shape"),
        ({"w": entry(begin=1, end=5)}, 5, "the bytes of w, 1 to 5, are not those of its shape"),
        ({"w": entry(shape=(9,), end=36)}, 4, "the bytes of w, 0 to 36, are not those of its shape"),
        ({"v": entry(), "w": entry()}, 4, "the bytes of w, 0 to 4, are not those of its shape"),
        ({"w": entry()}, 5, "it has 1 bytes after its tensors"),
        ({"__metadata__": {"xxh3_64": "0"}, "w": entry()}, 4, "the tensors do not match their checksum"),
        (
            {"a": {"dtype": "F32", "shape": [0, 2**70], "data_offsets": [0, 0]}},
            0,
            "its head cannot be read|larger",
        ),
        ({"a": {"dtype": "F32", "shape": [0, 2**62, 2**62], "data_offsets": [0, 0]}}, 0, "larger than any"),
        ({"a": {"dtype": "F32", "shape": [1] * 100, "data_offsets": [0, 4]}}, 4, "length <= 64"),
        ({"a": {"dtype": "F32", "shape": [1] * 2**20, "data_offsets": [0, 4]}}, 4, "length <= 64"),
        ({"a": {"dtype": "F32", "shape": [10**4000] * 9, "data_offsets": [0, 4]}}, 4, "cannot be read"),
    ],
)
def test_bytes_that_are_no_tensors_are_an_error(head: Any, size: int, problem: str) -> None:
    said = json.dumps(head).encode()
    with pytest.raises(ValueError, match=problem):
        unpack_tensors(len(said).to_bytes(8, "little") + said + bytes(size))


def test_a_file_that_has_become_shorter_is_an_error() -> None:
    data = pack_tensors({"w": torch.zeros(9)})
    with pytest.raises(ValueError, match="it ends within w"):
        read_packed(BytesIO(data[:-1]), len(data))


@pytest.mark.parametrize(
    "data",
    [b"", b"1234", b"\xff" * 8, (2**24 + 1).to_bytes(8, "little") + bytes(2**24 + 1)],
    ids=[
        "none",
        "four",
        "huge",
        "one more than allowed",
    ],  # not megabytes, which pytest's workers send each other
)
def test_a_length_that_no_head_has_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="its head cannot have"):
        unpack_tensors(data)


@pytest.mark.parametrize(
    "head",
    [b"[" * 100_000, b'{"a":' + b"[" * 100_000, b'{"__metadata__":' + b"[" * 100_000],
    ids=["list", "tensor", "metadata"],
)
def test_a_head_that_is_nested_too_deep_is_an_error(head: bytes) -> None:
    with pytest.raises(ValueError, match="its head cannot be read"):
        unpack_tensors(len(head).to_bytes(8, "little") + head)


@given(data=st.data())
def test_whatever_is_changed_in_a_file_it_is_read_or_is_an_error(data: st.DataObject) -> None:
    packed = bytearray(pack_tensors(TENSORS))
    head = int.from_bytes(packed[:8], "little")
    for _ in range(data.draw(st.integers(1, 4))):
        packed[data.draw(st.integers(0, head + 8))] = data.draw(
            st.sampled_from(b'0123456789-.[]{}":,eFU\x00\xff')
        )
    with suppress(ValueError):
        tensors, _ = read_pieces(BytesIO(packed), len(packed))
        assert sum(tensor.nbytes for tensor in tensors.values()) <= len(packed)


def test_a_dtype_that_the_format_does_not_have_is_told(tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"tensor 'w' has the dtype complex128, which no file can have: use one of float64, "
    ):
        write_tensors(tmp_path / "a.safetensors", {"w": torch.zeros(1, dtype=torch.complex128)})
    assert list(tmp_path.iterdir()) == []

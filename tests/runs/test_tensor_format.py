"""Files of tensors are checked without tensors, as they are with them."""

from io import BytesIO

import pytest
import torch

from offbeat.runs.packing import checksum, pack_tensors, packed_pieces, read_pieces, signed
from offbeat.runs.tensor_format import DTYPES, read_contents

TENSORS = {
    name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name, _ in DTYPES.values()
} | {"none": torch.zeros(0, 4), "one": torch.tensor(7)}  # fmt: skip


def test_the_checksum_is_that_of_the_tensors() -> None:
    for metadata in ({}, {"version": "3"}):
        described = signed(TENSORS, metadata)
        octets = b"".join(packed_pieces(TENSORS, described))
        found = read_contents(BytesIO(octets), len(octets))
        assert found.intact
        assert (found.metadata, found.checksum) == (described, checksum(TENSORS, metadata))
        assert found.data.keys() == TENSORS.keys()
        assert int.from_bytes(found.data["one"], "little") == 7


def test_every_dtype_has_its_width() -> None:
    for name, width in DTYPES.values():
        assert getattr(torch, name).itemsize == width


def test_what_is_damaged_for_one_is_damaged_for_the_other() -> None:
    octets = pack_tensors(TENSORS)
    for at in range(0, len(octets), 7):
        damaged = bytearray(octets)
        damaged[at] ^= 0x20
        outcomes = []
        try:
            outcomes.append(read_contents(BytesIO(damaged), len(damaged)).checksum)
        except ValueError as error:
            outcomes.append(str(error))
        try:
            outcomes.append(checksum(*read_pieces(BytesIO(damaged), len(damaged))))
        except ValueError as error:
            outcomes.append(str(error))
        assert outcomes[0] == outcomes[1], at
    for end in (0, 4, 100, len(octets) - 1):
        with pytest.raises(ValueError, match=r"its head|it ends|it has|the bytes of"):
            read_contents(BytesIO(octets[:end]), len(octets))

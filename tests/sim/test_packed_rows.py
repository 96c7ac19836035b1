import pickle

import numpy as np
import pytest

from offbeat.core.journal import Row
from offbeat.sim.packed_rows import BLOCK, PackedRows


def row(seq: int) -> Row:
    return Row(
        seq, seq / 2, "event", "arrived", client=seq % 7, data={"tasks": (seq, seq + 1), "loss": [0.5]}
    )


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK + 5])
def test_rows_come_back_as_they_were_in_their_order(count):
    packed = PackedRows()
    for seq in range(count):
        packed.append(row(seq))
    assert len(packed) == count
    assert list(packed) == [row(seq) for seq in range(count)]
    assert list(pickle.loads(pickle.dumps(packed))) == list(packed)


def test_values_keep_their_types():
    packed = PackedRows()
    for _ in range(BLOCK):
        packed.append(Row(0, 0.0, "command", "train", data={"note": np.float64(0.25), "pair": (1, 2)}))
    data = next(iter(packed)).data
    assert type(data["note"]) is np.float64
    assert data["pair"] == (1, 2)


def test_rows_that_come_during_an_iteration_are_not_part_of_it():
    packed = PackedRows()
    for seq in range(BLOCK + 3):
        packed.append(row(seq))
    rows = iter(packed)
    next(rows)
    for seq in range(BLOCK + 3, 3 * BLOCK):
        packed.append(row(seq))
    assert len(list(rows)) == BLOCK + 2


def test_old_rows_take_little_memory():
    packed = PackedRows()
    for seq in range(4 * BLOCK):
        packed.append(row(seq))
    assert sum(map(len, packed._blocks)) < 40 * 4 * BLOCK

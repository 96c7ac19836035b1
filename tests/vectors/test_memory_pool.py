"""Room for long vectors: what is in use is left alone, what was freed is used again."""

import gc

import pytest
import torch

from offbeat.vectors.memory_pool import LEAST, MOST, SPARE, VectorPool


@pytest.mark.thorough
def test_freed_room_is_used_again_and_room_in_use_is_not():
    rooms = VectorPool()
    first = rooms.vector(100_000, torch.float32)
    place = first.data_ptr()
    part = first[5:10]
    part.fill_(3.0)
    del first
    gc.collect()
    second = rooms.vector(100_000, torch.float32)
    assert second.data_ptr() != place
    second.zero_()
    assert part.tolist() == [3.0] * 5
    del part
    assert rooms.vector(100_000, torch.float32).data_ptr() == place


def test_room_is_of_the_size_and_type_that_was_asked():
    rooms = VectorPool()
    for size, dtype in ((100_000, torch.float32), (100_001, torch.float32), (100_000, torch.int64)) * 2:
        vector = rooms.vector(size, dtype)
        assert (len(vector), vector.dtype) == (size, dtype)
        del vector
    assert len(rooms._spare) == 3  # each was used twice


def test_small_and_huge_room_is_not_kept():
    rooms = VectorPool()
    rooms.vector(10, torch.float32)
    rooms.vector(MOST // 4 + 1, torch.float32)
    assert not rooms._spare


def test_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("offbeat.vectors.memory_pool.SPARE_BYTES", 3 * 400_000)
    rooms = VectorPool()
    used = [rooms.vector(100_000, torch.float32) for _ in range(5)]
    places = [vector.data_ptr() for vector in used]
    while used:
        del used[0]
    assert [spare.vector.data_ptr() for spare in rooms._spare] == places[2:]  # the last ones freed
    used = [rooms.vector(LEAST // 4, torch.float32) for _ in range(2 * SPARE)]
    monkeypatch.setattr("offbeat.vectors.memory_pool.SPARE_BYTES", 1 << 40)
    used.clear()
    assert len(rooms._spare) == SPARE


def test_room_like_another_is_contiguous_and_of_its_type():
    like = torch.arange(100_000)
    found = VectorPool().like(like[::2])
    assert (found.shape, found.dtype, found.is_contiguous()) == ((50_000,), torch.int64, True)
    assert VectorPool().like(torch.zeros(300, 300)).shape == (300, 300)

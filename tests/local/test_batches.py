"""Batches: reshuffled passes over a client's samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.streams import Purpose, stream
from offbeat.local.batches import batch_table, batches, samples_per_epoch, steps_per_epoch


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 60), st.integers(0, 2**32))
def test_batches(samples, size, steps, seed):
    found = [b.tolist() for b in batches(np.random.default_rng(seed), samples, size, steps)]
    assert len(found) == steps
    per_pass = -(-samples // size)
    for start in range(0, steps, per_pass):
        one = found[start : start + per_pass]
        seen = [i for batch in one for i in batch]
        assert len(set(seen)) == len(seen)
        assert set(seen) <= set(range(samples))
        if len(one) == per_pass:
            assert sorted(seen) == list(range(samples))
            assert len(one[-1]) == (samples % size or min(size, samples))
        assert all(len(batch) == min(size, samples) for batch in one[: per_pass - 1])


def test_each_pass_is_shuffled_anew_from_its_generator():
    one, two = batches(np.random.default_rng(1), 50, 50, 2)
    assert one.tolist() != two.tolist()
    again = [b.tolist() for b in batches(np.random.default_rng(1), 50, 50, 2)]
    assert again == [one.tolist(), two.tolist()]
    other = next(iter(batches(np.random.default_rng(2), 50, 50, 1)))
    assert other.tolist() != one.tolist()


@pytest.mark.parametrize("count", [1, 3, 7])
def test_fewer_steps_are_the_beginning_of_more(count):
    more = [b.tolist() for b in batches(np.random.default_rng(1), 10, 4, 7)]
    assert [b.tolist() for b in batches(np.random.default_rng(1), 10, 4, count)] == more[:count]


@pytest.mark.parametrize("steps", [1, 4, 5, 11])
def test_a_shorter_task_sees_the_first_batches_of_a_longer_one(steps):
    """What lets a recalled task be cut by training it again with fewer steps."""
    long = list(batches(stream(3, Purpose.TRAIN, 1, 2), samples=23, size=5, steps=20))
    short = list(batches(stream(3, Purpose.TRAIN, 1, 2), samples=23, size=5, steps=steps))
    assert [b.tolist() for b in short] == [b.tolist() for b in long[:steps]]


@given(st.integers(1, 40), st.integers(1, 50), st.integers(1, 60))
def test_the_incomplete_batch_of_each_pass_can_be_left_out(samples, size, steps):
    found = [b.tolist() for b in batches(np.random.default_rng(0), samples, size, steps, drop_last=True)]
    per_pass = steps_per_epoch(samples, size, drop_last=True)
    assert per_pass == max(1, samples // size)
    assert [len(batch) for batch in found] == [min(size, samples)] * steps
    for start in range(0, steps, per_pass):
        seen = [i for batch in found[start : start + per_pass] for i in batch]
        assert len(set(seen)) == len(seen) <= samples_per_epoch(samples, size, drop_last=True)
    table = batch_table(np.random.default_rng(0), samples, size, steps, drop_last=True)
    assert [[i for i in row if i >= 0] for row in table.tolist()] == found


@given(st.integers(1, 6), st.integers(1, 6))
def test_batches_that_come_out_even_are_the_same_without_the_last(size, full):
    kept = [b.tolist() for b in batches(np.random.default_rng(1), size * full, size, 13)]
    left = [b.tolist() for b in batches(np.random.default_rng(1), size * full, size, 13, drop_last=True)]
    assert kept == left
    assert steps_per_epoch(size * full, size) == steps_per_epoch(size * full, size, drop_last=True) == full


def test_a_client_without_samples_has_no_steps():
    assert [steps_per_epoch(0, 8, drop_last) for drop_last in (False, True)] == [0, 0]

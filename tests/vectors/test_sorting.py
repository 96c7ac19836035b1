import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from offbeat.vectors.sorting import middle_of_sorted

VALUES = [-math.inf, -2.0, -1.0, 0.0, 1.0, 1e-40, 3.5, math.inf]


@given(
    st.integers(1, 12).flatmap(
        lambda k: st.tuples(
            st.lists(st.lists(st.sampled_from(VALUES), min_size=3, max_size=3), min_size=k, max_size=k),
            st.integers(0, (k - 1) // 2),
        )
    )
)
def test_rows_are_the_middle_of_pytorchs_sort(case):
    values, drop = case
    rows = torch.tensor(values)
    expected = rows.sort(dim=0).values[drop : len(rows) - drop]
    assert torch.equal(torch.stack(middle_of_sorted(list(rows), drop)), expected)


@pytest.mark.parametrize("count", [2, 3, 16, 29, 30, 31, 33, 100])
@pytest.mark.parametrize("middle", [False, True])
def test_long_columns_are_sorted(count, middle):
    generator = torch.Generator().manual_seed(count)
    rows = torch.stack([torch.rand(500, generator=generator) for _ in range(count)])
    drop = (count - 1) // 2 if middle else 0
    expected = rows.sort(dim=0).values[drop : count - drop]
    assert torch.equal(torch.stack(middle_of_sorted(list(rows.clone()), drop)), expected)


def test_nan_is_the_greatest_value():
    rows = torch.tensor([[math.nan, 1.0], [2.0, 3.0], [1.0, 2.0], [math.inf, math.nan]])
    kept = middle_of_sorted(list(rows), 1)
    assert torch.stack(kept).tolist() == [[2.0, 2.0], [math.inf, 3.0]]

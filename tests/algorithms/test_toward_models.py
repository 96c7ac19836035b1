"""`toward_models`: a vector of one piece takes a way of its own, which must give the bits of the other."""

import pytest
import torch

from offbeat.algorithms.aggregators import toward_models
from offbeat.core.aggregator import Update
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from offbeat.vectors.chunked import CHUNK

C = [0.3, -0.7, 1 / 3]


def model(values: torch.Tensor) -> Model:
    return Model(Layout.flat(len(values)), values, torch.zeros(0, dtype=torch.int64))


def step(vectors: list[torch.Tensor], old: tuple[int, ...]) -> torch.Tensor:
    """Toward three models; the updates in `old` started from another version."""
    w, before, *deltas = vectors
    now, then = model(w), model(before)
    updates = [
        Update(Task(i, i, 0, 1, 0.0), then if i in old else now, delta, now.integers)
        for i, delta in enumerate(deltas)
    ]
    return toward_models(updates, C, now)


@pytest.mark.parametrize("old", [(), (1,), (0, 2), (0, 1, 2)])
def test_in_pieces_and_in_one(old: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(2 * CHUNK + 77, generator=generator) for _ in range(5)]
    pieces = [
        step([v.clone() for v in part], old) for part in zip(*(v.split(CHUNK) for v in vectors), strict=True)
    ]
    assert torch.equal(torch.cat(pieces), step(vectors, old))


@pytest.mark.parametrize("old", [(), (1,), (0, 2), (0, 1, 2)])
def test_each_update_counts_from_its_own_base(old: tuple[int, ...]) -> None:
    vectors = [torch.tensor([float(v)]) for v in (5, 3, 10, 20, 30)]  # w, another version, three Δ
    expected = sum(
        c * (d + (3 if i in old else 5) - 5) for i, (c, d) in enumerate(zip(C, (10, 20, 30), strict=True))
    )
    assert step(vectors, old).item() == pytest.approx(expected)

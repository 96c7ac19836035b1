"""What the tests of metrics share: a metric of batches, ways to divide samples."""

from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from offbeat.metrics import StreamingMetric

F, I = torch.float32, torch.int64  # noqa: E741


def value(metric: StreamingMetric, *batches: tuple[Tensor, Tensor]) -> Any:
    """The metric of the batches, after a reset."""
    metric.reset()
    for scores, target in batches:
        metric.update(scores, target)
    return metric.compute()


def t(values: Any, dtype: torch.dtype = F) -> Tensor:
    return torch.tensor(values, dtype=dtype)


def divided(scores: Tensor, target: Tensor, cuts: list[int]) -> list[tuple[Tensor, Tensor]]:
    """The samples in batches that end at the cuts; batches may be empty."""
    ends = sorted(min(cut, len(scores)) for cut in cuts)
    bounds = zip([0, *ends], [*ends, len(scores)], strict=True)
    return [(scores[start:end], target[start:end]) for start, end in bounds]


cuts = st.lists(st.integers(0, 12), max_size=4)
halves = st.integers(-6, 6).map(lambda number: number / 2)  # scores with ties, exact in float32
labels = st.integers(0, 1)


def shuffled(scores: Tensor, target: Tensor, seed: int) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(scores), generator=torch.Generator().manual_seed(seed))
    return scores[order], target[order]


@st.composite
def binary(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    rows = draw(st.lists(st.tuples(halves, labels), min_size=1, max_size=12))
    return t([score for score, _ in rows]), t([label for _, label in rows], I)


@st.composite
def multiclass(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    classes = draw(st.integers(2, 4))
    row = st.tuples(st.lists(halves, min_size=classes, max_size=classes), st.integers(0, classes - 1))
    rows = draw(st.lists(row, min_size=1, max_size=12))
    return t([scores for scores, _ in rows]), t([label for _, label in rows], I)


@st.composite
def multilabel(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    count = draw(st.integers(2, 4))
    row = st.tuples(*(st.lists(kind, min_size=count, max_size=count) for kind in (halves, labels)))
    rows = draw(st.lists(row, min_size=1, max_size=12))
    return t([scores for scores, _ in rows]), t([marks for _, marks in rows], I)


any_kind = st.one_of(binary(), multiclass(), multilabel())

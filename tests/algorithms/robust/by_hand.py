"""Updates made by hand, and the step that an aggregator takes for them."""

from collections.abc import Sequence

import torch

from offbeat.core.aggregator import Aggregator, Update
from offbeat.core.layout import Layout
from offbeat.core.model import Model, Tensors
from offbeat.core.root import ROOT_UPDATE
from offbeat.core.schedule import Task


def updates(
    deltas: Sequence[Sequence[float]],
    staleness: Sequence[int] = (),
    clients: Sequence[int] = (),
    dtype: torch.dtype = torch.float32,
) -> list[Update]:
    """One update for each delta: tasks 0, 1, …; by default of clients 0, 1, …, fresh, each of share 0.1."""
    model = Model.empty(Layout.flat(len(deltas[0])))
    return [
        Update(
            Task(i, clients[i] if clients else i, 0, 1, 0.0, staleness[i] if staleness else 0, 1, 0.1),
            model,
            torch.tensor(delta, dtype=dtype),
            model.integers,
        )
        for i, delta in enumerate(deltas)
    ]


def step(
    aggregator: Aggregator,
    given: Sequence[Update],
    memory: Tensors | None = None,
    root: Sequence[float] | None = None,
) -> list[float]:
    """The step of an aggregator, whose root update is given."""
    delta = given[0].delta
    model = Model(Layout.flat(len(delta)), torch.zeros_like(delta), given[0].integers)
    memory = {} if memory is None else memory
    if root is not None:
        memory[ROOT_UPDATE] = torch.tensor(root, dtype=delta.dtype)
    before = [u.delta.clone() for u in given]
    found = aggregator.step(given, model, memory)
    assert not model.values.any()
    for update, kept in zip(given, before, strict=True):
        assert torch.equal(update.delta.nan_to_num(), kept.nan_to_num())
        assert found.data_ptr() != update.delta.data_ptr()
    return found.tolist()

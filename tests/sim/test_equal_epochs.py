"""A world in which an epoch takes a client as long, however much data it has."""

import numpy as np
import pytest
from torch import nn

import offbeat as ob

SIZES = (8, 16, 80, 40, 56)  # 1, 2, 10, 5 and 7 batches of 8: 5 in the mean


def arrivals(world: ob.World, epochs: int) -> list[float]:
    """The time of each client's first update."""
    source = ob.load("digits", samples=sum(SIZES), test_samples=40)
    parts = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    learner = ob.TorchLearner(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 10)),
        ob.federate(source, None, parts),
        ob.Training(batch_size=8),
    )
    run = ob.simulate(ob.fedasync(epochs=epochs), world, learner, until=ob.Until(tasks=60), seed=2)
    first: dict[int, float] = {}
    for event in run.journal:
        if event["name"] == "arrived":
            first.setdefault(event["client"], event["t"])
    return [first[client] for client in range(len(SIZES))]


def test_tasks_of_epochs_are_as_far_apart_as_the_law_says() -> None:
    assert arrivals(ob.World(0.5), 2) == pytest.approx([1.0, 2.0, 10.0, 5.0, 7.0])
    assert arrivals(ob.World(0.5, equal_epochs=True), 2) == pytest.approx([5.0] * 5)
    speeds = [0.5, 1.0, 2.0, 2.5, 0.5]
    assert arrivals(ob.World(speeds, equal_epochs=True), 1) == pytest.approx([5.0 * s for s in speeds])

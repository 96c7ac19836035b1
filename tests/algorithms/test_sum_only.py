"""Aggregators that need sums only: from exact sums they make the step that they make from single updates."""

from dataclasses import replace
from types import MappingProxyType

import pytest
import torch

from offbeat.algorithms.aggregators import MeanOfModels, Normalization, SumOfDeltas
from offbeat.algorithms.asofed import OnlineSum
from offbeat.algorithms.fedat import TierWeights
from offbeat.algorithms.feddyn import DynamicMean
from offbeat.algorithms.port import Similarity
from offbeat.algorithms.wireless.iterations import AgeWeighted
from offbeat.core.aggregator import FullWeight, SumOnly, Update, UpdateSum
from offbeat.core.features import Feature
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.schedule import Task
from offbeat.core.staleness import AgeWeight, ConstantWeight, HingeWeight, PolynomialWeight

LAYOUT = replace(Layout.flat(12), entries=(replace(Layout.flat(12).entries[0], shape=(3, 4)),))
SAMPLES = (30, 10, 25, 40)
FULL = FullWeight(40, 40 / sum(SAMPLES))
NORMAL = Normalization(momentum=0.5)
AGGREGATORS = (
    MeanOfModels(),
    *(
        SumOfDeltas(staleness, weights, 0.7, normalize)
        for staleness in (ConstantWeight(0.6), PolynomialWeight(0.9), HingeWeight(1.0, 1.0), AgeWeight(0.8))
        for weights in ("share", "equal", "samples")
        for normalize in (None, NORMAL)
    ),
    DynamicMean(0.1),
    TierWeights(),
    AgeWeighted(0.8),
    OnlineSum(),
    OnlineSum(features=True),
    Similarity(2.0, 0.0),
    Similarity(1.0, 0.0, average="models"),
)
NOTES = MappingProxyType({"TierWeights": {"tier": 2, "order": [1, 2]}, "AgeWeighted": {"ages": [0, 3, 1, 2]}})


def model(seed: int) -> Model:
    values = torch.randn(12, generator=torch.Generator().manual_seed(seed))
    return Model(LAYOUT, values, torch.zeros(0, dtype=torch.int64))


def updates(note: dict[str, object]) -> list[Update]:
    """Four updates, two of them from the current model, of the same population but for the oldest."""
    found = []
    for i, samples in enumerate(SAMPLES):
        task = Task(i, i, i, 3 + i, 0.0, staleness=3 - i, samples=samples, arrival=i, population=4)
        task.share = samples / sum(SAMPLES)
        base = model(0) if i < 2 else model(i)
        delta = torch.randn(12, generator=torch.Generator().manual_seed(10 + i))
        found.append(Update(task, base, delta, base.integers, note=note))
    return found


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=repr)
def test_of_exact_sums_an_aggregator_makes_the_step_it_makes_of_the_updates(aggregator: SumOnly):
    note = NOTES.get(type(aggregator).__name__, {})
    global_model, given = model(0), updates(note)
    tasks = [u.task for u in given]
    earlier = {"tier.1": model(7).values, "updates.1": torch.tensor([3])} if "tier" in note else {}
    memories = [{k: t.clone() for k, t in earlier.items()} for _ in range(2)]
    for _ in range(2):  # the second time with what the memories have become
        importances = aggregator.importances(tasks, FULL, note)
        scale = aggregator.sum_scale(tasks, importances, FULL)
        assert all(0 < a <= 1 for a in importances)
        weights = [scale * a for a in importances]
        total = sum(c * aggregator.factor(u.task) * u.delta for c, u in zip(weights, given, strict=True))
        summed = UpdateSum(total, weights, tasks, [u.base for u in given], note)
        step = aggregator.step(given, global_model, memories[0])
        other = aggregator.from_sum(summed, global_model, memories[1])
        assert float((other - step).norm()) <= 1e-6 * float(step.norm())
        assert memories[0].keys() == memories[1].keys()
        for name, tensor in memories[0].items():
            torch.testing.assert_close(memories[1][name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("aggregator", AGGREGATORS, ids=repr)
def test_weights_are_equal_where_an_aggregator_says_so_and_nowhere_else(aggregator: SumOnly):
    note = NOTES.get(type(aggregator).__name__, {})
    importances = aggregator.importances([u.task for u in updates(note)], FULL, note)
    assert aggregator.equal_weights == (importances == [1.0] * 4)


def test_more_data_than_those_of_full_weight_add_nothing():
    few = FullWeight(20, 0.2)
    tasks = [u.task for u in updates({})]
    assert MeanOfModels().importances(tasks, few, {}) == [1.0, 0.5, 1.0, 1.0]
    assert OnlineSum().importances(tasks, few, {}) == pytest.approx([1.0, (10 / 105) / 0.2, 1.0, 1.0])
    assert OnlineSum().sum_scale(tasks, [1.0], few) == 0.2


def test_a_tier_whose_updates_are_pooled_does_not_count_yet():
    note = {"tier": 1, "order": [1, 2]}
    given, current, memory = updates(note), model(0), {}
    step = TierWeights().step(given, current, memory)
    torch.testing.assert_close(step, MeanOfModels().step(given, current, {}))
    assert set(memory) == {"tier.1", "updates.1"}


def test_port_needs_single_updates_only_where_directions_count():
    assert Similarity().requires == {Feature.SINGLE_UPDATES}
    assert not Similarity(beta=0.0).requires


def test_feddyn_takes_the_population_of_the_newest_arrival():
    given = updates({})
    given[0].task.population = 3
    memory = {}
    DynamicMean(0.1).step(given, model(0), memory)
    torch.testing.assert_close(memory["h"], -0.1 / 4 * sum(u.delta for u in given))

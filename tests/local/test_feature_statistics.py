"""Federated statistics against NumPy on the samples of all clients together."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.data.federated import without_clients
from offbeat.local.feature_sketch import REACH
from offbeat.local.feature_statistics import BINS, FeatureStatistics, StatisticsLearner
from offbeat.net.client.first_batch import DataError
from offbeat.net.client.site import Site
from offbeat.sim.gather_statistics import feature_statistics
from tests.net.support import run_spec
from tests.sampling import examples


def clients(seed=0, sizes=(200, 70, 30), apart=(0.0, 1.0, 20.0)):
    rng = np.random.default_rng(seed)
    sets = []
    for size, mean in zip(sizes, apart, strict=True):
        x = np.stack(
            [130 + 10 * rng.normal(mean, 3, size), rng.normal(0, 1, size), np.full(size, 7.0)], axis=1
        )
        x[rng.random(size) < 0.2, 1] = np.nan
        sets.append(ob.Dataset(torch.from_numpy(x).float(), torch.from_numpy(rng.integers(0, 3, size)), 3))
    return sets


def pooled(sets):
    x = torch.cat([own.x for own in sets]).double().numpy()
    return x, torch.cat([own.y for own in sets]).numpy()


def test_statistics_are_those_of_all_samples():
    sets = clients()
    found = feature_statistics(ob.federate(sets))
    x, y = pooled(sets)
    assert found.samples == len(x)
    np.testing.assert_allclose(found.missing, np.isnan(x).mean(0), atol=1e-6)
    np.testing.assert_allclose(found.mean, np.nanmean(x, 0), rtol=1e-5)
    np.testing.assert_allclose(found.std, np.nanstd(x, 0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.labels, np.bincount(y) / len(y), atol=1e-6)
    np.testing.assert_allclose(found.histogram.sum(1)[:2], 1.0, rtol=1e-5)


def test_a_quantile_is_within_a_cell_of_the_histogram():
    sets = clients(apart=(0.0, 0.0, 0.0))
    found = feature_statistics(ob.federate(sets))
    x, _ = pooled(sets)
    for q in (0.05, 0.25, 0.5, 0.75, 0.95):
        cell = 2 * REACH * found.std / BINS
        gap = np.abs(found.quantile(q) - np.nanquantile(x, q, 0))
        assert (gap[:2] <= 2 * cell[:2]).all()
    assert found.quantile(0.5)[2] == pytest.approx(7.0)


def test_sites_that_lie_far_apart_are_named():
    found = feature_statistics(ob.federate(clients()))
    assert found.far_apart == [0]
    assert found.apart_text.startswith("sites lie far apart in features 0 (78 %)")
    alike = feature_statistics(ob.federate(clients(apart=(0.0, 0.0, 0.0))))
    assert alike.far_apart == []


def test_the_share_between_sites_by_hand():
    """Means 0 and 4 of two and two samples, each ±1 around them: of the variance 1 + 4 are 4 between."""
    sets = [torch.tensor([[-1.0], [1.0]]), torch.tensor([[3.0], [5.0]])]
    found = feature_statistics(ob.federate(sets))
    assert found.mean.tolist() == [2.0]
    assert found.std[0] == pytest.approx(5**0.5)
    assert found.between[0] == pytest.approx(0.8)


@examples(20)
@given(st.integers(0, 10**6), st.lists(st.integers(1, 40), min_size=1, max_size=4))
def test_any_clients_give_the_pooled_mean_and_deviation(seed, sizes):
    sets = clients(seed, sizes, [float(place) for place in range(len(sizes))])
    found = feature_statistics(ob.federate(sets))
    x, _ = pooled(sets)
    np.testing.assert_allclose(found.mean[[0, 2]], x[:, [0, 2]].mean(0), rtol=1e-4)
    np.testing.assert_allclose(found.std[0], x[:, 0].std(), rtol=1e-3, atol=1e-4)


def test_a_feature_that_nobody_has():
    x = torch.full((3, 2), float("nan"))
    x[:, 0] = 1.0
    found = feature_statistics(ob.federate([x, x]))
    assert found.missing.tolist() == [0.0, 1.0]
    assert np.isnan(found.mean[1])


def test_rounding_is_to_three_significant_digits_and_changes_little():
    exact, coarse = (feature_statistics(ob.federate(clients()), rounded=rounded) for rounded in (False, True))
    assert not np.array_equal(exact.mean, coarse.mean)
    np.testing.assert_allclose(coarse.mean[0], exact.mean[0], rtol=5e-3)
    np.testing.assert_allclose(coarse.std[0], exact.std[0], rtol=5e-3)


def test_labels_stay_where_they_are_to_stay():
    assert len(feature_statistics(ob.federate(clients()), labels=False).labels) == 0


def test_few_samples_are_not_told_of():
    """One sample has the second feature, one lies far away in the first, one has label 2."""
    x = torch.tensor([[1.0, torch.nan]] * 40 + [[2.0, torch.nan]] * 40 + [[50.0, 7.0]])
    data = ob.federate([ob.Dataset(x, torch.tensor([0] * 40 + [1] * 40 + [2]), 3)])
    for least, told in ((1, True), (4, False)):
        found = feature_statistics(data, least=least)
        assert (found.present[1] > 0) == told
        assert (found.labels[2] > 0) == told
        assert (found.histogram[0, -1] > 0) == told
        assert found.histogram[0].sum() == pytest.approx(1.0)
        assert (found.mean[0] == pytest.approx(float(x[:, 0].mean()))) == told
    assert np.isnan(found.mean[1])
    assert found.mean[0] == pytest.approx((40 + 41 * 2) / 81)


QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)


@pytest.mark.parametrize("sizes", [(5, 7, 6), (10, 12, 9), (37, 37, 37), (300, 37, 60)])
def test_quantiles_are_within_what_they_are_told_to_be_wrong_by_or_are_not_told(sizes):
    """Once the cells of small sites were all too small to tell of, and the quantiles one value."""
    sets = clients(sizes=sizes, apart=(0.0, 0.3, 1.0))
    found = feature_statistics(ob.federate(sets), rounded=True, least=4)
    x, _ = pooled(sets)
    values = np.array([found.quantile(q) for q in QUANTILES])
    for q, told in zip(QUANTILES, values, strict=True):
        (low, high), truth = found.quantile_range(q), np.nanquantile(x, q, 0)
        assert (low <= truth).all()
        assert (truth <= high).all()
        known = ~np.isnan(told)
        assert (known == np.isfinite([low, high]).all(0)).all()
        assert (np.abs(told - truth)[known] <= found.resolution(q)[known]).all()
    gaps = np.diff(values[:, :2], axis=0)
    assert (gaps[~np.isnan(gaps)] > 0).all()
    if sizes == (37, 37, 37):
        assert np.isnan(values[:, :2]).any(1).tolist() == [True, False, False, False, True]
        assert found.untold(QUANTILES).startswith(
            "not told, of 3 features: q5 of 3, q95 of 3: there the sites"
        )
        assert (found.resolution(0.5)[:2] < found.std[:2]).all()


def test_all_quantiles_of_large_clients_are_told():
    found = feature_statistics(ob.federate(clients(sizes=(900, 900, 900))), least=4)
    assert found.untold(QUANTILES) == ""
    assert (found.resolution(0.5)[:2] < 0.2 * found.std[:2]).all()


def test_what_has_no_features_is_refused():
    texts = ob.federate([ob.Dataset(torch.zeros(3, 4, dtype=torch.int64))])
    with pytest.raises(UsageError, match="statistics are of features that are numbers"):
        feature_statistics(texts)
    with pytest.raises(UsageError, match=r"need the number of features: give data\.sample_shape"):
        StatisticsLearner(without_clients())


def test_another_model_is_none_of_statistics():
    with pytest.raises(UsageError, match="the run has trained another one"):
        FeatureStatistics.of({"weight": np.zeros((2, 3))}, 1)
    empty = StatisticsLearner(without_clients(), 3).initial(0).arrays()
    with pytest.raises(UsageError, match="not complete"):
        FeatureStatistics.of(empty, 1)


@pytest.mark.parametrize("value", [np.inf, -1e30])
def test_a_value_that_statistics_cannot_take_is_refused_with_its_client_and_column(value):
    sets = clients()
    x = sets[1].x.clone()
    x[5, 1] = value
    names = {"x": ("age", "dose", "bp")}
    sets[1] = ob.Dataset(x, sets[1].y, 3, names)
    told = rf"has {value:g} in column 'dose', and statistics are of numbers up to 1e\+18".replace(
        "e+3", r"e\+3"
    )
    with pytest.raises(UsageError, match=rf"^client 'south': sample 5 of the client's dataset {told}"):
        feature_statistics(ob.federate(dict(zip(("north", "south", "west"), sets, strict=True))))
    site = Site.of(sets[1])
    spec = run_spec(ob.fedavg(epochs=1), StatisticsLearner(without_clients(columns=names["x"]), 3, 3), 0)
    with pytest.raises(DataError, match=rf"^the data of this site do not fit the run: sample 5 .*{told}"):
        site.make_learner(spec, 1)

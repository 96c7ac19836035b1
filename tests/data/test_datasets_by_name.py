import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.data import DATASETS, data_root, load
from offbeat.data.subsample import Subsample, fixed_permutation


@pytest.mark.parametrize(
    ("name", "meant"),
    [("mnits", "mnist"), ("Fashion-MNIST", "fashion_mnist"), ("heart disease", "heart_disease")],
)
def test_unknown_name_suggests(name, meant):
    with pytest.raises(UsageError, match=f'did you mean "{meant}"') as caught:
        load(name)
    assert "\n" not in str(caught.value)


def test_unknown_name_without_a_near_one():
    with pytest.raises(UsageError, match="is unknown; known: cifar10"):
        load("qqqqqq")
    assert list(DATASETS) == sorted(DATASETS)
    assert {"cifar100", "digits", "fed_ixi", "hapt", "mnist", "sst2"} < set(DATASETS)


def test_data_root(monkeypatch, tmp_path):
    monkeypatch.setenv("OFFBEAT_DATA", str(tmp_path))
    assert data_root() == tmp_path
    assert data_root(tmp_path / "other") == tmp_path / "other"
    monkeypatch.setenv("OFFBEAT_DATA", "")
    assert data_root().parts[-2:] == (".cache", "offbeat")
    with pytest.raises(UsageError, match=str(tmp_path / "empty")):
        load("mnist", root=tmp_path / "empty")


def test_more_samples_than_there_are():
    pytest.importorskip("sklearn")
    with pytest.raises(UsageError, match="samples 1438: the dataset has 1437"):
        load("digits", samples=1438)
    with pytest.raises(UsageError, match="test_samples 361: the dataset has 360"):
        load("digits", test_samples=361)


@pytest.mark.parametrize(
    ("pick", "message"),
    [({"samples": 0}, "samples 0"), ({"test_samples": -1}, "test_samples -1"), ({"seed": -1}, "seed -1")],
)
def test_wrong_picks(pick, message):
    with pytest.raises(UsageError, match=message):
        Subsample(**pick)


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 2**64 - 1))
def test_picks_are_distinct_nested_and_repeatable(n, k, seed):
    k = min(n, k)
    rows = Subsample(samples=k, seed=seed).train(n)
    assert len(set(rows.tolist())) == k
    assert (np.diff(rows) > 0).all()
    assert rows.min() >= 0
    assert rows.max() < n
    assert (rows == Subsample(samples=k, seed=seed).train(n)).all()
    assert set(rows) <= set(Subsample(samples=n, seed=seed).train(n))


def test_pick_depends_on_seed_and_stream():
    a, b = Subsample(50, 50, seed=0), Subsample(50, 50, seed=1)
    assert a.train(1000).tolist() != b.train(1000).tolist()
    assert a.train(1000).tolist() != a.test(1000).tolist()


def test_fixed_permutation_is_fixed():
    # Philox words are promised for ever by numpy; these came out of the first release.
    assert fixed_permutation(8, 1, 2).tolist() == [4, 2, 0, 6, 1, 5, 7, 3]

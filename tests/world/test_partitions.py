import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from offbeat.core.errors import UsageError
from offbeat.data import Dataset, federate
from offbeat.world.partitions import (
    ClassPartition,
    DualDirichlet,
    Iid,
    LabelDirichlet,
    Natural,
    Partition,
    Shards,
    describe,
)
from tests.sampling import examples

PARTITIONS = TypeAdapter(Partition)
KINDS = [
    Iid(),
    Shards(),
    ClassPartition(min_classes=1, max_classes=3),
    DualDirichlet(alpha2=5.0),
    LabelDirichlet(alpha=2.0, min_size=2),
]


def balanced(classes: int, each: int) -> np.ndarray:
    return np.repeat(np.arange(classes, dtype=np.int64), each)


def histogram(labels: np.ndarray, parts: list[np.ndarray]) -> np.ndarray:
    """Samples of each class, [clients, classes]."""
    return np.array([np.bincount(labels[part], minlength=labels.max() + 1) for part in parts])


@pytest.mark.parametrize("partition", KINDS, ids=lambda p: p.kind)
@examples(25)
@given(data=st.data())
def test_every_partition_is_a_partition(partition, data):
    clients = data.draw(st.integers(3, 8))
    sizes = data.draw(st.lists(st.integers(30, 60), min_size=3, max_size=5))
    seed = data.draw(st.integers(0, 2**32))
    labels = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    parts = partition.split(labels, clients, np.random.default_rng(seed))
    assert len(parts) == clients
    used = np.concatenate(parts)
    assert used.dtype == np.int64
    assert len(np.unique(used)) == len(used) <= len(labels)
    assert 0 <= used.min() <= used.max() < len(labels)
    assert all(len(part) >= 1 and (np.diff(part) > 0).all() for part in parts)
    again = partition.split(labels, clients, np.random.default_rng(seed))
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))


@pytest.mark.parametrize("partition", KINDS, ids=lambda p: p.kind)
def test_another_seed_is_another_partition(partition):
    labels = balanced(4, 50)
    a, b = (partition.split(labels, 5, np.random.default_rng(seed)) for seed in (0, 1))
    assert any(not np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_iid_sizes_differ_by_at_most_one():
    parts = Iid().split(balanced(2, 11), 4, np.random.default_rng(0))
    assert sorted(map(len, parts)) == [5, 5, 6, 6]


@pytest.mark.parametrize("each", [1, 2, 3])
def test_shards_give_at_most_two_labels_a_shard(each):
    labels = np.random.default_rng(1).permutation(balanced(10, 100))
    parts = Shards(shards_per_client=each).split(labels, 15, np.random.default_rng(2))
    # 15 x each shards of 1000 samples are smaller than a class, so a shard touches two labels at most.
    assert (histogram(labels, parts) > 0).sum(axis=1).max() <= 2 * each
    assert sum(map(len, parts)) == 1000


def test_shards_that_divide_the_classes_hold_one_label_each():
    labels = np.tile(np.arange(10), 60)  # 10 clients x 2 shards of 30 = half a class each
    counts = histogram(labels, Shards().split(labels, 10, np.random.default_rng(0)))
    assert set(counts.ravel()) <= {0, 30, 60}
    assert (counts.sum(axis=1) == 60).all()
    assert (counts.sum(axis=0) == 60).all()


def test_class_partition_of_the_paper():
    labels = balanced(10, 600)
    for seed in range(20):
        counts = histogram(labels, ClassPartition().split(labels, 10, np.random.default_rng(seed)))
        owned = (counts > 0).sum(axis=1)
        assert owned.min() >= 3
        assert owned.max() <= 5
        owners = (counts > 0).sum(axis=0)
        assert owners.min() >= 1
        # Rounding down leaves less than one sample per owner.
        assert ((600 - owners < counts.sum(axis=0)) & (counts.sum(axis=0) <= 600)).all()


def test_class_partition_reaches_both_ends_of_its_range():
    labels = balanced(10, 600)
    owned = [
        (histogram(labels, ClassPartition().split(labels, 10, np.random.default_rng(seed))) > 0).sum(axis=1)
        for seed in range(5)
    ]
    assert set(np.concatenate(owned)) == {3, 4, 5}


def test_class_partition_without_spread_shares_evenly():
    labels = balanced(2, 90)
    partition = ClassPartition(min_classes=2, max_classes=2, std=0.0)
    assert histogram(labels, partition.split(labels, 3, np.random.default_rng(0))).tolist() == [[30, 30]] * 3


def test_class_partition_amounts_are_never_negative():
    labels = balanced(4, 200)
    partition = ClassPartition(min_classes=4, max_classes=4, mean=1.0, std=5.0)
    for seed in range(20):
        counts = histogram(labels, partition.split(labels, 4, np.random.default_rng(seed)))
        assert (counts.sum(axis=0) > 196).all()


@pytest.mark.parametrize(
    ("partition", "clients", "message"),
    [
        (ClassPartition(), 2, "max_classes 5: the samples have 4 classes"),
        (ClassPartition(min_classes=1, max_classes=1), 3, "3 clients cannot cover 4 classes"),
        (Shards(shards_per_client=20), 3, "3 clients need 60 shards, more than the 40 samples"),
        (Iid(), 41, "clients 41: partition 'iid' gives every client 1 or more of the 40 samples"),
        (LabelDirichlet(), 5, "enough for 4; use fewer clients"),
        (Iid(), 0, "clients 0: must be at least 1"),
        (
            DualDirichlet(min_size=13),
            3,
            r"partition 'dual_dirichlet' left client \d of 3 .*1000 draws.*larger alpha",
        ),
        (DualDirichlet(alpha2=1e-9), 30, r"left client \d+ of 30 empty"),
        (
            # Whole classes of 10 go to one client: 40 samples in tens never give three clients 13.
            LabelDirichlet(alpha=1e-6, min_size=13),
            3,
            r"partition 'label_dirichlet' left client \d of 3",
        ),
    ],
)
def test_what_cannot_be_done_is_said(partition, clients, message):
    with pytest.raises(UsageError, match=message) as caught:
        partition.split(balanced(4, 10), clients, np.random.default_rng(0))
    assert "\n" not in str(caught.value)


def test_labels_must_be_a_row_of_integers():
    for labels in (np.zeros(4), np.zeros((2, 2), dtype=np.int64)):
        with pytest.raises(UsageError, match="1-D array of integers"):
            Iid().split(labels, 2, np.random.default_rng(0))


def test_dual_dirichlet_gives_out_every_class_once():
    labels = np.repeat(np.arange(10), np.arange(400, 500, 10))
    sizes = np.bincount(labels)
    for seed in range(20):
        counts = histogram(labels, DualDirichlet().split(labels, 10, np.random.default_rng(seed)))
        assert ((sizes - 10 < counts.sum(axis=0)) & (counts.sum(axis=0) <= sizes)).all()
        assert counts.sum(axis=1).min() >= 1


@pytest.mark.parametrize("sizes", [[100, 100, 100], [180, 90, 30]])
def test_dual_dirichlet_against_the_formula(sizes):
    labels, m = np.repeat(np.arange(3), sizes), 4
    rng = np.random.default_rng(5)
    prior = np.array([6.0 * size / 300 for size in sizes])
    w, v = rng.dirichlet(np.ones(m)), rng.dirichlet(prior, size=m)
    expected = [
        [int(w[i] * v[i, c] * sizes[c] / sum(w[j] * v[j, c] for j in range(m))) for c in range(3)]
        for i in range(m)
    ]
    counts = histogram(labels, DualDirichlet(alpha2=6.0).split(labels, m, np.random.default_rng(5)))
    assert counts.tolist() == expected


def test_dual_dirichlet_large_alphas_approach_the_priors():
    labels = np.repeat(np.arange(3), [3000, 2000, 1000])
    parts = DualDirichlet(alpha1=1e7, alpha2=1e7).split(labels, 5, np.random.default_rng(0))
    counts = histogram(labels, parts)
    shares = counts / counts.sum(axis=1, keepdims=True)
    assert np.allclose(shares, [1 / 2, 1 / 3, 1 / 6], atol=0.01)
    assert np.allclose(counts.sum(axis=1), 1200, rtol=0.02)


def test_dual_dirichlet_small_alpha2_gives_few_classes():
    labels = balanced(10, 600)
    counts = histogram(labels, DualDirichlet().split(labels, 10, np.random.default_rng(0)))
    top_two = np.sort(counts, axis=1)[:, -2:].sum(axis=1) / counts.sum(axis=1)
    assert np.median(top_two) > 0.6


def test_label_dirichlet_uses_every_sample_and_its_min_size():
    labels = balanced(10, 100)
    for seed in range(20):
        parts = LabelDirichlet(alpha=0.5).split(labels, 10, np.random.default_rng(seed))
        assert sum(map(len, parts)) == 1000
        assert min(map(len, parts)) >= 10


def test_label_dirichlet_large_alpha_is_iid():
    labels = balanced(4, 1000)
    counts = histogram(labels, LabelDirichlet(alpha=1e7).split(labels, 5, np.random.default_rng(0)))
    assert np.allclose(counts, 200, atol=3)


def test_classes_that_do_not_occur_are_no_class():
    labels = np.repeat([2, 7], 50)
    for partition in (
        DualDirichlet(alpha2=50.0),
        LabelDirichlet(alpha=5.0),
        ClassPartition(min_classes=1, max_classes=2),
    ):
        assert len(partition.split(labels, 3, np.random.default_rng(0))) == 3


def test_natural():
    groups = np.array([3, 1, 3, 1, 8])
    parts = Natural().split(np.zeros(5, dtype=np.int64), 3, np.random.default_rng(0), groups)
    assert [part.tolist() for part in parts] == [[1, 3], [0, 2], [4]]


@pytest.mark.parametrize(
    ("clients", "groups", "message"),
    [
        (2, None, "no natural groups"),
        (3, np.array([0, 0, 1, 1]), "clients 3: .* have 2 groups; set clients to 2"),
        (1, np.array([0]), "1 group numbers for 4 samples"),
    ],
)
def test_natural_refuses(clients, groups, message):
    with pytest.raises(UsageError, match=message):
        Natural().split(np.zeros(4, dtype=np.int64), clients, np.random.default_rng(0), groups)


def test_partitions_from_plain_data():
    assert PARTITIONS.validate_python({"kind": "class", "max_classes": 6}) == ClassPartition(max_classes=6)
    assert PARTITIONS.validate_python({"kind": "dual_dirichlet"}) == DualDirichlet(alpha1=None, alpha2=0.5)
    for wrong in (
        {"kind": "sharded"},
        {"kind": "shards", "shards_per_client": 0},
        {"kind": "shards", "shards": 2},
        {"kind": "class", "min_classes": 6},
        {"kind": "class", "mean": 0},
        {"kind": "dual_dirichlet", "alpha2": -1},
        {"kind": "label_dirichlet", "alpha": float("inf")},
    ):
        with pytest.raises(ValidationError):
            PARTITIONS.validate_python(wrong)


def test_describe():
    train = Dataset(torch.zeros(7, 1), torch.tensor([0, 0, 1, 1, 2, 2, 2]), 3)
    data = federate(train, train, [np.array([0, 2]), np.array([1]), np.array([4, 5, 6])])
    assert describe(data).splitlines() == [
        "3 clients, 6 of 7 samples used; per client: smallest 1, median 2, largest 3",
        "client  samples  0  1  2",
        "     0        2  1  1  0",
        "     1        1  1  0  0",
        "     2        3  0  0  3",
    ]
    assert describe(data, limit=1).splitlines()[-1] == "... and 2 more clients"


@pytest.mark.thorough
def test_a_hundred_thousand_clients():
    labels = np.random.default_rng(0).integers(0, 10, size=200_000)
    for partition in (Iid(), Shards()):
        assert len(partition.split(labels, 100_000, np.random.default_rng(0))) == 100_000

"""Datasets of Hugging Face: splits, labels, streams. The library is optional: stand-ins have what is used."""

import logging
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.errors import RunError, UsageError
from offbeat.data import as_samples, federate, own_data

X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)
Y = [0, 1] * 6
PARTS = [range(6), range(6, 12)]


class Split:
    """What `datasets.Dataset` offers of that which is used here."""

    def __init__(
        self, columns: Mapping[str, Sequence[Any]], kind: str | None = None, classes: int = 2
    ) -> None:
        self._columns, self.format, self._classes = dict(columns), {"type": kind}, classes
        self.features = {name: SimpleNamespace() for name in columns}
        if classes:
            self.features["label"] = SimpleNamespace(num_classes=classes)

    @property
    def column_names(self) -> list[str]:
        return list(self._columns)

    def with_format(self, kind: str | None) -> "Split":
        return Split(self._columns, kind, self._classes)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, key: int | str) -> Any:
        if isinstance(key, str):
            return self._columns[key]
        row = {name: values[key] for name, values in self._columns.items()}
        if self.format["type"] != "torch":
            return row
        known = (list, float, int)
        return {name: torch.tensor(own) if isinstance(own, known) else own for name, own in row.items()}


class SplitDict(dict[str, Any]):
    """`datasets.DatasetDict`."""


class Stream:
    """What `datasets.IterableDataset` offers: no length."""

    column_names = ("x", "label")

    def with_format(self, kind: str | None) -> "Stream":
        raise NotImplementedError(kind)


def split(**columns: Any) -> Split:
    return Split({"x": X.tolist(), "label": Y} | columns)


def trained(data: ob.FederatedData) -> ob.Run:
    learner = ob.TorchLearner(nn.Linear(3, 2), data, ob.Training(batch_size=3))
    return ob.simulate(ob.fedavg(steps=2), learner=learner, until=ob.Until(versions=2), evaluate=None)


def test_a_split_with_its_label_is_pairs_with_classes() -> None:
    data = federate(split(), None, PARTS, label="label")
    x, y = data.train.gather(torch.tensor([1, 4]))
    assert torch.equal(x, torch.from_numpy(X[[1, 4]]))
    assert y.tolist() == [1, 0]
    assert data.label_counts(0) == [3, 3]
    assert trained(data).summary.versions == 2


def test_several_columns_are_inputs_by_name() -> None:
    (x, y) = as_samples(split(age=[1.0] * 12), label="label").gather(torch.tensor([0]))
    assert (list(x), y.tolist()) == (["x", "age"], [0])
    assert list(as_samples(split()).gather(torch.tensor([0]))) == ["x", "label"]


def test_splits_by_name_are_trained_and_tested_on(caplog: pytest.LogCaptureFixture) -> None:
    splits = SplitDict(train=split(), test=split(), validation=split())
    with caplog.at_level(logging.WARNING):
        data = federate(splits, None, PARTS, label="label")
    assert data.test is not None
    assert "of the splits train, test, validation only train and test are used" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        own = own_data(splits, label="label")
    assert own.held_out is not None
    assert (own.samples(0), own.held_out.count(0)) == (12, 12)
    assert "only train and validation are used" in caplog.text
    assert federate(SplitDict(train=split()), (X, np.array(Y)), PARTS, label="label").test is not None


def test_a_plain_mapping_of_splits_is_one_for_each_client() -> None:
    data = federate({"north": split(), "south": split()}, label="label")
    assert [data.samples(client) for client in range(2)] == [12, 12]
    assert federate([split(), split()], label="label").clients == 2


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (lambda: federate(split(), label="label"), "a Split without parts: give one array"),
        (lambda: federate(SplitDict(train=split()), label="label"), "a Split without parts"),
        (
            lambda: federate(SplitDict(north=split(), south=split()), label="label"),
            r"has the splits north, south, and no train: .* data\['north'\], or dict\(data\) where each",
        ),
        (lambda: own_data(SplitDict(test=split())), "has the splits test, and no train"),
        (lambda: as_samples(SplitDict(train=split())), r"has the splits train: give one of them"),
        (
            lambda: federate(Stream(), None, PARTS, label="label"),
            "a Stream is a stream, .* without streaming",
        ),
        (lambda: federate({"train": Stream()}, label="label"), "client 'train': a Stream is a stream"),
        (lambda: as_samples(SplitDict(train=Stream())), "a SplitDict is a stream"),
        (lambda: as_samples(split(), label="lable"), "label = 'lable' is no column; did you mean \"label\""),
        (lambda: as_samples(Split({"label": Y}), label="label"), "the only column"),
        (lambda: as_samples(split(label=[None, *Y[1:]]), label="label"), "1 value is missing, in sample 0"),
        (lambda: as_samples(split(label=["a"] * 12), label="label"), "column 'label' is a list of text"),
        (lambda: as_samples(split(label=[-1] * 12), label="label"), "has the label -1, .* unknown"),
    ],
)
def test_what_is_no_split_with_samples_is_told_what_to_do(given: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told) as caught:
        given()
    assert "\n" not in str(caught.value)


def test_inputs_that_are_missing_or_text_are_told_of() -> None:
    data = federate(split(x=[None, *X.tolist()[1:]]), None, [range(12)], label="label")
    with pytest.raises(
        RunError, match=r"^client 0: sample 0 of the train set cannot be read: a value is miss"
    ):
        trained(data)
    data = federate(split(x=["a text"] * 12), None, [range(12)], label="label")
    with pytest.raises(UsageError, match="encode text as numbers"):
        trained(data)
    with pytest.raises(UsageError, match="of a Hugging Face dataset name the targets by label"):
        trained(federate(split(), None, [range(12)]))


def test_the_library_itself() -> None:
    library = pytest.importorskip("datasets")
    features = library.Features(
        {"x": library.Sequence(library.Value("float32"), length=3), "label": library.ClassLabel(2)}
    )
    real = library.Dataset.from_dict({"x": X.tolist(), "label": Y}, features=features)
    splits = library.DatasetDict(train=real, test=real)
    data = federate(splits, None, PARTS, label="label")
    assert data.label_counts(0) == [3, 3]
    assert trained(data).summary.versions == 2
    with pytest.raises(UsageError, match="is a stream"):
        federate(real.to_iterable_dataset(), None, PARTS, label="label")

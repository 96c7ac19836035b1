"""Datasets of Hugging Face's library `datasets`: splits, and rows as pairs of input and label.

They are known by what they offer, so that the library need not be installed.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.data.columns import as_tensor
from offbeat.data.dataset import MapDataset

log = logging.getLogger(__name__)


def is_split(data: Any) -> bool:
    """Whether it is a dataset, which is one split; one that is a stream has no length and is none."""
    if isinstance(data, Mapping) or not hasattr(data, "__len__"):
        return False
    return hasattr(data, "with_format") and hasattr(data, "column_names")


def is_stream(data: Any) -> bool:
    """Whether it is a dataset without a length, or a mapping of such."""
    if isinstance(data, Mapping):
        return len(data) > 0 and all(map(is_stream, data.values()))
    return hasattr(data, "with_format") and hasattr(data, "column_names") and not is_split(data)


def is_split_dict(data: Any) -> bool:
    """Whether it is a DatasetDict: splits by name."""
    return isinstance(data, Mapping) and len(data) > 0 and all(is_split(own) for own in data.values())


def train_and(splits: Mapping[str, Any], other: str | None) -> tuple[Any, Any]:
    """The split "train", and another one where there is one; the log names those that are not used.

    Args:
        splits: Splits by name.
        other: Name of the other one. None means that it is not wanted.

    Raises:
        UsageError: There is no split "train".
    """
    if "train" not in splits:
        raise UsageError(
            f"a {type(splits).__name__} has the splits {', '.join(splits)}, and no train: give one of them, "
            f"such as data[{next(iter(splits))!r}], or dict(data) where each is a client's"
        )
    used = ["train"] if other is None or other not in splits else ["train", other]
    if len(used) < len(splits):
        log.warning("of the splits %s only %s used", ", ".join(splits), _are(used))
    return splits["train"], splits[used[1]] if used[1:] else None


def _are(names: Sequence[str]) -> str:
    return f"{names[0]} is" if len(names) == 1 else f"{' and '.join(names)} are"


def as_map_dataset(data: Any, label: str | None = None) -> MapDataset:
    """A split as samples; rows without a format are read as tensors.

    Args:
        data: The split.
        label: The column of the targets: a batch is then (x, y), with x the other column, or a mapping of
            several. None means that a batch is a mapping of all columns.

    Raises:
        UsageError: There is no such column, or its values are missing or no numbers.
    """
    # Without a format, rows are lists of Python's numbers.
    read = data.with_format("torch") if data.format["type"] is None else data
    if label is None:
        return MapDataset(read)
    names = list(data.column_names)
    if label not in names:
        raise UsageError(
            f"label = {label!r} is no column{did_you_mean(label, names)}: there are {', '.join(names)}"
        )
    if len(names) < 2:
        raise UsageError(f"label = {label!r} is the only column: give one of inputs too")
    targets = as_tensor(f"column {label!r}", list(data.with_format(None)[label]))
    classes = getattr(data.features[label], "num_classes", None) if hasattr(data, "features") else None
    if classes is None or targets.is_floating_point() or targets.dim() != 1:
        return MapDataset(LabelledRows(read, label))
    if len(targets) and int(targets.min()) < 0:
        raise UsageError(
            f"column {label!r} has the label {int(targets.min())}, which stands for an unknown one in "
            "Hugging Face's datasets: leave these samples out, or take a split with labels"
        )
    return MapDataset(LabelledRows(read, label), labels=targets, classes=int(classes))


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """The rows of a split as pairs (x, y)."""

    dataset: Any
    label: str

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[Any, Any]:
        return self._pair(self.dataset[row])

    def __getitems__(self, rows: Sequence[int]) -> list[tuple[Any, Any]]:
        read = getattr(self.dataset, "__getitems__", None)
        return [self._pair(row) for row in (read(rows) if read else [self.dataset[i] for i in rows])]

    def _pair(self, row: Mapping[str, Any]) -> tuple[Any, Any]:
        x = {name: value for name, value in row.items() if name != self.label}
        return (next(iter(x.values())) if len(x) == 1 else x), row[self.label]

"""The types of the columns of a run's database, checked on reading: another program may have written it."""

import json
from collections.abc import Iterable
from math import inf, isfinite
from typing import Annotated, Any, Required, TypedDict

from msgspec import DecodeError, Meta, Struct, ValidationError, convert
from msgspec.json import Decoder, decode

from offbeat.core.journal import LINE, Row
from offbeat.core.metric_names import numbers, problem_of_name
from offbeat.runs.schema import ClientMetric, Metric

MOST_CLIENTS = 2**20
"""Clients that a run may have whatever its table `clients` says; there can be more where that has them."""
_DEEPEST = 60  # levels of what is recorded as JSON in the table meta
Label = Annotated[str, Meta(max_length=1000)]
Text = Annotated[str, Meta(max_length=10_000)]
Name = Annotated[str, Meta(max_length=500)]
Count = Annotated[int, Meta(ge=0)]
Found = dict[Name, float | None]
"""Metrics by name."""


class _JournalColumns(Struct, array_like=True, forbid_unknown_fields=True, gc=False):
    """The columns of a journal row. A struct's types are read once, those of a tuple in each conversion."""

    seq: Count
    t: float
    kind: Name
    name: Name
    client: Count | None
    task: Count | None
    base: Count | None
    version: Count | None
    staleness: Count | None
    steps: Count | None
    data: str | None


class _MetricColumns(Struct, array_like=True, forbid_unknown_fields=True):
    """The columns of an evaluation."""

    seq: Count
    t: float
    version: Count
    tasks: Count
    bytes_up: Count
    bytes_down: Count
    loss: float | None
    accuracy: float | None
    data: str | None


class _ClientMetricColumns(Struct, array_like=True, forbid_unknown_fields=True):
    """The columns of what a client has measured."""

    evaluation: Count
    client: Count
    samples: Count
    data: str


class _ClientColumns(Struct, array_like=True, forbid_unknown_fields=True):
    """The columns of a client: labels are JSON."""

    client: Count
    samples: Count
    labels: str | None


class _SiteColumns(Struct, array_like=True, forbid_unknown_fields=True):
    """The columns of a site: labels are JSON."""

    name: Name
    client: Count
    labels: str | None


class _MetaColumns(Struct, array_like=True, forbid_unknown_fields=True):
    """The columns of an entry of the table meta: the value is JSON."""

    key: Name
    value: str


class _DescribedEntry(TypedDict, total=False):
    model: dict[str, Any]
    sample_shape: list[Count] | None
    classes: Count | None
    sample: tuple[Name, list[Count]] | None
    personal: list[Name]
    frozen: Name
    loss: Name
    step: Name
    columns: dict[Name, list[str]]


class _PrivateEntry(TypedDict):
    options: dict[str, Any]
    parameters: Count
    clients: Count


class _AlgorithmEntry(TypedDict):
    name: Name


class _RecordedEntry(TypedDict, total=False):
    label: Label
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)]
    clients: Count
    status: Name
    stop_reason: Text | None
    duration: Annotated[float, Meta(ge=0)]
    recipe: dict[str, Any] | None
    until: dict[str, Any]
    algorithm: _AlgorithmEntry
    offbeat: Name
    run: Name
    initial: Name
    model: Name
    batched: bool
    guard: dict[str, Any]
    processors: list[Name]
    client_names: list[Name]
    columns: dict[Name, list[str]]
    higher_is_better: dict[Name, bool]
    summary: dict[Name, float | Found | None]
    privacy: _PrivateEntry
    plan: _DescribedEntry
    sample: tuple[Name, list[Count]] | None
    learner: _DescribedEntry | None
    training: dict[str, Any]
    world: dict[str, Any]
    data: dict[str, Any]
    rejected: dict[Name, Count]
    warning: Text | None


class _ToldEntry(TypedDict):
    reason: Text


class _JoinedEntry(TypedDict, total=False):
    samples: Required[Count | list[Count]]
    steps_per_epoch: Required[Count | list[Count]]
    labels: list[Count | list[Count] | None]
    clients: Count


class _MeasuredEntry(TypedDict):
    capacities: list[tuple[Count, float]]
    symbols: float


class _TimerEntry(TypedDict):
    timer: Name


class _RolledBackEntry(TypedDict):
    to: Count
    reason: Text


class _CommitteeEntry(TypedDict):
    epoch: Count
    run: Name
    helpers: list[tuple[Name, Name, Name]]


class _TrainEntry(TypedDict, total=False):
    ask_after: Count
    lr_factor: float
    hold: bool


class _AggregatedEntry(TypedDict):
    tasks: list[Count]
    clients: list[Count]


_DATA: dict[str, Any] = {
    "ready": Found,
    "arrived": Found,
    "joined": _JoinedEntry,
    "measured": _MeasuredEntry,
    "timer": _TimerEntry,
    "lost": _ToldEntry,
    "left": _ToldEntry,
    "skipped": _ToldEntry,
    "rolled_back": _RolledBackEntry,
    "committee": _CommitteeEntry,
    "train": _TrainEntry,
    "aggregate": _AggregatedEntry,
    "discard": _ToldEntry,
    "drop": _ToldEntry,
    "stop": _ToldEntry,
    "timer_set": _TimerEntry,
    "timer_cancelled": _TimerEntry,
}
"""The type of `data` in a journal row, by the row's name; `data` may have more keys."""

_DECODERS = {name: Decoder(kind) for name, kind in _DATA.items()}
_MAPPING = Decoder(dict[str, Any])


def journal_row(*columns: Any) -> Row:
    """Make a row from its columns, of which `data` is JSON. Raises `ValidationError` or `ValueError`."""
    read = convert(columns, _JournalColumns)
    if not isfinite(read.t):
        raise ValueError(f"t = {read.t} in journal row {read.seq}")
    data = _data(read) if read.data is not None or read.name in _DATA else None
    return Row(
        read.seq, read.t, read.kind, read.name, read.client, read.task, read.base, read.version,
        read.staleness, read.steps, data,
    )  # fmt: skip


def _data(row: _JournalColumns) -> dict[str, Any] | None:
    """The values of a row that are JSON, checked."""
    text = row.data or "{}"
    try:
        data: dict[str, Any] = _values(text, row.name)
        if row.name in ("arrived", "ready"):
            _check_names(data)
            _check_line(data, row.seq)
        if row.name == "aggregate" and "spent" in data:
            convert(data["spent"], float)
    except ValidationError as error:
        raise ValueError(f"{error} of the data of journal row {row.seq}, {row.name}") from None
    if row.name == "joined" and row.client is None:
        count = data.get("clients", 0)
        lists = [
            data[key] for key in ("samples", "steps_per_epoch", "labels") if isinstance(data.get(key), list)
        ]
        if not 0 < count <= row.seq + 1 or any(len(own) != count for own in lists):
            raise ValueError(
                f"journal row {row.seq} has {count} clients, and other numbers of what they have"
            )
    return data if row.data else None


def _check_line(data: dict[str, Any], seq: int) -> None:
    """Raises `ValueError` where parts of a task's time are no seconds: they are added up."""
    for name in LINE:
        value = data.get(name, 0.0)
        if value is None or not 0 <= value < inf:
            raise ValueError(f"{name} = {value} in journal row {seq}: seconds from 0 were expected")


def _values(text: str, name: str) -> Any:
    """The values of JSON, which have the types of a row's name."""
    try:
        values = decode(text)
    except DecodeError:
        # A learner's metrics may be infinite, which only Python's own reader takes.
        values = json.loads(text)
        convert(values, _DATA.get(name, dict[str, Any]))
    else:
        _DECODERS.get(name, _MAPPING).decode(text)
    return values


def metric_row(*columns: Any) -> Metric:
    """Make an evaluation from its columns; errors as of `journal_row`."""
    read = convert(columns, _MetricColumns)
    further = _found(read.data) if read.data else None
    if not isfinite(read.t):
        raise ValueError(f"t = {read.t} in evaluation {read.seq}")
    return Metric(
        read.seq, read.t, read.version, read.tasks, read.bytes_up, read.bytes_down, read.loss,
        read.accuracy, numbers(further) if further else None,
    )  # fmt: skip


def client_metric_row(*columns: Any) -> ClientMetric:
    """Make what a client has found from its columns; errors as of `journal_row`."""
    read = convert(columns, _ClientMetricColumns)
    return ClientMetric(read.evaluation, read.client, read.samples, _found(read.data))


def _found(data: str) -> dict[str, float | None]:
    """Metrics by name, of JSON."""
    found = convert(json.loads(data), Found)
    _check_names(found)
    return found


def _check_names(metrics: Iterable[str]) -> None:
    """Raises `ValueError` for a name that cannot be that of a metric."""
    for name in metrics:
        if (problem := problem_of_name(name)) is not None:
            raise ValueError(f"metric {name!r:.60}: {problem}")


def client_row(*columns: Any) -> tuple[int, int, str | None]:
    """Client, number of samples, and labels as JSON; errors as of `journal_row`."""
    read = convert(columns, _ClientColumns)
    return read.client, read.samples, read.labels


def site_row(*columns: Any) -> tuple[str, int, str | None]:
    """Name, client, and labels as JSON, of a site; errors as of `journal_row`."""
    read = convert(columns, _SiteColumns)
    return read.name, read.client, read.labels


def meta_entry(key: Any, value: Any) -> tuple[str, Any]:
    """An entry of the table meta; errors as of `journal_row`."""
    read = convert((key, value), _MetaColumns)
    entry = json.loads(read.value)
    check_depth(entry, f"the entry {read.key}")
    return read.key, entry


def check_meta(entries: dict[str, Any]) -> None:
    """Check the types of the entries of the table meta that are known; errors as of `journal_row`.

    Args:
        entries: The entries, as JSON has them.
    """
    try:
        convert(entries, _RecordedEntry)
    except ValidationError as error:
        raise ValueError(f"{error} of its table meta") from None
    for group in entries.get("summary", {}).values():
        _check_names(group if isinstance(group, dict) else ())
    if not isfinite(entries.get("duration", 0.0)):
        raise ValueError("duration is not finite in its table meta")


def check_depth(value: Any, what: str) -> None:
    """Raises `ValueError` for lists and mappings in each other, more levels than people write."""
    level, depth = [value], 0
    while level := [
        inner
        for own in level
        if isinstance(own, dict | list)
        for inner in (own.values() if isinstance(own, dict) else own)
    ]:
        depth += 1
        if depth > _DEEPEST:
            raise ValueError(f"{what} has lists and mappings in each other, {_DEEPEST} levels are allowed")

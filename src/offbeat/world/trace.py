"""Traces: recordings of clients' devices as CSV files, read into a world and written from one.

    client,seconds_per_step,up,down,from,until
    phone,0.5,1e6,8e6,0,3600
    phone,,,,7200,
    laptop,0.1,,,,

A row is a client and an interval of its presence. Columns are named as the fields of a `World`, in the same
units, and all but `client` may be left out. A blank cell takes its value from the client's other rows. Where
all are blank, a client is present from the start, or to the end; its transfers take no time; its `latency`,
`jitter` and `dropout` are 0. Blank lines and lines that begin with # are skipped.
"""

import csv
from bisect import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError

from offbeat.core.errors import UsageError, reason_of
from offbeat.core.types import NonNegative, Positive, Share
from offbeat.core.validation import did_you_mean, format_error
from offbeat.documents import read_text
from offbeat.world.availability import Interval, Probability
from offbeat.world.world import World

MOST_BYTES = 2**28
"""Most bytes of a trace."""
_FOREVER = float("inf")


class _Column(NamedTuple):
    """A column of numbers: its section of the world, the allowed range, and the meaning of a blank cell."""

    section: str | None
    allowed: Any
    blank: float | None = None


_NUMBERS = {
    # A client needs a value in at least one row.
    "seconds_per_step": _Column(None, Positive),
    "jitter": _Column(None, Share, 0.0),
    "up": _Column("network", Positive),
    "down": _Column("network", Positive),
    "latency": _Column("network", NonNegative, 0.0),
    "dropout": _Column("availability", Probability, 0.0),
}
_ALLOWED = {name: column.allowed for name, column in _NUMBERS.items()}
_ALLOWED |= {"from": NonNegative, "until": Positive}
_COLUMNS = ("client", *_ALLOWED)
_CHECKS: dict[str, Callable[[str], float]] = {
    name: TypeAdapter(allowed).validator.validate_python for name, allowed in _ALLOWED.items()
}
_WORLD: TypeAdapter[World] = TypeAdapter(World)


# ---- reading ----


def read_trace(path: str | Path) -> World:
    """Read the world of a trace.

    Clients that are whole numbers have these numbers, from 0 without a gap; clients with names are numbered
    in the order of their first rows.

    Raises:
        UsageError: The file cannot be read, or a cell is not allowed; names file, line and column.
    """
    return _WORLD.validate_python(trace_section(path))


def trace_section(path: str | Path) -> dict[str, Any]:
    """Read a trace as the section `world` of a recipe: the values of its columns, and `clients`."""
    try:
        text = read_text(Path(path), MOST_BYTES, encoding="utf-8-sig")
        columns, known = _read(StringIO(text, newline=""))
        clients = _in_order(known)
        section: dict[str, Any] = {"clients": len(clients)}
        for column in filter(_NUMBERS.__contains__, columns):
            part = _NUMBERS[column].section
            place = section if part is None else section.setdefault(part, {})
            place[column] = _values(column, clients)
        if {"from", "until"} & set(columns):
            joined = [_joined(client.presence) for client in clients]
            always = all(own == [(0.0, None)] for own in joined)
            section.setdefault("availability", {})["intervals"] = None if always else joined
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"trace {path} cannot be read: {reason_of(error)}") from None
    return section


@dataclass(slots=True)
class _TracedClient:
    """A client of a trace.

    Attributes:
        line: Line of its first row.
        numbers: Its numbers by column; without those whose cells are all blank.
        presence: Its intervals of presence in order.
    """

    line: int
    numbers: dict[str, float] = field(default_factory=dict)
    presence: list[tuple[float, float]] = field(default_factory=list)


def _read(lines: Iterable[str]) -> tuple[list[str], dict[str, _TracedClient]]:
    """Read the names of the columns, and the clients by name in the order of their first rows."""
    reader = csv.reader(("\n" if line.lstrip().startswith("#") else line for line in lines), strict=True)
    rows = filter(any, ([cell.strip() for cell in row] for row in reader))
    try:
        columns = _header(next(rows, []))
        clients = dict[str, _TracedClient]()
        for cells in rows:
            if len(cells) != len(columns):
                raise UsageError(
                    f"{len(cells)} cells for {len(columns)} columns: give one each, blank or not"
                )
            _add(dict(zip(columns, cells, strict=True)), clients, reader.line_num)
    except (UsageError, csv.Error) as error:
        raise UsageError(f"line {max(1, reader.line_num)}: {error}") from None
    return columns, clients


def _header(cells: list[str]) -> list[str]:
    for place, column in enumerate(cells):
        if column not in _COLUMNS:
            hint = did_you_mean(column, _COLUMNS)
            hint = "; columns are separated by commas" if {";", "\t"} & set(column) else hint
            raise UsageError(f"column {column!r} is unknown{hint}")
        if column in cells[:place]:
            raise UsageError(f"column {column} is there twice: give it once")
    if "client" not in cells:
        raise UsageError("column client is missing: the first row names the columns, such as client,up,down")
    return cells


def _add(cells: dict[str, str], clients: dict[str, _TracedClient], line: int) -> None:
    """Add a row. Raises `UsageError` where it is wrong, or contradicts the rows before it."""
    name = cells["client"]
    if name.isdecimal():
        name = name.lstrip("0") or "0"
    if name not in clients:
        _check_name(name, clients)
        clients[name] = _TracedClient(line)
    client = clients[name]
    for column in filter(cells.get, _NUMBERS):
        value = _number(column, cells[column])
        before = client.numbers.setdefault(column, value)
        if before != value:
            raise UsageError(
                f"{column} = {cells[column]} is not allowed: another row of client {name!r} says {before}, "
                f"and a client has one {column}"
            )
    begin, end = cells.get("from"), cells.get("until")
    begins = _number("from", begin) if begin else 0.0
    _add_interval(client.presence, name, begins, _number("until", end) if end else _FOREVER)


def _check_name(name: str, clients: dict[str, _TracedClient]) -> None:
    """Raises `UsageError` for a new client's name that is not allowed beside the others'."""
    if not name:
        raise UsageError("client is blank: give the client of every row")
    if not name.isdecimal() and _is_number(name):
        raise UsageError(f"client = {name!r} is not allowed: should be a whole number from 0, or a name")
    first = next(iter(clients), name)
    if name.isdecimal() != first.isdecimal():
        raise UsageError(
            f"client = {name!r} is not allowed beside client {first!r} of line {clients[first].line}: give "
            "all clients a number, or all a name"
        )


def _add_interval(intervals: list[tuple[float, float]], name: str, begin: float, end: float) -> None:
    if begin >= end:
        raise UsageError(f"until = {end} is not allowed: should be above from = {begin}")
    position = bisect(intervals, (begin, end))
    for other in intervals[max(0, position - 1) : position + 1]:
        if begin < other[1] and other[0] < end:
            raise UsageError(
                f"client {name!r} is present {_span(begin, end)}, and {_span(*other)} in another row: "
                "its intervals (from, until) must not overlap"
            )
    intervals.insert(position, (begin, end))


def _in_order(clients: dict[str, _TracedClient]) -> list[_TracedClient]:
    """The clients by their numbers; where they have names, in the order of their first rows."""
    if not clients:
        raise UsageError("there is no client: give a row for each")
    if not next(iter(clients)).isdecimal():
        return list(clients.values())
    numbers = [str(number) for number in range(len(clients))]
    missing = next((number for number in numbers if number not in clients), None)
    if missing is not None:
        raise UsageError(
            f"client {missing} is missing: {len(clients)} clients with numbers are 0 to {len(clients) - 1}; "
            "numbers that are only names need a letter, such as device-48213"
        )
    return [clients[number] for number in numbers]


def _values(column: str, clients: list[_TracedClient]) -> list[float | None] | float | None:
    """A column as a world has it; the default where all of it is blank."""
    blank = _NUMBERS[column].blank
    without = [client for client in clients if column not in client.numbers]
    if without and column == "seconds_per_step":
        raise UsageError(
            f"line {without[0].line}: seconds_per_step is blank in all rows of this client: give it, or "
            "leave out the column"
        )
    if len(without) == len(clients):
        return blank
    return [client.numbers.get(column, blank) for client in clients]


def _number(column: str, cell: str) -> float:
    # Python's own numbers may have underscores; a file with one has a slip.
    if "_" in cell:
        raise UsageError(f"{column} = {cell!r} is not allowed: should be a valid number")
    try:
        return _CHECKS[column](cell)
    except ValidationError as error:
        raise UsageError(f"{column}{format_error(error).removeprefix('value')}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _span(begin: float, end: float) -> str:
    return f"from {begin} until {'the end' if end == _FOREVER else end}"


def _joined(spans: list[tuple[float, float]]) -> list[Interval]:
    """Intervals in order, those that touch as one; None is the end."""
    joined: list[Interval] = []
    for begin, end in spans:
        if joined and joined[-1][1] == begin:
            begin = joined.pop()[0]
        joined.append((begin, None if end == _FOREVER else end))
    return joined


# ---- writing ----


def trace_text(world: World) -> str:
    """Write a world as the text of a trace. Raises `UsageError` for a world that has no trace."""
    clients = world.population(None)
    columns = {}
    for section, name, value in _given(world):
        values = value if isinstance(value, list) else [value] * clients
        if name not in _NUMBERS or not all(isinstance(one, float | None) for one in values):
            raise UsageError(
                f"world{section}.{name} cannot be written as a trace, which has one number of a client "
                f"for each of {', '.join(_NUMBERS)}, and intervals"
            )
        columns[name] = values
    intervals = world.availability.intervals
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["client", *columns, *(() if intervals is None else ("from", "until"))])
    for client in range(clients):
        numbers = [client, *(values[client] for values in columns.values())]
        if intervals is not None and not intervals[client]:
            raise UsageError(f"client {client} is never present: a trace has a row per interval of presence")
        writer.writerows(
            [*numbers, *interval] for interval in ([()] if intervals is None else intervals[client])
        )
    return text.getvalue()


def _given(world: World) -> Iterator[tuple[str, str, Any]]:
    """Section, name and value of all in a world that is not the default, without intervals."""
    apart, default = ("clients", "network", "availability", "intervals"), World().sections()
    for section, part in world.sections().items():
        for name in (f.name for f in fields(part)):
            value = getattr(part, name)
            if name not in apart and value != getattr(default[section], name):
                yield section, name, value

"""From answers to numbers: medians, ranges, ratios repeat by repeat, Markdown tables."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True)
class Spread:
    """A median with the smallest and the largest value."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """Median and range of at least one value."""
    return Spread(median(values), min(values), max(values))


def ratios(own: Mapping[int, float], base: Mapping[int, float]) -> Spread | None:
    """Own over base within each repeat that has both, then the median; none without such a repeat."""
    shared = [own[repeat] / base[repeat] for repeat in sorted(own) if repeat in base]
    return spread(shared) if shared else None


def times(row: Mapping[str, Any], unit: str, clock: str = "seconds") -> dict[int, float]:
    """Seconds (or `cpu` seconds) for each task or counted step, of the repeats that measured them."""
    return {
        int(repeat): answer[clock] / answer[unit]
        for repeat, answer in row["repeats"].items()
        if answer.get(clock) and answer[unit]
    }


def base_of(rows: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The bare loop in as many processes as the row has; in one where there is no other."""
    bare = {r["job"]["processes"]: r for r in rows if r["runner"] == "bare"}
    return bare.get(row["job"]["processes"], bare.get(1))


def short(value: float) -> str:
    """Three significant digits."""
    if value < 1:
        return f"{value:.3g}"
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def with_range(values: Spread | None) -> str:
    """2.00 (1.00–3.00)."""
    return "-" if values is None else f"{short(values.median)} ({short(values.low)}–{short(values.high)})"


def line(table: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """A row's line: time, ratios over the bare loop, accuracy, start-up, counted steps, version."""
    unit, base = table["unit"], base_of(table["rows"], row)
    shown = spread([value * table["shown"] / table["scale"] for value in times(row, unit).values()])
    over, over_cpu = (
        ratios(times(row, unit, clock), times(base, unit, clock)) if base is not None else None
        for clock in ("seconds", "cpu")
    )
    answers = [answer for answer in row["repeats"].values() if "unavailable" not in answer]
    right = [100 * answer["accuracy"] for answer in answers if answer["accuracy"] is not None]
    startup = median(answer["startup"] for answer in answers)
    cells = [
        row["name"],
        with_range(shown),
        with_range(over),
        short(over_cpu.median) if over_cpu else "",
        f"{median(right):.1f}" if right else "",
        f"{startup:.1f}" if startup else "",
        str(answers[0]["steps"] or ""),
        "" if row["runner"] == "bare" else answers[0]["version"],
    ]
    return f"| {' | '.join(cells)} |"


def missing(row: Mapping[str, Any]) -> str | None:
    """What a row has no answer to, and why."""
    reasons = [answer["unavailable"] for answer in row["repeats"].values() if "unavailable" in answer]
    if not reasons:
        return None
    measured = len(row["repeats"]) - len(reasons)
    what = f"measured {measured} times only" if measured else "not measured"
    return f"- {row['name']}: {what}. {reasons[0]}"


def markdown(table: Mapping[str, Any]) -> str:
    """One table, with what could not be measured under it."""
    head = [
        f"**{table['title']}**",
        "",
        f"| | {table['column']} | over bare | its CPU | accuracy (%) | start-up (s) | steps | version |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines = [line(table, row) for row in table["rows"] if times(row, table["unit"])]
    notes = [note for row in table["rows"] if (note := missing(row))]
    return "\n".join([*head, *lines, *([""] if notes else []), *notes])


def rates(table: Mapping[str, Any]) -> str:
    """What each simulator does in a processor second, and in a wall second on the cores that it can use.

    A processor second is of the row in one process, a wall second of the row that does most in it.
    """
    unit, groups = table["unit"], dict[str, list[Mapping[str, Any]]]()
    for row in table["rows"]:
        if times(row, unit):
            same = json.dumps([row["runner"], {**row["job"], "processes": None}], sort_keys=True)
            groups.setdefault(same, []).append(row)
    lines = [
        f"**{table['title']}: {unit} a second**",
        "",
        f"| | {unit} per processor second | {unit} per wall second | in processes |",
        "|---|---|---|---|",
    ]
    for rows in groups.values():
        cpu = [spread(own) for row in rows if (own := _rates(row, unit, "cpu"))]
        wall = {row["job"]["processes"]: spread(_rates(row, unit, "seconds")) for row in rows}
        processes = max(wall, key=lambda number: wall[number].median)
        told = with_range(cpu[0] if cpu else None), with_range(wall[processes])
        lines.append(f"| {' | '.join((rows[0]['name'], *told, str(processes)))} |")
    return "\n".join(lines)


def _rates(row: Mapping[str, Any], unit: str, clock: str) -> list[float]:
    return [1 / each for each in times(row, unit, clock).values()]


def has_peers(table: Mapping[str, Any]) -> bool:
    """Whether a peer has done the work of a table."""
    return any(row["runner"] not in ("bare", "ours") and times(row, table["unit"]) for row in table["rows"])


def report(results: Mapping[str, Any]) -> str:
    """Everything as Markdown: the machine, the tables, and beside peers what is done in a second."""
    machine = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    said = f"{machine}. Median (smallest–largest) of {results['repeats']} interleaved repeats."
    if results.get("rounds"):
        said += f" A first look with at most {results['rounds']} rounds: not for conclusions."
    tables = results["tables"]
    beside = [rates(table) for table in tables if has_peers(table)]
    return "\n\n".join([said, *(markdown(table) for table in tables), *beside])

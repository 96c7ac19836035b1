"""From answers to numbers: medians, ranges, ratios repeat by repeat, and Markdown tables. Nothing is measured here."""

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
    digits = 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:,.{digits}f}"


def with_range(values: Spread | None) -> str:
    """2.00 (1.00–3.00)."""
    return "-" if values is None else f"{short(values.median)} ({short(values.low)}–{short(values.high)})"


def markdown(table: Mapping[str, Any]) -> str:
    """One table: time, ratio over the bare loop, accuracy, start-up, counted steps, and what there is not."""
    lines = [
        f"**{table['title']}**\n",
        f"| | {table['column']} | over bare | CPU over bare | accuracy (%) | start-up (s) | steps | version |",
        "|---|---|---|---|---|---|---|---|",
    ]
    notes = []
    for row in table["rows"]:
        own = times(row, table["unit"])
        if not own:
            reasons = [answer["unavailable"] for answer in row["repeats"].values()]
            notes.append(f"- {row['name']}: not measured. {reasons[0] if reasons else 'It was left out.'}")
            continue
        base = base_of(table["rows"], row)
        shown = spread([value * table["shown"] / table["scale"] for value in own.values()])
        over, over_cpu = (
            ratios(times(row, table["unit"], clock), times(base, table["unit"], clock)) if base is not None else None
            for clock in ("seconds", "cpu")
        )
        answers = [row["repeats"][key] for key in row["repeats"] if "unavailable" not in row["repeats"][key]]
        right = [100 * a["accuracy"] for a in answers if a["accuracy"] is not None]
        startup = median(a["startup"] for a in answers)
        lines.append(
            f"| {row['name']} | {with_range(shown)} | {with_range(over)} "
            f"| {short(over_cpu.median) if over_cpu else ''} "
            f"| {f'{median(right):.1f}' if right else ''} | {f'{startup:.1f}' if startup else ''} "
            f"| {answers[0]['steps'] or ''} | {answers[0]['version'] if row['runner'] != 'bare' else ''} |"
        )
    return "\n".join([*lines, *([""] if notes else []), *notes])


def report(results: Mapping[str, Any]) -> str:
    """Everything as Markdown: the machine, then the tables."""
    machine = ", ".join(f"{key} {value}" for key, value in results["machine"].items())
    repeats = f"Median (smallest–largest) of {results['repeats']} interleaved repeats."
    return "\n\n".join([f"{machine}. {repeats}", *(markdown(table) for table in results["tables"])])

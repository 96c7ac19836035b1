"""The numbers of the speed benchmark: medians of ratios, and the tables that come of them."""

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.script_modules import load_script


def _load() -> ModuleType:
    path = Path(__file__).parents[2] / "benchmarks/speed/figures.py"
    return load_script(path, "speed_figures")


figures = _load()


def answer(seconds: float, steps: int = 100, **more: Any) -> dict[str, Any]:
    said = {"cpu": seconds, "startup": 0.0, "accuracy": None, "version": "1"}
    return {"seconds": seconds, "steps": steps, "tasks": 5, **said, **more}


def row(name: str, runner: str, repeats: list[dict[str, Any]], processes: int = 1) -> dict[str, Any]:
    numbered = {str(number): said for number, said in enumerate(repeats)}
    job = {"processes": processes, "algorithm": "fedavg", "executor": "local"}
    return {"name": name, "runner": runner, "job": job, "repeats": numbered}


def table(*rows: dict[str, Any]) -> dict[str, Any]:
    return {"title": "T", "unit": "steps", "shown": 100, "scale": 1.0, "column": "s", "rows": list(rows)}


def test_a_ratio_is_taken_within_each_repeat_before_the_median() -> None:
    # A slow machine in the last repeat: the ratio of the medians would be 1.5.
    spread = figures.ratios({0: 2.0, 1: 3.0, 2: 20.0}, {0: 1.0, 1: 1.0, 2: 10.0})
    assert (spread.median, spread.low, spread.high) == (2.0, 2.0, 3.0)


def test_ratios_use_only_repeats_that_both_have() -> None:
    assert figures.ratios({0: 2.0, 3: 9.0}, {0: 1.0, 1: 1.0}).high == 2.0
    assert figures.ratios({0: 2.0}, {1: 1.0}) is None


def test_time_is_for_the_work_that_was_counted() -> None:
    # Twice as many steps in twice the time is the same speed.
    line = figures.line(
        table(row("x", "ours", [answer(8.0, steps=400)])), row("x", "ours", [answer(8.0, 400)])
    )
    assert "| 2.00 (2.00–2.00) |" in line


def test_a_ratio_is_of_times_per_counted_step() -> None:
    # 103 steps in 1.03 times the bare loop's time are as fast as its 100.
    bare, ours = row("bare", "bare", [answer(4.0)]), row("ours", "ours", [answer(4.12, steps=103)])
    assert "| 4.00 (4.00–4.00) | 1.00 (1.00–1.00) | 1.00 |" in figures.line(table(bare, ours), ours)


def test_two_processes_are_compared_with_two() -> None:
    one, two = row("bare", "bare", [answer(4.0)]), row("bare 2", "bare", [answer(2.0)], processes=2)
    ours = row("ours", "ours", [answer(3.0)], processes=2)
    assert figures.base_of([one, two, ours], ours) is two
    assert figures.base_of([one, ours], ours) is one
    assert "| 1.50 (1.50–1.50) |" in figures.line(table(one, two, ours), ours)


def test_what_was_not_measured_is_said_and_not_shown() -> None:
    gone = row("Peer", "peer", [{"unavailable": "It is not installed."}])
    flaky = row("Flaky", "peer", [answer(1.0), {"unavailable": "It crashed."}])
    text = figures.markdown(table(row("bare", "bare", [answer(1.0)]), gone, flaky))
    assert "| Peer" not in text
    assert "- Peer: not measured. It is not installed." in text
    assert "| Flaky | 1.00" in text
    assert "- Flaky: measured 1 times only. It crashed." in text


def test_a_clock_that_did_not_run_gives_no_ratio() -> None:
    rows = [row("bare", "bare", [answer(1.0)]), row("ours", "ours", [answer(2.0, cpu=0.0)])]
    assert figures.times(rows[1], "steps", "cpu") == {}
    assert figures.line(table(*rows), rows[1]).startswith("| ours | 2.00 (2.00–2.00) | 2.00 (2.00–2.00) |  |")


@pytest.mark.parametrize(
    ("value", "text"), [(1234.5, "1,234"), (12.34, "12.3"), (1.234, "1.23"), (0.01234, "0.0123")]
)
def test_three_significant_digits(value: float, text: str) -> None:
    assert figures.short(value) == text


def test_a_first_look_says_so() -> None:
    results = {"machine": {"CPU": "x"}, "repeats": 1, "tables": []}
    assert "first look" in figures.report({**results, "rounds": 2})
    assert "first look" not in figures.report({**results, "rounds": None})


def test_a_second_has_the_rate_of_one_process_and_that_of_the_fastest_row() -> None:
    one = row("Offbeat", "ours", [answer(4.0), {**answer(8.0), "cpu": 2.0}])
    two = row("Offbeat, 2 workers", "ours", [{**answer(2.0), "cpu": 0.0}], processes=2)
    peer = row("Peer", "peer", [answer(5.0)])
    actors = row("Actors, 2 processes", "actors", [{**answer(2.5), "cpu": 0.0}], processes=2)
    found = figures.rates(table(one, two, peer, actors)).splitlines()[4:]
    assert found == [
        "| Offbeat | 37.5 (25.0–50.0) | 50.0 (50.0–50.0) | 2 |",
        "| Peer | 20.0 (20.0–20.0) | 20.0 (20.0–20.0) | 1 |",
        "| Actors, 2 processes | - | 40.0 (40.0–40.0) | 2 |",
    ]


def test_rows_of_other_work_have_rates_of_their_own() -> None:
    lean, whole = (
        row("Offbeat", "ours", [answer(4.0)]),
        row("Offbeat, its client code", "ours", [answer(8.0)]),
    )
    whole["job"]["model"] = "client code"
    found = figures.rates(table(lean, whole)).splitlines()[4:]
    assert [line.split(" | ")[2] for line in found] == ["25.0 (25.0–25.0)", "12.5 (12.5–12.5)"]


def test_a_report_has_rates_where_peers_were_measured() -> None:
    results = {
        "machine": {},
        "repeats": 1,
        "rounds": None,
        "tables": [table(row("a", "ours", [answer(1.0)]))],
    }
    assert "a second" not in figures.report(results)
    results["tables"] = [table(row("a", "ours", [answer(1.0)]), row("b", "peer", [answer(2.0)]))]
    assert figures.report(results).count("T: steps a second") == 1

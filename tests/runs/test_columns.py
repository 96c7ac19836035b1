"""Columns of a run's database that another program has written."""

import json
from collections.abc import Callable

import pytest

from offbeat.core.events import Line
from offbeat.core.journal import line_of
from offbeat.runs.columns import check_meta, client_metric_row, journal_row, metric_row

READERS: dict[str, Callable[[str], object]] = {
    "evaluation": lambda name: metric_row(0, 0.0, 0, 0, 0, 0, None, None, json.dumps({name: 0.5})),
    "client": lambda name: client_metric_row(0, 0, 1, json.dumps({name: 0.5})),
    "journal": lambda name: journal_row(
        0, 0.0, "event", "arrived", 0, 0, 0, 0, 0, 1, json.dumps({name: 0.5})
    ),
    "summary": lambda name: check_meta({"summary": {"metrics": {name: 0.5}}}),
}


@pytest.mark.parametrize("reader", READERS)
def test_the_name_of_a_metric_is_one(reader: str) -> None:
    READERS[reader]("balanced_accuracy")
    READERS[reader]("F1 score @5/é-2.b")
    for name in ("", "a\nssh-ed25519 key", "\x1b[2J", "a\u202eb", "`id`"):
        with pytest.raises(ValueError, match=r"^metric .*name"):
            READERS[reader](name)


@pytest.mark.parametrize("value", ["null", "-1", "Infinity", "NaN", '"1"'])
def test_the_parts_of_a_tasks_time_are_seconds(value: str) -> None:
    parts = '"line.received": 1, "line.sent": 0.5, "line.latency": 0, "line.trained": '
    row = journal_row(0, 0.0, "event", "arrived", 0, 0, 0, 0, 0, 1, f"{{{parts}2.0}}")
    assert line_of(row) == Line(1.0, 2.0, 0.5, 0.0)
    with pytest.raises(ValueError, match=r"line\.trained|Expected `float \| null`"):
        journal_row(0, 0.0, "event", "arrived", 0, 0, 0, 0, 0, 1, f"{{{parts}{value}}}")

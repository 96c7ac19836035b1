"""The server's log: every line is one JSON object, or one line for people."""

import io
import json
import logging
from datetime import datetime
from typing import Any
from unicodedata import category

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offbeat.core.errors import UsageError
from offbeat.net.monitor.logs import FIELDS, JsonLines, PlainLines, setup_logs

TEXT = st.text(st.characters())  # lone surrogates too
LOG = logging.getLogger("offbeat.net")


def record(message: str, **extra: Any) -> logging.LogRecord:
    made = logging.LogRecord("offbeat.net", logging.INFO, "file", 1, message, (), None)
    vars(made).update(extra)
    return made


def test_json_has_time_level_event_and_fields():
    stream = io.StringIO()
    setup_logs("json", stream=stream)
    LOG.info("update taken in", extra={"site": "north", "task": 3, "version": 12})
    LOG.debug("not shown")
    LOG.warning("update refused", extra={"site": "north", "reason": "NaN", "other": 1})
    first, second = map(json.loads, stream.getvalue().splitlines())
    assert datetime.fromisoformat(first.pop("time")).tzinfo is not None
    assert first == {"level": "info", "event": "update taken in", "site": "north", "task": 3, "version": 12}
    assert second["level"] == "warning"
    assert "other" not in second


def test_an_exception_stays_on_its_line():
    stream = io.StringIO()
    setup_logs("json", stream=stream)
    try:
        raise ValueError("why")
    except ValueError:
        LOG.exception("it failed")
    line = json.loads(stream.getvalue())
    assert "ValueError: why" in line["error"]


def test_text_is_for_people():
    stream = io.StringIO()
    setup_logs("text", "warning", stream)
    LOG.info("not shown")
    LOG.warning("update refused", extra={"site": "north", "reason": "NaN"})
    assert stream.getvalue().split(" ", 1)[1] == "warning update refused site=north reason=NaN\n"


def test_set_up_twice_it_writes_once():
    stream = io.StringIO()
    setup_logs("json", stream=io.StringIO())
    setup_logs("auto", stream=stream)
    LOG.info("once")
    assert len(stream.getvalue().splitlines()) == 1
    assert json.loads(stream.getvalue())["event"] == "once", "not a terminal: JSON"


@given(TEXT, TEXT)
def test_whatever_a_site_says_is_one_line(message: str, reason: str) -> None:
    made = record("said %s", reason=reason, site=message)
    made.args = (message,)
    line = JsonLines().format(made)
    assert line.isascii()
    assert "\n" not in line
    assert json.loads(line)["reason"] == reason
    plain = PlainLines().format(made)
    assert all(c.isprintable() or category(c) == "Zs" for c in plain)


def test_numbers_that_json_has_not_are_words():
    assert json.loads(JsonLines().format(record("x", seconds=float("nan"))))["seconds"] == "nan"


def test_what_is_wrong_is_said():
    with pytest.raises(UsageError, match="log style loud"):
        setup_logs("loud")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="log level loud"):
        setup_logs("json", "loud")


def test_fields_do_not_collide_with_what_a_record_has():
    assert not set(FIELDS) & set(vars(record("x")))

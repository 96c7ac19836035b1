"""The log of a run's evaluations: when early stopping ends the run, and what is recorded of it."""

import re
from collections.abc import Sequence
from math import inf, isfinite, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.runs.evaluation_log import EvaluationLog
from tests.sampling import examples

DISTANCE = {"distance": False}


def log_of(metric: str, patience: int, min_delta: float = 0.0) -> EvaluationLog:
    until = ob.Until(early_stopping=ob.EarlyStopping(metric, patience, min_delta))
    return EvaluationLog(until, DISTANCE)


@pytest.mark.parametrize("name", ["", " ", "a\nb", "\x1b[2J", "$(touch owned)", "a=b"])
def test_a_name_of_other_characters_is_no_metrics(name: str) -> None:
    with pytest.raises(ob.UsageError, match=f"metric {re.escape(repr(name))} is not allowed: "):
        EvaluationLog().add(0.0, 1, 1, 0, 0, {name: 0.5})


def stops(log: EvaluationLog, name: str, values: Sequence[float]) -> tuple[int, str] | None:
    """After which of these evaluations the run ends, counted from 1, and why."""
    for number, value in enumerate(values, 1):
        log.add(float(number), 10 * number, number, 0, 0, {name: value})
        if (reason := log.reached) is not None:
            return number, reason
    return None


@pytest.mark.parametrize(
    ("metric", "patience", "min_delta", "values", "end"),
    [
        (
            "accuracy", 2, 0.0, [0.5, 0.6, 0.6, 0.55],
            (4, "no better accuracy in 2 evaluations (best 0.6 at version 20)"),
        ),
        ("accuracy", 2, 0.0, [0.5, 0.6, 0.6, 0.61, 0.5], None),
        ("loss", 1, 0.0, [2.0, 1.0, 0.5, 0.5],
         (4, "no better loss in 1 evaluation (best 0.5 at version 30)")),
        (
            "distance", 3, 0.0, [5.0, 4.0, 4.5, 4.5, 4.5],
            (5, "no better distance in 3 evaluations (best 4 at version 20)"),
        ),
        (
            "accuracy", 2, 0.1, [0.5, 0.55, 0.59],
            (3, "no better accuracy by more than 0.1 in 2 evaluations (best 0.59 at version 30)"),
        ),
        ("accuracy", 3, 0.1, [0.5, 0.55, 0.59, 0.61, 0.62], None),  # small steps add up
        ("loss", 2, 0.0, [nan, nan], (2, "no finite loss in 2 evaluations")),
        ("loss", 2, 0.0, [1.0, nan, inf], (3, "no better loss in 2 evaluations (best 1 at version 10)")),
        ("loss", 2, 0.0, [-inf, 1.0, nan, 0.5, nan], None),
        ("balanced_accuracy", 1, 0.0, [0.5, 0.5],
         (2, "no better balanced accuracy in 1 evaluation (best 0.5 at version 10)")),
    ],
)  # fmt: skip
def test_where_early_stopping_ends_a_run(
    metric: str, patience: int, min_delta: float, values: list[float], end: tuple[int, str] | None
) -> None:
    assert stops(log_of(metric, patience, min_delta), metric, values) == end


def test_a_target_is_the_reason_where_both_are_reached() -> None:
    until = ob.Until(metric="loss", reaches=1.0, early_stopping=ob.EarlyStopping("accuracy", 1))
    log = EvaluationLog(until)
    log.add(0.0, 0, 0, 0, 0, {"loss": 2.0, "accuracy": 0.5})
    log.add(1.0, 1, 0, 0, 0, {"loss": 1.0, "accuracy": 0.5})
    assert log.reached == "reached loss 1"


def test_an_evaluation_without_clients_is_none_of_their_metrics() -> None:
    log = log_of("clients.accuracy", 2)
    for found in ({"clients.accuracy": 0.5}, {"loss": 1.0}, {"loss": 1.0}, {"clients.accuracy": nan}):
        log.add(0.0, 0, 0, 0, 0, found)
        assert log.reached is None
    log.add(0.0, 0, 0, 0, 0, {"clients.accuracy": 0.4})
    assert log.reached == "no better clients.accuracy in 2 evaluations (best 0.5 at version 0)"


def naive(values: Sequence[float], patience: int, min_delta: float, higher: bool) -> int | None:
    """After which evaluation a run ends, found from the whole past of each one."""
    for end in range(1, len(values) + 1):
        improvements = [(0, -inf if higher else inf)]  # each a number from 1, and its value
        for number, value in enumerate(values[:end], 1):
            gain = value - improvements[-1][1] if higher else improvements[-1][1] - value
            if isfinite(value) and gain > min_delta:
                improvements.append((number, value))
        if end - improvements[-1][0] >= patience:
            return end
    return None


numbers = st.one_of(
    st.integers(-4, 4).map(lambda n: n / 4), st.floats(-2, 2, width=16), st.sampled_from([nan, inf, -inf])
)


@given(
    values=st.lists(numbers, max_size=30), patience=st.integers(1, 5), cut=st.integers(0, 30),
    metric=st.sampled_from(["auroc", "loss"]), min_delta=st.sampled_from([0.0, 0.25, 0.5]),
)  # fmt: skip
@examples(400)
def test_it_ends_where_a_naive_count_does_also_from_what_was_recorded(
    values: list[float], patience: int, metric: str, min_delta: float, cut: int
) -> None:
    expected = naive(values, patience, min_delta, metric == "auroc")
    found = stops(log_of(metric, patience, min_delta), metric, values)
    assert (found and found[0]) == expected
    log = log_of(metric, patience, min_delta)
    recorded: list[Any] = []
    for number, value in enumerate(values[: min(cut, expected or cut)], 1):
        recorded.append(log.add(float(number), 10 * number, number, 0, 0, {metric: value}))
    resumed = log_of(metric, patience, min_delta)
    for row in recorded:  # a loss that is NaN is NULL in the database
        resumed.restore(row._replace(loss=None if row.loss is None or row.loss != row.loss else row.loss))
    assert resumed.reached == log.reached
    assert resumed.best_metrics == log.best_metrics
    if log.reached is None:
        for number, value in list(enumerate(values, 1))[len(recorded) : expected]:
            resumed.add(float(number), 10 * number, number, 0, 0, {metric: value})
        assert (resumed.reached is None) == (expected is None)
        assert resumed.reached == (found and found[1])

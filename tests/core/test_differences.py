"""The first difference between two records: names of anonymous functions are the last to be told."""

import pytest

from offbeat.core.differences import first_difference


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({"a": 1, "b": {"c": [1]}}, {"b": {"c": (1,)}, "a": 1}, None),
        ({"a": {"lr": 0.1}}, {"a": {"lr": 0.2}}, "a.lr was 0.1, now it is 0.2"),
        ({"a": 1}, {}, "a was 1, now it is not given"),
        ({}, {"a": None}, "a was not given, now it is None"),
        ({"m": ":<lambda>", "lr": 1}, {"m": ":f.<locals>.<lambda>", "lr": 2}, "lr was 1, now it is 2"),
        ({"m": "mine:f"}, {"m": ":<lambda>"}, "m was 'mine:f', now it is ':<lambda>'"),
    ],
)
def test_the_first_difference(then: dict[str, object], now: dict[str, object], said: str | None) -> None:
    assert first_difference(then, now) == said


def test_places_of_functions_are_no_names() -> None:
    said = first_difference({"m": ":<lambda>"}, {"m": ":f.<locals>.<lambda>"})
    assert said is not None
    assert said.startswith(
        "m was ':<lambda>', now it is ':f.<locals>.<lambda>': these are places of functions"
    )
    assert said.endswith("give a function that has a name at the top of a file")

"""Callbacks by name."""

from pathlib import Path
from typing import Any

import pytest

from offbeat.allowed import CALLBACKS as NAMES
from offbeat.allowed import Allowed, NotAllowedError
from offbeat.callbacks.callback import Callback
from offbeat.callbacks.callbacks_by_name import CALLBACKS, check_reach, make_callbacks
from offbeat.callbacks.csv_tracker import CSVTracker
from offbeat.core.errors import UsageError

MODULE = """
from offbeat.callbacks.callback import Callback

class Mine(Callback):
    def __init__(self, width=1):
        self.width = width

def make(**options):
    made = Mine()
    made.options = options
    return made

def broken():
    raise OSError("no such folder")

NUMBER = 5
"""


ALLOW = [f"my_callbacks:{name}" for name in ("Mine", "make", "broken", "Yours", "NUMBER")]
ALLOW += ["os:getcwd", "csv"]


@pytest.fixture(autouse=True)
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_callbacks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_entry_is_a_name_or_a_mapping_with_options():
    assert make_callbacks([]) == []
    made = make_callbacks(["csv", {"name": "csv", "path": "table.csv"}], ["csv"])
    assert made == [CSVTracker(), CSVTracker(path=Path("table.csv"))]


def test_an_entry_is_a_function_or_class_of_the_users():
    mine, wide, made = make_callbacks([
        "my_callbacks:Mine", {"name": "my_callbacks:Mine", "width": 3}, {"name": "my_callbacks:make", "a": 1}
    ], ALLOW)  # fmt: skip
    assert isinstance(mine, Callback)
    assert (mine.width, wide.width, made.options) == (1, 3, {"a": 1})


@pytest.mark.parametrize(
    ("entries", "line"),
    [
        ("csv", "callbacks = 'csv' is not allowed: give a list, such as [csv]"),
        ([3], "callbacks has 3: give a name, or a mapping with name and options, such as {name: csv}"),
        ([{"path": "a"}], "callbacks has {'path': 'a'}: give a name, or a mapping with name and options"),
        (["cvs"], 'callbacks cvs is unknown; did you mean "csv"?; or give module:function'),
        ([{"name": "csv", "pth": "a"}], 'callbacks csv: unknown key pth; did you mean "path"?'),
        ([{"name": "csv", "path": 1}], "callbacks csv: path = 1 is not allowed: Input is not a valid path"),
        ([{"name": "my_callbacks:Mine", "with": 3}],
         'callbacks my_callbacks:Mine: unknown key with; did you mean "width"?'),
        (["my_callbacks:Yours"], "callbacks my_callbacks:Yours: the module my_callbacks has no Yours"),
        (["my_callbacks:NUMBER"], "callbacks my_callbacks:NUMBER is a int: give a function or a class"),
        (["os:getcwd"], "callbacks os:getcwd returned a str: return a Callback of offbeat.callbacks"),
    ],
)  # fmt: skip
def test_what_makes_no_callback_is_refused_in_one_line(entries: object, line: str):
    with pytest.raises(UsageError) as refused:
        make_callbacks(entries, ALLOW)
    assert str(refused.value).startswith(line)


def test_an_error_of_the_users_is_told_with_its_line():
    with pytest.raises(UsageError, match=r"callbacks my_callbacks:broken: .*:14: OSError: no such folder"):
        make_callbacks(["my_callbacks:broken"], ALLOW)


def test_a_callbacks_name_allows_the_callback_and_no_module():
    assert set(CALLBACKS) == NAMES
    check_reach([{"name": "csv", "path": "a"}], ["csv"])
    check_reach([{"name": "csv", "path": "a"}], Allowed(installed=("csv",)))
    for allow in (["csv:reader"], ["my_callbacks"], Allowed(installed=("mlflow",))):
        with pytest.raises(NotAllowedError, match=r"give --allow csv \(in Python allow=\['csv'\]\)"):
            check_reach([{"name": "csv", "path": "a"}], allow)
    for allow in (["csv"], Allowed(installed=("csv",))):
        with pytest.raises(NotAllowedError, match="model csv:reader is not allowed"):
            Allowed.of(allow).load("csv:reader", "model")
    assert Allowed.of(["csv:reader"]).load("csv:reader", "model")


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ({"name": "csv", "path": place}, f"path = {place!r} is outside")
        for place in ("/etc/a", "~/a", "../a", "a.csv", "$HOME/a", "file:///a", "", "{label}.csv")
    ]
    + [
        ({"name": "csv", "path": 1}, "path = '1' is outside"),
        ({"name": "tensorboard", "directory": "a"}, "directory = 'a' is outside"),
        ({"name": "mlflow", "tracking_uri": "http://example"}, "tracking_uri = 'http://example' is outside"),
        ({"name": "mlflow"}, "the database or the server of MLflow is outside"),
        ("mlflow", "the database or the server of MLflow is outside"),
        ("wandb", "the server of W&B, without mode: offline, is outside"),
        ({"name": "wandb", "mode": "online"}, "the server of W&B"),
        ({"name": "wandb", "entity": "others", "mode": None}, "the server of W&B"),
    ],
)
def test_what_leaves_the_runs_directory_is_refused(entry: Any, said: str):
    with pytest.raises(NotAllowedError) as refused:
        make_callbacks([entry])
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_what_stays_in_the_runs_directory_needs_no_word():
    check_reach([
        "csv", {"name": "csv", "path": None}, "tensorboard", {"name": "tensorboard"},
        {"name": "wandb", "mode": "offline", "project": "a"},
    ])  # fmt: skip

"""Callbacks by name."""

from pathlib import Path

import pytest

from offbeat.callbacks.callback import Callback
from offbeat.callbacks.callbacks_by_name import make_callbacks
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


ALLOW = [f"my_callbacks:{name}" for name in ("Mine", "make", "broken", "Yours", "NUMBER")] + ["os:getcwd"]


@pytest.fixture(autouse=True)
def my_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_callbacks.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_entry_is_a_name_or_a_mapping_with_options():
    assert make_callbacks([]) == []
    made = make_callbacks(["csv", {"name": "csv", "path": "table.csv"}])
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

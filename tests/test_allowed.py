"""Names of others: what is imported, what is refused, and that nothing is imported before it is allowed."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.allowed import NOTHING, NotAllowedError, is_entry

WARD = """
from functools import partial, wraps
from os import system
from pathlib import Path
import offbeat as ob
from offbeat import parts as p

Path("imported").touch()

def wipe(path):
    Path(path).touch()

def noted(function):
    @wraps(function)
    def call():
        return function()
    return call

@ob.expose
def make():
    return 1

@noted
@ob.expose
def wrapped():
    return 2

@ob.expose
@noted
def outer():
    return 3

@ob.expose
class Box:
    def method(self):
        return 4

class Larger(Box):
    pass

@p.algorithm(paper="none", kind="asynchronous")
def method(steps: p.Steps = None):
    return ob.fedasync(steps)

shared = ob.expose(partial(int, "5"))
ob.expose(noted)
"""


@pytest.fixture(autouse=True)
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OFFBEAT_OPENED_MODULES", "{}")
    Path("a_ward.py").write_text(WARD, encoding="utf-8")
    Path("another_ward.py").write_text("from a_ward import make, method, noted, Box\n", encoding="utf-8")
    yield
    for name in ("a_ward", "another_ward"):
        sys.modules.pop(name, None)


def test_what_an_allowed_module_exposes_is_used() -> None:
    allowed = ob.Allowed.of(["a_ward"])
    made = [allowed.load(f"a_ward:{name}", "model")() for name in ("make", "wrapped", "outer", "shared")]
    assert made == [1, 2, 3, 5]
    assert allowed.load("a_ward:Box", "model")().method() == 4


@pytest.mark.parametrize(
    "name",
    ["wipe", "system", "partial", "Larger", "Path", "Box.method", "make.__call__", "ob.export", "__name__"],
)
def test_nothing_else_of_an_allowed_module_is_used(name: str) -> None:
    with pytest.raises(NotAllowedError, match=rf"expose {name}; .*@offbeat\.expose, or give --allow a_ward:"):
        ob.Allowed.of(["a_ward"]).load(f"a_ward:{name}", "model")


def test_a_module_exposes_what_it_defines() -> None:
    for name in ("make", "Box"):
        with pytest.raises(NotAllowedError, match="does not expose"):
            ob.Allowed.of(["another_ward", "a_ward"]).load(f"another_ward:{name}", "model")


def test_a_function_can_be_allowed_by_itself() -> None:
    allowed = ob.Allowed.of(["a_ward:wipe", "a_ward:Larger.method"])
    allowed.load("a_ward:wipe", "model")("wiped")
    assert Path("wiped").exists()
    assert allowed.load("a_ward:Larger.method", "model")
    for name in ("make", "system", "Larger"):
        with pytest.raises(NotAllowedError, match=f"give --allow a_ward:{name}, or --allow a_ward for all"):
            allowed.load(f"a_ward:{name}", "model")


@pytest.mark.parametrize("allow", [[], ["a_war"], ["a_ward.inner"], ["a"], ["a_ward:wipe"], ["os"]])
def test_a_module_that_is_not_allowed_is_not_imported(allow: list[str]) -> None:
    for use in (ob.Allowed.of(allow).load, ob.Allowed.of(allow).check):
        with pytest.raises(
            NotAllowedError, match=r"^the model a_ward:make is not allowed: .*'a_ward:make'"
        ) as it:
            use("a_ward:make", "the model")
        assert "\n" not in str(it.value)
    assert not Path("imported").exists()


def test_an_algorithm_is_exposed_where_it_is_defined() -> None:
    """It is there to be named in recipes; nothing is imported before its module is allowed."""
    with pytest.raises(NotAllowedError, match="imports nothing by itself"):
        ob.Allowed.of([]).load("a_ward:method", "algorithm")
    assert not Path("imported").exists()
    assert ob.Allowed.of(["a_ward"]).load("a_ward:method", "algorithm")(steps=2).name == "method"
    with pytest.raises(NotAllowedError, match="does not expose method"):
        ob.Allowed.of(["another_ward"]).load("another_ward:method", "algorithm")


def test_a_text_that_is_no_name_is_refused() -> None:
    for text in ("a_ward", "a_ward:", ":make", ""):
        with pytest.raises(ob.UsageError, match="give module:function"):
            ob.Allowed.of(["a_ward"]).load(text, "model")
    assert not Path("imported").exists()
    assert not any(map(is_entry, ("", "a b", "a:", ":a", "a..b", "../a", "a:b:c", "a/b", "-a")))
    with pytest.raises(ob.UsageError, match="give a list of modules and functions"):
        ob.Allowed.of("a_ward")
    with pytest.raises(ob.UsageError, match="give a list of modules and functions"):
        ob.Allowed.of(["a_ward", "a b"])


def test_an_installed_module_is_not_one_that_comes_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ob.Allowed(installed=("a_ward", "json:loads"))
    assert own.load("json:loads", "model")("1") == 1
    with pytest.raises(ob.UsageError, match=r"there is no module a_ward: install it$"):
        own.load("a_ward:make", "model")
    monkeypatch.syspath_prepend(tmp_path)  # as with python -m, or PYTHONPATH
    with pytest.raises(NotAllowedError, match=r"in your file of allowed names, but .*a_ward.py lies beside"):
        own.load("a_ward:make", "model")
    assert not Path("imported").exists()
    Path("elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    assert own.load("a_ward:make", "model")() == 1
    beside = ob.Allowed(installed=("a_ward",), folders=(tmp_path.resolve(),))
    with pytest.raises(NotAllowedError, match="lies beside what names it"):
        beside.load("a_ward:make", "model")


def test_what_cannot_be_marked_is_not_exposed() -> None:
    with pytest.raises(ob.UsageError, match="a int cannot be exposed"):
        ob.expose(3)


def test_a_model_is_made_of_what_is_allowed_only() -> None:
    from offbeat.models.specs import ModelMaker, NamedModel

    with pytest.raises(NotAllowedError):
        ModelMaker(NamedModel("a_ward:make"))()
    with pytest.raises(NotAllowedError):
        NOTHING.load("os:system", "model")
    assert not Path("imported").exists()

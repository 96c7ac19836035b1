"""YAML is read the same way by libyaml and by PyYAML's own parser."""

from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml

from offbeat import documents
from offbeat.core.errors import UsageError
from offbeat.documents import parse_yaml

pytestmark = pytest.mark.skipif(not yaml.__with_libyaml__, reason="PyYAML is built without libyaml")


def parse_slowly(text: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The value where PyYAML is built without libyaml."""
    with monkeypatch.context() as patch:
        patch.setattr(documents, "_FastLoader", documents._Loader)
        return parse_yaml(text, "the text")


def test_a_recipe_has_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    assert issubclass(documents._FastLoader, yaml.CSafeLoader)
    for path in Path(str(files("offbeat.recipes"))).rglob("*.yaml"):
        text = path.read_text(encoding="utf-8")
        assert parse_yaml(text, "the text") == parse_slowly(text, monkeypatch)


@pytest.mark.parametrize(
    "text",
    [
        "a: [1", "a: b: c", "a: *b", "a: 'x", "- a\nb: 2", "\ud800", "a: \x00", "a: 2001-99-99",
        f"a: {'1' * 101}", f"a: {2**64 + 1}", "!!int 'x'", "[" * 50, "&a [*a]", "%foo\na",
        "a: 1\nb: 2\na: 3", "{a: 1, a: 2}", "- {b: {'c': 1, c: 2}}", "a: &x {b: 1, b: 2}\nc: *x",
    ],
)  # fmt: skip
def test_a_refusal_has_one_message(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as slow:
        parse_slowly(text, monkeypatch)
    with pytest.raises(UsageError) as fast:
        parse_yaml(text, "the text")
    assert str(fast.value) == str(slow.value)


def test_a_key_that_stands_twice_is_refused_with_both_lines() -> None:
    with pytest.raises(UsageError) as refused:
        parse_yaml("a:\n  fedavg: {steps: 5}\n  fedbuff: {}\n  fedavg: {steps: 6}\n", "recipe r.yaml")
    said = "recipe r.yaml is not valid YAML at line 4: the key 'fedavg' is there already, at line 2"
    assert str(refused.value) == said


def test_merged_keys_may_be_replaced_and_aliases_repeat_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "x: &x {a: 1}\ny: &y {<<: *x, a: 2}\nz: {<<: [*x, *y], a: 3}\n1: *x\n'1': *x\n"
    value = {"x": {"a": 1}, "y": {"a": 2}, "z": {"a": 3}, 1: {"a": 1}, "1": {"a": 1}}
    assert parse_yaml(text, "the text") == parse_slowly(text, monkeypatch) == value
    assert parse_yaml("# nothing", "the text") is None

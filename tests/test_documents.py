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
    ],
)  # fmt: skip
def test_a_refusal_has_one_message(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError) as slow:
        parse_slowly(text, monkeypatch)
    with pytest.raises(UsageError) as fast:
        parse_yaml(text, "the text")
    assert str(fast.value) == str(slow.value)

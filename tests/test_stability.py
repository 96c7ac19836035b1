"""Every public name and every command has one label of stability, on the page and in the help."""

import re
from functools import cache
from importlib import import_module
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from offbeat.cli.commands import app
from offbeat.cli.stability import Stability, stability_of
from tests.test_public_names import NEEDS, ROOT, listed

LABELS = ("stable", "provisional", "experimental")
PRIVACY = ("offbeat.core.privacy", "offbeat.secure", "offbeat.net.secure", "offbeat.local.examples_")
"""Where the code is that no cryptographer has reviewed."""
ROW = re.compile(r"^\| `(offbeat[\w.]*)` \| (\w+) \| (.*?) ?\|$", re.MULTILINE)
COMMANDS = re.compile(rf"^\| ({'|'.join(LABELS)}) \| (`.+`) \|$", re.MULTILINE)
GROUP: Any = get_command(app)


@cache
def page() -> str:
    text = (ROOT / "docs" / "releases.md").read_text("utf-8")
    return text.partition("## Stability")[2].partition("\n## ")[0]


@cache
def labels() -> dict[str, tuple[str, dict[str, str]]]:
    """By module the label, and the other labels of its names."""
    return {
        module: (label, {
            name: other
            for other, names in re.findall(r"(\w+): ((?:`\w+`(?:, )?)+)", others)
            for name in re.findall(r"`(\w+)`", names)
        })
        for module, label, others in ROW.findall(page())
    }  # fmt: skip


def test_every_public_module_has_a_label() -> None:
    assert sorted(labels()) == sorted(listed())
    assert len(ROW.findall(page())) == len(labels()), "a module has two rows"
    assert {label for label, _ in labels().values()} <= set(LABELS)


@pytest.mark.parametrize("module", sorted(labels()))
def test_names_with_another_label_are_public(module: str) -> None:
    label, others = labels()[module]
    assert set(others) <= set(listed()[module])
    assert set(others.values()) <= set(LABELS) - {label}


@pytest.mark.parametrize("module", sorted(labels()))
def test_what_nobody_has_reviewed_is_experimental(module: str) -> None:
    pytest.importorskip(NEEDS.get(module, "torch"))
    label, others = labels()[module]
    for name in listed()[module]:
        value = getattr(import_module(module), name)
        where = getattr(value, "__module__", None) or ""
        known = others.get(name, label)
        assert (known == "experimental") == where.startswith(PRIVACY), f"{module}.{name} of {where}"


def test_every_command_has_the_label_of_its_help() -> None:
    found = {
        name: label for label, row in COMMANDS.findall(page()) for name in re.findall(r"`([\w-]+)`", row)
    }
    assert sorted(found) == sorted({*GROUP.list_commands(None), "reproduce"})
    for name, label in found.items():
        assert stability_of(name) == Stability[label.upper()]


@pytest.mark.parametrize("command", ["run", "federate", "helper"])
def test_the_help_says_how_stable_a_command_is(command: str) -> None:
    done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert f"Stability: {stability_of(command)}." in done.output


def test_the_help_says_that_secure_aggregation_was_not_reviewed() -> None:
    help_text = " ".join(CliRunner().invoke(app, ["helper", "--help"]).output.split())
    assert "no cryptographer has reviewed its design or its implementation" in help_text
    for command in ("serve", "join"):
        done = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
        assert "Privacy (experimental, not reviewed)" in done.output

"""Every command and option is documented, the help has sections, and the keys of `--set` are fields."""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from offbeat.cli import join, serve
from offbeat.cli.commands import app
from offbeat.cli.keys import KeyGroup, split_sets
from offbeat.core.errors import UsageError

DOCS = Path(__file__).parents[2] / "docs"
GROUP: Any = get_command(app)
COMMANDS: dict[str, Any] = {name: GROUP.get_command(None, name) for name in GROUP.list_commands(None)}
ROW = re.compile(r"^\| `offbeat ([\w-]+)[^`]*` \| (.+) \|$", re.MULTILINE)
SHARED = re.compile(r"^\| (`--[^|]+(?:\\\|[^|]+)*) \| ((?:`[\w-]+`(?:, )?)+) \|", re.MULTILINE)
SETTING = re.compile(r"^\| `([\w.]+)` \| ([^|]*) \|", re.MULTILINE)
PRIVACY = "Privacy (experimental, not reviewed)"
GROUPS = {**serve.GROUPS, **join.GROUPS}


@cache
def page(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


@cache
def texts_of(command: str) -> list[str]:
    """What documents a command: its rows and its sections on the page, and the pages that they link."""
    (row,) = (text for name, text in ROW.findall(page("run.md")) if name == command)
    sections = re.split(r"^## ", page("run.md"), flags=re.MULTILINE)
    titled = [text for text in sections[1:] if command in re.findall(r"[\w-]+", text.split("\n")[0].lower())]
    shared = [option for option, commands in SHARED.findall(page("run.md")) if f"`{command}`" in commands]
    own = [*shared, *titled]
    linked = [name for text in (row, *own) for name in re.findall(r"\]\((\w[\w-]*\.md)", text)]
    return [row, *own, *(page(name) for name in dict.fromkeys(linked))]


def options() -> Iterator[tuple[str, str]]:
    for name, command in COMMANDS.items():
        for parameter in command.params:
            for option in parameter.opts if parameter.param_type_name == "option" else ():
                if option.startswith("--"):
                    yield name, option


def help_of(*command: str, columns: int = 120) -> str:
    from typer.testing import CliRunner

    done = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": str(columns)})
    assert done.exit_code == 0
    return done.output


def test_every_command_is_in_the_table_of_the_page() -> None:
    assert sorted(name for name, _ in ROW.findall(page("run.md"))) == sorted(COMMANDS)


def test_the_help_shows_the_commands_in_groups_each_on_a_line() -> None:
    text = help_of(columns=80)
    groups = re.split(r"^(\w[\w -]*):\n", text, flags=re.MULTILINE)
    shown = {title: rows.split("\n") for title, rows in zip(groups[3::2], groups[4::2], strict=True)}
    assert list(shown)[:5] == ["Simulate", "Serve", "Take part", "Both at once", "Look"]
    assert list(shown)[5:] in ([], ["Plug-ins"])
    lines = [line for rows in shown.values() for line in rows if line]
    assert sorted(line.split()[0] for line in lines) == sorted(COMMANDS)
    # Neither cut nor wrapped: each description begins in the same column.
    (column,) = {re.match(r"  [\w-]+ +", line).end() for line in lines}  # type: ignore[union-attr]
    assert all(len(line) < 80 and "…" not in line and "..." not in line for line in lines)
    assert all(line[column].isupper() or line[column] == "(" for line in lines)


@pytest.mark.parametrize(("command", "option"), sorted(options()))
def test_every_option_is_documented(command: str, option: str) -> None:
    assert any(re.search(rf"(?<![\w-]){option}(?![\w-])", text) for text in texts_of(command))


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_help_escapes_no_brackets(command: str) -> None:
    text = help_of(command)
    assert "\\[" not in text
    required = [p for p in COMMANDS[command].params if p.required]
    assert text.count("[required]") == len(required)


@pytest.mark.parametrize(
    ("command", "titles"),
    [
        ("serve", ["Run", "Sites", PRIVACY, "TLS and access", "Watching", "Logging", "Testing", "Options"]),
        ("join", ["Run", PRIVACY, "TLS and access", "Logging", "Options"]),
        ("helper", ["Run", "TLS and access", "Logging", "Options"]),
        ("run", ["Arguments", "Options"]),
    ],
)
def test_help_has_sections_with_each_option_once(command: str, titles: list[str]) -> None:
    text = help_of(command)
    assert re.findall(r"^(\w[\w (),]*):$", text, re.MULTILINE) == titles
    rest = text.partition("\nOptions:\n")[2]
    for parameter in COMMANDS[command].params:
        if parameter.param_type_name == "option":
            assert len(re.findall(rf"^  .*{parameter.opts[0]}(?![\w-])", text, re.MULTILINE)) >= 1
            if command in ("serve", "join", "helper"):
                assert f"  {parameter.opts[0]} " not in rest, "an option in no section comes last"


def test_few_options_are_flat() -> None:
    flat = {
        name: len([p for p in COMMANDS[name].params if p.param_type_name == "option"]) for name in COMMANDS
    }
    assert flat["serve"] <= 21
    assert flat["join"] <= 12


def test_few_names_of_options_stand_for_all() -> None:
    own = set(GROUP.commands)
    assert len({option for name, option in options() if name in own}) <= 70


# Keys of --set


def test_keys_are_the_fields_of_their_dataclasses() -> None:
    for group in GROUPS.values():
        cls = getattr(import_module(group.module), group.cls)
        names = {field.name for field in fields(cls)}
        assert {key.name for key in group.keys} == names - dict(group.elsewhere).keys()
        for key in group.keys:
            (field,) = (field for field in fields(cls) if field.name == key.name)
            assert key.meaning, "the docstring says what it is"
            if key.default:
                assert field.default is not MISSING
                default = list(field.default) if isinstance(field.default, tuple) else field.default
                assert yaml.safe_load(key.default) == default or float(key.default) == default


def test_help_has_every_key_with_its_default() -> None:
    for command, groups in (("serve", serve.GROUPS), ("join", join.GROUPS)):
        text = help_of(command)
        for name, group in groups.items():
            for key in group.keys:
                if f"{name}.{key.name}" not in groups:  # those within it are shown
                    assert f"  {name}.{key.name}={key.default}" in text


def test_the_pages_have_every_key_with_its_default() -> None:
    deploy, policy = dict(SETTING.findall(page("deploy.md"))), dict(SETTING.findall(page("site.md")))
    examples = page("private-examples.md")
    for name, group in GROUPS.items():
        for key in group.keys:
            if f"{name}.{key.name}" in GROUPS:
                continue
            if name == "policy":
                assert key.name in policy
            elif name == "examples":
                assert f"`{key.name}`" in examples
            else:
                words = {"null": "1", "true": "1", "false": "0"}
                found, told = key.default, deploy[f"{name}.{key.name}"]
                assert float(words.get(found, found)) == float(words.get(told, told))


def test_sets_are_divided_by_their_groups() -> None:
    group = {"a": KeyGroup("offbeat.net.server.server_options", "ServerOptions", (("until", "give until"),))}
    others, given = split_sets(
        ["x.y=1", "a.lease=2", "a.unmasking.timeout=3", "ab=1", "a={rollback: false}"], group
    )
    assert others == ["x.y=1", "ab=1"]
    rest = {"lease": 2, "unmasking": {"timeout": 3}}
    assert given == {"a": {"rollback": False, **rest}}, "the whole mapping comes before the keys within it"
    assert split_sets(None, group) == ([], {})
    with pytest.raises(UsageError, match=r"--set a\.until\.versions=3 is not allowed: give until"):
        split_sets(["a.until.versions=3"], group)

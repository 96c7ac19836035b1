"""Commands whose help has its options in sections."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, get_args

from typer.core import TyperCommand

from offbeat.cli.keys import KeyGroup, key_rows
from offbeat.cli.stability import stability_of
from offbeat.core.errors import UsageError
from offbeat.documents import user_path

Sections = Mapping[str, Sequence[str]]
"""Titles, and below each parameters of the command's function, or keys of `--set` such as `server.lease`."""


class Command(TyperCommand):
    """A command of Offbeat: its help has sections, if it names any.

    Attributes:
        sections: The sections; options in none of them come last.
        groups: What the keys in the sections are of.
    """

    sections: ClassVar[Sections] = {}
    groups: ClassVar[Mapping[str, KeyGroup]] = {}

    def parse_args(self, ctx: Any, args: Any) -> Any:
        """Read the arguments.

        Raises:
            UsageError: A path is empty, which would mean the current directory. Or an option of one value is
                given twice, of which the last value would count.
        """
        if ctx.resilient_parsing and args and args[-1].startswith("-"):
            # A shell completes the value of this option: without it the rest would not be read.
            args = args[:-1]
        # The text of each argument: newer versions of typer make Path(".") of an empty one.
        texts, _, order = self.make_parser(ctx).parse_args(list(args))
        once = [param.opts[0] for param in order if _takes_one_value(param)]
        if twice := [option for option in once if once.count(option) > 1]:
            raise UsageError(f"{twice[0]} is given twice: give it once")
        rest = super().parse_args(ctx, args)
        paths = _path_parameters(self.callback)
        for param in self.params:
            value = texts.get(str(param.name))
            if param.name in paths and "" in (value if isinstance(value, list | tuple) else [value]):
                given = param.opts[0] if param.param_type_name == "option" else param.human_readable_name
                raise UsageError(f"{given} '' is not allowed: give a path; . is the current directory")
        for name in paths & ctx.params.keys():
            match ctx.params[name]:
                case str() | Path() as value:
                    ctx.params[name] = user_path(value)
                case list() | tuple() as values:
                    ctx.params[name] = [user_path(value) for value in values]
        return rest

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments and the options of the help."""
        records = {
            str(param.name): (record[0], _plain(record[1]), param.param_type_name)
            for param in self.get_params(ctx)
            if (record := param.get_help_record(ctx)) is not None
        }
        for title, names in self.sections.items():
            rows = [records.pop(name)[:2] for name in names if "." not in name]
            keys = key_rows([name for name in names if "." in name], self.groups)
            _write(formatter, title, [*rows, *keys])
        for title, kind in (("Arguments", "argument"), ("Options", "option")):
            _write(formatter, title, [record[:2] for record in records.values() if record[2] == kind])

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write how stable the command is."""
        formatter.write_paragraph()
        formatter.write_text(f"Stability: {stability_of(str(self.name))}.")


def sectioned(sections: Sections, groups: Mapping[str, KeyGroup]) -> type[Command]:
    """The class of a command with these sections in its help."""
    return type("SectionedCommand", (Command,), {"sections": sections, "groups": groups})


def _takes_one_value(param: Any) -> bool:
    """Whether a parameter is an option of one value, or has a word for yes and one for no."""
    is_plain_flag = getattr(param, "is_flag", False) and not getattr(param, "secondary_opts", ())
    return param.param_type_name == "option" and not (getattr(param, "multiple", False) or is_plain_flag)


def _path_parameters(function: Callable[..., Any] | None) -> set[str]:
    """The parameters of a function that are paths; typer's name for a parameter's type changes."""
    if function is None:
        return set()
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    return {param.name for param in parameters if _names_path(param.annotation)}


def _names_path(annotation: Any) -> bool:
    return annotation is Path or any(map(_names_path, get_args(annotation)))


def _write(formatter: Any, title: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(title):
            formatter.write_dl(rows)


def _plain(text: str) -> str:
    """A help as plain text: typer escapes brackets for rich, which does not print it."""
    return text.replace("\\[", "[")

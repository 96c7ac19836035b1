"""Commands of other distributions: entry points of the group `offbeat.commands`.

The name of an entry point is the command's, and its value is the function that typer makes the command of. No
distribution is looked at before a command that is not built in is asked for, or the list of all.
"""

from importlib.metadata import EntryPoint, entry_points
from typing import Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

from offbeat.cli.moved import MOVED
from offbeat.cli.sections import Command
from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.core.installation import install_hint

GROUP = "offbeat.commands"
"""The group of the entry points."""
EXTRAS = {"reproduce": "papers"}
"""By a command's name what `install_hint` calls the distribution that has it."""
PLUG_INS = "Plug-ins"
"""The title of the group of these commands in the help."""
# Characters of a description that are shown: more than any has.
_WHOLE = 10_000


class Commands(TyperGroup):
    """The commands of Offbeat, and after them those of other distributions; the former take precedence."""

    def list_commands(self, ctx: Any) -> list[str]:
        """The names of all commands."""
        own = super().list_commands(ctx)
        return [*own, *sorted(entry_points(group=GROUP).names - {*own})]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """A command by its name; None for an unknown name."""
        return super().get_command(ctx, cmd_name) or _moved(cmd_name) or _plug_in(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of the help in their groups, each with its description as a whole."""
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        groups = dict[str, list[tuple[str, str]]]()
        for name, command in commands.items():
            about = command.get_short_help_str(_WHOLE)
            groups.setdefault(command.rich_help_panel, []).append((name, about))
        width = max(map(len, commands))
        for title, rows in groups.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), about) for name, about in rows])


def _moved(name: str) -> Any:
    """A command that names what took the place of a command; None if there was no such command."""
    if (instead := MOVED.get(name)) is None:
        return None
    return _unavailable(name, UsageError(f"{name} is now `{instead}`"))


def _plug_in(name: str) -> Any:
    """The command that another distribution has under a name, or one that explains why it cannot be run."""
    entry = next(iter(entry_points(group=GROUP, name=name)), None)
    if entry is None:
        extra = EXTRAS.get(name)
        if extra is None:
            return None
        return _unavailable(name, UsageError(f"offbeat {name} is not installed: {install_hint(extra)}"))
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    try:
        app.command(name, cls=Command, rich_help_panel=PLUG_INS)(entry.load())
        return get_command(app)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        broken = f"offbeat {name} of {_owner(entry)} cannot be loaded: {why}; install it again, or remove it"
        return _unavailable(name, RunError(" ".join(broken.split())))


def _owner(entry: EntryPoint) -> str:
    """The distribution of an entry point."""
    return entry.value if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def _unavailable(name: str, error: OffbeatError) -> Any:
    """A command that raises an error whatever it is called with, also for its help."""

    class Unavailable(Command):
        def parse_args(self, ctx: Any, args: Any) -> Any:
            raise error

    return Unavailable(name, help="(cannot be loaded)", rich_help_panel=PLUG_INS)

"""The commands of the command line, and what their errors print.

The modules of the commands import what a command needs inside its function. So `--help` and a mistyped
option load neither PyTorch nor the simulator.
"""

import os
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from errno import ENOSPC
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from offbeat.cli import (
    INTERRUPTED,
    audit,
    backup,
    check,
    compare,
    export,
    federate,
    helper,
    interruption,
    join,
    list,
    new,
    runs,
    serve,
    simulate,
    simulate_like,
    status,
    stop,
    tokens,
    verify,
)  # fmt: skip
from offbeat.cli.console import InterruptedByUserError, err, out
from offbeat.cli.moved import OPTIONS
from offbeat.cli.plug_ins import Commands
from offbeat.cli.sections import Command, sectioned
from offbeat.core.errors import OffbeatError, UsageError, is_out_of_memory
from offbeat.recipes.other_names import OTHER_NAMES

app = typer.Typer(
    cls=Commands,
    help="Asynchronous federated learning: simulate, compare, deploy, report.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# The common base of errors in a command line is typer's own ClickException, or click's.
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]


def version_option(show: bool) -> None:
    """Print the version and leave."""
    if show:
        from offbeat.version import __version__

        out.print(f"offbeat {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=version_option, is_eager=True, help="print the version")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="also show the traceback of an error")] = False,
) -> None:
    """Asynchronous federated learning: simulate, compare, deploy, report."""


_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Simulate": (
        simulate.run, compare.compare, simulate.resume, runs.report, runs.replay, export.export,
        simulate_like.simulate_like,
    ),
    "Serve": (
        serve.serve, stop.stop, status.status, tokens.enrol, backup.backup, backup.restore,
        audit.audit,
    ),
    "Take part": (join.join, check.check, helper.helper),
    "Both at once": (federate.federate,),
    "Look": (list.algorithms, list.recipes, list.models, list.datasets, new.new, verify.verify),
}  # fmt: skip
_SECTIONED: dict[Callable[..., None], type[Command]] = {
    serve.serve: sectioned(serve.SECTIONS, serve.GROUPS),
    join.join: sectioned(join.SECTIONS, join.GROUPS),
    helper.helper: sectioned(helper.SECTIONS, helper.GROUPS),
    check.check: sectioned(check.SECTIONS, check.GROUPS),
}
for _group, _members in _COMMANDS.items():
    for _command in _members:
        app.command(cls=_SECTIONED.get(_command, Command), rich_help_panel=_group)(_command)
# Commands whose `--set` changes a recipe.
_OF_RECIPES = ("run", "compare", "serve", "federate", "simulate-like")


def run() -> None:
    """Run the command line; every expected error is one line on stderr."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            # A terminal's encoding may lack Greek letters.
            stream.reconfigure(errors="backslashreplace")
    debug = "--debug" in sys.argv
    # `--debug` may stand before or after the command.
    sys.argv = [word for word in sys.argv if word != "--debug"]
    try:
        with _interruptions_shown():
            code = app(standalone_mode=False) or 0
        if sys.stdout is not None:
            # An error of the output is reported here, not at the interpreter's exit.
            sys.stdout.flush()
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except _CommandLineError as error:
        _fail_of_command_line(error)
    except OffbeatError as error:
        if debug:
            traceback.print_exception(error)
        _fail(str(error), 2 if isinstance(error, UsageError) else 1)
    except InterruptedByUserError as error:
        _fail(f"interrupted; {error}", INTERRUPTED)
    except KeyboardInterrupt:
        _fail(interruption(), INTERRUPTED)
    except (RuntimeError, MemoryError) as error:
        is_deep = isinstance(error, RecursionError)
        if not is_deep and not is_out_of_memory(error):
            raise
        if debug:
            traceback.print_exception(error)
        what = "is nested too deep" if is_deep else "does not fit in memory"
        _fail(f"what was given {what}; offbeat --debug shows where", 1)
    except BrokenPipeError:
        # The reader of a pipe has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        if debug:
            traceback.print_exception(error)
        if error.errno != ENOSPC:
            where = f"{error.filename}: " if error.filename else ""
            _fail(f"{where}{error.strerror or error}; offbeat --debug shows where", 1)
        # What is left to print goes nowhere: flushing it would fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        _fail(f"the output cannot be written: {error.strerror}", 1)


@contextmanager
def _interruptions_shown() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for an error in which a package hides one."""
    try:
        yield
    except (ImportError, RecursionError, MemoryError) as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, KeyboardInterrupt):
                raise KeyboardInterrupt from error
            cause = cause.__cause__ or cause.__context__
        raise


def _fail_of_command_line(error: Any) -> None:
    """An unknown option and the like; a command without any argument shows its help."""
    message = error.format_message().replace("Value error, ", "")
    # A list of choices, which click puts on lines of its own, goes into the sentence.
    message = re.sub(r"\s*\n\s+", " ", message)
    if "\n" in message:
        error.show()
        sys.exit(error.exit_code)
    where = error.ctx.command_path if error.ctx is not None else "offbeat"
    # Errors about an unknown option have its name.
    option, command = str(getattr(error, "option_name", None)), where.rpartition(" ")[2]
    key = OTHER_NAMES.get(option.removeprefix("--").replace("-", "_")) if command in _OF_RECIPES else None
    of_recipe = None if key is None else f"--set {key}=VALUE"
    if (instead := OPTIONS.get(command, {}).get(option, of_recipe)) is not None:
        _fail(f"{where} has no option {option}: give {instead}", error.exit_code)
    # Click and typer may both add the same suggestion.
    message = re.sub(r"( Did you mean [^?]*\?)(\1)+", r"\1", message)
    _fail(f"{message.removesuffix('.')}; see {where} --help", error.exit_code)


def _fail(message: str, code: int) -> None:
    err.print(f"offbeat: {message}", markup=False, soft_wrap=True)
    sys.exit(code)

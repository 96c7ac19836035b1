"""The way of a recipe from the command line to the first event: the modules in which it stays, in order.

    python scripts/trace_recipe.py [RECIPE]

Runs `offbeat run RECIPE` for one task with a profiler. A call counts if a function of `offbeat` is given what
the run is: the recipe, its document while it is read, the experiment, or a value that holds one of these (a
prepared run, a simulated run, a setting). `self` and generated code do not count. Successive calls
into one module are one stay. A stay in a module that was left before is a return.
"""

import dataclasses
import sys
import tempfile
from pathlib import Path
from types import FrameType
from typing import Any

from typer.testing import CliRunner

from offbeat.cli.commands import app
from offbeat.experiment import Experiment
from offbeat.recipes.recipe import Recipe
from offbeat.sim.simulation import Simulation

DOCUMENT = frozenset({"clients", "until", "algorithm"})
"""Keys by which a mapping is told to be a recipe's document."""


class Trace:
    """Names of the modules that a recipe is given to, in order, and the first function of each stay."""

    def __init__(self) -> None:
        self.stays: list[tuple[str, str]] = []
        self._over = False

    def profile(self, frame: FrameType, event: str, _: Any) -> None:
        """A profile function, for `sys.setprofile`."""
        name, code = frame.f_globals.get("__name__", ""), frame.f_code
        if self._over or event != "call" or not name.startswith("offbeat."):
            return
        if code is Simulation.start.__code__:
            self._over = True
        if code.co_filename.startswith("<") or code.co_name.startswith("<"):
            return
        count = code.co_argcount + code.co_kwonlyargcount
        given = any(holds(frame.f_locals.get(v)) for v in code.co_varnames[:count] if v != "self")
        if given and (not self.stays or self.stays[-1][0] != name):
            self.stays.append((name, code.co_qualname))


def holds(value: Any, depth: int = 2) -> bool:
    """Whether a value is what the run is, or holds it."""
    if isinstance(value, Recipe | Experiment):
        return True
    if isinstance(value, dict):
        return value.keys() >= DOCUMENT
    if depth and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return any(holds(getattr(value, f.name, None), depth - 1) for f in dataclasses.fields(value))
    return False


def trace_recipe(recipe: str) -> list[tuple[str, str]]:
    """Module and first function of each stay, from the command to the simulation's first event.

    Args:
        recipe: Name of a built-in recipe, or path of one.

    Raises:
        SystemExit: The command failed.
    """
    trace = Trace()
    with tempfile.TemporaryDirectory() as place:
        command = ["run", recipe, "--set", "until.tasks=1", "--out", str(Path(place) / "run")]
        sys.setprofile(trace.profile)
        try:
            answer = CliRunner().invoke(app, command)
        finally:
            sys.setprofile(None)
    if answer.exit_code:
        raise SystemExit(f"offbeat {' '.join(command)} failed: {answer.output or answer.exception}")
    return trace.stays


def main() -> None:
    """Trace and print."""
    stays = trace_recipe(sys.argv[1] if sys.argv[1:] else "digits")
    for number, (module, function) in enumerate(stays, 1):
        print(f"{number:3}  {module.removeprefix('offbeat.'):28} {function}")
    rooms = len({module for module, _ in stays})
    print(f"{len(stays)} stays in {rooms} modules, {len(stays) - rooms} returns")


if __name__ == "__main__":
    main()

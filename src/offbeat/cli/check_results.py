"""The results of checks, as lines or as JSON, and the exit code."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from offbeat.cli.console import out, print_json

if TYPE_CHECKING:
    from offbeat.net.check import CheckResult


def show_results(results: "Sequence[CheckResult]", *, as_json: bool) -> None:
    """Print the results. Ends with exit code 1 if a check has failed."""
    if as_json:
        print_json(list(results))
    else:
        width = max(len(result.name) for result in results)
        for result in results:
            line = f"{'PASS' if result.passed else 'FAIL'}  {result.name:{width}}  {result.text}"
            out.print(line, markup=False, soft_wrap=True)
    if not all(result.passed for result in results):
        raise typer.Exit(1)

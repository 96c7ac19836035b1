"""Runs checks, and prints their results as lines or as JSON."""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import typer

from offbeat.cli.console import out, print_json

if TYPE_CHECKING:
    from offbeat.net.checks import Check, SetUp


def show_checks(checks: "Iterable[Check[SetUp]]", set_up: "SetUp", *, as_json: bool) -> None:
    """Run the checks and print the results. Ends with exit code 1 if a check has failed."""
    from offbeat.net.checks import run_checks

    results = list(run_checks(checks, set_up))
    if as_json:
        print_json(list(results))
    else:
        width = max(len(result.name) for result in results)
        for result in results:
            line = f"{'PASS' if result.passed else 'FAIL'}  {result.name:{width}}  {result.text}"
            out.print(line, markup=False, soft_wrap=True)
    if not all(result.passed for result in results):
        raise typer.Exit(1)

"""The commands that read runs: report and replay."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.json import encode

from offbeat.cli.allow import AllowOption, allowed_names
from offbeat.cli.common_options import (
    AsJson,
    Baseline,
    Directories,
    Directory,
    MetricName,
    Tables,
    Target,
    choose_goal,
)
from offbeat.cli.console import err, out, print_json
from offbeat.cli.feature_statistics_table import show_statistics, statistics_document
from offbeat.core.errors import UsageError, reason_of
from offbeat.core.extras import requires_extra
from offbeat.documents import user_path

if TYPE_CHECKING:
    from offbeat.report.static import Form
    from offbeat.runs.record import RunRecord

STATISTICS = "statistics"
"""The word that stands in the recipe of a run that gathers statistics in place of a model's name."""


def report(
    directories: Directories,
    output: Annotated[Path, typer.Option("-o", "--out", help="file for the page")] = Path("report.html"),
    figures: Annotated[
        list[str] | None,
        typer.Option(metavar="FORM:DIR", help="figures as png, svg or pdf in a directory; may be repeated"),
    ] = None,
    clients_csv: Annotated[
        Path | None, typer.Option(help="CSV file for every evaluation of every client")
    ] = None,
    tables: Tables = None,
    target: Target = None,
    metric: MetricName = None,
    baseline: Baseline = None,
    title: Annotated[str | None, typer.Option(help="heading of the page")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one self-contained page about runs.

    Of a run that has gathered statistics of features, these are printed too.
    """
    from offbeat.recipes.standardize import read_statistics
    from offbeat.report import clients_csv as to_csv
    from offbeat.report import make_table, write_figures, write_html, write_table
    from offbeat.report.labels import group_by_label, in_recipe_order
    from offbeat.report.table_files import table_format
    from offbeat.runs.record import find_runs

    for path in tables or ():
        table_format(path)
    places = [_figures(text) for text in figures or ()]
    records = in_recipe_order([record for directory in directories for record in find_runs(directory)])
    known = records[0].recipe or {}
    measured, goal = choose_goal(metric, target, known.get("metric"), known.get("target"))
    usual = known.get("baseline")
    names = {name for group in group_by_label(records) for name in (group.label.text, group.label.name)}
    base = baseline or (usual if usual in names else None)
    heading = title or known.get("title") or "Offbeat report"
    try:
        page = write_html(records, output, target=goal, metric=measured, baseline=base, title=heading)
        lines = [f"wrote {page}"]
        for form, place in places:
            written = write_figures(records, place, target=goal, metric=measured, baseline=base, form=form)
            lines.append(f"wrote {len(written)} figures to {place}")
        if tables:
            table = make_table(records, target=goal, metric=measured, baseline=base)
            lines += [f"wrote {write_table(table, path)}" for path in tables]
        if clients_csv is not None:
            clients_csv.write_text(to_csv(records), encoding="utf-8")
            lines.append(f"wrote {clients_csv}")
    except OSError as error:
        place = error.filename or output
        raise UsageError(
            f"the report cannot be written: {place} ({reason_of(error)}); give another place"
        ) from None
    gathered = {str(record.path): read_statistics(record.path) for record in records if _gathered(record)}
    if as_json:
        statistics = {path: statistics_document(summary) for path, summary in gathered.items()}
        print_json({"wrote": [line.removeprefix("wrote ") for line in lines], "statistics": statistics})
        return
    for line in lines:
        out.print(line, markup=False)
    for summary in gathered.values():
        show_statistics(summary)


def _figures(text: str) -> "tuple[Form, Path]":
    """The form and the directory of a value of `--figures`. Raises `UsageError`."""
    given, _, place = text.partition(":")
    forms: tuple[Form, ...] = ("png", "svg", "pdf")
    form = next((form for form in forms if form == given), None)
    if form is None or not place:
        raise UsageError(f"--figures {text} is not allowed: give png:DIR, svg:DIR or pdf:DIR")
    return form, user_path(place)


def _gathered(record: "RunRecord") -> bool:
    """Whether a run has gathered statistics of features, all of them."""
    model = (record.recipe or {}).get("model")
    name = model.get("name") if isinstance(model, dict) else model
    return name == STATISTICS and record.status == "finished"


def replay(
    directory: Directory,
    without: Annotated[
        str | None,
        typer.Option(metavar="SITE", help="repeat a deployed run with the updates of all other sites"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--out", metavar="FILE", help="with --without: file for the model, .safetensors"),
    ] = None,
    test: Annotated[
        str | None,
        typer.Option(
            metavar="DATA", help="with --without: DATASET, module:function or none; default: the recipe's"
        ),
    ] = None,
    prints: Annotated[
        bool, typer.Option("--print", help="print the journal instead: a JSON line per event or command")
    ] = False,
    kind: Annotated[
        str | None,
        typer.Option(help="with --print: only events, only commands, or only entries of one name"),
    ] = None,
    allow: AllowOption = None,
    as_json: AsJson = False,
) -> None:
    """Check that a run's events give its recorded commands.

    The events are fed to a fresh state machine.
    """
    from offbeat.runs.record import read_run

    if prints:
        others = {"--without": without, "--out": output, "--test": test, "--json": as_json}
        if given := [option for option, value in others.items() if value]:
            raise UsageError(f"--print replays nothing, and prints JSON: leave out {', '.join(given)}")
        _print_journal(read_run(directory), kind)
        return
    if kind is not None:
        raise UsageError(f"--kind {kind} needs --print, which prints the journal")
    record, allowed = read_run(directory), allowed_names(allow, [directory])
    if without is not None:
        with requires_extra("net"):
            from offbeat.cli.without_site import replay_without_site
        replay_without_site(record, without, output, test, allowed, as_json=as_json)
        return
    if output is not None or test is not None:
        option = "--out" if output is not None else "--test"
        raise UsageError(f"{option} needs --without SITE: a replay alone makes no model")
    from offbeat.recipes.build import recorded_algorithm
    from offbeat.sim.replay import replay as replay_run

    result = replay_run(record, recorded_algorithm(record, allowed))
    if as_json:
        print_json(result)
    elif result.difference is None:
        out.print(f"identical: {result.events} events gave the {result.commands} recorded commands")
    if result.difference is not None:
        err.print(f"offbeat: the replay differs at {result.difference}", markup=False, soft_wrap=True)
        raise typer.Exit(1)


def _print_journal(record: "RunRecord", kind: str | None) -> None:
    """Print the journal of a run, or its entries of one kind or name."""
    from offbeat.core.journal import COMMAND_NAMES, EVENT_NAMES
    from offbeat.core.validation import did_you_mean

    wanted = {"event": "event", "events": "event", "command": "command", "commands": "command"}
    known = (*wanted, *EVENT_NAMES, *COMMAND_NAMES)
    if kind is not None and kind not in known:
        raise UsageError(f"--kind {kind} is unknown{did_you_mean(kind, known)}")
    for row in record.rows():
        if kind is None or row.kind == wanted.get(kind) or row.name == kind:
            sys.stdout.write(f"{encode(row.flat()).decode()}\n")

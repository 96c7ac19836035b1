"""The commands about a deployed run: how it stands, and what a simulation of it says."""

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, get_args

import typer
from rich.markup import escape
from rich.table import Table

from offbeat.cli.console import RunWatcher, duration, live_display, out, size_text, summary_lines
from offbeat.core.errors import UsageError
from offbeat.core.validation import did_you_mean
from offbeat.net.monitor.client import fetch_snapshot
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.net.monitor.snapshot import Snapshot
from offbeat.recipes.build import run_recipe
from offbeat.recipes.from_run import Like, fit_run, simulate_like, world_text
from offbeat.runs.record import read_run
from offbeat.world.fit import Fit, Speeds
from offbeat.world.trace import trace_text
from offbeat.world.world import World

TOKEN_VARIABLE = "OFFBEAT_TOKEN"


def status(
    target: Annotated[str, typer.Argument(metavar="DIR|URL", help="a run's directory, or its live page")],
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help=f"file with the page's token; else ${TOKEN_VARIABLE}")
    ] = None,
    ca: Annotated[Path | None, typer.Option("--ca", help="certificates to trust, of a page with TLS")] = None,
    unencrypted: Annotated[
        bool, typer.Option("--unencrypted", help="let the token cross the network readable")
    ] = False,
) -> None:
    """Show the sites of a run and how it stands, from its directory or its live page."""
    if target.startswith(("http://", "https://")):
        snapshot = fetch_snapshot(target, token=_token(token_file), ca=ca, unencrypted=unencrypted)
        state = "running" if snapshot.stopped is None else f"ended: {snapshot.stopped}"
    else:
        if token_file is not None or ca is not None or unencrypted:
            raise UsageError(
                f"--token-file, --ca and --unencrypted are for a live page: {target} is not a URL, which "
                "begins with http:// or https://"
            )
        record = read_run(target)
        snapshot = snapshot_of(record)
        state = record.status if record.stop_reason is None else f"{record.status}: {record.stop_reason}"
    _show(snapshot, state)


def simulate_like_command(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="a run's directory")],
    algorithm: Annotated[
        str | None,
        typer.Option("--algorithm", "-a", help="a label of its recipe, or a name; without it: its own"),
    ] = None,
    sets: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", min=0, help="the simulation's seed")] = None,
    speeds: Annotated[
        str, typer.Option("--speeds", help="jitter: a mean and a deviation per client; tasks: one by one")
    ] = "jitter",
    world_out: Annotated[
        Path | None, typer.Option("--world-out", help="file for the fitted world; a trace if *.csv")
    ] = None,
    place: Annotated[Path | None, typer.Option("--out", "-o", help="directory to write to")] = None,
    only_fit: Annotated[bool, typer.Option("--only-fit", help="fit the world and stop there")] = False,
) -> None:
    """Simulate a run's recipe, with another algorithm if you like, in a world fitted to its journal."""
    how = _speeds(speeds)
    if only_fit and (algorithm, sets, seed, place) != (None, None, None, None):
        raise UsageError("--only-fit simulates nothing: leave out --algorithm, --set, --seed and --out")
    record = read_run(directory)
    changes = [*(sets or ()), *([f"seed={seed}"] if seed is not None else [])]
    like: Like | None = None
    if only_fit:
        fit = fit_run(record, speeds=how)
    else:
        like = simulate_like(record, algorithm=algorithm, sets=changes, speeds=how)
        fit = like.fit
    _show_fit(fit)
    if world_out is not None:
        _write(world_out, fit.world if like is None else like.recipe.world)
    if like is None:
        return
    recipe = like.recipe
    where = place or Path("runs") / f"like-{directory.resolve().name}-{datetime.now():%Y%m%d-%H%M%S}"
    with live_display() as live:
        run = run_recipe(recipe, recipe.algorithm, seed=recipe.seed, out=where, watch=RunWatcher(live))
    for line in summary_lines(run.summary, run.stop_reason):
        out.print(line, markup=False)
    out.print(f"written to {where}; see both with: offbeat report {directory} {where}", markup=False)


# ---- what is shown ----


def _show(s: Snapshot, state: str) -> None:
    out.print(f"{s.label}: {state}; {duration(s.now)} on its clock", markup=False)
    out.print(
        f"version {s.version}, {s.arrived} updates arrived, {s.aggregated} aggregated, {s.dropped} dropped, "
        f"{s.lost} lost, {s.running} in training; up {size_text(s.bytes_up)}, down {size_text(s.bytes_down)}"
    )
    heads = ("site", "state", "task", "steps", "steps/s", "staleness", "updates", "samples", "last heard")
    table = Table(box=None, padding=(0, 2, 0, 0))
    for head in heads:
        table.add_column(head, justify="left" if head in ("site", "state") else "right", no_wrap=True)
    for site in s.sites:
        steps = f"{site.steps_done}/{site.steps}" if site.steps_done else str(site.steps)
        table.add_row(
            escape(_printable(site.name)), site.state, "–" if site.task is None else str(site.task),
            "–" if site.task is None else steps, f"{site.speed:.3g}" if site.speed else "–",
            str(site.staleness) if site.staleness >= 0 else "–", str(site.updates), str(site.samples),
            f"{duration(max(0.0, s.now - site.last_seen))} ago",
        )  # fmt: skip
    out.print(table)
    for reason, count in sorted(s.rejected.items()):
        out.print(f"rejected {count}: {_printable(reason)}", markup=False)


def _show_fit(fit: Fit) -> None:
    table = Table(
        "client", "updates", "lost", "s/step", "± %", "latency", "transfer", box=None, padding=(0, 2, 0, 0)
    )
    for c in fit.clients:
        table.add_row(
            str(c.client), str(c.arrived), str(c.lost), f"{c.seconds_per_step:.4g}", f"{100 * c.jitter:.1f}",
            f"{c.latency:.3g} s", f"{c.transfer:.3g} s",
        )  # fmt: skip
    out.print(table)
    for note in fit.notes:
        out.print(note, markup=False)


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else "?" for c in text)


# ---- options ----


def _token(file: Path | None) -> str | None:
    if file is None:
        return os.environ[TOKEN_VARIABLE].strip() if TOKEN_VARIABLE in os.environ else None
    try:
        return file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--token-file {file} cannot be read: {error}") from None


def _speeds(text: str) -> Speeds:
    for known in get_args(Speeds):
        if text == known:
            chosen: Speeds = known
            return chosen
    raise UsageError(f"--speeds {text} is unknown{did_you_mean(text, get_args(Speeds))}")


def _write(path: Path, world: World) -> None:
    as_trace = path.suffix == ".csv"
    try:
        text = trace_text(world) if as_trace else world_text(world)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--world-out {path} cannot be written: {error}") from None
    use = "name it as a recipe's world.trace" if as_trace else "put it into a recipe"
    out.print(f"world written to {path}; {use} to use it again", markup=False)

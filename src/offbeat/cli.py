"""The command line `offbeat`.

Exit codes: 0 done, 1 a run failed, 2 wrong usage, 130 interrupted.
"""

import json
import math
import os
import re
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from offbeat import cli_deploy, cli_serve, listing
from offbeat.algorithms import ALGORITHMS
from offbeat.console import CompareWatcher, RunWatcher, err, live_display, out, summary_lines
from offbeat.core.errors import OffbeatError, UsageError
from offbeat.core.journal import COMMAND_NAMES, EVENT_NAMES
from offbeat.core.validation import did_you_mean
from offbeat.recipes.build import recorded_algorithm, resume_run, run_recipe
from offbeat.recipes.compare import compare as run_comparison
from offbeat.recipes.compare import plan
from offbeat.recipes.load import built_in, load_recipe
from offbeat.recipes.recipe import Recipe
from offbeat.report.records import check_target
from offbeat.runs.record import RunRecord, find_runs, read_run
from offbeat.sim.batched import Batched
from offbeat.sim.ray_cluster import OnRay
from offbeat.sim.replay import replay as replay_run
from offbeat.sim.run import Run
from offbeat.version import __version__

TABLE_WIDTH = 100

app = typer.Typer(
    help="Asynchronous federated learning: simulate, compare, look.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

RecipeName = Annotated[
    str, typer.Argument(metavar="RECIPE", help="a recipe file, or the name of a built-in one")
]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="change the recipe")]
Scales = Annotated[
    list[str] | None, typer.Option("--scale", help="one of the recipe's own sets of changes; may be repeated")
]
Out = Annotated[Path | None, typer.Option("--out", "-o", help="directory to write to")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="a run's directory")]
Directories = Annotated[list[Path], typer.Argument(metavar="DIR...", help="runs, or directories of runs")]
Target = Annotated[float | None, typer.Option("--target", help="accuracy whose first time is measured")]
Baseline = Annotated[str | None, typer.Option("--baseline", help="label whose time is 1.00x")]
Workers = Annotated[str, typer.Option("--workers", help="worker processes: 0 trains in this one; or auto")]
Where = Annotated[
    str,
    typer.Option(
        "--executor", metavar="local|batched|ray",
        help="train on this machine, here many clients together, or on a Ray cluster",
    ),
]  # fmt: skip
RayAddress = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="ADDRESS",
        help="HOST:PORT of the Ray cluster's head, or auto; without it: $RAY_ADDRESS, or Ray here",
    ),
]  # fmt: skip
ClientMemory = Annotated[
    str | None,
    typer.Option(
        "--client-memory", metavar="SIZE",
        help="memory for what a run's clients keep, such as 512MB; the rest goes to files; without it: all",
    ),
]  # fmt: skip


_INTERRUPTED = 130
_CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]  # ClickException, typer's own or click's


def version_option(show: bool) -> None:
    """Print the version and leave."""
    if show:
        out.print(f"offbeat {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=version_option, is_eager=True, help="print the version")
    ] = False,
) -> None:
    """Asynchronous federated learning: simulate, compare, look."""


@app.command()
def algorithms(name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None) -> None:
    """List the algorithms and what they need, or one with its paper, its options and its parts."""
    if name is None:
        listing.show_algorithms(out)
    elif name in ALGORITHMS:
        listing.show_algorithm(out, ALGORITHMS[name])
    else:
        raise UsageError(f"algorithm {name} is unknown{did_you_mean(name, ALGORITHMS)}")


@app.command()
def recipes(name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None) -> None:
    """List the built-in recipes, or print one to start your own from."""
    known = built_in()
    if name is not None:
        if name not in known:
            raise UsageError(f"recipe {name} is not built in{did_you_mean(name, known)}")
        print(known[name].read_text(encoding="utf-8"), end="")  # noqa: T201
        return
    table = Table("recipe", "what it is", box=None, padding=(0, 2, 0, 0))
    for recipe in known:
        table.add_row(recipe, load_recipe(recipe).title)
    out.print(table)


@app.command()
def run(
    recipe: RecipeName,
    sets: Sets = None,
    scales: Scales = None,
    seed: Annotated[int | None, typer.Option("--seed", help="the run's seed")] = None,
    directory: Out = None,
    workers: Workers = "0",
    executor: Where = "local",
    ray_address: RayAddress = None,
    client_memory: ClientMemory = None,
) -> None:
    """Simulate a recipe's algorithm."""
    loaded = load_recipe(recipe, sets=sets or (), scales=scales or (), seed=seed)
    place = directory or _new_directory(recipe)
    memory = _size("--client-memory", client_memory)
    count, trainer = _trainers(workers, executor, ray_address)
    with live_display() as live:
        finished = run_recipe(
            loaded, loaded.algorithm, seed=loaded.seed, out=place,
            workers=count, executor=trainer, watch=RunWatcher(live), client_memory=memory,
        )  # fmt: skip
    _show_run(finished)


@app.command()
def resume(
    directory: Directory,
    workers: Workers = "0",
    executor: Where = "local",
    ray_address: RayAddress = None,
    client_memory: ClientMemory = None,
) -> None:
    """Go on with an interrupted run, from its last checkpoint; it ends as if never interrupted."""
    memory = _size("--client-memory", client_memory)
    count, trainer = _trainers(workers, executor, ray_address)
    record = read_run(directory)
    if record.status == "finished":
        out.print(f"{directory} has finished already: {record.stop_reason}")
        return
    with live_display() as live:
        finished = resume_run(
            directory, workers=count, executor=trainer, watch=RunWatcher(live), client_memory=memory
        )
    _show_run(finished)


@app.command()
def compare(
    recipe: RecipeName,
    labels: Annotated[
        str | None, typer.Option("--algorithms", "-a", metavar="A,B,C", help="labels; all of the recipe's")
    ] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="how many seeds")] = None,
    target: Target = None,
    baseline: Baseline = None,
    sets: Sets = None,
    scales: Scales = None,
    directory: Out = None,
    jobs: Annotated[str, typer.Option("--jobs", "-j", help="runs at the same time, or auto")] = "auto",
    executor: Where = "local",
    ray_address: RayAddress = None,
    client_memory: ClientMemory = None,
) -> None:
    """Run several algorithms under several seeds and print a table; call it again to go on."""
    loaded = load_recipe(recipe, sets=sets or (), scales=scales or ())
    names = _labels(loaded, labels)
    place = directory or _new_directory(recipe)
    goal = target if target is not None else loaded.target
    check_target(goal)
    memory = _size("--client-memory", client_memory)
    processes = _count("--jobs", "1" if jobs == "auto" and executor == "ray" else jobs)
    _, trainer = _trainers("0", executor, ray_address, share=processes)
    planned = plan(loaded, names, seeds or loaded.seeds, place, client_memory=memory, executor=trainer)
    base = baseline or (loaded.baseline if loaded.baseline in names else None)
    if base is not None and base not in names:
        raise UsageError(f"--baseline {base} is not among the algorithms{did_you_mean(base, names)}")
    _make_directory(place)
    with live_display() as live:
        records = run_comparison(planned, processes, CompareWatcher(live, len(planned)))
    _print_table(records, goal, base)
    out.print(f"runs in {place}; see them with: offbeat report {place}", markup=False)


@app.command()
def report(
    directories: Directories,
    output: Annotated[Path, typer.Option("-o", "--output", help="the page")] = Path("report.html"),
    png: Annotated[Path | None, typer.Option("--png", help="directory for static figures too")] = None,
    target: Target = None,
    baseline: Baseline = None,
    title: Annotated[str | None, typer.Option("--title", help="heading of the page")] = None,
) -> None:
    """Write one self-contained interactive page about runs."""
    from offbeat.report import write_html, write_png

    records = [record for directory in directories for record in find_runs(directory)]
    known = records[0].recipe or {}
    order = list(known.get("algorithms", {}))  # as the recipe has them, others after
    records.sort(key=lambda r: (order.index(r.label) if r.label in order else len(order), r.label, r.seed))
    goal = target if target is not None else known.get("target")
    base = baseline or _usual_baseline(known, records)
    heading = title or known.get("title") or "Offbeat report"
    try:
        page = write_html(records, output, target=goal, baseline=base, title=heading)
        figures = write_png(records, png, target=goal, baseline=base) if png else []
    except OSError as error:
        raise UsageError(f"the report cannot be written: {error}") from None
    out.print(f"wrote {page}", markup=False)
    if figures:
        out.print(f"wrote {len(figures)} figures to {png}", markup=False)


@app.command()
def journal(
    directory: Directory,
    kind: Annotated[
        str | None, typer.Option("--kind", help="only events, only commands, or only entries of one name")
    ] = None,
) -> None:
    """Print a run's journal as JSON lines: one object an event or command."""
    wanted = {"event": "event", "events": "event", "command": "command", "commands": "command"}
    known = (*wanted, *EVENT_NAMES, *COMMAND_NAMES)
    if kind is not None and kind not in known:
        raise UsageError(f"--kind {kind} is unknown{did_you_mean(kind, known)}")
    for entry in read_run(directory).journal():
        if kind is None or entry["kind"] == wanted.get(kind) or entry["name"] == kind:
            print(json.dumps({k: _finite(v) for k, v in entry.items()}, allow_nan=False))  # noqa: T201


@app.command()
def replay(directory: Directory) -> None:
    """Feed a run's events to a fresh state machine and check that it gives the recorded commands."""
    record = read_run(directory)
    result = replay_run(record, recorded_algorithm(record))
    if result.difference is not None:
        err.print(f"offbeat: the replay differs at {result.difference}", markup=False, soft_wrap=True)
        raise typer.Exit(1)
    out.print(f"identical: {result.events} events gave the {result.commands} recorded commands")


app.command()(cli_serve.serve)
app.command()(cli_serve.join)
app.command()(cli_serve.stop)
app.command()(cli_serve.enrol)
app.command(name="dashboard-token")(cli_serve.dashboard_token)
app.command()(cli_deploy.status)
app.command(name="simulate-like")(cli_deploy.simulate_like_command)


def main() -> None:
    """Run the command line; every expected error is one line on stderr."""
    try:
        code = app(standalone_mode=False) or 0
        if code == _INTERRUPTED:
            raise KeyboardInterrupt
        sys.exit(code)
    except _CommandLineError as error:
        _fail_of_command_line(error)
    except UsageError as error:
        _fail(str(error), 2)
    except OffbeatError as error:
        _fail(str(error), 1)
    except KeyboardInterrupt:
        hint = "interrupted; go on with: offbeat resume DIR, or the same compare command with its --out"
        _fail(hint, _INTERRUPTED)
    except BrokenPipeError:  # the reader of a pipe has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail_of_command_line(error: Any) -> None:
    """An unknown option and the like; a command without any argument shows its help."""
    message = error.format_message()
    if "\n" in message:
        error.show()
        sys.exit(error.exit_code)
    where = error.ctx.command_path if error.ctx is not None else "offbeat"
    _fail(f"{message.removesuffix('.')}; see {where} --help", error.exit_code)


def _fail(message: str, code: int) -> None:
    err.print(f"offbeat: {message}", markup=False, soft_wrap=True)
    sys.exit(code)


def _new_directory(recipe: str) -> Path:
    return Path("runs") / f"{Path(recipe).stem}-{datetime.now():%Y%m%d-%H%M%S}"


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write runs to {directory}: {error}") from None


def _count(option: str, text: str, least: int = 1) -> int:
    if text == "auto":
        return os.cpu_count() or 1
    if not text.isdecimal() or int(text) < least:
        raise UsageError(f"{option} {text} is not allowed: give a number from {least}, or auto")
    return int(text)


_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


def _size(option: str, text: str | None) -> int | None:
    """Bytes of a size such as 512MB; None stays None."""
    if text is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d+)?) *([A-Z]*)", text.strip().upper(), re.ASCII)
    if match is None or match[2] not in _UNITS:
        raise UsageError(
            f"{option} {text} is not allowed: give bytes, or a number with KB, MB, GB, KiB, MiB or GiB, "
            "such as 512MB"
        )
    return int(float(match[1]) * _UNITS[match[2]])


def _trainers(
    workers: str, executor: str, address: str | None, share: int = 1
) -> tuple[int, Batched | OnRay | None]:
    """How many worker processes, or which other executor; on Ray, no number of workers means all CPUs."""
    if executor not in ("local", "batched", "ray"):
        raise UsageError(f"--executor {executor} is unknown: give local, batched or ray")
    if executor == "ray":
        count = 0 if workers == "auto" else _count("--workers", workers, least=0)
        return 0, OnRay(address, count or None, share)
    if address is not None:
        raise UsageError(f"--ray-address {address} is not allowed without --executor ray")
    if executor == "batched" and workers != "0":
        raise UsageError(
            f"--workers {workers} is not allowed with --executor batched: it trains in this process"
        )
    return _count("--workers", workers, least=0), Batched() if executor == "batched" else None


def _labels(recipe: Recipe, labels: str | None) -> list[str]:
    known = {*recipe.algorithms, *ALGORITHMS}
    names = [n.strip() for n in labels.split(",")] if labels else list(recipe.algorithms)
    for name in names:
        if name not in known:
            raise UsageError(f"--algorithms {name} is unknown{did_you_mean(name, known)}")
    if not names or len(set(names)) < len(names):
        raise UsageError(
            f"--algorithms {labels} is not allowed: name each algorithm once, separated by commas"
        )
    return names


def _usual_baseline(recipe: dict[str, Any], records: list[RunRecord]) -> str | None:
    base = recipe.get("baseline")
    return base if any(record.label == base for record in records) else None


def _print_table(records: list[RunRecord], target: float | None, baseline: str | None) -> None:
    from offbeat.report import make_table, to_rich

    table = make_table(records, target=target, baseline=baseline)
    width = max(out.width, TABLE_WIDTH)  # on a narrower terminal whole lines wrap, and nothing is cut
    out.print(to_rich(table), width=width, crop=False, soft_wrap=False)
    _print_findings(records, width)


def _print_findings(records: list[RunRecord], width: int) -> None:
    """What the recipe's paper claims, where it claims something."""
    from offbeat.report import claims_of, findings, group_runs
    from offbeat.report.claims import cells

    found = findings(group_runs(records), claims_of(records[0].recipe))
    if found:
        table = Table("the paper says", "here", "gap", "seeds", "holds", box=None, padding=(0, 2, 0, 0))
        for one in found:
            table.add_row(one.says, *cells(one))
        out.print(table, width=width, crop=False, soft_wrap=False)


def _show_run(run: Run) -> None:
    for line in summary_lines(run.summary, run.stop_reason):
        out.print(line, markup=False)
    out.print(f"written to {run.path}; see it with: offbeat report {run.path}", markup=False)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


if __name__ == "__main__":
    main()

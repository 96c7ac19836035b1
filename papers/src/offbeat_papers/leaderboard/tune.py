"""Tune every algorithm of the leaderboard with the same budget, and write the study of each data set.

    python -m offbeat_papers.leaderboard.tune [DATA ...] [--jobs 1]

Eight trials a label and data set, on one world and two seeds that no study has: four learning rates, then
four values of the label's own option with the best of them (board.yaml). What decides is the time to the data
set's target. Called again it goes on from the rows in papers/results; without runs to make, it writes the
studies again: leaderboard/DATA.yaml of the package, which

    offbeat reproduce leaderboard/digits:board

runs on all worlds.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from offbeat.core.errors import RunError, UsageError
from offbeat.documents import parse_yaml
from offbeat.recipes.load import change
from offbeat.recipes.run_pool import RunProgress
from offbeat.recipes.trace import inline_trace
from offbeat_papers import ItemRows, Results, Trial, item_rows, load_study, tune
from offbeat_papers.folder import default_results
from offbeat_papers.leaderboard.command import parse_command
from offbeat_papers.leaderboard.ranks import blocks_of, rank

HERE = Path(__file__).parent
PLANS = HERE / "plans"
RESULTS = default_results().folder
TRIALS, SEEDS = 8, 2
LR = "training.lr"
Document = dict[str, Any]


@cache
def read_board(path: Path = PLANS / "board.yaml") -> Document:
    """The leaderboard's plan, read once. It must not be changed."""
    found: Document = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    return found


def data_recipe(board: Document, data: str) -> Document:
    """The recipe of a data set, not tuned."""
    recipe: Document = deepcopy(board["recipe"])
    for key, value in board["data"][data]["set"].items():
        change(recipe, key, deepcopy(value), f"data.{data}.set:")
    return recipe


def tune_label(board: Document, data: str, label: str, jobs: int = 1, results: Path = RESULTS) -> Trial:
    """The best of the label's trials."""
    recipe = data_recipe(board, data) | {"evaluate": {"seconds": board["recipe"]["evaluate"]["seconds"]}}
    rates, options = board["learning_rates"], board["options"][label]
    return best_trial(f"leaderboard/{data}-tuning", recipe, label, rates, options, jobs, results)


def best_trial(
    name: str,
    recipe: Document,
    label: str,
    learning_rates: Sequence[float],
    options: Sequence[Document],
    jobs: int = 1,
    results: Path = RESULTS,
    start: Document | None = None,
) -> Trial:
    """The best of eight trials: of the learning rates, then of other options with the best of them.

    Args:
        name: "folder/name" of the rows' file.
        recipe: The recipe, with the label's algorithm.
        label: The label.
        learning_rates: Those tried beside the recipe's.
        options: What is tried with the best one; "training.lr" is a multiple of it.
        jobs: Runs at the same time.
        results: Folder of the rows.
        start: Options of all trials but the first, unless they have others. None means none.
    """

    def best_of(settings: list[Document]) -> Trial:
        return tune(
            name, recipe, label, settings, trials=TRIALS, seeds=SEEDS, results=results, processes=jobs,
            watch=_watch,
        ).best  # fmt: skip

    first: Document = start or {}
    rates = [{LR: rate, **first} for rate in learning_rates]
    rate = best_of(rates).options.get(LR, recipe["training"]["lr"])
    scaled = [
        option | {LR: float(f"{rate * option[LR]:.3g}")} if LR in option else option for option in options
    ]
    return best_of([*rates, *({LR: rate} | first | option for option in scaled)])


def tuned_spec(spec: Document, trial: Trial, where: str) -> Document:
    """A label's algorithm with the options of a trial."""
    tuned = deepcopy(spec)
    for key, value in trial.options.items():
        section, _, option = key.partition(".")
        if section == "algorithm":
            change(tuned, option, value, where)
        else:
            tuned["set"] = {**tuned.get("set", {}), key: value}
    return tuned


def _watch(report: RunProgress) -> None:
    if report.finished:
        took = "" if report.processor is None else f": {report.processor:.1f} s"
        print(f"{report.name}{took}", flush=True)


def labels_of(board: Document, data: str) -> list[str]:
    """The labels that a data set has: all, or the best of the ranks by time, and FedAvg."""
    labels = list(board["options"])
    count = board["data"][data].get("best")
    if count is None:
        return labels
    everywhere = [name for name, plan in board["data"].items() if "best" not in plan]
    boards = read_boards(everywhere)
    blocks = blocks_of(boards, labels, "time") if len(boards) == len(everywhere) else {}
    if len(blocks) < len(everywhere) * len(board["worlds"]):
        raise UsageError(
            f"{data} has the best of {' and '.join(everywhere)}, which are not run: run them first"
        )
    best = {each.label for each in rank(labels, blocks)[:count]}
    return [label for label in labels if label in {*best, "fedavg"}]


def read_boards(names: Iterable[str], results: Path = RESULTS) -> dict[str, ItemRows]:
    """The rows of those of some data sets that are tuned."""
    paths = {name: HERE / f"{name}.yaml" for name in names}
    return {
        name: item_rows(load_study(path), "board", "laptop", Results(results))
        for name, path in paths.items()
        if path.exists()
    }


def tuned_study(board: Document, data: str, chosen: Mapping[str, Trial]) -> Document:
    """The study of a data set: each label with the options chosen, on every world."""
    recipe = data_recipe(board, data)
    specs = recipe["algorithms"]
    recipe["algorithms"] = {
        label: tuned_spec(specs[label], trial, f"{label}:") for label, trial in chosen.items()
    }
    title = board["data"][data]["title"]
    return {
        "title": f"Leaderboard on {title}", "paper": "", "recipe": recipe,
        "columns": {name: {"world": _world(world)} for name, world in board["worlds"].items()},
        "sizes": {"laptop": {}},
        "items": {"board": {"title": f"Every algorithm on {title}, tuned", "shows": "time"}},
    }  # fmt: skip


def _world(world: Document) -> Document:
    """The world with the values of its trace."""
    document: Document = {"world": deepcopy(world)}
    if "trace" in world:
        document["world"]["trace"] = str(PLANS / world["trace"])
    inline_trace(document)
    found: Document = json.loads(json.dumps(document["world"]))
    return found


def study_text(study: Document) -> str:
    """The study as its file has it."""
    head = "# Written by offbeat_papers.leaderboard.tune from board.yaml and the rows of the tuning.\n"
    return head + yaml.safe_dump(study, sort_keys=False, width=110)


def main() -> None:
    """Tune and write."""
    board = read_board()
    names, jobs = parse_command(__doc__, "data", board["data"])
    for data in names:
        chosen, failed = {}, []
        for label in labels_of(board, data):
            try:
                chosen[label] = tune_label(board, data, label, jobs)
            except RunError as error:
                failed.append(label)
                print(f"{data} {label} could not be tuned: {error}", flush=True)
                continue
            best = chosen[label]
            print(f"{data} {label}: {dict(best.options)} {best.score:.1f} s, {best.best:.3f}", flush=True)
        if failed:
            print(f"{data}: no study is written, as these are not tuned: {', '.join(failed)}", flush=True)
        else:
            (HERE / f"{data}.yaml").write_text(study_text(tuned_study(board, data, chosen)), encoding="utf-8")


if __name__ == "__main__":
    main()

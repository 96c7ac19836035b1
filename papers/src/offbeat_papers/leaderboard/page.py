"""Write the page of the leaderboard and its figure from the rows there are; nothing is run.

python -m offbeat_papers.leaderboard.page [--page docs/leaderboard.md] [--figure docs/images/leaderboard.png]
"""

import argparse
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from offbeat.report.figures import blank_figure, save, style_axes
from offbeat.report.palette import INK, MUTED
from offbeat.units import byte_unit
from offbeat.verdicts.average import LEAST_SEEDS
from offbeat.verdicts.cost import Cost
from offbeat_papers import ItemRows, Results
from offbeat_papers.interval import Interval
from offbeat_papers.leaderboard.ranks import Rank, blocks_of, improvement, rank
from offbeat_papers.leaderboard.tune import PLANS, RESULTS, SEEDS, TRIALS, read_board, read_boards
from offbeat_papers.measure import checkout
from offbeat_papers.provenance import uncommitted
from offbeat_papers.rows import ResultRow
from offbeat_papers.texts import Grid, markdown

BY = {"time": "time to the target", "final": "final accuracy", "worst": "the worst client's accuracy"}
NOT_RUN = "not run"
BASE = "fedavg"
FOLDER = "papers/src/offbeat_papers/leaderboard"


def everywhere(boards: Mapping[str, ItemRows]) -> dict[str, ItemRows]:
    """The boards that have every label of the plan."""
    labels = set(read_board()["options"])
    return {data: rows for data, rows in boards.items() if set(rows.study.labels) == labels}


def shared_labels(boards: Mapping[str, ItemRows]) -> list[str]:
    """The labels that all boards have, in the plan's order."""
    return [
        label
        for label in read_board()["options"]
        if all(label in rows.study.labels for rows in boards.values())
    ]


def ranks_by(boards: Mapping[str, ItemRows], by: str) -> list[Rank]:
    """The ranks of the labels that all boards have."""
    labels = shared_labels(boards)
    return rank(labels, blocks_of(boards, labels, by))


def has_enough_seeds(boards: Mapping[str, ItemRows]) -> bool:
    """Whether each ranked world has enough runs for the page to name a leader."""
    blocks = blocks_of(boards, shared_labels(boards), "time")
    return min((len(values) for values in blocks.values()), default=0) >= LEAST_SEEDS


def render(boards: Mapping[str, ItemRows], figure: str = "images/leaderboard.png") -> str:
    """The page."""
    board = read_board()
    recipe = board["recipe"]
    whole = everywhere(boards)
    best = {data: rows for data, rows in boards.items() if data not in whole}
    parts = [
        "# Leaderboard",
        "After this page you can say which algorithms were fast here, and add an algorithm to the "
        f"comparison. The page ranks {len(board['options'])} algorithms on {len(board['worlds'])} worlds, "
        f"each tuned with the same budget. {recipe['clients']} clients train all the time, for "
        f"{recipe['until']['seconds']} virtual seconds. A task has 20 local steps (FedCompass: 4 to 20; "
        "FedNova: two epochs).",
        f"An algorithm had {TRIALS} trials for a data set, on the world *normal* and {SEEDS} seeds that "
        "serve for tuning only. The first trials had four learning rates. The next trials had four values "
        "of the algorithm's option, with the best learning rate. The time to the target decided. "
        f"`{FOLDER}/plans/board.yaml` has all settings. The studies in the folder above have the chosen "
        "values. The algorithm `wireless` is left out because it needs a radio. There is no guard, and "
        "gradients are clipped at 10.",
        markdown(
            [["world", "what it is"], *([name, _world(world)] for name, world in board["worlds"].items())]
        ),
        "## Ranks",
        *_ranks(whole),
        f"![Mean ranks with intervals]({figure})",
        *(["### The best of them with other data", *_ranks(best)] if best else []),
        *(text for data in board["data"] for text in _data(board, data, boards.get(data))),
        "## Add a method of your own",
        *_own(board, boards),
        "## How to repeat",
        "\n".join(
            [
                "```console",
                f"$ python -m offbeat_papers.leaderboard.tune {' '.join(board['data'])}",
                *(f"$ offbeat reproduce leaderboard/{data}:board --jobs 1" for data in boards),
                "$ python -m offbeat_papers.leaderboard.page",
                "```",
            ]
        ),
        "The rows, tuning included, are in `papers/results/leaderboard-*.csv`. They took "
        f"{_hours(board['data']):.1f} processor hours. Each command makes the missing rows. "
        f"{_uncommitted(board['data'])} A bad rank says that an algorithm was slow here, with this much "
        "tuning, on small models and data. It does not say that the algorithm's paper is wrong.",
        "## Where to go on",
        "- [Algorithms](algorithms/index.md): the equations of each algorithm.\n"
        "- [Do the papers hold?](papers.md): the same algorithms in the papers' settings.\n"
        "- [Studies](studies.md): how rows are made and kept.",
    ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _hours(names: Iterable[str]) -> float:
    """Processor hours of the rows there are, tuning included."""
    results = Results(RESULTS)
    studies = [study for name in names for study in _studies(name)]
    return sum(row.processor or 0.0 for study in studies for row in results.rows(study).values()) / 3600


def _uncommitted(names: Iterable[str]) -> str:
    """How many rows are of commits that cannot be checked out."""
    results = Results(RESULTS)
    rows = [row for name in names for study in _studies(name) for row in results.rows(study).values()]
    number = uncommitted(row.commit for row in rows)
    return f"Of {len(rows)} rows {number} are of commits that nobody can check out."


def _world(world: Mapping[str, Any]) -> str:
    if "trace" in world:
        lines = (PLANS / world["trace"]).read_text(encoding="utf-8").splitlines()
        about = " ".join(line.removeprefix("# ") for line in lines if line.startswith("#"))
        return f"{about} (`{FOLDER}/plans/{world['trace']}`)"
    speed = world["seconds_per_step"]
    options = ", ".join(
        f"{name} {100 * value:g} % of the mean" if name in ("std", "minimum") else f"{name} {value:g}"
        for name, value in speed.items()
        if name != "law"
    )
    lost = world.get("availability", {}).get("dropout")
    more = f"; {100 * lost:g} % of all tasks are lost" if lost else ""
    return f"seconds a step: {speed['law']}, {options}; 5 % jitter{more}"


def _ranks(boards: Mapping[str, ItemRows]) -> Iterator[str]:
    labels = shared_labels(boards)
    ranks_of = {by: ranks_by(boards, by) for by in BY}
    blocks = blocks_of(boards, labels, "time")
    planned = sum(len(rows.study.columns) for rows in boards.values())
    if not ranks_of["time"]:
        yield f"Not run: no world has the runs of all {len(labels)} algorithms yet."
        return
    lead = [each.label for each in ranks_of["time"] if not each.behind]
    seeds = sorted({len(values) for values in blocks.values()})
    enough = has_enough_seeds(boards)
    lead_text = (
        f"By time to the target {lead[0]} leads alone."
        if len(lead) == 1
        else f"By time to the target no winner can be told among {len(lead)}: {', '.join(lead)}."
    )
    titles = ", ".join(read_board()["data"][data]["title"] for data in boards)
    yield (
        f"The table has mean ranks over {len(blocks)} of {planned} pairs of a world and a data set "
        f"({titles}), with {', '.join(map(str, seeds))} runs for each pair. Rank 1 is best, and ties share "
        "the mean. The 95 % interval is by the t of [the rule of claims](studies.md#the-questions). Seeds "
        "vary and worlds are fixed, so an interval is about these worlds only. "
        + (
            "Bold ranks are not behind the first rank (by the t of the paired difference, after Benjamini "
            f"and Hochberg at 5 %). {lead_text}"
            if enough
            else f"With fewer than {LEAST_SEEDS} runs for each pair, the page names no leader."
        )
    )
    places = {by: {each.label: each for each in ranks} for by, ranks in ranks_of.items()}
    rows = [
        [each.label, *(_rank_text(places[by].get(each.label), enough) for by in BY)]
        for each in ranks_of["time"]
    ]
    yield markdown([["algorithm", *BY.values()], *rows])
    yield (
        "The next table has failures and costs of the same runs. *Faster* is the probability of "
        f"improvement: how often the algorithm reaches the target before {BASE}, over worlds and seeds. A "
        "tie counts half. The 95 % interval is missing where all seeds agree. Processor seconds come from "
        "several kinds of processor."
    )
    yield markdown(_costs(boards, [each.label for each in ranks_of["time"]]))


def _costs(boards: Mapping[str, ItemRows], labels: Sequence[str]) -> Grid:
    """By label: its probability of being faster than FedAvg, its failures, and the cost of a run."""
    ahead = improvement(labels, blocks_of(boards, labels, "time"), BASE)
    lines = []
    for label in labels:
        runs = [row for rows in boards.values() for row in _rows_of(rows, label)]
        times = [
            cost for rows in boards.values() for world in rows.study.columns
            for cost in rows.amounts((label, world), "time").values() if isinstance(cost, Cost)
        ]  # fmt: skip
        there = sum(cost.reached for cost in times)
        seconds = [row.processor for row in runs if row.processor is not None]
        lines.append([
            label, _percent(ahead.get(label)), f"{there} of {len(times)}",
            str(sum(row.diverged for row in runs)),
            _bytes(mean(row.bytes_up + row.bytes_down for row in runs)),
            f"{mean(seconds):.1f} s" if seconds else NOT_RUN,
        ])  # fmt: skip
    heads = ["algorithm", "faster", "target reached", "diverged", "bytes a run", "processor a run"]
    return [heads, *lines]


def _rows_of(rows: ItemRows, label: str) -> list[ResultRow]:
    return [row for world in rows.study.columns for row in rows.runs.get((label, world), {}).values()]


def _percent(found: Interval | None) -> str:
    if found is None:
        return "–"
    interval = f" [{100 * found.low:.0f}, {100 * found.high:.0f}]" if found.low < found.high else ""
    return f"{100 * found.mean:.0f} %{interval}"


def _own(board: Mapping[str, Any], boards: Mapping[str, ItemRows]) -> Iterator[str]:
    """How a user's own method gets onto the page, and the runs that it needs."""
    names, seeds = list(everywhere(boards)), board["recipe"]["seeds"]
    best = max((plan.get("best", 0) for plan in board["data"].values()), default=0)
    yield (
        "1. [Add the algorithm](add-an-algorithm.md): a file, its test and its page.\n"
        f"2. Add two lines to `{FOLDER}/plans/board.yaml`. The line below `recipe.algorithms` has the "
        "options\n"
        "   of the algorithm's paper and 20 local steps per task. The line below `options` has four more "
        "values\n"
        "   of one option.\n"
        "3. Commit the change, because rows of a checkout with changes are marked. Run the first command\n"
        "   below. It tunes the algorithm, and writes the options that it chose into the studies. Commit\n"
        "   the studies. Then run the other commands. They make only the new algorithm's runs, because\n"
        "   the other rows exist, and rank all.\n"
        "4. Send the rows and the pages with the change."
    )
    runs = TRIALS * SEEDS + len(board["worlds"]) * seeds
    yield (
        f"For each data set the commands run {TRIALS} trials with {SEEDS} seeds each on the world *normal*. "
        "These trials choose the learning rate and the option. Then the commands run "
        f"{seeds} seeds on each of {len(board['worlds'])} worlds. These are {runs} runs per data set. For "
        f"{len(names)} data sets they take {_minutes(names, runs):.0f} processor minutes, by the mean of the "
        f"existing rows. Further data sets have only the best {best} algorithms and FedAvg."
    )


def _minutes(names: Sequence[str], runs: int) -> float:
    """Processor minutes of a number of runs with each of some data sets."""
    results = Results(RESULTS)
    means = [
        [row.processor for study in _studies(name) for row in results.rows(study).values() if row.processor]
        for name in names
    ]
    return sum(runs * mean(seconds) for seconds in means if seconds) / 60


def _studies(data: str) -> list[str]:
    return [f"leaderboard/{data}{kind}" for kind in ("", "-tuning")]


def _rank_text(found: Rank | None, enough: bool) -> str:
    if found is None:
        return NOT_RUN
    text = f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"
    return text if found.behind or not enough else f"**{text}**"


def _data(board: Mapping[str, Any], data: str, rows: ItemRows | None) -> Iterator[str]:
    plan = board["data"][data]
    yield f"## {plan['title']}"
    if rows is None and "best" in plan:
        yield f"Not run: the best {plan['best']} algorithms and FedAvg follow after all runs above."
        return
    target = plan["set"]["target"]
    if rows is None:
        yield "Not run: it is not tuned yet."
        return
    yield (
        f"{rows.made_as_planned} of {rows.planned} runs exist. Each world's column has the seconds to "
        f"{target:.0%}, as a geometric mean over seeds. `>` and a count such as 2/3 mark worlds where some "
        "seeds did not reach the target. The other columns are over all worlds: the final accuracy, the "
        "bytes of a whole run, the worst client's final accuracy, and the values chosen in tuning."
    )
    heads = ["algorithm", *rows.study.columns, "final", "bytes", "worst client", "chosen"]
    yield markdown([heads, *_lines(rows)])


def _lines(rows: ItemRows) -> Grid:
    lines = []
    for label in rows.study.labels:
        times = [
            _time_text(list(rows.amounts((label, world), "time").values())) for world in rows.study.columns
        ]
        found = _rows_of(rows, label)
        final, worst = (
            [value for row in found if (value := row.value(kind, rows.metric)) is not None]
            for kind in ("final", "worst")
        )
        size = _bytes(mean(row.bytes_up + row.bytes_down for row in found)) if found else NOT_RUN
        lines.append([label, *times, _share(final), size, _share(worst), _chosen(rows, label)])
    return lines


def _time_text(amounts: Sequence[Cost | float]) -> str:
    costs = [amount for amount in amounts if isinstance(amount, Cost)]
    if not costs:
        return NOT_RUN
    there = sum(cost.reached for cost in costs)
    middle = exp(mean(log(max(cost.amount, 1e-9)) for cost in costs))
    some = "" if there == len(costs) else f" ({there}/{len(costs)})"
    return f"{'' if there == len(costs) else '> '}{middle:.1f}{some}"


def _bytes(size: float) -> str:
    unit = byte_unit(size)
    return f"{size / unit.size:.1f} {unit.name}"


def _share(values: Sequence[float]) -> str:
    return f"{100 * mean(values):.1f} %" if values else NOT_RUN


def _chosen(rows: ItemRows, label: str) -> str:
    given, tuned = read_board()["recipe"]["algorithms"][label], rows.study.recipe["algorithms"][label]
    rate = tuned.get("set", {}).get("training.lr", rows.study.recipe["training"]["lr"])
    own = {name: value for name, value in tuned.items() if name != "set" and given.get(name) != value}
    flat = [(name, value) for name, value in own.items() if not isinstance(value, dict)]
    flat += [pair for value in own.values() if isinstance(value, dict) for pair in value.items()]
    return ", ".join([f"lr {rate:g}", *(f"{name} {value}" for name, value in flat)])


def draw(boards: Mapping[str, ItemRows], path: Path) -> bool:
    """Draw the ranks with their intervals; False where there are none."""
    rank_of = {by: {each.label: each for each in ranks_by(boards, by)} for by in BY}
    order, enough = list(rank_of["time"])[::-1], has_enough_seeds(boards)
    if not order:
        return False
    figure = blank_figure(10.5, 0.26 * len(order) + 1.2)
    panels = figure.subplots(1, len(BY), sharey=True)
    for ax, (by, title) in zip(panels, BY.items(), strict=True):
        style_axes(ax, "x")
        ax.set_title(title, loc="left", fontsize=10, color=INK)
        for place, label in enumerate(order):
            each = rank_of[by].get(label)
            if each is None:
                continue
            colour = MUTED if each.behind or not enough else "#1f6feb"
            ax.plot([each.low, each.high], [place, place], color=colour, linewidth=1.6)
            ax.plot([each.mean], [place], marker="o", markersize=4.5, color=colour)
        ax.set_xlabel("mean rank, 1 is best", fontsize=9)
    panels[0].set_yticks(range(len(order)), order)
    save(figure, path)
    return True


def main() -> None:
    """Write both."""
    root = checkout() or Path()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--page", type=Path, default=root / "docs" / "leaderboard.md")
    parser.add_argument("--figure", type=Path, default=root / "docs" / "images" / "leaderboard.png")
    words = parser.parse_args()
    boards = read_boards(read_board()["data"])
    for path in (words.page, words.figure):
        path.parent.mkdir(parents=True, exist_ok=True)
    beside = os.path.relpath(words.figure, words.page.parent).replace(os.sep, "/")
    words.page.write_text(render(boards, beside), encoding="utf-8")
    print(f"wrote {words.page}")
    if draw(everywhere(boards), words.figure):
        print(f"wrote {words.figure}")


if __name__ == "__main__":
    main()

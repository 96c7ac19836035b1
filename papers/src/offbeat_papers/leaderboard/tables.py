"""The tables of the leaderboard and its figure, from the rows there are; nothing is run."""

from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from statistics import mean
from typing import Any

from offbeat.report.figures import blank_figure, save, style_axes
from offbeat.report.palette import INK, MUTED
from offbeat.units import byte_unit
from offbeat.verdicts.average import LEAST_SEEDS
from offbeat.verdicts.cost import Cost
from offbeat_papers import ItemRows
from offbeat_papers.interval import Interval
from offbeat_papers.leaderboard.ranks import Rank, blocks_of, improvement, rank
from offbeat_papers.leaderboard.tune import PLANS, read_board
from offbeat_papers.rows import ResultRow
from offbeat_papers.texts import Grid

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


def groups_of(boards: Mapping[str, ItemRows]) -> list[dict[str, ItemRows]]:
    """The boards that are ranked together: those of every algorithm, and those of the best ones only."""
    whole = everywhere(boards)
    best = {data: rows for data, rows in boards.items() if data not in whole}
    return [group for group in (whole, best) if group]


def world_grid() -> Grid:
    """The worlds of the leaderboard."""
    return [
        ["world", "what it is"],
        *([name, _world(world)] for name, world in read_board()["worlds"].items()),
    ]


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


def titles_of(boards: Mapping[str, ItemRows]) -> str:
    """The data sets of some boards, in words."""
    return ", ".join(read_board()["data"][data]["title"] for data in boards)


def ranking_grid(boards: Mapping[str, ItemRows]) -> Grid:
    """A row for each group of boards: what its ranks rest on, and who leads."""
    heads = ["data sets", "worlds with data sets", "runs of each", "leaders by time to the target"]
    return [heads, *map(_ranking, groups_of(boards))]


def _ranking(boards: Mapping[str, ItemRows]) -> list[str]:
    blocks = blocks_of(boards, shared_labels(boards), "time")
    planned = sum(len(rows.study.columns) for rows in boards.values())
    seeds = sorted({len(values) for values in blocks.values()})
    if has_enough_seeds(boards):
        leaders = ", ".join(each.label for each in ranks_by(boards, "time") if not each.behind)
    else:
        leaders = f"nobody: there are fewer than {LEAST_SEEDS} runs of each"
    return [titles_of(boards), f"{len(blocks)} of {planned}", ", ".join(map(str, seeds)), leaders]


def rank_grid(boards: Mapping[str, ItemRows]) -> Grid:
    """A row for each algorithm of each group of boards: its ranks, its failures and the cost of a run."""
    heads = [
        "data sets", "algorithm", *BY.values(), "faster than FedAvg", "target reached", "diverged",
        "bytes a run", "processor a run",
    ]  # fmt: skip
    return [heads, *(row for group in groups_of(boards) for row in _rank_rows(group))]


def _rank_rows(boards: Mapping[str, ItemRows]) -> Grid:
    enough = has_enough_seeds(boards)
    ranks_of = {by: {each.label: each for each in ranks_by(boards, by)} for by in BY}
    labels = [*ranks_of["time"]]
    costs = _costs(boards, labels) if labels else []
    return [
        [titles_of(boards), label, *(_rank_text(ranks_of[by].get(label), enough) for by in BY), *cost]
        for label, cost in zip(labels, costs, strict=True)
    ]


def _costs(boards: Mapping[str, ItemRows], labels: Sequence[str]) -> Grid:
    """For each label its probability of being faster than FedAvg, its failures, and the cost of a run."""
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
            _percent(ahead.get(label)), f"{there} of {len(times)}",
            str(sum(row.diverged for row in runs)),
            _bytes(mean(row.bytes_up + row.bytes_down for row in runs)),
            f"{mean(seconds):.1f} s" if seconds else NOT_RUN,
        ])  # fmt: skip
    return lines


def _rows_of(rows: ItemRows, label: str) -> list[ResultRow]:
    return [row for world in rows.study.columns for row in rows.runs.get((label, world), {}).values()]


def _percent(found: Interval | None) -> str:
    if found is None:
        return "–"
    interval = f" [{100 * found.low:.0f}, {100 * found.high:.0f}]" if found.low < found.high else ""
    return f"{100 * found.mean:.0f} %{interval}"


def _rank_text(found: Rank | None, enough: bool) -> str:
    if found is None:
        return NOT_RUN
    text = f"{found.mean:.1f} [{found.low:.1f}, {found.high:.1f}]"
    return text if found.behind or not enough else f"**{text}**"


def board_grid(boards: Mapping[str, ItemRows]) -> Grid:
    """A row for each algorithm with each data set: its times to the target by world, and other numbers."""
    worlds = list(read_board()["worlds"])
    heads = ["data set", "algorithm", *worlds, "final", "bytes", "worst client", "chosen"]
    return [heads, *([_target(data), *line] for data, rows in boards.items() for line in _lines(rows))]


def _target(data: str) -> str:
    plan = read_board()["data"][data]
    return f"{plan['title']} ({plan['set']['target']:.0%})"


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

"""A run as pandas data frames."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from offbeat.core.extras import requires_extra
from offbeat.core.journal import Row
from offbeat.runs.presentation import RunView

_INTEGERS = ("client", "task", "base", "version", "staleness", "steps", "steps_done")
_TASK = ("task", "client", "base", "steps", "steps_done", "start", "end", "staleness", "fate", "version")


@dataclass(frozen=True)
class RunFrames:
    """A run as pandas data frames. Integers that a row lacks are <NA>.

    Attributes:
        journal: A row for each event and command: the columns of the journal, `seq` as the index, and a
            column for each further value.
        metrics: A row for each evaluation: `t`, `version`, `tasks`, `bytes_up`, `bytes_down` and the metrics.
        tasks: A row for each task, its number as the index: `client`, `base` (the version it started from),
            `steps` assigned and `steps_done`, `start` and `end` in seconds, `staleness` in versions, `fate`
            (aggregated, dropped, lost, held or running), `version` (the one made of it), and what its client
            reported, such as `loss`.
    """

    journal: Any
    metrics: Any
    tasks: Any


def to_frames(run: RunView) -> RunFrames:
    """Convert a run. Raises `UsageError` where pandas is not installed."""
    with requires_extra("pandas", "to_pandas: "):
        import pandas
    rows = list(run.rows())

    def frame(entries: list[dict[str, Any]], columns: tuple[str, ...], index: str) -> Any:
        further = dict.fromkeys(name for entry in entries for name in entry if name not in columns)
        made = pandas.DataFrame(entries, columns=[*columns, *further])
        made = made.astype({name: "Int64" for name in _INTEGERS if name in columns})
        return made.set_index(index)

    return RunFrames(
        journal=frame([row.flat() for row in rows], Row.__struct_fields__[:-1], "seq"),
        metrics=pandas.DataFrame(run.metrics),
        tasks=frame(list(task_entries(rows)), _TASK, "task"),
    )


def task_entries(rows: Iterable[Row]) -> Iterable[dict[str, Any]]:
    """One mapping for each task of a journal, in the order of their numbers."""
    tasks: dict[int, dict[str, Any]] = {}
    for row in rows:
        if row.name == "aggregate":
            for task in (row.data or {})["tasks"]:
                tasks[task] |= {"fate": "aggregated", "version": row.version}
        elif row.task is not None:
            own = tasks.setdefault(row.task, dict.fromkeys(_TASK))
            own |= _changes(row)
    return tasks.values()


def _changes(row: Row) -> dict[str, Any]:
    """The columns of a task that a row changes."""
    columns: dict[str, Any]
    match row.name:
        case "train":
            columns = {"task": row.task, "client": row.client, "base": row.base, "steps": row.steps}
            return {**columns, "start": row.t, "fate": "running"}
        case "arrived":
            reported = {k: v for k, v in (row.data or {}).items() if k not in ("seconds", *_TASK)}
            columns = {"end": row.t, "steps_done": row.steps, "staleness": row.staleness, "fate": "held"}
            return {**columns, **reported}
        case "lost" | "left":
            return {"end": row.t, "fate": "lost"}
        case "joined":
            # The client has joined again with the task that was lost with it.
            return {"end": None, "fate": "running"}
        case "discard":
            return {"end": row.t, "fate": "dropped"}
        case "drop":
            return {"fate": "dropped"}
        case _:
            return {}

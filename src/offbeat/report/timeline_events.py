"""Marks of a timeline besides starts and ends of tasks: requests, recalls, uploads, dropped updates."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Kind = Literal["arrival", "lost", "fresh", "nothing", "recall", "upload", "dropped", "stopped"]

NAMES: Mapping[Kind, str] = {
    "arrival": "arrival",
    "lost": "lost or left",
    "fresh": "asks, gets a fresh model",
    "nothing": "asks, nothing new",
    "recall": "recalled",
    "upload": "held update sent",
    "dropped": "update dropped",
    "stopped": "task stopped",
}
"""Names in the legends, in the order in which they are drawn."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment `t` (seconds from the run's begin) of a client's task; `words` say what happened.

    A dropped update is marked where it arrived, whenever it was dropped, and a held one where it was
    discarded.
    """

    kind: Kind
    client: int
    t: float
    task: int | None
    words: str


@dataclass(slots=True)
class Marker:
    """Collects marks from journal rows; rows must come in their order."""

    marks: list[Mark] = field(default_factory=list)
    # Index of the mark of the present request.
    _asking: int | None = None
    # The tasks whose update is held.
    _ready: set[int] = field(default_factory=set)
    _arrived: dict[int, float] = field(default_factory=dict)  # s by task, until the update is used or dropped

    def feed(self, row: Mapping[str, Any]) -> None:
        """Take the next row."""
        client, task, name, t = row["client"], row["task"], row["name"], float(row["t"])
        if name == "wants_model":
            self._asking = len(self.marks)
            steps = f"after {row['steps']} steps " if row["steps"] is not None else ""
            self.marks.append(
                Mark("nothing", client, t, task, f"{steps}asks for a model; there is none newer")
            )
        elif name == "send" and self._asking is not None and self.marks[self._asking].task == task:
            asked = self.marks[self._asking]
            words = asked.words.replace("; there is none newer", f" and gets version {row['version']}")
            self.marks[self._asking] = replace(asked, kind="fresh", words=words)
        elif name == "recall":
            self.marks.append(Mark("recall", client, t, task, "is to report at the end of its epoch"))
        elif name == "ready":
            self._ready.add(task)
        elif name == "arrived":
            self._arrived[task] = t
            if task in self._ready:
                self._ready.discard(task)
                self.marks.append(Mark("upload", client, t, task, "its update is sent"))
        elif name == "aggregate":
            for used in row.get("tasks") or ():
                self._arrived.pop(used, None)
        elif name == "discard":
            kind: Kind = "dropped" if task in self._ready else "stopped"
            self._ready.discard(task)
            self.marks.append(Mark(kind, client, t, task, f"{NAMES[kind]}: {row.get('reason')}"))
        elif name == "drop":
            arrived = self._arrived.pop(task, t)
            self.marks.append(Mark("dropped", client, arrived, task, f"update dropped: {row.get('reason')}"))

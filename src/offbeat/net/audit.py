"""The audit of a run: who logged in, who was refused, what its operator did; append-only and hash-chained.

Each row's hash is that of the hash before it and of the row. So a row that is changed, deleted or put in
breaks the chain, and who rewrites all of it contradicts the copies of its head, which the log has. Rows are
kept in memory until the commit that the run makes next. What an attacker can cause without a credential is
aggregated: a flood leaves a few rows with counts.
"""

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from math import inf
from threading import Lock
from typing import Any

import msgspec

from offbeat.net.address import network
from offbeat.net.auth.person import person
from offbeat.net.auth.tokens import ENDS, TokenAct

log = logging.getLogger(__name__)
TABLE = "CREATE TABLE IF NOT EXISTS audit(seq INTEGER PRIMARY KEY, line TEXT NOT NULL, hash TEXT NOT NULL)"
# A commit may have been made though it was reported as failed, so a row may be there already.
INSERT = "INSERT OR IGNORE INTO audit VALUES (?, ?, ?)"
SELECT = "SELECT seq, line, hash FROM audit ORDER BY seq"
OF_TOKENS = ("site.enrol", "site.revoke", "token.make", "token.key", "token.renew", "token.revoke")
"""The actions of what was done to tokens."""
WINDOW, LONGEST_WINDOW = 60.0, 3600.0
"""Seconds for which what repeats itself is counted: at first, and while it goes on, doubled each time."""
MOST_SOURCES = 8
"""Sources of an action's repetitions that are told apart; the others count as one."""
_OTHERS = "*"
HEAD_EVERY = 3600.0
"""Seconds between two lines of the log with the head of the chain."""
_MOST_PENDING = 10_000
_LONGEST = 500  # characters of a text in a row


class Head(msgspec.Struct, frozen=True):
    """The last row of a chain: its number, from 1, and its hash. An empty chain has the head 0."""

    seq: int = 0
    hash: str = "0" * 64

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class Actor(msgspec.Struct, frozen=True):
    """Who did something: a site's name or "operator", a description, and an address, if one is known.

    The description of an operator is a person's name.
    """

    id: str | None
    description: str
    ip_address: str | None = None


OPERATOR_ID = "operator"
SERVER = Actor("server", "offbeat serve")


def operator(name: str = "") -> Actor:
    """The operator, with a person's name, if it is known."""
    return Actor(OPERATOR_ID, name or "at the server's machine")


class AuditLine(msgspec.Struct, frozen=True):
    """One row, with the names that Flower's audit log has."""

    timestamp: str
    actor: Actor
    event: dict[str, Any]
    status: str


class Repeated(msgspec.Struct):
    """What repeats itself: the last of it, how often since the last row, and when the next row is due."""

    actor: Actor
    event: dict[str, Any]
    status: str
    until: float
    window: float
    count: int = 0


class AuditLog:
    """The rows of a run's audit that are not durable yet. Every method may be called in any thread.

    Args:
        clock: Gives seconds since 1970.
        by: The person who serves the run. None means the system's user.

    Attributes:
        head: The last row of the chain, durable or not.
        operator: Who serves the run.
    """

    def __init__(self, clock: Callable[[], float] = time.time, by: str | None = None) -> None:
        self.operator = operator(person(by))
        self._clock, self._lock = clock, Lock()
        self.head = Head()
        self._run = ""
        self._lines: list[str] = []
        # These rows are chained, and not durable as far as is known.
        self._unwritten: list[tuple[int, str, str]] = []
        self._dropped = 0
        # When the first of the lines came, in seconds.
        self._since = 0.0
        self._repeated: dict[tuple[str, ...], Repeated] = {}
        # No window of these is over before, in seconds.
        self._first_end = inf
        # The acts that have rows: action, site and token.
        self._acts: set[tuple[str, str, str]] = set()
        self._told = clock()
        self._closed = False

    def open(self, run: str, head: Head, lines: Iterable[str] = ()) -> None:
        """Go on with a chain.

        Args:
            run: The run's identifier.
            head: The chain's last row.
            lines: Its rows of `OF_TOKENS`.
        """
        with self._lock:
            self._run, self.head = run, head
            for line in lines:
                event = msgspec.json.decode(line, type=AuditLine).event
                self._acts.add((event["action"], str(event.get("site")), str(event.get("token"))))

    def record(self, actor: Actor, event: Mapping[str, Any], status: str = "completed") -> None:
        """Add a row; `event` has its `action`."""
        with self._lock:
            self._append(actor, dict(event), status)

    def record_repeated(self, actor: Actor, event: Mapping[str, Any], status: str = "completed") -> None:
        """Add a row of what may repeat itself without end: the first at once, then one with a count."""
        now = self._clock()
        with self._lock:
            key = self._key(actor, event, status)
            if (found := self._repeated.get(key)) is None:
                self._repeated[key] = Repeated(actor, dict(event), status, now + WINDOW, WINDOW)
                self._first_end = min(self._first_end, now + WINDOW)
                self._append(actor, dict(event), status)
            else:
                found.count += 1
                found.actor, found.event, found.status = actor, dict(event), status

    def tokens(self, acts: Sequence[TokenAct]) -> None:
        """Add rows for what was done to tokens since the last call, also while no server ran.

        A row has the time of the act, and the person who gave the command.
        """
        now = self._clock()
        with self._lock:
            for act in acts:
                token, key = act.token, (act.action, act.site, act.token.label)
                if key in self._acts:
                    continue
                self._acts.add(key)
                event: dict[str, Any] = {"action": act.action, "site": act.site, "token": token.label}
                ends = act.action in ENDS
                if ends and not act.by:
                    event["reason"] = "renewed"
                elif not ends:
                    event["expires"] = _timestamp(token.expires) if token.expires else None
                actor = operator(act.by) if act.by else Actor(act.site, "site")
                status = "expired" if not ends and token.expired(now) else "completed"
                self._append(actor, event, status, act.at)

    def due(self, seconds: float) -> bool:
        """Whether a row has waited for a number of seconds."""
        # Every batch of messages asks this, so it must be fast.
        now = self._clock()
        if not self._lines and now < self._first_end:
            return False
        with self._lock:
            self._end_windows(now)
            return bool(self._lines) and now - self._since >= seconds

    def take(self) -> list[tuple[int, str, str]]:
        """The rows that are to be made durable now, chained; `written` says that they are.

        One thread makes rows durable. What it could not write is taken again.
        """
        now = self._clock()
        with self._lock:
            self._end_windows(now)
            lines, self._lines = self._lines, []
            if self._dropped:
                lost = {"action": "audit.dropped", "count": self._dropped}
                self._dropped = 0
                self._append(SERVER, lost, "failed")
                lines.append(self._lines.pop())
            for line in lines:
                self.head = Head(self.head.seq + 1, chained(self.head.hash, line))
                self._unwritten.append((self.head.seq, line, self.head.hash))
            if now - self._told >= HEAD_EVERY:
                self.tell_head()
                self._told = now
            return list(self._unwritten)

    def written(self) -> None:
        """The rows that were taken last are durable."""
        with self._lock:
            self._unwritten.clear()

    def finish(self) -> None:
        """Add what was counted and has no row yet."""
        with self._lock:
            self._end_windows(float("inf"))

    def close(self) -> None:
        """Take no more rows: nobody makes them durable."""
        with self._lock:
            self._closed = True
            self._lines.clear()
            self._repeated.clear()

    def tell_head(self) -> None:
        """Write the head of the chain to the log: who rewrites the database cannot rewrite that."""
        if self.head.seq:
            log.info("audit head %s", self.head)

    def _key(self, actor: Actor, event: Mapping[str, Any], status: str) -> tuple[str, ...]:
        """What counts as the same: by site, or by the network of an address without one."""
        source = actor.id or network(actor.ip_address or "")
        action, kind = str(event["action"]), str(event.get("kind", ""))
        key = (action, status, kind, source)
        if key in self._repeated or sum(other[0] == action for other in self._repeated) < MOST_SOURCES:
            return key
        return (action, status, "", _OTHERS)

    def _end_windows(self, now: float) -> None:
        """Add a row for what was counted in windows that are over.

        Who was silent in one is forgotten, but not while there are more sources than are told apart: each of
        them would have a row of its own.
        """
        if now < self._first_end:
            return
        crowded = {key[0] for key in self._repeated if key[-1] == _OTHERS}
        for key, repeat in list(self._repeated.items()):
            if repeat.until > now:
                continue
            if not repeat.count:
                if key[0] not in crowded or key[-1] == _OTHERS:
                    del self._repeated[key]
                continue
            self._append(repeat.actor, {**repeat.event, "count": repeat.count}, repeat.status)
            repeat.count, repeat.window = 0, min(2 * repeat.window, LONGEST_WINDOW)
            repeat.until = now + repeat.window
        self._first_end = min((repeat.until for repeat in self._repeated.values()), default=inf)

    def _append(self, actor: Actor, event: dict[str, Any], status: str, at: float | None = None) -> None:
        if self._closed:
            return
        if len(self._lines) >= _MOST_PENDING:
            self._dropped += 1
            return
        now = self._clock()
        self._since = self._since if self._lines else now
        event = {name: printable(v) if isinstance(v, str) else v for name, v in event.items()}
        line = AuditLine(_timestamp(now if at is None else at), actor, {**event, "run_id": self._run}, status)
        self._lines.append(msgspec.json.encode(line, order="sorted").decode())


def printable(text: str) -> str:
    """A text as one line that a terminal can be shown, with a limit."""
    return "".join(c if c.isprintable() else " " for c in text[:_LONGEST])


def chained(previous: str, line: str) -> str:
    """The hash of a row: of the hash before it and its line."""
    return sha256((previous + line).encode()).hexdigest()


def parse_head(text: str) -> Head | None:
    """The head that a text says; None for a text that is none."""
    seq, _, digest = text.partition(":")
    fine = seq.isascii() and seq.isdigit() and len(seq) < 19 and len(digest) == 64
    return Head(int(seq), digest.lower()) if fine else None


def problems(rows: Iterable[tuple[int, str, str]], head: Head | None = None) -> Iterator[str]:
    """What is wrong with a chain, a line for each row that is.

    Args:
        rows: Number, line and hash of each row, in order.
        head: A row of before, as the log or a copy has it. None means that none is known.
    """
    last, computed, seen = Head(), Head().hash, head is None or head.seq == 0
    for seq, line, digest in rows:
        if (gap := seq - last.seq - 1) != 0:
            which = f"row {last.seq + 1} is" if gap == 1 else f"rows {last.seq + 1} to {seq - 1} are"
            yield f"{which} missing"
        elif digest not in (chained(last.hash, line), chained(computed, line)):
            yield f"row {seq} is not as it was written: it was changed or put in, or one before it deleted"
        if head is not None and seq == head.seq:
            seen = True
            if digest != head.hash:
                yield f"row {seq} is not the one of the head {head}: the rows up to it were written again"
        computed, last = chained(last.hash, line), Head(seq, digest)
    if not seen:
        assert head is not None
        yield f"row {head.seq} of the head is missing: the audit ends with row {last.seq}"


def _timestamp(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{int(seconds % 1 * 1000):03d}Z"

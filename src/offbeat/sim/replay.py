"""Replay of a record: its events into a new engine, which must give its commands."""

from collections import Counter
from dataclasses import dataclass

from offbeat.algorithms.privacy.private import with_privacy
from offbeat.core.algorithm import Algorithm
from offbeat.core.engine import Engine
from offbeat.core.errors import DamageError, OffbeatError
from offbeat.core.journal import Row, event_of
from offbeat.core.privacy.ledger import ReleasePlan, ledger_of
from offbeat.core.recorded import RecordedJournal, ReplayError
from offbeat.runs.record import RunRecord

_LONGEST = 1000  # characters of a row in a message


@dataclass(frozen=True)
class Replay:
    """The outcome of a replay.

    Attributes:
        events: Events that were compared.
        commands: Commands that were compared.
        difference: The first difference in one line; None means there is none.
    """

    events: int
    commands: int
    difference: str | None


def replay(record: RunRecord, algorithm: Algorithm) -> Replay:
    """Apply a run's events to the algorithm's state machine; no model is involved.

    Args:
        record: The run.
        algorithm: The algorithm it was made with.
    """
    journal, compared = RecordedJournal(record.rows()), Counter[str]()

    def compare(row: Row) -> None:
        compared[row.kind] += 1
        journal.check(row)

    difference = None
    plan = ReleasePlan.read(record.meta["privacy"]) if "privacy" in record.meta else None
    ledger = ledger_of(plan)
    if plan is not None:
        algorithm = with_privacy(algorithm, plan.privacy)
    engine = Engine(algorithm.schedule, record.seed, compare, ledger=ledger)
    while difference is None and (row := journal.peek()) is not None:
        if row.kind != "event":
            difference = f"row {row.seq}: {_show(row)} is recorded, but nothing commands it"
            break
        engine.rows = row.seq
        try:
            engine.apply(row.t, event_of(row))
        except ReplayError as error:
            given, recorded = error.given or row, error.recorded
            found = "the journal ends" if recorded is None else f"the journal has {_show(recorded)}"
            difference = f"row {given.seq}: the replay gives {_show(given)}, {found}"
        except DamageError:
            raise
        except OffbeatError as error:
            difference = f"row {row.seq}: {_show(row)} is recorded, but {error}"
        except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError) as error:
            # A damaged journal can have values that no run gives.
            told = f"{type(error).__name__}: {error}"
            difference = f"row {row.seq}: {_show(row)} is recorded, and the algorithm fails on it: {told}"
    return Replay(compared["event"], compared["command"], difference)


def _show(row: Row) -> str:
    known = {k: v for k, v in row.flat().items() if v is not None and k not in ("seq", "kind", "name")}
    text = f"{row.name}({', '.join(f'{k}={v}' for k, v in known.items())})"
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"

"""Checks and test doubles for authors of algorithms: see `docs/testing.md`.

`offbeat.testing.strategies` needs Hypothesis, `offbeat.testing.network` the extra `net`; import them where
they are used.
"""

from offbeat.lazy import listing
from offbeat.testing.algorithm import (
    check_algorithm,
    check_determinism,
    check_replay,
    check_run,
)
from offbeat.testing.clock import FakeClock
from offbeat.testing.journal import AuditedTask, JournalAudit, JournalError, check_journal
from offbeat.testing.worlds import CALM, HARD, Choices, make_world, random_worlds

__all__ = [
    "CALM",
    "HARD",
    "AuditedTask",
    "Choices",
    "FakeClock",
    "JournalAudit",
    "JournalError",
    "check_algorithm",
    "check_determinism",
    "check_journal",
    "check_replay",
    "check_run",
    "make_world",
    "random_worlds",
]
__dir__ = listing(__name__)

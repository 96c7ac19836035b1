"""Privacy spent by the clients of runs with noise: ε over time, and each client's μ."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.core.privacy.privacy_options import privacy_text
from offbeat.report.records import clock_name
from offbeat.runs.record import RunRecord

ASSUMPTIONS = (
    "Numbers of samples, times, steps and who takes part are public, and depend on nobody's data but through "
    "earlier releases.",
    "The unit is a client with all its updates; a client with two names has two budgets.",
    "The server is trusted: it sees updates, or exact sums. The noise of a simulation follows from its seed: "
    "its model is not private.",
    "No cryptographer has reviewed the design or its implementation.",
)
BANDS = (
    "Noise in bands is floating-point noise, and needs a schedule that does not follow the data: these are "
    "outside the theorem."
)


@dataclass(frozen=True, slots=True)
class Spending:
    """Privacy spent by one run's clients.

    Attributes:
        label: The run's label.
        seed: Its seed.
        seconds: Times of its releases.
        epsilon: ε of the busiest client after each.
        budget: The budget's ε. None means no limit.
        mu: μ of each client.
        text: ε at the end, in words.
        bands: Bands of the noise.
        clock: What the time of the runs that are shown is called.
    """

    label: str
    seed: int
    seconds: tuple[float, ...]
    epsilon: tuple[float, ...]
    budget: float | None
    mu: tuple[float, ...]
    text: str
    bands: int
    clock: str


def spendings(groups: Mapping[str, Sequence[RunRecord]]) -> list[Spending]:
    """Read the spending of each label's lowest seed, of the labels with noise.

    Args:
        groups: The runs of each label, by seed.
    """
    clock = clock_name(run for runs in groups.values() for run in runs)
    read = (_spending(runs[0], clock) for runs in groups.values())
    return [found for found in read if found is not None]


def assumptions(found: Sequence[Spending]) -> list[str]:
    """Assumptions of the figures, in words."""
    return [*ASSUMPTIONS, *([BANDS] if any(own.bands > 1 for own in found) else [])]


def _spending(record: RunRecord, clock: str) -> Spending | None:
    plan = ReleasePlan.read(record.meta["privacy"]) if "privacy" in record.meta else None
    if plan is None or plan.noise is None:
        return None
    ledger, seconds, epsilon = PrivacyLedger(plan), list[float](), list[float]()
    for row in record.rows():
        if ledger.read(row) and row.data is not None:
            seconds.append(row.t)
            epsilon.append(row.data["epsilon"])
    return Spending(
        record.label, record.seed, tuple(seconds), tuple(epsilon), plan.noise.budget.epsilon,
        tuple(ledger.mu(client) for client in range(record.clients)), privacy_text(ledger.summary()),
        plan.noise.bands, clock,
    )  # fmt: skip

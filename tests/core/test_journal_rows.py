"""One row that says who is there from the start stands for a row each."""

from dataclasses import dataclass

import pytest

from offbeat.core.commands import Command
from offbeat.core.errors import AlgorithmError
from offbeat.core.events import Begin, Joined
from offbeat.core.fleet import Labels
from offbeat.core.journal import Row, event_row, expand, present_row
from offbeat.core.server import Server


@dataclass(frozen=True)
class Silent:
    """A schedule that commands nothing."""

    concurrency = None

    def initial(self) -> None:
        return None

    def on(self, event: object, state: None, view: object) -> list[Command]:
        return []


SAMPLES, EPOCHS = [5, 6, 7, 8], [2, 2, 2, 2]
LABELS: list[Labels | None] = [None, [None] * 4, [(5, 0), None, (3, 4), (0, 8)]]


def joined(labels: Labels | None) -> list[Joined]:
    told = labels or [None] * 4
    return [
        Joined(c, n, e, labels=own) for c, (n, e, own) in enumerate(zip(SAMPLES, EPOCHS, told, strict=True))
    ]


@pytest.mark.parametrize("labels", LABELS)
def test_it_spreads_to_the_rows_of_each(labels: Labels | None):
    row = present_row(SAMPLES, EPOCHS, labels)
    each = [event_row(seq, 0.0, event, 0, None) for seq, event in enumerate(joined(labels))]
    assert row.data is not None
    assert (row.data["samples"], row.data["steps_per_epoch"]) == (SAMPLES, 2)  # one number for all
    assert list(expand(row)) == each
    for after in range(-1, 5):
        assert list(expand(row, after)) == each[after + 1 :]


def test_other_rows_stand_for_themselves():
    row = Row(5, 0.0, "event", "joined", 3, data={"samples": 1, "steps_per_epoch": 1})
    assert list(expand(row, 4)) == [row]
    assert list(expand(row, 5)) == []


@pytest.mark.parametrize("labels", LABELS)
def test_a_server_is_told_at_once_what_it_is_told_one_by_one(labels: Labels | None):
    one, other = Server(Silent()), Server(Silent())
    for event in joined(labels):
        one.feed(0.0, event)
    other.join_all(SAMPLES, EPOCHS, labels)
    assert vars(one.fleet) == vars(other.fleet)


def test_who_cannot_train_or_comes_too_late_is_refused():
    server = Server(Silent())
    with pytest.raises(AlgorithmError, match="client 2 has 0 samples: it cannot train"):
        server.join_all([1, 1, 0], [1, 1, 1], None)
    server.feed(0.0, Begin())
    with pytest.raises(AlgorithmError, match="the run has begun"):
        server.join_all([1], [1], None)

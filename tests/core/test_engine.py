"""The engine on worlds made by hand: rows, tensors, counters and limits of a few events each."""

import pytest
import torch

import offbeat as ob
from offbeat.core.commands import Aggregate, Train
from offbeat.core.engine import Engine
from offbeat.core.events import Arrived, Begin, Event, Joined, Left, Lost
from offbeat.core.global_model import GlobalModel
from offbeat.core.journal import Row
from offbeat.core.learner import LocalResult
from offbeat.core.recorded import RecordedJournal, ReplayError

BYTES = 8  # two float32 values
NO_LIMIT = ob.Until()


def engine(
    algorithm: ob.Algorithm, rows: list[Row], until: ob.Until = NO_LIMIT
) -> tuple[Engine, GlobalModel]:
    tensors = GlobalModel(algorithm, ob.Model.empty(ob.Layout.flat(2)))
    return Engine(algorithm.schedule, 0, rows.append, tensors, BYTES, BYTES, until), tensors


def update(*delta: float, **metrics: float) -> LocalResult:
    return LocalResult(torch.tensor(delta), torch.zeros(0, dtype=torch.int64), metrics)


def begin(made: Engine, clients: int) -> None:
    for client in range(clients):
        assert made.apply(0.0, Joined(client, samples=10, steps_per_epoch=2)) == []
    made.apply(0.0, Begin())


def test_rows_tensors_and_counters_of_a_buffered_run() -> None:
    rows = list[Row]()
    made, tensors = engine(ob.fedbuff(size=2, steps=5), rows)
    begin(made, 2)
    assert [row.name for row in rows] == ["joined", "joined", "begin", "train", "train"]
    assert set(tensors.bases) == {0, 1}

    (train,) = made.apply(1.0, Arrived(0, 0, 5), update(1.0, 0.0))
    assert isinstance(train, Train)
    assert (train.client, train.task, train.base) == (0, 2, 0)
    assert set(tensors.updates) == {0}

    aggregate, train = made.apply(2.0, Arrived(0, 2, 5, {"bits": 100.0}), update(0.0, 4.0))
    assert isinstance(aggregate, Aggregate)
    assert tensors.model.values.tolist() == [0.5, 2.0]  # the mean of two updates, none of them stale
    assert tensors.updates == {}
    assert tensors.bases[3][0] == tensors.version == 1

    made.apply(3.0, Arrived(1, 1, 5), update(0.0, 0.0))
    assert made.staleness_sum == 1  # of version 0, when there is 1
    assert made.bits_up == 64 + 100 + 64  # as the codec says, else the model's own
    assert made.bytes_up == 28
    assert made.bytes_down == 5 * BYTES
    assert [row.seq for row in rows] == list(range(made.rows))
    assert [(r.name, r.version) for r in rows if r.t == 2.0] == [
        ("arrived", 0), ("aggregate", 1), ("train", 1),
    ]  # fmt: skip


def test_what_is_lost_is_freed_and_what_left_may_be_brought_back() -> None:
    made, tensors = engine(ob.fedbuff(size=2, steps=5), [])
    begin(made, 2)
    made.apply(1.0, Lost(0, 0))
    assert set(tensors.bases) == {1, 2}  # client 0 has another task
    made.apply(2.0, Left(1))
    assert set(tensors.bases) == {1, 2}
    made.lose(1)
    assert set(tensors.bases) == {2}


def test_all_clients_join_in_one_row() -> None:
    rows = list[Row]()
    made, _ = engine(ob.fedavg(steps=2), rows)
    made.join_all([10, 20, 30], [1, 2, 3], None)
    assert [row.seq for row in rows] == [2]
    assert made.rows == 3
    made.apply(0.0, Begin())
    assert [(row.seq, row.name) for row in rows[1:]] == [
        (3, "begin"),
        (4, "train"),
        (5, "train"),
        (6, "train"),
    ]


@pytest.mark.parametrize(
    ("until", "reasons"),
    [
        (ob.Until(), [None, None, None]),
        (ob.Until(tasks=2), [None, "reached 2 client tasks", "reached 2 client tasks"]),
        (ob.Until(versions=1, tasks=3), [None, "reached 1 versions", "reached 1 versions"]),
        (ob.Until(seconds=0.5, accuracy=0.1), [None, None, None]),  # the driver's own affair
    ],
)
def test_limits(until: ob.Until, reasons: list[str | None]) -> None:
    made, _ = engine(ob.fedbuff(size=2, steps=5), [], until)
    begin(made, 1)
    assert made.stop_reason() is None
    found = []
    for task in range(3):
        made.apply(1.0 + task, Arrived(0, task, 5), update(0.0, 0.0))
        found.append(made.stop_reason())
    assert found == reasons


def test_the_sentence_of_the_limit_of_time() -> None:
    until = ob.Until(seconds=1.5)
    assert until.out_of_time == "reached 1.5 seconds"


# ---- a record is repeated ----

EVENTS: list[tuple[float, Event]] = [
    *((0.0, Joined(client, 10, 2)) for client in range(2)),
    (0.0, Begin()),
    (1.0, Arrived(0, 0, 5)),
    (2.0, Arrived(0, 2, 5)),
]


def recorded() -> list[Row]:
    rows = list[Row]()
    made = Engine(ob.fedbuff(size=2, steps=5).schedule, 0, rows.append)
    for now, event in EVENTS:
        made.apply(now, event)
    return rows


def repeat(rows: list[Row], steps: int = 5) -> None:
    journal = RecordedJournal(rows)
    made = Engine(ob.fedbuff(size=2, steps=steps).schedule, 0, journal.check)
    for now, event in EVENTS:
        made.apply(now, event)
    journal.finish()


def test_the_same_rows_come_again_without_a_model() -> None:
    rows, live = recorded(), list[Row]()
    made, _ = engine(ob.fedbuff(size=2, steps=5), live)
    for now, event in EVENTS:
        made.apply(now, event, update(1.0, 1.0) if isinstance(event, Arrived) else None)
    assert live == rows
    repeat(rows)


def test_another_row_is_an_error_that_has_both() -> None:
    rows = recorded()
    with pytest.raises(
        ReplayError, match=r"cannot be brought back: it now gives Row\(seq=3.*Use the"
    ) as found:
        repeat(rows, steps=6)
    assert found.value.recorded == rows[3]
    assert found.value.given is not None
    assert found.value.given.steps == 6


@pytest.mark.parametrize(
    ("change", "says"), [(-1, "the journal has None"), (1, "it now gives None, the journal has Row")]
)
def test_a_row_too_few_or_too_many_is_an_error(change: int, says: str) -> None:
    rows = recorded()
    with pytest.raises(ReplayError, match=says):
        repeat(rows[:-1] if change < 0 else [*rows, rows[-1]])


def test_one_row_that_stands_for_many_is_held_against_each() -> None:
    rows = recorded()[:2]
    journal = RecordedJournal(rows)
    made = Engine(ob.fedbuff(size=2, steps=5).schedule, 0, journal.check)
    made.join_all([10, 10], [2, 2], None)
    journal.finish()
    assert made.rows == 2


def holds_its_rules(made: Engine, rows: list[Row]) -> None:
    """Rules 1, 3, 4 and 5 of the engine's head, where no release waits and no client brings a task back."""
    tensors, server = made.tensors, made.server
    assert tensors is not None
    assert made.rows == rows[-1].seq + 1
    assert tensors.version == server.version
    assert {task: base for task, (base, _) in tensors.bases.items()} == {
        task.id: task.base for task in server.tasks.values()
    }
    assert tensors.updates.keys() <= server.held.keys()


def test_the_rules_at_the_head_of_the_engine_hold_after_each_event() -> None:
    rows = list[Row]()
    made, tensors = engine(ob.fedbuff(size=2, steps=5), rows)
    recorded: list[tuple[int, int, set[int]]] = []

    def record(row: Row) -> None:
        rows.append(row)
        recorded.append((row.seq, tensors.version, set(tensors.bases)))

    made.record = record
    begin(made, 3)
    for time, client in enumerate([0, 1, 0, 2, 2, 1], 1):
        before, bases = tensors.version, set(tensors.bases)
        recorded.clear()
        task = made.server.tasks[client].id
        if time == 3:
            made.apply(float(time), Lost(client, task))
        else:
            made.apply(float(time), Arrived(client, task, 5), update(1.0, 0.0))
        holds_its_rules(made, rows)
        # Rule 2: no command has changed a tensor when the last row is recorded.
        assert [version for _, version, _ in recorded] == [before] * len(recorded)
        assert all(held <= bases for _, _, held in recorded)
    assert tensors.version == 2

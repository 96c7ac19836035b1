"""What a large population costs: memory by client, rows, and what is drawn."""

import sqlite3
import tracemalloc
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.sim.replay import replay
from offbeat.world.population import Population

CLIENTS = 100_000
WORLD = ob.World(ob.laws.Exponential(1.0), jitter=0.05)
UNTIL = ob.Until(tasks=30)


@pytest.mark.parametrize("name", ["fedavg", "fedbuff", "fedasync"])
def test_a_client_without_work_costs_a_few_integers(name: str):
    options = {"clients_per_round": 10} if name == "fedavg" else {"concurrency": 10}
    algorithm, learner = ob.ALGORITHMS[name](steps=2, **options), ob.NoTraining(CLIENTS)
    ob.simulate(algorithm, WORLD, ob.NoTraining(100), until=UNTIL, evaluate=None)  # whatever is made once
    tracemalloc.start()
    run = ob.simulate(algorithm, WORLD, learner, until=UNTIL, evaluate=None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert run.summary.tasks == 30
    assert peak / CLIENTS < 64  # bytes: four integers in the fleet, two lists of what clients told, once


@pytest.mark.thorough
def test_the_journal_says_once_who_is_there(tmp_path: Path):
    run = ob.simulate(
        ob.fedbuff(5, steps=2, concurrency=10), WORLD, ob.NoTraining(CLIENTS), until=UNTIL, out=tmp_path
    )
    database = sqlite3.connect(tmp_path / "run.db")
    rows = database.execute("SELECT count(*) FROM journal").fetchone()[0]
    database.close()
    assert rows < 200
    record = ob.read_run(tmp_path)
    assert record.length == CLIENTS + rows - 1
    assert [row.client for row in record.rows(limit=3)] == [0, 1, 2]
    assert [row.client for row in record.rows(after=CLIENTS - 3, limit=2)] == [CLIENTS - 2, CLIENTS - 1]
    assert next(record.rows(after=CLIENTS - 1)).name == "begin"
    assert len(run.entries("joined")) == CLIENTS
    assert replay(record, ob.fedbuff(5, steps=2, concurrency=10)).difference is None


def test_only_clients_with_work_are_drawn():
    population = Population(WORLD, 0)
    population.task(77_777, 0)
    assert list(population._known) == [77_777]

"""Names of clients go from the data to a run, its directory and its figures."""

import torch

import offbeat as ob
from offbeat.report.timeline import make_timeline
from offbeat.runs.record import read_run

ALGORITHM, WORLD = ob.fedavg(steps=1), ob.World(seconds_per_step=1.0)
X, Y = torch.rand(4, 2), torch.tensor([0, 1, 0, 1])


def learner_of(train):
    torch.manual_seed(0)
    return ob.TorchLearner(torch.nn.Linear(2, 2), ob.federate(train), ob.Training(lr=0.1, batch_size=2))


def run_of(train, out=None):
    return ob.simulate(
        ALGORITHM, WORLD, learner_of(train), until=ob.Until(versions=1), evaluate=None, out=out
    )


def test_names_are_recorded_and_shown(tmp_path):
    train = {"north": (X, Y), "south": (X, Y)}
    in_memory, recorded = run_of(train), run_of(train, tmp_path / "run")
    for view in (in_memory, recorded, read_run(tmp_path / "run")):
        assert view.client_names() == {0: "north", 1: "south"}
        assert make_timeline(view).name(1) == "south"


def test_clients_with_numbers_only_have_none(tmp_path):
    run_of([(X, Y), (X, Y)], tmp_path / "run")
    record = read_run(tmp_path / "run")
    assert record.client_names() == {}
    assert "client_names" not in record.meta
    assert make_timeline(record).name(1) == "client 1"


def test_a_run_with_named_clients_goes_on(tmp_path):
    train = {"north": (X, Y), "south": (X, Y)}
    run_of(train, tmp_path / "run")
    until = ob.Until(versions=2)
    ob.resume(tmp_path / "run", ALGORITHM, WORLD, learner_of(train), until=until, evaluate=None)
    assert read_run(tmp_path / "run").client_names() == {0: "north", 1: "south"}

"""Evaluation at clients: each on what it holds out, with its own tensors, in whatever process."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.data.dataset import Dataset
from offbeat.data.federated import federate
from offbeat.metrics import aggregate_clients
from offbeat.runs.files import read_tensors
from offbeat.runs.schema import MODEL
from tests.sim.sim_worlds import digits

WORLD = ob.World([1.0, 1.5, 2.0, 3.0])
UNTIL = ob.Until(versions=6)
AT_CLIENTS = ob.Every(versions=3, at="clients")


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))


def population(
    module: Any = net, validation: float = 0.25, test: bool = False, **options: Any
) -> ob.TorchLearner:
    """Four clients whose classes lie apart in another direction each."""
    rng = np.random.default_rng(0)
    sizes = [40, 25, 31, 60]
    x, y = rng.normal(size=(sum(sizes), 4)).astype("float32"), rng.integers(2, size=sum(sizes))
    parts = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    for client, part in enumerate(parts):
        x[part, client] += np.where(y[part] == 1, 2.0, -2.0)
    common = Dataset(x[::5], y[::5], 2) if test else None
    data = federate(Dataset(x, y, 2), common, parts, validation=validation)
    return ob.TorchLearner(module, data, ob.Training(lr=0.1, batch_size=8), **options)


def simulate(learner: Any = None, every: ob.Every | None = AT_CLIENTS, **options: Any) -> ob.Run:
    schedule = options.pop("algorithm", ob.fedbuff(2, steps=4))
    return ob.simulate(schedule, WORLD, learner or population(), until=UNTIL, evaluate=every, **options)


def test_each_client_evaluates_on_what_it_holds_out_without_a_common_test_set():
    learner = population(metrics=["accuracy", "auroc"])
    run = simulate(learner)
    assert [m["version"] for m in run.metrics] == [0, 3, 6]
    last = run.client_metrics(2)
    assert [row["client"] for row in last] == [0, 1, 2, 3]
    assert [row["samples"] for row in last] == [10, 6, 8, 15]
    by_hand = {client: learner.evaluate_client(run.model, client) for client in range(4)}
    for row in last:
        samples, metrics = by_hand[row["client"]]
        assert row == {"evaluation": 2, "t": run.metrics[-1]["t"], "version": 6, "client": row["client"],
                       "samples": samples, **metrics}  # fmt: skip
    assert {k: v for k, v in run.metrics[-1].items() if k.startswith("clients.")} == aggregate_clients(
        by_hand
    )
    assert len(run.client_metrics()) == 3 * 4
    assert run.metrics[-1]["accuracy"] is None


@pytest.mark.parametrize("personal", [(), ("2.*",)])
def test_evaluating_at_clients_changes_nothing(personal: tuple[str, ...]):
    runs = [simulate(population(personal=personal), every) for every in (AT_CLIENTS, None)]
    assert runs[0].journal == runs[1].journal
    assert runs[0].model.digest() == runs[1].model.digest()


def test_both_evaluate_the_same_version_in_one_row():
    both = simulate(population(test=True), ob.Every(versions=3, at="both"))
    server, clients = (
        simulate(population(test=True), ob.Every(versions=3, at=at)) for at in ("server", "clients")
    )
    for row, one, other in zip(both.evaluations(), server.evaluations(), clients.evaluations(), strict=True):
        assert row.found == {**one.found, **other.found}
    assert both.client_metrics() == clients.client_metrics()
    assert server.client_metrics() == []


def test_a_client_evaluates_with_its_own_personal_tensors():
    learner = population(personal=("2.*",))
    run = simulate(learner)
    plain = {client: learner.evaluate_client(run.model, client)[1] for client in range(4)}
    found = {row["client"]: row for row in run.client_metrics(2)}
    assert all(found[client]["loss"] != plain[client]["loss"] for client in range(4))  # of the initial head
    assert run.metrics[-1]["clients.accuracy"] > 0.9  # each head has learned its own direction


def test_clients_that_keep_their_buffers_evaluate_with_them():
    learner, algorithm = population(normed), replace(ob.fedbuff(2, steps=4), buffers="local")
    run = simulate(learner, algorithm=algorithm)
    found = {row["client"]: row["loss"] for row in run.client_metrics(2)}
    assert all(found[client] != learner.evaluate_client(run.model, client)[1]["loss"] for client in range(4))


@pytest.mark.parametrize("where", ["memory", "directory", "directory, resumed"])
@pytest.mark.parametrize(
    ("module", "buffers", "personal"), [(net, "follow", ("2.*",)), (normed, "local", ())]
)
def test_a_clients_model_is_whole_and_gives_what_the_client_has_found(
    module: Any, buffers: Any, personal: tuple[str, ...], where: str, tmp_path: Path
):
    algorithm = replace(ob.fedbuff(2, steps=4), buffers=buffers)
    options = {"algorithm": algorithm} | ({} if where == "memory" else {"out": tmp_path / "run"})
    learner = population(module, personal=personal)
    run = simulate(learner, **options)
    if "resumed" in where:
        run = ob.resume(tmp_path / "run", algorithm, WORLD, learner, until=UNTIL, evaluate=AT_CLIENTS)
    for row in run.client_metrics(2):
        own = module()
        own.load_state_dict(run.client_model(row["client"]))
        alone = population(own)
        _, found = alone.evaluate_client(alone.initial(0), row["client"])
        assert found == {name: row[name] for name in found}


def test_clients_that_keep_nothing_of_the_model_have_the_final_one(tmp_path: Path):
    run = simulate(algorithm=ob.scaffold(steps=4), out=tmp_path / "run")
    assert not (tmp_path / "run" / "clients").exists()
    assert all(torch.equal(run.client_model(3)[n], t) for n, t in run.model.state_dict().items())


@pytest.mark.parametrize("options", [{"workers": 2}, {"executor": ob.Batched(2)}])
def test_executors_find_the_same(options: dict[str, Any]):
    learner = population(personal=() if "executor" in options else ("2.*",))
    here, there = simulate(learner), simulate(learner, **options)
    if "workers" in options:
        assert there.client_metrics() == here.client_metrics()
        assert there.metrics == here.metrics
    else:
        assert [row["samples"] for row in there.client_metrics()] == [10, 6, 8, 15] * 3
        assert there.metrics[-1]["clients.loss"] == pytest.approx(here.metrics[-1]["clients.loss"], rel=1e-4)


def test_a_resumed_run_ends_with_the_same_numbers(tmp_path: Path):
    learner = population(personal=("2.*",))
    whole = simulate(learner, out=tmp_path / "whole")
    seen = []

    def interrupt(_: ob.TorchLearner) -> None:
        seen.append(1)
        if len(seen) == 3:
            raise InterruptedError

    half = population(personal=("2.*",))
    evaluate = half.evaluate_client

    def evaluate_client(model: Any, client: int, inputs: Any) -> Any:
        if client == 3:
            interrupt(half)
        return evaluate(model, client, inputs)

    half.evaluate_client = evaluate_client  # type: ignore[method-assign]
    with pytest.raises(InterruptedError):
        simulate(half, out=tmp_path / "half", checkpoint_seconds=0.0)
    assert 1 <= len(ob.read_run(tmp_path / "half").evaluations()) < 3
    resumed = ob.resume(
        tmp_path / "half", ob.fedbuff(2, steps=4), WORLD, learner, until=UNTIL, evaluate=AT_CLIENTS
    )
    assert resumed.metrics == whole.metrics
    assert resumed.client_metrics() == whole.client_metrics() == ob.read_run(whole.path).client_metrics()
    first, second = (read_tensors(tmp_path / name / MODEL) for name in ("half", "whole"))
    assert all(torch.equal(first[name], second[name]) for name in second)


def test_a_run_in_memory_and_a_recorded_one_say_the_same(tmp_path: Path):
    learner = population(metrics=["auroc"])
    held, recorded = simulate(learner), simulate(learner, out=tmp_path / "run")
    assert held.client_metrics() == recorded.client_metrics()
    assert (
        held.client_metrics(1)
        == recorded.client_metrics(1)
        == ob.read_run(tmp_path / "run").client_metrics(1)
    )


def test_the_same_version_is_evaluated_again_where_clients_have_changed():
    """By time a version may be due twice, with personal tensors that have been trained meanwhile."""
    learner = population(personal=("2.*",))
    run = simulate(learner, ob.Every(seconds=2.0, at="clients"), algorithm=ob.fedbuff(4, steps=2))
    twice = [
        (a, b) for a, b in zip(run.metrics, run.metrics[1:], strict=False)
        if a["version"] == b["version"] and a["tasks"] != b["tasks"]
    ]  # fmt: skip
    assert twice
    assert all(a["clients.loss"] != b["clients.loss"] for a, b in twice)


def test_what_cannot_evaluate_at_clients_is_refused():
    with pytest.raises(ob.UsageError, match="'clients' needs samples that clients hold out, and none does"):
        simulate(digits())
    with pytest.raises(ob.UsageError, match="not allowed with NoTraining: give a learner with held_out"):
        simulate(ob.NoTraining(4, parameters=2), ob.Every(versions=1, at="both"))
    with pytest.raises(ob.UsageError, match="not allowed with a run without a learner"):
        ob.simulate(ob.fedbuff(2, steps=4), WORLD, until=UNTIL, evaluate=AT_CLIENTS)
    with pytest.raises(ob.UsageError, match=r"no test set, .* evaluate there, with evaluate.at = 'clients'"):
        simulate(population(), ob.Every(versions=1))


def test_a_metric_of_the_clients_ends_the_run():
    until = ob.Until(versions=100, metric="clients.accuracy.worst", reaches=0.6)
    run = ob.simulate(ob.fedbuff(2, steps=4), WORLD, population(), until=until, evaluate=AT_CLIENTS)
    assert run.stop_reason == "reached clients.accuracy.worst 0.6"
    *before, last = [m["clients.accuracy.worst"] for m in run.metrics]
    assert last >= 0.6 > max(before)

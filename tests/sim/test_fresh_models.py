"""A model sent in mid-task, all the way through: the training, worker processes, an interruption."""

from pathlib import Path
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.fedasmu.merging import FreshMerge
from offbeat.core.learner import LocalTask, MergePoint, TaskInputs
from offbeat.core.model import Model
from offbeat.local.objectives import Plain, Proximal
from offbeat.runs.verify import verify
from offbeat.sim.replay import replay
from tests.sim.sim_worlds import HARD, outcome

ASKING: dict[str, Any] = {
    "epochs": 4,
    "size": 4,
    "period": 3.0,
    "threshold": 5,
    "controls": {"lam_rate": 0.1},
    "merge": {"gamma_rate": 0.1},
}


def test_training_up_to_the_merge_and_on(learner: ob.TorchLearner) -> None:
    """The task in two halves: as a task without a merge before, from the merged model after."""
    start = learner.initial(0)
    generator = torch.Generator().manual_seed(1)
    other = Model(start.layout, torch.randn(start.values.shape, generator=generator), start.integers)
    merge = FreshMerge(Proximal(0.1))
    task = LocalTask(3, 1, base=2, steps=9, seed=0, fresh=MergePoint(after=4, version=7, clock=8))
    whole = learner.train(start, task, merge, TaskInputs(fresh=other))
    before = learner.train(start, LocalTask(3, 1, 2, 4, 0), Proximal(0.1))
    beta, _, _ = merge.weight(1.0, 0.5, clock=8, staleness=5)
    assert whole.metrics["beta"] == beta
    merged = torch.lerp(start.values + before.delta, other.values, beta)
    bench = learner.prepare().bench
    bench.load(Model(start.layout, merged, start.integers))
    optimizer = learner.training.build(bench.parameters, learner.training.rate(2))
    anchor = bench.floats(start.values)
    batches = list(learner._batches(task))
    for x, y in (part.batch for (part,) in batches[4:]):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(bench.module(x), y)
        loss.backward()
        for p, a in zip(bench.parameters, anchor, strict=True):
            p.grad += 0.1 * (p.detach() - a)
        optimizer.step()
    delta, _ = bench.delta(start)
    assert torch.allclose(whole.delta, delta, atol=1e-6)
    assert whole.lr == learner.training.lr
    assert set(whole.state) == {"merge"}


def test_a_request_that_found_nothing_changes_nothing(learner: ob.TorchLearner) -> None:
    start, task = learner.initial(0), LocalTask(3, 1, 2, 9, 0)
    alone, asked = learner.train(start, task, Plain()), learner.train(start, task, FreshMerge())
    assert torch.equal(alone.delta, asked.delta)
    assert alone.metrics == asked.metrics


def test_workers_change_nothing(learner: ob.TorchLearner) -> None:
    alone, two = (
        ob.simulate(ob.fedasmu(**ASKING), HARD, learner, seed=5, until=ob.Until(tasks=60), workers=n)
        for n in (0, 2)
    )
    assert len(alone.entries("send")) > 10
    assert outcome(alone) == outcome(two)


class Stopped(KeyboardInterrupt):
    pass


@pytest.mark.thorough
def test_an_interrupted_run_goes_on_bit_identical(learner: ob.TorchLearner, tmp_path: Path) -> None:
    options: dict[str, Any] = {"until": ob.Until(tasks=60)}
    whole = ob.simulate(ob.fedasmu(**ASKING), HARD, learner, seed=5, out=tmp_path / "whole", **options)

    def stop_at(tasks: int) -> Any:
        def watch(progress: Any) -> None:
            if progress.tasks >= tasks:
                raise Stopped

        return watch

    cut = tmp_path / "cut"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("offbeat.sim.event_loop.WATCH_SECONDS", 0.0)
        with pytest.raises(Stopped):
            ob.simulate(
                ob.fedasmu(**ASKING), HARD, learner, seed=5, out=cut,
                watch=stop_at(20), checkpoint_seconds=0.0, **options,
            )  # fmt: skip
        for tasks in (30, 40, 50):
            with pytest.raises(Stopped):
                ob.resume(
                    cut, ob.fedasmu(**ASKING), HARD, learner,
                    watch=stop_at(tasks), checkpoint_seconds=0.0, client_memory=0, **options,
                )  # fmt: skip
    last = ob.resume(cut, ob.fedasmu(**ASKING), HARD, learner, **options)
    assert outcome(last) == outcome(whole)
    assert replay(ob.read_run(cut), ob.fedasmu(**ASKING)).difference is None
    assert not verify(cut).problems
    last = ob.read_run(cut).checkpoint()
    assert last is not None
    assert {p.name for p in cut.glob("client-*.safetensors")} == set(last.clients.values())


def test_the_run_accounts_for_what_is_kept(learner: ob.TorchLearner) -> None:
    run = ob.simulate(ob.fedasmu(**ASKING), HARD, learner, seed=5, until=ob.Until(tasks=30))
    clients = {e["client"] for e in run.entries("arrived")}
    d = run.model.layout.parameters
    assert run.summary.client_state_bytes == 16 * len(clients)  # γ and υ in float64
    assert run.summary.server_state_bytes == len(clients) * (4 * d + 8 * 6)  # D_i, and six numbers
    assert (
        run.summary.bytes_down
        == (run.summary.dispatched + len(run.entries("send"))) * run.model.layout.nbytes
    )

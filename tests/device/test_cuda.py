"""On a CUDA GPU: what the pretended device shows without one. `make test-gpu` runs what is marked so."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.core.learner import LocalTask
from offbeat.local.objectives import Plain
from tests.sim.sim_worlds import CALM, digits, make, mlp, normed

pytestmark = pytest.mark.cuda


def on_gpu(learner: ob.TorchLearner) -> ob.TorchLearner:
    return ob.TorchLearner(learner.module, learner.data, replace(learner.training, device="cuda"))


@pytest.fixture
def no_waits() -> Iterator[None]:
    """PyTorch raises an error where the program waits for the GPU."""
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("no_waits")
def test_local_steps_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = on_gpu(digits(normed))
    base = learner.initial(1).to("cuda")
    learner.train(base, LocalTask(0, 0, 0, 2, 1), Plain())  # the first looks at its gradients
    import offbeat.local.torch_learner as module

    steps = module.take_steps

    def watched(*args: Any) -> None:
        torch.cuda.set_sync_debug_mode("error")
        steps(*args)
        torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(module, "take_steps", watched)
    result = learner.train(base, LocalTask(1, 0, 0, 20, 1), Plain())
    assert result.delta.device.type == "cuda"


@pytest.mark.parametrize("name", ob.ALGORITHMS)
def test_each_algorithm_is_near_the_run_on_the_cpu(name: str) -> None:
    """As far as few tasks let rounding grow."""
    options: dict[str, Any] = {"until": ob.Until(tasks=10), "evaluate": None, "seed": 1}
    learner = digits(mlp)
    here = ob.simulate(make(name), CALM, learner, **options)
    there = ob.simulate(make(name), CALM, on_gpu(learner), **options)
    assert there.model.values.device.type == "cpu"
    moved = here.model.values - learner.initial(1).values
    assert (there.model.values - here.model.values).norm() <= 0.05 * moved.norm()


def test_workers_share_the_gpu() -> None:
    """As near as two runs of one process are, whose sums the GPU may make in another order."""
    options: dict[str, Any] = {"until": ob.Until(tasks=10), "evaluate": None, "seed": 1}
    learner = digits(mlp)
    alone = ob.simulate(make("fedbuff"), CALM, on_gpu(learner), **options)
    shared = ob.simulate(make("fedbuff"), CALM, on_gpu(learner), workers=2, **options)
    assert shared.journal == alone.journal
    torch.testing.assert_close(shared.model.values, alone.model.values, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("training", [{}, {"optimizer": "adamw", "lr": 0.01, "precision": "bfloat16"}])
def test_tasks_are_trained_together(training: dict[str, Any]) -> None:
    data = digits(mlp).data
    losses = []
    for device, executor in (("cpu", None), ("cuda", ob.Batched(4))):
        learner = ob.TorchLearner(mlp, data, ob.Training(batch_size=20, device=device, **training))
        until = ob.Until(tasks=30)
        run = ob.simulate(ob.fedavg(steps=5), CALM, learner, seed=1, until=until, executor=executor)
        losses.append(run.metrics[-1].found["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=0.1)

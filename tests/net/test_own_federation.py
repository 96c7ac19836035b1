"""Whole runs of models of one's own over links in memory: from Python objects, with frozen parts."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

import offbeat as ob
from offbeat.data import own_data, without_clients
from offbeat.net import join
from offbeat.runs.files import read_tensors
from offbeat.sim.replay import replay
from offbeat.testing.network import MemoryNetwork
from tests.net.support import serve, terms_of

pytestmark = pytest.mark.usefixtures("here")

TRAINING = ob.Training(lr=0.5, batch_size=10)
FEATURES, RANK = 30, 2


class Adapted(nn.Module):
    """A frozen layer with a trained adapter of low rank, and one logit."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(FEATURES, FEATURES).requires_grad_(False)
        self.down = nn.Linear(FEATURES, RANK, bias=False)
        self.up = nn.Linear(RANK, 1)

    def forward(self, x: Tensor) -> Tensor:
        """A logit for each sample."""
        return self.up(self.down(torch.relu(self.base(x)) + x)).squeeze(1)


def samples(number: int, count: int = 60) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(number)
    x = torch.randn(count, FEATURES, generator=rng)
    return x, (x[:, 0] + x[:, 1] > 0).float()


def federation(directory: Path, sites: list[dict[str, Any]], **options: Any) -> list[Any]:
    """A run with its sites; what the server and each site returned or raised."""
    network = MemoryNetwork()
    learner = ob.TorchLearner(
        Adapted, without_clients(samples(9, 300)), TRAINING, binary_cross_entropy_with_logits,
        metrics=["accuracy", "auroc"],
    )  # fmt: skip

    async def run() -> list[Any]:
        server = asyncio.create_task(
            serve(
                ob.fedbuff(2, steps=5), learner, None, directory, network.listen,
                options=terms_of(
                    clients=2, until=ob.Until(versions=15), evaluate=ob.Every(versions=5)
                ),
                seed=3, **options,
            )
        )  # fmt: skip
        joined = [join(network.connect(f"site-{i}"), **own) for i, own in enumerate(sites)]
        found = await asyncio.wait_for(asyncio.gather(*joined, return_exceptions=True), 300)
        if not all(isinstance(each, str) for each in found):
            server.cancel()
        return [*await asyncio.gather(server, return_exceptions=True), *found]

    return asyncio.run(run())


def test_only_the_adapters_travel_from_python_objects(tmp_path: Path) -> None:
    """A learner at the server; at the sites a model of their own, and a learner of their own."""
    own = ob.TorchLearner(
        Adapted, own_data(samples(1)), TRAINING, binary_cross_entropy_with_logits,
        metrics=["auroc", "accuracy"],
    )  # fmt: skip
    sites = [{"data": samples(0), "model": Adapted}, {"learner": own}]
    assert set(federation(tmp_path / "run", sites)) == {"reached 15 versions"}
    record = ob.read_run(tmp_path / "run")
    assert replay(record, ob.fedbuff(2, steps=5)).difference is None
    trained = FEATURES * RANK + RANK + 1
    tasks = sum(row.name == "arrived" for row in record.rows())
    assert record.evaluations()[-1].bytes_up == tasks * 4 * trained
    assert set(read_tensors(tmp_path / "run/model.safetensors")) == {"down.weight", "up.weight", "up.bias"}
    first, last = record.metrics[0], record.metrics[-1]
    assert last["auroc"] > max(0.7, first["auroc"])
    # another run goes on from there, and knows at once what this one has learned
    again = federation(tmp_path / "again", sites, initial=tmp_path / "run")
    assert set(again) == {"reached 15 versions"}
    assert ob.read_run(tmp_path / "again").metrics[0]["auroc"] == last["auroc"]


def test_a_site_with_other_frozen_weights_leaves_in_one_sentence(tmp_path: Path) -> None:
    torch.manual_seed(1)
    sites = [{"data": samples(0), "model": Adapted()}]  # its weights are not drawn from the run's seed
    _, refused = federation(tmp_path / "run", sites)
    assert isinstance(refused, ob.UsageError)
    assert "the frozen parameters of the model made here are not those of the run" in str(refused)


def test_a_run_goes_on_only_with_the_same_initial_weights(tmp_path: Path) -> None:
    sites = [{"data": samples(0), "learner": None, "model": lambda: nn.Linear(2, 1)}]
    federation(tmp_path / "run", sites)  # begun, and left
    network = MemoryNetwork()
    model = ob.TorchLearner(Adapted, without_clients(), TRAINING).initial(8)
    learner = ob.TorchLearner(
        Adapted, without_clients(samples(9, 300)), TRAINING, binary_cross_entropy_with_logits,
        metrics=["accuracy", "auroc"],
    )  # fmt: skip
    with pytest.raises(ob.UsageError, match="was started with another initial model"):
        asyncio.run(
            serve(
                ob.fedbuff(2, steps=5), learner, None, tmp_path / "run", network.listen, seed=3,
                initial=model,
            )
        )  # fmt: skip

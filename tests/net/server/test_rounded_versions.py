"""A server whose versions travel as bfloat16, served again from its mirror or a copy: the bits go on."""

import asyncio
import shutil
from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.backup.backup import backup
from offbeat.backup.restore import restore
from offbeat.models.specs import LogisticSpec, ModelMaker
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.runs.files import read_tensors
from offbeat.runs.record import read_run
from offbeat.runs.verify import verify
from offbeat.sim.replay import replay
from tests.net.support import hurry, shares_of_digits, torch_left_alone

TRAINING, WIRE = ob.Training(lr=0.1, batch_size=20), ob.Wire(down="bfloat16")


@pytest.mark.parametrize("copied", ["mirror", "backup"])
def test_a_restored_server_goes_on_with_the_bits_of_a_run_that_was_never_lost(
    copied: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The site goes on with the task that it had, which trains from the version that it was sent."""
    hurry(monkeypatch)
    (share,), test = shares_of_digits(1, samples=60, test_samples=40)
    algorithm, until, options = ob.fedasync(steps=3), ob.Until(versions=12), ServerOptions(clients=1)
    learner = server_learner(LogisticSpec(), TRAINING, test)
    experiment = ob.Experiment(algorithm, learner, seed=3, until=until, wire=WIRE)
    first, second = tmp_path / "first", tmp_path / "second"

    async def story() -> None:
        async with serve(
            experiment, first, "127.0.0.1:0", options=options, mirror=tmp_path / "mirror",
            checkpoint_seconds=0.01,
        ) as server:  # fmt: skip
            address = f"127.0.0.1:{server.port}"
            site = asyncio.create_task(join(address, share, name="north", state=tmp_path / "site"))
            while server.service.snapshot().version < 5:  # type: ignore[union-attr]
                await asyncio.sleep(0.001)
            server.leave()
            assert await server.ended() is None
        if copied == "backup":
            backup(first, tmp_path / "copies")
            restore(tmp_path / "copies", second)
        else:
            (tmp_path / "mirror").rename(second)
        shutil.rmtree(first)
        assert verify(second).problems == []
        async with serve(experiment, second, address, options=options) as server:
            await site
            assert await server.ended() == "reached 12 versions"

    with torch_left_alone():
        asyncio.run(story())
    model = ModelMaker(LogisticSpec(), (64,), 10)
    simulated = ob.simulate(
        algorithm, ob.World(), ob.TorchLearner(model, ob.federate([share], test), TRAINING),
        seed=3, until=until, wire=WIRE,
    )  # fmt: skip
    record = read_run(second)
    assert not record.entries("lost")
    served = read_tensors(second / "model.safetensors")
    assert all(torch.equal(served[name], tensor) for name, tensor in simulated.model.state_dict().items())
    assert replay(record, algorithm).difference is None

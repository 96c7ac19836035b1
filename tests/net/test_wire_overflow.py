"""A deployed model that grows beyond what its wire can hold: the last version that could be sent stays."""

import asyncio
import logging
from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.models.specs import LogisticSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.net.monitor.from_journal import snapshot_of
from offbeat.runs.files import read_tensors
from offbeat.runs.record import read_run
from offbeat.sim.replay import replay
from tests.net.support import shares_of_digits, torch_left_alone
from tests.sim.test_wire_overflow import LARGEST


def test_the_log_and_the_journal_name_the_tensor_and_the_value(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (share,), test = shares_of_digits(1, samples=40, test_samples=20)
    learner = server_learner(LogisticSpec(), ob.Training(lr=0.1, batch_size=20), test)
    algorithm = ob.fedasync(steps=1, alpha=1.0)
    experiment = ob.Experiment(
        algorithm, learner, until=ob.Until(tasks=9), wire=ob.Wire(down="float16"), guard=None
    )
    train = ob.TorchLearner.train

    def growing(self: ob.TorchLearner, *given):  # type: ignore[no-untyped-def]
        result = train(self, *given)
        result.delta[3] += 10_000.0
        return result

    monkeypatch.setattr(ob.TorchLearner, "train", growing)

    # The loss of such a model would be a collapse.
    options = ServerOptions(clients=1, rollback=False)

    async def story() -> None:
        async with serve(experiment, tmp_path, "127.0.0.1:0", options=options) as server:
            await join(f"127.0.0.1:{server.port}", share, name="north")
            assert await server.ended() == "reached 9 client tasks"

    with torch_left_alone(), caplog.at_level(logging.INFO):
        asyncio.run(story())
    record = read_run(tmp_path)
    skipped = record.entries("skipped")
    assert skipped
    told = "wire.down = float16: the tensor linear.weight has the value "
    assert [row["reason"] for row in skipped if told not in row["reason"]] == []
    assert any(told in getattr(line, "reason", "") for line in caplog.records)
    assert snapshot_of(record).skipped == len(skipped)
    values = torch.cat([tensor.flatten() for tensor in read_tensors(tmp_path / "model.safetensors").values()])
    assert 50_000 < float(values.abs().max()) <= LARGEST
    assert replay(record, algorithm).difference is None

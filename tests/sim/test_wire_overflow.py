"""A model that grows beyond what the wire's type can hold: the last version that could be sent stays."""

from pathlib import Path

import pytest
import torch

import offbeat as ob
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.runs.files import read_tensors
from offbeat.runs.initial import start_from
from offbeat.runs.record import read_run
from offbeat.runs.schema import MODEL
from offbeat.sim.replay import replay
from tests.sim.sim_worlds import digits

WIRE, LARGEST = ob.Wire(down="float16"), 65504.0
UNTIL = ob.Until(versions=9)
WORLD = ob.World([1.0] * 5)


class Growing(ob.TorchLearner):
    """Each round adds 10,000 to one weight: seven of them are more than float16 holds."""

    interrupted = -1

    def train(self, base, task: LocalTask, *rest) -> LocalResult:  # type: ignore[no-untyped-def]
        if task.task == self.interrupted:
            raise KeyboardInterrupt
        result = super().train(base, task, *rest)
        result.delta[3] += 10_000.0
        return result


def growing(interrupted: int = -1) -> Growing:
    learner = digits()
    own = Growing(learner.module, learner.data, learner.training)
    own.interrupted = interrupted
    return own


def run(out: Path | None = None, learner: Growing | None = None) -> ob.Run:
    return ob.simulate(
        ob.fedavg(steps=1), WORLD, learner or growing(), out=out, until=UNTIL, wire=WIRE,
        guard=None, seed=1, checkpoint_seconds=0,
    )  # fmt: skip


def test_the_last_version_that_could_be_sent_stays_and_the_tensor_is_named(tmp_path: Path) -> None:
    ended = run(tmp_path / "run")
    assert float(ended.model.values.abs().max()) <= LARGEST
    skipped = ended.entries("skipped")
    assert skipped
    assert "wire.down = float16: the tensor 1.weight has the value" in skipped[0]["reason"]
    assert "--set initial=DIR" in skipped[0]["reason"]
    assert replay(read_run(tmp_path / "run"), ob.fedavg(steps=1)).difference is None
    other = ob.simulate(
        ob.fedavg(steps=1), WORLD, digits(), initial=tmp_path / "run", guard=None,
        until=ob.Until(versions=2), wire=ob.Wire(down="bfloat16"), seed=1,
    )  # fmt: skip
    assert not other.entries("skipped")
    assert other.model.values[3] > 50_000


def test_a_run_that_has_not_ended_keeps_its_wire_and_gives_its_last_version(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        run(folder, growing(interrupted=22))
    with pytest.raises(ob.RunError, match=r"another wire: .*; begin another run .* --set initial="):
        ob.resume(folder, ob.fedavg(steps=1), WORLD, growing(), until=UNTIL, guard=None)
    assert not (folder / MODEL).exists()
    checkpoint = read_run(folder).checkpoint()
    assert checkpoint is not None
    found = start_from(digits().initial(1).layout, folder)
    assert torch.equal(found.values, read_tensors(folder / checkpoint.state)["values"])

"""Values that travel as bfloat16 or float16 are the same at both ends, in a simulation and in a replay."""

import asyncio
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.models.specs import MLPSpec, ModelMaker
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.runs.record import read_run
from offbeat.sim.replay import replay
from tests.net.cutting_relay import relay
from tests.net.support import shares_of_digits, torch_left_alone

TRAINING = ob.Training(lr=0.1, batch_size=20)
VERSIONS = 4


@pytest.mark.parametrize(
    "wire",
    [ob.Wire(down="bfloat16"), ob.Wire(up="float16"), ob.Wire(down="float16", up="bfloat16")],
    ids=repr,
)
def test_a_deployed_run_is_that_of_the_simulator(wire: ob.Wire, tmp_path: Path) -> None:
    (share,), test = shares_of_digits(1, samples=60, test_samples=40)
    learner = server_learner(MLPSpec(), TRAINING, test)
    until = ob.Until(versions=VERSIONS)
    experiment = ob.Experiment(ob.fedasync(steps=3), learner, seed=3, until=until, wire=wire)

    async def story() -> int:
        options = ServerOptions(clients=1)
        async with (
            serve(experiment, tmp_path, "127.0.0.1:0", options=options) as server,
            relay(server.port) as way,
        ):
            await join(f"127.0.0.1:{way.port}", share, name="north")
            await server.ended()
        return way.carried

    with torch_left_alone():
        carried = asyncio.run(story())
    data = ob.federate([share], test)
    simulated = ob.simulate(
        ob.fedasync(steps=3), ob.World(), ob.TorchLearner(ModelMaker(MLPSpec(), (64,), 10), data, TRAINING),
        seed=3, until=until, wire=wire,
    )  # fmt: skip
    deployed = read_run(tmp_path)
    # A server that is busy leaves evaluations out.
    expected = {row["version"]: row["loss"] for row in simulated.metrics}
    assert {row["version"]: row["loss"] for row in deployed.metrics}.items() <= expected.items()
    assert deployed.metrics[-1]["version"] == simulated.metrics[-1]["version"]
    assert deployed.summary.bytes_up == simulated.summary.bytes_up
    assert replay(deployed, ob.fedasync(steps=3)).difference is None
    assert carried > 0
    assert deployed.meta["wire"] == {"down": wire.down, "up": wire.up}

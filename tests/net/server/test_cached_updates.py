"""A server that keeps each site's last update: on loopback, stopped and started again, with a mirror."""

import asyncio
import logging
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.models import LogisticSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.runs.verify import verify
from offbeat.sim.replay import replay
from tests.net.support import torch_left_alone

SOURCE = ob.load("digits", samples=60, test_samples=20)


def experiment(algorithm: ob.Algorithm) -> ob.Experiment:
    learner = server_learner(LogisticSpec(), test=SOURCE.test)
    return ob.Experiment(algorithm, learner, until=ob.Until(versions=40))


def algorithm() -> ob.Algorithm:
    return ob.ace(2, first="zero", left="drop")


@pytest.mark.parametrize("memory", [None, 0])
def test_it_goes_on_from_its_snapshot_and_its_mirror_has_the_updates(
    memory: int | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, beside = tmp_path / "run", tmp_path / "mirror"
    options = ServerOptions(clients=2, cache_memory=memory)

    async def served(until: int) -> str | None:
        async with serve(
            experiment(algorithm()), state, "127.0.0.1:0", options=options, mirror=beside,
            checkpoint_seconds=0.05, linger=0.1,
        ) as server:  # fmt: skip
            address = f"127.0.0.1:{server.port}"
            sites = [asyncio.create_task(join(address, SOURCE.train, name=name)) for name in ("a", "b")]
            while server.service.snapshot().version < until and not all(s.done() for s in sites):  # type: ignore[union-attr]
                await asyncio.sleep(0.01)
            if until < 40:
                server.leave()
                for site in sites:
                    site.cancel()
            await asyncio.gather(*sites, return_exceptions=True)
            return await server.ended()

    with torch_left_alone():
        assert asyncio.run(served(10)) is None
        checkpoint = ob.read_run(state).checkpoint()
        assert checkpoint is not None
        assert set(checkpoint.cached) == {0, 1}
        for directory in (state, beside):
            assert not verify(directory).problems
        with caplog.at_level(logging.INFO):
            assert asyncio.run(served(40)) == "reached 40 versions"
    assert "started from a snapshot" in caplog.text
    last = [ob.read_run(directory).checkpoint() for directory in (state, beside)]
    assert last[0] is not None
    assert last[0] == last[1]
    for _, (task, _, _) in last[0].cached.items():
        name = f"cached-{task}.safetensors"
        assert (state / name).read_bytes() == (beside / name).read_bytes()
    assert replay(ob.read_run(state), algorithm()).difference is None


def test_a_limit_below_one_update_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    async def refused() -> None:
        async with serve(
            experiment(algorithm()), tmp_path / "run", "127.0.0.1:0", options=ServerOptions(cache_memory=7)
        ):
            pass

    with torch_left_alone(), pytest.raises(ob.UsageError) as caught:
        asyncio.run(refused())
    assert str(caught.value).startswith("cache_memory = 7 is not allowed with ace: one client's last update")
    assert not (tmp_path / "run" / "run.db").exists()

"""A whole run through a proxy that breaks off in the middle: the same model, byte for byte, as without it."""

import asyncio
from pathlib import Path

import pytest

import offbeat as ob
from offbeat.models.specs import LogisticSpec
from offbeat.net import ServerOptions, join, serve, server_learner
from offbeat.net.client.connector import connector
from tests.net.connect_proxy import connect_proxy
from tests.net.support import Shares, shares_of_digits

pytestmark = pytest.mark.usefixtures("here")


@pytest.fixture(scope="module")
def digits() -> Shares:
    return shares_of_digits(1, samples=40, test_samples=20)


async def run(state: Path, digits: Shares, listen: str, proxy: str | None = None) -> bytes:
    """The model of a run of one site."""
    (share,), test = digits
    learner = server_learner(LogisticSpec(), ob.Training(lr=0.1, batch_size=20), test)
    experiment = ob.Experiment(ob.fedasync(steps=2), learner, seed=3, until=ob.Until(versions=5))
    async with serve(experiment, state, listen, options=ServerOptions(clients=1)) as server:
        address = listen.replace(":0", f":{server.port}")
        await join(connector(address, "north", proxy=proxy), share)
        assert await server.ended() == "reached 5 versions"
    return (state / "model.safetensors").read_bytes()


def test_a_run_through_a_proxy_that_breaks_off_gives_the_same_model(tmp_path: Path, digits: Shares):
    async def story() -> None:
        direct = await run(tmp_path / "direct", digits, "127.0.0.1:0")
        async with connect_proxy("anna:secret", most=10_000) as proxy:
            url = proxy.url.replace("//", "//anna:secret@")
            assert await run(tmp_path / "proxied", digits, "127.0.0.1:0", url) == direct
            assert proxy.broken == 1
            assert len(proxy.asked) > 1
        files = (tmp_path / "proxied").rglob("*")
        assert not [file for file in files if file.is_file() and b"secret" in file.read_bytes()]

    asyncio.run(story())


@pytest.mark.parametrize("kind", ["unix", "ipv6"])
def test_a_run_on_another_kind_of_address_gives_the_same_model(kind: str, tmp_path: Path, digits: Shares):
    async def story() -> None:
        direct = await run(tmp_path / "direct", digits, "127.0.0.1:0")
        listen = f"unix:{tmp_path / 'x.sock'}" if kind == "unix" else "[::1]:0"
        assert await run(tmp_path / "other", digits, listen) == direct

    asyncio.run(story())

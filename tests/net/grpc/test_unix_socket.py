"""A server on a Unix socket, and behind a proxy that ends TLS."""

import asyncio
import socket
import stat
from collections.abc import Sequence
from pathlib import Path

import pytest

from offbeat.core.errors import UsageError
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.failed_logins import MOST
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.server import GrpcListener, check_free, listen
from offbeat.net.transport import ChannelRefusedError
from tests.net.support import LIMITS, Heard, raw, site, status, until


async def listening(address: str, credentials: ServerCredentials, heard: Heard) -> GrpcListener:
    return await listen(address, credentials, LIMITS, heard.on_channel)


def test_a_site_connects_by_a_socket_that_others_cannot_open(tmp_path: Path):
    async def story() -> None:
        path, heard = tmp_path / "heart.sock", Heard()
        listener = await listening(f"unix:{path}", ServerCredentials(), heard)
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        assert listener.port == 0
        async with site(f"unix:{path}", "north"):
            await until(lambda: heard.links == ["north"])
            with pytest.raises(UsageError, match="another process listens there"):
                await listening(f"unix:{path}", ServerCredentials(), heard)
        await listener.close()

    asyncio.run(story())


def test_the_socket_of_a_server_that_died_is_replaced_and_another_file_is_not(tmp_path: Path):
    path = tmp_path / "heart.sock"
    with socket.socket(socket.AF_UNIX) as died:
        died.bind(str(path))
    check_free(f"unix:{path}")
    path.unlink()
    path.write_text("a file")
    with pytest.raises(UsageError, match="another file has this name"):
        check_free(f"unix:{path}")
    with pytest.raises(UsageError, match="is no directory"):
        check_free(f"unix:{tmp_path}/missing/heart.sock")
    assert path.read_text() == "a file"


@pytest.mark.parametrize("path", ["", "x" * 200])
def test_a_path_that_no_socket_can_have_is_refused(path: str):
    with pytest.raises(UsageError, match="it must be unix:PATH with a path of 1 to 103 bytes"):
        check_free(f"unix:{path}")
    with pytest.raises(UsageError, match="it must be unix:PATH"):
        asyncio.run(connect(f"unix:{path}", SiteCredentials(name="a"), LIMITS))


# ---- behind a proxy ----


@pytest.mark.parametrize("any_name", [False, True])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_a_site_from_elsewhere_must_prove_its_name_to_a_server_of_its_own_machine(
    kind: str, any_name: bool, tmp_path: Path
):
    async def story() -> None:
        heard = Heard()
        listen_on = f"unix:{tmp_path / 'heart.sock'}" if kind == "unix" else "127.0.0.1:0"
        listener = await listening(listen_on, ServerCredentials(insecure_any_name=any_name), heard)
        address = listen_on.replace(":0", f":{listener.port}")
        forwarded = (("offbeat-site", "north"), ("x-forwarded-for", "10.0.0.1"))
        async with raw(address, forwarded) as call:
            if any_name:
                assert ("offbeat-protocol", "1") in set(await call.initial_metadata())
                await call.done_writing()
                await status(call)
            else:
                assert "its operator must give --tokens" in (await status(call))[1]
        await listener.close()

    asyncio.run(story())


def test_failed_logins_count_for_the_address_that_the_proxy_tells_last(tmp_path: Path):
    """A site of one address that fails too often keeps those of other addresses in, whatever it claims."""
    path, tokens = f"unix:{tmp_path / 'heart.sock'}", tmp_path / "tokens.json"
    token = make_token(tokens, "north")

    async def attempt(*metadata: tuple[str, str]) -> str:
        async with raw(path, metadata) as call:
            return (await status(call))[1]

    def forwarded(*hosts: str) -> Sequence[tuple[str, str]]:
        return [("authorization", "Bearer north:wrong"), *(("x-forwarded-for", host) for host in hosts)]

    async def story() -> None:
        heard = Heard()
        listener = await listening(path, ServerCredentials(tokens=tokens), heard)
        for number in range(MOST):
            assert "token is not valid" in await attempt(*forwarded(f"10.0.0.{number}, 10.9.9.9"))
        assert "20 logins from 10.9.9.9 have failed" in await attempt(*forwarded("10.1.1.1", "10.9.9.9"))
        assert "token is not valid" in await attempt(*forwarded("10.9.9.9, 10.1.1.1"))
        assert "token is not valid" in await attempt(*forwarded("no address"))
        async with site(path, SiteCredentials(token=token)):
            await until(lambda: heard.links == ["north"])
        await listener.close()

    asyncio.run(story())


def test_a_message_follows_the_metadata_at_once(tmp_path: Path):
    """A proxy that keeps metadata back until a message follows would else wait for the site, which waits."""

    async def story() -> None:
        path, heard = f"unix:{tmp_path / 'heart.sock'}", Heard()
        listener = await listening(path, ServerCredentials(), heard)
        async with raw(path, [("offbeat-site", "north")]) as call:
            assert isinstance(await call.read(), bytes)
        await listener.close()

    asyncio.run(story())


def test_a_wrong_token_is_refused_on_a_socket_too(tmp_path: Path):
    path, tokens = f"unix:{tmp_path / 'heart.sock'}", tmp_path / "tokens.json"
    make_token(tokens, "north")

    async def story() -> None:
        listener = await listening(path, ServerCredentials(tokens=tokens), Heard())
        with pytest.raises(ChannelRefusedError, match="no token"):
            await connect(path, SiteCredentials(name="north"), LIMITS)
        await listener.close()

    asyncio.run(story())
    assert not (tmp_path / "heart.sock").exists()

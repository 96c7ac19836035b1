"""gRPC's health protocol: answered without a credential, and with nothing but whether the server serves."""

import asyncio
from pathlib import Path

import grpc
import pytest
from grpc import aio

from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.grpc.health import CHECK, SERVING, requested
from tests.net.support import server


async def ask(address: str, request: bytes, method: str = CHECK) -> bytes | grpc.StatusCode:
    async with aio.insecure_channel(address) as channel:
        try:
            return bytes(await channel.unary_unary(method)(request))
        except aio.AioRpcError as error:
            return error.code()


def test_a_server_that_listens_serves(tmp_path: Path):
    make_token(tmp_path / "tokens.json", "north")

    async def story() -> None:
        async with server(ServerCredentials(tokens=tmp_path / "tokens.json")) as at:
            assert await ask(at.address, b"") == SERVING
            assert await ask(at.address, b"\x0a\x15offbeat.v1.Federation") == SERVING
            for other in (b"\x0a\x05other", b"\x0a\x7f", b"\xff\xff\xff", b"\x0a" + b"\x20" * 200):
                assert await ask(at.address, other) is grpc.StatusCode.NOT_FOUND
            watch = CHECK.replace("Check", "Watch")
            assert await ask(at.address, b"", watch) is grpc.StatusCode.UNIMPLEMENTED
            assert at.heard.links == []
            assert not at.listener.rejected

    asyncio.run(story())


@pytest.mark.parametrize("name", [b"", b"offbeat.v1.Federation", b"x" * 127])
def test_a_request_is_read_as_the_protocol_writes_it(name: bytes):
    health = pytest.importorskip("grpc_health.v1.health_pb2")
    assert requested(health.HealthCheckRequest(service=name.decode()).SerializeToString()) == name
    response = health.HealthCheckResponse()
    response.ParseFromString(SERVING)
    assert response.status == health.HealthCheckResponse.SERVING

"""gRPC's own log lines, which would stand between the lines of a JSON log."""

import os
import subprocess
import sys

import pytest

from tests.net.authority import Authority

FAILED_HANDSHAKE = """
import asyncio
from pathlib import Path
from offbeat.net.auth.credentials import SiteCredentials
from offbeat.net.grpc.client import connect
from offbeat.net.transport import ChannelClosedError
from offbeat.net.wire.limits import Limits

async def answer(reader, writer):
    writer.write(b"no TLS here" * 100)
    await writer.drain()
    writer.close()

async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    ca = Path({ca!r}).read_bytes()
    try:
        await connect(f"127.0.0.1:{{port}}", SiteCredentials("north", ca=ca), Limits())
    except ChannelClosedError:
        print("not connected")

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def code(tmp_path_factory: pytest.TempPathFactory) -> str:
    return FAILED_HANDSHAKE.format(ca=str(Authority(tmp_path_factory.mktemp("ca"), "ca").file))


@pytest.mark.parametrize("chosen", [None, "INFO"])
def test_a_failed_handshake_is_silent_unless_the_user_wants_grpcs_lines(chosen: str | None, code: str):
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"}
    environment |= {} if chosen is None else {"GRPC_VERBOSITY": chosen}
    ended = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert ended.stdout == "not connected\n"
    assert ("ssl_transport_security" in ended.stderr) == (chosen is not None)
    assert chosen is not None or ended.stderr == ""

"""Each way in which a site reaches its server: what a command is given, and a connection with it."""

import asyncio
import re
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from offbeat.cli.site_access import Access
from offbeat.cli.tokens import site_pair
from offbeat.core.errors import UsageError
from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.grpc.server import listen
from offbeat.net.kit import KitFile, make_kit, write_kit
from offbeat.net.messages import Register
from tests.net.authority import Authority
from tests.net.connect_proxy import connect_proxy
from tests.net.support import LIMITS, Heard, server, until

HOST = "127.0.0.1"
PAGE = Path(__file__).parents[2] / "docs" / "run.md"


class Way:
    """What stands ready for a site named north.

    Attributes:
        folder: Where files are made.
        ours: The authority of the server's certificate, and of the site's.
        tokens: The server's tokens, of which the file `token_file` has the site's.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.ours = folder, Authority(folder, "ours")
        self.tokens, self.token_file = folder / "tokens.json", folder / "north.token"
        self.token = make_token(self.tokens, "north")
        self.token_file.write_text(f"{self.token}\n", encoding="ascii")
        self._server, self._own = self.ours.issue("server", host=HOST), self.ours.issue("north")

    def server(
        self, *, certificates: bool = False, tokens: bool = True, tls: bool = True
    ) -> ServerCredentials:
        """What a server with its own TLS asks for."""
        return ServerCredentials(
            *(self._server if tls else (None, None)),
            client_ca=self.ours.file if certificates else None,
            tokens=self.tokens if tokens else None,
        )

    def kit(self, address: str, *, own: bool = False) -> str:
        """The kit of an institution with its own authority, with the site's certificate or without."""
        pair = site_pair("north", *self._own) if own else None
        ca = self.ours.file.read_text("ascii")
        write_kit(
            self.folder / "north.kit", make_kit(address, self.token, time.time() + 900, ca, "", "", pair)
        )
        return str(self.folder / "north.kit")

    def pair(self) -> dict[str, str]:
        """The keys of the site's certificate."""
        certificate, key = map(str, self._own)
        return {"certificate": certificate, "key": key}


Given = Callable[[Way, str, int], tuple[str, str | None, dict[str, Any]]]
WAYS: dict[str, tuple[dict[str, bool], Given]] = {
    "a kit": ({}, lambda way, at, _: (way.kit(at), None, {})),
    "a kit at another address": ({}, lambda way, at, _: (way.kit("fl.example.org:1"), None, {"address": at})),
    "a kit with its site's certificate": (
        {"certificates": True}, lambda way, at, _: (way.kit(at, own=True), "north", {}),
    ),
    "a kit beside a certificate": (
        {"certificates": True}, lambda way, at, _: (way.kit(at), None, way.pair()),
    ),
    "a kit through a proxy": (
        {}, lambda way, at, port: (way.kit(at), None, {"proxy": f"http://anna@{HOST}:{port}"}),
    ),
    "a token and an authority": (
        {}, lambda way, at, _: (at, None, {"token_file": str(way.token_file), "ca": str(way.ours.file)}),
    ),
    "a certificate without a token": (
        {"certificates": True, "tokens": False},
        lambda way, at, _: (at, None, {"ca": str(way.ours.file), **way.pair()}),
    ),
    "a certificate and a token": (
        {"certificates": True},
        lambda way, at, _: (
            at, None, {"ca": str(way.ours.file), "token_file": str(way.token_file), **way.pair()}
        ),
    ),
    "plaintext behind a front": (
        {"tls": False}, lambda way, at, _: (at, None, {"token_file": str(way.token_file), "plaintext": True}),
    ),
    "a name on loopback": ({"tls": False, "tokens": False}, lambda way, at, _: (at, "north", {})),
}  # fmt: skip


async def connect(access: Access, heard: Heard) -> None:
    """Connect, and wait until the server has heard the site."""
    channel = await access.connect()()
    channel.send(Register(10, 1))
    await until(lambda: "north" in heard.said)
    await channel.close()


@pytest.mark.parametrize("name", WAYS)
def test_it_connects(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OFFBEAT_PROXY_PASSWORD", "secret")
    options, given = WAYS[name]
    way = Way(tmp_path)

    async def story() -> None:
        async with server(way.server(**options)) as at, connect_proxy("anna:secret") as proxy:
            access = Access.of(*given(way, at.address, proxy.port))
            assert access.name in ("north", None)
            await connect(access, at.heard)
            assert bool(proxy.asked) == ("proxy" in name)

    asyncio.run(story())


def test_a_unix_socket_connects(tmp_path: Path) -> None:
    way, heard, address = Way(tmp_path), Heard(), f"unix:{tmp_path / 'run.sock'}"

    async def story() -> None:
        async with AsyncExitStack() as stack:
            credentials = ServerCredentials(tokens=way.tokens)
            listener = await listen(address, credentials, LIMITS, heard.on_channel)
            stack.push_async_callback(listener.close)
            await connect(Access.of(address, None, {"token_file": str(way.token_file)}), heard)

    asyncio.run(story())


def test_a_way_on_which_no_attempt_works_ends_before_anything_is_loaded(tmp_path: Path) -> None:
    way, other = Way(tmp_path), Authority(tmp_path, "other")

    async def story() -> None:
        async with server(way.server()) as at:
            right = Access.of(at.address, "north", {"ca": str(way.ours.file)})
            await asyncio.to_thread(right.check_way)
            wrong = Access.of(at.address, "north", {"ca": str(other.file)})
            with pytest.raises(UsageError, match="not signed by the authority of"):
                await asyncio.to_thread(wrong.check_way)
        await asyncio.to_thread(right.check_way)  # a server that is not there may come

    asyncio.run(story())


def test_the_page_has_a_row_for_each_way() -> None:
    table = PAGE.read_text("utf-8").partition("| a site has | was | is |\n")[2].partition("\n\n")[0]
    assert re.findall(r"^\| (\w[^|]*) \|", table, re.MULTILINE) == [*WAYS, "a Unix socket"]


def test_plaintext_beyond_loopback_is_asked_for() -> None:
    for settings, tls in (({}, True), ({"plaintext": True}, False)):
        assert Access.of("fl.example.org:1", "north", settings).credentials().tls("fl.example.org:1") is tls


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"ca": "x"}, "has what access.ca would say"),
        ({"token_file": "x"}, "has what access.token_file would say"),
        ({"plaintext": True}, "has what access.plaintext would say"),
        ({"certificate": "x", "key": "y"}, "has what access.certificate, access.key would say"),
        ({"proxy": "http://anna:secret@proxy:1"}, "access.proxy has a password"),
        ({"proxi": "http://anna@proxy:1"}, 'unknown key proxi; did you mean "proxy"'),
        ({"give_up_after": 0}, "give_up_after = 0 is not allowed"),
        ({"ca": ""}, "ca = '' is not allowed"),
    ],
)
def test_what_does_not_fit_a_kit_is_refused(settings: dict[str, Any], says: str, tmp_path: Path) -> None:
    kit = Way(tmp_path).kit("fl.example.org:7117", own=True)
    with pytest.raises(UsageError, match=says) as caught:
        Access.of(kit, None, settings)
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="has what --name would say"):
        Access.of(kit, "south", {})


@pytest.mark.parametrize(
    ("target", "settings", "says"),
    [
        ("north.kit", {}, "north.kit is neither a file nor an address: give the site's kit, or"),
        ("a:1", {"address": "b:1"}, "access.address = b:1 is for a kit, and a:1 is an address"),
        ("a:1", {"proxy": "http://anna:secret@[::1"}, "access.proxy is no URL"),
    ],
)
def test_what_is_no_way_is_refused(target: str, settings: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Access.of(target, "north", settings).connect()


def test_a_certificate_in_a_kit_is_its_sites(tmp_path: Path) -> None:
    ours = Authority(tmp_path, "ours")
    pair, other = ours.issue("north"), ours.issue("south")
    for site, certificate, key, says in (
        ("north", pair[0], None, "belong together"),
        ("north", pair[0], other[1], "is not the key of"),
        ("south", *pair, "names north, and the site is south"),
        ("server", *ours.issue("server", usage="server"), "this certificate is for servers"),
        ("north", pair[1], pair[1], "is no certificate: give one in PEM"),
        ("north", pair[0], pair[0], "cannot be read: give a PEM key"),
    ):
        with pytest.raises(UsageError, match=says):
            site_pair(site, certificate, key)
    document = Way(tmp_path).kit("fl.example.org:7117", own=True)
    kit = KitFile(Path(document)).read()
    assert kit.key is not None
    assert kit.key not in repr(kit)
    assert "PRIVATE" not in repr(kit.credentials())

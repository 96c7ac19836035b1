"""How the versions of a server and a site differ: a warning, since the version of the wire alone decides."""

import asyncio
import logging

import pytest

pytest.importorskip("grpc")

from offbeat.net.messages import Leave, Register
from offbeat.net.versions import METADATA, VERSION_KEY, difference
from offbeat.version import __version__
from tests.net.support import server, site, until


@pytest.mark.parametrize(
    ("server", "site"),
    [
        ("0.5.0", None), ("0.5.0", "0.5.9"), ("0.5.0.dev3+g12ab", "0.5.0rc1"), ("1.0.0", "1.0.0"),
        ("unknown", "0.4.0"),
    ],
)  # fmt: skip
def test_patch_versions_make_no_difference(server: str, site: str | None):
    assert difference(server, site) is None


@pytest.mark.parametrize(("server", "site"), [("0.5.0", "0.2.1"), ("0.4.0", "0.5.0"), ("1.0.0", "0.9.0")])
def test_minor_versions_differ_in_one_sentence_with_both(server: str, site: str):
    assert difference(server, site) == f"the site has Offbeat {site}, and this server {server}"


@pytest.mark.parametrize("site", ["", "1", "latest", "0.5\n0.5" * 40, "٠.٥", "9" * 30 + ".1", "\x1b[2J"])
def test_what_is_no_version_differs_in_one_short_line(site: str):
    told = difference("0.5.0", site) or ""
    assert told.endswith("and this server 0.5.0")
    assert told.isprintable()
    assert len(told) < 200


def test_each_end_tells_its_own():
    assert ((VERSION_KEY, __version__),) == METADATA


@pytest.mark.parametrize(("theirs", "ours"), [("0.9.3", "1.0.0"), ("3.1.0", "1.0.0"), ("latest", "1.0.0")])
def test_a_server_serves_a_site_of_another_version_of_the_package_and_warns_once(
    theirs: str, ours: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr("offbeat.net.grpc.server.__version__", ours)
    monkeypatch.setattr("offbeat.net.grpc.server.METADATA", ((VERSION_KEY, ours),))
    monkeypatch.setattr("offbeat.net.grpc.call.METADATA", ((VERSION_KEY, theirs),))

    async def story() -> None:
        async with server() as at:
            for number in range(1, 3):
                async with site(at.address, "north") as link:
                    link.send(Leave("enough"))
                    await until(lambda n=number: at.heard.said.get("north", []).count(Leave("enough")) == n)
            assert at.heard.said["north"].count(Register(10, 1)) == 2
            assert not at.listener.rejected

    with caplog.at_level(logging.WARNING, "offbeat"):
        asyncio.run(story())
    (warning,) = [record for record in caplog.records if "version" in record.getMessage()]
    said = f"another version of Offbeat: the site has Offbeat {theirs}, and this server {ours}"
    assert (warning.levelname, warning.getMessage(), warning.__dict__["site"]) == ("WARNING", said, "north")

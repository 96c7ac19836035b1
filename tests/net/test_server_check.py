"""Checks of a server's set-up: each fault has its line, which says what to do, and nothing is opened."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from offbeat.net import server_check as module
from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.server_check import check_server
from tests.net.authority import Authority

NAMES = ["address", "page", "access", "certificate", "key", "authority", "sites", "disk", "writing", "clock"]


@dataclass(frozen=True)
class SetUp:
    """A set-up that is right, until a test changes it."""

    state: Path
    listen: str
    page: str
    credentials: ServerCredentials
    sites: int

    def failed(self) -> dict[str, str]:
        results = list(check_server(self.state, self.listen, self.page, self.credentials, self.sites))
        assert [result.name for result in results] == NAMES
        return {result.name: result.text for result in results if not result.passed}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def right(tmp_path: Path, ours: Authority) -> SetUp:
    (tmp_path / "state").mkdir()
    tokens = tmp_path / "state" / "tokens.json"
    make_token(tokens, "north")
    make_token(tokens, "east")
    certificate, key = ours.issue("server", days=90, hosts=["fl.example.org"])
    credentials = ServerCredentials(certificate, key, ours.file, tokens)
    return SetUp(tmp_path / "state", "0.0.0.0:0", "127.0.0.1:0", credentials, 2)


def test_a_set_up_that_is_right_passes_and_leaves_nothing(right: SetUp):
    before = sorted(right.state.iterdir())
    assert right.failed() == {}
    assert sorted(right.state.iterdir()) == before


Change = Callable[[SetUp, Authority, Path], SetUp]


def issued(
    days: float = 90, hosts: tuple[str, ...] = ("fl.example.org",), usage: str | None = None
) -> Change:
    def change(right: SetUp, ours: Authority, folder: Path) -> SetUp:
        certificate, key = ours.issue("other", days=days, hosts=hosts, usage=usage)
        return replace(right, credentials=replace(right.credentials, certificate=certificate, key=key))

    return change


def written(field: str, text: str) -> Change:
    def change(right: SetUp, ours: Authority, folder: Path) -> SetUp:
        path = folder / "written"
        path.write_text(text)
        return replace(right, credentials=replace(right.credentials, **{field: path}))

    return change


def listening(at: str) -> Change:
    return lambda right, ours, folder: replace(right, listen=at)


def another_key(right: SetUp, ours: Authority, folder: Path) -> SetUp:
    return replace(right, credentials=replace(right.credentials, key=ours.issue("another")[1]))


def newer(right: SetUp, ours: Authority, folder: Path) -> SetUp:
    os.utime(right.state / "tokens.json", (time.time() + 7200,) * 2)
    return right


def in_a_file(right: SetUp, ours: Authority, folder: Path) -> SetUp:
    return replace(right, state=ours.file / "state")


def without_credentials(right: SetUp, ours: Authority, folder: Path) -> SetUp:
    return replace(right, credentials=replace(right.credentials, client_ca=ours.file, tokens=None))


FAULTS: dict[str, tuple[Change, dict[str, str]]] = {
    "an address of another machine": (
        listening("203.0.113.7:7117"),
        {"address": "give an address of this machine", "certificate": "not for 203"},
    ),
    "a name without an address": (
        listening("no.such.invalid:7117"),
        {"address": "", "certificate": "not for no.s"},
    ),
    "another host": (issued(hosts=("elsewhere.example.org",)), {}),
    "expired": (issued(days=-1), {"certificate": "have another signed, or give offbeat enrol --host"}),
    "near its end": (issued(days=3), {"certificate": "ends in 3.0 days"}),
    "for sites": (
        issued(usage="client"),
        {"certificate": "have one signed whose extendedKeyUsage has serverAuth"},
    ),
    "another key": (another_key, {"key": "is not the key of"}),
    "no key": (written("key", "-----BEGIN nothing"), {"key": "give a PEM key without a password"}),
    "no certificate": (
        written("certificate", "-----BEGIN nothing"),
        {"certificate": "is no certificate: give one in PEM", "key": "is no certificate"},
    ),
    "damaged tokens": (written("tokens", "{"), {"access": "", "sites": ""}),
    "damaged authority": (written("client_ca", "-----BEGIN nothing"), {"authority": "is no certificate"}),
    "a site too few": (
        lambda right, *_: replace(right, sites=3),
        {"sites": "2 of 3 sites have a valid token"},
    ),
    "a clock behind": (newer, {"clock": "set this machine's clock"}),
    "a state that is none": (in_a_file, {"disk": "", "writing": ""}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_line(fault: str, right: SetUp, ours: Authority, tmp_path: Path):
    change, expected = FAULTS[fault]
    failed = change(right, ours, tmp_path).failed()
    assert failed.keys() == expected.keys()
    assert all(says in failed[name] for name, says in expected.items()), failed


def test_an_address_that_is_taken(right: SetUp):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        failed = replace(right, listen=at, page=at).failed()
    assert failed.keys() == {"address", "page"}
    assert "or end the process that listens there" in failed["page"]


def test_without_tls_or_proofs_beyond_loopback(right: SetUp):
    results = {r.name: r for r in check_server(right.state, "0.0.0.0:0", None, ServerCredentials(), 2)}
    assert "beyond loopback TLS is required" in results["access"].text
    assert not results["access"].passed


def test_a_slow_disk(right: SetUp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_FSYNC", -1.0)
    failed = right.failed()
    assert failed.keys() == {"writing"}
    assert "give --state a local disk" in failed["writing"]


def test_a_full_disk(right: SetUp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("offbeat.net.check.LEAST_FREE", 1 << 62)
    failed = right.failed()
    assert failed.keys() == {"disk"}
    assert ": free " in failed["disk"]

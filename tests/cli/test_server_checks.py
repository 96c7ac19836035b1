"""Checks of a server's set-up: each fault has its line, which says what to do, and nothing is opened."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from offbeat.allowed import Allowed
from offbeat.cli import server_checks as module
from offbeat.cli.server_checks import SERVER_CHECKS
from offbeat.cli.server_set_up import ServerSetUp
from offbeat.net.auth.credentials import ServerCredentials
from offbeat.net.auth.tokens import make_token
from offbeat.net.checks import run_checks
from offbeat.net.server.server_options import ServerOptions
from offbeat.recipes.load import load_recipe
from tests.net.authority import Authority

NAMES = ["address", "page", "access", "certificate", "key", "authority", "sites", "disk", "writing", "clock"]


CHECKS = SERVER_CHECKS[: len(NAMES)]
"""Those before the data and the run."""


def set_up_of(state: Path, listen: str, page: str | None, credentials: ServerCredentials) -> ServerSetUp:
    return ServerSetUp(
        recipe=load_recipe("digits"), state=state, listen=listen, page=page, unencrypted=False,
        credentials=credentials, given_tls=True, options=ServerOptions(clients=2), test=None, allow=Allowed(),
        mirror=None,
    )  # fmt: skip


def failed(set_up: ServerSetUp) -> dict[str, str]:
    results = list(run_checks(CHECKS, set_up))
    assert [result.name for result in results] == NAMES
    return {result.name: result.text for result in results if not result.passed}


@pytest.fixture
def ours(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


@pytest.fixture
def right(tmp_path: Path, ours: Authority) -> ServerSetUp:
    (tmp_path / "state").mkdir()
    tokens = tmp_path / "state" / "tokens.json"
    make_token(tokens, "north")
    make_token(tokens, "east")
    certificate, key = ours.issue("server", days=90, hosts=["fl.example.org"])
    credentials = ServerCredentials(certificate, key, ours.file, tokens)
    return set_up_of(tmp_path / "state", "0.0.0.0:0", "127.0.0.1:0", credentials)


def test_a_set_up_that_is_right_passes_and_leaves_nothing(right: ServerSetUp):
    before = sorted(right.state.iterdir())
    assert failed(right) == {}
    assert sorted(right.state.iterdir()) == before


Change = Callable[[ServerSetUp, Authority, Path], ServerSetUp]


def issued(
    days: float = 90, hosts: tuple[str, ...] = ("fl.example.org",), usage: str | None = None
) -> Change:
    def change(right: ServerSetUp, ours: Authority, folder: Path) -> ServerSetUp:
        certificate, key = ours.issue("other", days=days, hosts=hosts, usage=usage)
        return replace(right, credentials=replace(right.credentials, certificate=certificate, key=key))

    return change


def written(field: str, text: str) -> Change:
    def change(right: ServerSetUp, ours: Authority, folder: Path) -> ServerSetUp:
        path = folder / "written"
        path.write_text(text)
        return replace(right, credentials=replace(right.credentials, **{field: path}))

    return change


def listening(at: str) -> Change:
    return lambda right, ours, folder: replace(right, listen=at)


def another_key(right: ServerSetUp, ours: Authority, folder: Path) -> ServerSetUp:
    return replace(right, credentials=replace(right.credentials, key=ours.issue("another")[1]))


def newer(right: ServerSetUp, ours: Authority, folder: Path) -> ServerSetUp:
    os.utime(right.state / "tokens.json", (time.time() + 7200,) * 2)
    return right


def in_a_file(right: ServerSetUp, ours: Authority, folder: Path) -> ServerSetUp:
    return replace(right, state=ours.file / "state")


def without_credentials(right: ServerSetUp, ours: Authority, folder: Path) -> ServerSetUp:
    return replace(right, credentials=replace(right.credentials, client_ca=ours.file, tokens=None))


UNUSABLE = {"page": "", "access": ""}
"""What TLS refuses, too."""
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
        {"certificate": "have one signed whose extendedKeyUsage has serverAuth", **UNUSABLE},
    ),
    "another key": (another_key, {"key": "is not the key of", **UNUSABLE}),
    "no key": (
        written("key", "-----BEGIN nothing"),
        {"key": "give a PEM key without a password", **UNUSABLE},
    ),
    "no certificate": (
        written("certificate", "-----BEGIN nothing"),
        {"certificate": "is no certificate: give one in PEM", "key": "is no certificate", **UNUSABLE},
    ),
    "damaged tokens": (written("tokens", "{"), {"access": "", "sites": ""}),
    "damaged authority": (
        written("client_ca", "-----BEGIN nothing"),
        {"access": "it cannot be used", "authority": "is no certificate"},
    ),
    "a site too few": (
        lambda right, *_: replace(right, options=ServerOptions(clients=3)),
        {"sites": "2 of 3 sites have a valid token"},
    ),
    "a clock behind": (newer, {"clock": "set this machine's clock"}),
    "a state that is none": (in_a_file, {"disk": "", "writing": ""}),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_has_its_line(fault: str, right: ServerSetUp, ours: Authority, tmp_path: Path):
    change, expected = FAULTS[fault]
    found = failed(change(right, ours, tmp_path))
    assert found.keys() == expected.keys()
    assert all(says in found[name] for name, says in expected.items()), found


def test_an_address_that_is_taken(right: ServerSetUp):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        at = f"127.0.0.1:{taken.getsockname()[1]}"
        found = failed(replace(right, listen=at, page=at))
    assert found.keys() == {"address", "page"}
    assert "or end the process that listens there" in found["page"]


def test_without_tls_or_proofs_beyond_loopback(right: ServerSetUp):
    set_up = set_up_of(right.state, "0.0.0.0:0", None, ServerCredentials())
    results = {result.name: result for result in run_checks(CHECKS, set_up)}
    assert "beyond loopback TLS is required" in results["access"].text
    assert not results["access"].passed
    assert results.keys().isdisjoint({"page", "certificate", "key", "authority"})


def test_a_slow_disk(right: ServerSetUp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_FSYNC", -1.0)
    found = failed(right)
    assert found.keys() == {"writing"}
    assert "give --state a local disk" in found["writing"]


def test_a_full_disk(right: ServerSetUp, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("offbeat.net.site_checks.LEAST_FREE", 1 << 62)
    found = failed(right)
    assert found.keys() == {"disk"}
    assert ": free " in found["disk"]

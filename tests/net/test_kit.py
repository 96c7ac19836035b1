"""Kits: what is in one, who can read it, and every kit that is none."""

import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("grpc")

from offbeat.core.errors import UsageError
from offbeat.net.auth.ca import OwnAuthority
from offbeat.net.kit import KitFile, make_kit, write_kit

NOW = 1_800_000_000.0


@pytest.fixture(scope="module")
def ca(tmp_path_factory: pytest.TempPathFactory) -> str:
    own = OwnAuthority(tmp_path_factory.mktemp("own"))
    own.issue(["fl.example.org"])
    return own.ca.read_text()


@pytest.fixture
def kit(tmp_path: Path, ca: str) -> KitFile:
    made = make_kit("fl.example.org:7117", "north:secret", NOW + 100, ca, "# text\n", "0.1.0")
    write_kit(tmp_path / "north.kit", made)
    return KitFile(tmp_path / "north.kit")


def changed(kit: KitFile, **fields: Any) -> KitFile:
    document = json.loads(kit.path.read_bytes()) | fields
    kit.path.write_text(json.dumps(document))
    return kit


def test_a_kit_is_read_as_it_was_written_and_its_owners_alone(kit: KitFile, ca: str) -> None:
    assert stat.S_IMODE(kit.path.stat().st_mode) == 0o600
    found = kit.read_valid(NOW)
    assert (found.name, found.token, found.ca, found.ends) == (
        "north",
        "north:secret",
        ca,
        "2027-01-15 08:01 UTC",
    )
    shown = found.credentials()
    assert (shown.name, shown.token, shown.ca) == ("north", "north:secret", ca.encode())
    assert shown.tls("127.0.0.1:7117")
    assert "secret" not in f"{found!r}{shown!r}"
    assert list(kit.path.parent.iterdir()) == [kit.path], "nothing is left beside it"


def test_a_renewal_replaces_the_token_and_keeps_what_a_later_version_has_added(kit: KitFile) -> None:
    changed(kit, service="heart", projects=["a"])
    kit.store("north:second", NOW + 200)
    found = kit.read()
    assert (found.token, found.previous, found.expires) == ("north:second", "north:secret", NOW + 200)
    document = json.loads(kit.path.read_bytes())
    assert (document["service"], document["projects"]) == ("heart", ["a"])
    assert stat.S_IMODE(kit.path.stat().st_mode) == 0o600
    with pytest.raises(UsageError, match="another's"):
        kit.store("south:secret", NOW)
    for token, expires in (("north:a\nb", NOW), ("north:b", 1e300)):
        with pytest.raises(UsageError, match="is no whole kit"):
            kit.store(token, expires)
    assert kit.read() == found, "what a server sends does not damage it"


def test_a_renewal_follows_a_link_and_leaves_it(kit: KitFile, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    link = tmp_path / "elsewhere" / "link.kit"
    link.symlink_to(kit.path)
    KitFile(link).store("north:second", NOW)
    assert link.is_symlink()
    assert kit.read().token == "north:second"


def test_a_full_disk_leaves_the_kit_whole(kit: KitFile, monkeypatch: pytest.MonkeyPatch) -> None:
    before = kit.path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("offbeat.runs.durable_files.os.fsync", full)
    with pytest.raises(UsageError, match="No space left"):
        kit.store("north:second", NOW)
    assert kit.path.read_bytes() == before
    assert [path.name for path in kit.path.parent.iterdir()] == ["north.kit"]


def test_an_expired_kit_says_when_and_whom_to_ask(kit: KitFile) -> None:
    with pytest.raises(
        UsageError, match=r"expired on 2027-01-15 08:01 UTC: ask the operator of fl\.example\.org"
    ):
        kit.read_valid(NOW + 100)
    assert kit.read().name == "north"


def test_a_kit_that_others_can_read_is_a_warning(kit: KitFile, caplog: pytest.LogCaptureFixture) -> None:
    kit.warn_if_open()
    assert not caplog.messages
    kit.path.chmod(0o640)
    kit.warn_if_open()
    assert "others can read" in caplog.text


@pytest.mark.parametrize("size", [0, 1, 100, 400, -2])
def test_a_truncated_kit_is_refused(kit: KitFile, size: int) -> None:
    kit.path.write_bytes(kit.path.read_bytes()[:size])
    with pytest.raises(UsageError, match="is no whole kit"):
        kit.read()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "3", '{"offbeat_kit": "1"}', "{}", "[" * 50_000, "north:secret", '{"offbeat_kit": 1}'],
)
def test_what_is_no_kit_is_refused_in_one_line(kit: KitFile, text: str) -> None:
    kit.path.write_text(text)
    with pytest.raises(UsageError, match="is no whole kit") as caught:
        kit.read()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"token": "south:secret"}, "its token is not of its site"),
        ({"token": "north:sec\nret"}, "characters that no token has"),
        ({"token": 3}, "Expected `str`"),
        ({"name": "../north"}, "name"),
        ({"name": "n" * 5000}, "length <= 1000"),
        ({"address": "fl.example.org"}, "HOST:PORT"),
        ({"address": "fl.example.org:0"}, "no port"),
        ({"expires": "soon"}, "Expected `float"),
        ({"ca": "no certificate"}, "its certificate cannot be read"),
        ({"ca": "ä"}, "its certificate cannot be read"),
        ({"fingerprint": "00:11"}, "not its fingerprint"),
        ({"fingerprint": None}, "not its fingerprint"),
        ({"policy": ["allow"]}, "Expected `str`"),
        ({"policy": "\x1b[2J"}, "not printable"),
        ({"address": "\x1b[2J:1"}, "not printable"),
        ({"expires": 1e300}, "no time"),
        ({"expires": -1}, "no time"),
    ],
)
def test_fields_that_do_not_fit_are_refused(kit: KitFile, fields: dict[str, Any], why: str) -> None:
    with pytest.raises(UsageError, match=f"is no whole kit .*{why}"):
        changed(kit, **fields).read()


def test_a_later_format_asks_for_an_upgrade(kit: KitFile) -> None:
    with pytest.raises(UsageError, match="a kit of format 2, and this version of Offbeat reads 1: upgrade"):
        changed(kit, offbeat_kit=2, token={"kind": "of later"}).read()


def test_files_that_cannot_be_kits_are_not_read_whole(kit: KitFile, tmp_path: Path) -> None:
    kit.path.write_bytes(b" " * 2**18)
    with pytest.raises(UsageError, match="more than 131072 bytes"):
        kit.read()
    for path in (tmp_path, tmp_path / "none.kit", Path("/dev/zero")):
        with pytest.raises(UsageError, match="cannot be read"):
            KitFile(path).read()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="no regular file"):
        KitFile(tmp_path / "pipe").read()


def test_a_kit_without_an_authority_trusts_the_systems(tmp_path: Path) -> None:
    write_kit(tmp_path / "a.kit", make_kit("fl.example.org:1", "a:b", None, None, "", "0.1.0"))
    found = KitFile(tmp_path / "a.kit").read_valid(time.time())
    assert (found.ca, found.fingerprint, found.ends) == (None, None, "never")


def test_the_fingerprint_of_a_kit_covers_all_certificates_that_the_site_trusts(
    kit: KitFile, ca: str, tmp_path: Path
) -> None:
    other = OwnAuthority(tmp_path / "other")
    other.issue(["fl.example.org"])
    both = ca + other.ca.read_text()
    changed(kit, ca=both)
    with pytest.raises(UsageError, match="its certificates have not its fingerprint"):
        kit.read()
    found = make_kit("fl.example.org:7117", "north:secret", None, both, "", "")
    assert found.fingerprint is not None
    assert found.fingerprint.split(", ")[1] == other.fingerprint
    assert found.credentials().ca == both.encode()
    other.ca.write_text(both)
    assert other.fingerprint == found.fingerprint, "as offbeat enrol prints it"
    with pytest.raises(UsageError, match="it has 5 certificates of authorities"):
        make_kit("fl.example.org:7117", "north:secret", None, ca * 5, "", "")


def test_a_site_trusts_nothing_that_the_fingerprint_does_not_cover(
    kit: KitFile, ca: str, tmp_path: Path
) -> None:
    """TLS reads other kinds of PEM too."""
    other = OwnAuthority(tmp_path / "other")
    other.issue(["fl.example.org"])
    hidden = other.ca.read_text().replace(" CERTIFICATE", " TRUSTED CERTIFICATE")
    changed(kit, ca=ca + hidden)
    assert kit.read().credentials().ca == ca.encode()

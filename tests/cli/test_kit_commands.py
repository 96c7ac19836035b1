"""`offbeat enrol -o`, and commands with a kit: from nothing to a run of three sites; wrong usage."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

import offbeat as ob
from offbeat import cli
from offbeat.cli import console
from offbeat.cli.durations import life_of
from offbeat.cli.join import make_policy
from offbeat.cli.kit import policy_template
from offbeat.cli.own_credentials import with_own
from offbeat.cli.site_access import Access
from offbeat.cli.state_dir import stopped_by, tell_who_stops
from offbeat.core.errors import UsageError
from offbeat.models import MLPSpec
from offbeat.net import ServerCredentials, ServerOptions, join, serve, server_learner
from offbeat.net.auth.ca import OwnAuthority
from offbeat.net.auth.person import person
from offbeat.net.auth.tokens import Tokens
from offbeat.net.auth.tokens import read as read_tokens
from offbeat.net.checks import CheckResult, run_checks
from offbeat.net.client.kit_connector import KitConnector
from offbeat.net.client.policy import SitePolicy
from offbeat.net.kit import KitFile
from offbeat.net.site_checks import SITE_CHECKS, SiteSetUp
from tests.net.authority import Authority
from tests.net.support import server, shares_of_digits

ADDRESS = "127.0.0.1:7117"


@pytest.fixture
def offbeat(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The command line in this process: its exit code, stdout and stderr."""
    monkeypatch.setattr(console.out, "width", 300)
    monkeypatch.setattr(console.err, "width", 300)
    for command in ("join", "helper"):
        monkeypatch.setattr(f"offbeat.cli.{command}.setup_logs", lambda *_: None)

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["offbeat", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        said = capfd.readouterr()
        return int(end.value.code or 0), said.out, said.err

    return call


@pytest.fixture
def state(offbeat: Any, tmp_path: Path) -> Path:
    code, _, said = offbeat("enrol", "--state", tmp_path / "run", "--host", "127.0.0.1")
    assert code == 0
    assert "is for 127.0.0.1, until 20" in said
    return tmp_path / "run"


@pytest.fixture
def kit(offbeat: Any, state: Path, tmp_path: Path) -> Path:
    path = tmp_path / "north.kit"
    code, said, _ = offbeat("enrol", "north", "--state", state, "-o", path, "--address", ADDRESS)
    assert code == 0
    assert OwnAuthority(state).fingerprint in said
    return path


def test_the_first_kit_makes_the_authority_of_the_directory(offbeat: Any, tmp_path: Path) -> None:
    state, kit = tmp_path / "run", tmp_path / "north.kit"
    assert offbeat("enrol", "north", "--state", state, "-o", kit, "--address", "fl.example.org:7117")[0] == 0
    own = OwnAuthority(state)
    assert (own.names, KitFile(kit).read().fingerprint) == (("fl.example.org",), own.fingerprint)
    made, authority = own.certificate.read_bytes(), own.fingerprint
    east = ("enrol", "east", "--state", state, "-o", tmp_path / "east.kit", "--address", "10.0.0.1:7117")
    assert offbeat(*east)[0] == 2
    assert own.certificate.read_bytes() == made
    assert offbeat(*east, "--host", "fl.example.org")[0] == 0
    assert (own.names, own.fingerprint) == (("fl.example.org", "10.0.0.1"), authority)


def test_a_kit_of_a_file_of_tokens_has_no_authority(offbeat: Any, tmp_path: Path) -> None:
    kit = tmp_path / "north.kit"
    tokens = ("--tokens", tmp_path / "tokens.json")
    assert offbeat("enrol", "north", *tokens, "-o", kit, "--address", ADDRESS)[0] == 0
    assert KitFile(kit).read().fingerprint is None
    assert not OwnAuthority(tmp_path).exists


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--state", "run"), "give SITE, or --state DIR with"),
        (("--state", "run", "--host", "a.example", "--expires", "1d"), "give SITE, or --state DIR with"),
        (("north", "--tokens", "t.json", "--host", "a.example"), "--host is for the certificate of --state"),
        (("north", "--state", "run", "--dashboard"), "give --state DIR; leave out SITE"),
        (("--tokens", "t.json", "--dashboard"), "give --state DIR; leave out --tokens"),
    ],
)
def test_enrol_refuses_what_does_not_fit(offbeat: Any, words: tuple[str, ...], why: str) -> None:
    code, _, said = offbeat("enrol", *words)
    assert (code, why in said, said.count("\n")) == (2, True, 1), said


def test_the_token_of_the_page_notes_who_made_it(offbeat: Any, tmp_path: Path) -> None:
    assert offbeat("enrol", "--dashboard", "--state", tmp_path / "run", "--as", "anna")[0] == 0
    acts = read_tokens(tmp_path / "run" / "dashboard-token").acts
    assert [(act.action, act.site, act.by) for act in acts] == [("site.enrol", "@dashboard", "anna")]


def test_one_command_three_kits_and_three_joins_are_a_run(offbeat: Any, state: Path, tmp_path: Path) -> None:
    shares, test = shares_of_digits(3, 150, 50)
    names = ("north", "east", "south")
    for name in names:
        made = tmp_path / f"{name}.kit"
        assert offbeat("enrol", name, "--state", state, "-o", made, "--address", ADDRESS)[0] == 0
    learner = server_learner(MLPSpec(hidden=(8,)), test=test)
    experiment = ob.Experiment(ob.fedbuff(3, steps=2), learner, until=ob.Until(versions=2))

    async def federation(place: Path, given: ServerCredentials) -> str | None:
        credentials = with_own(given, place, "127.0.0.1:0")
        async with serve(
            experiment, place, "127.0.0.1:0", options=ServerOptions(clients=3), credentials=credentials
        ) as server:
            at, kits = f"127.0.0.1:{server.port}", [KitFile(tmp_path / f"{name}.kit") for name in names]
            states = [tmp_path / name for name in names]
            ways = [KitConnector(kit, at, state=kept) for kit, kept in zip(kits, states, strict=True)]
            joins = zip(ways, shares, states, strict=True)
            await asyncio.gather(*(join(way, share, state=kept) for way, share, kept in joins))
            return await server.ended()

    assert asyncio.run(federation(state, ServerCredentials())) == "reached 2 versions"
    own = OwnAuthority(state)
    first = ServerCredentials(own.certificate, own.key, tokens=state / "tokens.json")
    kits = [(tmp_path / f"{name}.kit").read_bytes() for name in names]
    assert asyncio.run(federation(tmp_path / "next", first)) == "reached 2 versions", "with the same kits"
    assert [(tmp_path / f"{name}.kit").read_bytes() for name in names] == kits


def test_the_own_certificate_and_tokens_are_used_unless_others_are_given(state: Path, tmp_path: Path) -> None:
    own = OwnAuthority(state)
    found = with_own(ServerCredentials(), state, "0.0.0.0:7117")
    assert (found.certificate, found.key, found.tokens) == (own.certificate, own.key, state / "tokens.json")
    found.check("0.0.0.0:7117")
    other = ServerCredentials(Path("a.pem"), Path("a.key"), tokens=Path("t.json"))
    assert with_own(other, state, "0.0.0.0:7117") == other
    plain = with_own(ServerCredentials(insecure_plaintext=True), state, "0.0.0.0:7117")
    assert (plain.certificate, plain.tokens) == (None, state / "tokens.json")
    assert with_own(ServerCredentials(), state, "unix:/tmp/a").certificate is None
    assert with_own(ServerCredentials(insecure_any_name=True), state, "[::]:1").tokens is None
    nothing = ServerCredentials()
    assert with_own(nothing, tmp_path / "elsewhere", "127.0.0.1:7117") == nothing


def test_a_kit_is_shown_without_its_secret(offbeat: Any, kit: Path) -> None:
    document = json.loads(kit.read_bytes())
    code, said, _ = offbeat("check", kit, "--offline")
    assert code == 0
    for text in ("north", ADDRESS, document["fingerprint"], "UTC", "Offbeat 0."):
        assert text in said
    assert document["token"].partition(":")[2] not in said
    policy = kit.with_name("policy.yaml")
    code, said, _ = offbeat("check", kit, "--offline", "-o", policy)
    assert (code, policy.read_text("utf-8")) == (0, policy_template())
    assert offbeat("check", kit, "--offline", "-o", policy)[0] == 2, "it is there already"
    assert offbeat("check", kit, "-o", kit.with_name("new.yaml"))[0] == 2, "nothing is connected to"
    code, said, _ = offbeat("check", kit, "--offline", "--json")
    shown = json.loads(said)
    assert (shown["fingerprint"], shown["policy"]) == (document["fingerprint"], policy_template())
    code, _, said = offbeat("check", kit.with_name("none.kit"), "--offline")
    assert (code, "No such file" in said) == (2, True)


def test_check_prints_the_fingerprint_before_it_connects(offbeat: Any, kit: Path) -> None:
    fingerprint = json.loads(kit.read_bytes())["fingerprint"]
    code, said, _ = offbeat("check", kit)
    assert (code, said.split()[:3]) == (1, ["PASS", "fingerprint", fingerprint]), said


def test_the_template_of_a_policy_has_every_key_and_its_default(tmp_path: Path) -> None:
    """It means the default policy as it is, and with every comment of a key taken away."""
    file = tmp_path / "policy.yaml"
    file.write_text(policy_template())
    assert make_policy(file, None) == SitePolicy()
    keys = [line[2:] for line in policy_template().splitlines() if line.startswith("# ") and ": " in line]
    keys = [line for line in keys if line.partition(":")[0] in SitePolicy.__dataclass_fields__]
    assert yaml.safe_load("\n".join(keys)).keys() == SitePolicy.__dataclass_fields__.keys()
    file.write_text("\n".join(keys))
    assert make_policy(file, None) == SitePolicy()


def test_a_kit_lives_ninety_days_and_a_printed_token_for_ever(offbeat: Any, kit: Path, state: Path) -> None:
    left = (KitFile(kit).read().expires or 0) - time.time()
    assert 89.9 < left / 86400 <= 90
    code, _, _ = offbeat("enrol", "east", "--state", state)
    (stored,) = Tokens(state / "tokens.json").stored()["east"]
    assert (code, stored.expires) == (0, 0)
    assert offbeat("enrol", "east", "--state", state, "--expires", "2h")[0] == 0
    (stored,) = Tokens(state / "tokens.json").stored()["east"]
    assert stored.expires - stored.made == 7200
    assert (life_of("--expires", "never"), life_of("--expires", "60s")) == (0, 60)
    for wrong in ("90", "0d", "-1d", "1w", "9999999d", "١d", "", "d"):
        with pytest.raises(UsageError, match=r"--expires .* is not allowed"):
            life_of("--expires", wrong)


def test_what_enrol_cannot_do_leaves_the_old_token_valid(offbeat: Any, kit: Path, state: Path) -> None:
    token = KitFile(kit).read().token
    new = kit.with_name("new.kit")
    for options, why in {
        ("-o", kit, "--address", ADDRESS): "is there already",
        ("-o", new, "--ca", new): "needs --address HOST:PORT",
        ("-o", new, "--address", "127.0.0.1"): "HOST:PORT",
        ("-o", new, "--address", "127.0.0.1:0"): "needs --address HOST:PORT",
        ("-o", new, "--address", "10.0.0.1:7117"): "the server's certificate is for 127.0.0.1",
        ("-o", kit / "in" / "file.kit", "--address", ADDRESS): "cannot be written",
        ("-o", new, "--address", ADDRESS, "--ca", new): "cannot be read",
        ("-o", new, "--address", ADDRESS, "--expires", "soon"): "--expires soon is not allowed",
        ("--address", ADDRESS): "--address is for a kit: give --out FILE too",
        ("--revoke", "-o", new): "give --revoke alone",
    }.items():
        code, _, said = offbeat("enrol", "north", "--state", state, *options)
        assert (code, why in said, said.count("\n")) == (2, True, 1), said
    assert Tokens(state / "tokens.json").name(token) == "north"
    assert not new.exists()


@pytest.mark.parametrize("command", ["join", "check", "helper"])
def test_a_kit_that_is_none_is_wrong_usage(offbeat: Any, kit: Path, command: str) -> None:
    more = {"join": ("--data", "digits"), "check": (), "helper": ("--state", kit.parent / "helper")}[command]
    whole = json.loads(kit.read_bytes())
    for document, why in {
        "": "is no whole kit",
        json.dumps(whole)[:300]: "is no whole kit",
        json.dumps(whole | {"offbeat_kit": 9}): "upgrade Offbeat here",
        json.dumps(whole | {"expires": 1.0}): "expired on 1970-01-01",
        json.dumps(whole | {"token": 7}): "is no whole kit",
        " " * 2**18: "more than 131072 bytes",
    }.items():
        kit.write_text(document)
        code, _, said = offbeat(command, kit, *more)
        assert (code, why in said, said.count("\n")) == (2, True, 1), said
    code, _, said = offbeat(command, kit.with_name("none.kit"), *more)
    assert (code, "is neither a file nor an address" in said) == (2, True)


def test_a_helper_needs_a_name(offbeat: Any, tmp_path: Path) -> None:
    code, _, said = offbeat("helper", ADDRESS, "--state", tmp_path / "h")
    assert (code, "give --name NAME" in said) == (2, True)


def test_an_institution_has_its_own_authority_and_certificates(offbeat: Any, tmp_path: Path) -> None:
    ours, kit = Authority(tmp_path, "ours"), tmp_path / "north.kit"
    certificate, key = ours.issue("north")
    words = ("enrol", "north", "--state", tmp_path / "run", "-o", kit, "--address", ADDRESS)
    assert offbeat(*words, "--ca", ours.file, "--cert", certificate, "--key", key)[0] == 0
    made = KitFile(kit).read()
    texts = [file.read_text("ascii") for file in (certificate, key)]
    assert [made.certificate, made.key] == texts
    code, said, _ = offbeat("check", kit, "--offline")
    assert (code, "PRIVATE" in said, "the site's own, with its key" in said) == (0, False, True)


def test_check_with_a_kit_says_how_long_its_token_lives(kit: Path, state: Path) -> None:
    access = Access.of(str(kit), None, {})
    assert (access.place, access.name) == (ADDRESS, "north")

    async def story() -> list[CheckResult]:
        own = OwnAuthority(state)
        credentials = ServerCredentials(own.certificate, own.key, tokens=state / "tokens.json")
        async with server(credentials) as at:
            set_up = SiteSetUp(at.address, access.credentials())
            return await asyncio.to_thread(lambda: list(run_checks(SITE_CHECKS, set_up)))

    found = asyncio.run(story())
    assert all(result.passed for result in found)
    assert "the token ends in 90.0 days" in [result.text for result in found]


def test_the_command_notes_who_enrols_and_who_revokes(offbeat: Any, state: Path, kit: Path) -> None:
    assert offbeat("enrol", "east", "--state", state, "--as", "anna")[0] == 0
    assert offbeat("enrol", "east", "--state", state, "--revoke", "--as", "bert")[0] == 0
    acts = [(act.action, act.site, act.by) for act in read_tokens(state / "tokens.json").acts]
    assert acts == [
        ("site.enrol", "north", person()), ("site.enrol", "east", "anna"), ("site.revoke", "east", "bert"),
    ]  # fmt: skip


def test_a_server_is_told_once_who_stops_it(tmp_path: Path) -> None:
    tell_who_stops(tmp_path, "anna")
    assert [stopped_by(tmp_path), stopped_by(tmp_path)] == ["anna", ""]

"""Renewal of a site's token over its connection: stored before it is answered, safe whenever one end dies."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket

import pytest

pytest.importorskip("grpc")

import offbeat as ob
from offbeat.core.errors import UsageError
from offbeat.data.dataset import Dataset
from offbeat.models import MLPSpec
from offbeat.net import ServerOptions, join, serve, server_learner, token_renewal
from offbeat.net.auth.ca import OwnAuthority
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.auth.tokens import Tokens, make_token, revoke
from offbeat.net.client.kit_connector import KitConnector
from offbeat.net.client.site_key import SITE_KEY, site_key
from offbeat.net.grpc.client import connect
from offbeat.net.kit import KitFile, make_kit, write_kit
from offbeat.net.messages import (
    FromServer,
    FromSite,
    Heartbeat,
    Register,
    Rejected,
    Renewal,
    Renewed,
    UpdateAck,
)
from offbeat.net.token_renewal import RenewingClientChannel
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ClientChannel,
    CredentialRevokedError,
)
from offbeat.runs.record import read_run
from tests.net.support import LIMITS, Open, server, shares_of_digits, site, until

LIFE = 90


class Federation:
    """A server with its own authority, and a site with its kit; the clock of tokens is the test's."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.own, self.tokens = OwnAuthority(folder / "run"), folder / "run" / "tokens.json"
        self.own.issue(["127.0.0.1"])
        self.kit, self.state = KitFile(folder / "north.kit"), folder / "north-state"
        self.first = make_token(self.tokens, "north", life=LIFE)
        self.late = 0.0
        init = Tokens.__init__
        monkeypatch.setattr(
            Tokens, "__init__", lambda own, path, **options: init(own, path, clock=self.now, **options)
        )
        monkeypatch.setattr(token_renewal, "LONGEST_SLEEP", 0.02)

    def now(self) -> float:
        return time.time() + self.late

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Open]:
        credentials = ServerCredentials(self.own.certificate, self.own.key, tokens=self.tokens)
        async with server(credentials) as at:
            ca = self.own.ca.read_text()
            if not self.kit.path.exists():
                kit = make_kit(at.address, self.first, time.time() + LIFE, ca, "", "")
                write_kit(self.kit.path, kit)
            yield at

    @asynccontextmanager
    async def joined(self, at: Open) -> AsyncIterator[ClientChannel]:
        """The site, which reads what the server says."""
        channel = await KitConnector(self.kit, at.address, state=self.state)()
        channel.send(Register(10, 1))
        reading = asyncio.create_task(self._read(channel))
        try:
            yield channel
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await channel.close()

    async def _read(self, channel: ClientChannel) -> None:
        while True:
            await channel.receive()

    @property
    def token(self) -> str:
        return self.kit.read().token

    def valid(self, token: str) -> bool:
        return Tokens(self.tokens).name(token) == "north"

    @property
    def stored(self) -> int:
        return len(json.loads(self.tokens.read_bytes())["sites"]["north"])


@pytest.fixture
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Federation:
    return Federation(tmp_path, monkeypatch)


def renewed_at_server(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.message for r in caplog.records if r.message == "the token is renewed" and hasattr(r, "site")]


def test_a_token_is_renewed_twenty_times_on_one_connection_that_lives_on(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection outlives every token but the last, and nothing that the site says is lost."""
    caplog.set_level("INFO")

    async def story() -> None:
        async with federation.serving() as at, federation.joined(at) as channel:
            await until(lambda: at.heard.links == ["north"])
            tokens = [federation.first]
            for number in range(20):
                channel.send(Heartbeat(number, number))
                federation.late += LIFE * 0.7
                await until(lambda: len(renewed_at_server(caplog)) == len(tokens))
                tokens.append(federation.token)
                assert federation.valid(federation.token)
            assert len(set(tokens)) == 21
            channel.send(Heartbeat(20, 20))
            await until(lambda: Heartbeat(20, 20) in at.heard.said["north"])
            assert at.heard.said["north"] == [Register(10, 1), *(Heartbeat(n, n) for n in range(21))]
            assert not at.heard.ended
            assert federation.stored <= 3

    asyncio.run(story())


def test_the_old_token_ends_at_the_first_login_with_the_new_one(federation: Federation) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            async with federation.joined(at):
                federation.late += LIFE * 0.7
                await until(lambda: federation.token != federation.first)
            second = federation.token
            assert federation.valid(federation.first)
            async with federation.joined(at):
                await until(lambda: not federation.valid(federation.first))
            assert federation.token == second
            assert federation.stored == 1

    asyncio.run(story())


@pytest.mark.parametrize("stored", [False, True])
def test_a_site_that_dies_before_or_after_it_has_stored_logs_in_again(
    federation: Federation, stored: bool
) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            kit = federation.kit.read()
            key = site_key(federation.state)
            shown = SiteCredentials("north", kit.token, kit.credentials().ca, renewal_key=key)
            async with site(at.address, shown) as channel:
                federation.late += LIFE * 0.7
                renewal = await channel.receive()
                assert isinstance(renewal, Renewal)
                if stored:
                    federation.kit.store(renewal.token, renewal.expires)
            async with federation.joined(at):
                await until(lambda: federation.token not in (federation.first, kit.token))
            assert federation.valid(federation.token)

    asyncio.run(story())


def test_a_server_that_dies_between_making_and_sending_takes_the_token_before(federation: Federation) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            send, made = ClientChannel.send, asyncio.Event()
            assert send
            with pytest.MonkeyPatch.context() as dying:
                real = token_renewal.RenewingServerChannel.renew

                async def dies(own: token_renewal.RenewingServerChannel) -> None:
                    own._channel.send = lambda message: made.set()  # type: ignore[method-assign]
                    await real(own)

                dying.setattr(token_renewal.RenewingServerChannel, "renew", dies)
                async with federation.joined(at):
                    federation.late += LIFE * 0.7
                    await made.wait()
        assert federation.token == federation.first
        assert federation.stored == 2
        async with federation.serving() as at, federation.joined(at):
            await until(lambda: federation.token != federation.first)

    asyncio.run(story())


def test_a_server_restored_from_a_copy_takes_the_token_before(federation: Federation) -> None:
    async def story() -> None:
        copy = federation.tokens.read_bytes()
        async with federation.serving() as at:
            async with federation.joined(at):
                federation.late += LIFE * 0.7
                await until(lambda: federation.token != federation.first)
            lost = federation.token
            async with federation.joined(at):
                await until(lambda: not federation.valid(federation.first))
            federation.tokens.write_bytes(copy)
            async with federation.joined(at):
                await until(lambda: federation.token != lost)

    asyncio.run(story())


def test_a_site_that_cannot_store_is_not_answered_for_and_keeps_its_token(
    federation: Federation, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(_: KitFile, token: str, expires: float) -> None:
        raise UsageError("the kit cannot be written: no space left")

    async def story() -> None:
        async with federation.serving() as at:
            with monkeypatch.context() as filled:
                filled.setattr(KitFile, "store", full)
                async with federation.joined(at):
                    federation.late += LIFE * 0.7
                    await until(lambda: "cannot be stored" in caplog.text)
            assert Renewed() not in at.heard.said["north"]
            async with federation.joined(at):
                await until(lambda: federation.token != federation.first)

    asyncio.run(story())


def test_a_site_that_does_not_say_that_it_stores_tokens_is_sent_none(federation: Federation) -> None:
    """As every site of before: it would not know the message."""

    async def story() -> None:
        async with federation.serving() as at:
            kit = federation.kit.read()
            async with site(at.address, kit.credentials()) as channel:
                federation.late += LIFE * 0.9
                channel.send(Heartbeat(1, 1))
                assert await channel.receive() == Heartbeat(1, 1)
                channel.send(Renewed())
                channel.send(Heartbeat(2, 2))
                assert await channel.receive() == Heartbeat(2, 2), "an answer to nothing changes nothing"
            assert federation.stored == 1

    asyncio.run(story())


def test_an_expired_token_ends_the_connection_and_says_when(federation: Federation) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            kit = federation.kit.read()
            async with site(at.address, kit.credentials()) as channel:
                federation.late += LIFE
                channel.send(Heartbeat())
                with pytest.raises(ChannelClosedError, match="no longer valid"):
                    await federation._read(channel)
            with pytest.raises(ChannelRefusedError, match=r"the token of site north expired on 20\d\d-"):
                await connect(at.address, kit.credentials(), LIMITS)

    asyncio.run(story())


def test_a_revoked_or_foreign_kit_is_refused_in_one_sentence(federation: Federation, tmp_path: Path) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            revoke(federation.tokens, "north")
            with pytest.raises(
                CredentialRevokedError, match=r"north\.kit: .*the token of site north was revoked on 20"
            ):
                await KitConnector(federation.kit, at.address)()
            other = OwnAuthority(tmp_path / "other")
            other.issue(["127.0.0.1"])
            kit = make_kit(at.address, federation.first, None, other.ca.read_text(), "", "")
            write_kit(tmp_path / "foreign.kit", kit)
            with pytest.raises(UsageError, match="the kit is of another server"):
                await KitConnector(KitFile(tmp_path / "foreign.kit"))()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"token": "north:" + 43 * "A"}, "the token is not valid: ask the server's operator to enrol"),
        ({"name": "south", "token": "south:"}, "the token is not valid: ask the server's operator to enrol"),
        ({"address": "localhost:"}, "localhost; it is for 127.0.0.1: give the address with a name of the"),
        (
            {"ca": None, "fingerprint": None},
            "speaks TLS, and this site does not: give --set access.ca=FILE .* or a kit",
        ),
        ({"expires": 4e9}, "the token of site north expired on 20"),
        ({}, "the token of site north was revoked on 20"),
    ],
)
def test_a_kit_with_a_wrong_value_is_refused_in_one_sentence(
    changes: dict[str, str | None], says: str, federation: Federation
) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            whole = json.loads(federation.kit.path.read_bytes())
            secret, port = whole["token"].partition(":")[2], at.address.rpartition(":")[2]
            added = {"south:": secret, "localhost:": port}
            own = {
                key: f"{value}{added.get(str(value), '')}" if isinstance(value, str) else value
                for key, value in changes.items()
            }
            if "expires" in changes:
                federation.late = LIFE + 1  # the server's clock
            elif not changes:
                make_token(federation.tokens, "north", life=LIFE)
            write_kit(federation.kit.path, whole | own)
            with pytest.raises((ChannelRefusedError, UsageError), match=says) as refused:
                await KitConnector(federation.kit)()
            assert "\n" not in str(refused.value)
            assert secret not in str(refused.value)
            assert not at.heard.links

    asyncio.run(story())


def test_a_token_that_ends_soon_and_is_not_renewed_is_a_warning(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            await (await connect(at.address, federation.kit.read().credentials(), LIMITS)).close()
            assert "the site's token ends in 0.0 days, and is not renewed" in caplog.text
            caplog.clear()
            async with federation.joined(at):
                pass
            assert "is not renewed" not in caplog.text

    asyncio.run(story())


# ---- the key for which a token is renewed ----


@asynccontextmanager
async def copied(federation: Federation, at: Open, state: Path | None) -> AsyncIterator[ClientChannel]:
    """Another process with a copy of the kit, and with a state of its own or none."""
    copy = KitFile(federation.kit.path.with_name("copy.kit"))
    if not copy.path.exists():
        copy.path.write_bytes(federation.kit.path.read_bytes())
    channel = await KitConnector(copy, at.address, state=state)()
    channel.send(Register(10, 1))
    try:
        yield channel
    finally:
        await channel.close()


@pytest.mark.parametrize("own_state", [False, True])
def test_a_copied_kit_renews_nothing_and_does_not_outlive_its_expiry(
    federation: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture, own_state: bool
) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            async with federation.joined(at):
                await until(lambda: at.heard.links == ["north"])
            async with copied(federation, at, tmp_path / "other" if own_state else None) as copy:
                await until(lambda: at.heard.links == ["north"] * 2)
                federation.late += LIFE * 0.9
                copy.send(Heartbeat(1, 1))
                await until(lambda: Heartbeat(1, 1) in at.heard.said["north"])
            assert federation.stored == 1
            assert at.listener.rejected == {"key": 1}
            assert "the server renews it for the key with which it was used first" in caplog.text, "the site"
            assert "so its token is not renewed" in caplog.text, "the server"
            async with federation.joined(at):
                await until(lambda: federation.token != federation.first)
                federation.late += LIFE * 0.2
            with pytest.raises(ChannelRefusedError, match=r"expired on 20|was renewed"):
                async with copied(federation, at, None):
                    pass

    asyncio.run(story())


def test_a_kit_that_somebody_else_has_used_first_is_told_to_both_sides(
    federation: Federation, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            async with copied(federation, at, tmp_path / "other"):
                await until(lambda: at.heard.links == ["north"])
            async with federation.joined(at):
                await until(lambda: at.heard.links == ["north"] * 2)
            assert "ask the server's operator for a new kit" in caplog.text
            assert at.listener.rejected == {"key": 1}

    asyncio.run(story())


def test_a_process_without_the_key_does_not_replace_the_one_that_has_it(
    federation: Federation, tmp_path: Path
) -> None:
    async def story() -> None:
        async with federation.serving() as at, federation.joined(at) as channel:
            await until(lambda: at.heard.links == ["north"])
            for state in (None, tmp_path / "other"):
                async with copied(federation, at, state) as copy:
                    with pytest.raises(ChannelClosedError, match="this process has not that key"):
                        await federation._read(copy)
            assert at.listener.rejected == {"without key": 2}
            channel.send(Heartbeat(7, 7))
            await until(lambda: Heartbeat(7, 7) in at.heard.said["north"])

    asyncio.run(story())


def test_a_key_is_durable_before_a_server_hears_of_it_and_is_shown_again_after_a_crash(
    federation: Federation, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    async def dies(*_: object) -> None:
        assert (federation.state / SITE_KEY).stat().st_mode & 0o777 == 0o600
        raise Died

    async def story() -> None:
        async with federation.serving() as at:
            with monkeypatch.context() as dying:
                dying.setattr("offbeat.net.client.connector.connect", dies)
                with pytest.raises(Died):
                    await KitConnector(federation.kit, at.address, state=federation.state)()
            key = site_key(federation.state)
            async with federation.joined(at):
                federation.late += LIFE * 0.7
                await until(lambda: federation.token != federation.first)
            assert site_key(federation.state) == key

    asyncio.run(story())


def test_a_server_restored_from_before_the_key_is_bound_to_it_again(federation: Federation) -> None:
    async def story() -> None:
        copy = federation.tokens.read_bytes()
        async with federation.serving() as at:
            async with federation.joined(at):
                await until(lambda: b"token.key" in federation.tokens.read_bytes())
            federation.tokens.write_bytes(copy)
            async with federation.joined(at):
                federation.late += LIFE * 0.7
                await until(lambda: federation.token != federation.first)
            assert not at.listener.rejected

    asyncio.run(story())


def test_a_lost_key_needs_a_new_kit(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        async with federation.serving() as at:
            async with federation.joined(at):
                await until(lambda: at.heard.links == ["north"])
            (federation.state / SITE_KEY).unlink()
            async with federation.joined(at):
                await until(lambda: "ask the server's operator for a new kit" in caplog.text)
            token = make_token(federation.tokens, "north", life=LIFE)
            ca = federation.own.ca.read_text()
            write_kit(federation.kit.path, make_kit(at.address, token, time.time() + LIFE, ca, "", ""))
            async with federation.joined(at):
                federation.late += LIFE * 0.7
                await until(lambda: federation.token != token)

    asyncio.run(story())


def test_a_damaged_key_is_one_line(tmp_path: Path) -> None:
    (tmp_path / SITE_KEY).write_text("half")
    with pytest.raises(UsageError, match=r"renewal\.key is no key: restore it, or delete it and ask"):
        site_key(tmp_path)


class Scripted:
    """A connection of a site, on which the server says what the test has written."""

    def __init__(self, *says: FromServer | Exception) -> None:
        self.says, self.heard = list(says), list[FromSite]()

    def send(self, message: FromSite) -> None:
        self.heard.append(message)

    async def receive(self) -> FromServer:
        said = self.says.pop(0)
        if isinstance(said, Exception):
            raise said
        return said

    async def close(self, reason: str = "") -> None:
        """Nothing is open."""


@pytest.mark.parametrize("said", [ChannelRefusedError("it has expired"), Rejected("it has expired")])
def test_a_refusal_of_a_token_that_was_renewed_is_the_end_of_a_connection_only(
    said: FromServer | Exception,
) -> None:
    """Whoever sleeps until the token of a connection has expired goes on with the one that was stored."""
    kept = list[str]()

    async def story() -> None:
        renewed = Scripted(Renewal("north:b", 9), Heartbeat(), said)
        channel = RenewingClientChannel(renewed, lambda token, expires: kept.append(token))
        assert await channel.receive() == Heartbeat()
        assert (kept, renewed.heard) == (["north:b"], [Renewed()])
        with pytest.raises(ChannelClosedError, match="it has expired") as caught:
            await channel.receive()
        assert not isinstance(caught.value, ChannelRefusedError)
        first = RenewingClientChannel(Scripted(said), lambda token, expires: None)
        if isinstance(said, Exception):
            with pytest.raises(ChannelRefusedError):
                await first.receive()
        else:
            assert await first.receive() == said

    asyncio.run(story())


@pytest.mark.thorough
def test_no_update_is_lost_in_a_run_whose_tokens_are_renewed_twenty_times(
    federation: Federation, tmp_path: Path
) -> None:
    """Connections are cut, and the server is left and served again; the clock moves by most of a life."""
    state, links, acknowledged = federation.own.directory, dict[str, ClientChannel](), set[int]()
    names, (shares, test) = ("north", "east"), shares_of_digits(2, 120, 40)
    learner = server_learner(MLPSpec(hidden=(8,)), test=test)
    experiment = ob.Experiment(ob.fedasync(steps=5), learner, until=ob.Until(seconds=1e6))
    credentials = ServerCredentials(federation.own.certificate, federation.own.key, tokens=federation.tokens)
    kits = {name: KitFile(tmp_path / f"{name}.kit") for name in names}

    class Acknowledged(RenewingClientChannel):
        async def receive(self) -> FromServer:
            message = await super().receive()
            if isinstance(message, UpdateAck) and message.accepted:
                acknowledged.add(message.task)
            return message

    async def take_part(name: str, share: Dataset, port: int) -> None:
        way = KitConnector(kits[name], state=tmp_path / name)

        async def connected() -> ClientChannel:
            links[name] = Acknowledged(await way(), lambda token, expires: None)
            return links[name]

        await join(connected, share, state=tmp_path / name, min_step_seconds=0.01)

    async def story() -> None:
        with socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        for name, kit in kits.items():
            token, ca = make_token(federation.tokens, name, life=LIFE), federation.own.ca.read_text()
            write_kit(kit.path, make_kit(f"127.0.0.1:{port}", token, None, ca, "", ""))
        sites = [
            asyncio.create_task(take_part(name, share, port))
            for name, share in zip(names, shares, strict=True)
        ]
        for renewals in range(4, 21, 4):
            async with serve(
                experiment, state, f"127.0.0.1:{port}", options=ServerOptions(clients=2),
                credentials=credentials,
            ):  # fmt: skip
                for number in range(renewals - 4, renewals):
                    before, done = [kit.read().token for kit in kits.values()], len(acknowledged)
                    await until(lambda done=done: len(acknowledged) > done)
                    federation.late += LIFE * 0.7
                    await until(
                        lambda before=before: all(
                            kit.read().token != old for kit, old in zip(kits.values(), before, strict=True)
                        )
                    )
                    await links[names[number % 2]].close("cut off")
        assert not any(task.done() for task in sites)
        for task in sites:
            task.cancel()
        await asyncio.gather(*sites, return_exceptions=True)

    asyncio.run(story())
    arrived = {row.task for row in read_run(state).rows() if row.name == "arrived"}
    assert len(acknowledged) >= 20
    assert acknowledged <= arrived

"""Links on gRPC over loopback: what honest ends see, and what a server does with ends that are not."""

import asyncio
import gc
import random
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.net.auth.credentials import ServerCredentials, SiteCredentials
from offbeat.net.grpc.client import connect
from offbeat.net.grpc.server import listen
from offbeat.net.messages import (
    FromSite,
    Heartbeat,
    Leave,
    Register,
    Rejected,
    TaskAssignment,
    TaskFailed,
    TaskRecall,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.transport import ChannelClosedError, ChannelRefusedError, ServerChannel
from offbeat.net.wire import wire_pb2 as pb
from offbeat.net.wire.limits import Limits
from offbeat.net.wire.serialization import serialize
from offbeat.net.wire.writer import frames
from offbeat.version import __version__
from tests.net.announced_body import announced_body
from tests.net.support import LIMITS, raw, server, site, status, until, write
from tests.sampling import thorough

INTEGERS = torch.zeros(0, dtype=torch.int64)
NAMED = (("offbeat-site", "evil"),)


def framed(message: FromSite) -> list[bytes]:
    outgoing = serialize(message)
    return [frame for frame, _ in frames(pb.Frame(envelopes=[outgoing.envelope]), outgoing.body)]


HELLO = framed(Register(1, 1))[0]


def test_what_is_said_is_heard():
    async def story() -> None:
        delta = torch.randn(700_000)
        async with server() as at:
            async with site(at.address, "a") as link:
                link.send(UpdateSubmission(1, 5, delta, INTEGERS, {"loss": 0.5}))
                assert await link.receive() == UpdateAck(1, True)
                link.send(Leave("enough"))
            await until(lambda: bool(at.heard.ended))
        hello, result, bye = at.heard.said["a"]
        assert (hello, bye) == (Register(10, 1), Leave("enough"))
        assert isinstance(result, UpdateSubmission)
        assert isinstance(result.delta, torch.Tensor)
        assert torch.equal(result.delta, delta)
        assert at.listener.rejected == {}

    asyncio.run(story())


def test_a_recall_arrives_before_the_model_of_another_task():
    async def on_channel(link: ServerChannel) -> None:
        link.send(TaskAssignment(1, 0, 1, 0, Model.empty(Layout.flat(20_000_000))))
        link.send(TaskRecall(0))
        await link.receive()
        with suppress(ChannelClosedError):
            await link.receive()

    async def story() -> None:
        async with server(on_channel=on_channel) as at, site(at.address, "a") as link:
            assert await link.receive() == TaskRecall(0)
            assert isinstance(await link.receive(), TaskAssignment)

    asyncio.run(story())


def test_the_server_ends_a_link_after_its_last_message_with_its_reason():
    async def on_channel(link: ServerChannel) -> None:
        link.send(TaskRecall(3))
        await link.close("the run is over")
        link.send(TaskRecall(4))  # too late

    async def story() -> None:
        async with server(on_channel=on_channel) as at, site(at.address, "a") as link:
            assert await link.receive() == TaskRecall(3)
            with pytest.raises(ChannelClosedError, match="the run is over"):
                await link.receive()
            link.send(Heartbeat())  # too late

    asyncio.run(story())


def test_a_server_that_fails_with_one_site_goes_on_with_others(caplog: pytest.LogCaptureFixture):
    async def on_channel(link: ServerChannel) -> None:
        if link.site == "a":
            raise KeyError("a mistake of ours")
        link.send(TaskRecall(1))
        with suppress(ChannelClosedError):
            while True:
                await link.receive()

    async def story() -> None:
        async with server(on_channel=on_channel) as at:
            async with site(at.address, "a") as link:
                said = Rejected("the server failed to handle a message of this site", final=False)
                assert await link.receive() == said
                with pytest.raises(ChannelClosedError, match="INTERNAL"):
                    await link.receive()
            async with site(at.address, "b") as link:
                assert await link.receive() == TaskRecall(1)
            assert at.listener.rejected == {"ours": 1}

    asyncio.run(story())
    assert "a mistake of ours" in caplog.text


def test_a_newer_link_of_a_site_takes_the_place_of_the_older():
    async def story() -> None:
        async with server() as at, site(at.address, "a") as older, site(at.address, "b") as other:
            await until(lambda: len(at.heard.links) == 2)
            async with site(at.address, "a") as newer:
                said = await older.receive()
                assert isinstance(said, Rejected)
                assert not said.final
                with pytest.raises(ChannelClosedError, match="newer connection"):
                    await older.receive()
                for link in (newer, other):
                    link.send(Heartbeat(1, 2))
                    assert await link.receive() == Heartbeat(1, 2)
                assert at.listener.sites == ("a", "b")
                assert at.heard.ended[0][0] == "a"  # the older had ended before the newer began
                assert len(at.heard.links) == 3

    asyncio.run(story())


def test_a_site_that_is_cut_off_ends_its_link():
    async def story() -> None:
        async with server() as at:
            async with raw(at.address, NAMED) as call:
                await write(call, HELLO)
                await until(lambda: bool(at.heard.links))
            await until(lambda: bool(at.heard.ended))
            assert at.listener.sites == ()

    asyncio.run(story())


def test_a_connection_without_a_hello_is_ended():
    async def story() -> None:
        async with server(limits=replace(LIMITS, handshake=0.3)) as at, raw(at.address, NAMED) as call:
            assert await status(call) == ("DEADLINE_EXCEEDED", "no register within 0.3 s")
            assert at.listener.rejected == {"deadline": 1}
            assert at.heard.links == []

    asyncio.run(story())


def test_a_silent_socket_is_hung_up():
    async def story() -> None:
        async with server(limits=replace(LIMITS, handshake=0.5)) as at:
            reader, writer = await asyncio.open_connection("127.0.0.1", at.listener.port)
            async with asyncio.timeout(300):
                while await reader.read(1000):
                    pass
            writer.close()

    asyncio.run(story())


def test_a_body_that_stops_is_ended_even_with_heartbeats():
    async def story() -> None:
        async with server(limits=replace(LIMITS, stall=0.5)) as at, raw(at.address, NAMED) as call:
            await write(call, HELLO, framed(UpdateSubmission(1, 1, torch.zeros(1_000_000), INTEGERS))[0])
            while not call.done():
                await write(call, *framed(Heartbeat()))
                await asyncio.sleep(0.05)
            assert at.listener.rejected == {"slow": 1}
            assert at.listener._budget.free == LIMITS.memory

    asyncio.run(story())


@pytest.mark.parametrize(
    ("queue", "sent", "reason"),
    [(2, 10, "the peer reads too slowly"), (64, 10, "the peer has read nothing for 0.5 s")],
)
def test_a_site_that_does_not_read_is_disconnected(queue: int, sent: int, reason: str):
    ends: list[str] = []

    async def on_channel(link: ServerChannel) -> None:
        model = Model.empty(Layout.flat(2_000_000))
        for task in range(sent):
            link.send(TaskAssignment(task, 0, 1, 0, model))
        try:
            while True:
                await link.receive()
        except ChannelClosedError as error:
            ends.append(str(error))

    async def story() -> None:
        limits = replace(LIMITS, stall=0.5, queue=queue)
        async with server(limits=limits, on_channel=on_channel) as at, raw(at.address, NAMED) as call:
            await write(call, HELLO)
            await until(lambda: bool(ends))
            assert ends == [reason]
            await until(lambda: at.listener.rejected == {"slow": 1})

    asyncio.run(story())


def test_a_site_has_as_many_unprocessed_messages_as_it_may_and_loses_none(monkeypatch: pytest.MonkeyPatch):
    """The messages of one frame come at once, so each has a frame of its own."""
    monkeypatch.setattr("offbeat.net.wire.writer.TOGETHER", 1)
    held: list[tuple[FromSite, Callable[[], None]]] = []

    async def on_channel(link: ServerChannel) -> None:
        await link.forward(lambda *item: held.append(item))

    async def story() -> None:
        limits = replace(LIMITS, queue=3)
        async with server(limits=limits, on_channel=on_channel) as at, site(at.address, "a") as link:
            await until(lambda: len(held) == 1)
            for task in range(12):
                link.send(TaskFailed(task, ""))
            await until(lambda: len(held) == 3)
            assert len(held) == 3
            for number in range(13):
                await until(lambda number=number: len(held) > number)
                assert len(held) <= number + 3
                held[number][1]()
        assert [m for m, _ in held[1:]] == [TaskFailed(task, "") for task in range(12)]

    asyncio.run(story())


@pytest.mark.parametrize("method", ["/offbeat.v2.Federation/Converse", "/offbeat.v3.Federation/Connect"])
def test_a_site_with_another_version_of_the_wire_is_told_so(method: str, monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        monkeypatch.setattr("tests.net.support.CONNECT", method)
        async with server() as at, raw(at.address, NAMED) as call:
            code, details = await status(call)
            assert code == "UNIMPLEMENTED"
            theirs = method[len("/offbeat.v")]
            assert details == (
                f"this server has Offbeat {__version__}, which speaks version 1 of the wire, and the site "
                f"speaks version {theirs}: install a version of Offbeat that speaks version 1 at the site"
            )
            assert at.heard.links == []
            assert at.listener.rejected == {"wire": 1}

    asyncio.run(story())


def test_a_server_with_another_version_of_the_wire_is_named(monkeypatch: pytest.MonkeyPatch):
    async def story() -> None:
        monkeypatch.setattr("offbeat.net.grpc.call.PATH", "/offbeat.v3.Federation/Connect")
        async with server() as at:
            with pytest.raises(
                ChannelRefusedError,
                match=f"Offbeat {__version__}, which speaks version 1 of the wire .*has Offbeat.*version 3",
            ):
                await connect(at.address, SiteCredentials(name="a"), LIMITS)

    asyncio.run(story())


def test_a_site_that_tells_no_version_is_served(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("offbeat.net.grpc.call.METADATA", ())

    async def story() -> None:
        async with server() as at, site(at.address, "a"):
            await until(lambda: at.heard.links == ["a"])

    asyncio.run(story())


@pytest.mark.parametrize("host", ["[::1]", "[::]"])
def test_a_server_listens_on_ipv6(host: str):
    async def story() -> None:
        anybody = ServerCredentials(insecure_plaintext=True, insecure_any_name=True)
        async with server(anybody, host=host) as at, site(f"[::1]:{at.listener.port}", "a"):
            await until(lambda: at.heard.links == ["a"])
            if host == "[::]":  # and on IPv4
                async with site(f"127.0.0.1:{at.listener.port}", "b"):
                    await until(lambda: at.heard.links == ["a", "b"])

    asyncio.run(story())


def test_no_more_connections_than_allowed():
    async def story() -> None:
        async with server(limits=replace(LIMITS, connections=1)) as at, site(at.address, "a"):
            await until(lambda: bool(at.heard.links))
            with pytest.raises(ChannelClosedError, match="RESOURCE_EXHAUSTED") as caught:
                await connect(at.address, SiteCredentials(name="b"), LIMITS)
            assert not isinstance(caught.value, ChannelRefusedError)  # it may be worth another try

    asyncio.run(story())


def test_a_fast_talker_is_slowed_down_and_loses_nothing():
    async def story() -> None:
        async with server(limits=replace(LIMITS, messages_per_second=20.0)) as at:
            before = asyncio.get_running_loop().time()
            async with site(at.address, "a") as link:
                for number in range(220):
                    link.send(Heartbeat(0, number))
                    await link.receive()
            # 200 at once, 21 more at 20 a second: a lower bound cannot fail on a slow machine
            assert asyncio.get_running_loop().time() - before > 0.9
        assert [m.steps for m in at.heard.said["a"] if isinstance(m, Heartbeat)] == list(range(220))

    asyncio.run(story())


def test_bodies_share_the_memory_there_is():
    async def story() -> None:
        limits = replace(LIMITS, body=3_000_000, memory=3_000_000)
        async with server(limits=limits) as at:
            async with site(at.address, "a") as a, site(at.address, "b") as b:
                for link in (a, b) * 3:
                    link.send(UpdateSubmission(1, 1, torch.zeros(500_000), INTEGERS))
                for link in (a, b) * 3:
                    assert await link.receive() == UpdateAck(1, True)
            assert at.listener._budget.free == 3_000_000

    asyncio.run(story())


def test_a_message_that_cannot_be_sent_ends_the_link_and_says_why():
    async def story() -> None:
        async with server() as at, site(at.address, "a") as link:
            link.send(Heartbeat(0, -1))
            with pytest.raises(ChannelClosedError, match="cannot be sent"):
                await link.receive()

    asyncio.run(story())


def test_a_taken_port_and_an_address_that_is_none():
    async def story() -> None:
        async with server() as at:
            with pytest.raises(UsageError, match=r"cannot listen on 127.0.0.1:\d+ \(Address already in use"):
                await listen(at.address, ServerCredentials(), LIMITS, at.heard.on_channel)
        for wrong in ("localhost", "localhost:x", ":80", "1:2:3", "a:70000"):
            with pytest.raises(UsageError, match="HOST:PORT"):
                await connect(wrong, SiteCredentials(), LIMITS)

    asyncio.run(story())


def test_nobody_there():
    async def story() -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(ChannelClosedError, match="UNAVAILABLE"):
            await connect(address, SiteCredentials(name="a"), LIMITS)

    asyncio.run(story())


def attack(rng: random.Random) -> list[bytes]:
    """Frames that break the rules, or that are cut off in the middle."""
    claims = pb.Envelope(
        update_submission=pb.UpdateSubmission(), body=announced_body((pb.Part.DELTA, 100 << 30))
    )
    body = framed(UpdateSubmission(1, 1, torch.zeros(300_000), INTEGERS))
    flipped = bytearray(rng.choice(body))
    flipped[rng.randrange(min(60, len(flipped)))] ^= 1 << rng.randrange(8)
    return rng.choice(
        [
            [rng.randbytes(rng.randrange(500))],
            [HELLO, rng.randbytes(rng.randrange(500))],
            [HELLO, pb.Frame(envelopes=[claims]).SerializeToString()],
            [HELLO, *[pb.Frame(chunk=pb.Chunk(data=bytes(1 << 16))).SerializeToString()] * 5],
            [HELLO, HELLO],
            [HELLO, body[0]],
            [HELLO, body[0], body[0]],
            [HELLO, bytes(flipped)],
            [HELLO, bytes(5 << 20)],
            framed(Heartbeat()),
        ]
    )


@pytest.mark.thorough
@pytest.mark.parametrize("attacks", [60, *thorough(400)])
def test_many_attacks_leave_an_honest_site_and_the_memory_alone(attacks: int):
    resident = pytest.importorskip("psutil").Process().memory_info

    async def strike(address: str, rng: random.Random) -> None:
        who = (("offbeat-site", f"evil-{rng.randrange(5)}"),)
        async with raw(address, who) as call:
            await write(call, *attack(rng))
            if rng.random() < 0.8:
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):
                        await call.code()

    tasks = []

    async def on_channel(link: ServerChannel) -> None:  # which keeps nothing of an attack
        with suppress(ChannelClosedError):
            while True:
                if isinstance(message := await link.receive(), UpdateSubmission):
                    if link.site == "honest":
                        tasks.append(message.task)
                    link.send(UpdateAck(message.task, True))

    async def story() -> int:
        rng, limits = random.Random(5), Limits(layout=Layout.flat(300_000), drain=1.0)
        async with server(limits=limits, on_channel=on_channel) as at:

            async def held() -> int:  # once nothing of an attack is under way, however busy the machine is
                await until(lambda: at.listener._budget.free == LIMITS.memory)
                gc.collect()
                return resident().rss

            async with site(at.address, "honest") as link:
                grown = 0
                for number in range(attacks):
                    await strike(at.address, rng)
                    if number == 20:
                        grown = -await held()
                    if number % 10 == 0:
                        link.send(UpdateSubmission(number, 1, torch.zeros(300_000), INTEGERS))
                        assert await link.receive() == UpdateAck(number, True)
                grown += await held()
            await until(lambda: at.listener.sites == ())
            assert at.listener._budget.free == LIMITS.memory
        assert tasks == list(range(0, attacks, 10))
        rejected = at.listener.rejected
        assert {"handshake", "frame", "size"} <= set(rejected), rejected
        assert sum(rejected.values()) > attacks / 2, rejected
        return grown

    # A body that is kept takes 300 KiB an attack; allocators and gRPC keep up to 20 MB of the first ones.
    assert asyncio.run(story()) < max(attacks, 400) * (150 << 10)


def test_a_site_is_told_what_was_wrong_while_it_is_still_sending():
    async def story() -> None:
        limits = replace(LIMITS, layout=Layout.flat(10))
        async with server(limits=limits) as at, site(at.address, "a") as link:
            link.send(UpdateSubmission(1, 1, torch.zeros(20_000_000), INTEGERS))
            said = await link.receive()
            assert said == Rejected(
                "update_submission has 80000000 bytes of delta: the model has 40", final=True
            )
            with pytest.raises(ChannelClosedError):
                await link.receive()
            assert at.listener.rejected == {"layout": 1}

    asyncio.run(story())


def test_a_newer_link_begins_when_the_server_is_done_with_the_older():
    events: list[str] = []

    async def on_channel(link: ServerChannel) -> None:
        number = sum(event.startswith("begin") for event in events)
        events.append(f"begin {number}")
        with suppress(ChannelClosedError):
            while True:
                await link.receive()
        await asyncio.sleep(0.2)
        events.append(f"end {number}")

    async def story() -> None:
        async with server(on_channel=on_channel) as at, site(at.address, "a"):
            await until(lambda: len(events) == 1)
            async with site(at.address, "a"):
                await until(lambda: len(events) >= 3)

    asyncio.run(story())
    assert events[:3] == ["begin 0", "end 0", "begin 1"]

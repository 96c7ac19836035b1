"""Connections one after another: what ends them, and what a server that only refuses counts for."""

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random

import pytest
import torch

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.net.backoff import GIVE_UP_AFTER, Backoff
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.client.reconnecting import LASTING, Connect, reconnecting
from offbeat.net.messages import (
    FromServer,
    FromSite,
    Heartbeat,
    Leave,
    Register,
    RunFinished,
    UpdateAck,
    UpdateSubmission,
)
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ClientChannel,
    CredentialRefusedError,
    CredentialRevokedError,
    Transfer,
)
from tests.net.support import Patient


class Silent:
    """A connection on which nothing comes."""

    def __init__(self) -> None:
        self.sent: list[FromSite] = []

    def send(self, message: FromSite) -> None:
        self.sent.append(message)

    async def receive(self) -> FromServer:
        raise AssertionError

    async def close(self, reason: str = "") -> None:
        pass


async def _connect() -> ClientChannel:
    return Silent()


def hello() -> Register:
    return Register(10, 1)


def connected(
    serve: Callable[[Liveness], Awaitable[str | None]],
    give_up_after: float | None = 100.0,
    connect: Connect = _connect,
    known: bool = False,
) -> str:
    liveness = Liveness(Patient())

    async def run() -> str:
        backoff = Backoff(give_up_after, Random(1), liveness.clock.now())
        return await reconnecting(connect, hello, lambda _: serve(liveness), liveness, backoff, known=known)

    return asyncio.run(run())


def test_a_lost_connection_is_opened_again_until_the_run_has_ended() -> None:
    ends: list[str | Exception | None] = [None, ChannelClosedError("gone"), OSError("no route"), "converged"]

    async def serve(liveness: Liveness) -> str | None:
        end = ends.pop(0)
        if isinstance(end, Exception):
            raise end
        return end

    assert connected(serve) == "converged"
    assert not ends


def test_a_server_that_refuses_the_client_ends_it() -> None:
    async def serve(liveness: Liveness) -> str | None:
        raise ChannelRefusedError("the token is unknown")

    with pytest.raises(RunError, match=r"^the token is unknown$"):
        connected(serve)


@pytest.mark.parametrize(
    ("served", "says"), [(False, "no server for 100 s"), (True, "no lasting connection for 100 s")]
)
def test_a_server_that_is_there_for_a_moment_is_not_tried_at_full_speed_for_ever(
    served: bool, says: str
) -> None:
    made = 0

    async def serve(liveness: Liveness) -> str | None:
        nonlocal made
        made += 1
        liveness.hear(served=served)
        return None

    with pytest.raises(RunError, match=says):
        connected(serve)
    assert 2 <= made < 20


def test_a_connection_that_lasts_begins_the_attempts_anew() -> None:
    made = 0

    async def serve(liveness: Liveness) -> str | None:
        nonlocal made
        made += 1
        if made == 200:
            return "converged"
        await liveness.clock.sleep(LASTING)
        liveness.hear(served=True)
        return None

    assert connected(serve) == "converged"


UPDATE = UpdateSubmission(7, 5, torch.zeros(3), torch.zeros(0, dtype=torch.int64), {})


class Cut(Silent):
    """A connection that registers the client, and is cut while an update goes."""

    def __init__(self, answers: list[FromServer], done: int) -> None:
        super().__init__()
        self._answers, self._done = answers, done

    async def receive(self) -> FromServer:
        if self._answers:
            return self._answers.pop(0)
        error = ChannelClosedError("reset by peer")
        error.transfers = (Transfer("UpdateSubmission", "the update of task 7", self._done, 1000),)
        raise error


def sends_updates(answers: list[list[FromServer]]) -> tuple[list[Cut], Callable[[Liveness], str]]:
    """A client that sends an update on each of its connections, and hears the answers of the turn."""
    channels: list[Cut] = []

    async def connect() -> ClientChannel:
        channels.append(Cut(answers[min(len(channels), len(answers) - 1)].copy(), 400))
        return channels[-1]

    async def serve(liveness: Liveness, channel: ClientChannel) -> str | None:
        liveness.hear(served=True)
        channel.send(UPDATE)
        while True:
            if isinstance(await channel.receive(), RunFinished):
                return "converged"

    def run(liveness: Liveness) -> str:
        async def all_of_it() -> str:
            backoff = Backoff(100.0, Random(1), liveness.clock.now())
            return await reconnecting(connect, hello, lambda c: serve(liveness, c), liveness, backoff)

        return asyncio.run(all_of_it())

    return channels, run


def test_an_update_that_never_passes_ends_the_client_which_gives_its_task_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The server is there each time, and answers heartbeats: neither counts for the update."""
    channels, run = sends_updates([[Heartbeat()]])
    with pytest.raises(
        RunError, match=r"the update of task 7 has not got through for 100 s: 400 B of 1\.0 kB"
    ):
        run(Liveness(Patient()))
    assert len(channels) < 20
    assert [type(message) for message in channels[-1].sent] == [Register, Leave]
    said = [record.getMessage() for record in caplog.records]
    assert "the update of task 7 did not get through (reset by peer): 400 B of 1.0 kB, attempt 1, " in said[0]
    assert "attempt 4, " in said[2]


def test_an_acknowledged_update_begins_the_attempts_anew(caplog: pytest.LogCaptureFixture) -> None:
    acknowledged: list[FromServer] = [UpdateAck(7, True)]
    _, run = sends_updates([[], [], acknowledged, [], [RunFinished("converged")]])
    assert run(Liveness(Patient())) == "converged"
    attempts = [re.findall(r"attempt (\d+)", record.getMessage()) for record in caplog.records]
    assert [found[0] for found in attempts if found] == ["1", "2", "1", "1"]


def mended_after(failure: Exception, attempts: int) -> Connect:
    """A way to a server that takes the client once, then fails so often, and then works again."""
    made = 0

    async def connect() -> ClientChannel:
        nonlocal made
        made += 1
        if 1 < made <= attempts + 1:
            raise failure
        return await _connect()

    return connect


@pytest.mark.parametrize(
    "failure",
    [
        CredentialRefusedError("the token is not valid"),
        RunError("the server's certificate has expired"),
        UsageError("the kit cannot be read"),
    ],
)
@pytest.mark.parametrize("known", [False, True])
def test_a_refusal_of_a_client_that_was_accepted_is_tried_again_for_longer_than_a_weekend(
    failure: Exception, known: bool
) -> None:
    served = 0

    async def serve(liveness: Liveness) -> str | None:
        nonlocal served
        served += 1
        liveness.hear(served=not known)
        return "converged" if served == 2 else None

    # At a delay of at most 30 s these are more than 64 hours.
    assert connected(serve, GIVE_UP_AFTER, mended_after(failure, 8000), known) == "converged"
    served = -10_000
    missing = "server" if known else "lasting connection"
    with pytest.raises(OffbeatError, match=f"no {missing} for 3 days"):
        connected(serve, GIVE_UP_AFTER, mended_after(failure, 30_000), known)


@pytest.mark.parametrize(
    "failure", [CredentialRefusedError("the token is not valid"), RunError("it has expired"), UsageError("a")]
)
def test_a_client_that_was_never_accepted_is_refused_at_once(failure: Exception) -> None:
    async def serve(_: Liveness) -> str | None:
        raise AssertionError

    async def connect() -> ClientChannel:
        raise failure

    with pytest.raises(OffbeatError, match=str(failure)) as caught:
        connected(serve, connect=connect)
    assert isinstance(caught.value, UsageError if isinstance(failure, UsageError) else RunError)


def test_a_credential_that_somebody_has_ended_ends_the_client_for_good() -> None:
    """With the exit code after which no service manager starts it again."""

    async def serve(_: Liveness) -> str | None:
        return None

    revoked = CredentialRevokedError("the token of site north was revoked")
    with pytest.raises(UsageError, match="was revoked"):
        connected(serve, connect=mended_after(revoked, 1), known=True)


def test_a_connection_that_is_replaced_is_opened_again_as_the_server_knows_who_was_first() -> None:
    connections = 0

    async def serve(liveness: Liveness) -> str | None:
        nonlocal connections
        connections += 1
        if connections == 20:
            return "converged"
        liveness.hear(served=True)
        raise ChannelClosedError("a newer connection of site north has replaced this one")

    assert connected(serve, give_up_after=None) == "converged"

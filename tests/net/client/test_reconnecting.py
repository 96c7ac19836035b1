"""Connections one after another: what ends them, and what a server that only refuses counts for."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random
from typing import cast

import pytest

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.net.backoff import GIVE_UP_AFTER, Backoff
from offbeat.net.client.heartbeats import Liveness
from offbeat.net.client.reconnecting import Connect, reconnecting
from offbeat.net.transport import (
    ChannelClosedError,
    ChannelRefusedError,
    ClientChannel,
    CredentialRefusedError,
    CredentialRevokedError,
)
from tests.net.support import Patient


async def _connect() -> ClientChannel:
    return cast(ClientChannel, None)  # nothing is sent on it


def connected(
    serve: Callable[[Liveness], Awaitable[str | None]],
    give_up_after: float | None = 100.0,
    connect: Connect = _connect,
    known: bool = False,
) -> str:
    liveness = Liveness(Patient())

    async def run() -> str:
        backoff = Backoff(give_up_after, Random(1), liveness.clock.now())
        return await reconnecting(connect, lambda _: serve(liveness), liveness, backoff, known=known)

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


@pytest.mark.parametrize(("served", "attempts"), [(False, range(2, 20)), (True, range(200, 201))])
def test_only_a_server_that_has_registered_the_client_was_there(served: bool, attempts: range) -> None:
    made = 0

    async def serve(liveness: Liveness) -> str | None:
        nonlocal made
        made += 1
        if made == 200:
            raise ChannelRefusedError("enough")
        liveness.hear(served=served)
        return None

    with pytest.raises(RunError, match="enough" if served else "no server for 100 s"):
        connected(serve)
    assert made in attempts


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
    with pytest.raises(OffbeatError, match="no server for 3 days"):
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

    assert connected(serve) == "converged"

"""Transfers under way are shown with their rate, and with the number of the connection that carries them."""

import asyncio
from typing import Any

from offbeat.net.monitor.snapshot import TransferView
from offbeat.net.server.sessions import Sessions
from offbeat.net.transport import Transfer

MB = 1_000_000


class Channel:
    """A site's connection, with the transfers that a test gives it."""

    site = "north"
    sending = False

    def __init__(self) -> None:
        self.transfers: tuple[Transfer, ...] = ()
        self.over = asyncio.Event()

    async def forward(self, _: Any) -> None:
        await self.over.wait()

    async def close(self, reason: str = "") -> None: ...


def test_a_transfer_is_seen_with_its_rate_and_over_its_connections() -> None:
    async def story() -> None:
        now = [0.0]
        sessions = Sessions(lambda: now[0], lambda: None)
        channel = Channel()
        serving = asyncio.create_task(sessions.on_channel(channel))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        assert sessions.transfers() == {}
        channel.transfers = (Transfer("UpdateSubmission", "the update of task 7", 10 * MB, 100 * MB),)
        first = TransferView("the update of task 7", "up", 10 * MB, 100 * MB)
        assert sessions.transfers() == {"north": (first,)}
        assert first.text == "the update of task 7: 10.0 MB of 100.0 MB up"
        now[0] = 10.0
        channel.transfers = (Transfer("UpdateSubmission", "the update of task 7", 37 * MB, 100 * MB),)
        (view,) = sessions.transfers()["north"]
        assert view.seconds_left is not None
        assert round(view.seconds_left, 3) == round(63 / 2.7, 3)
        channel.over.set()
        await serving
        assert sessions.transfers() == {}
        again = Channel()
        again.transfers = (
            Transfer("UpdateSubmission", "the update of task 7", 37 * MB, 100 * MB),
            Transfer("EvaluationRequest", "the model of version 3, to evaluate", 0, 100 * MB),
        )
        serving = asyncio.create_task(sessions.on_channel(again))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        update, model = sessions.transfers()["north"]
        assert (update.connection, update.seconds_left, model.direction, model.connection) == (
            2,
            None,
            "down",
            1,
        )
        assert update.text == "the update of task 7: 37.0 MB of 100.0 MB up (connection 2)"
        again.over.set()
        await serving

    asyncio.run(story())

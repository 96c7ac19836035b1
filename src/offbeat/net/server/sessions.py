"""The connections of a server: one inbox for all sites, and the queue of each.

Heartbeats are answered at once, whatever else the server is doing.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Literal

from msgspec import Struct, field

from offbeat.core.model import Model
from offbeat.net.messages import FromSite, Heartbeat, Leave, Register, RunFinished, UpdateSubmission
from offbeat.net.monitor.snapshot import TransferView
from offbeat.net.server.effects import Effects
from offbeat.net.transport import ChannelClosedError, ServerChannel
from offbeat.secure.messages import UnmaskShare

FROM_SITE = (UpdateSubmission.__name__, UnmaskShare.__name__)
MOST_SEEN = 4


class Inbound(Struct, frozen=True):
    """A message of a site, or None at the end of its connection. `release` is called once it is processed.

    `took` is the time in seconds in which its tensors came.
    """

    at: float
    site: str
    message: FromSite | None
    release: Callable[[], None] = lambda: None
    took: float = 0.0


class _SeenTransfer(Struct, frozen=True):
    """When a transfer was seen first on a connection, its number, and the bytes that had gone then."""

    channel: ServerChannel
    connection: int
    at: float
    done: int


class Batch(Struct, frozen=True):
    """What came in since the last batch: messages in order, and the last heartbeat of each site."""

    messages: list[Inbound] = field(default_factory=list)
    heartbeats: dict[str, tuple[float, Heartbeat]] = field(default_factory=dict)


class Sessions:
    """The connections of a run.

    Args:
        now: The run's clock, in seconds.
        wake_up: Called when there is something to take.
        shares_model: Whether sites that ask for the final model get it: they hear of the run's end with it.

    Attributes:
        notified: The sites that have confirmed that the run has finished.
    """

    def __init__(
        self, now: Callable[[], float], wake_up: Callable[[], None], *, shares_model: bool = False
    ) -> None:
        self.notified: set[str] = set()
        self._now, self._wake_up, self._shares_model = now, wake_up, shares_model
        # The sites that ask for the final model.
        self._asking: set[str] = set()
        # The sites that were sent the final model in their present connection.
        self._given: set[str] = set()
        # The message with the final model, once there is one.
        self._final: RunFinished | None = None
        self._channels: dict[str, ServerChannel] = {}
        # The transfers that have been seen of each site, by what they are.
        self._seen: dict[str, dict[str, _SeenTransfer]] = {}
        self._inbox = Batch()
        self._finished: str | None = None
        self._accepting = True

    @property
    def sending(self) -> bool:
        """Whether a message has not been sent whole."""
        return any(channel.sending for channel in self._channels.values())

    def transfers(self) -> dict[str, tuple[TransferView, ...]]:
        """The transfers that are under way, by site; their rates are those since they were seen first."""
        return {site: views for site in list(self._channels) if (views := self._transfers_of(site))}

    def _transfers_of(self, site: str) -> tuple[TransferView, ...]:
        channel, now, seen = self._channels[site], self._now(), self._seen.get(site, {})
        views, found = [], dict[str, _SeenTransfer]()
        for each in channel.transfers:
            first = seen.get(each.what)
            if first is None or first.channel is not channel:
                connection = 1 if first is None else first.connection + 1
                first = _SeenTransfer(channel, connection, now, each.done)
            found[each.what] = first
            rate = (each.done - first.done) / (now - first.at) if now > first.at else 0.0
            left = (each.size - each.done) / rate if rate > 0 else None
            direction: Literal["up", "down"] = "up" if each.kind in FROM_SITE else "down"
            views.append(TransferView(each.what, direction, each.done, each.size, first.connection, left))
        # One that is not under way may go on with another connection.
        self._seen[site] = {**dict(list(seen.items())[-MOST_SEEN:]), **found}
        return tuple(views)

    async def on_channel(self, channel: ServerChannel) -> None:
        """Receive from a site until its connection ends."""
        if self._accepting:
            self._channels[channel.site] = channel
            with suppress(ChannelClosedError):
                await channel.forward(partial(self._put, channel))
            del self._channels[channel.site]
            self._append(Inbound(self._now(), channel.site, None))
        await channel.close()

    def take(self) -> Batch:
        """What came in since the last call."""
        batch, self._inbox = self._inbox, Batch()
        return batch

    def deliver(self, effects: Effects) -> None:
        """Send messages, and close connections once these are sent."""
        for site, message in effects.messages:
            if isinstance(message, RunFinished):
                self._tell_finished(site, message.reason)
            elif site in self._channels:
                self._channels[site].send(message)
        for site, reason in effects.closed:
            if site in self._channels:
                self._channels[site].end(reason)

    def finish(self, reason: str) -> None:
        """The run has finished: answer every message with that, also those in the inbox."""
        self._finished = reason
        for inbound in self.take().messages:
            inbound.release()
            if inbound.message is not None:
                self._tell_finished(inbound.site, reason)

    def share(self, run: str, model: Model) -> None:
        """The run has its final model: send it to the sites that ask for it, now and when they come."""
        reason = self._finished or ""
        self._final = RunFinished(reason, run, model)
        for site in self._asking:
            self._tell_finished(site, reason)

    def stop_accepting(self) -> None:
        """Close every new connection."""
        self._accepting = False

    def close(self, reason: str) -> None:
        """Close every connection, and every new one."""
        self.stop_accepting()
        for channel in self._channels.values():
            channel.end(reason)

    def _put(self, channel: ServerChannel, message: FromSite, release: Callable[[], None]) -> None:
        site = channel.site
        if isinstance(message, Register):
            self._given.discard(site)
            (self._asking.add if message.wants_model and self._shares_model else self._asking.discard)(site)
        if isinstance(message, Heartbeat):
            self._inbox.heartbeats[site] = self._now(), message
            channel.send(Heartbeat())
        elif self._finished is None:
            self._append(Inbound(self._now(), site, message, release, channel.took))
            return
        elif isinstance(message, Leave):
            self.notified.add(site)
            self._wake_up()
            channel.end()
        else:
            self._tell_finished(site, self._finished)
        release()

    def _tell_finished(self, site: str, reason: str) -> None:
        """Tell a site that the run has finished; one that asks for the final model, once that is there."""
        channel = self._channels.get(site)
        if channel is None or site in self._given:
            return
        if site not in self._asking:
            channel.send(RunFinished(reason))
        elif self._final is not None:
            self._given.add(site)
            channel.send(self._final)

    def _append(self, inbound: Inbound) -> None:
        self._inbox.messages.append(inbound)
        self._wake_up()

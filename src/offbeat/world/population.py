"""The clients of one run: a world's draws for each of them, on demand and only once.

Every draw for a client comes from streams keyed by that client, so it does not depend on other clients; a
client without a task costs nothing.
"""

from collections.abc import Iterator, Sequence
from statistics import fmean

from msgspec import Struct

from offbeat.core.errors import UsageError
from offbeat.core.streams import Purpose, StreamCursor
from offbeat.world.channel import Radio
from offbeat.world.laws import PerClient, of_client
from offbeat.world.world import World

_FOREVER = float("inf")


class _Client(Struct, gc=False):
    """A client that has had a task: its number of tasks, and its draws; bandwidths of 0 take no time."""

    tasks: int
    speed: float
    latency: float
    up: float
    down: float


class TaskOutcome(Struct, frozen=True, gc=False):
    """The durations of one task, and whether it is lost.

    Attributes:
        per_step: Seconds of a local step.
        down: Seconds in which the model reaches the client.
        up: Seconds in which the update reaches the server.
        latency: Seconds of a message without a model, each way.
        lost: Share of the task's time after which it is lost; 1 means never.
    """

    per_step: float
    down: float = 0.0
    up: float = 0.0
    latency: float = 0.0
    lost: float = 1.0

    def seconds(self, steps: int) -> float:
        """Seconds from dispatch to arrival, for `steps` local steps."""
        return self.down + steps * self.per_step + self.up


def _of_client(share: float | list[float], client: int) -> float:
    return share[client] if isinstance(share, list) else share


def _periods(
    start: float, period: float, present: float, join: float, leave: float
) -> Iterator[tuple[float, float]]:
    """The first `present` share of each period from `start` on, as far as it is between join and leave."""
    while start < leave:
        begin, end = max(start, join), min(start + present * period, leave)
        if begin < end:
            yield begin, end
        start += period


class Population:
    """The clients of a world under a seed.

    Args:
        world: The world, with lists of one entry per client where it has lists.
        seed: The run's seed, from 0 to 2⁶³ − 1.
        epochs: Local steps of an epoch by client, for a world with `equal_epochs`.
    """

    def __init__(self, world: World, seed: int, epochs: Sequence[int] = ()) -> None:
        self._world, self._streams = world, StreamCursor(seed)
        mean = fmean(epochs or [0])
        self._slower = [mean / own for own in epochs] if world.equal_epochs else []
        self._known: dict[int, _Client] = {}
        self._radio = Radio(world.channel, seed) if world.channel else None
        self._varies = bool(world.jitter or world.change or world.per_task)
        speed = world.seconds_per_step
        self._law = None if callable(speed) or isinstance(speed, list | float) else speed
        self._one_by_one = callable(speed) or isinstance(speed, list)
        self._drops_out = world.availability.dropout != 0
        self._free = world.network.free

    def task(self, client: int, model_bits: int, update_bits: int | None = None) -> TaskOutcome:
        """Draw a client's next task. The size of its update may be None: that of its model."""
        traits = self._known.get(client)
        if traits is None:
            traits = self._known[client] = self._draw_client(client)
        number, traits.tasks = traits.tasks, traits.tasks + 1
        per_step = self._seconds_per_step(client, number) if self._one_by_one else traits.speed
        if self._varies:
            per_step = self._vary(client, number, traits, per_step)
        if self._slower:
            per_step *= self._slower[client]
        lost = self._lost(client, number) if self._drops_out else 1.0
        if self._free:
            return TaskOutcome(per_step, lost=lost)
        sent = model_bits if update_bits is None else update_bits
        down = traits.latency + (model_bits / traits.down if traits.down else 0.0)
        up = traits.latency + (sent / traits.up if traits.up else 0.0)
        if (delay := self._world.network.delay) is not None:
            up += delay.draw(self._streams.at(Purpose.NETWORK, client, number + 1))
        return TaskOutcome(per_step, down, up, traits.latency, lost)

    def _lost(self, client: int, number: int) -> float:
        dropout = _of_client(self._world.availability.dropout, client)
        if dropout:
            rng = self._streams.at(Purpose.AVAILABILITY, client, number + 1)
            if rng.random() < dropout:
                return float(1 - rng.random())
        return 1.0

    def measure(
        self, clients: Sequence[int], iteration: int, seconds: float | None
    ) -> tuple[tuple[tuple[int, float], ...], float]:
        """Measure the channel in an iteration.

        Args:
            clients: The clients to measure.
            iteration: The iteration, counted from 0.
            seconds: Length of the iteration. None means the channel's own.

        Returns:
            (client, capacity in bits per symbol) of each client, and the symbols of the iteration.

        Raises:
            UsageError: The world has no channel.
        """
        channel = self._world.channel
        if channel is None or self._radio is None:
            raise UsageError("this world has no channel to measure: give world.channel")
        capacities = tuple((client, self._radio.capacity(client, iteration)) for client in clients)
        return capacities, channel.symbols if seconds is None else channel.symbols_in(seconds)

    def presence(self, client: int) -> Iterator[tuple[float, float]]:
        """Intervals (from, until) in seconds in which a client is present, in order, possibly without end."""
        availability = self._world.availability
        if availability.intervals is not None:
            return ((a, _FOREVER if b is None else b) for a, b in availability.intervals[client])
        rng = self._streams.at(Purpose.AVAILABILITY, client)
        join = 0.0 if availability.join is None else of_client(availability.join, client, rng)
        leave = _FOREVER if availability.leave is None else of_client(availability.leave, client, rng)
        if availability.period is None or availability.present == 1.0:
            return iter([(join, leave)] if join < leave else [])
        start = -float(rng.random()) * availability.period
        return _periods(start, availability.period, availability.present, join, leave)

    @property
    def always_there(self) -> bool:
        """Whether every client is present from the start to the end."""
        return self._world.availability.always

    def _draw_client(self, client: int) -> _Client:
        speed = self._draw_speed(client)
        if self._free:
            return _Client(0, speed, 0.0, 0.0, 0.0)
        network = self._world.network
        links = self._streams.at(Purpose.NETWORK, client)

        def link(bandwidth: PerClient | list[float | None] | None) -> float:
            own = bandwidth[client] if isinstance(bandwidth, list) else bandwidth
            return 0.0 if own is None else of_client(own, client, links)

        latency = of_client(network.latency, client, links)
        return _Client(0, speed, latency, link(network.up), link(network.down))

    def _draw_speed(self, client: int) -> float:
        """A client's own seconds per step; 0 where tasks are listed or computed one by one."""
        if self._law is not None:
            return self._law.draw(self._streams.at(Purpose.SPEED, client))
        speed = self._world.seconds_per_step
        return float(speed) if isinstance(speed, float | int) else 0.0

    def _seconds_per_step(self, client: int, number: int) -> float:
        """A task's speed where the world lists or computes it."""
        speed = self._world.seconds_per_step
        if callable(speed):
            given = speed(client, number)
            # A text can be a number for `float`, but has no value of one.
            seconds = float(given) if hasattr(given, "__float__") else -1.0
            if not 0 < seconds < _FOREVER:
                raise UsageError(
                    f"seconds_per_step({client}, {number}) = {given!r:.60} is not allowed: return a number "
                    "above 0"
                )
            return seconds
        assert isinstance(speed, list)
        own = speed[client]
        return float(own[min(number, len(own) - 1)] if isinstance(own, list) else own)

    def _vary(self, client: int, number: int, known: _Client, seconds: float) -> float:
        """Re-draw the client's speed where the world asks for it, and jitter this task's."""
        world, law = self._world, self._law
        rng = self._streams.at(Purpose.JITTER, client, number)
        if law is not None and (world.per_task or (world.change and rng.random() < world.change)):
            seconds = known.speed = law.draw(rng)
        if jitter := _of_client(world.jitter, client):
            seconds = max(0.05 * seconds, seconds + jitter * seconds * rng.standard_normal())
        return seconds

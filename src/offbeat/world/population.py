"""One run's clients: what a world draws for each of them, on demand and only once.

Whatever is drawn for a client comes from streams keyed by that client, so it does not depend on what
happens to others; a client that is never given work costs nothing.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from offbeat.core.errors import UsageError
from offbeat.core.streams import Purpose, StreamCursor
from offbeat.world.channel import Radio
from offbeat.world.laws import PerClient, of_client
from offbeat.world.world import World

_FOREVER = float("inf")


class _Client(Struct, gc=False):
    """What is known of a client that has been given work: links in bits per second, 0 if free."""

    tasks: int
    speed: float
    latency: float
    up: float
    down: float


class TaskOutcome(Struct, frozen=True, gc=False):
    """How a task goes, in seconds: `down` for the model, `per_step`, `up` for the update.

    `latency` is that of a message without a model, each way. `lost` is the share of its time after which
    the task is lost; 1, the default, is never.
    """

    per_step: float
    down: float = 0.0
    up: float = 0.0
    latency: float = 0.0
    lost: float = 1.0

    def seconds(self, steps: int) -> float:
        """From dispatch to arrival, for so many local steps."""
        return self.down + steps * self.per_step + self.up


def _own(share: float | list[float], client: int) -> float:
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
    """The clients of a world under a seed."""

    def __init__(self, world: World, seed: int) -> None:
        self._world, self._draws = world, StreamCursor(seed)
        self._known: dict[int, _Client] = {}
        self._radio = Radio(world.channel, seed) if world.channel else None
        self._varies = bool(world.jitter or world.change or world.per_task)
        speed = world.seconds_per_step
        self._law = None if callable(speed) or isinstance(speed, list | float) else speed
        self._one_by_one = callable(speed) or isinstance(speed, list)
        self._drops_out = world.availability.dropout != 0
        self._free = world.network.free

    def task(self, client: int, bits: int) -> TaskOutcome:
        """Give a client its next task, with so many bits each way."""
        known = self._known.get(client)
        if known is None:
            known = self._known[client] = self._meet(client)
        number, known.tasks = known.tasks, known.tasks + 1
        per_step = self._seconds_per_step(client, number, known) if self._one_by_one else known.speed
        if self._varies:
            per_step = self._vary(client, number, known, per_step)
        lost = self._lost(client, number) if self._drops_out else 1.0
        if self._free:
            return TaskOutcome(per_step, lost=lost)
        return self._over_the_network(client, number, known, bits, per_step, lost)

    def _lost(self, client: int, number: int) -> float:
        dropout = _own(self._world.availability.dropout, client)
        if dropout:
            generator = self._draws.at(Purpose.AVAILABILITY, client, number + 1)
            if generator.random() < dropout:
                return float(1 - generator.random())
        return 1.0

    def measure(
        self, clients: Sequence[int], iteration: int, seconds: float | None
    ) -> tuple[tuple[tuple[int, float], ...], float]:
        """Each client's capacity (bits per symbol) in an iteration, and the symbols of so many seconds."""
        channel = self._world.channel
        if channel is None or self._radio is None:
            raise UsageError("this world has no channel to measure: give world.channel")
        capacities = tuple((client, self._radio.capacity(client, iteration)) for client in clients)
        return capacities, channel.symbols if seconds is None else channel.symbols_in(seconds)

    def presence(self, client: int) -> Iterator[tuple[float, float]]:
        """The intervals (seconds) in which a client is there, in order, possibly without end."""
        availability = self._world.availability
        if availability.intervals is not None:
            return ((a, _FOREVER if b is None else b) for a, b in availability.intervals[client])
        generator = self._draws.at(Purpose.AVAILABILITY, client)
        join = 0.0 if availability.join is None else of_client(availability.join, client, generator)
        leave = _FOREVER if availability.leave is None else of_client(availability.leave, client, generator)
        if availability.period is None or availability.present == 1.0:
            return iter([(join, leave)] if join < leave else [])
        start = -float(generator.random()) * availability.period
        return _periods(start, availability.period, availability.present, join, leave)

    @property
    def always_there(self) -> bool:
        """Is every client there from the start to the end?"""
        return self._world.availability.always

    def _meet(self, client: int) -> _Client:
        speed = self._draw_speed(client)
        if self._free:
            return _Client(0, speed, 0.0, 0.0, 0.0)
        network = self._world.network
        links = self._draws.at(Purpose.NETWORK, client)

        def link(bandwidth: PerClient | list[float | None] | None) -> float:
            own = bandwidth[client] if isinstance(bandwidth, list) else bandwidth
            return 0.0 if own is None else of_client(own, client, links)

        latency = of_client(network.latency, client, links)
        return _Client(0, speed, latency, link(network.up), link(network.down))

    def _draw_speed(self, client: int) -> float:
        """A client's own seconds per step; 0 where tasks are listed or computed one by one."""
        if self._law is not None:
            return self._law.draw(self._draws.at(Purpose.SPEED, client))
        speed = self._world.seconds_per_step
        own = speed[client] if isinstance(speed, list) else speed
        return float(own) if isinstance(own, float | int) else 0.0

    def _seconds_per_step(self, client: int, number: int, known: _Client) -> float:
        """A task's speed where the world lists or computes it."""
        speed = self._world.seconds_per_step
        if callable(speed):
            seconds = float(speed(client, number))
            if not 0 < seconds < _FOREVER:
                raise UsageError(f"seconds_per_step({client}, {number}) = {seconds} must be above 0")
            return seconds
        if isinstance(speed, list) and isinstance(own := speed[client], list):
            return float(own[min(number, len(own) - 1)])
        return known.speed

    def _vary(self, client: int, number: int, known: _Client, seconds: float) -> float:
        """Re-draw the client's speed where the world says so, and jitter this task's."""
        world, law = self._world, self._law
        generator = self._draws.at(Purpose.JITTER, client, number)
        if law is not None and (world.per_task or (world.change and generator.random() < world.change)):
            seconds = known.speed = law.draw(generator)
        if jitter := _own(world.jitter, client):
            seconds = max(0.05 * seconds, seconds + jitter * seconds * generator.standard_normal())
        return seconds

    def _over_the_network(
        self, client: int, number: int, known: _Client, bits: int, per_step: float, lost: float
    ) -> TaskOutcome:
        down = known.latency + (bits / known.down if known.down else 0.0)
        up = known.latency + (bits / known.up if known.up else 0.0)
        delay = self._world.network.delay
        if delay is not None:
            up += delay.draw(self._draws.at(Purpose.NETWORK, client, number + 1))
        return TaskOutcome(per_step, down, up, known.latency, lost)

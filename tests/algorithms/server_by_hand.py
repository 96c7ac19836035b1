"""A server that a test drives event by event."""

from collections.abc import Iterable

from offbeat.core.algorithm import Algorithm
from offbeat.core.commands import Command
from offbeat.core.events import Arrived, Begin, Joined
from offbeat.core.server import Server


def begin(algorithm: Algorithm, steps_per_epoch: Iterable[int]) -> Server:
    """A server that has begun, with a client of 10 samples for each number of local steps per epoch."""
    server = Server(algorithm.schedule)
    for client, steps in enumerate(steps_per_epoch):
        server.feed(0.0, Joined(client, 10, steps))
    server.feed(0.0, Begin())
    return server


def arrive(server: Server, t: float, client: int) -> list[Command]:
    """Feed the complete update of a client's task; returns the commands."""
    task = server.tasks[client]
    return server.feed(t, Arrived(client, task.id, task.steps))

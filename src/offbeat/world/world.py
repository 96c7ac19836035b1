"""A world: speeds, links and availability of the clients of a simulation."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from inspect import signature
from typing import Annotated, Self

from pydantic import Field, field_validator, model_validator

from offbeat.core.errors import UsageError
from offbeat.core.types import Count, Positive, Share
from offbeat.core.validation import checked_dataclass
from offbeat.world.availability import Availability
from offbeat.world.channel import Channel
from offbeat.world.laws import Constant, Law, check_length
from offbeat.world.network import Network

Numbers = Annotated[list[Positive], Field(min_length=1)]
Speed = Law | Numbers | Annotated[list[Numbers], Field(min_length=1)] | Callable[[int, int], float] | Positive


@checked_dataclass
class World:
    """The clients' side of a simulation. Everything random in it comes from the run's seed.

    Attributes:
        seconds_per_step: Seconds of one local step: a law that is drawn once per client, one number for all
            clients, a list with one number per client, a list of lists (per client and task; the last number
            repeats), or a function of (client, task number), where a client's first task has number 0.
        clients: Number of clients. None means that the learner or a list determines it.
        jitter: Relative standard deviation in [0, 1] of a task's speed around its client's (FedCompass:
            0.05). One number for all clients, or a list with one number per client.
        change: Probability that a task draws its client's speed anew for all later tasks (FedCompass,
            Appendix G.2: 0.1).
        per_task: Whether every task draws from the law anew.
        network: Links of the clients.
        availability: Presence of the clients, and dropout.
        channel: Radio uplink that the clients share, for algorithms that schedule it.
        equal_epochs: Whether an epoch of a client takes the same time, however much data the client has. Then
            `seconds_per_step` is for a client with the mean number of steps in an epoch, and the step of
            another client takes longer if its epoch has fewer (FedASMU: "training time" within a factor).
    """

    seconds_per_step: Speed = Constant(1.0)
    clients: Count | None = None
    jitter: Share | list[Share] = 0.0
    change: Share = 0.0
    per_task: bool = False
    network: Network = Network()
    availability: Availability = Availability()
    channel: Channel | None = None
    equal_epochs: bool = False

    @field_validator("seconds_per_step")
    @classmethod
    def _of_two_numbers(cls, speed: Speed) -> Speed:
        if callable(speed):
            try:
                arguments = signature(speed)
            except ValueError:
                # What C code defines may have no signature.
                return speed
            try:
                arguments.bind(0, 0)
            except TypeError:
                raise ValueError("should be a function of two numbers: client and task") from None
        return speed

    @model_validator(mode="after")
    def _law_to_redraw(self) -> Self:
        speed = self.seconds_per_step
        if (self.change or self.per_task) and (callable(speed) or isinstance(speed, Sequence | float)):
            raise ValueError("change and per_task re-draw a speed: give seconds_per_step as a law")
        return self

    def sections(self) -> dict[str, "World | Network | Availability"]:
        """The parts whose fields may be lists of one entry per client, by their place in the world."""
        return {"": self, ".network": self.network, ".availability": self.availability}

    def population(self, learner_clients: int | None) -> int:
        """Number of clients, on which the learner, a list and `clients` must agree.

        Args:
            learner_clients: The learner's number of clients. None means that there is no learner.

        Raises:
            UsageError: No source gives the number, two differ, or a list has another length.
        """
        listed = len(self.seconds_per_step) if isinstance(self.seconds_per_step, list) else None
        known = {
            "the learner": learner_clients, "world.clients": self.clients, "world.seconds_per_step": listed
        }  # fmt: skip
        client_counts = {source: n for source, n in known.items() if n is not None}
        if not client_counts:
            raise UsageError("world.clients is missing: say how many clients there are")
        if len(set(client_counts.values())) > 1:
            counts = ", ".join(f"{source} has {n}" for source, n in client_counts.items())
            raise UsageError(f"the number of clients is ambiguous: {counts}; make them equal")
        clients = next(iter(client_counts.values()))
        for section, part in self.sections().items():
            for field in fields(part):
                check_length(f"world{section}.{field.name}", getattr(part, field.name), clients)
        if self.channel is not None:
            self.channel.check(clients)
        return clients

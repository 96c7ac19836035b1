"""Options of a server: when its run begins and ends, how long it waits, what it accepts."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from offbeat.core.limits import Every, Until
from offbeat.core.types import Seconds
from offbeat.core.validation import STRICT


@dataclass(frozen=True, config=STRICT)
class ServerOptions:
    """Options of a run on a network.

    Attributes:
        clients: Sites with which the run begins, at least 1, however long that takes.
        lease: Seconds of silence after which a site is gone.
        norm_bound: An update whose parameters' norm is above it is refused; None means no bound.
        until: The run's limits; with none it goes on until it is stopped.
        evaluate: How often the global model is evaluated; one version at a time, the newest first.
        remembered: Of the tasks whose sites have gone, those from so many of the newest base versions can be
            brought back.
        setbacks: A site that fails so many times in a row is sent away for 30 s, then for longer each time,
            up to 10 minutes; None means never. It fails with a task that fails or whose update is refused,
            with a goodbye, or with a return with other data; an accepted update ends the row.
    """

    clients: Annotated[int, Field(ge=1)] = 1
    lease: Seconds = 60.0
    norm_bound: Seconds | None = None
    until: Until = Until()
    evaluate: Every = Every()
    remembered: Annotated[int, Field(ge=0)] = 8
    setbacks: Annotated[int | None, Field(ge=1)] = 5

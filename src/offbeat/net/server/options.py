"""What whoever runs a server decides: when it begins and ends, how long it waits, what it takes."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from offbeat.core.validation import STRICT

Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=STRICT)
class ServerOptions:
    """The terms of a run on a network.

    It begins when `clients` sites are there, however long that takes. A site that is silent for `lease`
    seconds is gone. An update whose parameters' norm is above `norm_bound` is refused (none: no bound).
    The run ends at whichever comes first of `seconds` (since it began), `versions`, `tasks` (updates that
    have arrived) and `accuracy`, in (0, 1], of the test data; with none it goes on until it is stopped.
    The model is evaluated every so many versions, every so many seconds, or both; one version at a time,
    the newest first.

    A site of which nothing comes `setbacks` times in a row is sent away for 30 s, then for longer each time,
    up to 10 minutes (none: never). A setback is a task that fails or whose update is refused, a goodbye, a
    return with other data; an update that is taken ends the row.

    Of the tasks whose sites have gone, those from the newest `remembered` base versions can be brought back.
    """

    clients: Annotated[int, Field(ge=1)] = 1
    lease: Seconds = 60.0
    norm_bound: Seconds | None = None
    seconds: Seconds | None = None
    versions: Annotated[int | None, Field(ge=1)] = None
    tasks: Annotated[int | None, Field(ge=1)] = None
    accuracy: Annotated[float | None, Field(gt=0, le=1)] = None
    evaluate_versions: Annotated[int | None, Field(ge=1)] = None
    evaluate_seconds: Seconds | None = None
    remembered: Annotated[int, Field(ge=0)] = 8
    setbacks: Annotated[int | None, Field(ge=1)] = 5

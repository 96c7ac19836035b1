"""When a simulation ends, and when it looks at the global model."""

from typing import Annotated

from pydantic import Field
from pydantic.dataclasses import dataclass

from offbeat.core.validation import STRICT


@dataclass(frozen=True, config=STRICT)
class Until:
    """Stop at whichever comes first: virtual seconds, versions, client tasks, or a test accuracy.

    `tasks` counts updates that have arrived. `accuracy` is in (0, 1] and needs evaluations.
    """

    seconds: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    versions: Annotated[int | None, Field(ge=1)] = None
    tasks: Annotated[int | None, Field(ge=1)] = None
    accuracy: Annotated[float | None, Field(gt=0, le=1)] = None

    @property
    def never(self) -> bool:
        """Is there no limit at all?"""
        return (self.seconds, self.versions, self.tasks, self.accuracy) == (None, None, None, None)


@dataclass(frozen=True, config=STRICT)
class Every:
    """Evaluate the global model every so many virtual seconds, every so many versions, or both.

    With neither it is not evaluated at all; otherwise also at the start and at the end. Evaluating
    draws nothing from the run's random streams and changes nothing in it.
    """

    seconds: Annotated[float | None, Field(gt=0, allow_inf_nan=False)] = None
    versions: Annotated[int | None, Field(ge=1)] = None

    @property
    def never(self) -> bool:
        """Is nothing evaluated?"""
        return self.seconds is None and self.versions is None

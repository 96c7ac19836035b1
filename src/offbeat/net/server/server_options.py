"""Options of a server: when its run begins, how long it waits, what it accepts."""

from typing import Annotated

from pydantic import Field

from offbeat.core.types import Count, Seconds, Whole
from offbeat.core.validation import checked_dataclass
from offbeat.runs.schema import ModelChoice
from offbeat.secure.unmasking import UnmaskingTimes

Helpers = tuple[str, ...]


# Of three sites, two can be right about the third.
MAJORITY = 3


@checked_dataclass
class ServerOptions:
    """Options of a run on a network.

    Attributes:
        clients: Sites with which the run begins, at least 1, however long that takes.
        lease: Seconds of silence after which a site is gone.
        task_timeout: Seconds after which a live site's task is lost that has not been delivered, or ten times
            what the site's speed predicts if that is longer; None means never.
        norm_bound: Largest norm of an update's parameters, of its floating buffers, and of its change of the
            shared vector. An update above it is refused. None means no bound.
        max_samples: Most samples that a site may have to train on, and to evaluate on, and so its greatest
            weight; None means 2^40.
        evaluation_timeout: Seconds after which an evaluation at the sites is done with those that answered.
        rollback: Whether the run goes back to its last good version when the loss on the server's test data
            tells that the model has collapsed.
        remembered: Of the tasks whose sites have gone, those from so many of the newest base versions can be
            brought back.
        max_consecutive_failures: The circuit breaker of a site that fails so many times in a row opens: the
            site is refused for 30 s, then for twice as long each time, up to 10 minutes; None means never. A
            site fails when its task fails, when its update is refused, when it leaves and when it returns
            with other data; an accepted update closes the circuit.
        share_model: The model that goes to the sites that ask for one at the end, "final" or "best", the one
            of `evaluate.keep_best`. None means none: who may have the result of a run is for its parties to
            agree on, not for a site's option.
        mirror_required: Whether the run stops where its mirror fails. Otherwise it goes on without the
            mirror, which is an alarm, and makes it anew as soon as its disk can be written again.
        keep_updates: Whether the state directory keeps every update from the beginning on, in place of those
            since the last checkpoint: a model without a site's updates can then be made of the others'. Once
            the run is served without it, they are deleted.
        cache_memory: Bytes in memory of each site's last update, where the algorithm keeps them here; the
            rest goes to files of the state directory. None means no limit.
        archive: Before the run is opened, and when it ends, its journal rows are compressed that are older
            than so many seconds of its clock. None means never.
        unmasking: How long a release with secure aggregation waits for its helpers.
        helpers: Names of the helpers of a new committee, in place of the run's present committee. Updates
            masked for the present committee are dropped. None means that the committee stays as it is.
    """

    clients: Count = 1
    lease: Seconds = 60.0
    task_timeout: Seconds | None = 600.0
    norm_bound: Seconds | None = None
    max_samples: Count | None = None
    evaluation_timeout: Seconds = 60.0
    rollback: bool = True
    remembered: Annotated[Whole, Field(ge=0)] = 8
    max_consecutive_failures: Count | None = 5
    share_model: ModelChoice | None = None
    mirror_required: bool = False
    keep_updates: bool = False
    cache_memory: Annotated[Whole, Field(ge=0)] | None = None
    archive: Seconds | None = None
    unmasking: UnmaskingTimes = UnmaskingTimes()
    helpers: Helpers | None = None

    def unguarded(self, *, tested: bool, bounded: bool) -> str | None:
        """Why one site alone can ruin the model; None means that it cannot.

        Args:
            tested: Whether the server has test data.
            bounded: Whether the run bounds each update's norm by itself, as privacy does.
        """
        if self.clients >= MAJORITY or bounded or self.norm_bound is not None or (tested and self.rollback):
            return None
        return (
            f"a run that begins with {self.clients} of 3 sites has no majority that tells an honest update "
            "from an attacker's, so one site can ruin the model: give test data, with which the run goes "
            "back, or a bound (--set server.norm_bound, in Python norm_bound), or begin with 3 sites"
        )

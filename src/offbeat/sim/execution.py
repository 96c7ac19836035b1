"""Execution of a simulation on this machine: processes, memory and checkpoints, apart from the experiment."""

from dataclasses import dataclass
from numbers import Real

from offbeat.core.errors import UsageError
from offbeat.core.validation import check_type
from offbeat.runs.client_states import check_memory
from offbeat.sim.executors.batched import Batched
from offbeat.sim.executors.ray.cluster import OnRay

CHECKPOINT_SECONDS = 10.0


@dataclass(frozen=True)
class Execution:
    """How a simulation is carried out.

    Results do not depend on it, except that `Batched` rounds differently.

    Attributes:
        workers: Single-threaded processes that train; 0 trains in this process. Where they share a GPU whose
            memory runs out, fewer train from then on.
        executor: `OnRay` trains on a Ray cluster; `Batched` trains many clients together. None means
            `workers` decides.
        client_memory: Bytes in memory of what clients keep from task to task; the rest goes to files. None
            means all of it stays in memory.
        cache_memory: Bytes in memory of each client's last update, where the server keeps them; the rest goes
            to files. None means as many as `client_memory`.
        checkpoint_seconds: Real seconds between two checkpoints, at most.
        keep_checkpoint: Whether a run's directory keeps a checkpoint of its end, from which the run can go on
            under other limits: one model, and one for each version that was still being trained on.

    Raises:
        UsageError: A value is out of its range, or there are workers beside an executor.
    """

    workers: int = 0
    executor: Batched | OnRay | None = None
    client_memory: int | None = None
    cache_memory: int | None = None
    checkpoint_seconds: float = CHECKPOINT_SECONDS
    keep_checkpoint: bool = True

    def __post_init__(self) -> None:
        """Check each value."""
        workers = self.workers
        if isinstance(workers, bool) or not (hasattr(workers, "__index__") and workers >= 0):
            raise UsageError(
                f"workers = {workers!r} is not allowed: give 0 to train in this process, or a number of "
                "worker processes"
            )
        check_type("executor", self.executor, Batched | OnRay | None, "Batched(…), OnRay(…), or None")
        if workers and self.executor is not None:
            raise UsageError(
                f"workers = {workers} is not allowed beside an executor: Batched trains in this process, "
                f"OnRay(workers={workers}) on as many"
            )
        check_memory(self.client_memory)
        check_memory(self.cache_memory, "cache_memory")
        pause = self.checkpoint_seconds
        if isinstance(pause, bool) or not isinstance(pause, Real) or not pause >= 0:
            raise UsageError(f"checkpoint_seconds = {pause!r} is not allowed: give seconds of at least 0")

    @property
    def cache_limit(self) -> int | None:
        """Bytes in memory of the clients' last updates; None means no limit."""
        return self.client_memory if self.cache_memory is None else self.cache_memory

    @property
    def batched(self) -> bool:
        """Whether clients are trained together, which rounds differently."""
        return isinstance(self.executor, Batched)


HERE = Execution()
"""Training in this process."""

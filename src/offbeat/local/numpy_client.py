"""An existing Flower `NumPyClient` as a training loop. Flower need not be installed."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from offbeat.core.errors import UsageError
from offbeat.local.client_task import ClientTask


class NumPyClient(Protocol):
    """The methods of a Flower `NumPyClient` that are called."""

    def fit(self, parameters: Any, config: Any) -> tuple[Sequence[Any], int, Mapping[str, Any]]:
        """Train arrays; returns them, the number of samples, and metrics."""


@dataclass(frozen=True)
class NumPyClientLoop:
    """Training loop for a `LoopLearner` that calls `fit` of a Flower `NumPyClient`.

    `fit` is called once per task. It receives the arrays in the order of the initial model, and a `config`
    with "steps" (to do), "lr_factor", "server_round" (the version), "client" and "seed". Among its metrics,
    "steps" is the number of steps done and "lr" is the learning rate. Algorithms that act between two steps
    are refused.

    Attributes:
        make: make(client) returns the `NumPyClient` of the client with this number.
        trust_steps: Whether a client that reports no "steps" counts as having done the assigned ones.
    """

    make: Callable[[int], NumPyClient]
    trust_steps: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.make, type) or hasattr(self.make, "fit"):
            raise UsageError(
                "make is a NumPyClient: give a function make(client) that returns the one of the client with "
                "this number"
            )

    def __call__(self, task: ClientTask) -> None:
        """Do one task.

        Raises:
            UsageError: The client did not do the steps assigned, or the algorithm acts between steps.
        """
        start = list(task.arrays().values())
        # The iterator refuses algorithms that act between steps. The steps themselves are done by `fit`.
        for _ in task.steps():
            pass
        if task.cancelled:
            return
        config = {
            "steps": task.done, "lr_factor": task.lr_factor, "server_round": task.version,
            "client": task.client, "seed": task.seed,
        }  # fmt: skip
        client: Any = self.make(task.client)
        if isinstance(client, type) or not hasattr(client, "fit") or hasattr(client, "numpy_client"):
            raise UsageError(
                f"make({task.client}) returned {client!r:.60}: return an object with the method fit of a "
                "NumPyClient, without .to_client()"
            )
        arrays, samples, found = client.fit(start, config)
        metrics = {"steps": None, **found}
        done, lr = metrics.pop("steps"), metrics.pop("lr", None)
        if done != task.done and not (done is None and self.trust_steps):
            told = "no metric 'steps'" if done is None else f"steps = {done}"
            raise UsageError(
                f"fit returned {told} for a task of {task.done} steps: do config['steps'] and report them"
                + (", or give NumPyClientLoop trust_steps = True" if done is None else "")
            )
        task.submit(arrays, samples=samples, metrics=metrics, lr=lr)

"""A learner whose training loop is the user's own."""

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from typing import Any

from torch import nn

from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Metrics
from offbeat.core.layout import frozen_digest
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, TaskControl, TaskInputs
from offbeat.core.model import Model
from offbeat.core.module_tensors import ModuleTensors
from offbeat.core.objective import Objective
from offbeat.local.batches import steps_per_epoch
from offbeat.local.client_task import ClientTask
from offbeat.local.logged_once import LoggedOnce
from offbeat.local.loop_model import Named, model_of
from offbeat.local.seeding import evaluation_seeded, generators_kept, seeded

Initial = Model | nn.Module | Named | Callable[[], nn.Module | Named]
OTHER_FROZEN = (
    "the frozen parameters of the model made here are not those of the run: load the same pretrained "
    "weights, or use the server's version of PyTorch where the seed draws them"
)
UNMOVED = (
    "the loop changes no parameter of the model that it submits: its steps must train the module that it "
    "gives task.load_into, with an optimizer of its parameters, or task.submit needs what they train"
)


class LoopLearner:
    """Clients that train with the user's own loop, in any framework.

    To train in worker processes, `train` and the other functions must be picklable: defined at the top level
    of a file, or anywhere in a notebook.

    Args:
        train: train(task) does one `ClientTask`: it loads the model, does the steps, and submits. Everything
            that influences the task's result must follow from the task.
        initial: The initial model: a module, tensors or arrays by name, or a function that makes one, whose
            draws from PyTorch's generator then follow from the run's seed. None is for a site, which
            receives the model.
        samples: Number of training samples of each client. At a site it is one number.
        batch_size: Samples of a batch, from which the steps of an epoch follow.
        drop_last: Whether the loop leaves out the incomplete batch of each pass, as `Training.drop_last`.
        evaluate: evaluate(model) returns the metrics of a global model by name. None means no metrics.
        held_out: Number of samples that each client holds out, as `samples`; 0 means none.
        evaluate_client: evaluate_client(model, client) returns the metrics of a global model on the samples
            that a client holds out. At a site it is called in another thread, beside `train`. Required with
            `held_out`.
        labels: Number of samples of each class, for each client. None means that there are no classes.
        higher_is_better: Whether more is better, by name, for metrics whose names do not tell.

    Attributes:
        aliases: Further names of tensors that have several in the module that the loop last loaded.
    """

    def __init__(
        self,
        train: Callable[[ClientTask], object],
        initial: Initial | None,
        samples: int | Sequence[int],
        *,
        batch_size: int = 32,
        drop_last: bool = False,
        evaluate: Callable[[Model], Mapping[str, float]] | None = None,
        held_out: int | Sequence[int] = 0,
        evaluate_client: Callable[[Model, ClientId], Mapping[str, float]] | None = None,
        labels: Sequence[Sequence[int]] | None = None,
        higher_is_better: Mapping[str, bool] = {},
    ) -> None:
        if batch_size < 1:
            raise UsageError(f"batch_size = {batch_size} is not allowed: give 1 or more")
        if (held_out != 0) != (evaluate_client is not None):
            raise UsageError("held_out and evaluate_client belong together: give both, or neither")
        self._train, self._initial = train, initial
        self._samples = [samples] if isinstance(samples, int) else samples
        self._held_out = [held_out] * len(self._samples) if isinstance(held_out, int) else held_out
        self._batch_size, self._drop_last, self._labels = batch_size, drop_last, labels
        self._evaluate, self._evaluate_client = evaluate, evaluate_client
        self.higher_is_better = dict(higher_is_better)
        self._warnings = LoggedOnce()
        self._frozen = ""
        self._moved = False
        self.aliases: tuple[tuple[str, str], ...] = ()

    @property
    def starts(self) -> bool:
        """Whether it has an initial model."""
        return self._initial is not None

    @property
    def evaluates(self) -> bool:
        """Whether it evaluates global models."""
        return self._evaluate is not None

    @property
    def batch_size(self) -> int:
        """Samples of a batch."""
        return self._batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the incomplete batch of each pass is left out."""
        return self._drop_last

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self._samples)

    def samples(self, client: ClientId) -> int:
        """Number of training samples n_i of a client; one client alone answers to any number, as sites do."""
        return int(self._samples[client if self.clients > 1 else 0])

    def held_out(self, client: ClientId) -> int:
        """Number of samples that a client holds out; one client alone answers to any number."""
        return int(self._held_out[client if self.clients > 1 else 0])

    def steps_per_epoch(self, client: ClientId) -> int:
        """⌈n_i / batch size⌉, without the incomplete batch where the loop drops it."""
        return steps_per_epoch(self.samples(client), self._batch_size, self._drop_last)

    def label_counts(self, client: ClientId) -> list[int] | None:
        """Number of the client's samples of each class; None where there are no classes."""
        return None if self._labels is None else list(self._labels[client if self.clients > 1 else 0])

    def initial(self, seed: int) -> Model:
        """The initial model.

        Raises:
            UsageError: There is none.
        """
        made = self._make(seed)
        if isinstance(made, nn.Module):
            return Model.of(made)
        return made if isinstance(made, Model) else model_of(made)

    def frozen_digest(self, seed: int) -> str:
        """SHA-256 of the parameters that are frozen in the initial module; "" for none, and for arrays."""
        made = self._make(seed)
        return frozen_digest(made) if isinstance(made, nn.Module) else ""

    def expecting(self, frozen: str) -> "LoopLearner":
        """This learner, for a run whose models have frozen parameters of that digest.

        The first module that its loop loads is compared; "" compares none.
        """
        other = copy(self)
        other._frozen = frozen
        return other

    def _make(self, seed: int) -> Any:
        made: Any = self._initial
        if made is None:
            raise UsageError(
                "initial = None is for sites, which are sent the model: give a module, or arrays"
            )
        return made if isinstance(made, Model | nn.Module) or not callable(made) else seeded(made, seed)

    def train(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs = NO_INPUTS,
        watch: TaskControl | None = None,
    ) -> LocalResult:
        """Let the loop do one task; arguments as of `TorchLearner.train`.

        Raises:
            UsageError: The loop does not do what the algorithm asks for.
            RunError: It ends without an update.
        """
        samples = self.samples(task.client)
        client_task = ClientTask(
            base, task, objective, inputs, watch, samples, self._batch_size, self._warnings.warn, self._check,
            self._drop_last,
        )  # fmt: skip
        try:
            with generators_kept(own_code=True):
                client_task.seed_generators()
                self._train(client_task)
        except Exception as error:
            if not client_task.cancelled:
                # Nobody waits for the result of a cancelled task, so its error is not raised.
                error.add_note(f"in the loop's task {task.task} of client {task.client}")
                raise
        finally:
            client_task.close()
        result = client_task.result()
        self._moved = self._moved or bool(result.delta.any())
        if not self._moved and client_task.done:
            self._warnings.warn(UNMOVED)
        return result

    def evaluate(self, model: Model) -> Metrics:
        """Evaluate a global model."""
        if self._evaluate is None:
            return {}
        with evaluation_seeded("cpu", own_code=True):
            return self._evaluate(model)

    def evaluate_client(
        self, model: Model, client: ClientId, inputs: TaskInputs = NO_INPUTS
    ) -> tuple[int, Metrics]:
        """Evaluate a global model on a client's held-out samples: number of samples, and the metrics."""
        samples = self.held_out(client)
        if self._evaluate_client is None or not samples:
            return 0, {}
        with evaluation_seeded("cpu", own_code=True):
            return samples, self._evaluate_client(model, client)

    def _check(self, module: nn.Module) -> None:
        """Compare the frozen parameters of a module, once: raises `UsageError` for other ones."""
        self.aliases = ModuleTensors.of(module).aliases
        if self._frozen and frozen_digest(module) != self._frozen:
            raise UsageError(OTHER_FROZEN)
        self._frozen = ""

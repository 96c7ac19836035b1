"""An existing Flower `ClientApp` as a learner: its clients train in virtual time, or as sites."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from threading import get_ident
from typing import Any

import cloudpickle
import numpy as np
import torch
from flwr.app import ArrayRecord, Context, RecordDict, UserConfigValue
from flwr.clientapp import ClientApp
from flwr.common.serde import recorddict_from_proto, recorddict_to_proto
from flwr.proto.recorddict_pb2 import RecordDict as StoredRecords
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId
from offbeat.core.model import Model
from offbeat.flower.app_messages import (
    AppReply,
    ConfigValue,
    NamedArrays,
    RecordKeys,
    check_app,
    evaluate,
    train,
)
from offbeat.local.batches import steps_per_epoch
from offbeat.local.client_task import ClientTask
from offbeat.local.loop_learner import LoopLearner
from offbeat.local.seeding import seeded

InitialArrays = nn.Module | ArrayRecord | Mapping[str, Any] | Sequence[Any]
Initial = InitialArrays | Callable[[], InitialArrays]
_STATE = "flower.context"
NO_STEPS = (
    "the app does not report the metric 'steps': say what it does in each task, "
    "from_flower(…, epochs=1) or from_flower(…, steps=10); or let it do config['steps'] steps and report them"
)


@dataclass(frozen=True)
class LocalAmount:
    """What an app that does not report its steps trains in each task.

    Attributes:
        steps: Local steps. None means passes over the data, or that the app reports its steps.
        epochs: Passes over the node's data.
        batch_size: Samples of a batch, by which passes become steps.
    """

    steps: int | None
    epochs: int | None
    batch_size: int

    @property
    def known(self) -> bool:
        """Whether the amount is said."""
        return self.steps is not None or self.epochs is not None

    def check(self, task: ClientTask) -> None:
        """Raise `UsageError` for a task that has another number of steps than the app will do."""
        if not self.known:
            return
        steps, option = self.steps, f"steps={self.steps}"
        if steps is None:
            passes = self.epochs or 0
            steps, option = passes * steps_per_epoch(task.samples, self.batch_size, False), f"epochs={passes}"
        if task.done != steps:
            raise UsageError(
                f"the app does {steps} steps in each task of client {task.client}, and task {task.number} "
                f"has {task.done}: give the algorithm {option}; an algorithm that chooses the number itself, "
                "such as FedCompass, needs an app that does config['steps'] steps and reports them as 'steps'"
            )

    def check_counted(self, task: ClientTask, counted: Sequence[int]) -> None:
        """Raise `UsageError` where an app has done another number of steps than the task has.

        Args:
            task: The task.
            counted: Steps of each of PyTorch's optimizers, as of `optimizer_steps`. An app that uses none is
                not PyTorch's, and one with several may step them in turn or together.
        """
        found = sorted({max(counted, default=0), sum(counted)})
        # In float16 on a GPU, the first steps are skipped until the loss has found its scale.
        skipped = _SKIPPED if torch.cuda.is_available() else 0
        if not found[-1] or any(0 <= task.done - steps <= skipped for steps in found):
            return
        if self.epochs is not None:
            said = f"epochs={self.epochs}, batch_size={self.batch_size}"
            advice = "give from_flower the epochs and the batch_size that the app trains with"
        elif self.steps is not None:
            said, advice = f"steps={self.steps}", f"give from_flower and the algorithm steps={found[0]}"
        else:
            said, advice = "the steps that it reports", "let it do config['steps'] steps of its optimizer"
        raise UsageError(
            f"the app does {found[0]} steps of its optimizer in task {task.number} of client {task.client}, "
            f"which has {task.samples} samples, and {said} make {task.done}: virtual time would be wrong; "
            f"{advice}"
        )


_SKIPPED = 3


@contextmanager
def optimizer_steps() -> Iterator[Mapping[int, int]]:
    """Count the steps that PyTorch's optimizers do in this thread; they are told apart by numbers."""
    counts, here, seen = Counter[int](), get_ident(), dict[int, Any]()

    def count(optimizer: torch.optim.Optimizer, *_: object) -> None:
        if get_ident() == here:
            # An optimizer that is kept leaves its number to no other.
            seen[id(optimizer)] = optimizer
            counts[id(optimizer)] += 1

    handle = register_optimizer_step_post_hook(count)
    try:
        yield counts
    finally:
        handle.remove()


@dataclass(frozen=True)
class ClientAppLoop:
    """Training loop for a `LoopLearner` that sends each task to a Flower `ClientApp`; see `from_flower`."""

    app: ClientApp
    names: tuple[str, ...]
    node_configs: Sequence[Mapping[str, UserConfigValue]]
    run_config: Mapping[str, UserConfigValue]
    config: Mapping[str, ConfigValue]
    amount: LocalAmount
    keys: RecordKeys = field(default_factory=RecordKeys)
    # Clients whose steps have been counted, in this process.
    counted: set[ClientId] = field(default_factory=set, compare=False)

    def __call__(self, task: ClientTask) -> None:
        """Do one task.

        Raises:
            UsageError: The app does not do what the algorithm asks for.
        """
        arrays = self._in_order(task.arrays())
        # The iterator refuses algorithms that act between steps. The steps themselves are done by the app.
        for _ in task.steps():
            pass
        if task.cancelled:
            return
        self.amount.check(task)
        context = self._context(task.client, _load_state(task.state))
        config = self._config(task)
        with optimizer_steps() as counted:
            reply = train(self.app, context, arrays, config, self.keys)
        self._check_steps(task, reply)
        if task.client not in self.counted:
            self.amount.check_counted(task, [*counted.values()])
            self.counted.add(task.client)
        _save_state(context.state, task.state)
        lr = reply.metrics.pop("lr", self._lr(task))
        task.submit(reply.arrays, samples=reply.samples, metrics=reply.metrics, lr=lr)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle for a worker process: the functions of an app are often closures, which travel by value."""
        rest = (self.names, self.node_configs, self.run_config, self.config, self.amount, self.keys)
        return _unpickled, (cloudpickle.dumps(self.app), *rest)

    def evaluate_client(self, model: Model, client: ClientId) -> Mapping[str, float]:
        """The app's metrics of a model on the samples that a client holds out."""
        return self._evaluate(model.arrays(), client).metrics

    def held_out(self, arrays: NamedArrays) -> list[int]:
        """Ask the app how many samples each client evaluates on."""
        return [self._evaluate(arrays, client).samples for client in range(len(self.node_configs))]

    def samples(self, arrays: NamedArrays) -> list[int]:
        """Ask the app how many samples each client trains on: each client trains once, for nothing."""
        config = self._shared_config(1, 0) | {"steps": 1}
        return [
            train(self.app, self._context(client), self._in_order(arrays), config, self.keys).samples
            for client in range(len(self.node_configs))
        ]

    def _evaluate(self, arrays: NamedArrays, client: ClientId) -> AppReply:
        config = self._shared_config(1, 0)
        return evaluate(self.app, self._context(client), self._in_order(arrays), config, self.keys)

    def _in_order(self, arrays: NamedArrays) -> NamedArrays:
        """The arrays in the order of the initial model, in which a `client_fn` receives them."""
        return {name: arrays[name] for name in self.names}

    def _context(self, client: ClientId, state: RecordDict | None = None) -> Context:
        own = self.node_configs[client if len(self.node_configs) > 1 else 0]
        return Context(
            1, client + 1, dict(own), RecordDict() if state is None else state, dict(self.run_config)
        )

    def _shared_config(self, server_round: int, seed: int) -> dict[str, ConfigValue]:
        """What every message has; both spellings of the round are in use among Flower's apps."""
        return {**self.config, "server-round": server_round, "server_round": server_round, "seed": seed}

    def _config(self, task: ClientTask) -> dict[str, ConfigValue]:
        config = self._shared_config(task.version + 1, task.seed) | {"steps": task.done}
        lr = self._lr(task)
        return config if lr is None else config | {"lr": lr}

    def _lr(self, task: ClientTask) -> float | None:
        """The learning rate that the app is told. None means that it has its own."""
        lr = self.config.get("lr")
        if isinstance(lr, int | float):
            return lr * task.lr_factor
        if task.lr_factor != 1:
            raise UsageError(
                f"task {task.number} has lr_factor = {task.lr_factor:g}, of which the app does not know: "
                "give from_flower config={'lr': …}, and let the app read its learning rate there"
            )
        return None

    def _check_steps(self, task: ClientTask, reply: AppReply) -> None:
        done = reply.metrics.pop("steps", None)
        if done is None and not self.amount.known:
            raise UsageError(NO_STEPS)
        if done is not None and done != task.done:
            raise UsageError(
                f"the app reports steps = {done:g} in a task of {task.done} steps: do config['steps'] steps"
            )


def _unpickled(app: bytes, *rest: Any) -> ClientAppLoop:
    return ClientAppLoop(cloudpickle.loads(app), *rest)


def from_flower(
    app: ClientApp,
    initial: Initial,
    *,
    clients: int | Sequence[Mapping[str, UserConfigValue]],
    samples: Sequence[int] | None = None,
    steps: int | None = None,
    epochs: int | None = None,
    batch_size: int = 32,
    run_config: Mapping[str, UserConfigValue] = {},
    config: Mapping[str, ConfigValue] = {},
    evaluate: Callable[[Model], Mapping[str, float]] | None = None,
    evaluate_at_clients: bool = False,
    higher_is_better: Mapping[str, bool] = {},
    arrayrecord_key: str = "arrays",
    configrecord_key: str = "config",
    weighted_by_key: str = "num-examples",
) -> LoopLearner:
    """Make a learner of an existing Flower `ClientApp`, with its functions or with its `client_fn`.

    Each task is one train message. `Context.state` is kept between the tasks of a client, and a lost task
    does not change it. PyTorch's, NumPy's and Python's global generators are seeded for each task.
    Algorithms that act between two steps are refused.

    Args:
        app: The app. It needs no change where each task is the same number of steps or passes.
        initial: The initial model, as the `ServerApp` has it: a module, whose whole state dict is the model,
            arrays by name or in order, an `ArrayRecord`, or a function that makes one.
        clients: Number of clients, whose `node_config` has "partition-id" and "num-partitions"; or the
            `node_config` of each.
        samples: Number of training samples of each client. None means that the app is asked, by one train
            message to each client.
        steps: Local steps that the app does in each task. None means that `epochs` says it, or that the app
            does `config["steps"]` steps and reports them as the metric "steps".
        epochs: Passes over its data that the app does in each task.
        batch_size: Samples of the app's batches, by which passes become steps.
        run_config: The run's configuration, `context.run_config`.
        config: What a train message's configuration has besides "server-round", "steps" and "seed". A number
            "lr" is multiplied by the factor that the algorithm chooses.
        evaluate: evaluate(model) returns the metrics of a global model by name, as the server evaluates it.
        evaluate_at_clients: Whether clients evaluate versions with the app's own evaluate function.
        higher_is_better: Whether more is better, by name, for metrics whose names do not tell.
        arrayrecord_key: Key of the arrays in messages to functions.
        configrecord_key: Key of the configuration in messages to functions.
        weighted_by_key: Name of the number of samples in the replies of functions.

    Raises:
        UsageError: The app's replies are none that a Flower strategy takes, or an option is wrong.
    """
    check_app(app)
    if steps is not None and epochs is not None:
        raise UsageError("steps and epochs are given: give the one that the app does in each task")
    for name, given in (("steps", steps), ("epochs", epochs)):
        if given is not None and given < 1:
            raise UsageError(f"{name} = {given} is not allowed: give 1 or more")
    nodes = _node_configs(clients) if isinstance(clients, int) else list(clients)
    start = _start(initial)
    made = seeded(start, 0) if callable(start) else start
    loop = ClientAppLoop(
        app, tuple(made), nodes, run_config, config, LocalAmount(steps, epochs, batch_size),
        RecordKeys(arrayrecord_key, configrecord_key, weighted_by_key),
    )  # fmt: skip
    first = {name: np.asarray(array) for name, array in made.items()}
    return LoopLearner(
        loop,
        start,
        seeded(partial(loop.samples, first), 0) if samples is None else list(samples),
        batch_size=batch_size,
        evaluate=evaluate,
        held_out=seeded(partial(loop.held_out, first), 0) if evaluate_at_clients else 0,
        evaluate_client=loop.evaluate_client if evaluate_at_clients else None,
        higher_is_better=higher_is_better,
    )


def _node_configs(clients: int) -> list[dict[str, UserConfigValue]]:
    """What Flower's simulation engine tells its nodes."""
    if clients < 1:
        raise UsageError(f"clients = {clients} is not allowed: give 1 or more")
    return [{"partition-id": client, "num-partitions": clients} for client in range(clients)]


def _start(initial: Initial) -> dict[str, Any] | Callable[[], dict[str, Any]]:
    """The initial model by name, or a function that makes it; modules can be called, too."""
    if isinstance(initial, nn.Module | ArrayRecord | Mapping | Sequence):
        return _named(initial)
    return partial(_make_named, initial)


def _make_named(make: Callable[[], InitialArrays]) -> dict[str, Any]:
    return _named(make())


def _named(arrays: InitialArrays) -> dict[str, Any]:
    """A model's arrays by name, in the order in which Flower has them."""
    if isinstance(arrays, nn.Module):
        return {name: tensor.detach().cpu().numpy() for name, tensor in arrays.state_dict().items()}
    if isinstance(arrays, ArrayRecord):
        return {name: array.numpy() for name, array in arrays.items()}
    if isinstance(arrays, Mapping):
        return {
            name: tensor.detach().cpu().numpy() if isinstance(tensor, Tensor) else np.asarray(tensor)
            for name, tensor in arrays.items()
        }
    return {str(number): np.asarray(array) for number, array in enumerate(arrays)}


def _load_state(state: Mapping[str, Tensor]) -> RecordDict:
    """The records that a client's context has kept."""
    if _STATE not in state:
        return RecordDict()
    return recorddict_from_proto(StoredRecords.FromString(state[_STATE].numpy().tobytes()))


def _save_state(records: RecordDict, state: dict[str, Tensor]) -> None:
    """Keep a context's records among the client's own tensors."""
    state.pop(_STATE, None)
    if stored := recorddict_to_proto(records).SerializeToString():
        state[_STATE] = torch.from_numpy(np.frombuffer(stored, dtype=np.uint8).copy())

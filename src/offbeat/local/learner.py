"""The PyTorch learner: any module, any loss, a dataset divided among clients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Metrics
from offbeat.core.features import Feature
from offbeat.core.learner import NO_INPUTS, LocalResult, LocalTask, MergePoint, TaskControl, TaskInputs
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import FreshModel, LocalRun, Objective
from offbeat.core.streams import Purpose, StreamCursor, stream
from offbeat.data.dataset import FederatedData
from offbeat.local.batches import batches
from offbeat.local.flat_module import FlatModule
from offbeat.local.representation import representing
from offbeat.local.session import Batches, Session, checkpoint, restore
from offbeat.local.statistics import SAMPLES, estimate, pieces
from offbeat.local.training import Training

Loss = Callable[[Tensor, Tensor], Tensor]
_EVALUATION_BATCH = 1000


class TorchLearner:
    """Clients that train a PyTorch module on their part of a dataset.

    To train in worker processes, module and loss must be picklable: defined at the top of a file.

    Args:
        module: A module, whose weights are the initial model, or a function that makes one, whose weights are
            then drawn from the run's seed.
        data: The dataset and its partition over the clients.
        training: Optimizer, learning rate, batch size, device.
        loss: loss(output, target), a mean over the batch.

    Raises:
        UsageError: The device is not available.
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        data: FederatedData,
        training: Training = Training(),
        loss: Loss = functional.cross_entropy,
    ) -> None:
        self.data, self.training = data, training
        initial = deepcopy(module) if isinstance(module, nn.Module) else None
        self._make_module = module if initial is None else partial(deepcopy, initial)
        self.loss = loss
        self._ready: DeviceState | None = None
        self._samples = (data.offsets[1:] - data.offsets[:-1]).tolist()
        check_device(training.device)

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the module and the data on the device: each process prepares its own."""
        return {**self.__dict__, "_ready": None}

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self._samples)

    def samples(self, client: ClientId) -> int:
        """Number of training samples n_i of a client."""
        return int(self._samples[client])

    def steps_per_epoch(self, client: ClientId) -> int:
        """⌈n_i / batch size⌉."""
        return -(-self.samples(client) // self.training.batch_size)

    def label_counts(self, client: ClientId) -> list[int] | None:
        """Number of the client's samples of each class."""
        return self.data.label_counts(client)

    def initial(self, seed: int) -> Model:
        """The module's weights, or those that its function draws from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(stream(seed, Purpose.MODEL).integers(2**63)))
            return _model_of(self._make_module())

    def train(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs = NO_INPUTS,
        watch: TaskControl | None = None,
    ) -> LocalResult:
        """Train one task on the client's own data; the result depends on the arguments alone, in any process.

        Args:
            base: Model w_o to train from.
            task: The task: client, local steps, seed.
            objective: The local objective.
            inputs: The client's state, and the fresh model of `task.fresh`.
            watch: Decides between steps whether to stop, and which model to merge; replaces `task.fresh`.
                None means neither.
        """
        with self._start(base, task, objective, inputs) as session:
            self._steps(session, session.batches, watch)
            return self._finish(session)

    def train_until(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs, steps: int
    ) -> Tensors:
        """Train the first `steps` steps of a task; returns the checkpoint from which `train_from` goes on."""
        with self._start(base, task, objective, inputs) as session:
            self._steps(session, islice(session.batches, steps))
            return checkpoint(session)

    def train_from(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs,
        steps: int,
        saved: Tensors,
    ) -> LocalResult:
        """Train a task from the checkpoint after `steps` steps, where the model of `task.fresh` is merged.

        The result is that of `train`, in any process.

        Raises:
            UsageError: `saved` is the checkpoint of another model.
        """
        with self._start(base, task, objective, inputs) as session:
            restore(session, saved)
            self._steps(session, islice(session.batches, steps, None))
            return self._finish(session)

    @contextmanager
    def _start(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs
    ) -> Iterator[Session]:
        """Begin a session: load the model, prepare objective and optimizer."""
        bench, training = self.prepare().bench, self.training
        anchor = bench.load(base)
        bench.train()
        lr = training.rate(task.base, task.lr_factor)
        with representing(bench, Feature.REPRESENTATIONS in objective.requires) as represent:
            run = LocalRun(
                bench.parameters,
                anchor,
                bench.buffers,
                state={name: tensor.to(training.device) for name, tensor in inputs.state.items()},
                lr=lr,
                steps=task.steps,
                represent=represent,
                integers=bench.integers,
            )
            run.shared = run.shaped(base.shared.to(training.device))
            total = torch.zeros((), device=training.device)
            objective.begin(run)
            optimizer = training.build(bench.trainable, lr)
            batches = enumerate(self._batches(task))
            yield Session(bench, base, task, inputs, objective, optimizer, run, total, batches)

    def _steps(self, session: Session, batches: Batches, watch: TaskControl | None = None) -> None:
        """Train on numbered batches, and merge where the task or `watch` says so."""
        for step, (x, y) in batches:
            if watch is not None and watch.stops(step):
                session.run.steps = step
                break
            merging = watch.fresh(step) if watch is not None else _merge_of(session, step)
            if merging is not None:
                self._merge(session, *merging, x, y)
            self._step(session, x, y)

    def _step(self, session: Session, x: Tensor, y: Tensor) -> None:
        session.optimizer.zero_grad()
        for parameter in session.bench.frozen:  # gradients of the objective
            parameter.grad = None
        loss = self.loss(session.bench.module(x), y)
        session.objective.loss(session.run, loss).backward()  # type: ignore[no-untyped-call]
        session.objective.adjust(session.run)
        session.optimizer.step()
        session.total += loss.detach()

    def _merge(self, session: Session, fresh: MergePoint, model: Model, x: Tensor, y: Tensor) -> None:
        """Let the objective merge a fresh model; the next batch is (x, y)."""
        bench = session.bench
        values = bench.floats(model.values.to(self.training.device))
        received = FreshModel(values, fresh.clock, fresh.version - session.task.base)
        session.objective.merge(session.run, received, lambda: self.loss(bench.module(x), y))

    def _finish(self, session: Session) -> LocalResult:
        run = session.run
        own = session.objective.end(run)
        delta, integers = session.bench.delta(session.base)
        metrics = {"loss": float(session.total) / run.steps, **own}
        state = _to_cpu(run.state, session.bench)
        shared = run.shared_delta.to("cpu") if run.shared_delta is not None else None
        return LocalResult(delta, integers, metrics, run.lr, shared, state)

    def _batches(self, task: LocalTask) -> Iterator[tuple[Tensor, Tensor]]:
        """Start the streams of the task and its layers; iterate over its batches, on the device."""
        ready = self.prepare()
        own, streams = self.data.client_indices(task.client), ready.streams(task.seed)
        layers = streams.at(Purpose.LAYERS, task.client, task.task)
        seed_layers(int(layers.integers(2**63)), self.training.device)
        rng = streams.at(Purpose.TRAIN, task.client, task.task)  # valid until the next task
        rows = batches(rng, len(own), self.training.batch_size, task.steps)
        return (ready.batch(own.index_select(0, batch)) for batch in rows)

    def evaluate(self, model: Model) -> Metrics:
        """Mean loss over the test set, and accuracy where the output is one score per class."""
        bench, test = self.prepare().bench, self.data.test
        if not len(test.y):
            raise UsageError("the test set has no samples: give it some, or evaluate = None")
        bench.load(model)
        bench.module.eval()
        loss, correct, classifies = 0.0, 0, False
        with torch.inference_mode():
            for start in range(0, len(test.y), _EVALUATION_BATCH):
                x = test.x[start : start + _EVALUATION_BATCH].to(self.training.device)
                y = test.y[start : start + _EVALUATION_BATCH].to(self.training.device)
                output = bench.module(bench.laid_out(x))
                loss += float(self.loss(output, y)) * len(y)
                classifies = output.ndim == 2 and not y.is_floating_point()
                if classifies:
                    correct += int((output.argmax(1) == y).sum())
        mean = {"loss": loss / len(test.y)}
        return {**mean, "accuracy": correct / len(test.y)} if classifies else mean

    def estimated(self, model: Model, seed: int) -> Model:
        """Estimate BatchNorm's running statistics from random samples.

        The samples are at most 2,048 of all that the clients have or, where there is no client, of the test
        set.

        Args:
            model: A global model.
            seed: The run's seed, which determines the samples.

        Returns:
            The model with these statistics.

        Raises:
            UsageError: There are fewer than two samples.
        """
        ready, clients = self.prepare(), len(self.data.indices) > 0
        available = self.data.indices if clients else torch.arange(len(self.data.test.y))
        if len(available) < 2:
            raise UsageError(
                f"running statistics cannot be estimated from {len(available)} samples: give at least two, "
                "or choose buffers follow or mean"
            )
        rng = stream(seed, Purpose.STATISTICS)
        drawn = rng.choice(len(available), min(SAMPLES, len(available)), replace=False)
        rows, x = available[torch.from_numpy(drawn)], ready.x if clients else self.data.test.x
        device = self.training.device
        with torch.random.fork_rng(devices=[]):
            seed_layers(int(rng.integers(2**63)), device)
            return estimate(ready.bench, model, (x[part.to(x.device)].to(device) for part in pieces(rows)))

    def prepare(self) -> "DeviceState":
        """Prepare module and train set on their device, at first use in each process."""
        if self._ready is None:
            with torch.random.fork_rng(devices=[]):  # made on the CPU
                module = self._make_module()
            device, train = self.training.device, self.data.train
            bench = FlatModule(module, device, self.training.channels_last)
            self._ready = DeviceState(bench, train.x.to(device), train.y.to(device))
        return self._ready


@dataclass
class DeviceState:
    """A learner's module and train set on its device, and the streams of its last run."""

    bench: FlatModule
    x: Tensor
    y: Tensor
    _streams: tuple[int, StreamCursor] | None = None

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Select samples of the train set, in the memory layout in which the module is fastest."""
        rows = indices.to(self.x.device, non_blocking=True)
        return self.bench.laid_out(self.x.index_select(0, rows)), self.y.index_select(0, rows)

    def streams(self, seed: int) -> StreamCursor:
        """Streams of a run of this seed."""
        if self._streams is None or self._streams[0] != seed:
            self._streams = seed, StreamCursor(seed)
        return self._streams[1]


def _to_cpu(state: Tensors, bench: FlatModule) -> Tensors:
    """Move a client's new state to the CPU; copies tensors of the module, which the next task writes to."""
    if not state:
        return {}
    module = {tensor.untyped_storage().data_ptr() for tensor in bench.tensors()}
    return {
        name: tensor.detach().to("cpu", copy=tensor.untyped_storage().data_ptr() in module)
        for name, tensor in state.items()
    }


def _model_of(module: nn.Module) -> Model:
    """Copy a module's weights. Raises `UsageError` for a module without a trainable parameter."""
    model = Model.of(module)
    if not any(parameter.requires_grad for parameter in module.parameters()):
        raise UsageError(
            f"{type(module).__name__} has no parameter to train: all are frozen (requires_grad = False), "
            "or there is none; leave one to train"
        )
    return model


def _merge_of(session: Session, step: int) -> tuple[MergePoint, Model] | None:
    """The merge of a task after `step` steps; None means none."""
    fresh, model = session.task.fresh, session.inputs.fresh
    if fresh is None or step != fresh.after:
        return None
    assert model is not None
    return fresh, model


def seed_layers(seed: int, device: str) -> None:
    """Seed the global stream from which layers such as dropout draw on a device.

    As `torch.manual_seed`, which takes 0.1 ms to look for devices that are not in use.
    """
    kind = device.split(":")[0]
    torch.default_generator.manual_seed(seed)
    if kind != "cpu":
        torch.get_device_module(kind).manual_seed(seed)


def check_device(device: str) -> None:
    """Raises `UsageError` for an unknown device of PyTorch, or one that is not on this machine."""
    kind, _, number = device.partition(":")
    available = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available or not (kind == "cpu" or device == kind or number.isdecimal()):
        raise UsageError(f"device = {device!r} is not allowed: choose cpu, cuda, cuda:N or mps")
    if not available[kind] or (kind == "cuda" and int(number or 0) >= torch.cuda.device_count()):
        raise UsageError(f"device = {device!r} is not on this machine: choose cpu")

"""The PyTorch learner: any module, any loss, any dataset divided among clients."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import copy
from dataclasses import replace
from itertools import islice
from math import isfinite
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import DivergedError, OffbeatError, UsageError
from offbeat.core.events import ClientId, Metrics, Version
from offbeat.core.features import Feature
from offbeat.core.layout import Layout, frozen_digest
from offbeat.core.learner import (
    NO_INPUTS,
    PERSONAL,
    LocalResult,
    LocalTask,
    TaskControl,
    TaskInputs,
)
from offbeat.core.model import Model, Tensors
from offbeat.core.objective import LocalRun, Objective
from offbeat.data.columns import Columns
from offbeat.data.dataset import Batch, Dataset
from offbeat.data.federated import FederatedData, federate
from offbeat.local.batches import steps_per_epoch
from offbeat.local.copies import copied, shares_tensors
from offbeat.local.criterion import Criterion, Evaluate, Step
from offbeat.local.data_evaluation import DataEvaluation
from offbeat.local.device import DeviceState, check_device, resident
from offbeat.local.errors import check_arguments, check_module, not_finite
from offbeat.local.examples_privacy import (
    ExampleGradients,
    ExamplesPrivacy,
    check_by_example,
    check_examples,
    gradients_by_example,
    sampling_rate,
)
from offbeat.local.fast.cuda_graphs import CapturedGradients, capture_on
from offbeat.local.flat_module import FlatModule
from offbeat.local.gradient_flow import GradientFlow, nothing_to_train
from offbeat.local.initial_checks import check_data, check_personal, warn_of_single_samples
from offbeat.local.logged_once import LoggedOnce
from offbeat.local.losses import Loss
from offbeat.local.misread_scores import ScoreWatch
from offbeat.local.objectives import Plain
from offbeat.local.own_code import is_known, runs_own_code
from offbeat.local.representation import representing
from offbeat.local.running_statistics import estimate_from
from offbeat.local.seeding import generators_kept, seeded
from offbeat.local.session import Parts, Session, checkpoint, restore, result_of
from offbeat.local.steps import take_steps
from offbeat.local.task_batches import Secret, TaskBatches, simulated_secret
from offbeat.local.training import Training
from offbeat.metrics.metrics_by_name import Wanted, higher_is_better, make_metrics

ROOT_TASK = 2**62
"""Number of the server's own training of version 0, for its random streams: no task of a client has it."""


class TorchLearner:
    """Clients that train a PyTorch module on their part of a dataset.

    To train in worker processes, module, data and functions must be picklable: defined at the top level of a
        file, or anywhere in a notebook.

    Args:
        module: A module, whose weights are the initial model, or a function that makes one, whose weights are
            then drawn from the run's seed. Parameters with `requires_grad = False` are frozen: they are not
            trained, and do not travel.
        data: The samples and their partition over the clients.
        training: Optimizer, learning rate, batch size, device.
        loss: loss(output, target), a mean over the batch. None means the output's own loss if it has one,
            else the cross entropy of its scores.
        step: step(module, batch) returns the loss to differentiate, in place of `loss`.
        evaluate: evaluate(module, batch) returns means over the batch by name, or the pair (scores, target)
            for the metrics. None means that these follow from the forms of batch and output.
        metrics: Metrics of an evaluation, beside the loss: names of built-in metrics, or functions and
            metric objects by name. None means the accuracy for classification.
        personal: Patterns such as "head.*" of parameters and buffers that stay at their client: each client
            trains its own (FedPer, FedBN).
        examples: Privacy of each client's examples. None means no privacy of examples.

    Raises:
        UsageError: An argument is of another kind, arguments contradict each other, or the device is not
            available.
    """

    def __init__(
        self,
        module: nn.Module | Callable[[], nn.Module],
        data: FederatedData,
        training: Training = Training(),
        loss: Loss | None = None,
        *,
        step: Step | None = None,
        evaluate: Evaluate | None = None,
        metrics: Wanted | None = None,
        personal: Sequence[str] = (),
        examples: ExamplesPrivacy | None = None,
    ) -> None:
        check_arguments(module, data, {"loss": loss, "step": step, "evaluate": evaluate}, personal)
        self.data, self.training = data, training
        self._module = self._own(module, personal)
        self.criterion = Criterion(loss, step, evaluate, training.class_weights)
        self.metrics, self.personal, self.examples = metrics, tuple(personal), examples
        # An unknown metric is refused before anything is trained.
        make_metrics(metrics or ())
        self._seed, self._warned = 0, False
        self._ready: DeviceState | None = None
        self._root: TorchLearner | None = None
        self._samples = (data.rows.offsets[1:] - data.rows.offsets[:-1]).tolist()
        self._secret: Secret = simulated_secret
        self._warnings = LoggedOnce()
        check_device(training.device)
        if examples is not None:
            check_examples(examples, training, data)
            if examples.epsilon is not None:
                raise UsageError(
                    f"examples.epsilon = {examples.epsilon:g} is a budget for all of a site's runs: leave it "
                    "out in a simulation, or give it to join"
                )

    @staticmethod
    def _own(
        module: nn.Module | Callable[[], nn.Module], personal: Sequence[str]
    ) -> nn.Module | Callable[[], nn.Module]:
        """A copy of a module, which keeps the initial weights; a function as it is.

        Raises:
            UsageError: The module has a tensor, or another part, that cannot be copied.
        """
        if not isinstance(module, nn.Module):
            return module
        # This check names the tensors that cannot be copied.
        Layout.of(module, personal)
        return copied(module)

    @property
    def higher_is_better(self) -> dict[str, bool]:
        """Whether more is better of each of `metrics`."""
        wanted = make_metrics(self.metrics or ())
        return {name: higher_is_better(name, metric) for name, metric in wanted.items()}

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the module and the data on the device: each process prepares its own."""
        return {**self.__dict__, "_ready": None, "_root": None}

    @property
    def module(self) -> nn.Module | Callable[[], nn.Module]:
        """The module with the initial weights, or the function that makes one."""
        return self._module

    def numbered(self, client: ClientId, device: str | None = None) -> "TorchLearner":
        """This learner of one client, which has another number.

        Args:
            client: The client's number, by which its random streams are keyed.
            device: PyTorch device. None means that of the training options.

        Raises:
            UsageError: The learner has several clients, or the device is not available.
        """
        # The copies share the module, which is only read.
        other = copy(self)
        other.data = self.data.numbered(client)
        other.training = replace(self.training, device=device or self.training.device)
        other._samples, other._ready = [0] * client + self._samples, None
        check_device(other.training.device)
        return other

    @property
    def columns(self) -> Columns:
        """Names of the columns of the data's tables, in their order."""
        return self.data.columns

    def with_columns(self, columns: Columns) -> "TorchLearner":
        """This learner, with the columns of its data in another order, as `FederatedData.with_columns`."""
        other = copy(self)
        other.data = self.data.with_columns(columns)
        other._ready = other._root = None
        return self if other.data is self.data else other

    def with_examples_privacy(self, examples: ExamplesPrivacy, secret: Secret) -> "TorchLearner":
        """This learner, with privacy of examples.

        Args:
            examples: The options.
            secret: Gives the 32 bytes of a task, which nobody else may know and no two tasks share.

        Raises:
            UsageError: The training options, or the module, do not go with it.
        """
        other = copy(self)
        other.examples, other._secret = examples, secret
        check_examples(examples, self.training, self.data)
        other._check_by_example(self._make())
        return other

    def _check_by_example(self, module: nn.Module) -> None:
        """Raises `UsageError` for a module or a loss that mixes examples, as the first client's show."""
        rows = max((self.data.client_indices(c)[:3] for c in range(self.data.clients)), key=len)
        gather = self.data.train.gather
        check_by_example(
            module, self.criterion.train, gather(rows), [gather(row) for row in torch.split(rows, 1)]
        )

    @property
    def root_samples(self) -> int:
        """Number of samples of the server's own, on which it can train."""
        return 0 if self.data.root is None else len(self.data.root)

    def train_root(self, model: Model, version: Version, seed: int, steps: int) -> Tensor:
        """Train on the server's own data, with the plain objective and the clients' training options.

        Args:
            model: The global model to train from.
            version: Its version, which with the seed determines the batches.
            seed: The run's seed.
            steps: Local steps.

        Returns:
            Δ_s over the flat values, float32 [values].
        """
        if self._root is None:
            # The root learner has a module of its own, since another thread may be evaluating.
            self._root = copy(self)
            self._root.data = federate([self.data.root])
            self._root._samples, self._root._ready = [self.root_samples], None
        return self._root.train(model, LocalTask(ROOT_TASK + version, 0, version, steps, seed), Plain()).delta

    @property
    def aliases(self) -> tuple[tuple[str, str], ...]:
        """Further names of tensors that have several in the module, each with the first."""
        return self.prepare().bench.layout.aliases

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self._samples)

    @property
    def batch_size(self) -> int:
        """Samples of a batch."""
        return self.training.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether the incomplete batch of each pass is left out."""
        return self.training.drop_last

    def samples(self, client: ClientId) -> int:
        """Number of training samples n_i of a client."""
        return int(self._samples[client])

    def steps_per_epoch(self, client: ClientId) -> int:
        """⌈n_i / batch size⌉, without the incomplete batch where the training drops it."""
        return steps_per_epoch(self.samples(client), self.batch_size, self.drop_last)

    def label_counts(self, client: ClientId) -> list[int] | None:
        """Number of the client's samples of each class; None where there are no classes."""
        return self.data.label_counts(client)

    def initial(self, seed: int) -> Model:
        """The module's weights, or those that its function draws from the seed.

        Raises:
            UsageError: The module has no parameter to train that travels, or a pattern of `personal` matches
                none of its tensors.
        """
        self._seed = seed
        module = self._make()
        if self.examples is not None:
            self._check_by_example(module)
        check_data(self.data, self.criterion, module, self.training.device)
        if not self._warned and self.examples is None:
            self._warned = True
            warn_of_single_samples(self.data, self.training, module)
        model = Model.of(module, self.personal)
        if not model.layout.parameters:
            raise nothing_to_train(module, personal=bool(self.personal))
        check_personal(self.personal, module)
        return model

    def frozen_digest(self, seed: int) -> str:
        """SHA-256 of the parameters that are frozen, which every party must have alike; "" for none."""
        self._seed = seed
        return frozen_digest(self._make())

    def _make(self) -> nn.Module:
        """The module as every party makes it: its weights follow from the run's seed."""
        if isinstance(self._module, nn.Module):
            return self._module
        return check_module(seeded(self._module, self._seed))

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

        Raises:
            UsageError: The module cannot take a batch, or its loss is no scalar.
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

    def try_step(self, base: Model, task: LocalTask, objective: Objective) -> Batch:
        """Take the first step of a task, and keep nothing of it; returns the first samples that it took.

        Raises:
            UsageError: The module cannot take a batch, its loss is no scalar, or a sample is not finite.
        """
        tried: list[Batch] = []

        def noted(numbered: Iterator[tuple[int, Parts]]) -> Iterator[tuple[int, Parts]]:
            for step, parts in numbered:
                tried.extend(part.batch for part in parts)
                yield step, parts

        with self._start(base, task, objective, NO_INPUTS) as session, suppress(DivergedError):
            self._steps(session, noted(session.batches))
        return tried[0]

    @contextmanager
    def _start(
        self, base: Model, task: LocalTask, objective: Objective, inputs: TaskInputs
    ) -> Iterator[Session]:
        """Begin a session: load the model, prepare objective and optimizer."""
        self._seed = task.seed
        ready, training = self.prepare(), self.training
        bench, own_code = ready.bench, ready.own_code or not is_known(objective)
        anchor = bench.load(base)
        bench.restore_personal(inputs.state)
        bench.train()
        lr = training.rate(task.base, task.lr_factor)
        with (
            generators_kept(own_code=own_code),
            representing(bench, Feature.REPRESENTATIONS in objective.requires) as represent,
        ):
            run = LocalRun(
                bench.parameters,
                anchor,
                bench.buffers,
                state={
                    name: tensor.to(training.device, non_blocking=True)
                    for name, tensor in inputs.state.items()
                    if not name.startswith(PERSONAL)
                },
                lr=lr,
                steps=task.steps,
                represent=represent,
                integers=bench.integers,
            )
            run.shared = run.shaped(base.shared.to(training.device))
            batches, scaler = enumerate(self._batches(task, own_code=own_code)), training.scaler()
            total = torch.zeros((), device=training.device)
            objective.begin(run)
            optimizer = training.build(bench.trainable, lr)
            per_epoch = self.steps_per_epoch(task.client)
            session = Session(
                bench, base, task, inputs, training, self.criterion, per_epoch, objective, optimizer, run,
                total, batches, scaler, own_code=own_code, scores=ready.scores,
            )  # fmt: skip
            if self.examples is None:
                session.flow, session.captured = ready.flow, ready.captured
                yield session
            else:
                self.examples.check_objective(objective)
                samples, secret = self.samples(task.client), self._secret(task)
                expected = sampling_rate(self.batch_size, samples) * samples
                session.examples = ExampleGradients(self.examples, bench.trainable, expected, secret)
                with gradients_by_example(bench.module):
                    yield session

    def _steps(
        self, session: Session, batches: Iterator[tuple[int, Parts]], watch: TaskControl | None = None
    ) -> None:
        """Do the steps of numbered batches. Raises for losses that are not finite, as `not_finite` says."""
        take_steps(session, batches, watch)
        # On a GPU, this is the only wait of the task.
        session.summed = float(session.total)
        if not isfinite(session.summed):
            first = next((n for n, loss in session.losses if not isfinite(loss)), session.losses[-1][0])
            raise self.not_finite(session.task, first, session.base)

    def not_finite(self, task: LocalTask, step: int, base: Model) -> OffbeatError:
        """The error of a loss that is not finite at a task's local step, from 0, with its cause."""
        ready, drawn = self.prepare(), self._task_batches
        seen = list(islice(drawn.rows(ready, task), step + 1))
        parts = drawn.parts(ready, seen[-1], task.client)
        ignored = any(self.criterion.ignores_all(part.batch) for part in parts)
        return not_finite(task, step, base, self.data, seen, ignored)

    def _finish(self, session: Session) -> LocalResult:
        if session.watches_gradients:
            self.prepare().flow = None
        self.prepare().scores = None
        return result_of(session)

    @property
    def _task_batches(self) -> TaskBatches:
        return TaskBatches(self.data, self.training, self.criterion, self.examples, self._secret)

    def _batches(self, task: LocalTask, *, own_code: bool = False) -> Iterator[Parts]:
        """Start the streams of the task and its layers; iterate over its batches, on the device."""
        return self._task_batches.of_task(self.prepare(), task, own_code=own_code)

    @property
    def _evaluation(self) -> DataEvaluation:
        return DataEvaluation(self.data, self.training, self.criterion, self.metrics, self._warnings)

    def evaluate(self, model: Model) -> Metrics:
        """Evaluate a model on the common test set: the mean "loss", and the metrics.

        Raises:
            UsageError: There is no test set, or the module cannot take its batches.
        """
        return self._evaluation.on_test_set(self.prepare(), model)

    def held_out(self, client: ClientId) -> int:
        """Number of samples that a client holds out."""
        return 0 if self.data.held_out is None else self.data.held_out.count(client)

    def evaluate_client(
        self, model: Model, client: ClientId, inputs: TaskInputs = NO_INPUTS
    ) -> tuple[int, Metrics]:
        """Evaluate a model on a client's held-out samples, with the client's own tensors.

        Args:
            model: A global model.
            client: The client.
            inputs: The client's state.

        Returns:
            Number of samples, and the metrics; 0 and none where the client holds out nothing.

        Raises:
            UsageError: The client is unknown, or the module cannot take its batches.
        """
        held = self.data.held_out
        if held is None or not held.count(client):
            return 0, {}
        rows = held.client(client)
        return len(rows), self._evaluation.at_client(self.prepare(), model, client, rows, inputs)

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
        return estimate_from(self.data, self.prepare().bench, model, seed, self.training.device)

    def prepare(self) -> DeviceState:
        """Prepare module and train set on their device, at first use in each process.

        A module of which not all travels is made anew for a run of another seed, by which a function may draw
        the rest.
        """
        if self._ready is None or self._ready.seed not in (None, self._seed):
            device, train, module = self.training.device, self.data.train, self._make()
            fixed = isinstance(self._module, nn.Module) or Layout.of(module) == Layout.of(
                module, self.personal
            )
            fixed = fixed and all(parameter.requires_grad for parameter in module.parameters())
            bench = FlatModule(self._trainable(module), device, self.training.channels_last, self.personal)
            there = resident(train, bench, device) if isinstance(train, Dataset) else train
            flow = GradientFlow(bench.module, bench.trained, self.criterion.loss)
            capture = capture_on(device) if self.training.cuda_graph else None
            captured = CapturedGradients(bench, capture) if capture is not None else None
            own_code = runs_own_code(bench.module, (train, self.data.test), self._functions)
            self._ready = DeviceState(
                bench,
                there,
                device,
                None if fixed else self._seed,
                flow,
                ScoreWatch(self._warnings),
                captured,
                own_code,
            )
            self._ready.keep(train, there)
        return self._ready

    @property
    def _functions(self) -> list[Any]:
        """What is called in a task or an evaluation, beside the module and the data."""
        criterion, metrics = self.criterion, self.metrics
        own = [criterion.loss, criterion.step, criterion.evaluate, self.training.optimizer]
        return [*own, *(metrics.values() if isinstance(metrics, Mapping) else ())]

    def _trainable(self, module: nn.Module) -> nn.Module:
        """A module to train: a copy, or a new one from the function where it cannot be copied.

        Raises:
            UsageError: It cannot be copied, and the function gives the same tensors each time.
        """
        try:
            return copied(module)
        except UsageError:
            if isinstance(self._module, nn.Module) or shares_tensors(module, self._make()):
                raise
            return module

"""A task as a user's own training loop sees it: a model, steps, an update."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from functools import cached_property
from itertools import count
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from offbeat.core.errors import RunError, UsageError
from offbeat.core.features import Feature
from offbeat.core.learner import LocalResult, LocalTask, MergePoint, TaskControl, TaskInputs
from offbeat.core.metric_names import check_metric_names
from offbeat.core.model import Arrays, Model, Tensors, to_arrays
from offbeat.core.objective import FreshModel, LocalRun, Objective
from offbeat.core.streams import Purpose, stream
from offbeat.local.batches import batches
from offbeat.local.loop_model import LoopModel, Named, named_tensors
from offbeat.local.objective_hooks import check_called, check_reach, hooks_of
from offbeat.local.representation import representing
from offbeat.local.seeding import seed_generators

T = TypeVar("T")
OWN = "loop."
"""Start of the names, in a client's state, of tensors that a loop itself keeps there."""


class ClientTask:
    """A task of one client, for a training loop that is not Offbeat's.

    The loop takes the model (`load_into`, or `arrays` with or without `bind`), does a step of any kind for
    each item of `steps`, and returns the trained model with `submit`. `penalized` and `correct_gradients`
    contain what the algorithm adds to a local step. With an algorithm that adds nothing, they change
    nothing.

    Args:
        base: The model to train from.
        task: The task.
        objective: The algorithm's local objective.
        inputs: The client's state, and the fresh model of `task.fresh`.
        watch: Decides between steps whether to stop, and which model to merge; replaces `task.fresh`.
        samples: Number of the client's training samples.
        batch_size: Samples of a batch of `batches`.
        warn: Called with a sentence that the user should read once.
        check: Called with a module that the loop loads; raises `UsageError` for one that is not the run's.

    Attributes:
        client: Number of the client, from 0.
        version: Version of the model to train from.
        number: Number of the task in the run.
        seed: The run's seed.
        assigned: Local steps to do.
        done: Local steps done so far.
        samples: Number of the client's training samples n_i.
        state: Tensors by name that the loop keeps between tasks. They stay with the client, and a lost task
            does not change them.
    """

    def __init__(
        self,
        base: Model,
        task: LocalTask,
        objective: Objective,
        inputs: TaskInputs,
        watch: TaskControl | None,
        samples: int,
        batch_size: int,
        warn: Callable[[str], None],
        check: Callable[[nn.Module], None],
        drop_last: bool = False,
    ) -> None:
        self.client, self.version, self.number, self.seed = task.client, task.base, task.task, task.seed
        self.assigned, self.done, self.samples = task.steps, 0, samples
        self.state = {n.removeprefix(OWN): t for n, t in inputs.state.items() if n.startswith(OWN)}
        self._base, self._task, self._objective, self._inputs = base, task, objective, inputs
        self._watch, self._batch_size, self._warn, self._check = watch, batch_size, warn, check
        self._drop_last = drop_last
        self._model: LoopModel | None = None
        self._run: LocalRun
        self._hooks = ExitStack()
        self._recalled, self._factor_known = False, task.lr_factor == 1.0
        self._ended_by: Exception | None = None
        self._called, self._adapts = set[str](), False
        self._losses: Tensor | None = None
        self._result: LocalResult | None = None

    # ---- the task ----

    @property
    def lr_factor(self) -> float:
        """Factor of the learning rate in this task, which the algorithm chooses; mostly 1."""
        self._factor_known = True
        return self._task.lr_factor

    @property
    def recalled(self) -> bool:
        """Whether the task has ended early, because the server wants its update now."""
        return self._recalled

    @property
    def cancelled(self) -> bool:
        """Whether the task has ended and its update is not needed any more: then `submit` does nothing."""
        return self._ended_by is not None

    @cached_property
    def rng(self) -> np.random.Generator:
        """Random generator of this task, for whatever the loop draws: the same numbers in every process.

        The global generators of PyTorch, NumPy and Python are seeded for the task too, before its first step.
        """
        return stream(self.seed, Purpose.LOOP, self.client, self.number)

    def batches(self, samples: int | None = None, batch_size: int | None = None) -> Iterator[Tensor]:
        """Positions of the client's samples, batch after batch, just as `TorchLearner` draws them.

        Args:
            samples: Number of the client's samples. None means `self.samples`.
            batch_size: Samples of a batch. None means the learner's.

        Yields:
            Positions, int64 [batch], for each assigned step: of reshuffled passes over the samples.
        """
        rng = stream(self.seed, Purpose.TRAIN, self.client, self.number)
        samples = self.samples if samples is None else samples
        size = self._batch_size if batch_size is None else batch_size
        return batches(rng, samples, size, self.assigned, self._drop_last)

    # ---- the model ----

    def load_into(self, module: nn.Module) -> nn.Module:
        """Write the model into a module, put it in training mode, and train it from here on.

        The module is where `penalized`, `correct_gradients`, merges and `submit` find the weights. Tensors of
        it that are no part of the model, such as frozen ones, stay as they are.

        Raises:
            UsageError: The module's tensors are not the model's; it names the first that differs.
        """
        loaded = LoopModel(self._base.layout, module)
        self._check(module)
        model = self._bind(loaded)
        model.bench.train()
        return module

    def bind(self, read: Callable[[], Named], write: Callable[[Arrays], object]) -> None:
        """Train a model that is no PyTorch module, through two functions of the loop's.

        Args:
            read: Gives the loop's present weights by name, as arrays or tensors.
            write: Takes arrays by name into the loop's model. It is called here, and at each merge.
        """
        self._bind(LoopModel(self._base.layout, read=read, write=write))

    def state_dict(self) -> Tensors:
        """The model's tensors by name, copied, as `nn.Module.load_state_dict` takes them."""
        model = self._model_or_own()
        return model.bench.layout.with_aliases(self._base.layout.with_aliases(model.copies()))

    def arrays(self) -> Arrays:
        """The model's tensors by their first names as NumPy arrays, copied."""
        return to_arrays(self._model_or_own().copies())

    # ---- the steps ----

    def steps(
        self, batches: Iterable[T] | None = None, *, loss: Callable[[T], Tensor] | None = None
    ) -> Iterator[T]:
        """Iterate over the local steps: as many as assigned, fewer if the task is recalled or cancelled.

        A fresh model that the server sends in mid-task is merged into the module, or through the functions of
        `bind`, between two steps.

        Args:
            batches: Gives an item for each step; begun again where it ends, as a `DataLoader` is after an
                epoch. None means the numbers of the steps.
            loss: The loss of a batch with the present weights. With it the weights of FedASMU's merges adapt,
                as the paper has it; without it they are fixed.

        Yields:
            The item of the step to be done.

        Raises:
            UsageError: The algorithm needs a handle that the loop does not call, or `batches` gives none.
        """
        model = self._model_or_own()
        check_reach(self._objective, reachable=model.reachable, is_module=model.is_module)
        # Before the first step the stream is seeded again: draws for making a module change nothing.
        if not self.done:
            self.seed_generators()
        nothing = object()
        items: Iterator[Any] = count(self.done) if batches is None else again(batches)
        while self.done < self.assigned and not self._stops():
            batch: Any = next(items, nothing)
            if batch is nothing:
                raise UsageError(
                    f"batches ended after {self.done} of {self.assigned} steps: give one for each"
                )
            self._adapts = self._merge(model, batch, loss)
            if self.cancelled:
                return
            self._called.clear()
            yield batch
            self.done += 1
            check_called(self._objective, self._called, merged=self._adapts)

    def penalized(self, loss: Tensor) -> Tensor:
        """The loss to differentiate: the batch's loss with the term that the algorithm adds, as MOON does.

        Called once a step. The mean of the losses is the task's metric "loss".

        Args:
            loss: The loss of the step's batch, a scalar.
        """
        run, _ = self._bound("penalized")
        self._called.add("penalized")
        kept = loss.detach()
        self._losses = (torch.zeros((), device=kept.device) if self._losses is None else self._losses) + kept
        return self._objective.loss(run, loss)

    def correct_gradients(self, gradients: Mapping[str, Any] | None = None) -> Arrays:
        """Change the gradients as the algorithm does, such as FedProx, before the optimizer's step.

        Args:
            gradients: Gradients of the parameters by name, where the model is no module. None means those of
                the bound module's parameters, which are changed in place.

        Returns:
            The corrected `gradients`; none for a module.

        Raises:
            UsageError: Nothing is bound, or a parameter has no gradient.
        """
        run, model = self._bound("correct_gradients")
        self._called.add("correct_gradients")
        if gradients is None and model.is_module:
            self._objective.adjust(run)
            return {}
        model.pull()
        parameters = model.parameters()
        given = named_tensors(gradients or {}, [entry for entry, _ in parameters], "the gradient")
        for entry, parameter in parameters:
            parameter.grad = given[entry.name].to(parameter.dtype, copy=True)
        self._objective.adjust(run)
        return to_arrays({entry.name: p.grad for entry, p in parameters if p.grad is not None})

    def submit(
        self,
        trained: Named | None = None,
        *,
        samples: int | None = None,
        metrics: Mapping[str, float] | None = None,
        lr: float | None = None,
    ) -> None:
        """Hand in the trained weights; once in a task, after its last step.

        Args:
            trained: The model's tensors or arrays, by name or in the order of `arrays`. None means what is in
                the bound module, or what `read` gives.
            samples: Number of samples trained on, to be checked.
            metrics: Numbers to report, by name.
            lr: Learning rate of the local steps, which some algorithms divide by.

        Raises:
            UsageError: What is handed in is not what was assigned.
        """
        if self.cancelled:
            return
        self._check_submission(samples, lr, has_model=trained is not None)
        model = self._model_or_own()
        if trained is not None:
            model.set(trained)
        else:
            model.pull()
        run = self._run
        run.steps, run.lr = self.done, lr or 0.0
        objective_metrics = self._objective.end(run)
        numbers = {} if self._losses is None else {"loss": float(self._losses) / max(1, self.done)}
        numbers |= {name: _number(name, value) for name, value in (metrics or {}).items()}
        delta, integers = model.bench.delta(self._base)
        state = model.bench.to_cpu(run.state)
        state |= {
            OWN + name: torch.as_tensor(kept).detach().to("cpu", copy=True)
            for name, kept in self.state.items()
        }
        shared = run.shared_delta.cpu() if run.shared_delta is not None else None
        self._result = LocalResult(delta, integers, {**numbers, **objective_metrics}, run.lr, shared, state)

    # ---- for the learner ----

    def result(self) -> LocalResult:
        """The submitted result.

        Raises:
            RunError: Nothing was, or it is not finite; a task that was cancelled raises what ended it.
        """
        if self._ended_by is not None:
            raise self._ended_by
        if self._result is None:
            raise RunError(
                f"the loop ended task {self.number} of client {self.client} without an update: call "
                "task.submit after its last step"
            )
        if not bool(self._result.delta.isfinite().all()):
            raise RunError(
                f"the loop's update in task {self.number} of client {self.client} has values that are not "
                "finite: its training has diverged; give a smaller learning rate, or look for NaN in the data"
            )
        return self._result

    def cancel(self, error: Exception) -> None:
        """End the task without a result, at its next step."""
        self._ended_by = self._ended_by or error

    def seed_generators(self) -> None:
        """Seed the global generators, from which layers and data sets draw, from the task's own stream."""
        rng = stream(self.seed, Purpose.LAYERS, self.client, self.number)
        device = self._model.bench.device if self._model else "cpu"
        seed_generators(int(rng.integers(2**63)), device, own_code=True)

    def close(self) -> None:
        """Take the hooks off the loop's module."""
        self._hooks.close()

    def _bind(self, model: LoopModel) -> LoopModel:
        """Load the base into a model, and begin the objective on it."""
        if self.done:
            raise UsageError("a task's model is bound before its first step: call task.load_into earlier")
        self._hooks.close()
        bench, base, wanted = model.bench, self._base, Feature.REPRESENTATIONS in self._objective.requires
        represent = self._hooks.enter_context(representing(bench, wanted and model.is_module))
        anchor = bench.load(base)
        state = {n: t.to(bench.device) for n, t in self._inputs.state.items() if not n.startswith(OWN)}
        run = self._run = LocalRun(
            bench.parameters, anchor, bench.buffers, state=state, steps=self.assigned, represent=represent,
            integers=bench.integers,
        )  # fmt: skip
        run.shared = run.shaped(base.shared.to(bench.device))
        self._objective.begin(run)
        model.push()
        self._model = model
        return model

    def _model_or_own(self) -> LoopModel:
        """The bound model; tensors of the task's own where the loop has bound none."""
        return self._model or self._bind(LoopModel(self._base.layout))

    def _bound(self, handle: str) -> tuple[LocalRun, LoopModel]:
        if self._model is None or not self._model.reachable:
            raise UsageError(
                f"task.{handle} needs the weights: call task.load_into(module), or task.bind, before"
            )
        return self._run, self._model

    def _stops(self) -> bool:
        """Whether the task ends here, of its own or because it is cancelled."""
        try:
            self._recalled = self._watch is not None and self._watch.stops(self.done)
        except Exception as error:
            # The error ends the task here, and `result` raises it.
            self.cancel(error)
        return self._recalled or self.cancelled

    def _sent(self) -> tuple[MergePoint, Model] | None:
        """The fresh model to merge now; None means none."""
        if self._watch is not None:
            try:
                return self._watch.fresh(self.done)
            except Exception as error:
                # The error ends the task here, and `result` raises it.
                self.cancel(error)
                return None
        planned, model = self._task.fresh, self._inputs.fresh
        if planned is None or model is None or planned.after != self.done:
            return None
        return planned, model

    def _merge(self, model: LoopModel, batch: T, loss: Callable[[T], Tensor] | None) -> bool:
        """Merge a fresh model, if one has come; whether the step that follows adapts the merge's weights."""
        sent = self._sent()
        if sent is None:
            return False
        point, fresh = sent
        values = model.bench.floats(fresh.values.to(model.bench.device))
        received = FreshModel(values, point.clock, point.version - self.version)
        if loss is None:
            self._warn("task.steps has no loss function: fresh models are merged with fixed weights")
        model.pull()
        self._objective.merge(self._run, received, None if loss is None else lambda: loss(batch))
        model.push()
        return loss is not None

    # ---- refusals ----

    def _check_submission(self, samples: int | None, lr: float | None, *, has_model: bool) -> None:
        if self._result is not None:
            why = "is submitted already: submit once"
        elif self.done != self.assigned and not self._recalled:
            why = (
                f"has {self.assigned} steps, and the loop did {self.done}: do each step that task.steps gives"
            )
        elif samples not in (None, self.samples):
            why = (
                f"is of a client with {self.samples} samples, by which algorithms weigh it, and the loop "
                f"submits {samples}: make the learner with that number"
            )
        elif not self._factor_known:
            why = (
                f"has lr_factor = {self._task.lr_factor:g}, which the loop did not read: multiply the "
                "learning rate by task.lr_factor"
            )
        elif not has_model and (self._model is None or not self._model.reachable):
            why = "has no model bound: give submit the tensors that the loop trained"
        elif lr is None and (changing := hooks_of(self._objective, merged=True)):
            why = f"is of {next(iter(changing.values()))}, which needs the learning rate: give submit lr"
        else:
            return
        raise UsageError(f"task {self.number} {why}")


def again(batches: Iterable[T]) -> Iterator[T]:
    """Items of a collection, again from its start where it ends; an iterator's end is the end."""
    done = -1
    while done:
        done = 0
        for done, batch in enumerate(batches, 1):  # noqa: B007
            yield batch


def _number(name: str, value: Any) -> float:
    check_metric_names([name])
    try:
        return float(value)
    except (TypeError, ValueError):
        raise UsageError(f"metric {name!r} is a {type(value).__name__}: submit numbers") from None

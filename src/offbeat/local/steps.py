"""The local steps of a task: gradients of a batch, the objective's changes to them, an optimizer step."""

from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn

from offbeat.core.errors import UsageError
from offbeat.core.learner import MergePoint, TaskControl
from offbeat.core.model import Model
from offbeat.core.objective import FreshModel
from offbeat.data.dataset import Batch
from offbeat.local.errors import unfit_batch
from offbeat.local.examples_privacy import ExampleGradients
from offbeat.local.fast.cuda_graphs import CapturedGradients
from offbeat.local.gradient_flow import DETACHED
from offbeat.local.objective_hooks import hooks_of
from offbeat.local.session import Parts, Session
from offbeat.local.sparse_gradients import make_dense, takes_sparse


def take_steps(
    session: Session, batches: Iterator[tuple[int, Parts]], watch: TaskControl | None = None
) -> None:
    """Train on numbered batches, and merge a fresh model where the task or `watch` says so.

    Args:
        session: The task in training.
        batches: Its batches, each with the number of its step.
        watch: Decides between steps whether to stop, and which model to merge; replaces the task's merge.

    Raises:
        UsageError: The module cannot take a batch, its loss is no scalar, the optimizer cannot step, or
            gradients are off.
    """
    if not torch.is_grad_enabled():
        raise UsageError(
            "gradients are off here, so that nothing can be trained: run outside of torch.no_grad and "
            "torch.inference_mode, and call torch.set_grad_enabled(True)"
        )
    dense = session.training.clip_norm is not None or not takes_sparse(session.optimizer)
    backward = _backward_of(session, merged=False)
    for step, parts in batches:
        if watch is not None and watch.stops(step):
            session.run.steps = step
            break
        merging = watch.fresh(step) if watch is not None else _planned_merge(session, step)
        if merging is not None:
            _merge(session, *merging, parts)
            backward = _backward_of(session, merged=True)
        backward(session, step, parts)
        if dense:
            make_dense(session.bench.trainable)
        session.objective.adjust(session.run)
        _optimize(session, step)


Backward = Callable[[Session, int, Parts], None]
"""backward(session, step, parts): leave the gradients of a batch at the parameters, and add up its loss."""


def _backward_of(session: Session, *, merged: bool) -> Backward:
    """How the gradients of a task's next steps are made, with a fresh model merged before them or without."""
    if session.examples is not None:
        return partial(_backward_by_example, session.examples)
    if session.captured is None or session.flow is not None or session.scaler is not None:
        return _backward
    # What another loss computes with, and what an optimizer of the user's keeps, may differ in each task.
    plain = "loss" not in hooks_of(session.objective, merged=merged)
    if plain and isinstance(session.training.optimizer, str):
        return partial(_backward_captured, session.captured)
    return _backward


def _backward_captured(captured: CapturedGradients, session: Session, step: int, parts: Parts) -> None:
    """The gradients of a batch in one part by a CUDA graph, those of any other as ever."""
    part = parts[0]
    if len(parts) > 1 or not (part.resident or captured.takes(part.batch)):
        _backward(session, step, parts)
        return
    if part.resident:
        # The graph selects the samples too.
        loss = captured.of(part.rows, lambda rows: _loss(session, part.read(rows)))
    else:
        loss = captured.of(part.batch, partial(_loss, session))
    loss = loss.clone()
    session.total += loss
    session.losses.append((step, loss))


def _backward(session: Session, step: int, parts: Parts) -> None:
    """Add up the gradients of a batch's parts."""
    session.optimizer.zero_grad()
    scaler = session.scaler
    for part in parts:
        loss, share = _loss(session, part.batch), part.share
        if session.flow is not None:
            session.flow.watch(loss)
        adapted = session.objective.loss(session.run, loss)
        if share != 1.0:
            loss, adapted = loss * share, adapted * share
        (adapted if scaler is None else scaler.scale(adapted)).backward()  # type: ignore[no-untyped-call]
        loss = loss.detach()
        session.total += loss
        session.losses.append((step, loss))
    if session.flow is not None:
        session.flow.reached()
    if scaler is not None:
        scaler.unscale_(session.optimizer)  # type: ignore[arg-type]


def _backward_by_example(examples: ExampleGradients, session: Session, step: int, parts: Parts) -> None:
    """The clipped gradients of a batch's examples and their noise; of no example it is noise alone.

    A loss that is not finite ends nothing, as that would tell of one example: such ones have gradients of 0.
    """
    examples.begin(step)
    for part in parts:
        loss = _loss(session, part.batch)
        loss.backward()  # type: ignore[no-untyped-call]
        examples.add()
        session.total += (loss.detach() * part.share).nan_to_num(0.0, 0.0, 0.0)
        # Finite losses too can have a sum that is not finite.
        session.total.nan_to_num_()
    examples.end()


def _optimize(session: Session, step: int) -> None:
    """Take one step of the optimizer, with the gradient clipped and the rate of this step."""
    training, optimizer, scaler = session.training, session.optimizer, session.scaler
    if training.clip_norm is not None:
        nn.utils.clip_grad_norm_(session.bench.trainable, training.clip_norm)
    if training.decay_per != "version":
        factor = training.factor(step, session.per_epoch)
        for group in optimizer.param_groups:
            group["lr"] = group.setdefault("initial_lr", group["lr"]) * factor
        session.factors.append(factor)
    try:
        if scaler is None:
            optimizer.step()
        else:
            scaler.step(optimizer)  # type: ignore[arg-type]
            scaler.update()
    except torch.OutOfMemoryError:
        raise
    except (TypeError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"{type(optimizer).__name__} cannot take a step: {error}; choose another optimizer"
        ) from error


def _loss(session: Session, batch: Batch) -> Tensor:
    """The loss of a batch. Raises `UsageError` where the module or the loss cannot take it."""
    module = session.bench.module
    try:
        with session.training.autocast():
            loss = session.criterion.train(module, batch, session.scores)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        raise unfit_batch(f"client {session.task.client}", module, "trained", batch, error) from error
    if isinstance(loss, Tensor) and not loss.ndim:
        if loss.requires_grad or not torch.is_grad_enabled():
            return loss
        told = DETACHED
    elif isinstance(loss, Tensor):
        told = f"the loss has shape {list(loss.shape)}, and must be a scalar tensor: take its mean"
    else:
        told = f"the loss is a {type(loss).__name__}, and must be a scalar tensor"
    raise unfit_batch(f"client {session.task.client}", module, "trained", batch, told)


def _planned_merge(session: Session, step: int) -> tuple[MergePoint, Model] | None:
    """The merge of a task after `step` steps; None means none."""
    fresh, model = session.task.fresh, session.inputs.fresh
    if fresh is None or step != fresh.after:
        return None
    assert model is not None
    return fresh, model


def _merge(session: Session, fresh: MergePoint, model: Model, parts: Parts) -> None:
    """Let the objective merge a fresh model; `parts` is the next batch."""
    bench, run = session.bench, session.run
    values = bench.floats(model.values.to(session.training.device))
    received = FreshModel(values, fresh.clock, fresh.version - session.task.base)

    def loss() -> Tensor:
        losses = [_loss(session, part.batch) * part.share for part in parts]
        return losses[0] if len(losses) == 1 else torch.stack(losses).sum()

    session.objective.merge(run, received, loss)

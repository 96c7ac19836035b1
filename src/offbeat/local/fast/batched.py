"""Training tasks of many clients together, step by step.

Each task's batches come from its own stream, so it is the training that `TorchLearner.train` does, but for
the order in which numbers are added: results agree up to rounding. A client's learning rate and the size of
its batch are in the weights of its samples' losses, so one step serves clients at different rates.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from offbeat.core.buffers import unwrap_buffers
from offbeat.core.errors import UsageError
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.core.model import Model
from offbeat.core.objective import Objective
from offbeat.core.streams import Purpose, StreamCursor
from offbeat.data.dataset import Dataset, to_device
from offbeat.local.batches import batch_table
from offbeat.local.copies import copied
from offbeat.local.device import full_precision
from offbeat.local.errors import unfit_batch
from offbeat.local.fast.batched_dropout import undrawn_dropout, without_dropout
from offbeat.local.fast.batched_module import ALIGNED, BatchedModule, padded_samples
from offbeat.local.fast.batched_norm import BATCH_NORM
from offbeat.local.fast.batched_optimizers import ADAM_OPTIONS, batched_optimizer
from offbeat.local.gradient_flow import DETACHED, GradientFlow
from offbeat.local.losses import Loss
from offbeat.local.objectives import Plain, Proximal
from offbeat.local.sparse_gradients import make_dense
from offbeat.local.targets import check_targets, ignored_label, kind_of_targets
from offbeat.local.torch_learner import TorchLearner
from offbeat.local.training import Training

BatchedTask = tuple[LocalTask, Model]

_ROUNDING = 1e-2
_CLIENTS = "the clients together"
_COPIED = "modules that can be copied"
_SAMPLES = "modules and losses that treat each sample by itself, along the first dimension"


class BatchedTrainer:
    """Trains up to `clients` tasks of a learner at a time. Raises `UsageError` where that cannot be done."""

    def __init__(self, learner: TorchLearner, objective: Objective, clients: int) -> None:
        own, objective = objective, unwrap_buffers(objective)
        _check(learner, objective)
        if own is not objective and learner.prepare().bench.buffers:
            raise _refused("with buffers = 'local' or 'recompute'", "with follow and mean")
        with full_precision(learner.training.device):
            self._y = _probe(learner)
        self._learner = learner
        self._training, self._data, self._ready = learner.training, learner.data, learner.prepare()
        self._mu = objective.mu if isinstance(objective, Proximal) else 0.0
        self._loss = with_gradient(loss_of(learner))
        self._stacked = batched_module(learner, clients)
        self._x, _ = tensors_of(learner)
        # Of images in channels_last, rows are selected in the order that they have in memory.
        self._last = self._x.ndim == 4 and not self._x.is_contiguous()
        x, module = self._x, self._ready.bench.module
        some = self._ready.bench.laid_out(x[torch.arange(ALIGNED) % len(x)])
        self._size = learner.training.batch_size
        if self._ready.device == "cpu":
            with torch.random.fork_rng(devices=[]):
                self._size = padded_samples(module, some, self._size)
        if self._last:
            self._x = x = x.permute(0, 2, 3, 1)
        self._samples = x.new_empty(clients * self._size, *x.shape[1:])

    def train(self, pairs: Sequence[BatchedTask]) -> list[LocalResult]:
        """The tasks' results in their order; none of them merges a model in mid-task."""
        # With the longest tasks first, those that are done are always the last ones.
        longest = sorted(pairs, key=lambda pair: -pair[0].steps)
        results = dict(zip((task.task for task, _ in longest), self._train(longest), strict=True))
        return [results[task.task] for task, _ in pairs]

    def _train(self, pairs: Sequence[BatchedTask]) -> list[LocalResult]:
        stacked, training = self._stacked, self._training
        tasks, bases = zip(*pairs, strict=True)
        plan = self._plan(tasks)
        stacked.load([base.values for base in bases])
        rates = [training.rate(task.base, task.lr_factor) for task in tasks]
        rate = to_device(torch.tensor(rates), training.device)
        optimizer = batched_optimizer(training, rate, self._mu, stacked.slots)
        stacked.generators = self._generators(tasks)
        losses = torch.zeros_like(plan.weights)
        rows, labels, kept = plan.steps(plan.rows), plan.steps(self._y[plan.rows]), plan.steps(losses)
        scaled = plan.steps(plan.weights * rate.unsqueeze(1) if optimizer.takes_rate else plan.weights)
        inputs = {active: self._samples[: active * self._size] for active in set(plan.active)}
        step_losses = []
        for step, active in enumerate(plan.active):
            stacked.activate(active, plan.samples[step], plan.weights[step, :active])
            x = torch.index_select(self._x, 0, rows[step], out=inputs[active])
            output = self._output(x.permute(0, 3, 1, 2) if self._last else x, labels[step])
            each, gradient = self._loss(output.detach().float(), labels[step], scaled[step])
            stacked.backward(output, gradient.to(output.dtype))
            optimizer.step(stacked.gradients())
            step_losses.append(each)
        torch._foreach_copy_(kept, step_losses)
        sums = (losses * plan.weights).sum(2).cumsum(0)
        total = sums[-1].cpu().tolist()
        for i, (task, base) in enumerate(pairs):
            if not isfinite(total[i]):
                raise self._learner.not_finite(task, int(sums[:, i].isfinite().sum()), base)
        ends = [stacked.flat(i) for i in range(len(tasks))]
        # On a GPU, the models of all clients come back together.
        if bases[0].values.device != ends[0].device:
            ends = list(torch.stack(ends).to(bases[0].values.device))
        return [
            # The integers are the counters of batch norm, one a layer, which each step passes once.
            LocalResult(end.sub_(base.values), base.integers + task.steps, {"loss": loss / task.steps}, lr)
            for end, task, base, loss, lr in zip(ends, tasks, bases, total, rates, strict=True)
        ]

    def _output(self, x: Tensor, labels: Tensor) -> Tensor:
        """The module's output. Raises `UsageError` where a batch is too small for a layer."""
        try:
            with self._training.autocast():
                return self._stacked(self._ready.bench.laid_out(x))
        except ValueError as error:
            module = self._ready.bench.module
            raise unfit_batch(_CLIENTS, module, "trained", (x, labels), error) from error

    def _generators(self, tasks: Sequence[LocalTask]) -> list[torch.Generator]:
        """Each task's generator, from which its layers draw as they do where it is trained alone."""
        if not self._stacked.draws:
            return []
        streams = (
            self._ready.streams(task.seed).at(Purpose.LAYERS, task.client, task.task) for task in tasks
        )
        device = self._training.device
        return [torch.Generator(device).manual_seed(int(own.integers(2**63))) for own in streams]

    def _plan(self, tasks: Sequence[LocalTask]) -> "_BatchPlan":
        """Which samples each step of each task sees; tasks come with the longest first."""
        size, steps = self._training.batch_size, tasks[0].steps
        positions = np.full((steps, len(tasks), self._size), -1, dtype=np.int64)
        rows = np.empty_like(positions)
        draws = {seed: StreamCursor(seed) for seed in {task.seed for task in tasks}}
        for i, task in enumerate(tasks):
            indices = self._data.client_indices(task.client).numpy()
            generator = draws[task.seed].at(Purpose.TRAIN, task.client, task.task)
            positions[: task.steps, i, :size] = batch_table(
                generator, len(indices), size, task.steps, self._training.drop_last
            )
            # A place without a sample has the position −1, the client's last sample, with the weight 0.
            rows[:, i] = indices[positions[:, i]]
        filled = positions >= 0
        weights = (filled / np.maximum(filled.sum(2, keepdims=True), 1)).astype(np.float32)
        active = [sum(task.steps > step for task in tasks) for step in range(steps)]
        device = self._training.device
        return _BatchPlan(
            to_device(torch.from_numpy(rows), device),
            to_device(torch.from_numpy(weights), device),
            active,
            filled.sum(2).tolist(),
        )


@dataclass(frozen=True)
class _BatchPlan:
    """Samples as `rows` of the train set, and the `weights` of their losses, both [steps, tasks, samples].

    A task's weights sum to one at each of its steps. `active` is how many tasks are at work at each step, and
    `samples` how many samples of each task have a weight there.
    """

    rows: Tensor
    weights: Tensor
    active: list[int]
    samples: list[list[int]]

    def steps(self, table: Tensor) -> list[Tensor]:
        """Each step's part of a table [steps, tasks, samples, ...] for the tasks at work, [samples, ...]."""
        _, tasks, size = table.shape[:3]
        rows = table.flatten(1, 2).unbind()
        return [
            row if active == tasks else row[: size * active]
            for row, active in zip(rows, self.active, strict=True)
        ]


LossWithGradient = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""(output, target, weights) to each sample's loss, and the gradient of their weighted sum by the output."""


def with_gradient(loss: Loss) -> LossWithGradient:
    """A loss that is a mean over the batch, sample by sample."""
    if loss is functional.cross_entropy:
        return cross_entropy
    per_sample = vmap(lambda output, target: loss(output.unsqueeze(0), target.unsqueeze(0)))

    def by_autograd(output: Tensor, target: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        output.requires_grad_()
        each = per_sample(output, target)
        (gradient,) = torch.autograd.grad(each, output, weights)
        return each.detach(), gradient

    return by_autograd


def cross_entropy(scores: Tensor, labels: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The cross entropy of scores [samples, classes], with its gradient.

    Samples lie side by side meanwhile, where a sum over few classes takes a fraction of the time. Only what
    rounds alike for any number of samples serves: `softmax` along the first dimension does not.
    """
    labels = labels.unsqueeze(0)
    logs = torch.log_softmax(scores.t().contiguous(), 0)
    each = logs.gather(0, labels).squeeze(0).neg_()
    gradient = logs.exp_().mul_(weights).scatter_add_(0, labels, weights.neg().unsqueeze(0))
    return each, gradient.t()


def batched_module(learner: TorchLearner, clients: int, *, dropout: bool = True) -> BatchedModule:
    """The learner's module for a number of clients, with its dropout or without."""
    module = learner.prepare().bench.module
    autocast = learner.training.precision != "float32"
    return BatchedModule(module if dropout else without_dropout(copied(module)), clients, autocast=autocast)


def has_no_gain(learner: TorchLearner) -> bool:
    """Whether clients together are slower than one after the other: with convolutions on a CPU."""
    ready = learner.prepare()
    return ready.device == "cpu" and any(isinstance(m, _ConvNd) for m in ready.bench.module.modules())


def loss_of(learner: TorchLearner) -> Loss:
    """The loss of output and target."""
    return learner.criterion.loss or functional.cross_entropy


def tensors_of(learner: TorchLearner) -> tuple[Tensor, Tensor]:
    """The train set's x and y on the device. Raises `UsageError` for any other data."""
    train = learner.prepare().train
    if not isinstance(train, Dataset) or not isinstance(train.x, Tensor) or train.y is None:
        raise _refused("on these data", "on a Dataset of two tensors, x and y")
    return train.x, train.y


# ---- what it cannot train ----

_PLAIN = ("decay_per", "accumulate", "class_weights")
"""Options of the training that are left as they are."""


def _check(learner: TorchLearner, objective: Objective) -> None:
    """Refuse settings that are known not to work; `_probe` finds the rest."""
    if type(objective) not in (Plain, Proximal):
        raise _refused(f"objective {type(objective).__name__}", "the plain and the proximal objective")
    training, plain = learner.training, Training()
    if training.optimizer not in ("sgd", "adam", "adamw"):
        raise _refused(f"optimizer = {training.optimizer!r}", "'sgd', 'adam' and 'adamw'")
    allowed = ADAM_OPTIONS if training.optimizer != "sgd" else frozenset()
    if others := sorted(training.optimizer_options.keys() - allowed):
        options = " and ".join(sorted(allowed)) or "none"
        raise _refused(f"with optimizer_options = {others[0]!r}", f"with {options} of {training.optimizer}")
    if training.precision == "float16":
        raise _refused("with precision = 'float16'", "in float32 and bfloat16")
    for option in _PLAIN:
        if (value := getattr(training, option)) != getattr(plain, option):
            raise _refused(f"with {option} = {value!r}", f"with its default, {getattr(plain, option)!r}")
    if learner.examples is not None:
        raise _refused("with privacy of examples", "without it")
    if learner.criterion.step is not None or learner.personal:
        raise _refused("with a step of one's own, or tensors that stay at clients", "by a loss")
    tensors_of(learner)
    module = learner.prepare().bench.module
    for layer in module.modules():
        if isinstance(layer, _BatchNorm) and (type(layer) not in BATCH_NORM or layer.momentum is None):
            case = "with momentum = None" if type(layer) in BATCH_NORM else "in a model"
            raise _refused(f"{type(layer).__name__} {case}", "nn.BatchNorm1d, 2d and 3d with a momentum")
        if (inside := undrawn_dropout(layer)) is not None:
            raise _refused(f"a model with {inside}", "nn.Dropout and its 1d, 2d and 3d, each for itself")
    known = {id(b) for layer in module.modules() if type(layer) in BATCH_NORM for b in layer.buffers()}
    if (other := next((name for name, b in module.named_buffers() if id(b) not in known), None)) is not None:
        raise _refused(f"a model with a buffer ({other})", "models whose buffers are batch norm's")
    for name, parameter in module.named_parameters():
        if parameter.dtype != torch.float32:
            raise _refused(f"a model with {name} in {parameter.dtype}", "torch.float32")
    if next(module.parameters(), None) is None:
        raise _refused("a model without parameters", "models that have some")
    if any(isinstance(layer, torch.jit.ScriptModule) for layer in module.modules()):
        raise _refused("a scripted or traced model", "the module that was scripted")
    try:
        copied(module)
    except UsageError as error:
        raise _refused(f"what has no copies ({str(error).partition(': give')[0]})", _COPIED) from None


def _refused(what: str, allowed: str) -> UsageError:
    return UsageError(
        f"executor batched cannot train {what}, only {allowed}: leave it out to train one task after another"
    )


def _probe(learner: TorchLearner) -> Tensor:
    """Compare the gradients of two made-up clients, together and apart: do they differ by more than rounding?

    In float32 and without dropout, whatever the training has. Returns the targets as the loss takes them.

    They do where a module or a loss mixes the samples of a batch, draws at random, or takes samples along
    another dimension than the first.
    """
    ready, name = learner.prepare(), type(learner.prepare().bench.module).__name__
    all_x, all_y = tensors_of(learner)
    rows = torch.arange(2 * ALIGNED) * (len(all_y) - 1) // (2 * ALIGNED)
    x, y = ready.bench.laid_out(all_x[rows]), all_y[rows]
    stacked = batched_module(learner, 2, dropout=False)
    generator = torch.Generator().manual_seed(0)
    own = [*ready.bench.parameters, *ready.bench.buffers]
    start = torch.cat([tensor.detach().flatten() for tensor in own]).cpu()
    noise = torch.randn(2, *start.shape, generator=generator)
    stacked.load(list(start + noise * (0.5 * start + 0.01)))
    stacked.activate(2, [ALIGNED] * 2, torch.full((2, ALIGNED), 1 / ALIGNED, device=x.device))
    with torch.random.fork_rng(devices=[]):
        try:
            apart = _gradients_apart(stacked, learner, x, y)
        except Exception as error:
            raise unfit_batch("executor batched", ready.bench.module, "trained", (x, y), error) from error
        try:
            output = stacked(x)
            if stacked.passed_again:
                raise _refused(
                    "a batch norm layer that is passed twice", "layers that are passed once a step"
                )
            whole = output.detach()[:1].expand(len(all_y), *output.shape[1:])
            all_y = torch.as_tensor(learner.criterion.fitted(whole, all_y))
            y = all_y[rows]
            _check_labels(loss_of(learner), all_y, output)
            weights = torch.full(y.shape[:1], 1 / ALIGNED, device=y.device)
            _, gradient = with_gradient(loss_of(learner))(output.detach(), y, weights)
            stacked.backward(output, gradient)
        except UsageError:
            raise
        except Exception as error:
            raise _refused(f"{name} ({type(error).__name__}: {error})", _SAMPLES) from None
    together = {slots: torch.zeros_like(slots.values) for slots in stacked.slots}
    for slots, parts in stacked.gradients().items():
        for part in parts:
            part.add_to(together[slots], 1.0)
    found = torch.cat([gradient[i].flatten() for i in range(2) for gradient in together.values()])
    if not (found - apart).norm() <= _ROUNDING * apart.norm():
        raise _refused(f"{name} with this loss", _SAMPLES)
    return all_y


def _check_labels(loss: Loss, labels: Tensor, output: Tensor) -> None:
    """Refuse labels that no step may meet: out of range, or ignored by the loss."""
    check_targets(loss, labels, "sample {} of the train set".format, output.shape[1])
    if kind_of_targets(loss) == "classes" and bool((labels == ignored_label(loss)).any()):
        raise _refused(f"on labels of {ignored_label(loss)}, which the loss ignores", "on labels that count")


def _gradients_apart(stacked: BatchedModule, learner: TorchLearner, x: Tensor, y: Tensor) -> Tensor:
    """The gradients of `stacked`'s two models as the learner would get them, flat, one after the other.

    Raises:
        UsageError: The module cannot take a batch, or no gradient reaches its parameters.
    """
    gradients = []
    for i, (own_x, own_y) in enumerate(zip(x.chunk(2), y.chunk(2), strict=True)):
        module, batch = without_dropout(copied(learner.prepare().bench.module)).train(), (own_x, own_y)
        trained = {name: p for name, p in module.named_parameters() if p.requires_grad}
        with torch.no_grad():
            for parameter, slots in zip(trained.values(), stacked.slots, strict=True):
                parameter.copy_(slots.values[i])
        flow = GradientFlow(module, trained, learner.criterion.loss)
        try:
            loss = learner.criterion.train(module, batch, learner.prepare().scores)
        except Exception as error:
            raise unfit_batch(_CLIENTS, module, "trained", batch, error) from error
        if not loss.requires_grad:
            raise unfit_batch(_CLIENTS, module, "trained", batch, DETACHED)
        flow.watch(loss)
        loss.backward()  # type: ignore[no-untyped-call]
        flow.reached()
        if not i:
            flow.end(_CLIENTS, learner.training.lr, moved=flow.nonzero)
        make_dense(trained.values())
        gradients += [torch.zeros_like(p) if p.grad is None else p.grad for p in trained.values()]
    return torch.cat([gradient.flatten() for gradient in gradients])

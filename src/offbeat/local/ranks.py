"""A client's tasks in several processes of `torch.distributed`: rank 0 has the task, the others follow it.

Only rank 0 is known to the run. It tells the others of each task and of each step: whether there is one,
whether the weights have changed since the last, and the gradients where the algorithm has changed them. So
all ranks do the same steps with the same weights, and `DistributedDataParallel` averages their gradients.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from enum import IntEnum
from struct import pack, unpack
from typing import Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from offbeat.core.errors import RunError, UsageError
from offbeat.core.streams import Purpose, stream
from offbeat.local.client_task import ClientTask, again
from offbeat.local.seeding import generators_kept, seed_generators

T = TypeVar("T")
_FOREVER = timedelta(days=3650)
"""How long a rank waits for rank 0, which waits for the server; a rank that dies is noticed at once."""
_NUMBERS = 7


class RankTask(Protocol):
    """A task as each rank sees it; the members are those of `ClientTask`.

    Attributes:
        client: Number of the client, from 0.
        version: Version of the model to train from.
        number: Number of the task in the run.
        seed: The run's seed.
        assigned: Local steps to do.
        samples: Number of the client's training samples.
        lr_factor: Factor of the learning rate in this task.
    """

    client: int
    version: int
    number: int
    seed: int
    assigned: int
    samples: int
    lr_factor: float

    def load_into(self, module: nn.Module) -> nn.Module:
        """Write rank 0's model into each rank's module, without the wrapper around it."""

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """Iterate over the local steps, each with an item of the rank's own batches."""

    def correct_gradients(self) -> None:
        """Change the gradients of all ranks as the algorithm does, after `backward`."""

    def submit(self, *, metrics: Mapping[str, float] | None = None, lr: float | None = None) -> None:
        """Hand in what is in rank 0's module; the other ranks do nothing."""


def each_rank(tasks: Callable[[], Iterable[ClientTask]]) -> Iterator[RankTask]:
    """Iterate over the same tasks in each process of the default process group.

    Args:
        tasks: Gives the tasks, such as `lambda: offbeat.client(…)`; called by rank 0 alone.

    Yields:
        The tasks. Each rank does each step that a task's `steps` gives.

    Raises:
        UsageError: There is no process group.
        RunError: Rank 0 has ended with an error, or does something else than this rank.
    """
    if not dist.is_available() or not dist.is_initialized():
        raise UsageError(
            "each_rank needs a process group: call torch.distributed.init_process_group before, in each "
            "process that torchrun starts"
        )
    orders = _Orders()
    if dist.get_rank() == 0:
        yield from _lead(tasks, orders)
    else:
        yield from _follow(orders)


def _lead(tasks: Callable[[], Iterable[ClientTask]], orders: "_Orders") -> Iterator[RankTask]:
    found = iter(tasks())
    while True:
        try:
            task = next(found, None)
        except BaseException:
            # The other ranks wait for a task here, and nowhere else.
            orders.give(_Order.FAIL)
            raise
        if task is None:
            orders.give(_Order.END)
            return
        numbers = (task.client, task.version, task.number, task.seed, task.assigned, task.samples)
        orders.give(_Order.TASK, *numbers, *unpack("q", pack("d", task.lr_factor)))
        yield _LeadingTask(task, orders)


def _follow(orders: "_Orders") -> Iterator[RankTask]:
    while True:
        order, numbers = orders.take(_Order.TASK, _Order.END)
        if order is _Order.END:
            return
        yield _FollowingTask(numbers, orders)


class _Order(IntEnum):
    """What rank 0 tells the others."""

    TASK = 0
    END = 1
    FAIL = 2
    LOAD = 3
    STEP = 4
    CHANGED_STEP = 5
    NO_STEP = 6
    OWN_GRADIENTS = 7
    CHANGED_GRADIENTS = 8


class _Orders:
    """What rank 0 tells the others, over a group of the CPU that waits as long as it takes."""

    def __init__(self) -> None:
        self._group = dist.new_group(backend="gloo", timeout=_FOREVER)

    def give(self, order: _Order, *numbers: int) -> None:
        """Tell the others, from rank 0."""
        told = [order, *numbers, *[0] * (_NUMBERS - len(numbers))]
        dist.broadcast(torch.tensor(told), 0, self._group)

    def take(self, *expected: _Order) -> tuple[_Order, list[int]]:
        """Hear from rank 0. Raises `RunError` for another order than those expected."""
        message = torch.zeros(1 + _NUMBERS, dtype=torch.int64)
        dist.broadcast(message, 0, self._group)
        code, *numbers = message.tolist()
        order = _Order(code)
        if order is _Order.FAIL:
            raise RunError("rank 0 has ended with an error: its own output says why")
        if order not in expected:
            raise RunError(
                f"rank {dist.get_rank()} expects {_named(expected)} of rank 0, which is at "
                f"{_named([order])}: call load_into, steps, correct_gradients and submit in the same order "
                "in each rank"
            )
        return order, numbers


def _named(orders: Iterable[_Order]) -> str:
    return " or ".join(order.name.lower().replace("_", " ") for order in orders)


class _LeadingTask:
    """Rank 0's task, of which the others are told."""

    def __init__(self, task: ClientTask, orders: _Orders) -> None:
        self._task, self._orders = task, orders
        self._module: nn.Module | None = None
        self.client, self.version, self.number, self.seed = task.client, task.version, task.number, task.seed
        self.assigned, self.samples, self.lr_factor = task.assigned, task.samples, task.lr_factor

    def load_into(self, module: nn.Module) -> nn.Module:
        self._module = self._task.load_into(module)
        self._orders.give(_Order.LOAD)
        _share(_tensors(module))
        return module

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        module = _loaded(self._module)
        before = _writes(_tensors(module))
        for batch in self._task.steps(batches):
            changed = _writes(_tensors(module)) != before
            self._orders.give(_Order.CHANGED_STEP if changed else _Order.STEP)
            if changed:
                _share(_tensors(module))
            yield batch
            before = _writes(_tensors(module))
        self._orders.give(_Order.NO_STEP)

    def correct_gradients(self) -> None:
        gradients = _gradients(_loaded(self._module))
        before = _writes(gradients)
        self._task.correct_gradients()
        changed = _writes(_gradients(_loaded(self._module))) != before
        self._orders.give(_Order.CHANGED_GRADIENTS if changed else _Order.OWN_GRADIENTS)
        if changed:
            _share(_gradients(_loaded(self._module)))

    def submit(self, *, metrics: Mapping[str, float] | None = None, lr: float | None = None) -> None:
        self._task.submit(metrics=metrics, lr=lr)


class _FollowingTask:
    """The task of another rank, which does what rank 0 tells."""

    def __init__(self, numbers: Sequence[int], orders: _Orders) -> None:
        self._orders = orders
        self._module: nn.Module | None = None
        self.client, self.version, self.number, self.seed, self.assigned, self.samples = numbers[:6]
        (self.lr_factor,) = unpack("d", pack("q", numbers[6]))

    def load_into(self, module: nn.Module) -> nn.Module:
        self._orders.take(_Order.LOAD)
        _share(_tensors(module))
        self._module = module.train()
        return module

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        module, items = _loaded(self._module), again(batches)
        draws = stream(self.seed, Purpose.LAYERS, self.client, self.number).integers(
            2**63, size=1 + dist.get_rank()
        )
        with generators_kept(own_code=True):
            seed_generators(int(draws[-1]), str(next(module.parameters()).device), own_code=True)
            while True:
                order, _ = self._orders.take(_Order.STEP, _Order.CHANGED_STEP, _Order.NO_STEP)
                if order is _Order.NO_STEP:
                    return
                if order is _Order.CHANGED_STEP:
                    _share(_tensors(module))
                try:
                    batch = next(items)
                except StopIteration:
                    reason = f"batches of rank {dist.get_rank()} ended early: give one for each step"
                    raise UsageError(reason) from None
                yield batch

    def correct_gradients(self) -> None:
        order, _ = self._orders.take(_Order.OWN_GRADIENTS, _Order.CHANGED_GRADIENTS)
        if order is _Order.CHANGED_GRADIENTS:
            _share(_gradients(_loaded(self._module)))

    def submit(self, *, metrics: Mapping[str, float] | None = None, lr: float | None = None) -> None:
        del metrics, lr


def _loaded(module: nn.Module | None) -> nn.Module:
    if module is None:
        raise UsageError("call task.load_into(module) before task.steps")
    return module


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*(p.detach() for p in module.parameters()), *module.buffers()]


def _gradients(module: nn.Module) -> list[Tensor]:
    return [p.grad for p in module.parameters() if p.grad is not None]


def _writes(tensors: Iterable[Tensor]) -> list[tuple[int, int]]:
    """Where tensors are, and how often each was written to."""
    return [(tensor.data_ptr(), tensor._version) for tensor in tensors]


def _share(tensors: Iterable[Tensor]) -> None:
    """Give the other ranks rank 0's tensors."""
    for tensor in tensors:
        dist.broadcast(tensor, 0)

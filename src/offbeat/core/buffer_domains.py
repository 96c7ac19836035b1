"""Domains of the buffers that normalisation layers keep: a variance is at least 0, a counter never falls.

An update is refused if its client's buffers have left their domains: one variance below 0 makes a model
return NaN. A sum of honest changes can take a variance below 0 all the same, because its updates start from
different versions, or because a codec has rounded them. Such a variance keeps the value that it had before.

Which buffers these are follows from the names that PyTorch's normalisation layers give them.
"""

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from offbeat.core.layout import Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.reads import read_numbers

VARIANCE, COUNTER = "running_var", "num_batches_tracked"
COUNTS_PER_STEP = 1000
"""How far a counter may go in a local step: a layer may be passed many times."""
_ROUNDING = 1e-6
"""How far below 0 a variance may come out of base + change, relative to the base's."""


class Domains(Protocol):
    """The contract of the domains of buffers, for the global model."""

    def check(self, base: Model, steps: int, result: LocalResult) -> str | None:
        """Why a client's buffers have left their domains; None means that they have not."""

    def repair(self, values: Tensor, before: Tensor) -> None:
        """Bring the buffers of a new version into their domains, in place."""


def domains_of(layout: Layout, rounded: bool, device: str | torch.device) -> Domains:
    """The domains of the buffers of a layout; the arguments are those of `BufferDomains`."""
    domains = BufferDomains(layout, rounded, device)
    return domains if domains else AnyBuffers()


class BufferDomains:
    """The domains of the buffers of a layout.

    Args:
        layout: The layout of the model.
        rounded: Whether updates have passed a codec, after which an honest variance may end below 0.
        device: Where the vectors of the models are.
    """

    def __init__(self, layout: Layout, rounded: bool = False, device: str | torch.device = "cpu") -> None:
        self._rounded = rounded
        self._variances = _positions(layout, "buffer", VARIANCE, layout.parameters, device)
        self._counters = _positions(layout, "integer", COUNTER, 0, device)

    def __bool__(self) -> bool:
        """Whether there are any such buffers."""
        return self._variances is not None or self._counters is not None

    def check(self, base: Model, steps: int, result: LocalResult) -> str | None:
        """Why a client's buffers have left their domains; None means that they have not.

        Args:
            base: The model that the task began with.
            steps: Local steps that were done.
            result: The update.
        """
        most = COUNTS_PER_STEP * steps
        inside: list[Tensor] = []
        if self._variances is not None and not self._rounded:
            begin = base.values[self._variances]
            end = begin + result.delta[self._variances]
            inside.append((end >= -_ROUNDING * (1 + begin.abs())).all())
        if self._counters is not None:
            before, after = base.integers[self._counters], result.integers[self._counters]
            inside.append(((after >= before) & (after <= before + most)).all())
        if all(found := read_numbers(inside)):
            return None
        if self._variances is not None and not self._rounded and not found[0]:
            return f"a running variance of its buffers ends at {float(end.min()):.3g}: it must be at least 0"
        return f"a batch counter of its buffers has fallen, or grown by more than {most}"

    def repair(self, values: Tensor, before: Tensor) -> None:
        """Give variances below 0 the value that they had before, in place.

        Args:
            values: Values of the new version, float32 [values].
            before: Values of the version before.
        """
        if self._variances is not None:
            new = values[self._variances]
            # On a device, to look whether there is one would take longer than to write them.
            if new.device.type != "cpu" or bool((new < 0).any()):
                values[self._variances] = torch.where(new < 0, before[self._variances], new)


class AnyBuffers:
    """Buffers of a model without domains."""

    def check(self, base: Model, steps: int, result: LocalResult) -> str | None:
        """Every update is taken."""
        return None

    def repair(self, values: Tensor, before: Tensor) -> None:
        """Leave the values as they are."""


def _positions(
    layout: Layout, section: str, name: str, start: int, device: str | torch.device
) -> Tensor | None:
    """Positions of the buffers of a name in their flat vector, int64; None means that there are none."""
    found = [torch.arange(at, at + size) for own, at, size in _places(layout, section, start) if own == name]
    return torch.cat(found).to(device) if found else None


def _places(layout: Layout, section: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Name without its module, position and size of each tensor of a section."""
    for entry in layout.section(section):
        yield entry.name.rpartition(".")[2], start, entry.size
        start += entry.size

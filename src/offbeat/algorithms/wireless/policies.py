"""The five policies that choose which ready devices may send (wireless paper, Section V-C).

Hu, Chen, Larsson, Scheduling and Aggregation Design for Asynchronous Federated Learning over Wireless
Networks, 2023. At a tick the candidates are 𝒦(t), the devices that are ready. A policy chooses at most R of
them, Π(t). All policies but the first two choose from a pool of the devices with the best channels. The pool
has 0.5N devices, rounded down but at least one, or all candidates if there are fewer.

Nothing depends on the order of the candidates. Ties go to the lower client number.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Annotated, ClassVar, Literal, Protocol

import numpy as np
from pydantic import Field

from offbeat.algorithms.wireless.label_variance import least_variance
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId
from offbeat.core.validation import checked_dataclass


@dataclass(frozen=True, slots=True)
class Candidate:
    """A ready device, as a policy sees it.

    Attributes:
        client: Number of the device's client.
        capacity: C_k(t) in bits per symbol.
        norm: ‖u_k(t)‖₂ of the device's update. None means unknown.
        labels: b_k, the number of the device's training samples of each label. None means unknown.
        unscheduled: c_k(t), the number of past iterations without the device.
    """

    client: ClientId
    capacity: float
    norm: float | None = None
    labels: tuple[int, ...] | None = None
    unscheduled: int = 0


Devices = list[Candidate]


class _ChecksCandidates(Protocol):
    """Base of the policies: the checks, the pool, and the count of iterations without a device."""

    needs_labels: ClassVar[bool] = False
    needs_norms: ClassVar[bool] = False

    def choose(
        self, candidates: Sequence[Candidate], count: int, rng: np.random.Generator, population: int
    ) -> list[ClientId]:
        """Π(t), by client number.

        Args:
            candidates: 𝒦(t), in any order.
            count: R, at least 1. If there are fewer candidates, all are chosen.
            rng: The only source of randomness.
            population: N, the number of all devices.

        Raises:
            UsageError: The policy needs a norm or label counts that a candidate does not have.
        """
        ready = sorted(candidates, key=lambda c: c.client)
        self._check(ready, count, population)
        best = _highest(ready, max(1, population // 2), lambda c: c.capacity)  # min(0.5N, |𝒦|)
        chosen = self._choose(ready, best, min(count, len(ready)), rng)
        return sorted(c.client for c in chosen)

    def unscheduled(self, past: int, times: int, last: int) -> int:
        """c_k(t), the number of past iterations without a device.

        Args:
            past: Number of past iterations, which count from 1.
            times: How often the device was scheduled.
            last: The iteration in which the device was scheduled last; 0 means never.
        """
        return past - times

    def _choose(self, ready: Devices, best: Devices, count: int, rng: np.random.Generator) -> Devices:
        """`count` of the ready devices, or of those with the best channels, in any order."""

    def _check(self, ready: Devices, count: int, population: int) -> None:
        if count < 1:
            raise UsageError(f"count = {count} is not allowed: give how many devices to schedule, at least 1")
        clients = [c.client for c in ready]
        if len(set(clients)) < len(clients):
            raise UsageError(f"candidates = {clients} is not allowed: each device at most once")
        if len(ready) > population:
            raise UsageError(f"population = {population} is below the number of candidates, {len(ready)}")
        for c in ready:
            if not isfinite(c.capacity):
                raise UsageError(f"client {c.client} has capacity {c.capacity}: give a number")
            if self.needs_norms and (c.norm is None or not isfinite(c.norm)):
                raise UsageError(f"client {c.client} has norm {c.norm}: {type(self).__name__} needs ‖u‖₂")
            if self.needs_labels and not c.labels:
                raise UsageError(f"client {c.client} has no labels: {type(self).__name__} needs its counts")
        if self.needs_labels and len(lengths := {len(c.labels or ()) for c in ready}) > 1:
            raise UsageError(f"candidates have {sorted(lengths)} labels: give each a count of every label")


def _highest(ready: Devices, count: int, by: Callable[[Candidate], float]) -> Devices:
    """The `count` highest, ties to the lower client number."""
    return sorted(ready, key=lambda c: (-by(c), c.client))[:count]


@checked_dataclass
class Random(_ChecksCandidates):
    """R of the ready devices, uniformly at random (the paper's "rdm")."""

    kind: Literal["random"] = "random"

    def _choose(self, ready: Devices, best: Devices, count: int, rng: np.random.Generator) -> Devices:
        return [ready[i] for i in rng.permutation(len(ready))[:count]]


@checked_dataclass
class BestChannel(_ChecksCandidates):
    """The R devices with the highest C_k (BC, Amiri et al. 2021)."""

    kind: Literal["best_channel"] = "best_channel"

    def _choose(self, ready: Devices, best: Devices, count: int, rng: np.random.Generator) -> Devices:
        return _highest(ready, count, lambda c: c.capacity)


@checked_dataclass
class BestChannelBestNorm(_ChecksCandidates):
    """The R devices of the pool with the highest ‖u_k‖₂ (BC-BN2, Amiri et al. 2021; symbols by Eq. 9)."""

    kind: Literal["best_channel_best_norm"] = "best_channel_best_norm"
    needs_norms: ClassVar[bool] = True

    def _choose(self, ready: Devices, best: Devices, count: int, rng: np.random.Generator) -> Devices:
        return _highest(best, count, lambda c: c.norm or 0.0)


@checked_dataclass
class AgeBased(_ChecksCandidates):
    """The R devices of the pool with the highest c_k(t) = Σ_{t' < t} 1(k ∉ Π(t')) (after Yang et al. 2020).

    The paper's count never falls. With `reset`, the count of a device starts again when the device is
    scheduled.
    """

    reset: Annotated[bool, Field(description="the count starts again when a device is scheduled")] = False
    kind: Literal["age_based"] = "age_based"

    def unscheduled(self, past: int, times: int, last: int) -> int:
        """c_k(t); with `reset`, the number of iterations since the device was scheduled last."""
        return past - last if self.reset else super().unscheduled(past, times, last)

    def _choose(self, ready: Devices, best: Devices, count: int, rng: np.random.Generator) -> Devices:
        return _highest(best, count, lambda c: c.unscheduled)


@checked_dataclass
class DataImportance(_ChecksCandidates):
    """The R devices of the pool whose data together have the least label variance Ω (the paper's proposal).

    `offbeat.algorithms.wireless.label_variance` says how the least Ω is found, and when only nearly the
    least.
    """

    kind: Literal["data_importance"] = "data_importance"
    needs_labels: ClassVar[bool] = True

    def _choose(self, ready: Devices, best: Devices, count: int, rng: np.random.Generator) -> Devices:
        pool = sorted(best, key=lambda c: c.client)
        return [pool[k] for k in least_variance([c.labels or () for c in pool], count)]


Policy = Annotated[
    Random | BestChannel | BestChannelBestNorm | AgeBased | DataImportance,
    Field(discriminator="kind", description="who of the ready devices may send, such as {kind: random}"),
]

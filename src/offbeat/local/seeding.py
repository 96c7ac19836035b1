"""PyTorch's global stream of random numbers, seeded from the keyed streams of a run."""

from collections.abc import Callable
from threading import RLock
from typing import TypeVar

import torch

from offbeat.core.streams import Purpose, stream

T = TypeVar("T")

# All threads share the global stream: without a lock, two sites in one process would mix their weights.
_SEEDING = RLock()


def seeded(make: Callable[[], T], seed: int) -> T:
    """Call a function on the CPU with draws from PyTorch's generator that follow from a run's seed."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(stream(seed, Purpose.MODEL).integers(2**63)))
        return make()


def seed_layers(seed: int, device: str) -> None:
    """Seed the global stream from which layers such as dropout draw on a device.

    As `torch.manual_seed`, which takes 0.1 ms to look for devices that are not in use.
    """
    kind = device.split(":")[0]
    with _SEEDING:
        torch.default_generator.manual_seed(seed)
    if kind != "cpu":
        torch.get_device_module(kind).manual_seed(seed)

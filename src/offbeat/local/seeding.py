"""The global generators of PyTorch, NumPy and Python, seeded from the keyed streams of a run.

Layers, data sets and steps draw from them. Each task and each evaluation seeds them, and puts the states of
the users back. Those of NumPy and Python take some 30 µs, so they are left alone where no code runs that may
draw from them.
"""

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ctypes import string_at
from dataclasses import dataclass
from threading import RLock
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from offbeat.core.streams import Purpose, stream

T = TypeVar("T")

# All threads share the global generators: without a lock, two sites in one process would mix their weights.
_SEEDING = RLock()
# Not in the list of names that NumPy's modules export to type checkers.
_RANDOM: Any = np.random
_NUMPY = np.random.MT19937(0)
"""NumPy's global generator meanwhile: to put the user's aside is faster than to copy it."""
_NUMPY_BYTES = 625 * 4
"""Bytes of such a generator: its words, and its place in them."""
_EVALUATION = 0x0FFB_EA7E_0FFB_EA7E
"""Seed of each evaluation: all versions meet the same draws, which then make no difference between them."""


def seeded(make: Callable[[], T], seed: int) -> T:
    """Call a function on the CPU with draws from the global generators that follow from a run's seed."""
    with _SEEDING, torch.random.fork_rng(devices=[]):
        users = _put_aside()
        try:
            number = int(stream(seed, Purpose.MODEL).integers(2**63))
            if torch.cuda.is_available():
                torch.manual_seed(number)  # a module may be made on the device
            else:
                torch.default_generator.manual_seed(number)  # as in `seed_generators`
            _seed_others(number)
            return make()
        finally:
            _put_back(users)


def seed_generators(seed: int, device: str, *, own_code: bool) -> None:
    """Seed the generators from which layers such as dropout draw on a device, and data sets and steps.

    Args:
        seed: The seed, in [0, 2⁶³).
        device: PyTorch device.
        own_code: Whether code may run that draws from NumPy's and Python's generators.
    """
    kind = device.split(":")[0]
    with _SEEDING:
        # As `torch.manual_seed`, which takes 0.1 ms to look for devices that are not in use.
        torch.default_generator.manual_seed(seed)
        if own_code:
            _seed_others(seed)
    if kind != "cpu":
        torch.get_device_module(kind).manual_seed(seed)


@contextmanager
def generators_kept(*, own_code: bool) -> Iterator[None]:
    """A context after which the users' states of the generators on the CPU are as before it.

    Threads may be inside together: the states come back when the last one leaves.

    Args:
        own_code: Whether code may run that draws from NumPy's and Python's generators.
    """
    with _SEEDING:
        _users.enter(own_code=own_code)
    try:
        yield
    finally:
        with _SEEDING:
            _users.leave()


@contextmanager
def evaluation_seeded(device: str, *, own_code: bool) -> Iterator[None]:
    """A context of one evaluation, whose draws are those of any other; arguments as of `seed_generators`.

    Beside a training in another thread it draws what that one would have drawn, which keeps its seed.
    """
    with _SEEDING:
        alone = not _users.inside
        _users.enter(own_code=own_code)
        if alone:
            seed_generators(_EVALUATION, device, own_code=own_code)
    try:
        yield
    finally:
        with _SEEDING:
            _users.leave()


def save_others() -> Tensor:
    """Where NumPy's and Python's generators are, as bytes of JSON."""
    _, key, *rest = _RANDOM.get_state()
    text = json.dumps([random.getstate(), [key.tolist(), *rest]])
    return torch.frombuffer(bytearray(text, "utf-8"), dtype=torch.uint8)


def restore_others(saved: Tensor) -> None:
    """Let NumPy's and Python's generators go on from where they were."""
    (version, state, gauss), numpys = json.loads(saved.numpy().tobytes())
    random.setstate((version, tuple(state), gauss))
    _RANDOM.set_state(("MT19937", *numpys))


Others = tuple[Any, Any, Any]
"""Python's state, and NumPy's generator with the state to give it back; None means that it has that state."""


@dataclass
class _Users:
    """The users' states while the generators are seeded: of PyTorch's, and of the others where need be."""

    inside: int = 0
    torch: Tensor | None = None
    others: Others | None = None

    def enter(self, *, own_code: bool) -> None:
        self.inside += 1
        if self.torch is None:
            self.torch = torch.default_generator.get_state()
        if own_code and self.others is None:
            self.others = _put_aside()

    def leave(self) -> None:
        self.inside -= 1
        if self.inside:
            return
        assert self.torch is not None
        torch.default_generator.set_state(self.torch)
        self.torch = None
        if self.others is not None:
            _put_back(self.others)
            self.others = None


_users = _Users()


# The generator that was put back last, and its bytes then: if nobody has drawn since, no state need be read.
_last: tuple[Any, bytes] | None = None


def _put_aside() -> Others:
    generator = _RANDOM.get_bit_generator()
    # A normal number in reserve is no part of the generator, which moves when one comes into reserve.
    state = None if _last == (generator, _bytes(generator)) else _RANDOM.get_state(legacy=False)
    _RANDOM.set_bit_generator(_NUMPY)
    # Ours will be drawn from. Of any other only a number in reserve is lost.
    if state is not None and generator is not _NUMPY and not state["has_gauss"]:
        state = None
    return random.getstate(), generator, state


def _put_back(others: Others) -> None:
    global _last
    pythons, generator, state = others
    random.setstate(pythons)
    _RANDOM.set_bit_generator(generator)
    _last = None
    if state is not None:
        _RANDOM.set_state(state)
    elif type(generator) is np.random.MT19937:
        _last = generator, _bytes(generator)


def _bytes(generator: Any) -> bytes:
    """A copy of the words of a generator of NumPy's default kind; its state takes a hundred times as long."""
    if type(generator) is not np.random.MT19937:
        return b""
    return string_at(generator.ctypes.state_address, _NUMPY_BYTES)


def _seed_others(seed: int) -> None:
    # PyTorch's generator is of the same kind and takes the lower 32 bits: its numbers would be NumPy's too.
    _RANDOM.seed(seed >> 31)
    random.seed(seed)

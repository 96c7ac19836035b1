"""Random streams: one counter-based generator, keyed by (seed, purpose, client, task).

Philox-4x64 is a function from (key, counter) to random words. The key is (seed, purpose); the
upper half of the 256-bit counter is (client, task), and drawing moves only the lower half. So any
stream can be opened at any moment, in any process, in any order, and gives the same numbers;
streams of different keys never overlap.
"""

from enum import IntEnum
from operator import index
from typing import Any

import numpy as np
from msgspec import Struct, convert

from offbeat.core.errors import UsageError


class Purpose(IntEnum):
    """Purpose of a stream. Numbers are part of the format of a run: never reuse or renumber.

    Attributes:
        SCHEDULE: A schedule's choice of clients.
        MODEL: The initial global model.
        TRAIN: Batches of a client's task.
        LAYERS: Dropout and other draws inside a module.
        SPEED: A client's speed.
        JITTER: Variation of the speed per task, and its changes.
        NETWORK: Transfer times and delays.
        AVAILABILITY: Dropout, joining, leaving.
        PARTITION: The split of the data over clients.
        SUBSET: A subsample of a dataset.
        SELECTOR: Time of a client's request for a fresh model.
        CHANNEL: Fading and shadowing of a client's channel.
        CODEC: Selection and rounding of a codec.
        STATISTICS: The samples that running statistics are estimated from, and draws inside the module.
        LOOP: Draws of a user's own training loop in a client's task.
        ROUND: 32 bytes from which the rounding of a client's update follows.
        NOISE: 32 bytes from which the noise of a release follows.
        EXAMPLES: 32 bytes from which batches and noise of a task with privacy of examples follow.
    """

    SCHEDULE = 1
    MODEL = 2
    TRAIN = 3
    LAYERS = 4
    SPEED = 5
    JITTER = 6
    NETWORK = 7
    AVAILABILITY = 8
    PARTITION = 9
    SUBSET = 10
    SELECTOR = 11
    CHANNEL = 12
    CODEC = 13
    STATISTICS = 14
    LOOP = 15
    ROUND = 16
    NOISE = 17
    EXAMPLES = 18


def stream(seed: int, purpose: Purpose, client: int = 0, task: int = 0) -> np.random.Generator:
    """Open a random stream.

    Args:
        seed: The run's seed, from 0 to 2⁶³ − 1.
        purpose: Purpose of the stream.
        client: Number of the client, from 0; 0 also for streams of the whole run.
        task: Number of the task, from 0.
    """
    key = np.array([seed, purpose], dtype=np.uint64)
    counter = np.array([0, 0, client, task], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(counter=counter, key=key))


class SavedStream(Struct, frozen=True):
    """Where a stream is, as NumPy's Philox tells it: draws go on from here."""

    counter: tuple[int, int, int, int]
    key: tuple[int, int]
    buffer: tuple[int, int, int, int]
    buffer_pos: int
    has_uint32: int
    uinteger: int


def save_stream(rng: np.random.Generator) -> SavedStream:
    """Where a stream of `stream` is."""
    found: Any = rng.bit_generator.state
    place = {name: tuple(found["state"][name].tolist()) for name in ("counter", "key")}
    rest = {name: int(found[name]) for name in ("buffer_pos", "has_uint32", "uinteger")}
    return convert({**place, "buffer": tuple(found["buffer"].tolist()), **rest}, SavedStream)


def restore_stream(saved: SavedStream) -> np.random.Generator:
    """The stream that goes on from where it was."""
    philox = np.random.Philox()
    place = {name: np.array(getattr(saved, name), dtype=np.uint64) for name in ("counter", "key")}
    rest = {name: getattr(saved, name) for name in ("buffer_pos", "has_uint32", "uinteger")}
    buffer = np.array(saved.buffer, dtype=np.uint64)
    state: Any = {"bit_generator": "Philox", "state": place, "buffer": buffer, **rest}
    philox.state = state
    return np.random.Generator(philox)


class StreamCursor:
    """Streams of a seed for a few draws each: one rng, set to the start of one stream after another.

    Opening a stream costs as much as many draws from it; this costs as much as one.
    """

    def __init__(self, seed: int) -> None:
        self._philox = np.random.Philox(key=np.array([seed, 0], dtype=np.uint64))
        self._rng = np.random.Generator(self._philox)
        state = self._philox.state
        # As lists: numpy reads them number by number, for which an array takes twice as long.
        self._key, self._counter = state["state"]["key"].tolist(), state["state"]["counter"].tolist()
        start = {"key": self._key, "counter": self._counter}
        self._start: Any = {**state, "state": start, "buffer": state["buffer"].tolist()}

    def at(self, purpose: Purpose, client: int = 0, task: int = 0) -> np.random.Generator:
        """The same stream as `stream` of the same key, valid until `at` is called again."""
        self._key[1], self._counter[2], self._counter[3] = purpose, client, task
        self._philox.state = self._start
        return self._rng


def below(bound: int, rng: np.random.Generator) -> int:
    """Draw `rng.integers(bound)` for 2 ≤ `bound` < 2³², in a fifth of numpy's time for one number.

    Lemire, Fast Random Integer Generation in an Interval, 2019: of a product of 32 random bits and the bound
    the upper half is the number; the lower half decides whether it is rejected, as too frequent.
    """
    random = rng.bit_generator.ctypes
    least = 2**32 % bound
    product = random.next_uint32(random.state) * bound
    while product % 2**32 < least:
        product = random.next_uint32(random.state) * bound
    return int(product >> 32)


def check_seed(seed: int) -> int:
    """Return `seed`, an integer of Python or NumPy, as an int. Raises `UsageError` unless 0 ≤ seed < 2⁶³."""
    # True and False are integers of Python, and here a mistake.
    if isinstance(seed, bool) or not (hasattr(seed, "__index__") and 0 <= (seed := index(seed)) < 2**63):
        raise UsageError(f"seed = {seed!r} is not allowed: give an integer from 0 to 2^63 - 1")
    return seed

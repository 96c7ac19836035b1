"""Fixed shuffles for subsamples and splits, the same on every machine."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import UsageError

_TRAIN, _TEST = 0, 1


def fixed_permutation(n: int, key: int, stream: int) -> npt.NDArray[np.int64]:
    """A permutation of 0..n-1 fixed by two numbers in [0, 2^64), int64 [n].

    Sorts raw Philox words: numpy promises the words of a bit generator for ever, but not the algorithm of
    `Generator.permutation`.
    """
    words = np.random.Philox(key=np.array([key, stream], dtype=np.uint64)).random_raw(n)
    return np.argsort(words, kind="stable").astype(np.int64)


@dataclass(frozen=True)
class Subsample:
    """Random subsample of a dataset. For one seed a smaller subsample is contained in a larger one.

    Attributes:
        samples: Number of train samples, at least 1. None means all.
        test_samples: Number of test samples, at least 1. None means all.
        seed: Seed in [0, 2^64).

    Raises:
        UsageError: A number or the seed is out of range; `train` and `test` raise it for more samples than
            there are.
    """

    samples: int | None = None
    test_samples: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        for option, value in (("samples", self.samples), ("test_samples", self.test_samples)):
            if value is not None and value < 1:
                raise UsageError(f"{option} {value}: must be at least 1; leave it out to take every sample")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"seed {self.seed}: must be 0 to 2^64 - 1; choose a number in that range")

    def train(self, available: int) -> npt.NDArray[np.int64]:
        """Sorted indices of the train samples taken, out of `available`."""
        return self._take("samples", self.samples, available, _TRAIN)

    def test(self, available: int) -> npt.NDArray[np.int64]:
        """Sorted indices of the test samples taken, out of `available`."""
        return self._take("test_samples", self.test_samples, available, _TEST)

    def _take(self, option: str, count: int | None, available: int, stream: int) -> npt.NDArray[np.int64]:
        if count is None:
            return np.arange(available, dtype=np.int64)
        if count > available:
            raise UsageError(
                f"{option} {count}: the dataset has {available}; ask for at most {available}, "
                "or leave it out to take every sample"
            )
        return np.sort(fixed_permutation(available, self.seed, stream)[:count])

"""The data of which a site has told statistics, in all runs; a file of the site's state.

The difference of two answers tells of the samples in which their data differ. So a site that has told of some
data tells of others only if they differ in enough samples. Of the same data it tells the same, as often as it
is asked.
"""

import logging
from collections.abc import Collection
from itertools import combinations
from pathlib import Path
from typing import Any

from offbeat.core.errors import RunError, reason_of
from offbeat.net.client.first_batch import DataError
from offbeat.net.client.known_runs import code_of
from offbeat.net.client.packed_mapping import packed, unpacked
from offbeat.runs.damage import reading
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import read_tensors, write_tensors

log = logging.getLogger(__name__)
FILE = "statistics.safetensors"
MOST = 8
"""Most data of which a site tells statistics."""


class RepeatedError(DataError):
    """Statistics that the site does not tell, beside those that it has told. The server gets `told`."""

    def __init__(self, told: str, code: str) -> None:
        super().__init__(f"{told}; to tell them all the same, join once with --accept {code}")
        self.told = told


class ToldStatistics:
    """The data of which a site has told.

    Args:
        directory: The directory of the site's state, which this process holds.
        accepted: Codes of what the site's operator accepts by hand.

    Raises:
        DamageError: The file cannot be read.
    """

    def __init__(self, directory: Path, accepted: Collection[str] = ()) -> None:
        self._path, self._accepted = directory / FILE, frozenset(accepted)
        # Number of samples by digest of what is told.
        self._told: dict[str, int] = {}
        if self._path.exists():
            with reading(self._path):
                about: Any = unpacked(read_tensors(self._path)["about"])["told"]
                self._told = {str(digest): int(samples) for digest, samples in about.items()}

    def note(self, digest: str, samples: int, least: int) -> None:
        """Note, durably, what is to be told.

        Args:
            digest: Digest of it.
            samples: Number of samples that it is of.
            least: Fewest samples of which anything may be told.

        Raises:
            RepeatedError: Beside earlier answers it would tell of fewer, and the operator has not accepted
                that.
            RunError: It cannot be written.
        """
        if digest in self._told:
            return
        known = sorted(self._told.values())
        if (refusal := _refusal(known, samples, least)) is not None:
            # The code is for the operator alone: by the digest a server could try what the data are.
            error = RepeatedError(refusal, code_of("statistics", digest))
            if code_of("statistics", digest) not in self._accepted:
                raise error
            log.warning("accepted by hand: %s", refusal)
        told = {**self._told, digest: samples}
        try:
            write_tensors(self._path, {"about": packed({"told": told})})
            sync_directory(self._path.parent)
        except OSError as error:
            raise RunError(f"cannot write what is told to {self._path}: {reason_of(error)}") from None
        self._told = told


def _refusal(known: list[int], samples: int, least: int) -> str | None:
    """Why statistics of so many samples are not told, beside those of the known ones; None where they are."""
    if len(known) >= MOST:
        return f"this site has told statistics of {MOST} different data, and tells no more"
    # Data of which there are statistics may be parts of others, such as the women and the men.
    wholes = [(samples, total) for total in _sums(known) - {0}]
    for at, one in enumerate(known):
        wholes += [(one, samples + total) for total in _sums(known[:at] + known[at + 1 :])]
    if any(abs(whole - parts) < least for whole, parts in wholes):
        return (
            "this site has told statistics of other data, which may differ from the present ones in fewer "
            f"than min_samples = {least} samples: the difference of the answers would tell of these"
        )
    return None


def _sums(parts: list[int]) -> set[int]:
    """The sums of some of these, and 0."""
    return {sum(some) for size in range(len(parts) + 1) for some in combinations(parts, size)}

"""Parts: the indices of each client's samples, as users give them, and checks of them."""

import logging
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from offbeat.core.errors import UsageError
from offbeat.data.columns import is_groupby, is_index, is_series

Parts = Sequence[npt.NDArray[np.integer]]
_SHOWN = 10

log = logging.getLogger(__name__)


def parts_of(parts: Any, index: Any = None) -> list[npt.NDArray[Any]]:
    """One array of indices per client.

    Args:
        parts: A sequence or a mapping of arrays, lists or sets; or pandas's `frame.groupby(column)`.
        index: pandas's index of the samples, by which groups find theirs. None means that they have none.

    Raises:
        UsageError: It is something else, such as the number of each sample's client, or the groups are of
            other rows.
    """
    if is_groupby(parts):
        parts = _groups(parts, index)
    if isinstance(parts, str | bytes) or not isinstance(parts, Iterable):
        raise UsageError(
            f"parts = {parts!r:.60} is not allowed: give one array of sample indices per client, or a "
            "partition of offbeat.world.partitions that splits the labels"
        )
    if isinstance(parts, Set):
        raise UsageError("parts as a set have no order: give a list with one array or set per client")
    if is_series(parts) or (isinstance(parts, np.ndarray | Tensor) and parts.ndim == 1 and _numbers(parts)):
        raise UsageError(
            f"parts are one {type(parts).__name__} of numbers: give one array of sample indices per client; "
            "where these are the clients of the samples, [np.flatnonzero(parts == k) for k in …]"
        )
    return [_indices(part) for part in (parts.values() if isinstance(parts, Mapping) else parts)]


def _groups(groups: Any, index: Any) -> Mapping[Any, Any]:
    """The positions of the rows of each group, which may be of a frame with the rows in another order."""
    own = groups.obj.index
    if index is None or own.equals(index):
        found: Mapping[Any, Any] = groups.indices
        return found
    places = index.get_indexer(own) if index.is_unique and own.is_unique else np.full(len(own), -1)
    if (places < 0).any():
        raise UsageError(
            "parts are groups of a frame whose index is not that of the samples: group the frame that is "
            "given, or one with the same index"
        )
    return {name: places[rows] for name, rows in groups.indices.items()}


def _numbers(parts: Any) -> bool:
    return (len(parts) > 0 and not hasattr(parts[0], "__len__")) or isinstance(parts, Tensor)


def _indices(part: Any) -> npt.NDArray[Any]:
    if is_index(part):
        raise UsageError(
            "parts has a pandas Index, whose labels are no positions of samples: give "
            "frame.groupby(column).indices, which are"
        )
    if isinstance(part, Set):
        part = sorted(part)
    elif isinstance(part, Tensor):
        return part.numpy(force=True)
    elif isinstance(part, Iterable) and not hasattr(part, "__len__"):
        part = list(part)
    try:
        indices = np.asarray(part)
    except ValueError:
        # The lists have different lengths.
        indices = np.zeros(())
    if not indices.ndim:
        raise UsageError(
            f"parts has a {type(part).__name__} in place of a client's indices: give one 1-D array of "
            "integers per client"
        )
    return indices if len(indices) else np.zeros(0, dtype=np.int64)


def occupied(sizes: Sequence[int], drop_empty: bool) -> list[int]:
    """The clients that have samples.

    Args:
        sizes: Number of samples of each client.
        drop_empty: Whether the others are left out, which is logged. False refuses them.

    Raises:
        UsageError: A client has no samples and none may be left out, or no client is left.
    """
    if not sizes:
        raise UsageError(
            "parts []: at least one client is needed; pass one array of sample indices per client"
        )
    kept = [client for client, size in enumerate(sizes) if size]
    if len(kept) == len(sizes):
        return kept
    empty = [client for client, size in enumerate(sizes) if not size]
    if not drop_empty:
        raise UsageError(
            f"client {empty[0]} of {len(sizes)} has no samples: leave it out by drop_empty = True (in a "
            "recipe data.drop_empty), or use fewer clients, more samples or a partition with a minimum size"
        )
    if not kept:
        raise UsageError(f"none of {len(sizes)} clients has samples: at least one client is needed")
    shown = ", ".join(map(str, empty[:_SHOWN])) + (", …" if len(empty) > _SHOWN else "")
    log.warning(
        "%d of %d clients have no samples and are left out (%s): those that remain are numbered 0 to %d",
        len(empty), len(sizes), shown, len(kept) - 1,
    )  # fmt: skip
    return kept


def check_parts(parts: Parts, available: int) -> None:
    """Check the clients' indices into `available` samples, each of which belongs to one client at most.

    Raises:
        UsageError: They are no 1-D integers, out of range, or used twice.
    """
    sizes = np.array([len(part) for part in parts], dtype=np.int64)
    if any(part.ndim != 1 or part.dtype.kind not in "iu" for part in parts):
        wrong = next(part for part in parts if part.ndim != 1 or part.dtype.kind not in "iu")
        raise UsageError(
            f"parts of {wrong.dtype} with {wrong.ndim} dimensions: must be 1-D arrays of integers, "
            "one per client"
        )
    _check_used_once(np.concatenate(parts), np.repeat(np.arange(len(parts)), sizes), available)


def _check_used_once(indices: npt.NDArray[np.integer], owner: npt.NDArray[np.int64], available: int) -> None:
    wrong = (indices < 0) | (indices >= available)
    if wrong.any():
        at = int(np.argmax(wrong))
        raise UsageError(
            f"sample index {int(indices[at])} of client {int(owner[at])}: must be 0 to {available - 1}; "
            f"the train set has {available} samples"
        )
    uses = np.bincount(indices, minlength=available)
    if uses.max(initial=0) > 1:
        sample = int(np.argmax(uses))
        owners = owner[indices == sample]
        raise UsageError(
            f"sample index {sample} is used {int(uses[sample])} times, by clients {int(owners[0])} and "
            f"{int(owners[1])}: every sample belongs to at most one client; remove the repeats from parts"
        )

"""LEAF's JSON: the samples of many users in one mapping, as its FEMNIST and Shakespeare have them.

    {"users": ["f0001", …], "num_samples": [350, …], "user_data": {"f0001": {"x": […], "y": […]}, …}}

LEAF (Caldas et al., 2018) writes a train and a test set so, each to one file or to several. Shakespeare's
samples are texts of one length whose target is the next character; each character becomes its code point,
which needs no vocabulary that the clients would have to agree on.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from offbeat.core.errors import UsageError

_KEYS = frozenset({"users", "user_data"})


def is_leaf(data: Any) -> bool:
    """Whether it is the content of one of LEAF's files, or a list of such."""
    if isinstance(data, list | tuple):
        return len(data) > 0 and all(isinstance(part, Mapping) and is_leaf(part) for part in data)
    return isinstance(data, Mapping) and set(data) >= _KEYS


def samples_by_user(data: Any) -> dict[str, dict[str, Any]]:
    """The samples of each user, {"x": …, "y": …}, in the order of the users.

    Args:
        data: The content of a file, as `json.load` gives it, or a list of the contents of several.

    Raises:
        UsageError: A user is there twice or without samples, or their number is another than is said.
    """
    samples: dict[str, dict[str, Any]] = {}
    for part in data if isinstance(data, list | tuple) else [data]:
        users, counts = part["users"], part.get("num_samples")
        for at, user in enumerate(users):
            if user in samples:
                raise UsageError(f"user {user!r} is twice in LEAF's data: give each user's samples once")
            user_data = part["user_data"].get(user)
            if not isinstance(user_data, Mapping) or not {"x", "y"} <= set(user_data):
                raise UsageError(f"user {user!r} of LEAF's data has no x and y in user_data")
            if counts is not None and counts[at] != len(user_data["y"]):
                raise UsageError(
                    f"user {user!r} of LEAF's data has {len(user_data['y'])} samples, and num_samples says "
                    f"{counts[at]}: the file is not whole"
                )
            samples[user] = dict(zip("xy", _numbers(user_data["x"], user_data["y"]), strict=True))
    return samples


def _numbers(x: Any, y: Any) -> tuple[Any, Any]:
    """Texts that are followed by one character, and that character, as code points; anything else as it is.

    A text with another target, such as the name of an image in CelebA, is left for its reader to encode.
    """
    texts = all(isinstance(value, str) for value in (*x, *y))
    if not len(y) or not texts or {len(target) for target in y} != {1} or len({len(text) for text in x}) > 1:
        return x, y
    return _code_points(x), _code_points(y)[:, 0]


def _code_points(texts: Any) -> npt.NDArray[np.int64]:
    """The characters of N texts of length L, int64 [N, L]."""
    points = np.frombuffer("".join(texts).encode("utf-32-le"), dtype="<u4")
    return points.reshape(len(texts), -1).astype(np.int64)

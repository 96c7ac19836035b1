"""What privacy costs a client, a helper and the server, in processor time, as a table.

    python benchmarks/privacy_costs.py
    python benchmarks/privacy_costs.py --parameters 100000 --repeat 3

Each time is the least of a few; beside it stands its ratio to SHA-256 of the update's bytes (4 a parameter),
which says the same on a slower machine. The last column is what the time is to stay below, at 10⁶ parameters.
"""

import os
from collections.abc import Callable
from hashlib import sha256
from time import process_time

import numpy as np
from harness import Rows, main

from offbeat.core.privacy.noise import discrete_gaussian
from offbeat.core.privacy.sums import SumGrid
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.secure.masks import HelperKey, add_masks, mask
from offbeat.secure.votes import VoteKey

SIGMA = 858_993_457  # of z = 4 and releases of 10 updates of equal weight
COMMITTEES = (3, 2), (4, 1), (5, 2)  # H = T + 1, and two that vote
Case = tuple[str, Callable[[], object], float | None]


def milliseconds(work: Callable[[], object], repeat: int) -> float:
    """The least processor time of one call."""
    times = []
    for _ in range(repeat):
        began = process_time()
        work()
        times.append(process_time() - began)
    return 1000 * min(times)


def committee(helpers: int, colluding: int, parameters: int) -> Committee:
    """Helpers with fresh keys."""
    keys = [os.urandom(32) for _ in range(helpers)]
    members = tuple(
        CommitteeMember(f"helper-{n}", HelperKey(key).public, VoteKey(key).public)
        for n, key in enumerate(keys)
    )
    return Committee(bytes(32), 1, members, colluding, 3, 1, 10, 0.5, 4, parameters, 1.0)


def cases(parameters: int) -> list[Case]:
    """Title, what is timed, and its limit in milliseconds at 10⁶ parameters."""
    seed = bytes(range(32))
    delta = (np.random.default_rng(0).standard_normal(parameters) / parameters**0.5).astype(np.float32)
    grids = {bits: SumGrid(10, bits, 1.0, parameters, dithered=True) for bits in (0, 4)}
    y, share = grids[4].round(delta, seed), np.zeros(parameters, np.uint32)
    own = {size: committee(*size, parameters) for size in COMMITTEES}
    return [
        ("clip and round, equal weights", lambda: grids[0].round(delta, seed), 80),
        ("clip, round and dither, weights of 4 bits", lambda: grids[4].round(delta, seed), 200),
        ("masks and boxes, 3 helpers, 2 colluding", lambda: mask(y, own[3, 2], 1, 0, "site"), 30),
        ("masks and boxes, 4 helpers, 1 colluding", lambda: mask(y, own[4, 1], 1, 0, "site"), 30),
        ("masks and boxes, 5 helpers, 2 colluding", lambda: mask(y, own[5, 2], 1, 0, "site"), None),
        ("a helper, for an update and seed", lambda: add_masks(share, [seed], [15]), 3),
        ("noise of a release", lambda: discrete_gaussian(SIGMA, parameters, seed), 300),
    ]


def privacy_costs(parameters: int = 10**6, repeat: int = 7) -> Rows:
    data = np.ones(parameters, np.float32).tobytes()
    unit = milliseconds(lambda: sha256(data).digest(), repeat)
    for title, work, most in cases(parameters):
        found = milliseconds(work, repeat)
        yield {
            f"{parameters:,} parameters": title, "ms": f"{found:.2f}",
            "SHA-256 of 4 bytes each": f"{found / unit:.1f}", "at most, ms": most,
        }  # fmt: skip
    for helpers, colluding in COMMITTEES:
        masked = mask(np.zeros(1, np.int64), committee(helpers, colluding, 1), 1, 0, "site")
        added = len(masked.committee) + sum(map(len, masked.boxes))
        most = 400 if helpers == 3 else None
        yield {"helpers": helpers, "colluding": colluding, "bytes added": added, "at most, bytes": most}


if __name__ == "__main__":
    main(privacy_costs)

"""What privacy costs a client, a helper and the server, in processor time, as a table.

    python benchmarks/privacy_costs.py
    python benchmarks/privacy_costs.py --parameters 100000 --repeat 3

Each time is the least of a few; beside it stands its ratio to SHA-256 of the update's bytes (4 a parameter),
which says the same on a slower machine. The last column is what the time is to stay below, at 10⁶ parameters.
"""

import argparse
import os
from collections.abc import Callable
from hashlib import sha256
from time import process_time

import numpy as np

from offbeat.core.privacy.noise import discrete_gaussian
from offbeat.core.privacy.sums import SumGrid
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.secure.masks import HelperKey, add_masks, mask
from offbeat.secure.votes import VoteKey

SIGMA = 858_993_457  # of z = 4 and releases of 10 updates of equal weight
COMMITTEES = (3, 2), (4, 1), (5, 2)  # H = T + 1, and two that vote
Case = tuple[str, Callable[[], object], float]


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
        ("masks and boxes, 5 helpers, 2 colluding", lambda: mask(y, own[5, 2], 1, 0, "site"), float("inf")),
        ("a helper, for an update and seed", lambda: add_masks(share, [seed], [15]), 3),
        ("noise of a release", lambda: discrete_gaussian(SIGMA, parameters, seed), 300),
    ]


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--parameters", type=int, default=10**6)
    parser.add_argument("--repeat", type=int, default=7)
    options = parser.parse_args()
    data = np.ones(options.parameters, np.float32).tobytes()
    unit = milliseconds(lambda: sha256(data).digest(), options.repeat)
    print(f"| {options.parameters:,} parameters | ms | SHA-256 of 4 bytes each | at most, ms |")
    print("|---|---|---|---|")
    for title, work, most in cases(options.parameters):
        found = milliseconds(work, options.repeat)
        print(
            f"| {title} | {found:.2f} | {found / unit:.1f} | {'–' if most == float('inf') else f'{most:g}'} |"
        )
    for helpers, colluding in COMMITTEES:
        masked = mask(np.zeros(1, np.int64), committee(helpers, colluding, 1), 1, 0, "site")
        added = len(masked.committee) + sum(map(len, masked.boxes))
        most = "400 bytes" if helpers == 3 else "–"
        print(f"| bytes added, {helpers} helpers, {colluding} colluding | {added} bytes | | {most} |")


if __name__ == "__main__":
    main()

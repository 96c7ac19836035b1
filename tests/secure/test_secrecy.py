"""What the server and T helpers see is uniform but for the sum; with one more helper nothing is hidden.

The argument of docs/privacy-guarantees.md, executed: of each update the adversary takes off the masks it
knows. What is left is uniform, and the answers of the other helpers follow from it and from the sum.
"""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2

from offbeat.core.privacy.sums import Integers
from offbeat.secure.masks import add_masks
from offbeat.secure.messages import UnmaskShare, Words
from tests.secure.federation import Federation

WORDS = 200_000
WEIGHTS = (15, 8, 11, 1)


def uniform(words: Words) -> float:
    """p of χ² over the values of bytes."""
    observed = np.bincount(words.view(np.uint8), minlength=256)
    expected = observed.sum() / 256
    return float(chi2.sf(((observed - expected) ** 2 / expected).sum(), 255))


def two_runs_of_one_sum() -> list[list[Integers]]:
    """Updates of two runs, alike in nothing but Σ c̃ y."""
    rng = np.random.default_rng(0)
    first = [rng.integers(-1000, 1000, WORDS) for _ in WEIGHTS]
    second = [rng.integers(-3, 3, WORDS) for _ in WEIGHTS]
    rest = sum(w * (a - b) for w, a, b in zip(WEIGHTS, first, second, strict=True))
    second[-1] += rest  # its weight is 1
    return [first, second]


def masked(directory: Path, helpers: int, colluding: int, updates: list[Integers]) -> Federation:
    directory.mkdir()
    options = {"colluding": colluding, "parameters": WORDS}
    made = Federation(directory, helpers, options)
    for y, weight in zip(updates, WEIGHTS, strict=True):
        made.add(y, weight)
    return made


def known_seeds(made: Federation, place: int, helpers: int) -> dict[int, bytes]:
    """The seeds of an update by group that the first helpers have between them."""
    entry, seeds = made.entries[place], {}
    for number in range(helpers):
        key = made.helpers[number]._key
        box = b"".join(entry.boxes) if made.committee.votes else entry.boxes[number]
        seeds.update(key.open(box, made.committee, entry.task, entry.client, entry.site, number) or {})
    return seeds


def left(made: Federation, place: int, helpers: int) -> Words:
    """v', a masked update without the masks that the first helpers know."""
    vector, seeds = made.vectors[made.entries[place].task].copy(), known_seeds(made, place, helpers)
    add_masks(vector, list(seeds.values()), [-1] * len(seeds))
    return vector


@pytest.mark.parametrize(
    ("helpers", "colluding"), [(3, 1), (3, 2), (5, 2), pytest.param(7, 3, marks=pytest.mark.thorough)]
)
def test_what_is_left_of_an_update_is_uniform_for_t_helpers(
    tmp_path: Path, helpers: int, colluding: int
) -> None:
    for run, updates in enumerate(two_runs_of_one_sum()):
        made = masked(tmp_path / str(run), helpers, colluding, updates)
        for place, y in enumerate(updates):
            assert uniform(left(made, place, colluding)) > 1e-4
            with_one_more = left(made, place, colluding + 1)
            assert (with_one_more.view(np.int32) == y).all()
            assert uniform(with_one_more) < 1e-9  # so the test would notice


def test_the_other_helpers_tell_nothing_but_the_sum(tmp_path: Path) -> None:
    """R, the sum of the masks that T helpers lack, is Σ c̃ v' − S: it can be simulated."""
    sums = []
    for run, updates in enumerate(two_runs_of_one_sum()):
        made = masked(tmp_path / str(run), 3, 2, updates)
        request = made.request(2)
        assert request.groups == tuple(set(range(3)) - set(known_seeds(made, 0, 2)))
        share = made.helpers[2].answer(request)
        assert isinstance(share, UnmaskShare)
        weighted = np.zeros(WORDS, np.uint32)
        for place, weight in enumerate(WEIGHTS):
            weighted += left(made, place, 2) * np.uint32(weight)
        assert (share.total == weighted - made.exact.astype(np.uint32)).all()
        assert uniform(share.total) > 1e-4
        sums.append(made.exact)
    assert (sums[0] == sums[1]).all()


def test_masks_of_one_update_are_not_those_of_another(tmp_path: Path) -> None:
    """The difference of two masked updates of the same values is uniform too."""
    y = np.zeros(WORDS, np.int64)
    made = masked(tmp_path / "run", 3, 1, [y] * 4)
    assert uniform(made.vectors[100] - made.vectors[101]) > 1e-4
    assert uniform(made.vectors[100] - np.roll(made.vectors[101], 1)) > 1e-4
    assert len({known_seeds(made, place, 3)[group] for place in range(4) for group in range(3)}) == 12

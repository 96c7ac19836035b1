"""Masks: known answers, modular arithmetic, boxes that open for one helper, task and committee only."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from offbeat.core.errors import UsageError
from offbeat.core.installation import install_hint
from offbeat.secure.committee import Committee, CommitteeMember
from offbeat.secure.masks import HelperKey, add_masks, mask

SEED = bytes(range(32))
KEYS = [HelperKey(bytes([n]) * 32) for n in (1, 2, 3)]
MEMBERS = tuple(
    CommitteeMember(name, key.public, bytes([n]) * 32)
    for n, (name, key) in enumerate(zip("abc", KEYS, strict=True))
)
COMMITTEE = Committee(SEED, 1, MEMBERS, 2, 3, 1, 10, 0.5, 4, 1000, 1.0)
Y = np.arange(-500, 500)


def masks(weights: list[int], size: int = 70_000) -> np.ndarray:
    vector = np.zeros(size, np.uint32)
    add_masks(vector, [SEED] * len(weights), weights)
    return vector


def test_the_mask_of_a_known_seed() -> None:
    found = masks([1])
    assert found[:4].tolist() == [3053490418, 3500099882, 1788539817, 2155294429]
    assert found[65_536] == 3232278315


def test_masks_are_added_with_weights_modulo_a_power_of_two() -> None:
    assert (masks([15]) == masks([1]).astype(np.uint64) * 15 % 2**32).all()
    assert (masks([3, 4]) == masks([7])).all()
    assert not masks([1, -1]).any()
    assert len(masks([1], 0)) == 0


def test_a_masked_update_is_the_update_when_its_masks_are_taken_off() -> None:
    update = mask(Y, COMMITTEE, 81, 7, "ward")
    everything: dict[int, bytes] = {}
    for number, key in enumerate(KEYS):
        seeds = key.open(update.boxes[number], COMMITTEE, 81, 7, "ward", number)
        assert seeds is not None
        assert list(seeds) == COMMITTEE.held_by(number)
        everything |= seeds
    assert sorted(everything) == [0, 1, 2]
    vector = update.vector.copy()
    add_masks(vector, [everything[group] for group in range(3)], [-1] * 3)
    assert (vector.view(np.int32) == Y).all()
    assert update.committee == COMMITTEE.digest


def test_seeds_are_fresh_and_not_shown() -> None:
    drawn: list[bytes] = []

    def draw(count: int) -> bytes:
        drawn.append(bytes([len(drawn) + 65]) * count)
        return drawn[-1]

    first, second = mask(Y, COMMITTEE, 81, 7, "ward"), mask(Y, COMMITTEE, 81, 7, "ward")
    assert (first.vector != second.vector).mean() > 0.99
    shown = repr(mask(Y, COMMITTEE, 81, 7, "ward", draw)) + repr(KEYS[0])
    assert len(drawn) == 3
    assert not any(seed.decode() in shown or seed.hex() in shown for seed in drawn)


def test_boxes_open_for_one_committee_task_client_site_and_helper_only() -> None:
    box = mask(Y, COMMITTEE, 81, 7, "ward").boxes[0]
    assert KEYS[0].open(box, COMMITTEE, 81, 7, "ward", 0) is not None
    other = replace(COMMITTEE, least=4)
    assert KEYS[0].open(box, other, 81, 7, "ward", 0) is None
    assert KEYS[0].open(box, COMMITTEE, 82, 7, "ward", 0) is None
    assert KEYS[0].open(box, COMMITTEE, 81, 8, "ward", 0) is None
    assert KEYS[0].open(box, COMMITTEE, 81, 7, "clinic", 0) is None
    assert KEYS[0].open(box, COMMITTEE, 81, 7, "ward", 1) is None
    assert KEYS[1].open(box, COMMITTEE, 81, 7, "ward", 0) is None


@pytest.mark.parametrize("box", [b"", b"x", bytes(31), bytes(80), b"\xff" * 80, b"\x01" * 10_000])
def test_malformed_boxes_do_not_open(box: bytes) -> None:
    assert KEYS[0].open(box, COMMITTEE, 81, 7, "ward", 0) is None


def test_every_changed_byte_closes_a_box() -> None:
    box = mask(Y, COMMITTEE, 81, 7, "ward").boxes[0]
    for place in range(0, len(box), 7):
        changed = bytearray(box)
        changed[place] ^= 1
        assert KEYS[0].open(bytes(changed), COMMITTEE, 81, 7, "ward", 0) is None
    assert KEYS[0].open(box[:-1], COMMITTEE, 81, 7, "ward", 0) is None


def test_boxes_of_three_helpers_are_small() -> None:
    boxes = mask(Y, COMMITTEE, 81, 7, "ward").boxes
    assert [len(box) for box in boxes] == [80, 80, 80]
    assert sum(len(box) for box in boxes) + len(COMMITTEE.digest) <= 400


def test_a_key_on_which_no_secret_can_be_agreed_is_refused() -> None:
    weak = replace(COMMITTEE, helpers=(*MEMBERS[:2], replace(MEMBERS[2], public_key=bytes(32))))
    with pytest.raises(UsageError, match="the key of helper c is not one of X25519: name a new committee"):
        mask(Y, weak, 81, 7, "ward")


def test_without_the_extra_the_error_names_it() -> None:
    code = (
        "import sys; sys.modules['cryptography.hazmat.primitives.hpke'] = None\n"
        "from offbeat.core.errors import UsageError\n"
        "try:\n    import offbeat.secure.masks\nexcept UsageError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("secure aggregation: ")
    assert install_hint("secure") in done.stdout

"""The committee: groups of seeds, the digest that binds everything, what differs from a plan or a policy."""

from dataclasses import replace
from hashlib import sha256
from itertools import combinations
from struct import pack

import pytest

from offbeat.core.errors import UsageError
from offbeat.core.privacy.privacy_options import Privacy, Secure
from offbeat.secure.committee import Committee, CommitteeMember, fingerprint, hashed_text


def member(name: str, number: int) -> CommitteeMember:
    return CommitteeMember(name, bytes([number]) * 32, bytes([100 + number]) * 32)


MEMBERS = tuple(member(name, n) for n, name in enumerate(("ann", "bob", "cid"), 1))
COMMITTEE = Committee(bytes(32), 1, MEMBERS, 1, 3, 1, 10, 0.5, 4, 1000, 0.25)
PLAN = Privacy(
    clip=0.25, weight_bits=4, least=3, most=10, secure=Secure(helpers=("ann", "bob", "cid"), colluding=1)
)


@pytest.mark.parametrize(("helpers", "colluding"), [(2, 1), (3, 1), (3, 2), (4, 2), (5, 2), (7, 3), (9, 4)])
def test_any_t_helpers_lack_a_group_and_any_more_have_all(helpers: int, colluding: int) -> None:
    members = tuple(member(str(n), n) for n in range(helpers))
    committee = replace(COMMITTEE, helpers=members, colluding=colluding)
    everything = set(range(len(committee.groups)))
    for some in combinations(range(helpers), colluding):
        assert everything - {group for helper in some for group in committee.held_by(helper)}
    for enough in combinations(range(helpers), committee.needed):
        assert everything == {group for helper in enough for group in committee.held_by(helper)}
        for others in combinations(range(helpers), committee.needed):
            assert set(enough) & set(others)  # so an update released again is noticed


def test_the_digest_is_the_hash_of_its_text() -> None:
    text = b"".join([
        pack(">q", 19), b"offbeat/1/committee", pack(">q", 32), bytes(32), pack(">6q", 1, 3, 1, 3, 1, 10),
        pack(">d", 0.5), pack(">2q", 4, 1000), pack(">d", 0.25),
        *(pack(">q", 3) + m.name.encode() + pack(">q", 32) + m.public_key + pack(">q", 32) + m.verify_key
          for m in MEMBERS),
    ])  # fmt: skip
    assert COMMITTEE.digest == sha256(text).digest()
    assert hashed_text(-1, "é") == b"\xff" * 8 + pack(">q", 2) + "é".encode()


def test_every_field_is_in_the_digest() -> None:
    swapped = (MEMBERS[1], MEMBERS[0], MEMBERS[2])
    changes = {
        "run": b"\x01" * 32, "epoch": 2, "helpers": swapped, "least": 4, "most": 11, "dominance": 0.5004,
        "weight_bits": 5, "parameters": 1001, "clip": 0.26, "colluding": 2,
    }  # fmt: skip
    found = {COMMITTEE.digest, *(replace(COMMITTEE, **{key: value}).digest for key, value in changes.items())}
    found.add(replace(COMMITTEE, least=4, colluding_clients=2).digest)
    found.add(replace(COMMITTEE, helpers=(replace(MEMBERS[0], verify_key=bytes(32)), *MEMBERS[1:])).digest)
    assert len(found) == len(changes) + 3


def test_the_manifest_binds_updates_and_weights_in_any_order() -> None:
    entries = [(82, 1, 15), (81, 2, 3)]
    manifest = COMMITTEE.manifest(12, entries)
    text = hashed_text("offbeat/1/manifest", COMMITTEE.digest, 12, 81, 2, 3, 82, 1, 15)
    assert manifest == sha256(text).digest() == COMMITTEE.manifest(12, entries[::-1])
    assert COMMITTEE.manifest(13, entries) != manifest != COMMITTEE.manifest(12, [(82, 1, 14), (81, 2, 3)])


@pytest.mark.parametrize(
    ("weights", "refused"), [((2, 1, 1), None), ((3, 1, 1), "0"), ((1, 3, 1), "1"), ((15, 15, 15), None)]
)
def test_an_update_has_at_most_the_allowed_part_of_the_weight(
    weights: tuple[int, ...], refused: str | None
) -> None:
    reason = COMMITTEE.weight_refusal(7, [(n, n, weight) for n, weight in enumerate(weights)])
    assert reason is None if refused is None else f"task {refused}" in str(reason)


def test_a_plan_that_differs_is_said() -> None:
    assert COMMITTEE.mismatch(PLAN) is None
    changes = {"least": 4, "most": 9, "clip": 0.5, "weight_bits": 2, "dominance": 0.6}
    for option, value in changes.items():
        other = Privacy(**{**_options(PLAN), option: value})
        given = getattr(COMMITTEE, option)
        said = f"the committee has {option} = {given}, the plan of this run has {value}"
        assert COMMITTEE.mismatch(other) == said
    other = Privacy(**{**_options(PLAN), "secure": Secure(("ann", "cid", "bob"), colluding=1)})
    said = "the committee has helpers = ann, bob, cid, the plan of this run has ann, cid, bob"
    assert COMMITTEE.mismatch(other) == said


def _options(plan: Privacy) -> dict[str, object]:
    names = ("clip", "weight_bits", "least", "most", "dominance", "secure")
    return {name: getattr(plan, name) for name in names}


def test_keys_that_a_policy_names_are_compared() -> None:
    pinned = {own.name: fingerprint(own.public_key, own.verify_key) for own in MEMBERS}
    assert COMMITTEE.unpinned(pinned) is None
    assert COMMITTEE.unpinned({**pinned, "bob": "0" * 64}) == (
        "the key of helper bob is not the one in the policy file"
    )
    other = tuple(replace(own, verify_key=bytes([n] * 32)) for n, own in enumerate(MEMBERS))
    assert replace(COMMITTEE, helpers=other).unpinned(pinned) == (
        "the key of helper ann is not the one in the policy file"
    )
    del pinned["cid"]
    assert COMMITTEE.unpinned(pinned) == "helper cid is not in the policy file"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"colluding": 3}, "helpers = 3 with colluding = 3: at most 2 of 3 may collude"),
        ({"helpers": MEMBERS[:1], "colluding": 1}, "helpers = 1: 2 to 9 helpers make a committee"),
        ({"helpers": (MEMBERS[0], MEMBERS[0], MEMBERS[1])}, "ann is named twice in helpers"),
        ({"helpers": (replace(MEMBERS[0], public_key=b"short"), *MEMBERS[1:])}, "the committee is malformed"),
        ({"helpers": (replace(MEMBERS[0], verify_key=b""), *MEMBERS[1:])}, "the committee is malformed"),
        (
            {"helpers": (*MEMBERS[:2], replace(member("dan", 4), public_key=MEMBERS[0].public_key))},
            "helpers ann and dan have the same key, and would be one helper",
        ),
        (
            {"helpers": (*MEMBERS[:2], replace(member("dan", 4), verify_key=MEMBERS[1].verify_key))},
            "helpers bob and dan have the same key, and would be one helper",
        ),
        ({"helpers": ()}, "the committee is malformed"),
        ({"run": b""}, "the committee is malformed"),
        ({"least": 2}, "least = 2 is not allowed with colluding_clients = 1: at least 3"),
        ({"dominance": 0.3}, "dominance = 0.3 is not allowed with least = 3: it must be above 1/3"),
        ({"most": 2}, "most = 2 is below least = 3"),
        ({"clip": float("nan")}, "clip = nan is not allowed"),
        ({"weight_bits": 7}, "weight_bits = 7 is not allowed"),
    ],
)
def test_a_committee_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError) as refused:
        replace(COMMITTEE, **change)
    assert said in str(refused.value)

"""A server with helpers: deaths at every durable write, lost, lying and restored helpers, spoiled updates."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_update

import offbeat as ob
from offbeat.core.accounting import coefficients
from offbeat.core.noise import banded_noise
from offbeat.net.messages import Register, Rejected, UpdateAck
from offbeat.net.server.effects import Effects
from offbeat.secure.messages import UnmaskShare
from offbeat.secure.unmasking import UnmaskingTimes
from tests.net.server.secure_federation import HELPERS, SIZE, TASKS, Answer, SecureFederation, drive, run
from tests.sampling import thorough

TIMES = UnmaskingTimes(timeout=5.0, give_up=40.0)
pytestmark = pytest.mark.usefixtures("one_thread")


def model_of(f: SecureFederation) -> bytes:
    return f.coordinator.tensors.model.values.numpy().tobytes()


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The model of a run in which nothing happens."""
    return model_of(run(tmp_path_factory.mktemp("honest")))


class Deaths:
    """One death at the first commit of each arrival, release, manifest and sum."""

    def __init__(self, death: str) -> None:
        self.death, self.at = death, set[tuple[str, int | None]]()

    def __call__(self, effects: Effects) -> str | None:
        for row in effects.rows:
            key = row.name, row.task if row.name == "arrived" else row.version
            if (
                row.name in ("arrived", "aggregate", "releasing", "released", "committee")
                and key not in self.at
            ):
                self.at.add(key)
                return self.death
        return None


@pytest.mark.parametrize(
    ("death", "weighted", "tasks"),
    [
        ("between", True, 9),
        *thorough(*((d, w, 30) for d in ("before", "between", "after") for w in (False, True))),
    ],
)
def test_a_death_before_and_after_each_durable_write(
    death: str, weighted: bool, tasks: int, tmp_path: Path
) -> None:
    """The same model to the last bit, whatever died when; no task in two manifests."""
    whole = run(tmp_path / "whole", weighted=weighted, tasks=tasks)
    assert whole.coordinator.stopped == f"reached {tasks} client tasks"
    releases = len(whole.journal("released"))
    assert releases == len(whole.journal("aggregate")) >= tasks // 5
    dies = Deaths(death)
    broken = run(tmp_path / "broken", dies, range(0, 3000, 7), most=3000, weighted=weighted, tasks=tasks)
    assert len(dies.at) >= 1 + tasks + 2 * releases
    assert broken.coordinator.stopped == whole.coordinator.stopped
    broken.check_manifests()
    assert [row["tasks"] for row in broken.journal("releasing")] == [
        row["tasks"] for row in whole.journal("releasing")
    ]
    assert model_of(broken) == model_of(whole)
    assert torch.isfinite(whole.coordinator.tensors.model.values).all()
    broken.finish()
    assert not (tmp_path / "broken" / "run" / "secrets.db").exists()


# ---- helpers and sites that do what they should not ----


def shifted(answer: Answer) -> Answer:
    """A sum that is wrong by 2³¹ in each coordinate."""
    if isinstance(answer, UnmaskShare) and len(answer.total):
        return replace(answer, total=answer.total + np.uint32(2**31))
    return answer


def skips(f: SecureFederation) -> list[str]:
    return [row["reason"] for row in f.journal("skipped")]


def test_one_lying_helper_is_found_out(tmp_path: Path, honest: bytes) -> None:
    """The groups are asked of the others, and the sum is the right one."""
    liar = SecureFederation(tmp_path)
    liar.answers["a"] = shifted
    drive(liar)
    assert model_of(liar) == honest
    assert skips(liar) == []


def test_a_lying_helper_that_is_needed_spoils_a_release_and_no_more(tmp_path: Path) -> None:
    f = SecureFederation(tmp_path)
    f.answers["a"] = shifted

    def leave(i: int, f: SecureFederation) -> None:
        if f.committee is not None and not f.away:
            f.away.add("c")
            f.coordinator.disconnected(f.now, "c")

    drive(f, meanwhile=leave)
    assert f.coordinator.stopped == f"reached {TASKS} client tasks"
    assert len(skips(f)) == len(f.journal("released")) > 2
    told = r"release 1 is not used: its sum has norm \d\.\de\+09, that of 3 clipped updates is at most"
    assert re.match(told, skips(f)[0])
    assert not f.coordinator.tensors.model.values.any()
    f.check_manifests()


@pytest.mark.thorough
def test_a_silent_helper_delays_and_no_more(tmp_path: Path, honest: bytes) -> None:
    f = SecureFederation(tmp_path, unmasking=TIMES)
    f.answers["b"] = lambda answer: None
    drive(f, 2000)
    assert model_of(f) == honest
    assert all(row["helpers"] == ["a", "c"] for row in f.journal("released"))


@pytest.mark.thorough
def test_without_helpers_a_release_waits_then_fails(tmp_path: Path) -> None:
    f = SecureFederation(tmp_path, unmasking=TIMES)

    def leave(i: int, f: SecureFederation) -> None:
        if f.journal("released") and not f.away:
            f.away |= {"a", "b"}
            for name in f.away:
                f.coordinator.disconnected(f.now, name)
        waiting = f.coordinator.driver.engine.waiting
        if waiting and f.away:
            assert f.coordinator.next_due() < f.now + 200
            assert f.idle or any(name in HELPERS for name, _ in f.inbox)
            assert "away" in f.coordinator.secure.status  # type: ignore[union-attr]

    drive(f, 3000, leave)
    assert f.coordinator.stopped == f"reached {TASKS} client tasks"
    first, *later = f.journal("released")
    assert first["reason"] == ""
    assert {row["reason"] for row in later} == {
        f"release {n} is given up after 40 s: no answer of a, b" for n in range(2, 2 + len(later))
    }


def test_a_restored_helper_is_refused_and_the_run_goes_on(tmp_path: Path, honest: bytes) -> None:
    f = SecureFederation(tmp_path)
    kept: list[bytes] = []

    def restore(i: int, f: SecureFederation) -> None:
        path = tmp_path / "a" / "helper.db"
        if f.committee is not None and not kept:
            kept.append(path.read_bytes())
        elif len(f.journal("released")) == 2 and len(kept) == 1:
            kept.append(b"")
            f._files["a"].close()
            path.write_bytes(kept[0])
            f.coordinator.disconnected(f.now, "a")
            f.restart_helper("a")
            f.registers("a")

    drive(f, meanwhile=restore)
    reason = "the file of helper a is older than the one seen before: name a new committee"
    assert ("a", Rejected(reason)) in f.said
    assert model_of(f) == honest
    assert all("a" not in row["helpers"] for row in f.journal("released")[2:])


@pytest.mark.thorough
def test_a_helper_that_dies_before_and_after_it_answers(tmp_path: Path, honest: bytes) -> None:
    """It gives the same answer again; the file has no task twice."""
    f = SecureFederation(tmp_path, unmasking=TIMES)
    asked = 0

    def die(answer: Answer) -> Answer | None:
        nonlocal asked
        asked += 1
        if asked % 3:
            return answer
        f.coordinator.disconnected(f.now, "a")
        f.restart_helper("a")
        f.registers("a")
        return None

    f.answers["a"] = die
    drive(f, 2000)
    assert asked > 6
    assert model_of(f) == honest
    f.check_manifests()


def test_garbage_of_a_site_is_left_out_or_its_release_fails(tmp_path: Path) -> None:
    """Seeds that do not decrypt, a vector that is none, boxes of another length."""
    f = SecureFederation(tmp_path, tasks=24)
    f.masked["site-1"] = lambda u: replace_update(u, boxes=(u.boxes[0][:-1] + b"x", *u.boxes[1:]))
    f.masked["site-2"] = lambda u: replace_update(u, delta=u.delta + 2**30)  # type: ignore[operator]
    f.masked["site-3"] = lambda u: replace_update(u, boxes=u.boxes[:2])
    drive(f, 2000)
    left_out = [task for row in f.journal("released") for task in row["left_out"]]
    assert left_out
    assert any("its updates have seeds that do not decrypt" in reason for reason in skips(f))
    lost = [row["reason"] for row in f.journal("lost")]
    assert "rejected: the update has boxes of [112, 112] bytes: 3 of 112 are needed" in lost
    assert any("its sum has norm" in reason for reason in skips(f))
    f.check_manifests()


def test_a_new_committee_takes_the_place_of_a_lost_one(tmp_path: Path) -> None:
    """What was masked for the old one is trained again, and nothing is summed twice."""
    f = SecureFederation(tmp_path, tasks=20)
    renewed: list[int] = []
    served = "helper a serves another committee already: start it with a new file, and name a new committee"

    def renew(i: int, f: SecureFederation) -> None:
        if len(f.journal("released")) == 2 and f.coordinator.driver.engine.waiting and not renewed:
            renewed.append(i)
            for name in HELPERS:
                f.restart_helper(name, "new.db")
            f.die(helpers=HELPERS)
        elif len(f.journal("committee")) == 2 and len(renewed) == 1 and f.committee is not None:
            renewed.append(i)  # a process of the old committee that nobody has ended
            f.inbox.append(("a", Register(0, 0, secure=True, public_key=bytes(32), committee=bytes(32))))
        elif len(renewed) == 2 and f.said[-1:] and ("a", Rejected(served)) in f.said:
            renewed.append(i)
            f.coordinator.disconnected(f.now, "a")
            f.registers("a")

    drive(f, 2000, renew)
    assert f.coordinator.stopped == "reached 20 client tasks"
    assert [row["epoch"] for row in f.journal("committee")] == [1, 2]
    reason = "masked for another committee: the task is trained again"
    assert any(isinstance(m, UpdateAck) and m.reason == reason for _, m in f.said)
    assert any("a new committee has taken the place" in reason for reason in skips(f))
    assert len(renewed) == 3
    assert not f.journal("released")[-1]["reason"]
    f.check_manifests()
    arrived = [row.task for row in f.rows if row.name == "arrived"]
    assert len(set(arrived)) == len(arrived) == 20


def test_who_may_not_take_part_is_told_why(tmp_path: Path) -> None:
    f = SecureFederation(tmp_path)
    said = {
        ("old", Register(20, 4)): "this run is secure, which the site's version of Offbeat does not know: "
        "upgrade the site",
        ("d", Register(0, 0, secure=True, public_key=bytes(32))): "d is not a helper of this run, which has "
        "a, b, c: join it, or choose another name",
        ("a", Register(20, 4, secure=True)): "a is a helper of this run: connect with offbeat helper, "
        "or choose another name",
    }
    for (name, message), reason in said.items():
        f.coordinator.receive(1.0, name, message)
        effects = f.coordinator.take()
        assert effects.messages == [(name, Rejected(reason))]
        assert not effects.rows
    drive(f, 30)
    f.coordinator.receive(f.now, "a", Register(0, 0, secure=True, public_key=bytes(32)))
    reason = "the committee has another key for helper a than this helper's: name a new committee"
    assert ("a", Rejected(reason)) in f.coordinator.take().messages


def test_helpers_with_one_key_are_no_committee(tmp_path: Path) -> None:
    """A helper's directory was copied before the run; once it has a new one the run begins."""
    f = SecureFederation(tmp_path)
    own, copied = f.helpers["a"], f.helpers["c"]
    f.coordinator.receive(0.0, "a", Register(0, 0, secure=True, public_key=own.public_key))
    f.coordinator.take()
    f.coordinator.receive(0.0, "c", Register(0, 0, secure=True, public_key=own.public_key))
    reason = (
        "helpers c and a have the same key, and would be one helper: start one of them with a new directory"
    )
    assert f.coordinator.take().messages == [("c", Rejected(reason))]
    assert copied.public_key != own.public_key
    drive(f, 30)
    assert f.journal("aggregate")


# ---- noise on sums ----


def noisy(bands: int, multiplier: float = 2.0, epsilon: float | None = 50) -> dict[str, Any]:
    budget = ob.Budget(epsilon=epsilon, delta=1e-3)
    return {"noise": ob.Noise(multiplier=multiplier, bands=bands, budget=budget)}


@pytest.mark.parametrize("bands", [3, *thorough(1)])
def test_noise_on_sums_that_nobody_sees_in_parts(bands: int, tmp_path: Path) -> None:
    """With noise too a death makes the same release again, with the same noise."""
    whole = run(tmp_path / "whole", privacy=noisy(bands))
    dies = Deaths("after")
    broken = run(tmp_path / "broken", dies, range(0, 3000, 7), most=3000, privacy=noisy(bands))
    assert len(dies.at) > TASKS
    assert model_of(broken) == model_of(whole)
    assert all("epsilon" in row for row in broken.journal("aggregate"))
    between = run(tmp_path / "between", Deaths("between"), most=3000, privacy=noisy(bands))
    assert between.coordinator.stopped == f"reached {TASKS} client tasks"
    between.check_manifests()


@pytest.mark.parametrize("bands", [2, *thorough(1, 3, 16)])
def test_a_sum_with_noise_in_bands_is_not_taken_for_a_wrong_one(bands: int, tmp_path: Path) -> None:
    """Noise in bands is up to 1.16 times as long as σ: of a large model no sum would pass for σ itself."""
    f = run(tmp_path, size=20_000, tasks=30, privacy=noisy(bands, 16.0))
    assert skips(f) == []
    released = f.journal("released")
    assert len(released) > 5
    assert not any(row["reason"] for row in released)


def test_a_release_with_noise_that_fails_takes_its_turn_in_the_bands(tmp_path: Path) -> None:
    """What is spent, and what later noise takes back, are counted by the same releases."""
    f = SecureFederation(tmp_path, tasks=30, privacy=noisy(3, 0.1, None))
    f.masked["site-2"] = lambda u: replace_update(u, delta=u.delta - 2**31)  # type: ignore[operator]
    drive(f, 2000)
    assert any("its sum has norm" in reason for reason in skips(f))
    releases, ledger = f.coordinator.tensors.releases, f.coordinator.driver.engine.ledger
    assert releases is not None
    assert ledger is not None
    assert ledger.releases == len(f.journal("released"))
    past, sigma = list[np.ndarray](), releases.plan.sigma
    for row in f.journal("aggregate"):
        seed = f.drawn[row["version"]]
        past = [banded_noise(sigma, past, coefficients(3), SIZE, seed), *past][:2]
    assert all(np.array_equal(own, releases.memory[str(k)].numpy()) for k, own in enumerate(past, 1))


@pytest.mark.parametrize("bands", [3, *thorough(1)])
def test_spent_budgets_end_a_secure_run(bands: int, tmp_path: Path) -> None:
    """Sites leave once their release is over, deaths or not."""
    options = {"tasks": 500, "privacy": noisy(bands, 4.0, 4.0)}
    whole = run(tmp_path / "whole", **options)
    broken = run(tmp_path / "broken", Deaths("after"), range(0, 3000, 7), most=3000, **options)
    for f in (whole, broken):
        assert f.coordinator.stopped == "the privacy budget is spent: 2 clients have any left, 3 are needed"
        left = f.journal("left")
        assert [row["reason"] for row in left] == ["its privacy budget is spent (ε = 4 at δ = 0.001)"] * 3
        releases = f.journal("aggregate")
        assert len(releases) > 5
        assert max(row["epsilon"] for row in releases) <= 4
        f.check_manifests()
    assert model_of(broken) == model_of(whole)

"""A server with helpers: deaths at every durable write, lost, lying and restored helpers, spoiled updates."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace as replace_update

import offbeat as ob
from offbeat.core.events import UPDATES_GONE
from offbeat.core.good_version import GoodVersion
from offbeat.core.privacy.accounting import coefficients
from offbeat.core.privacy.noise import banded_noise
from offbeat.net.messages import Leave, Register, Rejected, UpdateAck, UpdateSubmission
from offbeat.net.server.effects import Effects
from offbeat.secure.messages import UnmaskRefused, UnmaskShare
from offbeat.secure.unmasking import UnmaskingTimes
from tests.net.secure.secure_federation import (
    FOUR,
    HELPERS,
    SIZE,
    TASKS,
    Answer,
    SecureFederation,
    drive,
    run,
)
from tests.sampling import thorough

THREE = {"helpers": HELPERS}
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
    ("death", "weighted", "tasks", "secure"),
    [
        ("between", True, 9, FOUR),
        *thorough(
            *(
                (d, w, 30, s)
                for d in ("before", "between", "after")
                for w, s in ((False, FOUR), (True, THREE))
            )
        ),
    ],
)
def test_a_death_before_and_after_each_durable_write(
    death: str, weighted: bool, tasks: int, secure: dict[str, Any], tmp_path: Path
) -> None:
    """The same model to the last bit, whatever died when; no task in two manifests."""
    whole = run(tmp_path / "whole", weighted=weighted, tasks=tasks, secure=secure)
    assert whole.coordinator.stopped == f"reached {tasks} client tasks"
    releases = len(whole.journal("released"))
    assert releases == len(whole.journal("aggregate")) >= tasks // 5
    dies = Deaths(death)
    broken = run(
        tmp_path / "broken", dies, range(0, 3000, 7), most=3000, weighted=weighted, tasks=tasks, secure=secure
    )
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


def refusing(answer: Answer) -> Answer:
    return UnmaskRefused(answer.release, "no")


def complaining(answer: Answer) -> Answer:
    """It says that the seeds of the first site's update do not decrypt."""
    if isinstance(answer, UnmaskRefused) or (len(answer.total) == 0 and not answer.vote):
        tasks = (1,) if answer.release == 1 else tuple(range(1, 200, 5))
        return UnmaskRefused(answer.release, "the seeds do not decrypt", tasks)
    return answer


@pytest.mark.parametrize("lie", [shifted, refusing, complaining])
def test_one_helper_that_lies_or_refuses_harms_nothing_and_is_out(
    lie: Callable[[Answer], Answer], tmp_path: Path, honest: bytes
) -> None:
    """Twice in the minority; the others go on without it, and nobody else is blamed."""
    f = SecureFederation(tmp_path, secure=FOUR)
    f.answers["a"] = lie
    drive(f)
    assert model_of(f) == honest
    assert skips(f) == []
    released = f.journal("released")
    assert [name for row in released for name in row.get("at_fault", {})] == ["a", "a"]
    assert "at_fault" not in released[-1]
    assert all(row["left_out"] == [] for row in released)
    assert f.journal("left") == []
    out = [m.reason for name, m in f.said if name == "a" and isinstance(m, Rejected)]
    assert len(out) == 1
    assert out[0].startswith("helper a is out: it was in the minority twice, the last time as it ")
    assert f.coordinator.helpers is not None
    assert "a (out)" in f.coordinator.helpers.view.text
    f.die()  # and a server that is started again knows it
    f.step()
    assert f.coordinator.helpers is not None
    assert f.coordinator.helpers.evidence.out == {"a": out[0]}


def test_a_lying_helper_that_is_needed_fails_releases_and_has_no_site_sent_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With H = T + 1 nobody can check what a helper says; the log says that it may be one."""
    f = SecureFederation(tmp_path)
    f.answers["a"] = shifted
    rejoin(f)
    assert f.coordinator.stopped == f"reached {TASKS} client tasks"
    assert len(skips(f)) == len(f.journal("released")) > 2
    told = r"release 1 is not used: its sum has norm \d\.\de\+09, that of 3 clipped updates is at most"
    assert re.match(told, skips(f)[0])
    assert not f.coordinator.tensors.model.values.any()
    assert f.coordinator.helpers is not None
    assert f.coordinator.helpers.evidence.sent_away == {}
    told = {getattr(record, "reason", "") for record in caplog.records}
    assert "one of the sites or of the helpers a, b, c" in told
    f.check_manifests()


def rejoin(f: SecureFederation, most: int = 2000, **options: Any) -> SecureFederation:
    """Let a federation go on; sites that are put aside, or whose circuit is open, ask again now and then."""

    def ask(i: int, f: SecureFederation) -> None:
        if i % 5 == 0:
            for site in f.coordinator.registry.sites.values():
                if not site.present and not any(name == site.name for name, _ in f.inbox):
                    f.site_registers(site.name)

    return drive(f, most, ask, **options)


@pytest.mark.thorough
def test_a_silent_helper_delays_and_no_more(tmp_path: Path, honest: bytes) -> None:
    """It is waited for once; then it is asked last."""
    f = SecureFederation(tmp_path, unmasking=TIMES, secure=FOUR)
    f.answers["b"] = lambda answer: None if isinstance(answer, UnmaskShare) and answer.sums else answer
    drive(f, 2000)
    assert model_of(f) == honest
    first, *later = f.journal("released")
    assert first["seconds"] > 5 > max(row["seconds"] - 12 for row in later)
    assert all(row["helpers"] == ["a", "c", "d"] for row in (first, *later))


@pytest.mark.thorough
def test_without_helpers_a_release_waits_then_fails(tmp_path: Path) -> None:
    f = SecureFederation(tmp_path, unmasking=TIMES, secure=FOUR)

    def leave(i: int, f: SecureFederation) -> None:
        if f.journal("released") and not f.away:
            f.away |= {"a", "b"}
            for name in f.away:
                f.coordinator.disconnected(f.now, name)
        waiting = f.coordinator.driver.engine.waiting
        if waiting and f.away:
            assert f.coordinator.next_due() < f.now + 200
            assert f.idle or any(name in f.names for name, _ in f.inbox)
            assert "away" in f.coordinator.helpers.view.text  # type: ignore[union-attr]

    drive(f, 3000, leave)
    assert f.coordinator.stopped == f"reached {TASKS} client tasks"
    first, *later = f.journal("released")
    assert first["reason"] == ""
    assert {row["reason"] for row in later} == {
        f"release {n} is given up after 40 s: no answer of a, b" for n in range(2, 2 + len(later))
    }


def test_a_restored_helper_is_refused_and_the_run_goes_on(tmp_path: Path, honest: bytes) -> None:
    f = SecureFederation(tmp_path, secure=FOUR)
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
    f = SecureFederation(tmp_path, unmasking=TIMES, secure=FOUR)
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


def unopened(update: UpdateSubmission) -> UpdateSubmission:
    """The seeds for the first helper do not decrypt."""
    return replace_update(update, boxes=(update.boxes[0][:-1] + b"x", *update.boxes[1:]))


def garbage(update: UpdateSubmission) -> UpdateSubmission:
    """A masked vector that is none of a clipped update."""
    return replace_update(update, delta=update.delta + 2**30)  # type: ignore[operator]


def wrongly_boxed(update: UpdateSubmission) -> UpdateSubmission:
    return replace_update(update, boxes=update.boxes[:2])


def committees(first: dict[str, Any], other: dict[str, Any]) -> pytest.MarkDecorator:
    """The first one always, the other one among the thorough tests."""
    return pytest.mark.parametrize("secure", [first, *thorough(other)])


@committees(FOUR, THREE)
def test_a_site_whose_boxes_never_open_hears_it_and_is_sent_away(
    secure: dict[str, Any], tmp_path: Path
) -> None:
    f = SecureFederation(tmp_path, tasks=60, secure=secure)
    f.masked["site-1"], f.masked["site-3"] = unopened, wrongly_boxed
    rejoin(f)
    lost = [row["reason"] for row in f.journal("lost")]
    size, count = (240, 4) if secure is FOUR else (80, 3)
    assert f"rejected: the update has boxes of [{size}, {size}] bytes: {count} of {size} are needed" in lost
    told = [m for name, m in f.said if name == "site-1" and isinstance(m, Rejected)]
    names = "a, b, c" if secure is FOUR else "a"  # with votes the other holders of its groups see it too
    left_out = "is left out of release"
    assert sum(left_out in m.reason and not m.final for m in told) == 3
    away = f"the seeds of this site did not decrypt at {names} in 3 releases in a row, the last"
    assert next(m.reason for m in told if m.final).startswith(away)
    assert not any(left_out in m.reason for n, m in f.said if n != "site-1" and isinstance(m, Rejected))
    assert not any(row.get("at_fault") for row in f.journal("released"))
    assert not any(row["left_out"] for row in f.journal("released")[-5:])
    f.check_manifests()


def test_a_site_that_masks_garbage_is_sent_away(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Releases without it are right, and go on being right; nobody else is sent away."""
    f = SecureFederation(tmp_path, tasks=90, secure=FOUR)
    f.masked["site-2"] = garbage
    rejoin(f)
    assert f.coordinator.helpers is not None
    assert set(f.coordinator.helpers.evidence.sent_away) == {f.coordinator.registry.sites["site-2"].client}
    reasons = [row["reason"] for row in f.journal("released")]
    assert 2 <= sum("its sum has norm" in reason for reason in reasons) <= 6
    assert not any(reasons[-10:])
    spoils = "sums that this site takes part in cannot be those of clipped updates, and releases without it"
    assert [m.reason.startswith(spoils) for n, m in f.said if n == "site-2" and isinstance(m, Rejected)][-1]
    # It was not there when that was found out: the log tells of it all the same.
    assert [getattr(r, "site", "") for r in caplog.records if r.getMessage() == "site sent away"] == [
        "site-2"
    ]


def test_without_votes_a_site_in_wrong_sums_is_aside_longer_each_time_and_comes_back(tmp_path: Path) -> None:
    """A helper may spoil the sums of the releases with one site: then the site is not sent away for it."""
    f = SecureFederation(tmp_path, tasks=150)
    target = "site-2"

    def lie(answer: Answer) -> Answer:
        owners, manifest = f.coordinator.helpers._owners, f.coordinator.helpers._manifest  # type: ignore[union-attr]
        client = f.coordinator.registry.sites[target].client
        with_target = manifest is not None and any(owners[task] == client for task in manifest.tasks)
        return shifted(answer) if with_target else answer

    f.answers["a"] = lie
    rejoin(f, 4000)
    assert f.coordinator.stopped == "reached 150 client tasks"
    assert f.coordinator.helpers is not None
    assert f.coordinator.helpers.evidence.sent_away == {}
    told = [m for n, m in f.said if n == target and isinstance(m, Rejected)]
    assert told
    assert not any(m.final for m in told)
    reasons = [row["reason"] for row in f.journal("released")]
    assert 3 <= sum(map(bool, reasons)) <= 12
    client = f.coordinator.registry.sites[target].client
    joined = [row for row in f.rows if row.name == "joined" and row.client == client]
    assert len(joined) >= 2  # it was back


def test_a_helper_without_votes_has_one_site_sent_away_at_most(tmp_path: Path) -> None:
    """Word against word: what it says of a second site is not believed, and the log names both."""
    f = SecureFederation(tmp_path, tasks=80)

    def complain(answer: Answer) -> Answer:
        if isinstance(answer, UnmaskShare) and not len(answer.total):
            owners = f.coordinator.helpers._owners
            present = sorted(s.client for s in f.coordinator.registry.sites.values() if s.present)
            wrong = tuple(task for task, client in enumerate(owners) if client == present[0])
            return UnmaskRefused(answer.release, "the seeds do not decrypt", wrong)
        return answer

    f.answers["a"] = complain
    rejoin(f)
    assert f.coordinator.helpers is not None
    assert len(f.coordinator.helpers.evidence.sent_away) == 1
    assert len([row for row in f.journal("released") if row.get("complaints")]) > 5


def test_a_site_that_is_sent_away_leaves_no_release_behind_that_waits(tmp_path: Path) -> None:
    """With as many updates as are needed at least, each release with one that is left out fails."""
    f = SecureFederation(tmp_path, tasks=40, secure={"helpers": ("a", "b")}, privacy={"most": 3})
    f.masked["site-0"] = unopened
    drive(f, 1000)
    assert f.coordinator.stopped == "reached 40 client tasks"
    reasons = [row["reason"] for row in f.journal("released")]
    assert 3 <= sum(map(bool, reasons)) <= 6
    assert not any(reasons[-4:])


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
            f.inbox.append(
                ("a", Register(0, 0, public_key=bytes(32), verify_key=bytes(32), committee=bytes(32)))
            )
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
        (
            "d",
            Register(0, 0, public_key=bytes(32), verify_key=bytes(32)),
        ): "d is not a helper of this run, which has a, b, c: join it, or choose another name",
        ("a", Register(20, 4)): "a is a helper of this run: connect with offbeat helper, "
        "or choose another name",
    }
    for (name, message), reason in said.items():
        f.coordinator.receive(1.0, name, message)
        effects = f.coordinator.take()
        assert effects.messages == [(name, Rejected(reason))]
        assert not effects.rows
    drive(f, 30)
    f.coordinator.receive(f.now, "a", Register(0, 0, public_key=bytes(32), verify_key=bytes(32)))
    reason = "the committee has another key for helper a than this helper's: name a new committee"
    assert ("a", Rejected(reason)) in f.coordinator.take().messages


def test_helpers_with_one_key_are_no_committee(tmp_path: Path) -> None:
    """A helper's directory was copied before the run; once it has a new one the run begins."""
    f = SecureFederation(tmp_path)
    own, copied = f.helpers["a"], f.helpers["c"]
    f.coordinator.receive(0.0, "a", Register(0, 0, public_key=own.public_key, verify_key=own.verify_key))
    f.coordinator.take()
    f.coordinator.receive(0.0, "c", Register(0, 0, public_key=own.public_key, verify_key=own.verify_key))
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
    assert all("epsilon" in row for row in broken.journal("released"))
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
    releases, ledger = f.coordinator.tensors.release, f.coordinator.driver.engine.ledger
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
        releases = f.journal("released")
        assert len(releases) > 5
        assert max(row["epsilon"] for row in releases) <= 4
        f.check_manifests()
    assert model_of(broken) == model_of(whole)


def waiting_for_two(tmp_path: Path) -> SecureFederation:
    """A round in which three of five sites have delivered, and two of them keep silent."""
    f = SecureFederation(tmp_path, algorithm=ob.fedavg(steps=1), lease=60.0)
    for _ in range(20):
        f.inbox = [own for own in f.inbox if not (own[0] in ("site-0", "site-1") and is_update(own[1]))]
        f.store.commit(effects := f.step())
        f.deliver(effects)
    assert set(f.coordinator.server.tasks) == {0, 1}
    assert len(f.coordinator.server.held) == 3
    return f


def is_update(message: object) -> bool:
    return isinstance(message, UpdateSubmission)


def test_leases_that_end_together_are_ended_one_by_one_around_the_release_of_the_first(tmp_path: Path):
    """The second site's going ends the round; the others, whose leases are over too, go after its release."""
    f = waiting_for_two(tmp_path)
    for site in f.coordinator.registry.sites.values():
        site.last_seen = f.now
    drive(f, 100)
    names = [row.name for row in f.rows if row.name in ("left", "aggregate", "released")]
    assert names == ["left", "left", "aggregate", "released", "left", "left", "left"]
    assert not any(row["reason"] for row in f.journal("released"))


def test_a_site_that_comes_back_with_other_data_waits_for_the_release_that_its_going_has_begun(
    tmp_path: Path,
):
    f = waiting_for_two(tmp_path)
    f.coordinator.receive(f.now, "site-0", Leave("over"))
    f.coordinator.receive(f.now, "site-1", Register(21, 5, run="run"))
    f.store.commit(effects := f.coordinator.take())
    assert ("site-1", "sites are not heard while a release waits") in effects.closed
    f.deliver(effects)
    f.inbox.append(("site-1", Register(21, 5, run="run")))
    drive(f, 20)
    names = [row.name for row in f.rows if row.name in ("left", "aggregate", "released", "joined")]
    assert names[:10] == ["joined"] * 5 + ["left", "left", "aggregate", "released", "joined"]


# ---- releases that all fail ----


@pytest.mark.parametrize(
    ("lie", "said"),
    [
        (refusing, "helper b refuses it (no)"),
        (lambda answer: replace(answer, manifest=bytes(32)), "helper b has answered with another release or"),
        (
            lambda answer: UnmaskRefused(answer.release, "no", tuple(range(99))),
            "its updates have seeds that do not decrypt at b",
        ),
        (shifted, "(one of the sites or of the helpers a, b)"),
    ],
)
def test_a_run_whose_releases_all_fail_waits_for_its_helpers_until_they_are_mended(
    lie: Callable[[Answer], Answer], said: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No version is made, nothing is spent but of sums that were formed, and the helper is named."""
    f = SecureFederation(
        tmp_path, tasks=24, sites=3, secure={"helpers": ("a", "b")}, privacy=noisy(1, 0.1, None), lease=1e4
    )
    f.answers["b"] = lie
    drive(f, 300)
    helpers, engine = f.coordinator.helpers, f.coordinator.driver.engine
    assert helpers is not None
    assert engine.ledger is not None
    released = f.journal("released")
    assert [bool(row["reason"]) for row in released] == [True] * 3
    assert (f.coordinator.stopped, engine.versions, helpers.waiting) == (None, 1, 4)  # the one that waits
    assert f.coordinator.next_due() <= f.now + 60
    assert engine.ledger.summary()["releases"] == (3 if lie is shifted else 0)
    assert ["epsilon" in row for row in released] == [lie is shifted] * 3
    view = helpers.view
    assert view is not None
    assert view.problem is not None
    assert view.problem.startswith("3 releases in a row have failed, and the next one waits for its helpers")
    assert said in view.problem
    assert f.coordinator.take().meta["helpers"] == view.problem
    waits = [reason for _, _, reason in logged(caplog, "release waits") if "in a row" in reason]
    assert 2 <= len(waits) <= 5
    assert said in waits[-1]
    del f.answers["b"]
    f.coordinator.disconnected(f.now, "b")
    f.restart_helper("b")
    f.registers("b")
    drive(f, 600)
    assert f.coordinator.stopped == "reached 24 client tasks"
    assert f.coordinator.summary()["versions"] == len(f.journal("released")) - 3 > 0
    assert helpers.view is not None
    assert helpers.view.problem is None
    assert len({row["version"] for row in f.journal("released")}) == len(f.journal("released"))
    f.check_manifests()


def test_failed_releases_are_given_up_as_those_that_wait_for_an_absent_helper(tmp_path: Path) -> None:
    """A server that is started again counts them again."""
    f = SecureFederation(tmp_path, secure={"helpers": ("a", "b")}, unmasking=TIMES, tasks=30)
    f.answers["b"] = refusing
    drive(f, 60)
    assert len(f.journal("released")) == 3
    f.die()
    f.step()
    helpers = f.coordinator.helpers
    assert helpers.view is not None
    assert helpers.view.problem is not None
    drive(f, 600)
    assert len(f.journal("released")) > 4
    assert all(row["seconds"] >= 40 for row in f.journal("released")[3:])
    assert f.coordinator.driver.engine.versions == 0


@pytest.mark.parametrize("secure", [{"helpers": ("a", "b")}, FOUR])
def test_a_release_of_withdrawn_updates_is_not_asked_of_helpers(
    secure: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It fails as without helpers, and says nothing about them."""
    f = SecureFederation(tmp_path, tasks=40, secure=secure)

    def go_back(_: int, f: SecureFederation) -> None:
        driver = f.coordinator.driver
        held = len(driver.tensors.updates)
        if driver.engine.versions and held == 2 and not driver.engine.waiting:
            driver.tensors.good = GoodVersion.in_memory(0, driver.tensors.model)
            driver.roll_back(f.now, "it has collapsed")

    drive(f, meanwhile=go_back)
    assert f.coordinator.stopped == "reached 40 client tasks"
    failed = [row for row in f.journal("released") if row["reason"]]
    assert len(failed) > 3
    assert {row["reason"] for row in failed} == {UPDATES_GONE}
    assert not any(row["helpers"] or row.get("at_fault") for row in failed)
    assert not logged(caplog, "release waits")
    f.check_manifests()


# ---- what an operator is told ----


def logged(caplog: pytest.LogCaptureFixture, event: str) -> list[tuple[Any, ...]]:
    """What a log says besides an event: helper, helpers and reason."""
    return [
        tuple(getattr(record, name, None) for name in ("helper", "helpers", "reason"))
        for record in caplog.records
        if record.getMessage() == event
    ]


def test_the_helpers_for_which_a_run_waits_are_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    f = SecureFederation(tmp_path)
    f.away.add("b")
    f.connect()
    while not f.idle or f.coordinator.registry.sites.keys() < {f"site-{i}" for i in range(f.sites)}:
        f.deliver(f.step())
    view = f.coordinator.helpers.view
    assert view is not None
    assert (view.names, view.formed) == (HELPERS, False)
    assert view.text == "helpers: a, b (away), c; the committee is formed when all are there"
    assert logged(caplog, "helper joined")[-1] == ("c", None, "the committee waits for b")
    assert set(logged(caplog, "the run waits for helpers")) == {(None, "b", None)}


def test_a_helper_that_is_lost_is_told_at_once_and_a_release_at_the_end_is_no_skipped_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    f = SecureFederation(tmp_path, unmasking=TIMES)

    def leave(i: int, f: SecureFederation) -> None:
        if f.journal("released") and not f.away:
            f.away.add("a")
            f.coordinator.disconnected(f.now, "a")
            ((name, _, reason),) = logged(caplog, "helper lost")
            assert name == "a"
            assert reason.startswith("its connection has ended")
        if f.away and f.coordinator.driver.engine.waiting:
            f.coordinator.stop(f.now, "stopped by its operator")

    drive(f, 3000, leave)
    assert f.coordinator.stopped == "stopped by its operator"
    assert len(f.journal("skipped")) > f.coordinator.driver.skipped == 0
    assert {reason for _, _, reason in logged(caplog, "release given up")} == {
        "the run has ended: stopped by its operator"
    }
    assert not logged(caplog, "version skipped")
    assert len(logged(caplog, "helper lost")) == 1


def test_a_helper_that_goes_instead_of_answering_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As one does whose messages are malformed: the connection ends at each of them."""
    f = SecureFederation(tmp_path, secure={"helpers": ("a", "b")})

    def malformed(answer: Answer) -> None:
        f.coordinator.disconnected(f.now, "b")
        f.registers("b")

    f.answers["b"] = malformed  # type: ignore[assignment]
    told = False
    for _ in range(60):
        effects = f.step()
        told = told or effects.told
        f.deliver(effects)
    problem = "b: gone instead of an answer for a release; a helper ends so whose answers are malformed"
    view = f.coordinator.helpers.view
    assert view is not None
    assert str(view.problem).startswith(problem)
    assert told  # it is made durable, so that `offbeat status` can tell it
    reason = "its connection has ended instead of an answer to release 1"
    assert set(logged(caplog, "helper lost")) == {("b", None, reason)}
    del f.answers["b"]
    drive(f)
    assert f.coordinator.helpers.view.problem is None


def test_a_helper_of_which_nothing_comes_is_told_before_its_lease_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    f = SecureFederation(tmp_path, lease=60.0, tasks=10**6)
    drive(f, 20)
    helpers = f.coordinator.helpers
    heard = f.now
    f.answers["b"] = lambda answer: None
    for _ in range(50):
        for name in (*(own for own in HELPERS if own != "b"), *f.coordinator.registry.sites):
            f.coordinator.heartbeat(f.now, name)
        f.deliver(f.step())
    assert heard < f.now < heard + 60
    ((name, _, reason),) = logged(caplog, "helper silent")
    assert name == "b"
    assert re.match(r"it is connected, and nothing of it has come for 4\d s", reason)
    assert helpers.view is not None
    assert "b (silent)" in helpers.view.text
    f.coordinator.heartbeat(f.now, "b")
    assert "silent" not in helpers.view.text
    assert logged(caplog, "helper heard again") == [("b", None, None)]

"""A helper: exact weighted sums of masks, refusals in order and in their words, the same answer again."""

import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from offbeat.core.errors import DamageError, RunError, UsageError
from offbeat.secure.helper import Helper
from offbeat.secure.helper_file import HelperFile, TaskRelease
from offbeat.secure.masks import add_masks, mask
from offbeat.secure.messages import UnmaskRefused, UnmaskRequest, UnmaskShare
from offbeat.secure.unmasking import check_instance
from tests.secure.federation import Federation, committee_of

WEIGHTS = (15, 8, 8, 8)


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[Federation]:
    made = Federation(tmp_path)
    for client, weight in enumerate(WEIGHTS):
        made.add(np.arange(100) * client, weight, task=80 + client)
    yield made
    for number in range(made.count):
        made.close(number)


def changed(request: UnmaskRequest, place: int, **changes: object) -> UnmaskRequest:
    entries = list(request.entries)
    entries[place] = replace(entries[place], **changes)
    return replace(request, entries=tuple(entries))


def only(request: UnmaskRequest, *places: int) -> UnmaskRequest:
    return replace(request, entries=tuple(request.entries[place] for place in places))


def released(federation: Federation) -> list[tuple[object, ...]]:
    """What the file of helper 0 has, read beside its lock from a copy."""
    copy = federation.directory / "copy.db"
    copy.write_bytes(federation.path(0).read_bytes())
    database = sqlite3.connect(copy)
    rows = database.execute("SELECT * FROM released ORDER BY task").fetchall()
    rows += database.execute("SELECT * FROM helper").fetchall()
    database.close()
    return rows


def test_the_share_is_the_weighted_sum_of_the_masks(federation: Federation) -> None:
    request = federation.request(0)
    share = federation.helpers[0].answer(request)
    assert isinstance(share, UnmaskShare)
    expected = np.zeros(100, np.uint32)
    for entry in request.entries:
        seeds = federation.helpers[0]._key.open(
            entry.box, federation.committee, entry.task, entry.client, entry.site, 0
        )
        assert seeds is not None
        add_masks(expected, list(seeds.values()), [entry.weight] * len(seeds))
    assert (share.total == expected).all()
    assert (share.release, share.groups, share.instance) == (12, (2,), 1)
    bare = [(entry.task, entry.client, entry.weight) for entry in request.entries]
    assert share.manifest == federation.committee.manifest(12, bare)


def test_a_check_writes_nothing_and_tells_no_sum(federation: Federation) -> None:
    before = released(federation)
    share = federation.helpers[0].answer(federation.request(0, check=True))
    assert isinstance(share, UnmaskShare)
    assert len(share.total) == 0
    assert share.instance == 0
    assert released(federation) == before


BAD: dict[str, tuple[Callable[[UnmaskRequest], UnmaskRequest], str]] = {
    "committee": (
        lambda r: replace(r, committee=bytes(32)),
        "release 12 is of another committee than this helper's",
    ),
    "few clients": (
        lambda r: only(r, 0, 1),
        "release 12 has the updates of 2 clients: 3 to 10 are summed together",
    ),
    "many clients": (
        lambda r: replace(r, entries=tuple(replace(r.entries[0], task=200 + n, client=n) for n in range(11))),
        "release 12 has the updates of 11 clients: 3 to 10 are summed together",
    ),
    "client twice": (
        lambda r: replace(r, entries=(*r.entries, replace(r.entries[1], task=99))),
        "client 1 is in release 12 twice",
    ),
    "task twice": (lambda r: changed(r, 3, task=81), "task 81 is in release 12 twice"),
    "weight": (lambda r: changed(r, 1, weight=16), "weight 16 of task 81 is not allowed: 1 to 15"),
    "no weight": (lambda r: changed(r, 1, weight=0), "weight 0 of task 81 is not allowed: 1 to 15"),
    "negative weight": (lambda r: changed(r, 1, weight=-1), "weight -1 of task 81 is not allowed: 1 to 15"),
    "dominant": (
        lambda r: changed(changed(changed(changed(r, 0, weight=1), 1, weight=10), 2, weight=2), 3, weight=1),
        "task 81 has 71.4 % of the weight of release 12: at most 50 % is allowed",
    ),
    "group": (lambda r: replace(r, groups=(0, 1)), "group 0 is not one of this helper's"),
    "no such group": (lambda r: replace(r, groups=(-1,)), "group -1 is not one of this helper's"),
    "seeds": (lambda r: changed(r, 1, box=r.entries[2].box), "the seeds of task 81 do not decrypt"),
    "another site": (lambda r: changed(r, 1, site="else"), "the seeds of task 81 do not decrypt"),
    "another client": (lambda r: changed(r, 1, client=9), "the seeds of task 81 do not decrypt"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("check", [False, True])
def test_what_is_not_allowed_is_refused_and_leaves_the_file_as_it_was(
    federation: Federation, name: str, check: bool
) -> None:
    change, said = BAD[name]
    before = released(federation)
    answer = federation.helpers[0].answer(change(federation.request(0, check=check)))
    tasks = (81,) if said.startswith("the seeds") else ()
    assert answer == UnmaskRefused(12, said, tasks)
    assert released(federation) == before
    assert isinstance(federation.helpers[0].answer(federation.request(0)), UnmaskShare)


def test_refusals_come_in_their_order(federation: Federation) -> None:
    """Each fault alone and with all that come after it says the same."""
    federation.helpers[0].answer(federation.request(0, release=9))
    faults: list[Callable[[UnmaskRequest], UnmaskRequest]] = [
        lambda r: changed(r, 3, box=b""),
        lambda r: replace(r, groups=(0,)),
        lambda r: changed(changed(changed(r, 1, weight=1), 2, weight=1), 3, weight=1),
        lambda r: changed(r, 2, weight=0),
        lambda r: changed(r, 0, task=80),
        lambda r: changed(r, 2, client=3),
        lambda r: only(r, 2, 3, 3),
        lambda r: replace(r, committee=b""),
    ]
    request = federation.request(0)
    fresh = tuple(replace(entry, task=entry.task + 100) for entry in request.entries)
    request = replace(request, entries=fresh)
    words = ["do not decrypt", "group 0", "has 83.3 %", "weight 0", "was released before, in release 9",
             "client 3", "the updates of 1 clients", "another committee"]  # fmt: skip
    for fault, word in zip(faults, words, strict=True):
        request = fault(request)
        answer = federation.helpers[0].answer(request)
        assert isinstance(answer, UnmaskRefused)
        assert word in answer.reason


def test_the_same_release_again_has_the_same_bytes_also_after_a_restart(federation: Federation) -> None:
    request = federation.request(0)
    first = federation.helpers[0].answer(request)
    assert isinstance(first, UnmaskShare)
    after = released(federation)
    for restarted in (False, True):
        helper = federation.restart(0) if restarted else federation.helpers[0]
        again = helper.answer(request)
        assert isinstance(again, UnmaskShare)
        assert (again.total == first.total).all()
        assert (again.manifest, again.instance) == (first.manifest, 1)
    assert released(federation) == after


@pytest.mark.parametrize("change", [
    lambda r: replace(r, release=13), lambda r: only(r, 1, 2, 3), lambda r: changed(r, 2, weight=9),
])  # fmt: skip
def test_an_update_is_in_one_release_only(
    federation: Federation, change: Callable[[UnmaskRequest], UnmaskRequest]
) -> None:
    request = federation.request(0)
    federation.helpers[0].answer(request)
    for restarted in (False, True):
        helper = federation.restart(0) if restarted else federation.helpers[0]
        answer = helper.answer(change(request))
        assert isinstance(answer, UnmaskRefused)
        assert answer.reason in {f"task {task} was released before, in release 12" for task in (80, 81)}


def test_other_seeds_of_the_same_updates_are_another_release(federation: Federation) -> None:
    """Two sums that differ in one box would tell the mask of one update."""
    request = federation.request(0)
    federation.helpers[0].answer(request)
    entry = federation.entries[1]
    forged = mask(np.zeros(100, np.int64), federation.committee, entry.task, entry.client, entry.site)
    answer = federation.helpers[0].answer(changed(request, 1, box=forged.boxes[0]))
    assert isinstance(answer, UnmaskRefused)
    assert answer.reason == "task 80 was released before, in release 12"


@pytest.mark.parametrize("field", ["task", "client", "weight"])
def test_numbers_of_too_many_bits_are_refused(federation: Federation, field: str) -> None:
    answer = federation.helpers[0].answer(changed(federation.request(0), 1, **{field: 2**63}))
    assert answer == UnmaskRefused(12, "a release, task, client or weight has more than 64 bits")
    assert isinstance(federation.helpers[0].answer(federation.request(0)), UnmaskShare)


def test_any_helpers_of_two_releases_have_one_in_common_that_refuses(tmp_path: Path) -> None:
    """A server whose state was restored forms another set: no quorum, of 4, votes for it."""
    made = Federation(tmp_path, 5, {"colluding": 2})
    for client in range(5):
        made.add(np.zeros(100, np.int64), 3, task=80 + client)
    for number in range(4):
        assert isinstance(made.helpers[number].answer(replace(made.request(number), groups=())), UnmaskShare)
    for number in range(5):
        other = only(replace(made.request(number, release=13), groups=()), 0, 1, 2)
        answer = made.helpers[number].answer(other)
        assert isinstance(answer, UnmaskRefused if number < 4 else UnmaskShare)


def test_a_helper_serves_one_committee_which_has_its_key(federation: Federation) -> None:
    helper, committee = federation.restart(0), federation.committee
    assert helper.committee == committee  # after a restart, without being told
    helper.serve(committee)
    said = "helper hospital-a serves another committee already: start it with a new file"
    with pytest.raises(UsageError, match=said):
        helper.serve(replace(committee, epoch=2))
    new = Helper("hospital-a", HelperFile(federation.directory / "new.db"))
    assert new.public_key != helper.public_key
    with pytest.raises(UsageError, match="another key for helper hospital-a than this helper's"):
        new.serve(committee)
    assert new.committee is None
    answer = new.answer(federation.request(0))
    assert answer == UnmaskRefused(12, "release 12 is of another committee than this helper's")
    new.serve(committee_of([new, *federation.helpers[1:]]))


def test_a_file_restored_from_a_copy_is_refused(federation: Federation) -> None:
    helper, old = federation.helpers[0], federation.path(0).read_bytes()
    share = helper.answer(federation.request(0))
    assert isinstance(share, UnmaskShare)
    check_instance("hospital-a", share.instance, helper.instance)
    federation.close(0)
    federation.path(0).write_bytes(old)
    restored = federation.helper(0)
    federation.helpers[0] = restored
    said = "the file of helper hospital-a is older than the one seen before: name a new committee"
    with pytest.raises(UsageError, match=said):
        check_instance("hospital-a", share.instance, restored.instance)


def test_the_file_is_its_owners_and_one_processs(federation: Federation) -> None:
    assert federation.path(0).stat().st_mode & 0o777 == 0o600
    with pytest.raises(UsageError, match=r"hospital-a\.db is in use by another process: stop it first"):
        HelperFile(federation.path(0))


@pytest.mark.parametrize("damage", ["zeros", "shorter", "row", "release"])
def test_a_damaged_file_says_what_to_do(federation: Federation, damage: str) -> None:
    """Also where SQLite notices nothing, and task 81 could be released again."""
    federation.helpers[0].answer(federation.request(0))
    federation.close(0)
    path = federation.directory / "helper.db"
    content = federation.path(0).read_bytes()
    changes = {
        "row": "UPDATE helper SET committee = '{}'",
        "release": "UPDATE released SET task = 91 WHERE task = 81",
    }
    if damage in changes:
        path.write_bytes(content)
        database = sqlite3.connect(path)
        with database:
            database.execute(changes[damage])
        database.close()
    else:
        path.write_bytes(bytes(len(content)) if damage == "zeros" else content[:5000])
    with pytest.raises(DamageError, match="name a new committee; never restore the file from a copy"):
        HelperFile(path)
    federation.helpers[0] = federation.helper(0)


def test_a_directory_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be written"):
        HelperFile(tmp_path / "missing" / "helper.db")


States = list[dict[str, bytes]]


@pytest.fixture
def states(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> States:
    """What `live` holds at each statement of SQLite from now on: what a process killed there leaves."""
    found: States = []
    live, connect = tmp_path / "live", sqlite3.connect
    live.mkdir()

    def traced(path: Path, **options: object) -> sqlite3.Connection:
        database = connect(path, **options)  # type: ignore[call-overload]
        if Path(path).parent == live:
            database.set_trace_callback(lambda statement: found.append(contents(live)))
        return database

    monkeypatch.setattr(sqlite3, "connect", traced)
    return found


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def reopened(tmp_path: Path, state: dict[str, bytes], number: int) -> Helper:
    folder = tmp_path / f"state-{number}"
    folder.mkdir()
    for name, content in state.items():
        (folder / name).write_bytes(content)
    return Helper("hospital-a", HelperFile(folder / "hospital-a.db"))


def test_a_helper_killed_at_any_statement_has_released_all_or_nothing(tmp_path: Path, states: States) -> None:
    made = Federation(tmp_path / "live")
    for client, weight in enumerate(WEIGHTS):
        made.add(np.arange(100) * client, weight, task=80 + client)
    request = made.request(0)
    states.clear()
    share = made.helpers[0].answer(request)
    assert isinstance(share, UnmaskShare)
    before_answer, after_answer = list(states), contents(tmp_path / "live")
    assert len(before_answer) >= 8  # reads, BEGIN, a row for each task, the instance, COMMIT
    written = 0
    for number, state in enumerate([*before_answer, after_answer]):
        helper = reopened(tmp_path, state, number)
        rows = len(helper._file.released(range(80, 84)))
        assert (rows, helper.instance) in ((0, 0), (4, 1))
        written += rows == 4
        again = helper.answer(request)
        assert isinstance(again, UnmaskShare)
        assert (again.total == share.total).all()
        assert (again.manifest, again.instance) == (share.manifest, 1)
        assert isinstance(helper.answer(replace(request, release=13)), UnmaskRefused)
        helper._file.close()
    assert written  # what was answered is durable
    assert isinstance(reopened(tmp_path, after_answer, 99).answer(only(request, 1, 2, 3)), UnmaskRefused)


def test_a_helper_killed_at_any_statement_of_its_beginning_has_one_key(
    tmp_path: Path, states: States
) -> None:
    live = tmp_path / "live"
    helper = Helper("hospital-a", HelperFile(live / "hospital-a.db"))
    shown = contents(live)
    committee = committee_of([helper, *Federation(tmp_path).helpers[1:]])
    begun = len(states)
    helper.serve(committee)
    states.append(contents(live))
    for number, state in enumerate([*states, shown]):
        again = reopened(tmp_path, state, number)
        assert again.committee in (None, committee)
        if number >= begun or state is shown:  # the key was shown
            assert again.public_key == helper.public_key
        again._file.close()
    last = reopened(tmp_path, states[-1], 99)
    assert last.committee == committee


def test_a_disk_that_is_full_gives_no_answer(federation: Federation, monkeypatch: pytest.MonkeyPatch) -> None:
    file = federation.helpers[0]._file
    pages = file._database.execute("PRAGMA page_count").fetchone()[0]
    file._database.execute(f"PRAGMA max_page_count = {pages}")
    request = federation.request(0)
    many = tuple(replace(request.entries[0], task=10**6 + n) for n in range(4000))
    with pytest.raises(RunError, match="cannot write"):
        file.add((entry.task for entry in many), TaskRelease(12, bytes(32)))
    assert not file.released(entry.task for entry in many)
    assert file.instance == 0
    assert isinstance(federation.helpers[0].answer(request), UnmaskShare)

"""A server whose directory is put back from a copy, and a helper whose file is: who notices, and does what.

The server is killed and its directory copied. It goes on until every site has begun a task from a version
that the copy does not have, and is killed again; the copy takes the directory's place. Each site must leave
with the reason, also one that is started again. A federation without memory of it, sites with empty
directories, can go on with the restored run: then noise must be fresh, and no helper may release a task with
another set than before. Before that a helper is started with an old copy of its file: it must be refused.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.journal import Row
from offbeat.runs.record import read_run
from offbeat.secure.helper_file import HelperFile
from tests.storm.findings import ANOTHERS, wrong_budget, wrong_seeds
from tests.storm.processes import ended, has_ended, kill
from tests.storm.redo import releases_of
from tests.storm.storm import PROCESSES, Storm, newest_version
from tests.storm.witness import END, newest_models, read_seeds

LATER = 8  # versions that the server makes after the copy, at least
GONE_BACK = "the server has gone back from version"
OLDER = "is older than the one seen before: name a new committee"
BEFORE = "was released before"


@dataclass(frozen=True)
class Restored:
    """What happened.

    Attributes:
        copied: The version that the copy has.
        reached: The version that the server had made when it was put back.
        starts: How often the server had been started by then.
        ends: How each site ended after that, by name.
        ends_again: The same of sites that were started again.
        helper: How the helper with the old file ended; None without helpers.
    """

    copied: int
    reached: int
    starts: int
    ends: dict[str, str]
    ends_again: dict[str, str]
    helper: str | None

    @property
    def told(self) -> dict[str, object]:
        """What is printed of it."""
        left = [sum(GONE_BACK in end for end in ends.values()) for ends in (self.ends, self.ends_again)]
        return {
            "the copy has version": self.copied,
            "put back when the version was": self.reached,
            "sites that left since it went back": f"{left[0]} of {len(self.ends)}",
            "the same, started again": f"{left[1]} of {len(self.ends_again)}",
            "one of them": next(iter(self.ends.values())),
            "helper with an old file": self.helper or "none",
        }


def restore(storm: Storm) -> Restored:
    """Put the server's directory back from a copy, and let sites without memory finish its run."""
    storm.calm()
    copy, later = storm.directory / "copy", storm.directory / "later"
    storm.kill_server()
    shutil.copytree(storm.state, copy)
    copied = newest_version(read_run(copy))
    storm.start_server()
    storm.await_server()
    helper = restore_helper(storm) if storm.helpers else None
    storm.wait(lambda: all(version > copied for version in newest_sent(storm).values()))
    storm.wait(lambda: newest_version(read_run(storm.state)) >= copied + LATER)
    storm.kill_server()
    storm.state.rename(later)
    shutil.copytree(copy, storm.state)
    # The copy does not know the tokens that were renewed since.
    storm.make_kits([*storm.helper_names, *storm.site_names])
    starts = storm.starts
    forget_ends(storm)
    storm.start_server()
    storm.await_server()
    storm.wait(lambda: len(ends(storm)) == storm.sites)
    first = ends(storm)
    end_sites(storm)
    forget_ends(storm)
    storm.make_kits(storm.site_names)
    storm.processes[0] = storm.start_sites(0)
    again = len(range(0, storm.sites, PROCESSES))
    storm.wait(lambda: len(ends(storm)) == again)
    found = Restored(copied, newest_version(read_run(later)), starts, first, ends(storm), helper)
    end_sites(storm)
    for state in storm.logs.glob("*/state"):
        shutil.rmtree(state)
    forget_ends(storm)
    storm.make_kits(storm.site_names)
    storm.processes = [storm.start_sites(place) for place in range(PROCESSES)]
    storm.wait(lambda: successes(storm) >= LATER)
    storm.finish()
    return found


def restore_helper(storm: Storm) -> str:
    """Start a helper with an old copy of its file; returns how it ends. Then it goes on with the newest."""
    name = storm.helper_names[0]
    file = storm.directory / name / "helper.db"
    old, newest = file.with_suffix(".old"), file.with_suffix(".newest")
    storm.wait(lambda: instance_seen(storm, name) > 0)
    kill(storm.helpers[name])
    shutil.copyfile(file, old)
    with HelperFile(old) as opened:
        instance = opened.instance
    storm.start_helper(name)
    storm.wait(lambda: instance_seen(storm, name) > instance)
    kill(storm.helpers[name])
    file.rename(newest)
    old.rename(file)
    log = storm.directory / f"helper-{name}.log"
    before = log.stat().st_size
    storm.start_helper(name)
    storm.wait(lambda: has_ended(storm.helpers[name]))
    status = ended(storm.helpers[name])
    said = log.read_bytes()[before:].decode().splitlines()
    newest.rename(file)
    storm.start_helper(name)
    told = [line for line in said if not line.startswith("{")]  # but for its log
    return f"status {status}: {' / '.join(told)}"


def instance_seen(storm: Storm, name: str) -> int:
    """The number of a helper's releases as the server's journal has it."""
    return max(
        (row["instances"].get(name, 0) for row in read_run(storm.state).entries("released")), default=0
    )


def successes(storm: Storm) -> int:
    """Versions of a directory's journal that were made since it was put back."""
    return sum(good for _, good in since(list(read_run(storm.state).rows()), storm.directory / "copy"))


def since(rows: list[Row], copy: Path) -> list[tuple[Row, bool]]:
    """The releases of a journal that its copy has not, each with whether it succeeded."""
    known = max(row.seq for row in read_run(copy).rows())
    masked = any(row.name == "committee" for row in rows)
    good = {row.version for row in rows if row.name == "released" and not (row.data or {})["reason"]}
    return [
        (row, row.version in good or not masked)
        for row in rows
        if row.name == "aggregate" and row.seq > known and row.version is not None
    ]


def newest_sent(storm: Storm) -> dict[str, int]:
    """The version of the last task of each site."""
    return dict.fromkeys((f"site-{i}" for i in range(storm.sites)), -1) | newest_models(storm.logs)


def ends(storm: Storm) -> dict[str, str]:
    """How the sites have ended, by name."""
    return {path.parent.name: path.read_text(encoding="utf-8") for path in storm.logs.glob(f"*/{END}")}


def forget_ends(storm: Storm) -> None:
    """Forget how the sites have ended."""
    for path in storm.logs.glob(f"*/{END}"):
        path.unlink()


def end_sites(storm: Storm) -> None:
    """End the sites' processes, which have nothing to do any more."""
    for process in storm.processes:
        kill(process)


def examine_restored(storm: Storm, restored: Restored) -> tuple[dict[str, object], list[str]]:
    """What is printed of the run that went on, and what is wrong."""
    record = read_run(storm.state)
    rows = list(record.rows())
    releases = since(rows, storm.directory / "copy")
    refused = [row["reason"] for row in record.entries("released") if BEFORE in row["reason"]]
    used, after = read_seeds(storm.seeds), read_seeds(storm.seeds, restored.starts)
    failed = sum(not good for _, good in releases)
    told = {
        **restored.told,
        "releases after it was put back": f"{len(releases)} (of them failed: {failed})",
        "refused by helpers": " ".join([str(len(refused)), *(f"({reason})" for reason in refused[:1])]),
        "noise, before and after": f"{len({own.seed for own in used})} seeds",
    }
    wrong = [
        f"{name} ended with: {end}"
        for own in (restored.ends, restored.ends_again)
        for name, end in own.items()
        if GONE_BACK not in end
    ]
    if restored.helper is not None and (
        not restored.helper.startswith("status 1:") or OLDER not in restored.helper
    ):
        wrong.append(f"a helper with an old file ended with {restored.helper}")
    if record.status != "finished":
        wrong.append(f"the run is {record.status}")
    if used:
        made = releases_of(row for row, _ in releases)
        wrong += [line for line in wrong_seeds(used, {}) if ANOTHERS in line] + wrong_seeds(after, made)
        wrong += wrong_budget(record, rows)
    before = manifests(list(read_run(storm.directory / "later").rows()))
    good = {row.version for row, good in releases if good}
    for task, (version, manifest) in manifests(rows).items():
        if version in good and before.get(task, (version, manifest)) != (version, manifest):
            wrong.append(f"task {task} was released in two sets: {before[task]} and {(version, manifest)}")
    return told, wrong


def manifests(rows: list[Row]) -> dict[int, tuple[int | None, str]]:
    """The release of each task whose helpers were asked: its version and manifest."""
    return {
        task: (row.version, (row.data or {})["manifest"])
        for row in rows
        if row.name == "releasing"
        for task in (row.data or {})["tasks"]
    }

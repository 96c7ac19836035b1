"""What became of a killed federation's updates and noise: its run's directory against its witnesses."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from offbeat.core.events import TaskId, Version
from offbeat.core.journal import Row
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.net.secure.release_seeds import ReleaseSeed
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.schema import version_file
from offbeat.runs.verify import named_files
from tests.storm.redo import Redone, redo, releases_of, spent
from tests.storm.witness import ACKNOWLEDGED, SENT, read_models, read_seeds, read_tasks

SHOWN = 10  # of what must not be
ANOTHERS = "releases with another's noise"


@dataclass(frozen=True)
class Findings:
    """What the witnesses and the journal say of each other; `wrong` lists what must not be."""

    rows: int
    versions: int
    rollbacks: int
    sent_again: int
    acknowledged: int
    acknowledged_again: int
    arrived: int
    lost: int
    twice: int
    aggregated_twice: int
    models: int
    releases: str
    noise: str
    redone: str
    wrong: list[str]


def needed_files(record: RunRecord) -> set[str]:
    """The files of tensors of an ended run: its model, and what it can go on from under other limits."""
    last = record.checkpoint()
    if last is None:
        return {"model.safetensors"}
    current = {path.name for path in record.path.glob(version_file(last.version))}
    return {"model.safetensors", *named_files(last), *current}


def examine(state: Path, logs: Path, seeds: Path) -> Findings:
    """Compare what the witnesses wrote with the journal.

    Args:
        state: The run's directory.
        logs: The logs of the sites.
        seeds: The seeds of noise that the server's processes used.
    """
    record, used, models = read_run(state), read_seeds(seeds), read_models(logs)
    rows, names = list(record.rows()), record.site_names()
    arrived = Counter((names[row.client or 0], row.task) for row in rows if row.name == "arrived")
    logged = read_tasks(logs, ACKNOWLEDGED)
    acknowledged = {(site, task): times for site, tasks in logged.items() for task, times in tasks.items()}
    sent = [times for tasks in read_tasks(logs, SENT).values() for times in tasks.values()]
    taken = Counter(task for row in rows if row.name == "aggregate" for task in (row.data or {})["tasks"])
    summed = Counter(task for row in rows if row.name == "releasing" for task in (row.data or {})["tasks"])
    lost = [key for key in acknowledged if key not in arrived]
    must_be_none = {
        "acknowledged and lost": lost,
        "arrived twice": repeated(arrived),
        "aggregated twice": repeated(taken),
        "in two manifests": repeated(summed),
        "versions of which sites were sent two models": [v for v, own in models.items() if len(own) > 1],
    }
    wrong = [f"{what}: {found[:SHOWN]}" for what, found in must_be_none.items() if found]
    if record.status != "finished":
        wrong.append(f"the run is {record.status}")
    found = {p.name for p in state.iterdir() if p.suffix == ".safetensors" or p.name.startswith("secrets")}
    if left := sorted(found - needed_files(record)):
        wrong.append(f"files are left: {left[:SHOWN]}")
    wrong += wrong_seeds(used, releases_of(rows)) if used else []
    redone = redo(record, rows, logs / "updates", used)
    wrong += wrong_outcome(record, rows, redone, models)
    released = [row.data or {} for row in rows if row.name == "released"]
    return Findings(
        rows=len(rows),
        versions=max((row.version or 0 for row in rows), default=0),
        rollbacks=sum(row.name == "rolled_back" for row in rows),
        sent_again=sum(sent) - len(sent),
        acknowledged=len(acknowledged),
        acknowledged_again=sum(acknowledged.values()) - len(acknowledged),
        arrived=sum(arrived.values()),
        lost=len(lost),
        twice=len(repeated(arrived)),
        aggregated_twice=len(repeated(taken)),
        models=len(models),
        releases=f"{len(released)}, of them failed: {sum(bool(data['reason']) for data in released)}",
        noise=noise_told(used, redone),
        redone=outcome(record, redone),
        wrong=wrong,
    )


def repeated(counts: Mapping[object, int]) -> list[object]:
    """What is there more than once."""
    return [key for key, times in counts.items() if times > 1]


def outcome(record: RunRecord, redone: Redone) -> str:
    """Whether the model made again is the run's final one, in words."""
    if redone.twice:
        return f"not compared: {redone.twice} tasks were trained twice, with another outcome"
    same = redone.same_as(record.path / "model.safetensors")
    return "the same bytes" if same else "other bytes than model.safetensors"


def wrong_outcome(
    record: RunRecord, rows: Sequence[Row], redone: Redone, models: Mapping[Version, set[str]]
) -> list[str]:
    """What is wrong of the model, the versions that sites were sent, and the budget."""
    wrong = []
    if (found := outcome(record, redone)).startswith("other"):
        wrong.append(f"the model of the journal is {found}")
    if not redone.twice:
        differ = [v for v, digests in models.items() if digests != {redone.sent.get(v)}]
        wrong += [f"versions sent that are not the journal's: {differ[:SHOWN]}"] if differ else []
    if redone.ledger is not None:
        own = spent(rows, redone.ledger.plan)
        other = [client for client, mu in own.items() if abs(mu - redone.ledger.mu(client)) > 1e-9 * mu]
        wrong += [f"clients that spent something else than is counted: {other[:SHOWN]}"] if other else []
        wrong += wrong_budget(record, rows)
    return wrong


def wrong_budget(record: RunRecord, rows: Sequence[Row]) -> list[str]:
    """Whether the journal tells of the busiest client what it has spent."""
    told = record.entries("aggregate")[-1]["mu"]
    own = max(spent(rows, ReleasePlan.read(record.meta["privacy"])).values())
    return [f"mu = {told} of the busiest client, which spent {own}"] if abs(told - own) > 1e-5 else []


def wrong_seeds(used: Sequence[ReleaseSeed], releases: Mapping[Version, tuple[TaskId, ...]]) -> list[str]:
    """What is wrong of the seeds that a server's processes used.

    A process that dies before a seed is durable has told nobody what it made of it: so a release may have
    several, of which the last is the one that made it. That sites saw no other the models tell that they
    were sent.

    Args:
        used: The seeds, in order.
        releases: The tasks of each release in the journal.
    """
    of_seed: dict[bytes, set[tuple[Version, tuple[TaskId, ...]]]] = {}
    for own in used:
        of_seed.setdefault(own.seed, set()).add((own.version, own.tasks))
    last = {own.version: own for own in used}
    must_be_none: dict[str, list[Version]] = {
        ANOTHERS: sorted({v for own in of_seed.values() if len(own) > 1 for v, _ in own}),
        "releases without noise": [version for version in releases if version not in last],
        "releases whose last noise is of other updates": [
            v for v, tasks in releases.items() if v in last and last[v].tasks != tasks
        ],
        "releases that had their noise, and then other noise": taken_up_again(used),
    }
    return [f"{what}: {found[:SHOWN]}" for what, found in must_be_none.items() if found]


def taken_up_again(used: Iterable[ReleaseSeed]) -> list[Version]:
    """Releases that went from one seed to another and back: one of both was durable."""
    orders: dict[Version, list[bytes]] = {}
    for own in used:
        order = orders.setdefault(own.version, [])
        if not order or order[-1] != own.seed:
            order.append(own.seed)
    return [version for version, order in orders.items() if len(set(order)) < len(order)]


def noise_told(used: Sequence[ReleaseSeed], redone: Redone) -> str:
    """How often noise was drawn and made again, and what was spent, in words."""
    if redone.ledger is None:
        return "none"
    drawn, versions, told = {own.seed for own in used}, {own.version for own in used}, redone.ledger.summary()
    return (
        f"{len(versions)} releases, made again {len(used) - len(drawn)} times; {len(drawn) - len(versions)} "
        f"seeds never used; μ = {told['mu']:.4f} in {told['releases']:.0f} releases"
    )

"""The runs that a site knows: the first promises of each, and its newest private task.

As SSH keeps the key that a host showed at first, a site keeps a run's options of privacy and its helpers'
keys. A server that offers less, or other keys, is refused before anything is sent, until the site's operator
accepts that by hand. Of a private task the site keeps what it was asked for and what came of it, so that it
never sends a second result of the same task.
"""

import json
import logging
from collections.abc import Collection
from dataclasses import asdict, astuple
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from offbeat.core.errors import RunError, UsageError, reason_of
from offbeat.core.events import TaskId, Version
from offbeat.core.privacy.privacy_options import Privacy
from offbeat.net.client.packed_mapping import packed, unpacked
from offbeat.net.client.promises import shortfall
from offbeat.runs.damage import reading
from offbeat.runs.durable_files import sync_directory
from offbeat.runs.files import read_tensors, write_tensors
from offbeat.secure.committee import Committee

log = logging.getLogger(__name__)
FILE = "known_runs.safetensors"
_CODE = 32  # characters of a code: half of SHA-256, still without collisions


class KnownCommittee(msgspec.Struct, frozen=True):
    """A run's helpers: the keys of each by name, in hexadecimal."""

    run: str
    epoch: int
    keys: dict[str, str]

    @classmethod
    def of(cls, committee: Committee) -> "KnownCommittee":
        """The part of a committee that is kept."""
        keys = {
            helper.name: ":".join(key.hex() for key in astuple(helper)[1:]) for helper in committee.helpers
        }
        return cls(committee.run.hex(), committee.epoch, keys)

    def difference(self, other: "KnownCommittee") -> str:
        """How another committee differs, in words."""
        if set(other.keys) != set(self.keys):
            return f"the helpers {', '.join(self.keys)}, now {', '.join(other.keys)}"
        changed = [name for name, key in self.keys.items() if other.keys[name] != key]
        if changed:
            return f"the keys that it told at first, now another key of helper {', '.join(changed)}"
        return f"committee {self.epoch}, now committee {other.epoch} of the same helpers"


class KnownTask(msgspec.Struct, frozen=True):
    """The newest private task of a run.

    Attributes:
        task: Its number.
        base: The version that it begins with.
        order: Digest of all that determines its training.
        result: Digest of what came of it, once that may have been sent; "" before.
        acknowledged: Whether the server has taken that in.
    """

    task: TaskId
    base: Version
    order: str
    result: str = ""
    acknowledged: bool = False


class Acceptance(msgspec.Struct, frozen=True):
    """Something that the site's operator has accepted by hand, and when."""

    at: str
    what: str


class KnownRun(msgspec.Struct):
    """The memory of a site about a run.

    Attributes:
        privacy: The options of privacy that hold, as plain JSON. None means that there are none.
        committee: The helpers; None before they are known.
        task: The newest private task; None before one.
        accepted: What was accepted by hand.
    """

    privacy: dict[str, Any] | None = None
    committee: KnownCommittee | None = None
    task: KnownTask | None = None
    accepted: list[Acceptance] = []

    @property
    def is_private(self) -> bool:
        """Whether the run has ever promised privacy."""
        return self.privacy is not None or bool(self.accepted)


class KnownRuns:
    """The runs that a site knows, in a file of `directory` if there is one.

    Args:
        directory: The directory of the site's state. None means that they are known to this process only.
        accepted: Codes of what the operator accepts by hand.

    Raises:
        DamageError: The file cannot be read.
    """

    def __init__(self, directory: Path | None = None, accepted: Collection[str] = ()) -> None:
        self.accepted = frozenset(accepted)
        self._directory = directory
        self._runs: dict[str, KnownRun] = {}
        self._told_volatile = False
        if directory is not None:
            self._load(directory)

    # ---- what a run has promised ----

    def check_plan(self, run: str, offered: Privacy | None, allowed: Collection[str] = ()) -> None:
        """Note a run's options of privacy, durably; refuse those that fall short of its promises.

        Args:
            run: The run's name.
            offered: Its options. None means none.
            allowed: Names of the helpers that the site's policy names.

        Raises:
            UsageError: The run offers less than it has promised, or is another run than the private one that
                the site knows, and the operator has not accepted that.
            RunError: It cannot be written.
        """
        known_run, document = self._runs.get(run), _document(offered)
        if known_run is None:
            known_run, others = KnownRun(), [name for name, other in self._runs.items() if other.is_private]
            if offered is None and not others:
                # A run without privacy promises nothing.
                return
            if others:
                self._accept(run, known_run, _another(run, others, offered), document)
        else:
            short = shortfall(_options(known_run.privacy), offered, allowed)
            if short is not None:
                self._accept(run, known_run, f"run {run} has promised {short}", document)
            elif document == known_run.privacy:
                return
        known_run.privacy, self._runs[run] = document, known_run
        self._write()

    def check_committee(self, run: str, committee: Committee, *, allowed: bool) -> None:
        """Note the keys of a run's helpers, durably; refuse others than the first ones.

        Args:
            run: The run's name, whose plan was checked.
            committee: The helpers.
            allowed: Whether the site's policy names just these keys.

        Raises:
            UsageError: They are others, and neither the policy nor the operator has accepted them.
            RunError: It cannot be written.
        """
        known_run, offered = self._runs[run], KnownCommittee.of(committee)
        if known_run.committee == offered:
            return
        if known_run.committee is not None and not allowed:
            what = f"run {run} has promised {known_run.committee.difference(offered)}"
            self._accept(run, known_run, what, msgspec.to_builtins(offered))
        known_run.committee = offered
        self._write()

    def _accept(self, run: str, known_run: KnownRun, what: str, document: Any) -> None:
        """Note that the operator accepts something. Raises `UsageError`, which explains how, where not."""
        code = code_of(run, len(known_run.accepted), document)
        if code not in self.accepted:
            raise UsageError(
                f"{what}: ask the server's operator; to accept it, join once with --accept {code}"
            )
        log.warning("accepted by hand: %s", what)
        known_run.accepted.append(Acceptance(datetime.now(UTC).isoformat(timespec="seconds"), what))

    # ---- private tasks ----

    def check_task(self, run: str, task: TaskId, base: Version, order: str) -> None:
        """Note a private task, durably: it is later than those before, or the newest of them unchanged.

        Args:
            run: The run's name, whose plan was checked.
            task: The task's number.
            base: The version that it begins with.
            order: Digest of all that determines its training.

        Raises:
            UsageError: It is an earlier one, or begins with an earlier version; or it is the newest one,
                changed or acknowledged. Then the server was restored from a backup, or deviates.
        """
        before = self._runs[run].task
        if before is not None:
            if base < before.base:
                raise _gone_back(f"version {before.base} to {base}")
            if task < before.task or (task == before.task and base != before.base):
                older = f"task {before.task} of version {before.base}"
                raise _gone_back(f"{older} to task {task} of version {base}")
            if task == before.task and before.order != order:
                raise UsageError(
                    f"the server gives task {task} a second time, with other steps, another seed or another "
                    "model: an update of it may have been used"
                )
            if task == before.task and before.acknowledged:
                raise UsageError(f"the server gives task {task} a second time, though it was acknowledged")
            if task == before.task:
                return
        self._note(run, KnownTask(task, base, order))

    def result_of(self, run: str, task: TaskId) -> str:
        """Digest of a task's result, if that may have been sent; "" if not."""
        known = self._runs.get(run, KnownRun()).task
        return known.result if known is not None and known.task == task else ""

    def sending(self, run: str, task: TaskId, result: str) -> None:
        """Note the result of a private task, before it is sent."""
        known = self._runs.get(run, KnownRun()).task
        if known is not None and known.task == task and known.result != result:
            self._note(run, msgspec.structs.replace(known, result=result))

    def acknowledged(self, run: str, task: TaskId) -> None:
        """Note that the server has taken a task's update in."""
        known = self._runs.get(run, KnownRun()).task
        if known is not None and known.task == task and not known.acknowledged:
            self._note(run, msgspec.structs.replace(known, acknowledged=True))

    def _note(self, run: str, task: KnownTask) -> None:
        """Note a task. A full disk does not end the site: there may be space later."""
        self._runs[run].task = task
        try:
            self._write()
        except RunError as error:
            log.error("%s: what is known of task %d is in memory only", error, task.task)

    # ---- the file ----

    def _load(self, directory: Path) -> None:
        path = directory / FILE
        if path.exists():
            with reading(path):
                document = unpacked(read_tensors(path)["about"])["runs"]
                self._runs = msgspec.convert(document, dict[str, KnownRun])

    def _write(self) -> None:
        """Write all of it, durably. Raises `RunError` where that fails."""
        if self._directory is None:
            if not self._told_volatile:
                log.warning("without state (--state) what this run promises is forgotten with this process")
            self._told_volatile = True
            return
        try:
            about = packed({"runs": msgspec.to_builtins(self._runs)})
            write_tensors(self._directory / FILE, {"about": about})
            sync_directory(self._directory)
        except OSError as error:
            raise RunError(
                f"cannot write the site's state to {self._directory}: {reason_of(error)}"
            ) from None


def code_of(*offer: Any) -> str:
    """The code by which the site's operator accepts an offer, which is of plain JSON."""
    return sha256(json.dumps(offer, sort_keys=True).encode()).hexdigest()[:_CODE]


def _document(privacy: Privacy | None) -> dict[str, Any] | None:
    return None if privacy is None else json.loads(json.dumps(asdict(privacy)))


def _options(document: dict[str, Any] | None) -> Privacy | None:
    return None if document is None else Privacy(**document)


def _another(run: str, others: list[str], offered: Privacy | None) -> str:
    kept = f"run{'s' if len(others) > 1 else ''} {', '.join(others)}"
    without = " without privacy" if offered is None else ""
    return (
        f"this site has a promise of privacy of {kept}; run {run} would use the same data once more{without}"
    )


def _gone_back(what: str) -> UsageError:
    return UsageError(f"the server has gone back from {what}: what was spent since is not counted")

"""The storage of a site: its state from task to task, and the update that is not acknowledged yet.

With a directory both survive the process. A file is whole or not there; the update of a task carries the
state that comes with it, so that the two cannot part.
"""

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from offbeat.core.error_feedback import RESIDUAL
from offbeat.core.errors import DamageError, RunError, UsageError, reason_of
from offbeat.core.events import Metrics, TaskId
from offbeat.core.model import Tensors
from offbeat.net.client.known_runs import KnownRuns, code_of
from offbeat.net.client.packed_mapping import octets, packed, unpacked
from offbeat.net.messages import UpdateSubmission
from offbeat.runs.damage import reading
from offbeat.runs.durable_files import make_directory, sync_directory
from offbeat.runs.files import read_tensors, write_tensors
from offbeat.runs.lock import lock

log = logging.getLogger(__name__)
_STATE, _UPDATE = "client.safetensors", "update.safetensors"


@dataclass(frozen=True)
class SiteSummary:
    """Summary of the files of a site's state, which can be read while the site writes them.

    Attributes:
        run: The run that the site took part in last.
        waits: Whether an update waits for the server's answer.
        progress: What the site has done in that run.
    """

    run: str
    waits: bool
    progress: "SiteProgress"

    @classmethod
    def read(cls, directory: Path) -> Self:
        """Read the files. Raises `DamageError` where they cannot be read."""
        with reading(directory / _STATE):
            about = unpacked(read_tensors(directory / _STATE)["about"])
            return cls(str(about["run"]), (directory / _UPDATE).exists(), SiteProgress.read(about))


@dataclass(frozen=True)
class SiteProgress:
    """Progress of a site in a run.

    Attributes:
        done: Number of its updates that the server has accepted.
        loss: Mean loss of the last of these tasks. None means that it has none.
        accepted: When the last of them was accepted, in seconds since 1970. None means never.
    """

    done: int = 0
    loss: float | None = None
    accepted: float | None = None

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> Self:
        """Read it from a site's state."""
        loss, accepted = about["loss"], about["accepted"]
        return cls(
            int(about["done"]),
            None if loss is None else float(loss),
            None if accepted is None else float(accepted),
        )

    def after(self, update: UpdateSubmission) -> "SiteProgress":
        """The progress once the server has accepted another update, now."""
        return SiteProgress(self.done + 1, update.metrics.get("loss"), time.time())

    @property
    def text(self) -> str:
        """The progress in words, such as "12 tasks done, the last with loss 0.4312"."""
        done = f"{self.done} {'task' if self.done == 1 else 'tasks'} done"
        return done if self.loss is None else f"{done}, the last with loss {self.loss:.4g}"


@dataclass(frozen=True)
class PendingUpdate:
    """The update of a finished task, and the state after it.

    Attributes:
        update: The update.
        state: The state.
        held: Whether it is not sent before `UploadGrant`.
        result: Digest of what the training gave, of a run with privacy; "" of any other.
        residual: The residual of error feedback once the update is accepted, of one that was held and is
            sent. None means that of the state.
    """

    update: UpdateSubmission
    state: Tensors = field(default_factory=dict)
    held: bool = False
    result: str = ""
    residual: Tensor | None = None


class SiteStore:
    """The state of a site in one run, and the runs that it knows.

    Args:
        directory: The directory of both. None means memory.
        site: The site's name. None means that it is not known here.
        accepted: Codes of what the site's operator accepts by hand.

    Raises:
        UsageError: The directory cannot be used, or is another site's.
        RunError: A file cannot be read or written.
    """

    def __init__(
        self, directory: Path | None = None, site: str | None = None, accepted: Collection[str] = ()
    ) -> None:
        self._directory, self._site = directory, site
        self.run = ""
        self.state: Tensors = {}
        self.pending: PendingUpdate | None = None
        self.progress = SiteProgress()
        self.runs = KnownRuns(None, accepted)
        if directory is not None:
            try:
                make_directory(directory)
                self._lock = lock(directory, "this site's state")
            except OSError as error:
                raise UsageError(
                    f"state = {directory}: no state can be written there ({reason_of(error)})"
                ) from None
            try:
                self.runs = KnownRuns(directory, accepted)
                self._load(directory)
            except (RunError, UsageError):
                self._lock.release()
                raise

    def begin(self, run: str) -> None:
        """The site takes part in this run; the state of another one is deleted."""
        if run != self.run:
            self.run, self.state, self.progress = run, {}, SiteProgress()
            self._remove(_UPDATE)
            self.pending = None
            self._save_state()

    def save(self, pending: PendingUpdate) -> None:
        """Save a finished task until the server has answered."""
        self.pending = pending
        r = pending.update
        about = {"run": self.run, "task": r.task, "steps": r.steps, "metrics": dict(r.metrics), "lr": r.lr}
        tensors: Tensors = {
            "about": packed(
                {
                    **about,
                    "held": pending.held,
                    "encoded": isinstance(r.delta, bytes),
                    "committee": r.committee.hex(),
                    "boxes": [box.hex() for box in r.boxes],
                    "result": pending.result,
                    "received": r.received,
                    "trained": r.trained,
                }
            ),
            "delta": octets(r.delta) if isinstance(r.delta, bytes) else r.delta,
            "integers": r.integers,
            **{f"state.{name}": tensor for name, tensor in pending.state.items()},
        }
        if r.shared is not None:
            tensors["shared"] = r.shared
        if pending.residual is not None:
            tensors["residual"] = pending.residual
        self._write(_UPDATE, tensors)

    def acknowledge(self, task: TaskId, accepted: bool, *, sent: bool = True) -> None:
        """The server has answered: if it `accepted` the update, the state after it becomes the site's.

        A held update that was not `sent` counts as trained all the same.

        Raises `RunError` where that cannot be written: then the update stays, for the state that is in it.
        """
        if self.pending is None or self.pending.update.task != task:
            return
        pending, self.pending = self.pending, None
        if accepted:
            self.state, self.progress = pending.state, self.progress.after(pending.update)
            if sent and pending.residual is not None:
                self.state = {**self.state, RESIDUAL: pending.residual}
            self.runs.acknowledged(self.run, task)
            self._save_state()
        self._remove(_UPDATE)

    def close(self) -> None:
        """Unlock the directory."""
        if self._directory is not None:
            self._lock.release()

    def _load(self, directory: Path) -> None:
        """Read the files; a damaged update is put aside, and the site does its task again."""
        state, update = directory / _STATE, directory / _UPDATE
        if state.exists() or update.exists():
            with reading(state):
                tensors = read_tensors(state)
                about = unpacked(tensors.pop("about"))
                self.run, self.progress = str(about["run"]), SiteProgress.read(about)
                self.state = {name.removeprefix("state."): tensor for name, tensor in tensors.items()}
                owner = str(about.get("site") or self._site or "")
            self._check_owner(owner)
        if update.exists():
            try:
                with reading(update):
                    tensors = read_tensors(update)
                    about = unpacked(tensors["about"])
                    if about["run"] == self.run:
                        self.pending = _pending(about, tensors)
            except DamageError as error:
                aside = update.with_suffix(".damaged")
                update.replace(aside)
                log.error("%s (done: it is now %s)", error, aside.name)

    def _check_owner(self, owner: str) -> None:
        """Check that the state is this site's. Raises `UsageError` where another's name is not accepted."""
        if self._site is None or self._site == owner:
            self._site = owner or None
            return
        code = code_of("site", owner, self._site)
        if code not in self.runs.accepted:
            raise UsageError(
                f"state = {self._directory} is of site {owner}, and this is site {self._site}: give each its "
                f"own --state; if {self._site} is a new name of {owner}, join once with --accept {code}"
            )
        log.warning("accepted by hand: the state of site %s is now that of %s", owner, self._site)
        self._save_state()

    def _save_state(self) -> None:
        owner = {} if self._site is None else {"site": self._site}
        about = packed({"run": self.run, **owner, **asdict(self.progress)})
        self._write(_STATE, {"about": about, **{f"state.{n}": t for n, t in self.state.items()}})

    def _write(self, name: str, tensors: Tensors) -> None:
        if self._directory is None:
            return
        try:
            write_tensors(self._directory / name, tensors)
            sync_directory(self._directory)
        except OSError as error:
            raise RunError(
                f"cannot write the site's state to {self._directory}: {reason_of(error)}"
            ) from None

    def _remove(self, name: str) -> None:
        if self._directory is not None:
            (self._directory / name).unlink(missing_ok=True)


def _pending(about: dict[str, object], tensors: Tensors) -> PendingUpdate:
    delta = tensors["delta"].numpy().tobytes() if about["encoded"] else tensors["delta"]
    metrics: Metrics = dict(about["metrics"])  # type: ignore[call-overload]
    update = UpdateSubmission(
        int(str(about["task"])), int(str(about["steps"])), delta, tensors["integers"], metrics,
        float(str(about["lr"])), tensors.get("shared"), bytes.fromhex(str(about["committee"])),
        tuple(bytes.fromhex(box) for box in about["boxes"]),  # type: ignore[attr-defined]
        float(str(about["received"])), float(str(about["trained"])),
    )  # fmt: skip
    state = {n.removeprefix("state."): t for n, t in tensors.items() if n.startswith("state.")}
    held, result = bool(about["held"]), str(about["result"])
    return PendingUpdate(update, state, held, result, tensors.get("residual"))

"""Evaluations as a run of Weights & Biases."""

from pathlib import Path
from shutil import rmtree
from typing import Any, ClassVar, Literal

from offbeat.callbacks.callback import LiveRun
from offbeat.callbacks.tracker import (
    Ending,
    RunTracker,
    best_points,
    keep_id,
    kept_id,
    points,
    recipe_text,
    run_name,
    settings,
)
from offbeat.core.extras import requires_extra
from offbeat.core.validation import checked_dataclass
from offbeat.runs.own_files import check_own_folder
from offbeat.runs.schema import Metric

FILE = "wandb-run-id"
_FOLDER = "wandb"  # W&B's own name for it
# W&B itself gives an interrupted script the code 255.
EXIT_CODES = {"finished": 0, "failed": 1, "killed": 255}


@checked_dataclass
class WandbTracker(RunTracker):
    """A run of Weights & Biases for each run: the step is the version, the group the label.

    The file wandb-run-id in the run's directory has W&B's identifier, and its folder wandb has the files. A
    resumed run continues under this identifier. Online, it omits the steps that W&B already has. Offline, it
    rewrites its folder from the records in the run's directory, and removes the earlier one.

    Attributes:
        project: W&B's project.
        entity: The user or team that owns the project. None means the default one.
        mode: "offline" writes files only, for `wandb sync`. None means the environment variable WANDB_MODE,
            else online.
    """

    library: ClassVar[str] = "wandb"
    project: str = "offbeat"
    entity: str | None = None
    mode: Literal["online", "offline"] | None = None

    def open(self, run: LiveRun) -> "RunOfWandb":
        return RunOfWandb(self, run)


class RunOfWandb:
    """A run of W&B that is being logged.

    Args:
        options: The tracker's options.
        run: The run.
    """

    def __init__(self, options: WandbTracker, run: LiveRun) -> None:
        with requires_extra("wandb"):
            import wandb
        if run.directory is not None:
            check_own_folder(run.directory / _FOLDER)
        known = kept_id(run, FILE)
        self._run: Any = wandb.init(
            project=options.project, entity=options.entity, mode=options.mode, dir=run.directory,
            id=known, resume="allow" if known else None, name=run_name(run), group=run.label,
            config=settings(run), allow_val_change=True, reinit="create_new",
            settings=wandb.Settings(console="off"),
        )  # fmt: skip
        keep_id(run, FILE, self._run.id)
        if self._run.offline and run.directory is not None:
            _remove_earlier(Path(self._run.settings.sync_dir), self._run.id)
        if (text := recipe_text(run)) is not None:
            file = Path(self._run.dir) / "recipe.yaml"
            file.write_text(text, encoding="utf-8")
            self._run.save(file, base_path=file.parent, policy="now")
        self._next: int = self._run.starting_step
        for metrics in run.past:
            self.log(metrics)

    def log(self, metrics: Metric) -> None:
        """Log an evaluation, unless W&B has its version."""
        if metrics.version >= self._next:
            self._run.log(points(metrics), step=metrics.version, commit=True)
            self._next = metrics.version + 1

    def end(self, ending: Ending) -> None:
        """Log the best values and why the run ended, and finish."""
        self._run.summary.update({**best_points(ending), "stop_reason": ending.reason})
        self._run.finish(exit_code=EXIT_CODES[ending.status])


def _remove_earlier(folder: Path, identifier: str) -> None:
    """Remove the offline folders of a run that another one replaces."""
    for old in folder.parent.glob(f"offline-run-*-{identifier}*"):
        if old != folder:
            rmtree(old)

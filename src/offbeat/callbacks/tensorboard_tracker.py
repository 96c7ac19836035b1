"""Evaluations as TensorBoard's event files."""

import os
import time
from pathlib import Path
from typing import Any, ClassVar

from offbeat.callbacks.callback import LiveRun
from offbeat.callbacks.tracker import (
    Ending,
    RunTracker,
    Status,
    best_points,
    flat,
    folder_name,
    no_directory,
    points,
    recipe_text,
    settings,
)
from offbeat.core.extras import requires_extra
from offbeat.core.validation import checked_dataclass
from offbeat.runs.own_files import check_own_folder, open_own
from offbeat.runs.schema import Metric

FOLDER = "tensorboard"


@checked_dataclass
class TensorBoardTracker(RunTracker):
    """One scalar for each metric of an evaluation: the step is the version, relative time the run's clock.

    A resumed run rewrites its event file from the records in its directory, so each evaluation is one point
    for every program that reads the file.

    Attributes:
        directory: Folder of event files. Each run has its own folder LABEL/seed-SEED in it. None means the
            folder tensorboard in the run's directory.
    """

    library: ClassVar[str] = "tensorboard"
    directory: Path | None = None

    def open(self, run: LiveRun) -> "EventFile":
        if self.directory is not None:
            return EventFile(self.directory / folder_name(run) / f"seed-{run.seed}", run)
        if run.directory is None:
            raise no_directory("directory")
        check_own_folder(run.directory / FOLDER)
        return EventFile(run.directory / FOLDER, run)


class EventFile:
    """The event file of one run, complete after each evaluation.

    Args:
        folder: Its folder; event files that are there already are emptied.
        run: The run.
    """

    def __init__(self, folder: Path, run: LiveRun) -> None:
        with requires_extra("tensorboard"):
            from tensorboard.plugins.hparams.summary_v2 import hparams_pb
            from torch.utils.tensorboard import SummaryWriter
        for old in folder.glob("events.out.tfevents.*"):
            # A TensorBoard that reads the file would stop at one that is gone.
            with os.fdopen(open_own(old), "r+b") as events:
                events.truncate(0)
        self._last = run.past[-1].version if run.past else 0
        self._begun = time.time() - (run.past[-1].t if run.past else 0.0)
        # With `purge_step` a TensorBoard that has read the old file forgets it.
        self._writer = SummaryWriter(str(folder), purge_step=0)
        file: Any = self._writer.file_writer
        file.add_summary(hparams_pb(flat(settings(run)), start_time_secs=self._begun), 0)
        if (text := recipe_text(run)) is not None:
            self._writer.add_text("recipe", _as_code(text), 0)
        self._writer.add_text("versions", _as_code("\n".join(f"{k} {v}" for k, v in run.versions.items())), 0)
        for metrics in run.past:
            self._add(metrics)
        self._writer.flush()

    def log(self, metrics: Metric) -> None:
        """Write an evaluation, at once."""
        self._add(metrics)
        self._writer.flush()

    def end(self, ending: Ending) -> None:
        """Write the best values, how the run ended, and the state that the page of hyper-parameters shows."""
        for name, value in best_points(ending).items():
            self._writer.add_scalar(name, value, self._last)
        self._writer.add_text("stop_reason", f"{ending.status}: {ending.reason}", self._last)
        file: Any = self._writer.file_writer
        file.add_summary(_session_end(ending.status), self._last)
        self._writer.close()

    def _add(self, metrics: Metric) -> None:
        self._last = metrics.version
        for name, value in points(metrics).items():
            self._writer.add_scalar(name, value, metrics.version, walltime=self._begun + metrics.t)


def _as_code(text: str) -> str:
    """Markdown of lines that are shown as they are."""
    return "".join(f"    {line}\n" for line in text.splitlines())


def _session_end(status: Status) -> Any:
    """TensorBoard's summary of how a session ended."""
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.plugins.hparams import api_pb2, metadata
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

    code = api_pb2.STATUS_SUCCESS if status == "finished" else api_pb2.STATUS_FAILURE
    told = HParamsPluginData(session_end_info=SessionEndInfo(status=code, end_time_secs=time.time()))
    value = Summary.Value(
        tag=metadata.SESSION_END_INFO_TAG,
        metadata=metadata.create_summary_metadata(told),
        tensor=metadata.NULL_TENSOR,
    )
    return Summary(value=[value])

"""A run's directory: its database, its checkpoints and its final model."""

from offbeat.runs.client_states import ClientStates
from offbeat.runs.record import Checkpoint, RunRecord, find_runs, read_run
from offbeat.runs.schema import Metric
from offbeat.runs.store import RunStore

__all__ = ["Checkpoint", "ClientStates", "Metric", "RunRecord", "RunStore", "find_runs", "read_run"]

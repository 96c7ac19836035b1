from offbeat.core.journal import Row as Row
from offbeat.runs.client_states import ClientStates as ClientStates
from offbeat.runs.record import (
    Checkpoint as Checkpoint,
    RunRecord as RunRecord,
    find_runs as find_runs,
    read_run as read_run,
)
from offbeat.runs.schema import Metric as Metric
from offbeat.runs.store import RunStore as RunStore

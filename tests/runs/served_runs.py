"""Runs whose server waited for its sites."""

from pathlib import Path

from msgspec import structs

from offbeat.core.journal import Row
from offbeat.runs.record import RunRecord, read_run
from offbeat.runs.store import RunStore

NAMES = ("label", "algorithm", "seed", "clients", "recipe", "summary")


def served_like(run: RunRecord, directory: Path, wait: float, *, begun: bool = True) -> RunRecord:
    """The run as a server would have recorded it that began after `wait` seconds, or still waits then."""
    meta = {name: run.meta.get(name) for name in NAMES} | {"plan": {}}
    store = RunStore.create(directory, meta, [])
    clients = run.client_samples().items()
    for client, samples in clients:
        data = {"samples": samples, "steps_per_epoch": 1}
        store.row(Row(client, 1.0, "event", "joined", client, version=0, data=data))
    for row in run.rows():
        if row.name != "joined" and begun:
            store.row(structs.replace(row, t=row.t + wait))
    for metric in run.evaluations() if begun else ():
        store.metric(metric._replace(t=metric.t + wait))
    ended = {"status": "finished", "stop_reason": run.stop_reason} if begun else {}
    store.flush({"duration": wait + run.duration * begun, **ended})
    store.close()
    return read_run(directory)

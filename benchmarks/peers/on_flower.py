"""Flower's simulation engine on Ray, with as many actors as the job has processes."""

import os
import time
from importlib.metadata import version

from job import Answer, Job, UnavailableError, accuracy, load, run
from nets import build

os.environ.update(
    FLWR_TELEMETRY_ENABLED="0", RAY_USAGE_STATS_ENABLED="0", RAY_DEDUP_LOGS="0", OMP_NUM_THREADS="1"
)

from flower_client import client_app
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


def measure(job: Job) -> Answer:
    """FedAvg rounds. A first round apart brings the actors up, and is not timed."""
    if job.algorithm != "fedavg":
        raise UnavailableError(f"Flower has no {job.algorithm}: its strategies work in rounds.")
    model = build(job.model, job.seed)
    began = time.perf_counter()
    times: list[float] = []
    counted = {"steps": 0, "samples": 0}
    app = ServerApp()

    def count(records: list[RecordDict], _: str) -> MetricRecord:
        for record in records:
            for key in counted:
                counted[key] += int(record["metrics"][key])
        return MetricRecord({})

    @app.main()
    def main(grid: Grid, _: Context) -> None:
        strategy = FedAvg(
            fraction_train=job.per_round / job.clients, fraction_evaluate=0.0,
            min_available_nodes=job.clients, min_train_nodes=job.per_round, train_metrics_aggr_fn=count,
        )  # fmt: skip
        arrays = ArrayRecord(model.state_dict())
        strategy.start(grid, arrays, num_rounds=1, train_config=ConfigRecord())
        counted.update(steps=0, samples=0)
        times.append(time.perf_counter())
        result = strategy.start(grid, arrays, num_rounds=job.rounds, train_config=ConfigRecord())
        times.append(time.perf_counter())
        model.load_state_dict(result.arrays.to_torch_state_dict())

    run_simulation(
        app, client_app(job), job.clients,
        backend_config={
            "init_args": {"num_cpus": job.processes},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )  # fmt: skip
    right = accuracy(model, load(job.data)) if job.data else None
    return Answer(
        times[1] - times[0], job.tasks, counted["steps"], counted["samples"],
        startup=times[0] - began, accuracy=right, version=version("flwr"),
    )  # fmt: skip


if __name__ == "__main__":
    run(measure)

"""APPFL's virtual-time simulation in one process: its synchronous and its asynchronous driver."""

import logging
import os
import random
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

from job import Answer, Client, Data, Job, Stopwatch, UnavailableError, accuracy, load, run
from nets import Seen, build
from stand_in import stand_in

stand_in("torchvision")

import torch  # noqa: E402
from appfl.agent.sim_client import SimClientAgent  # noqa: E402
from appfl.agent.sim_server import SimServerAgent  # noqa: E402
from appfl.vsim import AsyncSimDriver, ClientProfile, SyncSimDriver  # noqa: E402
from torch.utils.data import TensorDataset  # noqa: E402

PARTS = str(Path(__file__).parent / "appfl_parts.py")
LEAN = {"optimize_memory": False}  # by default it collects garbage several times a task: ten times slower
STALENESS = {"staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}
ALGORITHMS: dict[str, dict[str, Any]] = {
    "fedavg": {"scheduler": "SyncScheduler", "aggregator": "FedAvgAggregator", "aggregator_kwargs": {}},
    "fedbuff": {
        "scheduler": "AsyncScheduler",
        "aggregator": "FedBuffAggregator",
        "aggregator_kwargs": STALENESS,
    },
    "fedasync": {
        "scheduler": "AsyncScheduler",
        "aggregator": "FedAsyncAggregator",
        "aggregator_kwargs": STALENESS,
    },
}


SAID = {"current_local_steps": 1, "compute_second_per_step": 1.0}  # its drivers refuse tasks of no steps


class WithoutBatches(SimClientAgent):
    """A client whose trainer goes through no epoch: it does all that it does around its batches."""

    def get_parameters(self) -> Any:
        """The trainer's, and how long APPFL is to think that it took."""
        state, _ = super().get_parameters()
        return state, SAID


class Idle(SimClientAgent):
    """A client whose tasks are without work: it gives back what it was given."""

    def train(self, **kwargs: Any) -> None:
        """Do nothing."""

    def get_parameters(self) -> Any:
        """A copy of the model, and how long APPFL is to think that it took."""
        state = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        return state, SAID


def configuration(job: Job) -> dict[str, Any]:
    """APPFL's configuration, for server and clients."""
    algorithm = ALGORITHMS[job.algorithm]
    synchronous = job.algorithm == "fedavg"
    passes = (
        {"mode": "epoch", "num_local_epochs": 0} if job.client_code
        else {"mode": "step", "num_local_steps": job.steps}
    )  # fmt: skip
    trainer = {
        **passes, "optim": "SGD", "optim_args": {"lr": job.lr},
        "loss_fn": "CrossEntropyLoss", "metric_path": PARTS, "metric_name": "accuracy",
        "do_validation": False, "train_batch_size": job.batch, "device": "cpu", **LEAN,
    }  # fmt: skip
    weights = algorithm["aggregator_kwargs"]
    if job.algorithm == "fedasync":
        weights = {
            **weights,
            "alpha": 0.9 * job.clients,
        }  # APPFL multiplies by one over the number of clients
    elif job.algorithm == "fedbuff":
        weights = {**weights, "alpha": job.clients / job.per_round, "K": job.per_round}
    return {
        "algorithm_configs": {
            **algorithm,
            "aggregator_kwargs": {**weights, "client_weights_mode": "equal", **LEAN},
            "scheduler_kwargs": {"num_clients": job.clients, "num_clients_per_round": job.per_round, **LEAN},
            "trainer": "VanillaTrainer",
            "trainer_kwargs": trainer,
            "num_global_epochs": job.rounds if synchronous else job.tasks,
        },
        "model_configs": {
            "model_path": PARTS, "model_name": "model", "model_kwargs": {"name": job.model, "seed": job.seed}
        },
        "log_configs": {"logging_output_dirname": "output"},
    }  # fmt: skip


def client_agent(job: Job, number: int, data: Data | None) -> SimClientAgent:
    """A client; its loader gives a task's batches by indexing."""
    name = f"Client{number}"
    if data is None:
        one = TensorDataset(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))
        kind = WithoutBatches if job.client_code else Idle
        agent: SimClientAgent = kind(configuration(job), name, one)
    else:
        own = Client(data, number, job)
        agent = SimClientAgent(configuration(job), name, own.dataset)
        agent.trainer.train_dataloader = own
    agent.optimize_memory = False
    return agent


def driver(job: Job, server: SimServerAgent, agents: list[SimClientAgent]) -> Any:
    """Rounds, or ten clients at a time, whose speeds are drawn."""
    speeds = random.Random(job.seed)
    profiles = {
        agent.get_id(): ClientProfile(compute_factor=speeds.expovariate(1.0) + 0.05) for agent in agents
    }
    quiet = logging.getLogger("quiet")
    quiet.setLevel(logging.ERROR)
    if job.algorithm == "fedavg":
        return SyncSimDriver(
            server, agents, profiles, job.per_round, quiet, seed=job.seed, base_step_time=0.01,
            target_rounds=job.rounds,
        )  # fmt: skip
    return AsyncSimDriver(server, agents, profiles, job.per_round, quiet, seed=job.seed, base_step_time=0.01)


def measure(job: Job) -> Answer:
    """One simulation."""
    if job.algorithm not in ALGORITHMS:
        raise UnavailableError(f"APPFL's virtual-time drivers have no {job.algorithm}.")
    data = load(job.data) if job.data else None
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        server = SimServerAgent(configuration(job), num_clients=job.clients)
        server.optimize_memory = False
        agents = [client_agent(job, number, data) for number in range(job.clients)]
        server.set_sample_size(sample_sizes={agent.get_id(): agent.get_sample_size() for agent in agents})
        simulation = driver(job, server, agents)
        with Stopwatch() as watch:
            simulation.run()
        os.chdir("/")
    seen = Seen.batches, Seen.samples
    done = len(simulation.history) * (job.per_round if job.algorithm == "fedavg" else 1)
    model = build(job.model, job.seed)
    model.load_state_dict(server.get_parameters(serial_run=True))
    right = accuracy(model, data) if data is not None else None
    return Answer(watch.seconds, done, *seen, watch.cpu, accuracy=right, version=version("appfl"))


if __name__ == "__main__":
    run(measure)

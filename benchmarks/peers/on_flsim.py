"""FLSim's synchronous trainer, and its asynchronous one with FedBuff, in one process."""

import dataclasses
import functools
import math
import random
from collections.abc import Iterable, Iterator
from importlib.metadata import version
from typing import Any

import numpy
import torch
from job import Answer, Client, Data, Job, Stopwatch, UnavailableError, accuracy, load, run
from nets import Seen, build
from stand_in import stand_in
from torch import nn
from torch.nn.functional import cross_entropy

stand_in("torchvision")
_dataclass = dataclasses.dataclass


def _hashable(cls: Any = None, **options: Any) -> Any:
    """FLSim's configurations have defaults that Python wants to be hashable, since 3.11."""
    if cls is None:
        return functools.partial(_hashable, **options)
    own = {"unsafe_hash": True} if cls.__module__.startswith("flsim.") else {}
    return _dataclass(cls, **{**own, **options})


dataclasses.dataclass = _hashable  # type: ignore[assignment]

from flsim.clients.base_client import ClientConfig  # noqa: E402
from flsim.data.data_provider import IFLDataProvider, IFLUserData  # noqa: E402
from flsim.interfaces.metrics_reporter import IFLMetricsReporter  # noqa: E402
from flsim.interfaces.model import IFLModel  # noqa: E402
from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregatorConfig  # noqa: E402
from flsim.optimizers.local_optimizers import LocalOptimizerSGDConfig  # noqa: E402
from flsim.optimizers.server_optimizers import FedAvgOptimizerConfig  # noqa: E402
from flsim.servers.sync_servers import SyncServerConfig  # noqa: E402
from flsim.trainers.async_trainer import AsyncTrainer, AsyncTrainerConfig  # noqa: E402
from flsim.trainers.sync_trainer import SyncTrainer, SyncTrainerConfig  # noqa: E402
from flsim.utils.async_trainer.async_staleness_weights import PolynomialStalenessWeightConfig  # noqa: E402
from flsim.utils.async_trainer.async_weights import AsyncWeightConfig  # noqa: E402
from flsim.utils.async_trainer.training_event_generator import (  # noqa: E402
    AsyncTrainingEventGeneratorConfig,
    PoissonAsyncTrainingStartTimeDistrConfig,
)
from flsim.utils.simple_batch_metrics import FLBatchMetrics  # noqa: E402
from flsim.utils.timing.training_duration_distribution import (  # noqa: E402
    PerUserExponentialDurationDistributionConfig,
)
from omegaconf import OmegaConf  # noqa: E402

Batch = tuple[torch.Tensor, torch.Tensor]


class Model(IFLModel):
    """A module as FLSim wants it."""

    def __init__(self, module: nn.Module, empty: bool) -> None:
        self.module, self._empty = module, empty

    def fl_forward(self, batch: Batch) -> FLBatchMetrics:
        """The loss of a batch; of a task without work, the least that has a gradient."""
        x, y = batch
        out = self.module(x)
        loss = 0.0 * out.sum() if self._empty else cross_entropy(out, y)
        return FLBatchMetrics(loss=loss, num_examples=len(y), predictions=out, targets=y, model_inputs=x)

    def fl_create_training_batch(self, **kwargs: Any) -> Any:
        """As it is."""
        return kwargs["batch"]

    def fl_get_module(self) -> nn.Module:
        """The module."""
        return self.module

    def fl_cuda(self) -> None:
        """Not here."""

    def get_eval_metrics(self, batch: Batch) -> FLBatchMetrics:
        """As in training."""
        return self.fl_forward(batch)

    def get_num_examples(self, batch: Batch) -> int:
        """The batch's size."""
        return len(batch[1])


class User(IFLUserData):
    """A client, whose every pass gives a task's batches by indexing."""

    def __init__(self, number: int, data: Data | None, job: Job) -> None:
        one = [(torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64))]
        self._batches = Client(data, number, job) if data is not None else one
        self._samples = len(data.parts[number]) if data is not None else 1

    def train_data(self) -> Iterator[Batch]:
        """A task's batches."""
        return iter(self._batches)

    def eval_data(self) -> Iterator[Batch]:
        """None."""
        return iter(())

    def num_train_examples(self) -> int:
        """The client's images."""
        return self._samples

    def num_eval_examples(self) -> int:
        """None."""
        return 0

    def num_train_batches(self) -> int:
        """Batches of a task."""
        return len(self._batches)

    def num_eval_batches(self) -> int:
        """None."""
        return 0


class Users(IFLDataProvider):
    """All clients."""

    def __init__(self, users: list[User]) -> None:
        self._users = users

    def train_user_ids(self) -> list[int]:
        """0, 1, ..."""
        return list(range(len(self._users)))

    def num_train_users(self) -> int:
        """How many."""
        return len(self._users)

    def get_train_user(self, user_index: int) -> User:
        """One of them."""
        return self._users[user_index]

    def train_users(self) -> Iterable[User]:
        """All."""
        return self._users

    def eval_users(self) -> Iterable[User]:
        """None."""
        return []

    def test_users(self) -> Iterable[User]:
        """None."""
        return []


class Silent(IFLMetricsReporter):
    """Keeps nothing."""

    def add_batch_metrics(self, metrics: Any) -> None:
        """Nothing."""

    def aggregate(self, one_user_metrics: Any) -> None:
        """Nothing."""

    def report_metrics(self, reset: bool, stage: Any, extra_metrics: Any = None, **kwargs: Any) -> Any:
        """Nothing."""
        return None, False

    def compare_metrics(self, eval_metrics: Any, best_metrics: Any) -> bool:
        """Never better."""
        return False

    def compute_scores(self) -> dict[str, Any]:
        """Nothing."""
        return {}

    def create_eval_metrics(self, scores: Any, total_loss: float, **kwargs: Any) -> Any:
        """Nothing."""
        return None

    def get_latest_metrics(self) -> Any:
        """Nothing."""
        return None

    def reset(self) -> None:
        """Nothing."""


def trainer(job: Job, model: Model) -> Any:
    """FLSim's trainer for as many tasks as the job's, in whole epochs of one task a client."""
    common = {
        "epochs": float(math.ceil(job.tasks / job.clients)), "do_eval": False, "report_train_metrics": False,
        "client": ClientConfig(
            epochs=1, optimizer=LocalOptimizerSGDConfig(lr=job.lr), shuffle_batch_order=False
        ),
    }  # fmt: skip
    if job.algorithm == "fedavg":
        server = SyncServerConfig(server_optimizer=FedAvgOptimizerConfig())
        rounds = SyncTrainerConfig(server=server, users_per_round=job.per_round, **common)
        return SyncTrainer(model=model, **OmegaConf.structured(rounds))
    events = AsyncTrainingEventGeneratorConfig(
        training_start_time_distribution=PoissonAsyncTrainingStartTimeDistrConfig(
            training_rate=float(job.per_round)
        ),
        duration_distribution_generator=PerUserExponentialDurationDistributionConfig(
            training_duration_mean=1.0
        ),
    )
    buffered = AsyncTrainerConfig(
        aggregator=FedAvgWithLRFedBuffAggregatorConfig(buffer_size=job.per_round, lr=1.0 / job.per_round),
        training_event_generator=events,
        async_weight=AsyncWeightConfig(
            staleness_weight=PolynomialStalenessWeightConfig(exponent=0.5, avg_staleness=0)
        ),
        **common,
    )
    return AsyncTrainer(model=model, **OmegaConf.structured(buffered))


def measure(job: Job) -> Answer:
    """FedAvg rounds, or FedBuff with ten clients at a time on average."""
    if job.algorithm not in ("fedavg", "fedbuff"):
        raise UnavailableError(f"FLSim has no {job.algorithm}.")
    for seed in (torch.manual_seed, numpy.random.seed, random.seed):
        seed(job.seed)
    data = load(job.data) if job.data else None
    model = Model(build(job.model, job.seed), data is None)
    users = Users([User(number, data, job) for number in range(job.clients)])
    training = trainer(job, model)
    with Stopwatch() as watch:
        training.train(users, Silent(), num_total_users=job.clients, distributed_world_size=1)
    seen = Seen.batches, Seen.samples
    done = Seen.batches // job.steps if data is not None else math.ceil(job.tasks / job.clients) * job.clients
    right = accuracy(training.global_model().fl_get_module(), data) if data is not None else None
    return Answer(watch.seconds, done, *seen, watch.cpu, accuracy=right, version=version("flsim"))


if __name__ == "__main__":
    run(measure)

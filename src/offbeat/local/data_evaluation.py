"""Evaluation of a model on a learner's data: on the common test set, or on what a client holds out."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from offbeat.core.buffers import restore_buffers
from offbeat.core.errors import UsageError
from offbeat.core.events import ClientId, Metrics
from offbeat.core.learner import TaskInputs
from offbeat.core.model import Model
from offbeat.data.dataset import Batch, Dataset, Samples, to_device
from offbeat.data.federated import FederatedData
from offbeat.local.criterion import Criterion
from offbeat.local.device import DeviceState
from offbeat.local.errors import reading
from offbeat.local.evaluation import evaluate
from offbeat.local.logged_once import LoggedOnce
from offbeat.local.seeding import evaluation_seeded
from offbeat.local.training import Training
from offbeat.metrics.metrics_by_name import Wanted


@dataclass(frozen=True)
class DataEvaluation:
    """Evaluates models on data.

    Attributes:
        data: The test set, and what the clients hold out.
        training: Device, precision and batch size of evaluations.
        criterion: The loss of a batch.
        metrics: The metrics beside the loss, as `TorchLearner` has them.
        warnings: Takes what is to be known of the metrics.
    """

    data: FederatedData
    training: Training
    criterion: Criterion
    metrics: Wanted | None
    warnings: LoggedOnce

    def on_test_set(self, ready: DeviceState, model: Model) -> Metrics:
        """Evaluate a model on the test set. Raises `UsageError` where there is none."""
        test = self.data.test
        if test is None or not len(test):
            if self.data.held_out is not None:
                raise UsageError(
                    "there is no test set, and the clients hold out samples: evaluate there, with "
                    "evaluate.at = 'clients', or give test samples"
                )
            raise UsageError("the test set has no samples: give it some, or evaluate = None")
        ready.bench.load(model)
        return self._on_samples(ready, test, torch.arange(len(test)), "the test set", "sample {}".format)

    def at_client(
        self, ready: DeviceState, model: Model, client: ClientId, rows: Tensor, inputs: TaskInputs
    ) -> Metrics:
        """Evaluate a model on samples of a client, with the client's own tensors.

        Args:
            ready: The module and the data on the device.
            model: A global model.
            client: The client.
            rows: The numbers of its samples.
            inputs: Its state.
        """
        bench = ready.bench
        bench.load(model)
        bench.restore_personal(inputs.state)
        restore_buffers(inputs.state, bench.buffers, bench.integers)
        name = partial(self.data.name_of, client)
        return self._on_samples(ready, self.data.train, rows, f"client {client}", name)

    def _on_samples(
        self, ready: DeviceState, samples: Samples, rows: Tensor, whose: str, name: Callable[[int], str]
    ) -> Metrics:
        bench, resident, training = ready.bench, ready.resident(samples), self.training
        bench.module.eval()
        parts = torch.split(rows, training.evaluation_batch_size)

        def batch(part: Tensor) -> Batch:
            with reading(whose, name):
                # The targets of what stays on the device are checked on the CPU, which waits for nothing.
                read = samples.gather(part) if resident is None else (part, _targets(samples, part))
                self.criterion.check_batch(read, lambda n: name(int(part[n])))
            if resident is None:
                return bench.laid_out(to_device(read, training.device))
            return bench.laid_out(resident.gather(part.to(training.device, non_blocking=True)))

        found = ((len(part), partial(batch, part)) for part in parts)
        seeded = evaluation_seeded(training.device, own_code=ready.own_code)
        with seeded, torch.inference_mode(), training.autocast():
            return evaluate(bench.module, self.criterion, self.metrics, found, whose, self.warnings)


def _targets(samples: Samples, rows: Tensor) -> Tensor | None:
    """The targets of some samples of a dataset, as far as it has any."""
    return None if not isinstance(samples, Dataset) or samples.y is None else samples.y[rows]

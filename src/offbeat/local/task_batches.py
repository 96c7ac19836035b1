"""The batches of a client's task: which samples they have, drawn from the task's streams, and the samples."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from offbeat.core.events import ClientId
from offbeat.core.learner import LocalTask
from offbeat.core.streams import Purpose, stream
from offbeat.data.dataset import Batch, Dataset
from offbeat.data.federated import FederatedData
from offbeat.local.batches import batches
from offbeat.local.criterion import Criterion
from offbeat.local.device import DeviceState
from offbeat.local.errors import reading
from offbeat.local.examples_privacy import ExamplesPrivacy, example_batches, sampling_rate
from offbeat.local.seeding import seed_generators
from offbeat.local.session import BatchPart, Parts
from offbeat.local.training import Training

Secret = Callable[[LocalTask], bytes]
"""secret(task): the 32 bytes from which batches and noise of a task with privacy of examples follow."""


def simulated_secret(task: LocalTask) -> bytes:
    """A simulated client's: a run repeats itself, and is not private."""
    return stream(task.seed, Purpose.EXAMPLES, task.client, task.task).bytes(32)


@dataclass(frozen=True)
class TaskBatches:
    """Draws the batches of tasks, and gathers them on the device.

    Attributes:
        data: The samples and their partition over the clients.
        training: Batch size, and the parts of a batch.
        criterion: Checks targets that are read only now.
        examples: Privacy of each client's examples. None means no privacy of examples.
        secret: Gives the secret of a task with privacy of examples.
    """

    data: FederatedData
    training: Training
    criterion: Criterion
    examples: ExamplesPrivacy | None
    secret: Secret

    def of_task(self, ready: DeviceState, task: LocalTask, *, own_code: bool) -> Iterator[Parts]:
        """Start the streams of a task, its layers and `own_code`; iterate over its batches, on the device."""
        layers = ready.streams(task.seed).at(Purpose.LAYERS, task.client, task.task)
        # Only afterwards may a checkpoint put its own random state in place.
        seed_generators(int(layers.integers(2**63)), self.training.device, own_code=own_code)
        placed = ready.placed(self.rows(ready, task))
        return (self.parts(ready, rows, task.client) for rows in placed)

    def rows(self, ready: DeviceState, task: LocalTask) -> Iterator[Tensor]:
        """Start the stream of a task's batches, valid until the next; iterate over their samples' numbers."""
        indices = self.data.client_indices(task.client)
        if self.examples is not None:
            rate = sampling_rate(self.training.batch_size, len(indices))
            drawn = example_batches(self.secret(task), len(indices), rate, task.steps)
            return (indices.index_select(0, rows) for rows in drawn)
        rng, training = ready.streams(task.seed).at(Purpose.TRAIN, task.client, task.task), self.training
        drawn = batches(rng, len(indices), training.batch_size, task.steps, training.drop_last)
        return (indices.index_select(0, rows) for rows in drawn)

    def parts(self, ready: DeviceState, rows: Tensor, client: ClientId) -> Parts:
        """The samples of a batch in as many parts as `accumulate` says, or as there are samples."""
        if not len(rows):
            # With privacy of examples a batch may be empty.
            return []
        resident = isinstance(ready.train, Dataset)
        read = ready.gather if resident else partial(self._read, ready, client)
        if self.training.accumulate == 1:
            return [BatchPart(rows, read, 1.0, resident)]
        # The number is a plan's, and may be any: the work follows from the samples.
        split = rows.tensor_split(min(self.training.accumulate, len(rows)))
        parts = [BatchPart(own, read, len(own) / len(rows), resident) for own in split]
        for part in parts:
            # A data set that draws does so before the layers do.
            _ = part.batch
        return parts

    def _read(self, ready: DeviceState, client: ClientId, rows: Tensor) -> Batch:
        """A client's samples on the device. Targets that are read only now are checked now."""
        name = partial(self.data.name_of, client)
        with reading(f"client {client}", name):
            batch = ready.gather(rows)
            self.criterion.check_batch(batch, lambda n: name(int(rows[n])))
        return batch

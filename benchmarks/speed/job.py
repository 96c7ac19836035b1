"""What one measurement is told and what it answers: shared by Offbeat, the bare loops and the peers.

It imports nothing but PyTorch and NumPy, so that it works in any peer's environment. A runner is a script
that takes a job as JSON in its first argument and prints its answer as the last line of its output.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset


@dataclass(frozen=True)
class Job:
    """`rounds` times `per_round` client tasks of `steps` local SGD steps; `model` is a name in `nets`.

    An asynchronous algorithm does as many tasks without rounds. `data` is the file that `data.write` made
    (none: no training; with `client_code` Offbeat's and APPFL's clients still do all that they do around
    their batches, of which there are none). `processes` is how many train side by side, `executor` how
    Offbeat trains where it has a choice.
    """

    model: str
    algorithm: str = "fedavg"
    rounds: int = 20
    clients: int = 100
    per_round: int = 10
    steps: int = 20
    batch: int = 32
    lr: float = 0.05
    seed: int = 0
    processes: int = 1
    executor: str = "local"
    data: str = ""
    client_code: bool = False

    @property
    def tasks(self) -> int:
        """Client tasks in all."""
        return self.rounds * self.per_round

    def to_json(self) -> str:
        """The runner's first argument."""
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Answer:
    """What a runner measured.

    `seconds` is the wall time from the first task to the last aggregation, without imports, reading the data
    or evaluating; `cpu` the processor seconds of the same stretch (0: there are other processes). `startup`
    is the seconds in which worker processes came up, where there are any. `steps` and `samples` count the
    batches and images that the model saw in training (0 where nobody counted), `accuracy` is of the test set
    at the end.
    """

    seconds: float
    tasks: int
    steps: int = 0
    samples: int = 0
    cpu: float = 0.0
    startup: float = 0.0
    accuracy: float | None = None
    version: str = ""


class Stopwatch:
    """`with Stopwatch() as watch:` measures wall and processor seconds of this process."""

    seconds = 0.0
    cpu = 0.0

    def __enter__(self) -> "Stopwatch":
        self._began = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began[0]
        self.cpu = time.process_time() - self._began[1]


class UnavailableError(Exception):
    """What was asked for is not there: the message says what and why."""


@dataclass(frozen=True)
class Data:
    """Images, labels, and for each client the numbers of its train images [clients, images of each]."""

    x: Tensor
    y: Tensor
    test_x: Tensor
    test_y: Tensor
    parts: Tensor


def load(path: str) -> Data:
    """Read a data file."""
    with numpy.load(path) as arrays:
        return Data(**{name: torch.from_numpy(arrays[name]) for name in arrays.files})


def batches(samples: int, job: Job, generator: torch.Generator) -> Iterator[Tensor]:
    """A task's batches: positions among a client's samples, in reshuffled passes."""
    done = 0
    while done < job.steps:
        order = torch.randperm(samples, generator=generator)
        for batch in order.split(job.batch)[: job.steps - done]:
            yield batch
            done += 1


class Client:
    """A client's images. Every iteration gives a task's batches (x, y): for peers that want a loader."""

    def __init__(self, data: Data, number: int, job: Job) -> None:
        part = data.parts[number]
        self.x, self.y, self._job = data.x[part], data.y[part], job
        self.dataset = TensorDataset(self.x, self.y)
        self._generator = torch.Generator().manual_seed(1000 * job.seed + number)

    def __len__(self) -> int:
        return self._job.steps

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for batch in batches(len(self.y), self._job, self._generator):
            yield self.x[batch], self.y[batch]


@torch.no_grad()
def accuracy(module: nn.Module, data: Data) -> float:
    """Share of the test images that the model gets right."""
    module.eval()
    pairs = zip(data.test_x.split(1000), data.test_y.split(1000), strict=True)
    right = sum(int((module(x).argmax(1) == y).sum()) for x, y in pairs)
    return right / len(data.test_y)


def warm() -> None:
    """Make an optimizer: at the first one PyTorch imports a large part of itself, for up to a second."""
    torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


def read() -> Job:
    """The job of this process, which computes on one thread."""
    torch.set_num_threads(1)
    warm()
    return Job(**json.loads(sys.argv[1]))


def run(measure: Callable[[Job], Answer]) -> None:
    """A runner's whole life: read the job, do it, print the answer or why there is none."""
    try:
        said = asdict(measure(read()))
    except UnavailableError as reason:
        said = {"unavailable": str(reason)}
    print(f"\n{json.dumps(said)}", flush=True)

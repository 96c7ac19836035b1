"""FedLab's standalone simulation: its FedAvg server and serial clients, in one process."""

from importlib.metadata import version

from job import Answer, Client, Job, Stopwatch, UnavailableError, accuracy, load, run
from nets import Seen, build
from stand_in import stand_in

stand_in("torchvision")

from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler  # noqa: E402
from fedlab.core.standalone import StandalonePipeline  # noqa: E402


class Federation:
    """The clients' data as FedLab's trainer asks for it."""

    def __init__(self, clients: list[Client]) -> None:
        self._clients = clients

    def get_dataloader(self, client: int, batch_size: int) -> Client:
        """The batches of a task, made by indexing: faster than a DataLoader."""
        return self._clients[client]


class Nothing:
    """Clients whose tasks have no batches."""

    def get_dataloader(self, client: int, batch_size: int) -> list[object]:
        """No batches."""
        return []


class Pipeline(StandalonePipeline):
    """FedLab's loop without its evaluations."""

    def evaluate(self) -> None:
        """Not while the clock runs."""


def measure(job: Job) -> Answer:
    """FedAvg rounds; FedLab has asynchronous aggregation on a network only."""
    if job.algorithm != "fedavg":
        raise UnavailableError(f"FedLab has no simulation of {job.algorithm}.")
    model = build(job.model, job.seed)
    data = load(job.data) if job.data else None
    server = FedAvgServerHandler(model, job.rounds, job.per_round / job.clients)
    trainer = FedAvgSerialClientTrainer(build(job.model, job.seed), job.clients)
    dataset = (
        Federation([Client(data, i, job) for i in range(job.clients)]) if data is not None else Nothing()
    )
    trainer.setup_dataset(dataset)
    trainer.setup_optim(epochs=1, batch_size=job.batch, lr=job.lr)
    with Stopwatch() as watch:
        Pipeline(server, trainer).main()
    seen = Seen.batches, Seen.samples
    right = accuracy(server.model, data) if data is not None else None
    return Answer(watch.seconds, job.tasks, *seen, watch.cpu, accuracy=right, version=version("fedlab"))


if __name__ == "__main__":
    run(measure)

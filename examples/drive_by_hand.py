"""A server without a simulator: you say what happens and when, it says what to do.

This is all that any driver does. The tensors are kept beside the server, by `GlobalModel`.

    python examples/drive_by_hand.py
"""

import torch

import offbeat as ob
from offbeat.core.commands import Aggregate, Command, Train
from offbeat.core.events import Arrived, Begin, Event, Joined, Left
from offbeat.core.global_model import GlobalModel
from offbeat.core.learner import LocalResult


class Driver:
    """One server, one model of two parameters, and updates that we make up."""

    def __init__(self, algorithm: ob.Algorithm) -> None:
        self.server = ob.Server(algorithm.schedule, seed=0)
        self.tensors = GlobalModel(algorithm, ob.Model.empty(ob.Layout.flat(2)))

    def happen(self, time: float, event: Event) -> None:
        """Feed an event and carry the commands out."""
        print(f"{time:4.1f}  {event}")
        self.carry_out(self.server.feed(time, event))

    def arrive(self, time: float, client: int, delta: list[float]) -> None:
        """A client's update is here: the server takes the task in, then the tensors are held."""
        task = self.server.tasks[client]
        commands = self.server.feed(time, Arrived(client, task.id, task.steps))
        print(f"{time:4.1f}  client {client} arrived with Δ = {delta}, staleness {task.staleness}")
        no_integers = torch.zeros(0, dtype=torch.int64)
        self.tensors.arrive(task, LocalResult(torch.tensor(delta), no_integers))
        self.carry_out(commands)

    def carry_out(self, commands: list[Command]) -> None:
        """Keep the base version of every task, and make every new version."""
        for command in commands:
            if isinstance(command, Train):
                self.tensors.dispatch(command.task)
                print(f"      train client {command.client}: task {command.task}, {command.steps} steps")
            elif isinstance(command, Aggregate):
                self.tensors.aggregate(command)
                print(f"      version {command.version}: w = {self.tensors.model.values.tolist()}")


def main() -> None:
    """Two clients and FedBuff with a buffer of two."""
    driver = Driver(ob.fedbuff(size=2, steps=5))
    for client in range(2):
        driver.happen(0.0, Joined(client, samples=100, steps_per_epoch=4))
    driver.happen(0.0, Begin())
    driver.arrive(1.0, 0, [1.0, 0.0])
    driver.arrive(2.0, 0, [1.0, 0.0])  # two updates of the fast client fill the buffer
    driver.arrive(2.5, 1, [0.0, 8.0])  # trained from version 0: staleness 1
    driver.arrive(3.0, 0, [2.0, 0.0])
    driver.tensors.lose(driver.server.tasks[1].id)
    driver.happen(3.5, Left(1))
    print(driver.server.counts)


if __name__ == "__main__":
    main()

"""An engine without a simulator: you say what happens and when, it says what to do.

This is all that any driver does. The engine keeps the journal and the tensors.

    python examples/drive_by_hand.py
"""

import torch

import offbeat as ob
from offbeat.parts import Aggregate, Arrived, Begin, Command, Event, Joined, Left, Train
from offbeat.runs import Row


class Driver:
    """One server, one model of two parameters, and updates that we make up."""

    def __init__(self, algorithm: ob.Algorithm) -> None:
        self.rows: list[Row] = []
        self.tensors = ob.GlobalModel(algorithm, ob.Model.empty(ob.Layout.flat(2)))
        self.engine = ob.Engine(algorithm.schedule, 0, self.rows.append, self.tensors)

    def apply(self, time: float, event: Event) -> None:
        """Apply an event and print the commands."""
        print(f"{time:4.1f}  {event}")
        self.show(self.engine.apply(time, event))

    def arrive(self, time: float, client: int, delta: list[float]) -> None:
        """A client's update is here."""
        task = self.engine.server.tasks[client]
        update = ob.LocalResult(torch.tensor(delta), torch.zeros(0, dtype=torch.int64))
        commands = self.engine.apply(time, Arrived(client, task.id, task.steps), update)
        print(f"{time:4.1f}  client {client} arrived with Δ = {delta}, staleness {task.staleness}")
        self.show(commands)

    def show(self, commands: list[Command]) -> None:
        """Print what is to be carried out: a driver would send tasks to clients."""
        for command in commands:
            if isinstance(command, Train):
                print(f"      train client {command.client}: task {command.task}, {command.steps} steps")
            elif isinstance(command, Aggregate):
                print(f"      version {command.version}: w = {self.tensors.model.values.tolist()}")


def main() -> None:
    """Two clients and FedBuff with a buffer of two."""
    driver = Driver(ob.fedbuff(size=2, steps=5))
    for client in range(2):
        driver.apply(0.0, Joined(client, samples=100, steps_per_epoch=4))
    driver.apply(0.0, Begin())
    driver.arrive(1.0, 0, [1.0, 0.0])
    driver.arrive(2.0, 0, [1.0, 0.0])  # two updates of the fast client fill the buffer
    driver.arrive(2.5, 1, [0.0, 8.0])  # trained from version 0: staleness 1
    driver.arrive(3.0, 0, [2.0, 0.0])
    lost = driver.engine.server.tasks[1].id
    driver.apply(3.5, Left(1))
    driver.engine.lose(lost)  # nobody brings it back here
    print(driver.engine.server.counts)
    print(f"{len(driver.rows)} journal rows, mean staleness {driver.engine.staleness_sum / 4}")


if __name__ == "__main__":
    main()

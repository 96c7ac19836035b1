"""What an update costs a server by the number of its registered sites.

    python benchmarks/registered_sites.py [--sites 100 1000 5000] [--updates 5000]

All sites train, and one after another delivers, with a heartbeat of another site in between. What is timed is
what the server does on its processor for an update: check it, apply the event, make the next task, let time
pass and find when something is due next. No network and no disk are in it. Every number of sites is measured
five times in turn, and the least is told: what else a machine does only adds to it.
"""

import time
from functools import partial

import torch
from harness import Rows, in_turns, main

import offbeat as ob
from offbeat.core.learner import NoTraining
from offbeat.experiment import Experiment
from offbeat.net.messages import Heartbeat, Register, TaskAssignment, UpdateSubmission
from offbeat.net.server.coordinator import Coordinator
from offbeat.net.server.handlers import RunInfo
from offbeat.net.server.server_options import ServerOptions

PARAMETERS = 1000
TIMES = 5


class Federation:
    """A coordinator with so many sites, all of which train."""

    def __init__(self, sites: int) -> None:
        learner = NoTraining(sites, PARAMETERS)
        experiment = Experiment(
            ob.fedasync(steps=10), learner, until=ob.Until(tasks=10**9), evaluate=ob.Every()
        )
        run = experiment.prepare(sites)
        self.coordinator = Coordinator(run, ServerOptions(clients=sites), RunInfo("run", {}))
        self.now, self.turn, self.names = 0.0, 0, [f"site {n}" for n in range(sites)]
        self.tasks: dict[str, TaskAssignment] = {}
        for name in self.names:
            self.coordinator.receive(self.now, name, Register(100, 10))
        self.take()

    def take(self) -> None:
        """Note the tasks that the sites are given."""
        for name, message in self.coordinator.take().messages:
            if isinstance(message, TaskAssignment):
                self.tasks[name] = message

    def deliver(self, updates: int) -> float:
        """Seconds of the processor for an update."""
        delta, integers = torch.ones(PARAMETERS) / 100, torch.zeros(0, dtype=torch.int64)
        began = time.process_time()
        for _ in range(updates):
            self.now += 0.01
            name, alive = self.names[self.turn], self.names[self.turn - len(self.names) // 2]
            self.turn = (self.turn + 1) % len(self.names)
            task = self.tasks[name]
            # An algorithm may keep the tensors of an update, so each update has its own.
            self.coordinator.heartbeat(self.now, alive, Heartbeat())
            self.coordinator.receive(
                self.now, name, UpdateSubmission(task.task, task.steps, delta.clone(), integers, {})
            )
            self.coordinator.tick(self.now)
            self.take()
            assert self.coordinator.next_due() > self.now
        return (time.process_time() - began) / updates


def registered_sites(sites: tuple[int, ...] = (100, 1000, 5000), updates: int = 5000) -> Rows:
    torch.set_num_threads(1)
    federations = {number: Federation(number) for number in sites}
    for federation in federations.values():
        federation.deliver(len(federation.names))  # every site has a speed now
    turns = in_turns(TIMES, {n: partial(f.deliver, updates) for n, f in federations.items()})
    found = {number: 1e3 * min(own) for number, own in turns.items()}
    for number, milliseconds in found.items():
        yield {
            "sites": number,
            "ms an update": milliseconds,
            "by the fewest": milliseconds / found[min(found)],
        }


if __name__ == "__main__":
    main(registered_sites)

"""A peer's own server code learns in virtual time: what `benchmarks/peers_learning.py` runs for each peer.

    PEER_ENV/bin/python learning.py JOB PEER ALGORITHM VARIANT

JOB is the file with data, speeds, the initial model and the options that Offbeat's run has; the curve is
printed as JSON. Clients train by one loop of ours, in passes over their samples in random order; what comes
back goes through the peer's own classes, which are imported and not changed:

- FLGo: the method `package_handler` of its FedBuff server, on models of its own kind;
- FLSim: `FedAvgWithLRFedBuffAggregator` with its staleness weights;
- APPFL: `FedBuffAggregator`, and for FedCompass `CompassScheduler` with `FedCompassAggregator`. The
  scheduler works in real time: its module's clock and timers are replaced by the loop's.

VARIANT is "own" (the peer's divisor and defaults) or "paper" (its options set so that its formula comes as
near to the paper's as it can).
"""

import heapq
import json
import sys
from collections.abc import Callable, Iterator
from copy import deepcopy
from importlib.metadata import version
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "speed"))
State = dict[str, torch.Tensor]


class Loop:
    """Events in the order of virtual time."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call at a time."""
        heapq.heappush(self._events, (time, next(self._numbers), call))

    def run(self, until: float) -> None:
        """All events up to a time."""
        while self._events and self._events[0][0] <= until:
            self.now, _, call = heapq.heappop(self._events)
            call()


class Server(Protocol):
    """A peer's server."""

    def model(self) -> State:
        """The current model."""
        ...

    def arrive(self, client: int, before: State, after: State, base: int) -> Iterator[tuple[int, int]]:
        """Take an update trained from version `base`; yields clients that start now, with their steps."""
        ...

    versions: int


class FLGo:
    """FLGo's FedBuff."""

    def __init__(self, job: dict[str, Any], variant: str, loop: Loop) -> None:
        from stand_in import stand_in

        stand_in("torchvision")
        import flgo.utils.fmodule as fmodule
        from flgo.algorithm import fedbuff

        class Net(fmodule.FModule):  # type: ignore[misc]
            """The model as FLGo has it."""

            def __init__(self) -> None:
                super().__init__()
                self.net = network(job)

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                """The logits."""
                result: torch.Tensor = self.net(x)
                return result

        self._net, self._handle, self.versions = Net, fedbuff.Server.package_handler, 0
        self._holds, self._held, self._steps = variant == "own", [], job["steps"]
        clients = len(job["parts"])
        self._server = SimpleNamespace(
            buffer=[], buffer_ratio=(job["size"] + 1e-9) / clients, num_clients=clients, eta=1.0,
            current_round=0, model=self._packed(job["initial"]),
            is_package_empty=lambda packages: not packages["model"],
        )  # fmt: skip

    def _packed(self, state: State) -> Any:
        made = self._net()
        made.net.load_state_dict(state)
        return made

    def model(self) -> State:
        """The current model."""
        state: State = self._server.model.net.state_dict()
        return state

    def arrive(self, client: int, before: State, after: State, base: int) -> Iterator[tuple[int, int]]:
        """Its client's update is the difference; its server keeps clients idle until its buffer is full."""
        update = self._packed({name: after[name] - before[name] for name in after})
        update._round = base
        self._held.append(client)
        if self._handle(self._server, {"model": [update]}):
            self._server.current_round += 1
            self.versions += 1
        elif self._holds:
            return
        starting, self._held = self._held, []
        yield from ((each, self._steps) for each in starting)


class FLSim:
    """FLSim's FedBuff."""

    def __init__(self, job: dict[str, Any], variant: str, loop: Loop) -> None:
        import on_flsim
        from flsim.optimizers.async_aggregators import FedAvgWithLRFedBuffAggregator
        from flsim.utils.async_trainer.async_staleness_weights import (
            ConstantStalenessWeight,
            PolynomialStalenessWeight,
        )
        from omegaconf import OmegaConf

        module = network(job)
        module.load_state_dict(job["initial"])
        self._wrap: Callable[[nn.Module], Any] = lambda net: on_flsim.Model(net, False)
        rate = 1.0 if variant == "own" else 1.0 / job["size"]
        config = on_flsim.FedAvgWithLRFedBuffAggregatorConfig(buffer_size=job["size"], lr=rate)
        self._weight = (
            ConstantStalenessWeight()
            if variant == "own"
            else PolynomialStalenessWeight(exponent=0.5, avg_staleness=0)
        )
        self._aggregator = FedAvgWithLRFedBuffAggregator(
            global_model=self._wrap(module), **OmegaConf.structured(config)
        )
        self._job, self.versions, self._steps = job, 0, job["steps"]

    def model(self) -> State:
        """The current model."""
        state: State = self._aggregator.global_model.fl_get_module().state_dict()
        return state

    def arrive(self, client: int, before: State, after: State, base: int) -> Iterator[tuple[int, int]]:
        """What its trainer does when a client has trained: delta is the start less the end."""
        delta, final = network(self._job), network(self._job)
        delta.load_state_dict({name: before[name] - after[name] for name in after})
        final.load_state_dict(after)
        self._aggregator.zero_grad()
        weight = self._weight.weight(self.versions - base)
        made = self._aggregator.on_client_training_end(self._wrap(delta), self._wrap(final), weight=weight)
        self.versions += bool(made)
        yield client, self._steps


class AppflBuffer:
    """APPFL's FedBuff."""

    def __init__(self, job: dict[str, Any], variant: str, loop: Loop) -> None:
        from appfl.algorithm.aggregator import FedBuffAggregator
        from omegaconf import OmegaConf

        clients = len(job["parts"])
        options = {"alpha": 0.9, "staleness_fn": "constant"} if variant == "own" else {
            "alpha": clients / job["size"],
            "staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5},
        }  # fmt: skip
        options |= {
            "K": job["size"], "num_clients": clients, "client_weights_mode": "equal",
            "optimize_memory": False,
        }  # fmt: skip
        net = network(job)
        net.load_state_dict(job["initial"])
        self._aggregator = FedBuffAggregator(net, OmegaConf.create(options))
        self._model: State = deepcopy(job["initial"])
        self._steps = job["steps"]

    @property
    def versions(self) -> int:
        """Its count of global steps."""
        made: int = self._aggregator.global_step
        return made

    def model(self) -> State:
        """The current model."""
        return self._model

    def arrive(self, client: int, before: State, after: State, base: int) -> Iterator[tuple[int, int]]:
        """Aggregate the local model."""
        self._model = self._aggregator.aggregate(client, after)
        yield client, self._steps


class AppflCompass:
    """APPFL's FedCompass, its scheduler on the loop's clock."""

    def __init__(self, job: dict[str, Any], variant: str, loop: Loop) -> None:
        from appfl.algorithm.aggregator import FedCompassAggregator
        from appfl.algorithm.scheduler import compass_scheduler
        from omegaconf import OmegaConf

        class Timer:
            """A timer on the loop's clock."""

            def __init__(self, seconds: float, call: Any, args: Any = (), kwargs: Any = None) -> None:
                self._time, self._call, self._live = (
                    loop.now + seconds,
                    lambda: call(*args, **(kwargs or {})),
                    True,
                )

            def start(self) -> None:
                """Set it."""
                loop.at(self._time, lambda: self._call() if self._live else None)

            def cancel(self) -> None:
                """Do not call."""
                self._live = False

        lock = compass_scheduler.threading.Lock
        compass_scheduler.time = SimpleNamespace(time=lambda: loop.now)
        compass_scheduler.threading = SimpleNamespace(Timer=Timer, Lock=lock)
        clients = len(job["parts"])
        options: dict[str, Any] = {"num_clients": clients, "optimize_memory": False, "alpha": 0.9}
        if variant == "paper":
            options |= {"staleness_fn": "polynomial", "staleness_fn_kwargs": {"a": 0.5}}
        net = network(job)
        net.load_state_dict(job["initial"])
        self._aggregator = FedCompassAggregator(net, OmegaConf.create(options))
        plan = {
            "num_clients": clients, "min_local_steps": job["q_min"], "max_local_steps": job["q_max"],
            "latest_time_factor": job["latest"], "optimize_memory": False,
            "speed_momentum": 0.9 if variant == "own" else 1.0,
        }  # fmt: skip
        self._scheduler = compass_scheduler.CompassScheduler(
            OmegaConf.create(plan), self._aggregator, SimpleNamespace(debug=print)
        )
        self._initial, self._waiting = deepcopy(job["initial"]), {}

    @property
    def versions(self) -> int:
        """Its global timestamp."""
        made: int = self._scheduler.global_timestamp
        return made

    def model(self) -> State:
        """The current model."""
        state: State = self._aggregator.global_state or self._initial
        return deepcopy(state)

    def arrive(self, client: int, before: State, after: State, base: int) -> Iterator[tuple[int, int]]:
        """Schedule the local model: the client goes on at once, or when its group is aggregated."""
        answer = self._scheduler.schedule(client, after)
        if hasattr(answer, "result"):
            self._waiting[client] = answer
        else:
            yield client, answer[1]["local_steps"]
        yield from self.released()

    def released(self) -> Iterator[tuple[int, int]]:
        """Clients whose group has been aggregated, also by a timer."""
        for each in [each for each, future in self._waiting.items() if future.done()]:
            yield each, self._waiting.pop(each).result()[1]["local_steps"]


SERVERS: dict[tuple[str, str], tuple[str, Any]] = {
    ("flgo", "fedbuff"): ("flgo", FLGo),
    ("flsim", "fedbuff"): ("flsim", FLSim),
    ("appfl", "fedbuff"): ("appfl", AppflBuffer),
    ("appfl", "fedcompass"): ("appfl", AppflCompass),
}


def network(job: dict[str, Any]) -> nn.Module:
    """The model: one hidden layer."""
    width, hidden, classes = job["widths"]
    return nn.Sequential(nn.Flatten(), nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def trained(
    job: dict[str, Any], net: nn.Module, start: State, client: int, steps: int, rng: np.random.Generator
) -> State:
    """The model after local steps of plain SGD."""
    net.load_state_dict(start)
    part, done = job["parts"][client], 0
    while done < steps:
        for rows in torch.from_numpy(rng.permutation(part)).split(job["batch"]):
            net.zero_grad()
            cross_entropy(net(job["x"][rows]), job["y"][rows]).backward()
            with torch.no_grad():
                for parameter in net.parameters():
                    assert parameter.grad is not None
                    parameter -= job["lr"] * parameter.grad
            done += 1
            if done == steps:
                break
    return {name: tensor.clone() for name, tensor in net.state_dict().items()}


def learn(job: dict[str, Any], make: Any, variant: str) -> dict[str, Any]:
    """The curve: virtual seconds and accuracy; with tasks that arrived and versions."""
    loop, net, rng = Loop(), network(job), np.random.default_rng(job["seed"])
    server: Server = make(job, variant, loop)
    curve: list[tuple[float, float]] = []
    tasks = 0

    def start(client: int, steps: int) -> None:
        base, before = server.versions, deepcopy(server.model())
        after = trained(job, net, before, client, steps, rng)

        def arrive() -> None:
            nonlocal tasks
            tasks += 1
            for each, own in server.arrive(client, before, after, base):
                start(each, own)

        loop.at(loop.now + steps * job["speeds"][client], arrive)

    def evaluate() -> None:
        net.load_state_dict(server.model())
        with torch.no_grad():
            right = net(job["test_x"]).argmax(1) == job["test_y"]
        curve.append((loop.now, float(right.float().mean())))
        loop.at(loop.now + job["every"], evaluate)

    def look() -> None:  # groups that a timer has closed
        for each, own in server.released():  # type: ignore[attr-defined]
            start(each, own)
        loop.at(loop.now + job["look"], look)

    evaluate()
    for client in range(len(job["parts"])):
        start(client, job["q_max"] if hasattr(server, "released") else job["steps"])
    if hasattr(server, "released"):
        look()
    loop.run(job["seconds"])
    return {"curve": curve, "tasks": tasks, "versions": server.versions}


def main() -> None:
    """One job."""
    path, peer, algorithm, variant = sys.argv[1:]
    job = torch.load(path, weights_only=False)
    torch.set_num_threads(1)
    package, make = SERVERS[peer, algorithm]
    print(json.dumps({**learn(job, make, variant), "version": version(package)}))


if __name__ == "__main__":
    main()

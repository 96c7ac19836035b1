"""Offbeat: asynchronous federated learning that does not wait.

>>> import offbeat as ob
>>> run = ob.simulate(
...     ob.fedcompass(q_min=20, q_max=100),
...     world=ob.World(seconds_per_step=[6, 12, 15, 24, 30]),
...     until=ob.Until(seconds=720),
... )
>>> [entry["steps"] for entry in run.entries("train")][5:10]
[100, 40, 28, 35, 24]
"""

import offbeat.vectors.allocator  # noqa: F401  before whatever imports PyTorch

# isort: split

from typing import TYPE_CHECKING

from offbeat.algorithms import ALGORITHMS, Factory, compose
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import AlgorithmError, OffbeatError, RunError, UsageError
from offbeat.core.learner import NoTraining
from offbeat.core.limits import Every, Until
from offbeat.core.model import Layout, Model
from offbeat.core.server import Server
from offbeat.core.staleness import age, constant, hinge, polynomial
from offbeat.core.validation import did_you_mean
from offbeat.data import Dataset, FederatedData, federate, load
from offbeat.local.learner import TorchLearner
from offbeat.local.training import Training
from offbeat.runs.record import RunRecord, find_runs, read_run
from offbeat.runs.summary import Summary
from offbeat.sim.executors.batched import Batched
from offbeat.sim.executors.ray.cluster import OnRay
from offbeat.sim.result import Run
from offbeat.sim.simulate import resume, simulate
from offbeat.version import __version__
from offbeat.world import laws
from offbeat.world.availability import Availability
from offbeat.world.channel import Channel
from offbeat.world.network import Network
from offbeat.world.trace import read_trace
from offbeat.world.world import World

__all__ = [
    "ALGORITHMS",
    "Algorithm",
    "AlgorithmError",
    "Availability",
    "Batched",
    "Channel",
    "Dataset",
    "Every",
    "Factory",
    "FederatedData",
    "Layout",
    "Model",
    "Network",
    "NoTraining",
    "OffbeatError",
    "OnRay",
    "Run",
    "RunError",
    "RunRecord",
    "Server",
    "Summary",
    "TorchLearner",
    "Training",
    "Until",
    "UsageError",
    "World",
    "__version__",
    "age",
    "compose",
    "constant",
    "federate",
    "find_runs",
    "hinge",
    "laws",
    "load",
    "polynomial",
    "read_run",
    "read_trace",
    "resume",
    "simulate",
]

if TYPE_CHECKING:
    from offbeat.algorithms._factories import *  # noqa: F403  written by scripts/write_factories.py
else:

    def __getattr__(name: str) -> Factory[...]:
        """The factory of a published algorithm, such as `offbeat.fedbuff`."""
        if name in ALGORITHMS:
            return ALGORITHMS[name]
        raise AttributeError(f"module 'offbeat' has no attribute {name!r}{did_you_mean(name, ALGORITHMS)}")


def __dir__() -> list[str]:
    """What is public: the names above, and the published algorithms."""
    return sorted([*__all__, *ALGORITHMS])

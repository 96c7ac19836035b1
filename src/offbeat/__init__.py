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
from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

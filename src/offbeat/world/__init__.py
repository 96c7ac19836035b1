"""The world of the clients: speeds, links, availability, the radio channel, and partitions of the data."""

from offbeat.world.availability import Availability
from offbeat.world.channel import Channel, LargeScale, Radio, Rayleigh, Rician, Shadowing, Trace
from offbeat.world.fit import ClientFit, Fit, fit_world
from offbeat.world.laws import Constant, Exponential, Law, LogNormal, Normal, Pareto, Ratio, Uniform, Zipf
from offbeat.world.network import Network
from offbeat.world.partitions import (
    ClassPartition,
    DualDirichlet,
    Iid,
    LabelDirichlet,
    Natural,
    Partition,
    Shards,
)
from offbeat.world.population import Population, TaskOutcome
from offbeat.world.trace import read_trace, trace_text
from offbeat.world.world import World

__all__ = [
    "Availability",
    "Channel",
    "ClassPartition",
    "ClientFit",
    "Constant",
    "DualDirichlet",
    "Exponential",
    "Fit",
    "Iid",
    "LabelDirichlet",
    "LargeScale",
    "Law",
    "LogNormal",
    "Natural",
    "Network",
    "Normal",
    "Pareto",
    "Partition",
    "Population",
    "Radio",
    "Ratio",
    "Rayleigh",
    "Rician",
    "Shadowing",
    "Shards",
    "TaskOutcome",
    "Trace",
    "Uniform",
    "World",
    "Zipf",
    "fit_world",
    "read_trace",
    "trace_text",
]

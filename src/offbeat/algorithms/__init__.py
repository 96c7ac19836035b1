"""Published algorithms, one file a paper; the parts several papers share are in schedules and aggregators.

To add one: write its file, import its factory here and name it in the tuple below.
"""

from offbeat.algorithms.asofed import asofed
from offbeat.algorithms.compose import build, compose
from offbeat.algorithms.fedasmu import fedasmu
from offbeat.algorithms.fedasync import fedasync
from offbeat.algorithms.fedat import fedat
from offbeat.algorithms.fedavg import fedavg
from offbeat.algorithms.fedavgm import fedavgm
from offbeat.algorithms.fedbuff import fedbuff
from offbeat.algorithms.fedcompass import fedcompass
from offbeat.algorithms.feddyn import feddyn
from offbeat.algorithms.fedfa import fedfa
from offbeat.algorithms.fedlws import fedlws
from offbeat.algorithms.fednova import fednova
from offbeat.algorithms.fedopt import fedadagrad, fedadam, fedyogi
from offbeat.algorithms.fedprox import fedprox
from offbeat.algorithms.fedssmu import fedssmu
from offbeat.algorithms.moon import moon
from offbeat.algorithms.port import port
from offbeat.algorithms.registry import Factory
from offbeat.algorithms.scaffold import scaffold
from offbeat.algorithms.wireless import wireless
from offbeat.core.algorithm import Algorithm

_FACTORIES: tuple[Factory[...], ...] = (
    fedavg,
    fedavgm,
    fedprox,
    fednova,
    fedlws,
    moon,
    feddyn,
    scaffold,
    fedadagrad,
    fedadam,
    fedyogi,
    fedssmu,
    fedasync,
    fedbuff,
    asofed,
    port,
    fedat,
    fedfa,
    fedasmu,
    fedcompass,
    wireless,
)
ALGORITHMS: dict[str, Factory[...]] = {f.name: f for f in _FACTORIES}
"""Every algorithm by name, in the order `offbeat algorithms` lists them: synchronous ones first."""


def recorded_name(algorithm: Algorithm) -> str:
    """The name a run is recorded under: one with parts exchanged is not the published algorithm."""
    if algorithm.name not in ALGORITHMS:
        return algorithm.name
    if build(ALGORITHMS, {"name": algorithm.name, **algorithm.hyperparameters}) == algorithm:
        return algorithm.name
    return f"{algorithm.name} (changed)"


__all__ = [
    "ALGORITHMS",
    "Factory",
    "asofed",
    "build",
    "compose",
    "fedadagrad",
    "fedadam",
    "fedasmu",
    "fedasync",
    "fedat",
    "fedavg",
    "fedavgm",
    "fedbuff",
    "fedcompass",
    "feddyn",
    "fedfa",
    "fedlws",
    "fednova",
    "fedprox",
    "fedssmu",
    "fedyogi",
    "moon",
    "port",
    "recorded_name",
    "scaffold",
    "wireless",
]

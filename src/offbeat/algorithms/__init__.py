"""Published algorithms, one file a paper; the parts several papers share are in schedules and aggregators.

To add one, write its file: every module here is searched for factories made by `@algorithm`.
"""

from importlib import import_module
from pkgutil import walk_packages

from offbeat.algorithms.compose import build, compose
from offbeat.algorithms.factory import Factory, in_order
from offbeat.core.algorithm import Algorithm
from offbeat.lazy import listing

__all__ = ["ALGORITHMS", "Factory", "build", "compose", "recorded_name"]
__dir__ = listing(__name__, "robust", "wireless")


def _published() -> list[Factory[...]]:
    """The factories that the modules of this package define."""
    names = [module.name for module in walk_packages(__path__, f"{__name__}.")]
    modules = [import_module(name) for name in names]
    found = [(value, module) for module in modules for value in vars(module).values()]
    return [f for f, module in found if isinstance(f, Factory) and f.make.__module__ == module.__name__]


ALGORITHMS: dict[str, Factory[...]] = in_order(_published())
"""Every algorithm by name, in the order `offbeat algorithms` lists them: synchronous ones first."""


def recorded_name(algorithm: Algorithm) -> str:
    """The name a run is recorded under: one with parts exchanged is not the published algorithm."""
    if algorithm.name not in ALGORITHMS:
        return algorithm.name
    published = build(ALGORITHMS, {"name": algorithm.name, **algorithm.hyperparameters})
    return algorithm.name if published == algorithm else f"{algorithm.name} (changed)"

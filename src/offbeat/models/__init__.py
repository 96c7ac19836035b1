"""Models: `torch.nn.Module`s without dropout, and their specifications by name.

>>> from offbeat.models import CompassCNNSpec, build, parameter_count
>>> parameter_count(build(CompassCNNSpec(), (1, 28, 28), 10))
582026
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

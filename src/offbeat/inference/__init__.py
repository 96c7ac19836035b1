"""A run's model outside of Offbeat: the module with its weights, and files that other programs read.

`offbeat.export` writes a file; `offbeat.inference.trained_module` gives the module itself.
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

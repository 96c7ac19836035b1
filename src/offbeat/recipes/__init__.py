"""Experiments as data: YAML recipes, checked and run by name.

`offbeat.recipes.compare` plans and runs several algorithms under several seeds.
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

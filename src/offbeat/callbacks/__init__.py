"""Callbacks of a run, and the trackers built on them."""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

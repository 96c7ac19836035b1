"""A run's directory: its database, its checkpoints and its final model."""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

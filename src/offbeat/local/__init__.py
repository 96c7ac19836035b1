"""The client's side with PyTorch: local objectives, options of the training, and the learner."""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

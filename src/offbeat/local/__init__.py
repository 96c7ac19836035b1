"""The client's side with PyTorch: local objectives, options of the training, and the learner."""

from offbeat.local.learner import TorchLearner
from offbeat.local.objectives import Plain, Proximal
from offbeat.local.training import CosineDecay, ExponentialDecay, InverseDecay, Training

__all__ = ["CosineDecay", "ExponentialDecay", "InverseDecay", "Plain", "Proximal", "TorchLearner", "Training"]

"""The client's side with PyTorch: local objectives, options of the training, and the learner."""

from offbeat.local.learner import TorchLearner
from offbeat.local.objectives import Plain, Proximal
from offbeat.local.training import CosineDecay, Decay, ExponentialDecay, InverseDecay, Optimizer, Training

__all__ = [
    "CosineDecay",
    "Decay",
    "ExponentialDecay",
    "InverseDecay",
    "Optimizer",
    "Plain",
    "Proximal",
    "TorchLearner",
    "Training",
]

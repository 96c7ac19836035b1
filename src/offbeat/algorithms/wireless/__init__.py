"""Asynchronous federated learning over a shared radio (Hu, Chen, Larsson, 2023)."""

from offbeat.algorithms.wireless.iterations import AgeWeighted, RadioIterations, wireless
from offbeat.algorithms.wireless.over_radio import OverRadio, UploadSlots

__all__ = ["AgeWeighted", "OverRadio", "RadioIterations", "UploadSlots", "wireless"]

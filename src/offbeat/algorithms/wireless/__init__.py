"""Asynchronous federated learning over a shared radio (Hu, Chen, Larsson, 2023)."""

from offbeat.algorithms.wireless.bandwidth import equal_bits
from offbeat.algorithms.wireless.iterations import AgeWeighted, RadioIterations, wireless
from offbeat.algorithms.wireless.over_radio import OverRadio, UploadSlots
from offbeat.algorithms.wireless.policies import (
    AgeBased,
    BestChannel,
    BestChannelBestNorm,
    Candidate,
    DataImportance,
    Random,
)

__all__ = [
    "AgeBased",
    "AgeWeighted",
    "BestChannel",
    "BestChannelBestNorm",
    "Candidate",
    "DataImportance",
    "OverRadio",
    "RadioIterations",
    "Random",
    "UploadSlots",
    "equal_bits",
    "wireless",
]

"""Datasets: loading them from a data directory by name, and dividing them among clients.

    >>> import numpy as np
    >>> from offbeat.data import federate, load
    >>> source = load("digits", samples=100)
    >>> data = federate(source, None, [np.arange(0, 50), np.arange(50, 100)])
    >>> data.clients, data.samples(0)
    (2, 50)

Nothing here uses the network but `offbeat.data.download.fetch`, which must be called by name.
"""

from offbeat.data.dataset import Dataset, FederatedData, Source, federate
from offbeat.data.paths import data_root
from offbeat.data.registry import DATASETS, load

__all__ = ["DATASETS", "Dataset", "FederatedData", "Source", "data_root", "federate", "load"]

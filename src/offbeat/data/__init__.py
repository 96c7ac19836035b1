"""Datasets: load them by name from a data directory, and divide them among clients.

    >>> import numpy as np
    >>> from offbeat.data import federate, load
    >>> source = load("digits", samples=100)
    >>> data = federate(source, None, [np.arange(0, 50), np.arange(50, 100)])
    >>> data.clients, data.samples(0)
    (2, 50)

Nothing here uses the network except `offbeat.data.download.fetch`, on an explicit call.
"""

from offbeat.data.convert import as_samples
from offbeat.data.dataset import Dataset, MapDataset, Samples
from offbeat.data.datasets_by_name import DATASETS, load
from offbeat.data.federated import FederatedData, Rows, Source, federate, own_data, without_clients
from offbeat.data.paths import data_root
from offbeat.lazy import listing

__all__ = [
    "DATASETS",
    "Dataset",
    "FederatedData",
    "MapDataset",
    "Rows",
    "Samples",
    "Source",
    "as_samples",
    "data_root",
    "federate",
    "load",
    "own_data",
    "without_clients",
]
__dir__ = listing(__name__)

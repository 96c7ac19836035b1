"""Datasets: load them by name from a data directory, and divide them among clients.

    >>> import numpy as np
    >>> from offbeat.data import federate, load
    >>> source = load("digits", samples=100)
    >>> data = federate(source, None, [np.arange(0, 50), np.arange(50, 100)])
    >>> data.clients, data.samples(0)
    (2, 50)

Nothing here uses the network except `offbeat.data.download.fetch`, on an explicit call.
"""

from offbeat.lazy import exports

__all__, __getattr__, __dir__ = exports(__name__)

"""The handwritten digits, divided equally."""

import numpy as np

import offbeat as ob
from offbeat.data.federated import FederatedData


def equal_digits(clients: int, samples: int, test_samples: int) -> FederatedData:
    """Equal parts of `samples` digits for the clients, and a test set."""
    source = ob.load("digits", samples=samples, test_samples=test_samples)
    return ob.federate(source, None, np.array_split(np.arange(samples), clients))

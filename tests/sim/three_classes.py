"""Ten clients with three neighbouring classes of digits each, and options with which all algorithms learn."""

import numpy as np

import offbeat as ob
from offbeat.models.specs import MLPSpec, build

CLIENTS = 10
OPTIONS = {
    "fedavg": {"steps": 10},
    "fedavgm": {"steps": 10, "momentum": 0.5},
    "first_of": {"steps": 10},
    "fedprox": {"steps": 10, "mu": 0.1},
    "fednova": {"epochs": 1},
    "fedlws": {"steps": 10},
    "ca2fl": {"steps": 10, "size": 5},
    "ace": {"steps": 10, "first": "seen", "server_lr": 0.2},
    "mifa": {"steps": 10},
    "fedvarp": {"steps": 10},
    "fedstale": {"steps": 10},
    "fedadagrad": {"steps": 10},
    "fedadam": {"steps": 10},
    "fedyogi": {"steps": 10},
    "fedasync": {"steps": 10, "alpha": 0.3},
    "fedbuff": {"steps": 10, "size": 5},
    "fadas": {"steps": 10, "server_lr": 0.02},
    "delay_adaptive": {"steps": 10, "server_lr": 0.3},
    "ringmaster": {"steps": 10, "threshold": 40, "server_lr": 0.3},
    "rennala": {"steps": 10, "size": 25, "server_lr": 2.0},
    "malenia": {"steps": 10},
    "ringleader": {"steps": 10, "server_lr": 0.5},
    "fedfa": {"steps": 10, "size": 5, "server_lr": 0.2},
    "fedcompass": {"q_min": 5, "q_max": 20},
    "moon": {"steps": 10},
    "feddyn": {"steps": 10},
    "scaffold": {"steps": 10},
    "asofed": {"steps": 10},
    "fedasmu": {"epochs": 3, "size": 5, "period": 5.0, "threshold": 10},
    "fedssmu": {"epochs": 3},
    "port": {"steps": 10, "size": 5, "tau_max": 3},
    "fedat": {"steps": 10},
    "wireless": {"steps": 10, "scheduled": 5, "period": 5.0},
}


def net() -> object:
    return build(MLPSpec(hidden=(32,)), (1, 8, 8), 10)


def three_classes_each() -> ob.TorchLearner:
    """A learner of these clients, which alone cannot tell more than three digits apart."""
    source = ob.load("digits")
    labels = source.train.y.numpy()
    parts: list[list[np.ndarray]] = [[] for _ in range(CLIENTS)]
    for label in range(10):
        for i, share in enumerate(np.array_split(np.flatnonzero(labels == label), 3)):
            parts[(label - i) % CLIENTS].append(share)
    data = ob.federate(source, None, [np.concatenate(part) for part in parts])
    return ob.TorchLearner(net, data, ob.Training(lr=0.1, batch_size=32))

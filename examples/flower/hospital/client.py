"""What each node runs: its own part of the data, and Offbeat's client."""

from flwr.app import Context

import offbeat as ob
from offbeat.data import Dataset
from offbeat.flower import client_app


def data(context: Context) -> Dataset:
    """This node's samples: a real site would read its own files here."""
    part, parts = int(context.node_config["partition-id"]), int(context.node_config["num-partitions"])
    train = ob.load("digits", samples=400, test_samples=200).train
    return train.subset(range(part, len(train), parts))


app = client_app(data)

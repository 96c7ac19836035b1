"""The clients of Flower's measurement, imported by its actors."""

from dataclasses import replace
from functools import lru_cache

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from job import Client, Data, Job, load
from nets import build
from torch.nn.functional import cross_entropy


@lru_cache(maxsize=1)
def own_data(path: str) -> Data:
    """The data, read once by every actor."""
    return load(path)


@lru_cache(maxsize=1)
def own_model(name: str, seed: int) -> torch.nn.Module:
    """The model, made once by every actor, which computes on one thread."""
    torch.set_num_threads(1)
    return build(name, seed)


def train(message: Message, job: Job, number: int) -> Message:
    """One client task; its batches are drawn from its client and round."""
    seed = 100 * job.seed + int(message.content["config"]["server-round"])
    model = own_model(job.model, job.seed)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    steps = samples = 0
    if job.data:
        optimizer = torch.optim.SGD(model.parameters(), lr=job.lr)
        model.train()
        for x, y in Client(own_data(job.data), number, replace(job, seed=seed)):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            steps, samples = steps + 1, samples + len(y)
    metrics = MetricRecord({"num-examples": 600, "steps": steps, "samples": samples})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


def client_app(job: Job) -> ClientApp:
    """The clients, told apart by the partition that Flower gives them."""
    app = ClientApp()

    @app.train()
    def work(message: Message, context: Context) -> Message:
        return train(message, job, int(context.node_config["partition-id"]))

    return app

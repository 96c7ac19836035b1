"""Integer buffers take the newest update's: the one that arrived last, wherever it stands in the command."""

import torch

import offbeat as ob
from offbeat.core.commands import Aggregate
from offbeat.core.global_model import GlobalModel
from offbeat.core.layout import Entry, Layout
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.schedule import Task


def test_the_last_arrival_gives_the_integers():
    layout = Layout((Entry("w", (1,), "float32", "parameter"), Entry("n", (1,), "int64", "integer")))
    tensors = GlobalModel(ob.fedavg(steps=1), Model.empty(layout))
    for task, arrival, count in ((0, 2, 30), (1, 0, 10), (2, 1, 20)):
        tensors.dispatch(task)
        record = Task(task, task, 0, 1, 0.0, staleness=0, samples=1, share=1 / 3, arrival=arrival)
        tensors.arrive(record, LocalResult(torch.zeros(1), torch.tensor([count])))
    tensors.aggregate(Aggregate((0, 1, 2), version=1))
    assert tensors.model.integers.tolist() == [30]

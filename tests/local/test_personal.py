"""Tensors that stay at their client: a head (FedPer), normalisation layers (FedBN)."""

import numpy as np
import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.algorithms import ALGORITHMS

X = torch.randn(48, 5, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def learner(*personal: str) -> ob.TorchLearner:
    data = ob.federate((X, Y), (X, Y), np.split(np.arange(48), 3), validation=0.25)
    return ob.TorchLearner(net, data, ob.Training(batch_size=4), personal=personal)


@pytest.mark.parametrize("pattern", ["3.*", "1.*"], ids=["head", "norm"])
@pytest.mark.parametrize("name", ["fedasmu", "scaffold", "feddyn", "moon", "fedcompass", "asofed", "fednova"])
def test_algorithms_of_all_kinds_train_with_personal_tensors(name: str, pattern: str) -> None:
    options = {"fedasmu": {"size": 2, "period": 2.0}}.get(name, {})
    run = ob.simulate(
        ALGORITHMS[name](**options), ob.World([1.0, 1.5, 2.0]), learner(pattern), until=ob.Until(tasks=8)
    )
    assert not [tensor for tensor in run.model.state_dict() if tensor.startswith(pattern[:2])]
    assert run.metrics[-1]["loss"] < 5


def test_worker_processes_keep_them_alike() -> None:
    world, until = ob.World([1.0, 1.5, 2.0]), ob.Until(tasks=8)
    one, other = (
        ob.simulate(ob.fedbuff(size=2, steps=3), world, learner("3.*", "1.*"), until=until, workers=workers)
        for workers in (0, 1)
    )
    assert torch.equal(one.model.values, other.model.values)
    assert one.metrics == other.metrics


def test_a_hugging_face_dataset_is_read_as_tensors() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"input": X.tolist(), "labels": Y.tolist()})
    data = ob.federate(rows, None, np.split(np.arange(48), 3))
    batch = data.train.gather(torch.arange(4))
    assert torch.equal(batch["input"], X[:4])
    assert torch.equal(batch["labels"], Y[:4])

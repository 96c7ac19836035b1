"""Runs that start from given weights: a file, another run's directory, a model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import offbeat as ob
from offbeat.runs.initial import start_from

DATA = ob.federate(ob.Dataset(torch.randn(8, 3), torch.arange(8) % 2, 2), None, np.split(np.arange(8), 2))
LEARNER = ob.TorchLearner(lambda: nn.Linear(3, 2), DATA, ob.Training(batch_size=4))


def simulated(until: int, **options: Any) -> ob.Run:
    return ob.simulate(
        ob.fedavg(steps=1), learner=LEARNER, until=ob.Until(versions=until), evaluate=None, **options
    )


def test_a_run_starts_from_a_run_a_file_or_a_model(tmp_path: Path) -> None:
    first = simulated(3, out=tmp_path / "first")
    tensors = {**first.model.state_dict(), "frozen.weight": torch.ones(2)}  # more than the model has
    save_file(tensors, tmp_path / "weights.safetensors")
    found = [
        simulated(2, initial=initial).model.values
        for initial in (tmp_path / "first", str(tmp_path / "weights.safetensors"), first.model)
    ]
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert not torch.equal(found[0], simulated(2).model.values)


def test_a_resumed_run_needs_the_same_initial_weights(tmp_path: Path) -> None:
    first = simulated(1, out=tmp_path / "first")

    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        simulated(50, out=tmp_path / "second", initial=first.model, watch=interrupted)

    def resumed(initial: Any) -> ob.Run:
        return ob.resume(
            tmp_path / "second", ob.fedavg(steps=1), learner=LEARNER, until=ob.Until(versions=50),
            evaluate=None, initial=initial,
        )  # fmt: skip

    with pytest.raises(ob.RunError, match="was started with another initial model"):
        resumed(None)
    assert torch.equal(
        resumed(tmp_path / "first").model.values, simulated(50, initial=first.model).model.values
    )


def test_weights_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    layout = LEARNER.initial(0).layout
    save_file({"weight": torch.zeros(2, 4), "bias": torch.zeros(2)}, tmp_path / "other.safetensors")
    save_file({"bias": torch.zeros(2)}, tmp_path / "less.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no")
    for name, says in (
        ("other", r"other.safetensors does not fit: weight \[2, 3\] of the model has shape \[2, 4\] there"),
        ("less", r"less.safetensors does not fit: weight \[2, 3\] of the model is not there"),
        (
            "broken",
            r"cannot be read .*give a .safetensors file, or the directory of a run that has ended",
        ),
        ("nowhere", r"cannot be read"),
    ):
        with pytest.raises(ob.UsageError, match=says):
            start_from(layout, tmp_path / f"{name}.safetensors")
    with pytest.raises(ob.UsageError, match="cannot be read"):
        start_from(layout, tmp_path)  # a directory without a finished run

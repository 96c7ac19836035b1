"""Which tensors of a module travel, and in which order."""

import torch
from torch import nn

from offbeat.core.layout import Layout, frozen_digest
from offbeat.core.model import Model


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


def test_layout_of_batch_norm() -> None:
    layout = Layout.of(network())
    assert [(e.name, e.shape, e.section) for e in layout.entries] == [
        ("0.weight", (2, 1, 3, 3), "parameter"),
        ("0.bias", (2,), "parameter"),
        ("1.weight", (2,), "parameter"),
        ("1.bias", (2,), "parameter"),
        ("4.weight", (3, 8), "parameter"),
        ("4.bias", (3,), "parameter"),
        ("1.running_mean", (2,), "buffer"),
        ("1.running_var", (2,), "buffer"),
        ("1.num_batches_tracked", (), "integer"),
    ]
    assert (layout.parameters, layout.values, layout.integers) == (51, 55, 1)
    assert layout.nbytes == 4 * 55 + 8


def test_views_share_memory() -> None:
    model = Model.of(network())
    for entry, view in model.layout.views(model.values, model.integers):
        assert tuple(view.shape) == entry.shape
        flat = model.integers if entry.section == "integer" else model.values
        assert view.untyped_storage().data_ptr() == flat.untyped_storage().data_ptr()


def test_frozen_and_personal_tensors_do_not_travel() -> None:
    """A frozen parameter has a digest instead; one that stays at a client has none."""
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2))
    assert frozen_digest(module) == ""
    module[0].requires_grad_(False)
    assert [e.name for e in Layout.of(module, ["2.*"]).entries] == ["1.weight", "1.bias"]
    digest = frozen_digest(module)
    with torch.no_grad():
        module[2].weight += 1
    assert frozen_digest(module) == digest
    with torch.no_grad():
        module[0].weight += 1
    assert frozen_digest(module) != digest

"""A model as flat vectors: there and back, for every kind of tensor a module can hold."""

import pytest
import torch
from torch import nn

from offbeat.core.errors import UsageError
from offbeat.core.layout import Entry, Layout
from offbeat.core.model import Model


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embed.weight


class Odd(nn.Module):
    """A scalar, a bool buffer, a float buffer, and one that is not part of the state."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("average", torch.tensor([[0.5, 1.5]]))
        self.register_buffer("scratch", torch.tensor([9.0]), persistent=False)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(8, 3))


@pytest.fixture(autouse=True)
def _own_random_state():
    with torch.random.fork_rng():
        yield


def equal(one: nn.Module, other: nn.Module) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_values_are_in_the_order_of_the_layout():
    module = network()
    with torch.no_grad():
        for i, p in enumerate(module.parameters()):
            p.fill_(float(i))
        module[1].running_mean.fill_(6.0)
        module[1].running_var.fill_(7.0)
    module[1].num_batches_tracked.fill_(2**40 + 1)
    model = Model.of(module)
    runs = [(0.0, 18), (1.0, 2), (2.0, 2), (3.0, 2), (4.0, 24), (5.0, 3), (6.0, 2), (7.0, 2)]
    assert model.values.tolist() == [v for v, n in runs for _ in range(n)]
    assert model.integers.tolist() == [2**40 + 1]


def test_there_and_back():
    module = network()
    module(torch.randn(4, 1, 4, 4))  # moves the running statistics and the counter
    assert module[1].num_batches_tracked == 1
    other = network(seed=1)
    assert not equal(module, other)
    assert Model.of(module).load_into(other) is other
    assert equal(module, other)


def test_a_model_is_a_copy_both_ways():
    module = network()
    model = Model.of(module)
    before = model.values.clone()
    with torch.no_grad():
        module[0].weight.zero_()
    assert torch.equal(model.values, before)
    model.load_into(module)
    with torch.no_grad():
        module[0].weight.add_(1.0)
    assert torch.equal(model.values, before)
    model.state_dict()["0.bias"].add_(1.0)
    assert torch.equal(model.values, before)
    assert not model.values.requires_grad


def test_tied_weights_travel_once_and_stay_tied():
    one, other = Tied(), Tied()
    model = Model.of(one)
    assert [e.name for e in model.layout.entries] == ["embed.weight"]
    assert model.layout.parameters == 15
    model.load_into(other)
    assert torch.equal(other.head.weight, one.embed.weight)
    assert other.head.weight is other.embed.weight


def test_scalars_bools_and_buffers_outside_the_state():
    module = Odd()
    model = Model.of(module)
    assert [(e.name, e.shape, e.dtype, e.section) for e in model.layout.entries] == [
        ("scale", (), "float32", "parameter"),
        ("average", (1, 2), "float32", "buffer"),
        ("mask", (2,), "bool", "integer"),
    ]
    assert model.values.tolist() == [2.0, 0.5, 1.5]
    assert model.integers.tolist() == [1, 0]
    other = Odd()
    with torch.no_grad():
        other.scale.zero_()
        other.mask.logical_not_()
        other.scratch.fill_(4.0)
    model.load_into(other)
    assert equal(module, other)
    assert other.mask.dtype == torch.bool
    assert other.scratch.item() == 4.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_survives(dtype):
    module = nn.Linear(7, 5).to(dtype)
    model = Model.of(module)
    assert model.values.dtype == torch.float32
    other = nn.Linear(7, 5).to(dtype)
    model.load_into(other)
    assert equal(module, other)
    assert other.weight.dtype == dtype


def test_float64_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match=r"weight has dtype torch\.float64.*module\.float\(\)"):
        Model.of(nn.Linear(2, 2).double())
    module = nn.BatchNorm1d(2)
    module.running_var = module.running_var.double()
    with pytest.raises(UsageError, match="running_var"):
        Layout.of(module)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (nn.Linear(3, 2), r"weight \(3, 2\), whose shape there is \(2, 3\)"),
        (nn.Linear(2, 3, bias=False), r"bias \(3,\), which it has not"),
        (nn.Sequential(nn.Linear(2, 3)), r"weight \(3, 2\), which it has not"),
    ],
    ids=["shape", "tensors", "names"],
)
def test_a_module_of_another_layout_is_refused(other, message):
    before = Model.of(other).values.clone()
    with pytest.raises(UsageError, match=message):
        Model.of(nn.Linear(2, 3)).load_into(other)
    assert torch.equal(Model.of(other).values, before)


def test_what_a_model_does_not_hold_stays_in_the_module():
    """Frozen parameters, and those that stay at clients."""
    module, other = (nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2)) for _ in range(2))
    module[0].requires_grad_(False)
    model = Model.of(module, ["2.*"])
    assert [e.name for e in model.layout.entries] == ["1.weight", "1.bias"]
    kept = other[0].weight.clone(), other[2].weight.clone()
    model.load_into(other)
    assert torch.equal(other[1].weight, module[1].weight)
    assert torch.equal(other[0].weight, kept[0])
    assert torch.equal(other[2].weight, kept[1])


def test_empty_and_flat():
    layout = Layout.flat(3)
    assert layout.entries == (Entry("w", (3,), "float32", "parameter"),)
    model = Model.empty(layout)
    assert model.values.tolist() == [0.0, 0.0, 0.0]
    assert (model.integers.dtype, len(model.integers)) == (torch.int64, 0)
    assert model.layout == Layout.flat(3) != Layout.flat(2)
    assert hash(layout) == hash(Layout.flat(3))


def test_a_module_without_parameters():
    model = Model.of(nn.ReLU())
    assert (model.layout.values, model.layout.integers) == (0, 0)
    model.load_into(nn.ReLU())

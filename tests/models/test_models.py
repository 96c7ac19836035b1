import pytest
import torch
from pydantic import TypeAdapter, ValidationError
from torch import nn

from offbeat.core.errors import UsageError
from offbeat.models import (
    MLP,
    MODELS,
    CompassCNN,
    CompassCNNSpec,
    LeNet5,
    LeNet5Spec,
    LogisticRegression,
    LogisticSpec,
    MLPSpec,
    ModelSpec,
    WirelessCNN,
    WirelessCNNSpec,
    build,
    parameter_count,
)
from offbeat.models.plain_cnn import alexnet, vgg11

SPECS = TypeAdapter(ModelSpec)


@pytest.mark.parametrize("name", MODELS)
def test_the_list_has_the_number_of_parameters(name: str) -> None:
    entry = MODELS[name]
    if name == "bert":
        pytest.importorskip("transformers")
    with torch.device("meta"):
        assert parameter_count(build(entry.spec(), *entry.example)) == entry.parameters


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "count"),
    [
        (WirelessCNNSpec(), (1, 28, 28), 10, 21_840),
        (CompassCNNSpec(), (1, 28, 28), 10, 582_026),
        (LeNet5Spec(), (1, 28, 28), 10, 61_706),
        (LeNet5Spec(), (1, 32, 32), 10, 61_706),
        (LeNet5Spec(), (3, 32, 32), 10, 62_006),
        (LogisticSpec(), (13,), 2, 13 * 2 + 2),
        (LogisticSpec(), (1, 28, 28), 10, 7_850),
        (MLPSpec(), (1, 8, 8), 10, 64 * 64 + 64 + 64 * 10 + 10),
        (MLPSpec(hidden=(5, 3)), (13,), 2, 13 * 5 + 5 + 5 * 3 + 3 + 3 * 2 + 2),
    ],
)
def test_parameter_counts_and_shapes(spec, shape, classes, count):
    model = build(spec, shape, classes)
    assert parameter_count(model) == count
    assert model(torch.zeros(3, *shape)).shape == (3, classes)


def test_fedcompass_table_8_layer_by_layer():
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in CompassCNN().named_children()}
    assert sizes == {"conv1": 832, "conv2": 51_264, "fc1": 524_800, "fc2": 5_130}


def test_lenet_5_layer_by_layer():
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in LeNet5().named_children()}
    assert sizes == {
        "conv1": 25 * 6 + 6,
        "conv2": 6 * 25 * 16 + 16,
        "fc1": 16 * 25 * 120 + 120,  # 28 + 2·2 − 4 = 28, halved, − 4 = 10, halved: 5x5
        "fc2": 120 * 84 + 84,
        "fc3": 84 * 10 + 10,
    }


@pytest.mark.parametrize(
    "model",
    [LogisticRegression(784, 10), MLP(784, 10), WirelessCNN(), CompassCNN(), LeNet5()],
    ids=lambda m: type(m).__name__,
)
def test_training_mode_changes_nothing_and_every_parameter_learns(model):
    torch.manual_seed(0)
    x = torch.randn(4, 1, 28, 28)
    assert torch.equal(model.train()(x), model.eval()(x))  # neither dropout nor batch statistics
    model(x).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_same_seed_same_weights():
    def weights():
        torch.manual_seed(3)
        return build(MLPSpec(), (4,), 2).state_dict()

    a, b = weights(), weights()
    assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (CompassCNN(), (1, 28, 28)),
        (LeNet5(), (1, 28, 28)),
        (LeNet5(3, 32), (3, 32, 32)),
        (alexnet(10), (3, 32, 32)),
        (vgg11(10, width=8), (3, 32, 32)),
    ],
    ids=["cnn", "lenet-1", "lenet-3", "alexnet", "vgg"],
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_a_relu_after_pooling_has_the_bits_of_one_before_it(model, shape, layout, monkeypatch):
    torch.manual_seed(1)
    x, y = torch.randn(6, *shape).to(memory_format=layout), torch.arange(6)

    def learned() -> list[torch.Tensor]:
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]

    after, pool = learned(), nn.functional.max_pool2d
    pooled = []

    def with_relu(x: torch.Tensor, *rest: object, **options: object) -> torch.Tensor:
        pooled.append(x)
        return pool(torch.relu(x), *rest, **options)

    monkeypatch.setattr(nn.functional, "max_pool2d", with_relu)
    before = learned()
    assert len(pooled) >= 2
    assert any((x < 0).any() for x in pooled)  # what is pooled had no ReLU yet
    assert all(torch.equal(a, b) for a, b in zip(after, before, strict=True))


@pytest.mark.parametrize("spec", [WirelessCNNSpec(), CompassCNNSpec()])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (784,), (13,)])
def test_wrong_shape_for_a_cnn(spec, shape):
    with pytest.raises(UsageError, match=r"it takes \(1, 28, 28\)") as caught:
        build(spec, shape, 10)
    assert spec.name in str(caught.value)


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 28, 28), (3, 28, 32), (784,)])
def test_wrong_shape_for_lenet(shape):
    with pytest.raises(UsageError, match=r"'lenet5' .* it takes \(1, 28, 28\) or .* or \(3, 32, 32\)"):
        build(LeNet5Spec(), shape, 10)


def test_no_classes():
    with pytest.raises(UsageError, match="classes 0"):
        build(LogisticSpec(), (2,), 0)


def test_specs_from_plain_data():
    assert SPECS.validate_python({"name": "mlp", "hidden": [8, 4]}) == MLPSpec(hidden=(8, 4))
    assert SPECS.validate_python({"name": "cnn_582026"}) == CompassCNNSpec()
    for wrong in (
        {"name": "mlp", "hidden": [0]},
        {"name": "mlp", "hidden": []},
        {"name": "vgg"},
        {"name": "mlp", "h": 1},
    ):
        with pytest.raises(ValidationError):
            SPECS.validate_python(wrong)

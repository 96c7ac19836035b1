"""The papers' models: sizes, shapes, and that a step of training makes the loss smaller."""

import pytest
import torch

from offbeat.core.errors import UsageError
from offbeat.models import (
    MODELS,
    AlexNetSpec,
    AsmuCNNSpec,
    BertSpec,
    EfficientNetB0Spec,
    LeNet5Spec,
    ResNet,
    ResNet18Spec,
    ResNet20Spec,
    TextCNNSpec,
    UNet3DSpec,
    VGG11Spec,
    build,
    parameter_count,
)

CIFAR = (3, 32, 32)
SMALL_TEXT = TextCNNSpec(vocabulary=10_000, width=50, filters=64)


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "count"),
    [
        (AsmuCNNSpec(), CIFAR, 10, 297_066),
        (AsmuCNNSpec(), CIFAR, 100, 2_889_156),
        (AlexNetSpec(), CIFAR, 10, 23_272_266),
        (VGG11Spec(), CIFAR, 10, 9_225_610),
        (VGG11Spec(width=16), CIFAR, 10, 578_410),
        (ResNet18Spec(), CIFAR, 10, 11_173_962),
        (ResNet20Spec(), CIFAR, 100, 278_324),
        (ResNet20Spec(), (3, 64, 64), 200, 284_824),
        (EfficientNetB0Spec(), (3, 200, 200), 8, 4_017_796),
        (UNet3DSpec(), (1, 48, 60, 48), 2, 246_156),
        (TextCNNSpec(), (400,), 2, 2_120_902),
        (SMALL_TEXT, (200,), 2, 538_978),
    ],
)
def test_parameter_counts_and_shapes(spec, shape, classes, count):
    with torch.device("meta"):  # shapes only
        model = build(spec, shape, classes)
        text = len(shape) == 1
        x = torch.zeros(2, *shape, dtype=torch.int64 if text else torch.float32)
        assert parameter_count(model) == count
        masks = shape[1:] if spec.name == "unet3d" else ()
        assert model(x).shape == (2, classes, *masks)


def test_resnet18_is_fedcompass_table_10_layer_by_layer():
    model = build(ResNet18Spec(), CIFAR, 10)
    sizes = [parameter_count(part) for part in (model.conv, model.norm, *model.blocks, model.fc)]
    assert sizes == [
        1_728, 128, 73_984, 73_984, 230_144, 295_424, 919_040, 1_180_672, 3_673_088, 4_720_640, 5_130,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "lr"),
    [
        (AsmuCNNSpec(), CIFAR, 10, 0.05),
        (ResNet20Spec(), CIFAR, 10, 0.05),
        (SMALL_TEXT, (20,), 2, 0.01),
        pytest.param(EfficientNetB0Spec(), (3, 32, 32), 8, 0.05, marks=pytest.mark.thorough),
        pytest.param(AlexNetSpec(), CIFAR, 10, 0.5, marks=pytest.mark.thorough),
        pytest.param(VGG11Spec(), CIFAR, 10, 0.02, marks=pytest.mark.thorough),
        pytest.param(ResNet18Spec(), CIFAR, 10, 0.05, marks=pytest.mark.thorough),
        pytest.param(TextCNNSpec(), (400,), 2, 0.001, marks=pytest.mark.thorough),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_steps_make_the_loss_smaller(spec, shape, classes, lr):
    torch.manual_seed(0)
    model = build(spec, shape, classes)
    x = torch.randint(0, 10_000, (8, *shape)) if len(shape) == 1 else torch.randn(8, *shape)
    assert losses(model, x, torch.arange(8) % classes, lr) < 0


def losses(model, x, y, lr, steps=3):
    """Change of the loss by some steps on one batch, every parameter of which must have learnt."""
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr)
    first = None
    for _ in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        first = loss.item() if first is None else first
        optimizer.step()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters() if p.requires_grad)
    return torch.nn.functional.cross_entropy(model(x), y).item() - first


def test_unet_learns_a_mask():
    torch.manual_seed(0)
    model = MODELS["unet3d"].make(UNet3DSpec(), (1, 8, 8, 8), 2)
    x = torch.randn(2, 1, 8, 8, 8)
    assert losses(model, x, (x[:, 0] > 0).long(), 0.1) < 0


def test_padding_of_a_text_changes_nothing():
    torch.manual_seed(0)
    model = build(SMALL_TEXT, (20,), 2)
    with torch.no_grad():
        for convolution in model.convolutions:
            convolution.bias.fill_(-0.01)  # else a window of padding alone gives its bias
    ids = torch.randint(1, 10_000, (2, 10))
    short, padded = (torch.nn.functional.pad(ids, (0, length)) for length in (5, 40))
    assert torch.allclose(model(short), model(padded))


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        (
            AlexNetSpec(),
            (1, 28, 28),
            r"'alexnet' with samples of shape \(1, 28, 28\): it takes \(3, 32, 32\)",
        ),
        (ResNet20Spec(), (13,), r"it takes \(any, any, any\), as of cifar10 or"),
        (TextCNNSpec(), (3, 32, 32), r"it takes \(any,\), as of imdb or"),
        (UNet3DSpec(), (1, 48, 60, 50), r"it takes \(1, 48, 60, 48\), as of fed_ixi"),
        (ResNet20Spec(), (32, 32, 3), r"put the channels of images first, by x\.permute\(0, 3, 1, 2\)"),
        (LeNet5Spec(), (28, 28, 1), r"put the channels of images first"),
        (LeNet5Spec(), (28, 28), r"give images their one channel, by x\.unsqueeze\(1\)"),
    ],
)
def test_samples_that_do_not_fit(spec, shape, message):
    with pytest.raises(UsageError, match=message) as caught:
        build(spec, shape, 10)
    assert "\n" not in str(caught.value)


def test_numbers_are_no_tokens():
    with pytest.raises(UsageError, match="model 'textcnn' with samples of float32: it takes token ids"):
        build(SMALL_TEXT, (13,), 2)(torch.zeros(2, 13))


def test_bert_without_transformers(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(
        UsageError, match=r'model \'bert\': transformers is not installed: pip install .*\[hf\]"'
    ):
        build(BertSpec(), (20,), 2)


def test_heads_divide_the_width():
    with pytest.raises(UsageError, match="heads 3 is no divisor of width 128"):
        BertSpec(heads=3)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("spec", "count", "trained"),
    [
        (BertSpec(), 4_386_178, 4_386_178),
        (BertSpec(layers=12, width=768, heads=12), 109_483_778, 109_483_778),
        (BertSpec(layers=12, width=768, heads=12, lora=1), 109_522_180, 38_402),
    ],
)
def test_bert_counts(spec, count, trained):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    with torch.device("meta"):
        model = build(spec, (64,), 2)
    assert parameter_count(model) == count
    assert sum(p.numel() for p in model.parameters() if p.requires_grad) == trained


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
@pytest.mark.parametrize("lora", [None, 1])
def test_bert_learns_and_padding_changes_nothing(lora, tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    torch.manual_seed(0)
    spec = BertSpec(width=32, vocabulary=100, lora=lora)
    model = build(spec, (12,), 2)
    ids = torch.randint(1, 100, (8, 12))
    assert torch.equal(model.train()(ids), model.eval()(ids))
    padded = torch.nn.functional.pad(ids, (0, 6))
    assert torch.allclose(model(ids), model(padded), atol=1e-5)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], 0.01)
    start = torch.nn.functional.cross_entropy(model(ids), torch.arange(8) % 2).item()
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(ids), torch.arange(8) % 2)
        loss.backward()
        optimizer.step()
    assert torch.nn.functional.cross_entropy(model(ids), torch.arange(8) % 2).item() < start
    if lora is None:  # weights from a folder
        model.bert.save_pretrained(tmp_path)
        again = build(BertSpec(weights=str(tmp_path)), (12,), 2)
        assert torch.equal(again(ids), model(ids))


def test_a_resnet_has_a_last_linear_layer():
    assert list(dict(ResNet(1, 10, 4, (1, 1)).named_children()))[-1] == "fc"

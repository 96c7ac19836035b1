"""Tasks trained together: up to rounding what the learner does one by one, whoever is beside them."""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

import offbeat as ob
from offbeat.algorithms.moon import Contrastive
from offbeat.core.learner import LocalResult, LocalTask
from offbeat.core.objective import Objective
from offbeat.core.streams import Purpose, stream
from offbeat.data import Dataset, federate
from offbeat.local.batches import batch_table, batches
from offbeat.local.fast.batched import BatchedTrainer, cross_entropy
from offbeat.local.fast.batched_module import BatchedModule, _Convolution, _PerClient, padded_samples
from offbeat.local.objectives import Plain, Proximal
from offbeat.models import MLP, LogisticRegression, WirelessCNN
from tests.sampling import mostly_thorough, thorough

STEPS = [4, 9, 9, 1, 13, 2]
pytestmark = pytest.mark.usefixtures("one_thread")

SEED = 7


def learner(
    module: Callable[[], nn.Module], shape: tuple[int, ...] = (6,), loss: Any = None, **training: Any
) -> ob.TorchLearner:
    """Five clients whose shares, 7 to 40 samples, are no multiples of the batch."""
    rng = np.random.default_rng(0)
    x = torch.from_numpy(rng.normal(size=(100, *shape)).astype(np.float32))
    whole = Dataset(x, torch.from_numpy(rng.integers(0, 3, size=100)), 3)
    data = federate(whole, whole, np.split(rng.permutation(100), [40, 47, 65, 90]))
    options = {"lr": 0.2, "batch_size": 9, **training}
    return ob.TorchLearner(module, data, ob.Training(**options), loss or functional.cross_entropy)


def tasks(steps: list[int] = STEPS) -> list[LocalTask]:
    """Tasks of different length, learning rate and base version."""
    return [LocalTask(i, i % 5, i % 3, n, seed=SEED, lr_factor=1 - 0.1 * i) for i, n in enumerate(steps)]


def together(one: ob.TorchLearner, objective: Objective, chosen: list[LocalTask]) -> list[LocalResult]:
    base = one.initial(SEED)
    return BatchedTrainer(one, objective, len(chosen)).train([(task, base) for task in chosen])


def odd() -> nn.Module:
    """Layers whose weights fill no whole number of 64 bytes, one that goes through a single number."""
    narrow = [nn.Linear(17, 1, bias=False), nn.Linear(1, 40), nn.Tanh()]
    return nn.Sequential(nn.Linear(6, 17), nn.Tanh(), *narrow, nn.Linear(40, 3))


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 20), nn.LayerNorm(20), nn.GELU(), nn.Linear(20, 3))


def rectified() -> nn.Module:
    """Activations in place, also behind the layer that takes the data."""
    return nn.Sequential(nn.Linear(6, 20), nn.ReLU(True), nn.Linear(20, 20), nn.ReLU(True), nn.Linear(20, 3))


def narrow() -> nn.Module:
    """Activations in place behind layers with fewer outputs than a client has samples, and with one.

    They round a number in a vector register otherwise than one that is left over.
    """
    layers = [nn.Linear(6, 1), nn.ELU(inplace=True), nn.Linear(1, 5), nn.ELU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(5, 1), nn.ELU(inplace=True), nn.Linear(1, 3))


def scalar() -> nn.Module:
    """Layers of one input and of one output, the first too; their weights fill whole numbers of 64 bytes."""
    layers = [
        nn.Linear(1, 48),
        nn.ELU(inplace=True),
        nn.Linear(48, 1),
        nn.Tanh(),
        nn.Linear(1, 32),
        nn.Tanh(),
    ]
    return nn.Sequential(*layers, nn.Linear(32, 3))


def few() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 5), nn.LeakyReLU(0.5, True), nn.Linear(5, 3))


def even() -> nn.Module:
    """Sixteen samples fill the registers at every layer."""
    return nn.Sequential(nn.Linear(6, 20), nn.ELU(True), nn.Linear(20, 2), nn.Softplus(), nn.Linear(2, 4))


def convolutional() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, 3))


class Twice(nn.Module):
    """One layer used twice, one parameter in two layers, one frozen, one unused."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.other, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.other.weight = self.first.weight
        self.again = self.first
        self.last.requires_grad_(False)
        self.unused = nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.again(torch.tanh(self.first(x))))
        out: Tensor = self.last(torch.tanh(self.other(y)))
        return out


class Scaled(nn.Module):
    """Parameters of its own beside a layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(6, 3), nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.inner(x) * self.scale
        return out


class Detached(nn.Module):
    """Its first layer, which takes the data, is not to be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.first(x)
        out: Tensor = self.last(torch.tanh(y))
        return out


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "logistic": (lambda: LogisticRegression(6, 3), (2, 3)),
    "mlp": (lambda: MLP(6, 3, (40,)), (6,)),
    "odd": (odd, (6,)),
    "normed": (normed, (6,)),
    "rectified": (rectified, (6,)),
    "narrow": (narrow, (6,)),
    "scalar": (scalar, (1,)),
    "few": (few, (6,)),
    "even": (even, (6,)),
    "detached": (Detached, (6,)),
    "convolutional": (convolutional, (1, 4, 4)),
    "twice": (Twice, (6,)),
    "scaled": (Scaled, (6,)),
}


# Everything at once, and nothing of it; what is between is thorough.
GRID = list(product([Plain(), Proximal(0.5)], [0.0, 0.9], [0.0, 0.05]))


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(("objective", "momentum", "decay"), mostly_thorough(GRID, [GRID[0], GRID[-1]]))
def test_it_is_the_learners_training_up_to_rounding(
    name: str, objective: Objective, momentum: float, decay: float
) -> None:
    one = learner(*MODULES[name], momentum=momentum, weight_decay=decay)
    base = one.initial(SEED)
    for task, got in zip(tasks(), together(one, objective, tasks()), strict=True):
        expected = one.train(base, task, objective)
        torch.testing.assert_close(got.delta, expected.delta, rtol=2e-4, atol=2e-6)
        assert got.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-5)
        assert (got.lr, got.integers.tolist(), got.state) == (expected.lr, [], {})


def grouped() -> nn.Module:
    """Statistics of each sample by itself."""
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3)]
    return nn.Sequential(*layers)


def dropping() -> nn.Module:
    """Dropout of the data, of numbers and of channels."""
    layers = [nn.Dropout(0.1), nn.Conv2d(1, 4, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(16, 8), nn.Dropout(0.5, inplace=True), nn.Linear(8, 3))


class Attending(nn.Module):
    """Attention takes three tensors and options by name, and gives two."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.numbers, self.classes = nn.Linear(2, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classes(self.layers(self.numbers(x)).mean(1))
        return out


def batch_normed() -> nn.Module:
    """Statistics of each client's batch, of numbers and of channels; one layer without weights of its own."""
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 8)]
    return nn.Sequential(*layers, nn.BatchNorm1d(8, affine=False, momentum=0.3), nn.Tanh(), nn.Linear(8, 3))


IMAGES = (1, 4, 4)
FURTHER: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], dict[str, Any]]] = {
    "group norm": (grouped, IMAGES, {}),
    "dropout": (dropping, IMAGES, {}),
    "batch norm": (batch_normed, IMAGES, {"batch_size": 5, "lr": 0.05, "drop_last": True}),
    "attention": (Attending, (5, 2), {"lr": 0.05}),
    "clipped": (odd, (6,), {"clip_norm": 0.3, "momentum": 0.9, "weight_decay": 0.05}),
    "adam": (odd, (6,), {"optimizer": "adam", "lr": 0.02, "weight_decay": 0.05}),
    "adamw": (rectified, (6,), {"optimizer": "adamw", "lr": 0.02, "weight_decay": 0.05}),
    "options": (few, (6,), {"optimizer": "adamw", "lr": 0.02, "optimizer_options": {"betas": (0.8, 0.9)}}),
    "together": (dropping, IMAGES, {"optimizer": "adamw", "lr": 0.02, "clip_norm": 0.5}),
    "unused": (Twice, (6,), {"optimizer": "adam", "lr": 0.02, "clip_norm": 0.5}),
}


@pytest.mark.parametrize("name", FURTHER)
@pytest.mark.parametrize("objective", [Plain(), Proximal(0.5)])
def test_so_it_is_with_more_than_sgd(name: str, objective: Objective) -> None:
    module, shape, options = FURTHER[name]
    one = learner(module, shape, **options)
    base = one.initial(SEED)
    for task, got in zip(tasks(), together(one, objective, tasks()), strict=True):
        expected = one.train(base, task, objective)
        torch.testing.assert_close(got.delta, expected.delta, rtol=2e-3, atol=2e-5)
        assert got.metrics["loss"] == pytest.approx(expected.metrics["loss"], rel=1e-4)
        assert torch.equal(got.integers, expected.integers)


@pytest.mark.bits
@pytest.mark.parametrize("name", ["dropout", "clipped", "together", "batch norm"])
def test_so_a_result_does_not_depend_on_who_is_beside_it_either(name: str) -> None:
    module, shape, options = FURTHER[name]
    one = learner(module, shape, **options)
    whole = together(one, Proximal(0.5), tasks())
    for chosen in ([0], [5, 1], [4, 3, 2, 1, 0, 5]):
        jobs = [tasks()[i] for i in chosen]
        for index, got in zip(chosen, together(one, Proximal(0.5), jobs), strict=True):
            assert torch.equal(got.delta, whole[index].delta)


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("module", [rectified, grouped])
def test_bfloat16_differs_by_its_rounding(
    module: Callable[[], nn.Module], vectorized: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is near the learner's bfloat16, which is not float32; also with layers taken as on a GPU."""
    if vectorized:
        monkeypatch.setattr(_PerClient, "one_by_one", _PerClient.vectorized)
    shape = IMAGES if module is grouped else (6,)
    exact = learner(module, shape, lr=0.02)
    one = learner(module, shape, lr=0.02, precision="bfloat16")
    base = one.initial(SEED)
    for task, got in zip(tasks(), together(one, Plain(), tasks()), strict=True):
        expected = one.train(base, task, Plain()).delta
        apart, rounding = got.delta - expected, exact.train(base, task, Plain()).delta - expected
        assert 0 < rounding.norm() <= 0.1 * expected.norm()
        assert apart.norm() <= 0.03 * expected.norm()


@pytest.mark.bits
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("momentum", [0.9, *thorough(0.0)])
def test_a_result_does_not_depend_on_who_is_beside_it(name: str, momentum: float) -> None:
    """Bit for bit: alone, with some, and in another order."""
    one = learner(*MODULES[name], momentum=momentum, weight_decay=0.05)
    all_of_them = together(one, Proximal(0.5), tasks())
    for chosen in ([0], [3], [4], [5, 1], [4, 3, 2, 1, 0, 5]):
        for index, got in zip(
            chosen, together(one, Proximal(0.5), [tasks()[i] for i in chosen]), strict=True
        ):
            assert torch.equal(got.delta, all_of_them[index].delta)
            assert got.metrics == all_of_them[index].metrics


@pytest.mark.parametrize("clients", [1, 2])
def test_a_layers_outputs_lie_in_memory_alike_for_one_client_and_for_two(clients: int) -> None:
    """What sums over them would add in another order."""
    stacked = BatchedModule(nn.Linear(6, 3), clients)
    stacked.load([torch.zeros(21)] * clients)
    assert stacked(torch.zeros(clients * 16, 6)).is_contiguous()


def test_a_loss_of_ones_own() -> None:
    def squared(output: Tensor, target: Tensor) -> Tensor:
        return 0.1 * ((output - functional.one_hot(target, 3)) ** 2).sum(1).mean()  # or it would diverge

    one = learner(odd, loss=squared)
    base = one.initial(SEED)
    for task, got in zip(tasks(), together(one, Plain(), tasks()), strict=True):
        torch.testing.assert_close(got.delta, one.train(base, task, Plain()).delta, rtol=2e-4, atol=2e-6)


def test_each_task_starts_from_its_own_model() -> None:
    one = learner(odd)
    jobs = [(task, one.initial(seed)) for seed, task in enumerate(tasks())]
    for (task, base), got in zip(jobs, BatchedTrainer(one, Plain(), 8).train(jobs), strict=True):
        torch.testing.assert_close(got.delta, one.train(base, task, Plain()).delta, rtol=2e-4, atol=2e-6)


@pytest.mark.bits
@pytest.mark.parametrize("classes", [2, 10, 17, 62])
def test_the_cross_entropy_by_hand_is_autograds_alone_and_beside_others(classes: int) -> None:
    generator = torch.Generator().manual_seed(classes)
    scores = 5 * torch.randn(96, classes, generator=generator)
    labels = torch.randint(0, classes, (96,), generator=generator)
    weights = torch.rand(96, generator=generator)
    each, gradient = cross_entropy(scores, labels, weights)
    leaf = scores.clone().requires_grad_()
    expected = functional.cross_entropy(leaf, labels, reduction="none")
    expected.backward(weights)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(each, expected.detach())
    torch.testing.assert_close(gradient, leaf.grad)
    own = slice(32, 48)
    alone = cross_entropy(scores[own], labels[own], weights[own])
    assert torch.equal(alone[0], each[own])
    assert torch.equal(alone[1], gradient[own])


@pytest.mark.parametrize(("samples", "size", "steps"), [(40, 9, 13), (7, 9, 3), (18, 9, 4), (1, 1, 2)])
def test_a_table_has_the_batches(samples: int, size: int, steps: int) -> None:
    table = batch_table(stream(3, Purpose.TRAIN), samples, size, steps)
    expected = [batch.tolist() for batch in batches(stream(3, Purpose.TRAIN), samples, size, steps)]
    assert [[i for i in row if i >= 0] for row in table.tolist()] == expected
    assert table.shape == (steps, size)


# ---- refusals ----


class Mixing(nn.Module):
    """Takes the batch's mean off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x - x.mean(0))
        return out


class Drawing(nn.Module):
    """Dropout that is no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(self.layer(x), 0.5, self.training)


class Again(nn.Module):
    """One batch norm layer, passed twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(6, 3), nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(torch.tanh(self.norm(self.layer(x))))
        return out


class Holding(nn.Module):
    """A parameter of its own beside dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.drop, self.layer = nn.Parameter(torch.ones(6)), nn.Dropout(0.1), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(self.drop(x * self.scale))
        return out


class Reaching(nn.Module):
    """Reads a layer's weights itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.layer.weight)


def weighted(output: Tensor, target: Tensor) -> Tensor:
    """No mean over samples: it is divided by the sum of their weights."""
    return functional.cross_entropy(output, target, weight=torch.tensor([1.0, 5.0, 9.0]))


@pytest.mark.parametrize(
    ("made", "objective", "complaint"),
    [
        (lambda: learner(odd), Contrastive(mu=1.0), "objective Contrastive, only the plain"),
        (lambda: learner(odd, optimizer="rmsprop"), Plain(), "optimizer = 'rmsprop', only 'sgd', 'adam' and"),
        (
            lambda: learner(odd, optimizer="adam", optimizer_options={"amsgrad": True}),
            Plain(),
            "with optimizer_options = 'amsgrad', only with betas and eps of adam",
        ),
        (
            lambda: learner(odd, optimizer_options={"nesterov": True}),
            Plain(),
            "with optimizer_options = 'nesterov', only with none of sgd",
        ),
        (lambda: learner(odd, precision="float16"), Plain(), "with precision = 'float16', only in float32"),
        (lambda: learner(odd, accumulate=2), Plain(), "with accumulate = 2, only with its default"),
        (
            lambda: learner(lambda: nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3, momentum=None))),
            Plain(),
            "BatchNorm1d with momentum = None, only nn.BatchNorm1d, 2d and 3d with a momentum",
        ),
        (
            lambda: learner(lambda: nn.Sequential(nn.AlphaDropout(0.1), nn.Linear(6, 3))),
            Plain(),
            "a model with AlphaDropout, only nn.Dropout",
        ),
        (lambda: learner(Again), Plain(), "a batch norm layer that is passed twice"),
        (lambda: learner(Holding), Plain(), "a model with Dropout inside of Holding"),
        (
            lambda: learner(odd, precision="bfloat16", optimizer="adam", momentum=0.0, loss=weighted),
            Plain(),
            "Sequential with this loss",
        ),
        (
            lambda: learner(lambda: nn.Linear(6, 3).half()),
            Plain(),
            "a model with weight in torch.float16, only torch.float32",
        ),
        (lambda: learner(Mixing), Plain(), "Mixing with this loss, only modules and losses that treat each"),
        (lambda: learner(Drawing), Plain(), "Drawing with this loss"),
        (lambda: learner(Reaching), Plain(), "Reaching (AttributeError"),
        (lambda: learner(odd, loss=weighted), Plain(), "Sequential with this loss"),
    ],
)
def test_what_it_cannot_train(
    made: Callable[[], ob.TorchLearner], objective: Objective, complaint: str
) -> None:
    with pytest.raises(ob.UsageError) as refused:
        BatchedTrainer(made(), objective, 4)
    assert f"executor batched cannot train {complaint}" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_batch_of_one_is_too_small_for_batch_norm() -> None:
    one = learner(lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), batch_size=3)
    with pytest.raises(
        ob.UsageError, match=r"the clients together: Sequential cannot be trained .*drop_last"
    ):
        together(one, Plain(), tasks())


def test_dropout_of_nothing_is_none() -> None:
    together(learner(lambda: nn.Sequential(nn.Dropout(0.0), nn.Linear(6, 3))), Plain(), tasks())


# ---- on other devices ----


def test_on_a_gpu_layers_take_all_clients_at_once() -> None:
    stacked = BatchedModule(WirelessCNN(3), 4)
    layer = stacked._module.conv1  # type: ignore[union-attr]
    values = {"weight": torch.randn(4, 10, 1, 5, 5), "bias": torch.randn(4, 10)}
    x = torch.randn(4, 16, 1, 28, 28)
    torch.testing.assert_close(layer.vectorized(values, x), layer.one_by_one(values, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("objective", [Plain(), Proximal(0.5)])
def test_on_a_gpu_so_it_is_with_attention(objective: Objective, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_PerClient, "one_by_one", _PerClient.vectorized)
    one = learner(Attending, (5, 2), lr=0.05)
    base = one.initial(SEED)
    with sdpa_kernel(SDPBackend.MATH):  # a GPU's own kernels go through vmap, the CPU's does not
        found = together(one, objective, tasks())
    for task, got in zip(tasks(), found, strict=True):
        torch.testing.assert_close(got.delta, one.train(base, task, objective).delta, rtol=2e-3, atol=2e-5)


def test_nothing_is_left_on_the_cpu() -> None:
    """A tensor of another device than the module's would be refused by the first operation."""
    stacked = BatchedModule(WirelessCNN(3).to("meta"), 4)
    stacked.load([torch.zeros(sum(p.numel() for p in WirelessCNN(3).parameters()))] * 4)
    output = stacked(torch.zeros(64, 1, 28, 28, device="meta"))
    output.sum().backward()  # type: ignore[no-untyped-call]
    found = stacked.gradients()
    assert set(found) == set(stacked.slots)
    assert {part.left.device.type for parts in found.values() for part in parts} == {"meta"}
    assert stacked.flat(2).device.type == "meta"


@pytest.mark.cuda
@pytest.mark.parametrize("name", MODULES)
def test_together_on_a_gpu(name: str) -> None:
    one = learner(*MODULES[name], momentum=0.9, device="cuda")
    base = one.initial(SEED)
    for task, got in zip(tasks(), together(one, Proximal(0.5), tasks()), strict=True):
        assert got.delta.device.type == "cpu"
        expected = learner(*MODULES[name], momentum=0.9).train(base, task, Proximal(0.5))
        torch.testing.assert_close(got.delta, expected.delta, rtol=1e-2, atol=1e-4)


@pytest.mark.cuda
def test_one_by_one_on_a_gpu() -> None:
    one, other = learner(convolutional, (1, 4, 4), device="cuda"), learner(convolutional, (1, 4, 4))
    base = one.initial(SEED)
    for task in tasks():
        got, expected = one.train(base, task, Plain()), other.train(base, task, Plain())
        assert got.delta.device.type == "cpu"
        torch.testing.assert_close(got.delta, expected.delta, rtol=1e-2, atol=1e-4)
    assert one.evaluate(base)["loss"] == pytest.approx(other.evaluate(base)["loss"], rel=1e-3)


@pytest.mark.parametrize("hidden", [[], [5]], ids=["one layer", "two layers"])
def test_a_step_leaves_autograds_gradients_and_nothing_else(hidden: list[int]) -> None:
    sizes = [6, *hidden, 3]
    stacked = BatchedModule(nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes))), 2)
    models = torch.randn(2, sum((a + 1) * b for a, b in pairwise(sizes)))
    stacked.load(list(models))
    x, d = torch.randn(32, 6), torch.randn(32, 3)
    stacked.backward(stacked(x), d)
    found = stacked.gradients()
    for slots, values in zip(stacked.slots, _by_autograd(models, sizes, x, d), strict=True):
        own = torch.zeros_like(slots.values)
        for part in found[slots]:
            part.add_to(own, 1.0)
        torch.testing.assert_close(own, values)
    assert not stacked._leaves  # or a step's activations would stay
    assert not stacked._bypassed


def _by_autograd(models: Tensor, sizes: list[int], x: Tensor, d: Tensor) -> list[Tensor]:
    """Each parameter's gradient, [clients, *shape], one client after the other."""
    apart = []
    for model, own_x, own_d in zip(models, x.chunk(2), d.chunk(2), strict=True):
        module = nn.Sequential(*(nn.Linear(a, b) for a, b in pairwise(sizes)))
        nn.utils.vector_to_parameters(model, module.parameters())
        module(own_x).backward(own_d)
        apart.append([p.grad for p in module.parameters()])
    return [torch.stack(parts) for parts in zip(*apart, strict=True)]


@pytest.mark.parametrize(
    "options", [{}, {"padding": (2, 1), "stride": (1, 2), "bias": False}, {"padding": 1, "stride": 3}]
)
def test_a_convolution_as_one_product_leaves_autograds_gradients(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a GPU."""
    stacked = BatchedModule(nn.Sequential(nn.Conv2d(3, 4, (3, 2), **options)), 2)
    stacked.load(list(torch.randn(2, sum(slots.values[0].numel() for slots in stacked.slots))))
    x = torch.randn(10, 3, 7, 6)
    d = torch.randn_like(stacked(x))
    found = []
    for as_product in (False, True):
        if as_product:
            monkeypatch.setattr(_Convolution, "forward", lambda layer, x: layer.multiply(layer.windows(x)))
        own = x.clone().requires_grad_()
        stacked.gradients()
        output = stacked(own)
        stacked.backward(output, d)
        gradients = stacked.gradients()
        found.append([output, own.grad, *(gradients[slots][0].left for slots in stacked.slots)])
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)
    assert found[1][0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(("module", "samples"), [(even, 16), (few, 32), (narrow, 32)])
def test_samples_are_no_more_than_fill_the_registers(module: Callable[[], nn.Module], samples: int) -> None:
    assert padded_samples(module(), torch.zeros(16, 6), 9) == samples
    assert padded_samples(module(), torch.zeros(16, 6), 33) == (48 if samples == 16 else 64)

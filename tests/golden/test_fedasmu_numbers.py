"""FedASMU's equations by hand and against autograd, on two parameters."""

from math import log, sqrt

import pytest
import torch

from offbeat.algorithms.fedasmu import AdaptiveMixing, Controls, FreshMerge, Merge
from offbeat.algorithms.fedasmu.aggregation import ClientControls, slopes
from offbeat.core.aggregator import Update
from offbeat.core.layout import Layout
from offbeat.core.model import Model
from offbeat.core.objective import FreshModel, LocalRun
from offbeat.core.schedule import Task

NO_INTEGERS = torch.zeros(0, dtype=torch.int64)


def model(*values: float) -> Model:
    return Model(Layout.flat(len(values)), torch.tensor(values), NO_INTEGERS)


def update(client, base, version, staleness, delta, *, steps=1, lr=1.0, metrics=None, **more):
    task = Task(0, client, version, steps, 0.0, staleness=staleness)
    for name in ("fresh", "ask_after"):
        if name in more:
            setattr(task, name, more.pop(name))
    return Update(
        task, base, torch.tensor(delta), NO_INTEGERS, metrics or {}, lr, fresh=more.pop("model", None)
    )


def near(*expected: float):
    return pytest.approx(list(expected), rel=1e-5, abs=1e-6)


def test_four_updates_of_two_clients():
    mixing = AdaptiveMixing(Controls(lam_rate=0.1, sigma_rate=0.1, iota_rate=0.1))
    memory: dict[str, torch.Tensor] = {}
    # client 0 from version 0: s = 1, t = 1, ξ = 1/(√1·1^½) = 1, α = 1/2; w_i = (4, 2), w = (0, 0)
    w0 = model(0.0, 0.0)
    step = mixing.step([update(0, w0, 0, 0, [4.0, 2.0])], w0, memory)
    assert step.tolist() == near(2.0, 1.0)
    # client 1 from version 0 too: s = 2, t = 2, ξ = 1/(√2·√2) = 1/2, α = (1/2)/(3/2) = 1/3; w_i = (5, −2)
    w1 = model(2.0, 1.0)
    step = mixing.step([update(1, w0, 0, 1, [5.0, -2.0])], w1, memory)
    assert step.tolist() == near(1.0, -1.0)  # (5 − 2)/3, (−2 − 1)/3
    assert memory["direction 1"].tolist() == near(3.0, -3.0)
    # client 0 again, from version 2, w = (3, 0), 5 steps at 0.1: g = −(−1, 1)/0.5 = (2, −2),
    # g·D = 2·4 − 2·2 = 4; at ξ = 1, s = t = 1: ∂λ = ∂ι = 1/2² = 1/4, ∂σ = −1/4·1·ln 1 = 0
    # λ = 1 − 0.1·4/4 = 0.9, σ = 0.5, ι = −0.1; t = 3: ξ = 0.9/√3 − 0.1 = 0.419615, α = ξ/(1 + ξ) = 0.295584
    w2 = model(3.0, 0.0)
    step = mixing.step([update(0, w2, 2, 0, [-1.0, 1.0], steps=5, lr=0.1)], w2, memory)
    assert memory["controls 0"].tolist() == near(0.9, 0.5, -0.1, 0.4196152, 1.0, 3.0)
    assert step.tolist() == near(-0.2955838, 0.2955838)
    # client 1 again, from version 3, one version old, 4 steps at 0.5: g = −(−2, 4)/2 = (1, −2),
    # g·D = 3 + 6 = 9; at ξ = ½, s = t = 2: 1/(3/2)² = 4/9, ∂λ = 4/9/2 = 2/9, ∂σ = −2/9·ln 2, ∂ι = 4/9
    # λ = 1 − 0.9·2/9 = 0.8, σ = 0.5 + 0.9·2/9·ln 2 = 0.5 + 0.2·0.6931472 = 0.6386294, ι = −0.4
    # t = 5, s = 2: ξ = 0.8/(2.2360680·1.5568501) − 0.4 = −0.1702, which is below 0: ξ = α = 0
    w3 = model(0.0, 0.0)
    step = mixing.step([update(1, w3, 3, 1, [-2.0, 4.0], steps=4, lr=0.5)], model(7.0, 7.0), memory)
    assert memory["controls 1"].tolist() == near(0.8, 0.6386294, -0.4, 0.0, 2.0, 5.0)
    assert step.tolist() == [0.0, 0.0]


def test_the_gradient_is_that_of_the_training_where_a_fresh_model_was_merged():
    # one parameter, gradients 1, 1, 1 at 0.1 from w_o = 0: −0.2 after two steps; merged with w_g = 1 at
    # β = ½: 0.4; 0.3 at the end. g = (−0.3 + ½·1)/(0.1·(½·2 + 1)) = 1
    mixing = AdaptiveMixing(Controls(lam_rate=1.0, sigma_rate=0.0, iota_rate=0.0))
    memory = {
        "controls 0": torch.tensor([1.0, 0.5, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        "direction 0": torch.tensor([2.0]),
    }
    w_o = model(0.0)
    merged = update(
        0, w_o, 4, 3, [0.3], steps=3, lr=0.1, metrics={"beta": 0.5}, fresh=6, ask_after=2, model=model(1.0)
    )
    mixing.step([merged], model(0.0), memory)
    assert memory["controls 0"][0].item() == pytest.approx(1 - 1.0 * 2.0 / 4)  # λ − g·D·¼
    assert memory["controls 0"][4].item() == 4  # staleness still counts from the base: s = 8 − 4
    fresh = AdaptiveMixing(Controls(count_from="fresh"))
    memory = {}
    fresh.step([merged], model(0.0), memory)
    assert memory["controls 0"][4].item() == 2  # or from the model merged: s = 8 − 6


def test_as_printed():
    c = ClientControls(lam=2.0, sigma=0.25, iota=0.0, xi=1.0, s=4.0, t=9.0)
    # 1/(1 + 1)² = ¼; √9·4^¼ = 3√2
    by_lam = 0.25 / (3 * sqrt(2))
    assert slopes(c, 1.0, "derived") == pytest.approx((by_lam, -by_lam * 2 * log(4), 0.25))
    assert slopes(c, 1.0, "as_printed") == pytest.approx((by_lam, -by_lam * log(0.25), 0.25))
    printed = AdaptiveMixing(Controls(gradient="as_printed", lam_rate=0.1))
    memory = {
        "controls 0": torch.tensor([1.0, 0.5, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        "direction 0": torch.tensor([4.0, 2.0]),
    }
    printed.step([update(0, model(3.0, 0.0), 2, 0, [-1.0, 1.0], steps=5, lr=0.1)], model(3.0, 0.0), memory)
    assert memory["controls 0"][0].item() == pytest.approx(1.1)  # the other sign: 1 + 0.1·4/4


@pytest.mark.parametrize(("gradient", "lam"), [("derived_epochs", 0.7), ("as_printed_epochs", 1.3)])
def test_the_length_of_a_task_in_epochs(gradient, lam):
    # two epochs: g = (1, −1)/(0.1·2), g·D = 10 with D = (4, 2), and λ = 1 ∓ 0.12·10·¼
    mixing = AdaptiveMixing(Controls(gradient=gradient, lam_rate=0.12), epochs=2)
    memory = {
        "controls 0": torch.tensor([1.0, 0.5, 0.0, 1.0, 1.0, 1.0], dtype=torch.float64),
        "direction 0": torch.tensor([4.0, 2.0]),
    }
    mixing.step([update(0, model(3.0, 0.0), 2, 0, [-1.0, 1.0], steps=6, lr=0.1)], model(3.0, 0.0), memory)
    assert memory["controls 0"][0].item() == pytest.approx(lam)


def test_epochs_are_not_counted_where_tasks_have_steps():
    with pytest.raises(ValueError, match="derived_epochs is not allowed with steps: give epochs"):
        AdaptiveMixing(Controls(gradient="derived_epochs"))


@pytest.mark.parametrize("mu", [1.0, 0.3])
@pytest.mark.parametrize(("lam", "sigma", "iota"), [(1.0, 0.5, 0.0), (0.7, 1.3, 0.2), (2.0, 0.0, -0.05)])
@pytest.mark.parametrize(("s", "t"), [(1, 1), (3, 7), (40, 11)])
def test_the_slopes_of_alpha_are_its_derivatives(mu, lam, sigma, iota, s, t):
    x = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (lam, sigma, iota)]
    xi = x[0] / (sqrt(t) * s ** x[1]) + x[2]
    if xi < 0:
        pytest.skip("clipped")
    alpha = mu * xi / (1 + mu * xi)
    expected = [float(g) for g in torch.autograd.grad(alpha, x)]
    c = ClientControls(lam, sigma, iota, xi=ClientControls(lam, sigma, iota).xi_at(s, t), s=s, t=t)
    assert list(slopes(c, mu, "derived")) == pytest.approx(expected)


@pytest.mark.parametrize("mu", [1.0, 0.3])
@pytest.mark.parametrize(("gamma", "upsilon"), [(1.0, 0.5), (3.0, 0.0), (0.2, 1.1)])
@pytest.mark.parametrize(("g", "age"), [(1, 1), (5, 2), (30, 12)])
def test_the_slopes_of_beta_are_its_derivatives(mu, gamma, upsilon, g, age):
    x = [torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (gamma, upsilon)]
    phi = x[0] / sqrt(g) * (1 - x[1] / sqrt(age + 1))
    beta = mu * phi / (1 + mu * phi)
    expected = [float(v) for v in torch.autograd.grad(beta, x)]
    found = FreshMerge(options=Merge(mu=mu)).weight(gamma, upsilon, g, age)
    assert found[0] == pytest.approx(beta.item())
    assert list(found[1:]) == pytest.approx(expected)


def test_a_weight_that_would_be_negative_is_zero():
    beta, by_gamma, by_upsilon = FreshMerge().weight(1.0, 5.0, 4, 3)  # 1 − 5/2 < 0
    assert beta == 0.0
    assert (by_gamma, by_upsilon) == pytest.approx((1 / 2 * (1 - 5 / 2), -1 / (2 * 2)))


def test_a_merge_by_hand():
    # γ = 1, υ = ½, g = 4, g − o + 1 = 4: φ = ½·(1 − ¼) = 3/8, β = (3/8)/(11/8) = 3/11,
    # slope 1/(11/8)² = 64/121
    # w = (1, 2), w_g = (12, 2): w := (1, 2) + 3/11·(11, 0) = (4, 2); the loss falls from 9 to 5: R = 4
    # gradient at the merged model (2, −1): ∂F/∂β = 2·11 = 22
    # ∂β/∂γ = 64/121·½·¾ = 24/121, γ := 1 − 0.1·22·24/121
    # ∂β/∂υ = −64/121·½·½ = −16/121, υ := ½ + 0.1·22·16/121
    merge = FreshMerge(options=Merge(gamma_rate=0.1, upsilon_rate=0.1))
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    buffer = torch.tensor([0.0])
    run = LocalRun([w], [w.detach().clone()], [buffer])
    merge.begin(run)
    fresh = FreshModel([torch.tensor([12.0, 2.0]), torch.tensor([11.0])], clock=4, staleness=3)
    merge.merge(run, fresh, lambda: torch.tensor(9.0))
    assert w.tolist() == near(4.0, 2.0)
    assert buffer.tolist() == near(3.0)  # buffers are merged as well: 3/11·11
    assert merge.loss(run, torch.tensor(5.0)).item() == 5.0
    w.grad = torch.tensor([2.0, -1.0])
    merge.adjust(run)
    merge.adjust(run)  # only the first gradient after the merge counts
    assert run.state["merge"].tolist() == near(1 - 2.2 * 24 / 121, 0.5 + 2.2 * 16 / 121)
    assert merge.end(run) == {"beta": pytest.approx(3 / 11), "reward": pytest.approx(4.0)}
    again = LocalRun([w], [w.detach().clone()], state=run.state)
    merge.begin(again)
    assert again.state["merge"].tolist() == near(1 - 2.2 * 24 / 121, 0.5 + 2.2 * 16 / 121)
    assert merge.end(again) == {}


def test_shared_controls_and_no_controls():
    w = model(0.0, 0.0)
    shared: dict[str, torch.Tensor] = {}
    AdaptiveMixing(Controls(shared=True)).step([update(0, w, 0, 0, [4.0, 2.0])], w, shared)
    AdaptiveMixing(Controls(shared=True)).step([update(1, w, 0, 1, [4.0, 2.0])], w, shared)
    assert set(shared) == {"controls all", "direction all"}
    fixed: dict[str, torch.Tensor] = {}
    step = AdaptiveMixing(Controls(adaptive=False)).step([update(0, w, 0, 0, [4.0, 2.0])], w, fixed)
    assert step.tolist() == near(2.0, 1.0)
    assert fixed == {}


def test_several_updates_at_once_are_mixed_in_turn():
    w, other = model(0.0, 0.0), model(1.0, 1.0)
    first, second = update(0, w, 0, 0, [4.0, 2.0]), update(1, other, 0, 0, [5.0, -2.0])
    together = AdaptiveMixing().step([first, second], w, {})
    memory: dict[str, torch.Tensor] = {}
    one = AdaptiveMixing().step([first], w, memory)
    two = AdaptiveMixing().step([second], Model(w.layout, w.values + one, w.integers), memory)
    assert together.tolist() == near(*(one + two).tolist())

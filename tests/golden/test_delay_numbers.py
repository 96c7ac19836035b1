"""FADAS and the time-optimal methods on one value: numbers of an independent script without PyTorch."""

from typing import Any

import pytest
import torch

import offbeat as ob
from offbeat.algorithms.fadas import AMSGrad, DelayAdaptive
from offbeat.core.algorithm import StepContext
from offbeat.core.schedule import Task
from tests.golden.timed_workers import TimedWorkers

# ---- FADAS: mean change and largest staleness of four buffers; η = 0.1, β = 0.9, 0.99, ε = 1e-8, τ_c = 1

ROWS = [(1.0, 0), (1.0, 3), (-0.5, 2), (0.25, 0)]
CODE = [0.099999999, 0.033333333, 0.0258217306, 0.0514074359]
TEXT = [0.09999999, 0.1346874194, 0.0812080482, 0.0890610877]
TEXT_OF_RATE_1 = [0.9999999, 0.4489580647, 0.4060402412, 0.8906108771]
AMSGRAD = [0.099999999, 0.099999999, 0.0516434613, 0.0514074359]


def steps(part: AMSGrad) -> list[float]:
    memory: dict[str, torch.Tensor] = {}
    made = []
    for version, (change, staleness) in enumerate(ROWS, 1):
        # The buffer has a fresh update too: the largest staleness counts.
        tasks = [Task(0, 0, 0, 1, 0.0, staleness=0), Task(1, 1, 0, 1, 0.0, staleness=staleness)]
        step = torch.tensor([change], dtype=torch.float64)
        made.append(float(part.transform_aware(step, memory, StepContext(tasks, version, {}))))
    return made


def digits(expected: list[float]) -> Any:
    """Equal to the last of ten printed digits."""
    return pytest.approx(expected, abs=0.6e-10)


def test_fadas_of_the_authors_code():
    assert steps(AMSGrad(0.1, delay=DelayAdaptive())) == digits(CODE)


@pytest.mark.parametrize(("lr", "expected"), [(0.1, TEXT), (1.0, TEXT_OF_RATE_1)])
def test_fadas_of_the_papers_text(lr, expected):
    delay = DelayAdaptive(rule="minimum")
    assert steps(AMSGrad(lr, bias_correction=False, delay=delay)) == digits(expected)


def test_fadas_without_a_delay_is_amsgrad_and_has_the_bits_of_any_large_threshold():
    assert steps(AMSGrad(0.1)) == digits(AMSGRAD)
    assert steps(AMSGrad(0.1)) == steps(AMSGrad(0.1, delay=DelayAdaptive(threshold=10**9)))


def test_amsgrad_is_pytorchs():
    w = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = torch.optim.Adam([w], lr=0.1, betas=(0.9, 0.99), eps=1e-8, amsgrad=True)
    made = []
    for change, _ in ROWS:
        before = float(w.detach())
        w.grad = torch.tensor([-change], dtype=torch.float64)
        optimizer.step()
        made.append(float(w.detach()) - before)
    assert made == pytest.approx(AMSGRAD, abs=1e-10)


def test_amsgrad_without_memory_is_the_sign():
    memory: dict[str, torch.Tensor] = {}
    part = AMSGrad(0.5, beta1=0.0, beta2=0.0, epsilon=1e-12)
    assert [float(part.transform(torch.tensor([x]), memory)) for x in (3.0, -3.0)] == [0.5, -0.5]


# ---- f = x²/2 from x₀ = 1 with γ = 0.1; three workers of 1, 1.7 and 10.5 seconds ----

SECONDS = (1.0, 1.7, 10.5)


def pulled(algorithm: ob.Algorithm, until: float) -> TimedWorkers:
    return TimedWorkers(algorithm, SECONDS, lambda _, x: -x, 1.0).until(until)


def test_ringmaster_drops_what_is_too_late():
    run = pulled(ob.ringmaster(3, 1, stop=False, server_lr=0.1), 11.0)
    (before, dropped, after) = run.told[-3:]
    assert before[1:4] == (1, "step", 2)
    assert before[4] == pytest.approx(0.1490906871, abs=0.6e-10)
    assert dropped == (10.5, 2, "dropped")
    assert after[1:4] == (0, "step", 1)
    assert after[4] == pytest.approx(0.1320429403, abs=0.6e-10)
    (row,) = (row for row in run.rows if row.name == "drop")
    assert row.data == {"reason": "its delay has reached 3 versions"}


def test_ringmaster_stops_what_would_be_too_late():
    told = pulled(ob.ringmaster(3, 1, server_lr=0.1), 4.0).told
    values = [0.9, 0.8, 0.71, None, 0.639, 0.559, 0.4951, None]
    assert [(round(t[0], 6), *t[1:4]) for t in told] == [
        (1.0, 0, "step", 0), (1.7, 1, "step", 1), (2.0, 0, "step", 1), (2.0, 2, "stopped"),
        (3.0, 0, "step", 0), (3.4, 1, "step", 2), (4.0, 0, "step", 1), (4.0, 2, "stopped"),
    ]  # fmt: skip
    assert [t[4] for t in told if t[2] == "step"] == pytest.approx([v for v in values if v], abs=0.6e-10)


def test_ringmaster_of_any_delay_uses_all():
    told = pulled(ob.ringmaster(10**9, 1, stop=False, server_lr=0.1), 10.5).told
    assert [t[1:4] for t in told[-2:]] == [(1, "step", 2), (2, "step", 16)]
    assert told[-1][4] == pytest.approx(0.0490906871, abs=0.6e-10)


@pytest.mark.parametrize("stop", [True, False])
def test_rennala(stop):
    """Five gradients a step: three of worker 0 and two of worker 1."""
    run = pulled(ob.rennala(5, 1, stop=stop, server_lr=0.1), 10.3)
    expected = {True: [(3.4, 0.9), (6.8, 0.81), (10.2, 0.729)], False: [(3.4, 0.9)]}[stop]
    assert [(t, pytest.approx(x)) for t, _, x in run.steps()][: len(expected)] == expected
    clients = [row.data["clients"] for row in run.rows if row.name == "aggregate" and row.data]
    assert clients[0] == [0, 1, 0, 0, 1]
    if not stop:
        # At 4 s worker 0's gradient of the old model is dropped.
        assert (4.0, 0, "dropped") in run.told
        assert run.steps()[1][0] > 6.8


def test_malenia_waits_for_everybody_and_weighs_clients_alike():
    """Worker i pulls by i + 1: in the mean by client they count alike, whatever their numbers of updates."""
    run = TimedWorkers(ob.malenia(3, 1, server_lr=0.1), (1.0, 1.5, 2.25), lambda i, _: i + 1.0, 0.0).until(
        2.3
    )
    # B = (1, 0, 0), (1, 1, 0), (2, 1, 0) at 1, 1.5, 2 s, and (2, 1, 1) at 2.25 s: 9 > 3 · 2.5
    assert run.steps() == [(2.25, 2, pytest.approx(0.1 * 2.0))]
    # With S = 4 that is not enough, as 9 < 4 · 2.5, but (3, 2, 1) at 3 s is: 9 > 4 · 11/6.
    run = TimedWorkers(ob.malenia(4, 1, server_lr=0.1), (1.0, 1.5, 2.25), lambda i, _: i + 1.0, 0.0).until(
        3.0
    )
    assert [(t, x) for t, _, x in run.steps()] == [(3.0, pytest.approx(0.1 * 2.0))]


def test_malenia_needs_more_than_the_harmonic_mean():
    """One gradient of each of three is exactly S / n of S = 3."""
    run = TimedWorkers(ob.malenia(3, 1), (1.0, 1.0, 1.0), lambda i, _: 1.0, 0.0).until(1.0)
    assert run.steps() == []
    # Of (2, 1, 1), 9 > 3 · 2.5.
    assert run.until(2.0).steps()[0][0] == 2.0


# ---- Ringleader: f_i = (x − a_i)²/2 with a = (0, 3, 6) from x₀ = 0; workers of 1, 1.7 and 3.6 seconds ----


def led(until: float, seconds: tuple[float, ...] = (1.0, 1.7, 3.6), **options: Any) -> TimedWorkers:
    aims = (0.0, 3.0, 6.0)
    algorithm = ob.ringleader(1, server_lr=0.1, **options)
    return TimedWorkers(algorithm, seconds, lambda i, x: aims[i] - x, 0.0).until(until)


def test_ringleader():
    expected = [
        (3.6, 2, 0.3), (4.0, 0, 0.6), (5.1, 1, 0.8999999999999999), (7.2, 2, 1.1366666666666667),
        (8.0, 0, 1.3716666666666668), (8.5, 1, 1.606666666666667),
    ]  # fmt: skip
    run = led(8.5)
    assert [(t, c, pytest.approx(x, abs=1e-12)) for t, c, x in run.steps()] == expected
    first = [row.data for row in run.rows if row.name == "aggregate" and row.data and "first" in row.data]
    # b = (3, 2, 1) in the first round, and in the second one (3, 1, 1).
    assert [[data["clients"].count(c) for c in range(3)] for data in first] == [[3, 2, 1], [3, 1, 1]]


def test_ringleader_keeps_at_most_so_many_updates_of_a_client():
    run = led(3.6, most=2)
    assert (3.0, 0, "dropped") in [(round(t[0], 6), *t[1:]) for t in run.told]
    assert run.steps()[0][2] == pytest.approx(0.3)

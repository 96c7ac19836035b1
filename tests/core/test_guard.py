"""The guard: what it refuses, what it takes, and that it does not learn from attackers."""

import json

import pytest
import torch

import offbeat as ob
from offbeat.core.aggregator import Update
from offbeat.core.guard import Guard, UpdateGuard
from offbeat.core.learner import LocalResult
from offbeat.core.model import Model
from offbeat.core.server import Task

LAYOUT = ob.Layout.flat(4)
MODEL = Model.empty(LAYOUT)


def update(norm: float, shared: torch.Tensor | None = None) -> LocalResult:
    return LocalResult(torch.tensor([norm, 0.0, 0.0, 0.0]), torch.zeros(0, dtype=torch.int64), shared=shared)


def new(clients: int = 4, initial: Model = MODEL, **options: float) -> UpdateGuard:
    return UpdateGuard(Guard(**options), clients, initial)


def warmed(clients: int = 4, norm: float = 1.0, **options: float) -> UpdateGuard:
    """A guard that has seen two updates of each client, of one step each."""
    guard = new(clients, **options)
    for client in (*range(clients), *range(clients)):
        assert guard.check(client, 1, update(norm), MODEL) is None
    return guard


def test_the_numbers_by_hand() -> None:
    """Votes 1, 2, 3, 4, 5, 6 of six clients: their upper median is 4, so that 30 times it is 120."""
    guard = new(6)
    for client, norm in enumerate([3.0, 1.0, 2.0, 6.0, 5.0, 4.0]):
        assert guard.check(client, 1, update(norm), MODEL) is None
    assert guard.check(1, 1, update(120.5), MODEL) == (
        "the norm of its parameters is 30.1 times the usual one, more than 30"
    )
    assert guard.check(0, 4, update(240.0), MODEL) is None  # n = 240 / √4 = 120


def test_what_is_small_beside_the_initial_model_passes_whatever_is_usual() -> None:
    """‖w₀‖ = 3: up to 1.5 · 4 = 6, which is 6,000 times the usual norm; in the warm-up too."""
    initial = Model(LAYOUT, torch.tensor([3.0, 0.0, 0.0, 0.0]), torch.zeros(0, dtype=torch.int64))
    guard = new(3, initial)
    for client, norm in enumerate([5.9, 0.001, 0.001]):
        assert guard.check(client, 1, update(norm), initial, task=client) is None
    assert guard.poisoned is None
    assert guard.check(0, 4, update(11.9), initial) is None
    assert guard.check(0, 1, update(6.1), initial) is not None


@pytest.mark.parametrize("times", [100, 1e3, 1e6, 1e18, 1e30])
def test_an_absurd_update_is_refused_however_finite(times: float) -> None:
    guard = warmed()
    for _ in range(20):
        assert guard.check(0, 1, update(times), MODEL) is not None
    assert guard.check(1, 1, update(1.0), MODEL) is None


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_is_refused_from_the_first_update_on(value: float) -> None:
    assert new(1).check(0, 1, update(value), MODEL) == "the norm of its parameters is not finite"


def test_the_first_updates_are_held_against_the_initial_model_and_no_later_one() -> None:
    heavy = Model(LAYOUT, torch.tensor([9.0, 0.0, 0.0, 0.0]), MODEL.integers)
    guard = new(4, heavy)
    poisoned = Model(LAYOUT, torch.tensor([1e6, 0.0, 0.0, 0.0]), MODEL.integers)
    assert guard.check(0, 1, update(1000.0), poisoned) is None  # 100 · (1 + 9)
    assert guard.check(1, 1, update(1010.0), poisoned) == (
        "the norm of its parameters, 1.01e+03, is above 1e+03, the most before most clients have delivered"
    )


def test_two_clients_never_leave_the_first_limit_far() -> None:
    """Neither is a majority: an attacker's own norms do not raise the limit, small ones do not lower it."""
    guard = new(2)
    assert guard.check(0, 1, update(1.0), MODEL) is None
    for norm in (90.0, 95.0, 99.0):
        assert guard.check(1, 1, update(norm), MODEL) is None
    for norm in (101.0, 3e20):
        assert guard.check(1, 1, update(norm), MODEL) is not None
    other = new(2)
    for _ in range(10):
        assert other.check(1, 1, update(1e-9), MODEL) is None
    assert other.check(0, 1, update(50.0), MODEL) is None


def test_buffers_and_the_shared_vector_have_norms_of_their_own() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model = Model.of(module)
    guard, size = new(3, model), model.layout.parameters

    def result(parameters: float, buffers: float, shared: float) -> LocalResult:
        delta = torch.zeros(model.layout.values)
        delta[0], delta[size] = parameters, buffers
        return LocalResult(delta, torch.zeros(1, dtype=torch.int64), shared=torch.tensor([shared]))

    for client in (0, 1, 2, 0, 1, 2):
        assert guard.check(client, 1, result(1.0, 50.0, 0.01), model) is None
    assert guard.check(0, 1, result(1.0, 1000.0, 0.01), model) is None
    assert "of its buffers is 1e+03 times" in str(guard.check(1, 1, result(1.0, 5e4, 0.01), model))
    assert "of its shared vector is 100 times" in str(guard.check(2, 1, result(1.0, 50.0, 1.0), model))


def test_one_client_alone_does_not_move_the_limit() -> None:
    """However often it comes, and though it comes before the others."""
    guard = new(5)
    for task in range(20):
        assert guard.check(0, 1, update(99.0), MODEL, task=task) is None  # nothing else is known
    for client in (1, 2, 3, 4, 1, 2, 3, 4):
        assert guard.check(client, 1, update(1.0), MODEL) is None
    for _ in range(200):
        assert guard.check(0, 1, update(31.0), MODEL) is not None
    assert guard.check(1, 1, update(1.0), MODEL) is None
    assert guard.diverged is None


def test_the_warm_up_is_judged_again_by_the_quorum() -> None:
    """Task 2 is held, and is left out; tasks 0 and 1 are in versions, which are withdrawn."""
    guard = new(3)
    for task in range(3):
        assert guard.check(0, 1, update(99.0), MODEL, 2, task, {2}) is None
    assert guard.check(1, 1, update(1.0), MODEL, 2, 3, {2}) is None
    assert guard.poisoned is None
    assert not guard.settled
    assert guard.check(2, 1, update(2.0), MODEL, 2, 4, {2, 3}) is None
    assert not guard.settled
    assert guard.poisoned == (
        "the norm of the parameters of 2 updates that it is made of is more than 30 times that of most "
        "clients, which had not delivered then"
    )
    assert set(guard.take_condemned()) == {2}
    guard.roll_back(0)
    assert guard.poisoned is None
    assert guard.check(0, 1, update(61.0), MODEL, 3, 5) is not None  # no new warm-up
    assert guard.check(0, 1, update(59.0), MODEL, 3, 5) is None
    for task in range(6, 15):
        assert not guard.settled
        assert guard.check(task % 3, 1, update(2.0), MODEL, 3, task) is None
    assert guard.settled
    assert guard.poisoned is None


def test_the_warm_up_is_judged_a_second_time() -> None:
    """Client 0 poisons the model. The first updates of the others are large too, their later ones are not."""
    guard = new(3)
    sizes = [(0, 90.0), (1, 20.0), (2, 20.0), *((client, 0.5) for _ in range(9) for client in (1, 2))]
    for task, (client, size) in enumerate(sizes):
        assert guard.check(client, 1, update(size), MODEL, 1, task) is None
    assert guard.settled
    assert guard.poisoned is not None


@pytest.mark.parametrize("kept", [set(), {0, 1}])
def test_the_update_that_completes_the_quorum_is_judged_too(kept: set[int]) -> None:
    """No client has delivered so large a norm: below the first limit, it is refused at once."""
    guard = new(3)
    for client in range(2):
        assert guard.check(client, 1, update(1.0), MODEL, 0, client, kept) is None
    refusal = guard.check(2, 1, update(99.0), MODEL, 0, 2, kept)
    assert refusal == "the norm of its parameters is more than 30 times the usual one"
    assert guard.poisoned is None
    assert not guard.take_condemned()
    assert guard.check(2, 1, update(1.0), MODEL, 0, 3, kept) is None
    for task in range(4, 20):
        assert guard.check(task % 3, 1, update(1.0), MODEL, 0, task) is None
    assert guard.settled
    assert guard.poisoned is None


def test_what_is_left_out_for_one_part_does_not_poison_by_another() -> None:
    """The refused update's buffers are as absurd; they complete their quorum only later."""
    model = Model.of(torch.nn.BatchNorm1d(2))
    guard = new(3, model)

    def result(parameters: float, buffers: float) -> LocalResult:
        return LocalResult(torch.tensor([parameters, 0, 0, 0, buffers, 0]), torch.zeros(1, dtype=torch.int64))

    assert guard.check(0, 1, result(99.0, 3e4), model, 0, 0, {0}) is None
    assert guard.check(1, 1, result(1.0, 0.0), model, 0, 1, {0, 1}) is None
    assert guard.check(2, 1, result(1.0, 1.0), model, 0, 2, {0, 1}) is None
    assert set(guard.take_condemned()) == {0}
    for task in range(3, 30):
        assert guard.check(task % 3, 1, result(1.0, 1.0), model, 0, task) is None
    assert guard.poisoned is None


def test_most_clients_are_right() -> None:
    """Where the updates of most clients grow a thousandfold, the guard follows within a round."""
    guard = warmed(10)
    refused = [
        guard.check(client, 1, update(1e3), MODEL) is not None for _ in range(3) for client in range(10)
    ]
    assert refused == [True] * 5 + [False] * 25


@pytest.mark.parametrize(
    ("usual", "norm", "count", "refused"),
    [
        ((10.0, 1), 899.0, 1, False),  # 3 times 30 times the usual step
        ((10.0, 1), 901.0, 1, True),
        ((10.0, 1), 901.0, 100, False),  # a sum of a hundred; divided by their number it is usual
        ((10.0, 1), 89_900.0, 100, False),
        ((10.0, 1), 90_100.0, 100, True),
        ((1000.0, 100), 2000.0, 1, False),  # a step of one that is usual as a step, and not as one of one
        ((1000.0, 100), 89_900.0, 1, False),
        ((1000.0, 100), 90_100.0, 1, True),
    ],
)
def test_a_step_is_refused_where_its_norm_and_that_by_its_number_of_updates_are_absurd(
    usual: tuple[float, int], norm: float, count: int, refused: bool
) -> None:
    """The updates themselves go nowhere, so only the usual norms excuse a step."""
    guard, still = new(3), torch.zeros(4)

    def check(version: int, norm: float, count: int) -> str | None:
        tasks = [Task(version * 1000 + k, k % 3, 0, 1, 0.0) for k in range(count)]
        updates = [Update(task, MODEL, still, torch.zeros(0)) for task in tasks]
        return guard.check_step(torch.tensor([norm, 0.0, 0.0, 0.0]), MODEL, version, updates)

    for version in range(1, 21):
        tasks = [Task(version, version % 3, 0, 1, 0.0)] * usual[1]
        updates = [Update(task, MODEL, still, torch.zeros(0)) for task in tasks]
        step = torch.tensor([usual[0], 0.0, 0.0, 0.0])
        assert guard.check_step(step, MODEL, version, updates) is None
    assert (check(21, norm, count) is not None) == refused


def test_a_run_that_diverges_says_so() -> None:
    guard = warmed(3)
    for number in range(10):
        assert guard.diverged is None
        assert guard.check(number % 3, 1, update(float("nan")), MODEL) is not None
    assert guard.diverged == "the last 10 updates were refused for their size: the training has diverged"
    assert guard.check(0, 1, update(1.0), MODEL) is None
    assert guard.diverged is None


def test_a_refused_update_leaves_no_norm_behind() -> None:
    """Nor do those of its parts that are as usual."""
    module = torch.nn.BatchNorm1d(2)
    model = Model.of(module)
    guard = new(3, model)

    def result(parameters: float, buffers: float) -> LocalResult:
        return LocalResult(torch.tensor([parameters, 0, 0, 0, buffers, 0]), torch.zeros(1, dtype=torch.int64))

    for client in range(3):
        assert guard.check(client, 1, result(1.0, 1.0), model) is None
    before = guard.save()
    assert guard.check(0, 1, result(5.0, 1e9), model) is not None
    after = guard.save()
    assert after["norms"]["parameters"] == before["norms"]["parameters"]
    assert after["norms"]["buffers"]["accepted"] == before["norms"]["buffers"]["accepted"]


def test_it_goes_on_from_its_state_as_json() -> None:
    guard = warmed(4)
    guard.check(0, 1, update(1e9), MODEL)
    again = new(4)
    again.restore(json.loads(json.dumps(guard.save())))
    for own in (guard, again):
        assert own.check(1, 1, update(29.0), MODEL) is None
        assert own.check(2, 1, update(31.0), MODEL) is not None
    assert guard.save() == again.save()


def with_values(*values: float) -> Model:
    return Model(LAYOUT, torch.tensor(values), torch.zeros(0, dtype=torch.int64))


@pytest.mark.parametrize(("restored", "looked_at"), [(False, False), (True, True)])
def test_parameters_are_looked_at_where_no_bound_is_known(restored: bool, looked_at: bool) -> None:
    guard = new()
    if restored:
        guard.restore(guard.save())
    reason = guard.check_version(with_values(float("nan"), 0.0, 0.0, 0.0))
    assert (reason == "its values are not finite") is looked_at
    assert guard.check_version(with_values(1.0, 0.0, 0.0, 0.0)) is None


@pytest.mark.parametrize("initial", [3e38, float("nan"), float("inf")])
def test_versions_of_a_model_near_the_largest_number_are_looked_at(initial: float) -> None:
    guard = new(initial=with_values(initial, 0.0, 0.0, 0.0))
    for _ in range(2):
        assert guard.check_version(with_values(3e38, 3e38, 0.0, 0.0)) is None
        assert guard.check_version(with_values(float("inf"), 0.0, 0.0, 0.0)) == "its values are not finite"


@pytest.mark.parametrize("factor", [1.0, 0.0, -1.0, float("nan"), float("inf")])
def test_a_factor_out_of_range_is_refused(factor: float) -> None:
    with pytest.raises(ob.UsageError, match="factor"):
        Guard(factor=factor)

"""When a client asks for a fresh model: the schedules, the selector, and what it learns."""

from collections import Counter
from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import offbeat as ob
from offbeat.algorithms import build
from offbeat.algorithms.fedasmu.requests import (
    ACTIONS,
    FixedTiming,
    LearnedTiming,
    RequestFreshModel,
    RequestState,
    log_probabilities,
)
from offbeat.core.errors import UsageError
from offbeat.core.events import Arrived, Begin, Joined, WantsModel
from offbeat.core.journal import event_of
from offbeat.core.server import Server
from tests.sampling import examples
from tests.sim.sim_worlds import CALM, digits


def chances(selector: LearnedTiming, epochs: int, state=None) -> np.ndarray:
    theta = (state or selector.initial()).theta
    return torch.stack([*log_probabilities(theta, epochs)]).detach().exp().numpy()


# ---- the fixed moments ----


@pytest.mark.parametrize(
    ("at", "moments"), [("first", [1, 1, 1, 1]), ("half", [1, 1, 2, 5]), ("last", [1, 2, 3, 9])]
)
def test_fixed_moments(at, moments):
    found = [FixedTiming(at).choose(0, epochs, None, np.random.default_rng(0)) for epochs in (2, 3, 4, 10)]
    assert found == moments


# ---- the shared model ----


@pytest.mark.parametrize("epochs", [2, 3, 5, 10])
def test_at_first_every_epoch_is_equally_likely(epochs):
    assert chances(LearnedTiming(), epochs) == pytest.approx([1 / (epochs - 1)] * (epochs - 1), rel=1e-5)


@examples(50)
@given(st.integers(2, 12), st.integers(0, 10**6))
def test_chances_add_up_to_one_whatever_the_model(epochs, seed):
    generator = np.random.default_rng(seed)
    state = LearnedTiming().initial()
    with torch.no_grad():
        for tensor in state.theta.values():
            tensor.copy_(torch.from_numpy(generator.normal(size=tuple(tensor.shape))))
    assert chances(LearnedTiming(), epochs, state).sum() == pytest.approx(1.0, rel=1e-4)


def test_reinforce_by_hand():
    # b = 0.9·0 + 0.1·2 = 0.2, R − b = 1.8. At L = 3 there is one decision, at even odds, and the linear
    # layer's bias has ∇ log σ(0) = ½ for asking: out[-1] = 0.1·1.8·½ = 0.09
    selector = LearnedTiming(rate=0.1, memory=0.1, epsilon=0.0)
    state = selector.initial()
    client = next(c for c in range(100) if selector.choose(c, 3, state, np.random.default_rng(c)) == 1)
    selector.learn(client, 2.0, state)
    assert state.baseline == pytest.approx(0.2)
    assert state.theta["out"][-1].item() == pytest.approx(0.09)
    assert chances(selector, 3, state)[0] > 0.5
    assert chances(LearnedTiming(), 3)[0] == pytest.approx(0.5)  # another run starts anew


def test_the_shared_model_learns_the_epoch_that_pays():
    selector = LearnedTiming(rate=0.1, epsilon=0.3)
    state, generator = selector.initial(), np.random.default_rng(3)
    for client in range(600):  # everybody's first task; the fourth of nine moments pays
        ask = selector.choose(client, 10, state, generator)
        selector.learn(client, 1.0 if ask == 4 else 0.0, state)
    found = chances(selector, 10, state)
    assert found.argmax() == 3
    assert found[3] > 0.5


# ---- the clients' own tables ----


def test_q_learning_by_hand():
    selector = LearnedTiming(q_rate=0.5, discount=0.5, epsilon=0.0)
    state, generator = selector.initial(), np.random.default_rng(0)
    first = selector.choose(0, 6, state, generator)
    selector.learn(0, 0.0, state)
    # "stay" is best. H(l, 0) = 0 + ½(−1 + ½·0 − 0) = −½
    values = state.table[0] = {(first, 1): -1.0, (first, -1): -1.0}
    assert selector.choose(0, 6, state, generator) == first
    selector.learn(0, -1.0, state)
    assert values == {(first, 1): -1.0, (first, -1): -1.0, (first, 0): -0.5}
    # now let +1 be better: H(l, 1) = ½(2 + ½·max H(l + 1, ·) − 0) = 1
    values[first, 1] = 0.0
    assert selector.choose(0, 6, state, generator) == first + 1
    selector.learn(0, 2.0, state)
    assert state.table[0][first, 1] == 1.0
    # from l + 1, let "stay" be best: H(l + 1, 0) = ½(4 + ½·0) = 2
    values[first + 1, 1] = values[first + 1, -1] = -1.0
    assert selector.choose(0, 6, state, generator) == first + 1
    selector.learn(0, 4.0, state)
    # again: H = 2 + ½(4 + ½·2 − 2) = 3.5
    assert selector.choose(0, 6, state, generator) == first + 1
    selector.learn(0, 4.0, state)
    assert state.table[0][first + 1, 0] == 3.5
    assert set(state.table) == {0}  # a client that was never given work costs nothing


@pytest.mark.parametrize(
    ("before", "action", "epochs", "asks"),
    [(5, 1, 6, 5), (1, -1, 6, 1), (3, 1, 6, 4), (8, 0, 6, 5), (8, 1, 6, 5), (8, -1, 6, 4), (1, -1, 2, 1)],
)
def test_the_best_action_stays_inside_the_task(before, action, epochs, asks):
    """l* is at least 1 and at most L - 1, of a task that may be shorter than the one before."""
    selector = LearnedTiming(epsilon=0.0)
    state = selector.initial()
    state.last[0], at = (0, 0, before), min(before, epochs - 1)
    state.table[0] = {(at, action): 1.0}
    assert selector.choose(0, epochs, state, np.random.default_rng(0)) == asks
    assert state.last[0] == (at, action, asks)


def test_a_reward_is_followed_by_the_best_value_of_the_epoch_that_it_led_to():
    """Eq. 8: H(l, a) += κ (R + ψ max H(l′, ·) − H(l, a)), l′ = l + a."""
    selector = LearnedTiming(q_rate=0.5, discount=0.5)
    state = selector.initial()
    state.last[0] = 3, 1, 4
    state.table[0] = {(3, 0): 7.0, (4, -1): 2.0, (4, 0): -5.0}
    selector.learn(0, 1.0, state)
    assert state.table[0][3, 1] == 1.0  # ½(1 + ½·2 − 0); of l = 3 the best is 7


def test_a_table_learns_the_epoch_that_pays():
    selector = LearnedTiming()
    state, generator = selector.initial(), np.random.default_rng(0)
    asked = Counter()
    for task in range(400):
        ask = selector.choose(0, 10, state, generator)
        selector.learn(0, -abs(ask - 7) / 10, state)
        if task >= 200:
            asked[ask] += 1
    assert asked.most_common(1)[0][0] == 7


@pytest.mark.parametrize("reward", [-1.0, 1.0])
def test_rewards_that_are_all_equal_favour_neither_end(reward):
    """A table starts at 0, so below 0 what was not tried is best: in a fixed order l* would go to one end."""
    selector, generator = LearnedTiming(), np.random.default_rng(0)
    state, asked = selector.initial(), Counter()
    for client in range(1001):
        state.last[client] = 0, 0, 1 + client % 7  # its first task: every epoch equally often
        for _ in range(12):
            asked[selector.choose(client, 8, state, generator)] += 1
            selector.learn(client, reward, state)
    early, late = (sum(asked[ask] for ask in end) for end in ((1, 2, 3), (5, 6, 7)))
    assert early == pytest.approx(late, rel=0.15)


@examples(50)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(2, 9), st.floats(-1, 1)), max_size=60),
    st.integers(0, 99),
)
def test_every_choice_is_inside_the_task(tasks, seed):
    selector = LearnedTiming(epsilon=0.5)
    state, generator = selector.initial(), np.random.default_rng(seed)
    for number, (client, epochs, reward) in enumerate(tasks):
        assert 1 <= selector.choose(client, epochs, state, generator) <= epochs - 1
        if number % 3:  # some tasks come to nothing
            selector.learn(client, reward, state)
    assert all(action in ACTIONS for table in state.table.values() for _, action in table)


# ---- in a run ----


def requests(algorithm: ob.Algorithm, world: ob.World, batches: int = 2, **until) -> ob.Run:
    learner = ob.NoTraining(world.clients, parameters=2, samples_per_client=8, batches=batches)
    return ob.simulate(algorithm, world, learner, until=ob.Until(**until))


def test_a_timeline():
    """Client 1 asks after one of three epochs, when client 0 has just made a version; client 0 finds none."""
    algorithm = ob.fedasmu(epochs=3, size=2, period=100.0, ask={"kind": "fixed", "at": "first"})
    world = ob.World([1.0, 4.0], clients=2)
    run = requests(algorithm, world, tasks=2)
    found = [
        (e["t"], e["name"], e["client"])
        for e in run.journal
        if e["name"] in ("wants_model", "send", "arrived")
    ]
    assert found == [
        (2.0, "wants_model", 0),  # after 2 steps of 1 s
        (6.0, "arrived", 0),
        (8.0, "wants_model", 1),
        (8.0, "send", 1),
        (24.0, "arrived", 1),
    ]
    sent = run.entries("send")[0]
    assert (sent["version"], sent["clock"]) == (1, 2)  # versions count from 1 in the merge's weight
    assert run.summary.bytes_down == 3 * 8  # two tasks and one fresh model of 2 floats


def test_a_request_takes_its_time_on_the_network():
    """Latency ½ s; 8 bytes at 64 bit/s take 1 s each way: the client waits for its model, or for the word."""
    world = ob.World([1.0, 4.0], clients=2, network=ob.Network(latency=0.5, up=64.0, down=64.0))
    algorithm = ob.fedasmu(epochs=3, size=2, period=100.0, ask={"kind": "fixed", "at": "first"})
    run = requests(algorithm, world, tasks=2)
    found = [(e["t"], e["name"], e["client"]) for e in run.journal if e["name"] in ("wants_model", "arrived")]
    assert found == [
        (4.0, "wants_model", 0),  # 1.5 down, 2 steps, 0.5 up
        (
            10.0,
            "wants_model",
            1,
        ),  # 1.5 + 8 + 0.5, before the arrival of the same moment, which was known later
        (10.0, "arrived", 0),  # 1.5 down, 6 steps, two latencies of waiting, 1.5 up
        (28.0, "arrived", 1),  # 1.5 + 24 + two latencies of waiting + 1.5
    ]


def starts(threshold: int | None, clients: int) -> list[float]:
    """When tasks of 25 s start, of two clients triggered every ten seconds."""
    algorithm = ob.fedasmu(steps=1, size=2, period=10.0, threshold=threshold, ask={"kind": "never"})
    run = requests(algorithm, ob.World(25.0, clients=clients), seconds=41.0)
    return [e["t"] for e in run.entries("train")]


def test_a_trigger_starts_all_m_clients_while_fewer_than_the_threshold_train():
    # 0 train, then 2 < 3: all two start, though four are then above it; at t = 20 four train, at 30 two
    assert starts(3, clients=9) == [0.0, 0.0, 10.0, 10.0, 30.0, 30.0, 40.0, 40.0]
    assert starts(1, clients=9) == [0.0, 0.0, 30.0, 30.0]
    assert starts(2, clients=9) == starts(1, clients=9)  # two train or none


def test_without_a_threshold_every_trigger_counts():
    assert starts(None, clients=9) == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0, 30.0, 30.0, 40.0, 40.0]
    assert starts(None, clients=5) == [
        0.0,
        0.0,
        10.0,
        10.0,
        20.0,
        30.0,
        30.0,
        40.0,
        40.0,
    ]  # all that are idle
    assert ob.fedasmu(threshold=3).schedule.concurrency is None


def learned(run: ob.Run) -> list[tuple[int, float]]:
    """The answered requests' clients and rewards, in the order of their arrivals."""
    sent = {e["task"] for e in run.entries("send")}
    return [(e["client"], e["reward"]) for e in run.entries("arrived") if e["task"] in sent]


def test_a_request_that_finds_nothing_newer_teaches_nothing():
    """R, b, θ and H are as they were: neither a reward of 0 nor one that the client invents is learned."""
    algorithm = ob.fedasmu(epochs=4, size=1, period=1e6, ask=LearnedTiming())
    server = Server(algorithm.schedule)
    server.feed(0.0, Joined(0, 8, 1))
    (train, _) = server.feed(0.0, Begin())
    assert server.feed(1.0, WantsModel(0, train.task, train.ask_after)) == []  # no other has changed it
    before = deepcopy(server.state.selector)
    server.feed(2.0, Arrived(0, train.task, 4, {"reward": 5.0}))
    after = server.state.selector
    assert after.baseline == before.baseline == 0.0
    assert all(torch.equal(after.theta[k], before.theta[k]) for k in before.theta)
    assert (after.table, after.last, server.state.after) == (before.table, before.last, {})


def test_a_model_sent_but_not_merged_teaches_nothing():
    server = Server(ob.fedasmu(epochs=4, size=2, period=1e6, ask=LearnedTiming()).schedule)
    for client in range(2):
        server.feed(0.0, Joined(client, 8, 1))
    first, second, _ = server.feed(0.0, Begin())
    server.feed(1.0, Arrived(first.client, first.task, 4))
    assert server.feed(2.0, WantsModel(second.client, second.task, second.ask_after)) != []
    server.feed(3.0, Arrived(second.client, second.task, 4))
    assert server.state.selector.baseline == 0.0


def test_the_selector_learns_from_the_answered_requests_alone():
    """By hand: the rewards of the journal's answered first requests give REINFORCE's baseline."""
    learner = digits()
    algorithm = ob.fedasmu(epochs=4, size=1, period=2.0, ask=LearnedTiming())
    run = ob.simulate(algorithm, CALM, learner, seed=2, until=ob.Until(tasks=30), evaluate=None)
    answered, asked = learned(run), len(run.entries("wants_model"))
    assert 0 < len(answered) < asked
    state = replayed(run, algorithm)
    tasks = {e["task"]: e["client"] for e in run.entries("train")}
    firsts = {client: task for task, client in reversed(tasks.items())}
    sent, baseline = {e["task"] for e in run.entries("send")}, 0.0
    for e in run.entries("arrived"):
        if e["task"] in sent and e["task"] == firsts[e["client"]]:
            baseline = 0.9 * baseline + 0.1 * e["reward"]
    assert state.selector.baseline == pytest.approx(baseline)


def replayed(run: ob.Run, algorithm: ob.Algorithm) -> RequestState:
    """The schedule's state after a run's events."""
    server = Server(algorithm.schedule, 2)
    for row in run.rows("event"):
        server.feed(row.t, event_of(row))
    return server.state


def test_the_option_that_is_gone_is_named():
    with pytest.raises(UsageError, match="fedasmu: there is no option limit any more: give `threshold`"):
        ob.fedasmu(limit=3)
    with pytest.raises(UsageError, match="there is no option limit any more"):
        build(ob.ALGORITHMS, {"name": "fedbuff", "with": {"requests": {"name": "fedasmu", "limit": None}}})


def test_a_staleness_above_the_bound_is_dropped():
    algorithm = ob.fedasmu(steps=1, size=4, period=1.0, tau_max=2, ask={"kind": "never"})
    run = requests(algorithm, ob.World([2.0, 2.5, 9.0, 9.5], clients=4), seconds=10.0)
    dropped = run.entries("drop")
    assert [(d["t"], d["client"], d["reason"]) for d in dropped] == [
        (9.0, 2, "staleness 8 is above tau_max = 2"),
        (9.5, 3, "staleness 8 is above tau_max = 2"),
    ]
    assert run.summary.versions == run.summary.tasks - 2  # what is dropped makes no version


def test_a_synchronous_round_mixes_as_they_come():
    algorithm = ob.fedssmu(epochs=2, ask={"kind": "fixed", "at": "first"})
    run = requests(algorithm, ob.World([1.0, 3.0, 4.0], clients=3), batches=1, tasks=6)
    made = [(e["t"], e["round"], e["k"]) for e in run.entries("aggregate")]
    assert made == [(2.0, 1, 0), (6.0, 1, 1), (8.0, 1, 2), (10.0, 2, 0), (14.0, 2, 1), (16.0, 2, 2)]
    sent = [(e["t"], e["client"], e["clock"]) for e in run.entries("send")]
    assert sent == [(3.0, 1, 1), (4.0, 2, 1), (11.0, 1, 2), (12.0, 2, 2)]  # the clock is the round's number
    bounded = ob.fedssmu(epochs=2, tau_max=2, ask={"kind": "never"})
    run = requests(bounded, ob.World([1.0, 3.0, 4.0], clients=3), batches=1, tasks=3)
    assert [e["client"] for e in run.entries("drop")] == [2]


def test_tasks_too_short_to_ask_do_not():
    run = requests(ob.fedasmu(epochs=1, size=1), ob.World(1.0, clients=2), tasks=4)
    assert run.entries("wants_model") == []
    run = requests(ob.fedasmu(epochs=1, size=1, ask_every=1), ob.World(1.0, clients=2), tasks=4)
    assert len(run.entries("wants_model")) == 4  # one of two steps


def test_asking_and_merging_belong_together():
    whole = ob.fedasmu()
    with pytest.raises(UsageError, match="RequestFreshModel needs an objective that merges the fresh model"):
        ob.Algorithm(whole.schedule, whole.aggregator, ob.fedavg().objective)
    with pytest.raises(UsageError, match="FreshMerge needs a schedule whose clients request fresh models"):
        ob.Algorithm(ob.fedavg().schedule, whole.aggregator, whole.objective)
    assert ob.compose(ob.fedavg(), objective=whole).objective == ob.fedavg().objective  # its own goal only
    assert isinstance(ob.compose(ob.fedbuff(), requests=whole).schedule, RequestFreshModel)
    with pytest.raises(UsageError, match="fedavg has no requests for fresh models"):
        ob.compose(ob.fedbuff(), requests=ob.fedavg())

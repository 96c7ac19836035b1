"""The fleet against a plain set of clients."""

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from offbeat.core.errors import AlgorithmError
from offbeat.core.fleet import Fleet
from tests.sampling import examples

clients = st.integers(0, 9)


class FleetAgainstSets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.fleet = Fleet()
        self.here: dict[int, tuple[int, int]] = {}
        self.idle: set[int] = set()

    @rule(client=clients, samples=st.integers(1, 50), epoch=st.integers(1, 9))
    def join(self, client, samples, epoch):
        if client in self.here:
            with pytest.raises(AlgorithmError, match=f"client {client} joined twice"):
                self.fleet.add(client, samples, epoch)
        else:
            self.fleet.add(client, samples, epoch)
            self.here[client] = (samples, epoch)
            self.idle.add(client)

    @rule(client=clients)
    def leave(self, client):
        if client in self.here:
            self.fleet.remove(client)
            del self.here[client]
            self.idle.discard(client)
        else:
            with pytest.raises(AlgorithmError, match=f"client {client} left without being present"):
                self.fleet.remove(client)

    @precondition(lambda self: self.idle)
    @rule(data=st.data())
    def busy(self, data):
        client = data.draw(st.sampled_from(sorted(self.idle)))
        self.fleet.set_busy(client)
        self.idle.remove(client)

    @precondition(lambda self: set(self.here) - self.idle)
    @rule(data=st.data())
    def free(self, data):
        client = data.draw(st.sampled_from(sorted(set(self.here) - self.idle)))
        self.fleet.set_idle(client)
        self.idle.add(client)

    @rule(count=st.integers(0, 12), seed=st.integers(0, 99))
    def sample(self, count, seed):
        drawn = self.fleet.sample_idle(count, np.random.default_rng(seed))
        assert len(drawn) == len(set(drawn)) == min(count, len(self.idle))
        assert set(drawn) <= self.idle
        assert drawn == sorted(drawn)
        assert drawn == self.fleet.sample_idle(count, np.random.default_rng(seed))

    @invariant()
    def agree(self):
        fleet = self.fleet
        assert list(fleet) == sorted(self.here)
        assert len(fleet) == len(self.here)
        assert fleet.idle() == sorted(self.idle)
        assert fleet.idle_count == len(self.idle)
        total = sum(n for n, _ in self.here.values())
        assert fleet.total_samples == total
        for client in range(-2, 12):
            assert (client in fleet) == (client in self.here)
            assert fleet.is_idle(client) == (client in self.idle)
        for client, (samples, epoch) in self.here.items():
            assert fleet.samples(client) == samples
            assert fleet.steps_per_epoch(client) == epoch
            assert fleet.share(client) == samples / total


TestFleetAgainstSets = FleetAgainstSets.TestCase
TestFleetAgainstSets.settings = examples(60, stateful_step_count=40)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_sampling_is_uniform(count):
    """Each of 5 clients is drawn with probability count/5: off by 5 deviations once in a million runs."""
    fleet, generator, draws = Fleet(), np.random.default_rng(0), 4000
    for client in range(6):
        fleet.add(client, 1, 1)
    fleet.set_busy(2)
    counts = np.zeros(6)
    for _ in range(draws):
        counts[fleet.sample_idle(count, generator)] += 1
    assert counts[2] == 0
    p = count / 5
    assert np.abs(counts[[0, 1, 3, 4, 5]] / draws - p).max() < 5 * np.sqrt(p * (1 - p) / draws)


def test_sampling_all_draws_nothing():
    fleet, generator = Fleet(), np.random.default_rng(0)
    for client in range(3):
        fleet.add(client, 1, 1)
    state = generator.bit_generator.state
    assert fleet.sample_idle(3, generator) == [0, 1, 2]
    assert generator.bit_generator.state == state


def test_all_at_once_is_one_after_another():
    one, other = Fleet(), Fleet()
    for client in range(50):
        one.add(client, client + 1, 1 + client % 3, (client, 1) if client % 2 else None)
    other.fill(
        [client + 1 for client in range(50)],
        [1 + client % 3 for client in range(50)],
        [(client, 1) if client % 2 else None for client in range(50)],
    )
    for fleet in (one, other):
        fleet.set_busy(7)
        fleet.remove(9)
        fleet.set_idle(7)
        fleet.add(60, 5, 5)
    assert vars(one) == vars(other)


def test_all_at_once_only_where_nobody_was():
    fleet = Fleet()
    fleet.add(3, 1, 1)
    with pytest.raises(AlgorithmError, match="the others can only join one by one"):
        fleet.fill([1, 1], [1, 1])


def test_a_client_that_comes_back_may_tell_less_of_its_data():
    fleet = Fleet()
    fleet.add(0, 30, 3, (10, 20))
    fleet.remove(0)
    fleet.add(0, 30, 3)
    assert fleet.labels(0) is None

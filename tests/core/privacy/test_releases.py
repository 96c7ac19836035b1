"""The ledger of a run with noise: whose privacy it tells, and how many clients may be there."""

import pytest

from offbeat.core.commands import Aggregate
from offbeat.core.journal import Row
from offbeat.core.privacy.ledger import PrivacyLedger, ReleasePlan
from offbeat.core.privacy.privacy_options import Budget, Noise, Privacy


def ledger(delta: float = 1e-5, clients: int = 3) -> PrivacyLedger:
    noise = Noise(multiplier=1.0, budget=Budget(delta=delta))
    return PrivacyLedger(ReleasePlan(Privacy(clip=1.0, weight_bits=2, most=3, noise=noise), 10, clients))


def release(*weights: int) -> Aggregate:
    """Of clients 0, 1, … with these weights."""
    clients = tuple(range(len(weights)))
    return Aggregate(clients, {"weights": list(weights)}, version=1, clients=clients)


@pytest.mark.parametrize("weights", [(3, 1, 1), (1, 3, 1), (1, 1, 3)])
def test_what_is_told_is_what_the_busiest_client_has_spent(weights: tuple[int, ...]) -> None:
    books = ledger()
    told = books.charge(release(*weights))
    spent = [books.mu(client) for client in range(3)]
    assert told["mu"] == pytest.approx(max(spent), abs=1e-6)
    assert spent.index(max(spent)) == weights.index(3)
    told = books.charge(release(1))  # of client 0, which is the busiest in one of the cases
    assert told["mu"] == pytest.approx(max(books.mu(client) for client in range(3)), abs=1e-6)


def test_where_helpers_tell_sums_a_release_is_charged_once_it_has_ended_and_if_its_sum_was_formed() -> None:
    """A journal says the same as the run did; one that is not charged is a release of the bands."""
    books, read = ledger(), ledger()
    books.helped = True
    told = [books.begin(release(3, 1, 1)), books.begin(release(1, 3, 1)), books.end(formed=False)]
    assert told == [{}, {}, {}]
    assert (books.releases, books.mu(0), books.mu(1)) == (1, 0.0, 0.0)
    assert books.end(formed=True)["mu"] == pytest.approx(books.mu(1), abs=1e-6)
    assert (books.releases, books.summary()["releases"]) == (2, 1)

    def row(name: str, **data: object) -> Row:
        return Row(0, 0.0, "event", name, data=data)

    rows = [
        row("committee"),
        *(
            row("aggregate", tasks=[0, 1, 2], clients=[0, 1, 2], weights=own)
            for own in ([3, 1, 1], [1, 3, 1])
        ),
        row("released", reason="refused"),
        row("released", reason="its sum is invalid", formed=True),
    ]
    assert [read.read(own) for own in rows] == [False, False, False, False, True]
    assert read.summary() == books.summary()


def test_as_many_clients_as_delta_allows_may_be_there() -> None:
    """δ is below 1 / number of clients."""
    books = ledger(delta=0.25)
    assert books.refusal(3) is None
    assert "0.25" in str(books.refusal(4))
    assert books.refusal(5) is not None
    books.joined(3)
    assert books.refusal(1) is not None  # those who have left count too

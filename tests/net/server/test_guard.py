"""One absurd site does not end a deployed run; its updates are refused, and the site is sent away."""

import pytest
import torch

import offbeat as ob
from offbeat.net.messages import Register, Rejected, TaskAssignment, UpdateAck, UpdateSubmission
from offbeat.net.server.handlers import RunInfo
from tests.net.support import coordinator_from, terms_of

LAYOUT = ob.Layout.flat(3)
INTEGERS = torch.zeros(0, dtype=torch.int64)


class Federation:
    """A coordinator under FedAsync and sites that answer each task at once."""

    def __init__(self, sites: int, **options: object) -> None:
        made = terms_of(clients=sites, lease=1e9, **options)  # type: ignore[arg-type]
        self.server = coordinator_from(ob.fedasync(steps=1), ob.Model.empty(LAYOUT), made, RunInfo("run", {}))
        self.tasks: dict[str, TaskAssignment] = {}
        self.said: dict[str, list[UpdateAck | Rejected]] = {f"site-{k}": [] for k in range(sites)}
        self.now = 0.0
        for name in self.said:
            self.send(name, Register(10, 1))

    def send(self, name: str, message: Register | UpdateSubmission) -> None:
        self.now += 1.0
        self.server.receive(self.now, name, message)
        for to, answer in self.server.take().messages:
            if isinstance(answer, TaskAssignment):
                self.tasks[to] = answer
            elif isinstance(answer, UpdateAck | Rejected):
                self.said[to].append(answer)

    def update(self, name: str, size: float, loss: float = 1.0) -> bool:
        """Send an update, if the site has a task; whether it has."""
        task = self.tasks.pop(name, None)
        if task is not None:
            delta = torch.tensor([size, 0.0, 0.0])
            self.send(name, UpdateSubmission(task.task, 1, delta, INTEGERS, {"loss": loss}))
        return task is not None

    def all_send(self, size: float, loss: float = 1.0, without: str = "") -> None:
        for name in [name for name in self.said if name != without]:
            assert self.update(name, size, loss)


@pytest.mark.parametrize("size", [1e2, 1e3, 1e6, 1e30])
def test_an_absurd_site_is_refused_and_sent_away(size: float) -> None:
    federation = Federation(4)
    for _ in range(3):
        federation.all_send(0.1)
    for _ in range(5):
        assert federation.update("site-0", size)
        federation.all_send(0.1, without="site-0")
    assert not federation.update("site-0", size)
    refused = [m for m in federation.said["site-0"] if isinstance(m, UpdateAck) and not m.accepted]
    assert len(refused) == 5
    wanted = "is not finite" if size == 1e30 else "times the usual one, more than 30"
    assert wanted in refused[0].reason  # in float32 the square of 1e30 is infinite
    assert isinstance(federation.said["site-0"][-1], UpdateAck)
    assert federation.server.rejected == {"guard": 5}
    assert not federation.server.may_register(federation.now, "site-0")
    assert all(
        m.accepted for k in (1, 2, 3) for m in federation.said[f"site-{k}"] if isinstance(m, UpdateAck)
    )
    assert float(federation.server.tensors.model.values.norm()) < 10


def test_without_a_guard_one_update_is_enough() -> None:
    federation = Federation(4, guard=None)
    assert federation.update("site-0", 1e30)
    assert float(federation.server.tensors.model.values[0]) > 1e28


@pytest.mark.parametrize("loss", [1.0, float("nan")])
def test_where_the_training_diverges_nobody_is_sent_away(loss: float) -> None:
    """Ten refusals in a row, of all: the sites answer for none of those that follow."""
    federation = Federation(3)
    for _ in range(3):
        federation.all_send(0.1)
    for _ in range(8):
        federation.all_send(float("inf"), loss)
    assert federation.server.may_register(federation.now, "site-0")


def test_a_restarted_server_knows_what_is_usual() -> None:
    """The journal's updates tell it."""
    first = Federation(4)
    rows, updates = [], {}
    taken = first.server.take
    for _ in range(3):
        for name in first.said:
            task = first.tasks.pop(name)
            delta = torch.tensor([0.1, 0.0, 0.0])
            first.now += 1.0
            message = UpdateSubmission(task.task, 1, delta, INTEGERS, {})
            first.server.receive(first.now, name, message)
            effects = taken()
            rows += effects.rows
            updates |= effects.updates
            first.tasks |= {to: m for to, m in effects.messages if isinstance(m, TaskAssignment)}
    guard = first.server.tensors.guard
    assert guard is not None
    again = Federation(4)
    again.server.driver.replay(rows, lambda event: updates[event.task])
    restored = again.server.tensors.guard
    assert restored is not None
    assert restored.save() == guard.save()

"""An existing Flower `ClientApp` in virtual time: both kinds of app, their state, and what is refused."""

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

import offbeat as ob
from offbeat.flower import from_flower

WORLD = ob.World([0.1, 0.15, 0.2])
SIZES = [40, 60, 100]


def points(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(SIZES[client], 2, generator=torch.Generator().manual_seed(client))
    return x, (x.sum(1) > 0).long()


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def sgd(module: nn.Module, client: int, passes: int, lr: float) -> float:
    """Train as an app does that knows nothing of Offbeat: passes over its data, in an order of its own."""
    x, y = points(client)
    optimizer = torch.optim.SGD(module.parameters(), lr)
    loss = torch.zeros(())
    for _ in range(passes):
        for rows in torch.randperm(len(x)).split(20):
            optimizer.zero_grad()
            loss = functional.cross_entropy(module(x[rows]), y[rows])
            loss.backward()
            optimizer.step()
    return float(loss.detach())


def app_with_functions() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        module = net()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        passes, lr = int(context.run_config["local-epochs"]), float(message.content["config"]["lr"])
        loss = sgd(module, partition(context), passes, lr)
        samples = SIZES[partition(context)]
        content = RecordDict(
            {
                "arrays": ArrayRecord(module.state_dict()),
                "metrics": MetricRecord({"train_loss": loss, "num-examples": samples, "norms": [1.0, 2.0]}),
            }
        )
        return Message(content=content, reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        module = net()
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        x, y = points(partition(context))
        right = float((module.eval()(x).argmax(1) == y).float().mean())
        record = MetricRecord({"accuracy": right, "num-examples": 10 + partition(context)})
        return Message(content=RecordDict({"metrics": record}), reply_to=message)

    return app


def app_with_client_fn() -> ClientApp:
    class Client(NumPyClient):
        def __init__(self, client: int, passes: int) -> None:
            self.client, self.passes = client, passes

        def load(self, parameters: list[Any]) -> nn.Module:
            module = net()
            state = zip(module.state_dict(), (torch.tensor(array) for array in parameters), strict=True)
            module.load_state_dict(dict(state), strict=True)
            return module

        def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
            module = self.load(parameters)
            loss = sgd(module, self.client, self.passes, config["lr"])
            arrays = [tensor.numpy() for tensor in module.state_dict().values()]
            return arrays, SIZES[self.client], {"train_loss": loss, "text": "is left out"}

        def evaluate(self, parameters: Any, config: Any) -> tuple[float, int, dict[str, Any]]:
            x, y = points(self.client)
            right = (self.load(parameters).eval()(x).argmax(1) == y).float().mean()
            return 1 - float(right), 10 + self.client, {"accuracy": float(right)}

    def client_fn(context: Context) -> Any:
        return Client(partition(context), int(context.run_config["local-epochs"])).to_client()

    return ClientApp(client_fn)


def learner_of(app: ClientApp, **options: Any) -> ob.LoopLearner:
    return from_flower(
        app, net, clients=3, epochs=2, batch_size=20, run_config={"local-epochs": 2}, config={"lr": 0.2},
        **options,
    )  # fmt: skip


@pytest.mark.parametrize("make", [app_with_functions, app_with_client_fn])
def test_an_app_runs_unchanged_and_learns(make: Callable[[], ClientApp]) -> None:
    learner = learner_of(make(), evaluate_at_clients=True)
    assert [learner.samples(client) for client in range(3)] == SIZES, "the app was asked"
    assert [learner.held_out(client) for client in range(3)] == [10, 11, 12]
    run = ob.simulate(
        ob.fedbuff(size=2, epochs=2), WORLD, learner, until=ob.Until(tasks=12),
        evaluate=ob.Every(versions=6, at="clients"),
    )  # fmt: skip
    first, last = run.metrics[0], run.metrics[-1]
    assert last["clients.accuracy"] > max(0.9, first["clients.accuracy"])
    arrived = [row for row in run.journal if row["name"] == "arrived"]
    assert {row["steps"] for row in arrived} == {4, 6, 10}, "two passes in batches of twenty"
    assert all(row["train_loss"] > 0 for row in arrived)


def test_both_kinds_of_app_and_worker_processes_give_the_same_bits() -> None:
    digests = set()
    for app, workers in ((app_with_functions(), 0), (app_with_client_fn(), 0), (app_with_functions(), 1)):
        run = ob.simulate(
            ob.fedavg(epochs=2), WORLD, learner_of(app, samples=SIZES), until=ob.Until(versions=2),
            workers=workers,
        )  # fmt: skip
        digests.add(run.model.digest())
    assert len(digests) == 1


def echo(change: Callable[[Message, Context], dict[str, Any] | Message]) -> ClientApp:
    """An app that returns the arrays it was sent, moved by one, and the records that `change` gives."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        found = change(message, context)
        if isinstance(found, Message):
            return found
        moved = ArrayRecord([array + 1 for array in message.content["arrays"].to_numpy_ndarrays()])
        records = {"arrays": moved, "metrics": MetricRecord({"num-examples": 5}), **found}
        return Message(content=RecordDict(records), reply_to=message)

    return app


def simulated(
    app: ClientApp, algorithm: ob.Algorithm | None = None, tasks: int = 6, **options: Any
) -> ob.Run:
    given = {"steps": 3, "samples": [5, 5, 5]} | options
    learner = from_flower(app, [np.zeros(2)], clients=3, **given)
    return ob.simulate(algorithm or ob.fedasync(steps=3), WORLD, learner, until=ob.Until(tasks=tasks))


def test_the_state_of_a_context_stays_with_its_client() -> None:
    seen: list[tuple[int, int]] = []

    def count(message: Message, context: Context) -> dict[str, Any]:
        before = int(context.state["own"]["tasks"]) if "own" in context.state else 0  # type: ignore[index]
        seen.append((partition(context), before))
        context.state["own"] = ConfigRecord({"tasks": before + 1})
        return {}

    simulated(echo(count), tasks=9)
    for client in range(3):
        counts = [before for who, before in seen if who == client]
        assert counts == list(range(len(counts)))
    assert (0, 3) in seen


def test_an_app_that_does_the_steps_it_is_told_runs_under_every_programme() -> None:
    told: list[dict[str, Any]] = []

    def obey(message: Message, context: Context) -> dict[str, Any]:
        told.append(dict(message.content["config"]))
        return {"metrics": MetricRecord({"num-examples": 5, "steps": told[-1]["steps"], "lr": 0.5})}

    simulated(echo(obey), ob.fedcompass(q_min=2, q_max=9), steps=None, config={"momentum": 0.9})
    assert {config["steps"] for config in told} > {2, 9}
    assert told[0]["momentum"] == 0.9
    assert told[0]["server-round"] == told[0]["server_round"] == 1


def test_draws_from_global_generators_follow_from_the_task_and_leave_no_trace() -> None:
    drawn: list[tuple[float, float]] = []

    def draw(message: Message, context: Context) -> dict[str, Any]:
        drawn.append((float(np.random.rand()), random.random()))
        return {}

    random.seed(1)
    np.random.seed(1)
    simulated(echo(draw), samples=[5, 5, 5])
    after = random.random(), float(np.random.rand())
    first, drawn[:] = list(drawn), []
    simulated(echo(draw), samples=[5, 5, 5])
    assert drawn == first
    assert len(set(drawn)) == len(drawn)
    random.seed(1)
    np.random.seed(1)
    assert (random.random(), float(np.random.rand())) == after


def test_each_node_may_have_its_own_configuration_and_records_other_keys() -> None:
    seen = set()
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        seen.add((context.node_config["site"], message.content["settings"]["lr"]))
        records = {"any": message.content["model"], "numbers": MetricRecord({"rows": 5})}
        return Message(content=RecordDict(records), reply_to=message)

    learner = from_flower(
        app, {"a": torch.ones(2)}, steps=1, config={"lr": 0.5},
        clients=[{"site": "north"}, {"site": "south"}],
        arrayrecord_key="model", configrecord_key="settings", weighted_by_key="rows",
    )  # fmt: skip
    run = ob.simulate(ob.fedavg(steps=1), ob.World([1.0, 1.0]), learner, until=ob.Until(versions=1))
    assert seen == {("north", 0.5), ("south", 0.5)}
    assert run.model.arrays()["a"].tolist() == [1, 1]


REFUSED: dict[str, tuple[Callable[..., dict[str, Any] | Message], dict[str, Any], str]] = {
    "no steps": (lambda m, c: {}, {"steps": None}, "does not report the metric 'steps': say what it does"),
    "other steps": (lambda m, c: {}, {"steps": 4}, "does 4 steps in each task of client 0, and task 0 has 3"),
    "wrong steps": (
        lambda m, c: {"metrics": MetricRecord({"num-examples": 5, "steps": 2})}, {},
        "reports steps = 2 in a task of 3 steps",
    ),
    "no metrics": (lambda m, c: {"metrics": ConfigRecord()}, {}, "has 1 array records and 0 metric records"),
    "no samples": (
        lambda m, c: {"metrics": MetricRecord({"loss": 1.0})}, {},
        "no number 'num-examples': report the number"
    ),
    "other samples": (lambda m, c: {}, {"samples": [6, 5, 5]}, "a client with 6 samples"),
    "no arrays": (lambda m, c: {"arrays": ConfigRecord()}, {}, "has 0 array records"),
    "other arrays": (lambda m, c: {"arrays": ArrayRecord([np.zeros(3)])}, {}, "0 has shape (2,)"),
    "an error": (
        lambda m, c: Message(Error(7, "no data here"), reply_to=m), {},
        "a train message with an error: no data here"
    ),
    "both amounts": (lambda m, c: {}, {"epochs": 1}, "steps and epochs are given"),
    "no passes": (lambda m, c: {}, {"steps": None, "epochs": 0}, "epochs = 0 is not allowed: give 1 or more"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_an_app_must_not_do(case: str) -> None:
    change, options, expected = REFUSED[case]
    with pytest.raises((ob.UsageError, ob.RunError), match=re.escape(expected)):
        simulated(echo(change), **options)


def test_algorithms_that_act_between_steps_or_choose_steps_are_refused() -> None:
    with pytest.raises(ob.UsageError, match="Proximal changes the gradients"):
        simulated(echo(lambda m, c: {}), ob.fedprox(steps=3))
    with pytest.raises(ob.UsageError, match="such as FedCompass, needs an app that does config"):
        simulated(echo(lambda m, c: {}), ob.fedcompass(q_min=2, q_max=9))


def test_a_client_that_reports_a_failure_ends_the_run() -> None:
    app = ClientApp(lambda context: NumPyClient().to_client())
    with pytest.raises(ob.RunError, match="answered FIT_NOT_IMPLEMENTED"):
        simulated(app)


WRONG_AMOUNTS: dict[str, tuple[dict[str, int], str]] = {
    "epochs": (
        {"epochs": 1, "batch_size": 20},
        "does 4 steps of its optimizer in task 0 of client 0, which has 40 samples, and epochs=1, "
        "batch_size=20 make 2",
    ),
    "batch size": ({"epochs": 2, "batch_size": 32}, "60 samples, and epochs=2, batch_size=32 make 4"),
    "steps": (
        {"steps": 3},
        "steps=3 make 3: virtual time would be wrong; give from_flower and the algorithm",
    ),
}


@pytest.mark.parametrize("case", WRONG_AMOUNTS)
@pytest.mark.parametrize("make", [app_with_functions, app_with_client_fn])
def test_an_amount_that_the_app_does_not_do_is_refused(make: Callable[[], ClientApp], case: str) -> None:
    amount, expected = WRONG_AMOUNTS[case]
    learner = from_flower(
        make(), net, clients=3, samples=SIZES, run_config={"local-epochs": 2}, config={"lr": 0.2}, **amount
    )  # type: ignore[arg-type]
    own = {name: number for name, number in amount.items() if name != "batch_size"}
    with pytest.raises(ob.UsageError, match=re.escape(expected)):
        ob.simulate(ob.fedbuff(size=2, **own), WORLD, learner, until=ob.Until(tasks=9))


def test_steps_that_are_reported_and_not_done_are_refused() -> None:
    def report(message: Message, context: Context) -> dict[str, Any]:
        sgd(net(), partition(context), 1, 0.1)
        return {"metrics": MetricRecord({"num-examples": 5, "steps": message.content["config"]["steps"]})}

    with pytest.raises(ob.UsageError, match="the steps that it reports make 3: virtual time would be wrong"):
        simulated(echo(report), steps=None)


@pytest.mark.parametrize("together", [True, False])
def test_an_app_may_have_several_optimizers(together: bool) -> None:
    """Each of them does each step, or they take turns."""

    def train(message: Message, context: Context) -> dict[str, Any]:
        optimizers = [torch.optim.Adam([torch.zeros(1, requires_grad=True)]) for _ in range(2)]
        for step in range(3):
            for optimizer in optimizers if together else [optimizers[step % 2]]:
                optimizer.step()
        return {}

    assert simulated(echo(train)).summary.tasks


def test_what_an_app_asks_for_in_vain_is_named() -> None:
    given: dict[str, Any] = {"clients": 3, "run_config": {"local-epochs": 2}, "config": {"lr": 0.2}}
    for option, name in (("run_config", "local-epochs"), ("config", "lr"), ("clients", "partition-id")):
        for app in (app_with_functions(), app_with_client_fn()):
            options = given | {option: [{}] if option == "clients" else {}}
            with pytest.raises(ob.UsageError, match=f"the app asks for '{name}', which from_flower was not"):
                from_flower(app, net, epochs=2, **options)


def test_a_key_that_the_app_itself_lacks_is_its_own_error() -> None:
    def fail(message: Message, context: Context) -> dict[str, Any]:
        return {"found": {}["partition-id"]}

    with pytest.raises(KeyError, match="partition-id"):
        simulated(echo(fail))


class NoApp(NumPyClient):
    def fit(self, parameters: list[Any], config: dict[str, Any]) -> tuple[list[Any], int, dict[str, Any]]:
        return parameters, 5, {}


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        (NoApp, "app = the class NoApp is no ClientApp: give ClientApp(client_fn), where client_fn(context)"),
        (NoApp(), "app = a NoApp is no ClientApp: give ClientApp(client_fn)"),
        (lambda context: NoApp().to_client(), "if it is a client_fn, give ClientApp(client_fn)"),
        ("my_app:app", "app = a str is no ClientApp"),
        (ClientApp(lambda context: NoApp), "the app's client_fn returns no client"),
        (ClientApp(), "the app has no function for train messages: register one with @app.train()"),
    ],
    ids=["class", "client", "client_fn", "text", "class from client_fn", "empty app"],
)
def test_what_is_no_app_gets_a_line(app: Any, expected: str) -> None:
    with pytest.raises(ob.UsageError, match=re.escape(expected)):
        from_flower(app, net, clients=3, epochs=1)

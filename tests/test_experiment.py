"""What a run is: what is refused before it starts, and what tells it from another one."""

import json
import sqlite3
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import offbeat as ob
from offbeat.core.differences import first_difference
from offbeat.experiment import Experiment

X = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
Y = (X[:, 0] > 0).long()
WORLD = ob.World(seconds_per_step=[1.0, 2.0])


def linear() -> nn.Module:
    return nn.Linear(3, 2)


def data(x: torch.Tensor = X, y: torch.Tensor = Y, cut: int = 20) -> Any:
    return ob.federate([ob.Dataset(x[:cut], y[:cut], 2), ob.Dataset(x[cut:], y[cut:], 2)])


def doubled(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 * nn.functional.cross_entropy(output, target)


FIVES = ob.Training(batch_size=5)


def learner(training: ob.Training = FIVES, **options: Any) -> ob.TorchLearner:
    return ob.TorchLearner(linear, options.pop("data", None) or data(), training, **options)


def resumed(directory: Path, **changed: Any) -> ob.Run:
    given = {"algorithm": ob.fedbuff(size=2, steps=2), "world": WORLD, "learner": learner(), **changed}
    return ob.resume(directory, until=ob.Until(versions=6), evaluate=None, **given)


torch.manual_seed(1)
OTHER = ob.Model.of(linear())


PRIVATE = ob.Privacy(
    clip=1.0, least=2, noise=ob.Noise(multiplier=2, budget=ob.Budget(epsilon=50.0, delta=1e-3))
)


@pytest.fixture(params=["finished", "interrupted"])
def begun(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A run that has finished, and one that was interrupted."""

    def interrupt(progress: Any) -> None:
        if request.param == "interrupted":
            raise KeyboardInterrupt

    with suppress(KeyboardInterrupt):
        ob.simulate(
            ob.fedbuff(size=2, steps=2), WORLD, learner(), until=ob.Until(versions=6), evaluate=None,
            out=tmp_path / "run", watch=interrupt, checkpoint_seconds=0,
        )  # fmt: skip
    assert ob.read_run(tmp_path / "run").status == request.param
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"learner": learner(ob.Training(lr=0.2, batch_size=5))},
            "another training: lr was 0.1, now it is 0.2",
        ),
        ({"learner": learner(ob.Training(batch_size=4))}, "another training: batch_size was 5, now it is 4"),
        ({"learner": learner(loss=doubled)}, "another learner: loss was '', now it is 'tests.test_exper"),
        ({"learner": learner(data=data(X + 0.1))}, "another data: sizes was ["),
        ({"learner": learner(data=data(y=1 - Y))}, "another data: digest was '"),
        ({"learner": learner(data=data(cut=19))}, "another data: digest was '"),
        ({"world": replace(WORLD, jitter=0.1)}, "another world: jitter was 0.0, now it is 0.1"),
        (
            {"world": ob.World([1.0, 3.0])},
            "another world: seconds_per_step was [1.0, 2.0], now it",
        ),
        (
            {"world": replace(WORLD, network=ob.Network(latency=1.0))},
            "another world: network.latency was 0.0",
        ),
        ({"algorithm": ob.fedbuff(size=2, steps=3)}, "another algorithm: steps was 2, now it is 3"),
        ({"guard": None}, "another guard: factor was 30.0, now it is None"),
        ({"guard": ob.Guard(factor=50)}, "another guard: factor was 30.0, now it is 50"),
        ({"privacy": PRIVATE}, "another privacy: "),
        ({"initial": OTHER}, "another initial model: give the same model and initial"),
    ],
)
def test_another_run_is_refused_in_one_line_that_says_what_differs(
    changed: dict[str, Any], told: str, begun: Path
) -> None:
    with pytest.raises(ob.RunError) as refused:
        resumed(begun, **changed)
    (line,) = str(refused.value).splitlines()
    assert line.startswith(f"{begun} was started with {told}")
    assert len(line) < 400


def change_meta(directory: Path, key: str, value: Any) -> None:
    with closing(sqlite3.connect(directory / "run.db")) as database, database:
        database.execute("DELETE FROM checksums")
        database.execute("REPLACE INTO meta (key, value) VALUES (?, ?)", (key, json.dumps(value)))


@pytest.mark.parametrize("entry", ["training", "world", "data"])
def test_an_entry_of_another_kind_is_damage(entry: str, begun: Path) -> None:
    change_meta(begun, entry, ["x"])
    with pytest.raises(ob.DamageError, match=entry):
        resumed(begun)


def test_the_run_of_a_server_is_not_resumed_in_the_simulator(begun: Path) -> None:
    change_meta(begun, "plan", {})
    with pytest.raises(ob.UsageError, match="is the state directory of a server: serve it again, as it was"):
        resumed(begun)


def test_the_last_bits_of_real_numbers_are_not_compared(begun: Path) -> None:
    """Another processor may make them otherwise."""
    near = torch.nextafter(X, torch.full_like(X, 9.0))
    assert not torch.equal(near, X)
    assert resumed(begun, learner=learner(data=data(near))).summary.versions == 6


def test_the_same_run_goes_on_with_another_device_and_batch_of_evaluations(begun: Path) -> None:
    same = learner(ob.Training(batch_size=5, evaluation_batch_size=7))
    assert resumed(begun, learner=same).summary.versions == 6


def test_what_a_record_does_not_tell_is_not_compared(begun: Path) -> None:
    """A learner of one's own has no description."""

    class Own(ob.TorchLearner):
        pass

    own = Own(linear, data(), ob.Training(batch_size=5))
    assert resumed(begun, learner=own).summary.versions == 6


def test_differences_are_found_by_their_path() -> None:
    assert first_difference({"a": {"b": 1, "c": [1, 2]}}, {"a": {"b": 1, "c": (1, 2)}}) is None
    assert first_difference({"a": {"b": 1}}, {"a": {"b": 2}}) == "a.b was 1, now it is 2"
    assert first_difference({"a": 1}, {}) == "a was 1, now it is not given"
    assert first_difference({}, {"a": 1}) == "a was not given, now it is 1"
    long = first_difference({"a": "x" * 1000}, {"a": "y" * 1000})
    assert long is not None
    assert len(long) < 300


def test_what_is_no_algorithm_and_no_seed_is_refused() -> None:
    with pytest.raises(ob.UsageError, match="a function is not an Algorithm: call a factory"):
        Experiment(linear)  # type: ignore[arg-type]
    with pytest.raises(ob.UsageError, match="seed"):
        Experiment(ob.fedavg(), seed=-1)


def test_a_prepared_run_has_what_follows_from_its_clients() -> None:
    prepared = Experiment(ob.fedavg(steps=1), learner(), seed=3, label="mine").prepare(2)
    assert torch.equal(prepared.initial.values, learner().initial(3).values)
    assert prepared.metadata()["label"] == "mine"
    assert prepared.metadata()["algorithm"]["name"] == "fedavg"
    with pytest.raises(ob.UsageError, match="fedbuff: 3 clients cannot train at the same time where"):
        Experiment(ob.fedbuff(size=2, concurrency=3), learner()).prepare(2)


NAMES = {"x": ("age", "pressure", "dose")}
TURNED = [2, 0, 1]


def named(order: list[int] | None = None, names: tuple[str, ...] = NAMES["x"]) -> ob.TorchLearner:
    """A learner whose columns have names, in another order."""
    order = order or [0, 1, 2]
    columns = {"x": tuple(names[n] for n in order)}
    sets = [ob.Dataset(X[part][:, order], Y[part], 2, columns) for part in (slice(20), slice(20, 40))]
    return learner(data=ob.federate(sets))


def test_a_run_goes_on_with_its_columns_in_another_order(tmp_path: Path) -> None:
    whole = ob.simulate(ob.fedavg(steps=2), WORLD, named(), until=ob.Until(versions=4), evaluate=None)
    directory = tmp_path / "run"
    ob.simulate(ob.fedavg(steps=2), WORLD, named(), until=ob.Until(versions=2), evaluate=None, out=directory)
    assert ob.read_run(directory).columns == NAMES

    def goes_on(own: ob.TorchLearner) -> ob.Run:
        return ob.resume(directory, ob.fedavg(steps=2), WORLD, own, until=ob.Until(versions=4), evaluate=None)

    with pytest.raises(
        ob.UsageError, match=r"the train set has other columns .*: x lacks dose and has size;"
    ):
        goes_on(named(names=("age", "pressure", "size")))
    assert torch.equal(goes_on(named(TURNED)).model.values, whole.model.values)


def test_a_run_without_names_goes_on_with_any(begun: Path) -> None:
    assert ob.read_run(begun).columns == {}
    assert resumed(begun, learner=named()).summary.versions == 6


def test_weights_of_a_run_are_for_its_columns_in_their_order(tmp_path: Path) -> None:
    ob.simulate(ob.fedavg(steps=2), WORLD, named(), until=ob.Until(versions=2), out=tmp_path, evaluate=None)
    made = Experiment(ob.fedavg(steps=2), named(TURNED), initial=tmp_path).learner
    assert isinstance(made, ob.TorchLearner)
    assert torch.equal(made.data.train.x, X)  # type: ignore[attr-defined]
    with pytest.raises(ob.UsageError, match=r"^initial = .* is a run on other columns: .* x lacks dose"):
        Experiment(ob.fedavg(steps=2), named(names=("age", "pressure", "size")), initial=tmp_path)
    weights = tmp_path / "model.safetensors"
    unchanged = Experiment(ob.fedavg(steps=2), named(TURNED), initial=weights).learner
    assert isinstance(unchanged, ob.TorchLearner)
    assert unchanged.columns != NAMES

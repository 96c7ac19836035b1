"""The factories: every algorithm is listed, checked, described, recorded and built again from its record."""

import inspect
import json
import pydoc
import textwrap
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.compose import build
from offbeat.algorithms.factory import Factory
from offbeat.core.errors import OffbeatError, UsageError
from tests.options import EVERY_FEATURE, example

EVERY = sorted(ALGORITHMS)


def test_the_published_algorithms_are_there_under_their_own_names():
    assert {
        "fedavg",
        "fedavgm",
        "moon",
        "feddyn",
        "scaffold",
        "fedasync",
        "fedbuff",
        "asofed",
        "fedcompass",
    } <= set(ALGORITHMS)
    for name, factory in ALGORITHMS.items():
        assert factory.name == name
        assert getattr(ob, name) is factory


def test_some_algorithms_need_all_that_a_driver_can_have():
    needed, of_all = (
        frozenset().union(*(example(name).requires for name in names)) for names in (EVERY_FEATURE, EVERY)
    )
    assert needed == of_all


@pytest.mark.parametrize("name", EVERY)
def test_every_factory_is_described(name):
    factory = ALGORITHMS[name]
    assert factory.summary.endswith(".")
    assert any(year in factory.paper for year in map(str, range(2016, 2027)))
    options = factory.hyperparameters
    assert [o.name for o in options if "." not in o.name] == list(factory.signature.parameters)
    for option in options:
        assert option.default
        assert option.allowed


def test_an_option_among_words_lists_them():
    (against,) = [o for o in ob.asofed.hyperparameters if o.name == "against"]
    assert (against.default, against.allowed) == ("start", "start or copy")


@pytest.mark.parametrize("name", EVERY)
def test_what_is_recorded_is_json_and_builds_the_same_algorithm(name):
    made = ALGORITHMS[name]()
    assert made.name == name
    assert list(made.hyperparameters) == list(ALGORITHMS[name].signature.parameters)
    stored = json.loads(json.dumps({"name": name, **made.hyperparameters}))
    again = build(ALGORITHMS, stored)
    assert again == made
    assert again.hyperparameters == made.hyperparameters


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {"epochs": 3, "clients_per_round": 2}),
        ("fedavgm", {"steps": 7, "momentum": 0.25}),
        ("fedasync", {"steps": 5, "alpha": 0.5, "staleness": ob.hinge(2.0, 1.0), "rho": 0.1}),
        ("fedbuff", {"size": 3, "steps": 9, "server_lr": 0.5, "staleness": ob.constant(0.5)}),
        ("first_of", {"steps": 7, "k": 3, "clients_per_round": 4, "late": "next", "window": 9.0}),
        ("first_of", {"epochs": 2, "share": 0.5}),
        ("fedprox", {"epochs": 2, "clients_per_round": 3, "mu": 0.3}),
        ("fednova", {"steps": 4, "clients_per_round": 3, "momentum": 0.5}),
        ("fedlws", {"clients_per_round": 3, "beta": 0.1, "low": 0.05, "high": 0.5}),
        ("fedadagrad", {"server_lr": 0.5, "beta1": 0.5, "tau": 0.1}),
        ("fedadam", {"server_lr": 0.5, "beta1": 0.5, "beta2": 0.9, "tau": 0.1}),
        ("fedyogi", {"server_lr": 0.5, "beta1": 0.5, "beta2": 0.9, "tau": 0.1}),
        ("fedfa", {"size": 4, "steps": 3, "concurrency": 2, "server_lr": 0.5, "staleness": ob.hinge(2.0, 1.0),
                   "weights": "share", "normalize": True, "mu": 0.1}),
        ("fedfa", {"kind": "param", "mu": 0.1}),
        ("fedcompass", {"q_min": 3, "q_max": 90, "latest": 1.5, "staleness": ob.polynomial(0.8, 1.0),
                        "momentum": 0.5, "normalize": True, "speed_memory": 0.1}),
        ("moon", {"steps": 3, "clients_per_round": 2, "mu": 5.0, "temperature": 0.1}),
        ("feddyn", {"epochs": 2, "clients_per_round": 2, "alpha": 0.1}),
        ("scaffold", {"steps": 3, "clients_per_round": 2, "server_lr": 0.5}),
        ("asofed", {"steps": 3, "concurrency": 2, "proximal": 0.1, "beta": 0.9, "against": "copy",
                    "delay_unit": 60.0, "features": True}),
    ],
)  # fmt: skip
def test_every_option_is_recorded_and_used(name, options):
    made = ALGORITHMS[name](**options)
    assert made != ALGORITHMS[name]()
    again = build(ALGORITHMS, json.loads(json.dumps({"name": name, **made.hyperparameters})))
    assert again == made
    for option, value in options.items():
        recorded = made.hyperparameters[option]
        assert recorded == value or recorded["kind"] == value.kind
        # each option changes the algorithm
        assert ALGORITHMS[name](**{o: v for o, v in options.items() if o != option}) != made


def test_what_is_listed_of_fedbuff():
    listed = {o.name: o for o in ob.fedbuff.hyperparameters}
    assert [name for name in listed if "." not in name] == [
        "size", "steps", "epochs", "concurrency", "server_lr", "staleness",
    ]  # fmt: skip
    size = listed["size"]
    assert (size.default, size.meaning) == ("10", "buffer size K")
    assert size.allowed.startswith("int")
    assert size.allowed.endswith("≥ 1")
    assert listed["steps"].default == "none"
    assert listed["staleness"].default == "polynomial(alpha=1.0, a=0.5)"
    momentum = {o.name: o for o in ob.fedavgm.hyperparameters}["momentum"]
    assert momentum.allowed.endswith("≥ 0, < 1")


def refused(name: str, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        ALGORITHMS[name](**options)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"{name}: ")
    assert caught.value.__cause__ is None
    return message


@pytest.mark.parametrize(
    ("name", "option", "wrong", "allowed"),
    [
        ("fedavg", "steps", 0, "greater than or equal to 1"),
        ("fedavg", "epochs", -1, "greater than or equal to 1"),
        ("fedavg", "clients_per_round", 0, "greater than or equal to 1"),
        ("fedavgm", "momentum", 1.0, "less than 1"),
        ("fedavgm", "momentum", -0.1, "greater than or equal to 0"),
        ("first_of", "share", 0.0, "greater than 0"),
        ("first_of", "share", 1.01, "less than or equal to 1"),
        ("first_of", "k", 0, "greater than or equal to 1"),
        ("first_of", "late", "wait", "'drop', 'next' or 'stop'"),
        ("ringmaster", "threshold", 0, "greater than or equal to 1"),
        ("rennala", "size", 0, "greater than or equal to 1"),
        ("malenia", "size", 0, "greater than or equal to 1"),
        ("ringleader", "most", 0, "greater than or equal to 1"),
        ("delay_adaptive", "threshold", 0, "greater than or equal to 1"),
        ("fadas", "size", 0, "greater than or equal to 1"),
        ("fadas", "threshold", -1, "greater than or equal to 0"),
        ("fadas", "beta2", 1.0, "less than 1"),
        ("fadas", "epsilon", 0.0, "greater than 0"),
        ("first_of", "window", 0.0, "greater than 0"),
        ("first_of", "window", -1.0, "greater than 0"),
        ("first_of", "least", 0, "greater than or equal to 1"),
        ("fedasync", "alpha", 0.0, "greater than 0"),
        ("fedasync", "alpha", 1.01, "less than or equal to 1"),
        ("fedasync", "alpha", float("nan"), "than"),
        ("fedasync", "rho", -1e-9, "greater than or equal to 0"),
        ("fedasync", "concurrency", 0, "greater than or equal to 1"),
        ("fedbuff", "size", 0, "greater than or equal to 1"),
        ("fedbuff", "server_lr", 0.0, "greater than 0"),
        ("fedfa", "size", 0, "greater than or equal to 1"),
        ("fedfa", "kind", "params", "'delta' or 'param'"),
        ("fedfa", "weights", "samples", "'equal' or 'share'"),
        ("fednova", "momentum", 1.0, "less than 1"),
        ("fedprox", "mu", -0.1, "greater than or equal to 0"),
        ("fedadam", "tau", 0.0, "greater than 0"),
        ("fedcompass", "q_min", 0, "greater than or equal to 1"),
        ("fedcompass", "q_max", 0, "greater than or equal to 1"),
        ("fedcompass", "latest", 0.99, "greater than or equal to 1"),
        ("fedcompass", "momentum", 1, "less than 1"),
        ("fedcompass", "speed_memory", 1, "less than 1"),
        ("fedbuff", "size", 2.5, "valid integer"),
        ("fedbuff", "size", "three", "valid integer"),
        ("fedbuff", "size", None, "valid integer"),
        ("fedcompass", "normalize", 3.5, "valid boolean"),
        ("fedavgm", "momentum", "much", "valid number"),
    ],
)
def test_a_value_out_of_range_names_the_option_the_value_and_the_range(name, option, wrong, allowed):
    message = refused(name, **{option: wrong})
    assert f"{option} = {wrong!r} is not allowed" in message
    assert allowed in message


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("fedavg", {"steps": 1, "epochs": 1, "clients_per_round": 1}),
        ("fedavgm", {"momentum": 0}),
        ("fedasync", {"alpha": 1}),
        ("fedcompass", {"q_min": 5, "q_max": 5, "latest": 1, "speed_memory": 0.999}),
    ],
)
def test_the_ends_of_the_ranges_are_allowed(name, options):
    options.pop("epochs", None)
    assert ALGORITHMS[name](**options).name == name


@pytest.mark.parametrize("name", [n for n in EVERY if "epochs" in ALGORITHMS[n].signature.parameters])
def test_steps_and_epochs_together_are_refused(name):
    message = refused(name, steps=5, epochs=2)
    assert "steps=5" in message
    assert "epochs=2" in message


@pytest.mark.parametrize("name", ["fedavg", "fedasync", "fedbuff"])
def test_one_epoch_where_nothing_is_said(name):
    programme = ALGORITHMS[name]().schedule.programme
    assert (programme.steps, programme.epochs) == (None, 1)


def test_bounds_in_the_wrong_order_are_refused():
    message = refused("fedcompass", q_min=30, q_max=20)
    assert "q_min = 30 must not be above q_max = 20" in message
    assert "low = 0.3 must not be above high = 0.2" in refused("fedlws", low=0.3)


@pytest.mark.parametrize(
    ("name", "options", "why"),
    [
        (
            "fedfa",
            {"kind": "param", "normalize": True},
            "normalize divides deltas by their steps: it needs kind",
        ),
        ("fedfa", {"kind": "param", "server_lr": 0.5}, "a server rate of 0.5 scales deltas: it needs kind"),
        (
            "fednova",
            {"mu": 0.1},
            "lr = None with mu = 0.1 is not allowed: the clients' learning rate is needed",
        ),
        ("fednova", {"lr": 0.1}, "lr = 0.1 with mu = 0.0 is not allowed"),
        (
            "fednova",
            {"mu": 0.1, "lr": 0.1, "momentum": 0.9},
            "have no common normaliser; set one of them to 0",
        ),
        ("first_of", {"k": 9, "clients_per_round": 8}, "k = 9 is not allowed with clients_per_round = 8"),
        ("first_of", {"k": 3, "window": 1.0, "least": 4}, "least = 4 is not allowed with k = 3: 3 updates"),
        (
            "first_of",
            {"share": 0.5, "clients_per_round": 4, "window": 1.0, "least": 3},
            "least = 3 is not allowed with clients_per_round = 4: 2 updates close a round; choose at most 2",
        ),
        ("fadas", {"threshold": None, "rule": "minimum"}, "rule = 'minimum' with threshold = None is not"),
        ("first_of", {"least": 2}, "least = 2 with window = None is not allowed"),
        ("fednova", {"mu": 2.0, "lr": 0.5}, "proximal = 1.0 is not allowed: should be less than 1"),
    ],
)
def test_options_that_do_not_go_together_are_refused(name, options, why):
    assert why in refused(name, **options)


@pytest.mark.parametrize(
    ("name", "unknown", "meant"),
    [("fedbuff", "sise", "size"), ("fedcompass", "qmin", "q_min"), ("fedavgm", "momentun", "momentum")],
)
def test_an_unknown_option_is_refused_with_a_hint(name, unknown, meant):
    assert f'unknown key {unknown}; did you mean "{meant}"?' in refused(name, **{unknown: 1})


def test_an_unknown_option_unlike_any_lists_them_all():
    message = refused("fedavg", zzz=1)
    assert "known: clients_per_round, epochs, steps" in message


def test_a_staleness_weight_can_be_given_as_a_mapping():
    made = ob.fedbuff(staleness={"kind": "hinge", "a": 2.0, "b": 1.0})
    assert made == ob.fedbuff(staleness=ob.hinge(2.0, 1.0))
    assert "alpha = 2" in refused("fedbuff", staleness={"kind": "polynomial", "alpha": 2})
    message = refused("fedbuff", staleness={"kind": "polynomal"})
    assert "staleness" in message
    assert "polynomal" in message
    assert "polynomial" in message  # what was meant, or all there are


def test_an_unknown_algorithm_is_refused_with_a_hint():
    with pytest.raises(UsageError, match="algorithm 'fedbuf' is unknown; did you mean \"fedbuff\"\\?"):
        build(ALGORITHMS, {"name": "fedbuf"})
    with pytest.raises(UsageError, match=r"has no name: write \{name: fedbuff\}, with its options beside"):
        build(ALGORITHMS, {"size": 3})


def test_build_leaves_its_specification_alone():
    spec = {"name": "fedbuff", "size": 3}
    build(ALGORITHMS, spec)
    assert spec == {"name": "fedbuff", "size": 3}


def test_algorithms_are_frozen_values():
    made = ob.fedbuff(3)
    with pytest.raises(FrozenInstanceError):
        made.buffers = "mean"
    with pytest.raises(FrozenInstanceError):
        made.schedule.size = 4
    assert made == ob.fedbuff(3)


def test_usage_errors_are_value_errors_of_ours():
    assert issubclass(UsageError, ValueError)
    assert issubclass(UsageError, OffbeatError)


def test_more_clients_at_once_than_there_are_is_refused():
    for algorithm in (ob.fedbuff(concurrency=3), ob.fedasync(concurrency=3), ob.fedavg(clients_per_round=3)):
        with pytest.raises(UsageError, match=f"{algorithm.name}: 3 clients .* there are 2: choose at most 2"):
            ob.simulate(algorithm, world=ob.World(clients=2))


@pytest.mark.parametrize("name", sorted(ob.ALGORITHMS))
def test_help_shows_the_algorithm_and_not_its_class(name: str) -> None:
    factory = getattr(ob, name)
    written = inspect.getdoc(factory.make)
    assert written
    assert inspect.getdoc(factory) == written != inspect.getdoc(Factory)
    signature = inspect.signature(factory)
    assert list(signature.parameters) == list(inspect.signature(factory.make).parameters)
    text = pydoc.plain(pydoc.render_doc(factory))
    assert f"\n{name}(" in text
    assert "FieldInfo" not in text, "ranges are in `offbeat algorithms`"
    assert textwrap.indent(written, "    ").splitlines()[0] in text
    assert inspect.getdoc(Factory) not in text
    assert f" in module {factory.make.__module__}" in text


def test_a_notebook_shows_the_algorithm() -> None:
    inspector = pytest.importorskip("IPython.core.oinspect").Inspector
    info = inspector(theme_name="nocolor").info(ob.fedbuff, oname="ob.fedbuff")
    assert info["docstring"] == inspect.getdoc(ob.fedbuff.make)
    assert info["definition"].startswith("ob.fedbuff(")
    assert info["file"].endswith("fedbuff.py")

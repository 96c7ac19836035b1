"""Options that would be dropped without a word: an option that changes nothing is refused."""

from typing import Any

import pytest

import offbeat as ob
from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.effects import numbers_in, option_without_effect
from offbeat.recipes.build import make_algorithm
from tests.options import options_of


def refused(make: Any) -> str:
    with pytest.raises(ob.UsageError) as caught:
        make()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def described(algorithm: ob.Algorithm) -> str:
    return repr((algorithm.schedule, algorithm.aggregator, algorithm.objective, algorithm.server_steps,
                 algorithm.buffers, algorithm.codec))  # fmt: skip


OTHER: dict[str, list[Any]] = {
    "ask": [{"kind": "fixed"}], "codec": [{"kind": "top_k", "fraction": 0.5}], "policy": [{"kind": "random"}],
    "staleness": [{"kind": "age", "gamma": 0.4}], "controls": [{"mu": 3.0}], "merge": [{"mu": 3.0}],
    "kind": ["param"], "weights": ["share"], "against": ["copy"], "average": ["models"],
    "late": ["next"], "rule": ["minimum"], "first": ["seen", "zero"], "left": ["drop"],
}  # fmt: skip
"""Another value of each option that is no number."""
FEDBUFF = {"name": "fedbuff"}
NEEDED = {
    ("fednova", "mu"): {"lr": 0.1},
    ("fednova", "lr"): {"mu": 0.1},
    ("first_of", "least"): {"window": 2.0},
    ("ace", "max_age"): {"first": "seen"},
}


@pytest.mark.parametrize("name", ALGORITHMS)
def test_each_option_changes_the_description_of_an_algorithm(name: str) -> None:
    factory = ALGORITHMS[name]
    for option, parameter in factory.signature.parameters.items():
        base = NEEDED.get((name, option), {})
        numbers = [not parameter.default] if isinstance(parameter.default, bool) else [0.12, 0.25, 3, 30]
        for value in OTHER.get(option, numbers):
            try:
                changed = factory(**{**base, option: value})
            except ob.UsageError as error:
                if option not in str(error):
                    raise
                # The value is beyond the option's range.
                continue
            assert described(changed) != described(factory()), (option, value)
            break
        else:
            pytest.fail(f"{option} was never set")


@pytest.mark.parametrize("name", ALGORITHMS)
def test_options_that_are_recorded_make_the_same_algorithm_again(name: str) -> None:
    """All are given there, also the defaults that nothing reads."""
    made = ALGORITHMS[name](**options_of(name))
    assert described(ALGORITHMS[name](**made.hyperparameters)) == described(made)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda: ob.moon(mu=0, temperature=0.1),
            "moon: temperature = 0.1 has no effect with mu = 0: leave it out",
        ),
        (lambda: ob.fedfa(3, "param", server_lr=0.5), 'needs kind = "delta"'),
        (lambda: ob.fednova(lr=0.1), "lr = 0.1 with mu = 0.0 is not allowed"),
        (
            lambda: ob.fedasmu(ask={"kind": "never"}, ask_every=3),
            "fedasmu: ask_every = 3 has no effect with ask",
        ),
        (lambda: ob.fedasmu(ask={"kind": "never"}, merge={"mu": 3.0}), "fedasmu: merge = {'mu': 3.0} has no"),
        (lambda: ob.fedbuff(staleness={"kind": "constant", "a": 0.5}), "unknown key staleness.a"),
    ],
)
def test_an_option_that_others_make_useless_is_refused(make: Any, said: str) -> None:
    assert said in refused(make)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ob.fedavg(epochs=1),
        lambda: ob.fedasmu(epochs=5),
        lambda: ob.moon(mu=0),
        lambda: ob.moon(mu=0, temperature=0.5),
        lambda: ob.fedbuff(staleness={"kind": "polynomial"}),
        lambda: ob.fedasync(alpha=0.9, staleness=ob.polynomial(1.0, 0.5)),
        lambda: ob.fedfa(10, "delta"),
    ],
)
def test_a_default_that_is_given_is_allowed(make: Any) -> None:
    assert isinstance(make(), ob.Algorithm)


@pytest.mark.parametrize(
    ("spec", "option"),
    [
        ({"name": "fedasync", "with": {"aggregator": {**FEDBUFF, "size": 3}}}, "with.aggregator.size"),
        # A default, too, is what somebody wants and does not get.
        ({"name": "fedasync", "with": {"aggregator": {**FEDBUFF, "size": 10}}}, "with.aggregator.size"),
        ({"name": "fedbuff", "server_lr": 0.5, "with": {"aggregator": {"name": "fedfa"}}}, "server_lr"),
        ({"name": "fedbuff", "with": {"objective": {"name": "fedprox", "steps": 3}}}, "with.objective.steps"),
        (
            {"name": "fedbuff", "with": {"server_steps": {"name": "fedadam", "clients_per_round": 3}}},
            "with.server_steps.clients_per_round",
        ),
        (
            {
                "name": "fedbuff", "staleness": {"kind": "age", "gamma": 0.5},
                "with": {"aggregator": {"kind": "median"}, "clip": 1.0},
            },
            "staleness.gamma",
        ),
        ({**FEDBUFF, "with": {"requests": {"name": "fedasmu", "period": 3.0}}}, "with.requests.period"),
    ],
)  # fmt: skip
def test_an_option_that_no_part_reads_is_refused_in_a_recipe(spec: dict[str, Any], option: str) -> None:
    line = refused(lambda: make_algorithm(spec))
    assert line == f"{spec['name']}: {option} has no effect, as no part that is taken reads it: leave it out"


def test_options_of_parts_that_are_read_are_allowed() -> None:
    spec = {
        "name": "fedasync", "steps": 10, "concurrency": 5, "rho": 0.1,
        "with": {
            "aggregator": {"name": "fedbuff", "server_lr": 0.5, "staleness": {"kind": "hinge", "a": 2.0}},
            "server_steps": {"name": "fedavgm", "momentum": 0.5},
            "clip": 3.0,
        },
    }  # fmt: skip
    assert make_algorithm(spec).name == "fedasync"
    assert ("with", "aggregator", "staleness", "a") in numbers_in(spec)


def test_what_cannot_be_compared_or_made_counts_as_an_effect() -> None:
    def make(options: Any) -> ob.Algorithm:
        if options != {"a": 1}:
            raise ob.UsageError("only this")
        return ob.fedavg()

    assert option_without_effect(ob.fedavg(), make, {"a": 1}, [("a",)]) is None
    assert option_without_effect(ob.fedavg(), lambda _: ob.fedavg(), {"a": 1}, [("a",)]) == ("a",)
    # Nothing can be said of a word.
    assert option_without_effect(ob.fedavg(), lambda _: ob.fedavg(), {"a": "b"}, [("a",)]) is None

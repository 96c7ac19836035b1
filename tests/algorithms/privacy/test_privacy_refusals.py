"""What privacy refuses: each sentence, in those words, and listed on the documentation's page."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import offbeat as ob
from offbeat import robust
from offbeat.algorithms.privacy.private import check_buffers, complete_privacy, sum_only
from offbeat.codec import TopK
from offbeat.core.privacy.ledger import ReleasePlan
from offbeat.core.privacy.refusals import Refusal
from offbeat.experiment import Experiment
from offbeat.models.specs import LogisticSpec
from offbeat.net.messages import Register
from offbeat.net.server.open_run import open_run
from offbeat.net.server.server_learner import server_learner
from offbeat.net.server.validation import InvalidUpdateError, check_register
from offbeat.secure.refusals import SecureRefusal
from tests.net.support import Terms, terms_of
from tests.sim.sim_worlds import digits, normed

DOCS = Path(__file__).parents[3] / "docs"
NOISE = ob.Noise(multiplier=4.0)
PRIVATE = {"clip": 0.5, "noise": NOISE}
PRIVACY = ob.Privacy(**PRIVATE)
SECURE = {"clip": 0.5, "secure": ob.Secure()}
RADIO = {"codec": None, "scheduled": 2}


def complete(algorithm: ob.Algorithm, clients: int = 10, **options: object) -> ob.Privacy:
    return complete_privacy(ob.Privacy(**{**PRIVATE, **options}), algorithm, clients)


def plan(parameters: int = 100, **options: object) -> ReleasePlan:
    return ReleasePlan(complete(ob.feddyn(), **options), parameters, 10)


def serve_in_flower(experiment: Experiment) -> None:
    pytest.importorskip("flwr")  # an extra that the environments of `make test-oldest` and `test-newest` lack
    from offbeat.flower.server import serve

    serve(None, experiment, "none")


def asking() -> ob.Algorithm:
    return ob.compose(ob.fedbuff(), requests=ob.fedasmu())


def simulate(algorithm: ob.Algorithm, clients: int = 5, **more: object) -> None:
    ob.simulate(algorithm, ob.World(clients=clients), **{"privacy": PRIVACY, **more})


def opened(privacy: ob.Privacy, options: Terms) -> object:
    """A run of a server with privacy."""
    learner = server_learner(LogisticSpec(), sample_shape=(4,), classes=2)
    experiment = Experiment(ob.fedbuff(), learner, evaluate=ob.Every(), privacy=privacy)
    return open_run(experiment, Path("none"), options.server)


CASES: dict[str, tuple[Callable[[], object], str]] = {
    "SINGLE_UPDATES": (
        lambda: complete(ob.port()),
        "port needs each update by itself, not only a weighted sum: with privacy there are only sums; "
        f"choose one of {', '.join(sum_only())}",
    ),
    "CACHED": (
        lambda: complete(ob.ca2fl()),
        "ca2fl keeps each client's last update at the server, and with privacy there are only sums: "
        f"choose one of {', '.join(sum_only())}",
    ),
    "WINDOWS": (
        lambda: complete(ob.fedfa()),
        "fedfa publishes windows whose differences are single updates: choose fedbuff",
    ),
    "SECOND_VECTOR": (
        lambda: complete(ob.scaffold()),
        "scaffold sends a second vector of the same data, which gives single updates away: "
        "choose fedavg, fedprox or feddyn",
    ),
    "CODEC": (
        lambda: complete(ob.compose(ob.fedbuff(), codec=TopK(fraction=0.1))),
        "codec = 'top_k' cannot be used with privacy: masks and noise fill every coordinate",
    ),
    "BUFFERS": (
        lambda: check_buffers(ob.fedbuff(), digits(normed).initial(0).layout),
        "buffers = 'mean' cannot be used with privacy: choose local or recompute, or a model without buffers",
    ),
    "NORMS": (
        lambda: complete(ob.wireless(policy={"kind": "best_channel_best_norm"}, **RADIO)),
        "wireless needs clients that tell the length of the update they hold, "
        "which stays at the site with privacy",
    ),
    "GROWING_WEIGHT": (
        lambda: complete(ob.fedbuff(staleness=ob.age(1.2))),
        "staleness age with gamma = 1.2 has no largest weight: with privacy it needs gamma ≤ 1",
    ),
    "UNEQUAL_WEIGHTS": (
        lambda: complete(ob.fedbuff(), weight_bits=0),
        "weight_bits = 0 needs equal weights: staleness constant and weights equal, "
        "or choose weight_bits = 4",
    ),
    "NO_CLIP": (
        lambda: ob.Privacy(noise=NOISE),
        "Privacy: clip is missing: with privacy it is needed; "
        "start from the median norm of updates on public data",
    ),
    "OTHER_CLIP": (
        lambda: complete(ob.compose(ob.fedbuff(), clip=0.5)),
        "with.clip cannot be used with privacy: clip bounds the norm",
    ),
    "MOST": (lambda: complete(ob.fedbuff(size=20), most=16), "most = 16 is below size = 20 of fedbuff"),
    "LEAST": (
        lambda: ob.Privacy(**SECURE, least=2),
        "Privacy: least = 2 is not allowed with colluding_clients = 1: at least 3",
    ),
    "TOO_FEW_CLIENTS": (
        lambda: simulate(ob.fedbuff(size=1), 2, privacy=ob.Privacy(**SECURE)),
        "least = 3 needs 3 clients, the run begins with 2",
    ),
    "FLOWER": (
        lambda: serve_in_flower(Experiment(ob.fedbuff(), recipe={"privacy": PRIVATE})),
        "offbeat flower: privacy is not available there",
    ),
    "NO_HELPERS": (
        lambda: opened(ob.Privacy(**SECURE), terms_of()),
        "secure needs helpers in a deployed run: name 2 to 9 of them (privacy.secure.helpers)",
    ),
    "NORM_BOUND": (
        lambda: opened(
            ob.Privacy(clip=0.5, noise=ob.Noise(multiplier=4)), terms_of(norm_bound=1.0)
        ),
        "norm_bound cannot be used with privacy: clip bounds the norm",
    ),
    "KEEP_UPDATES": (
        lambda: opened(
            ob.Privacy(clip=0.5, noise=ob.Noise(multiplier=4)), terms_of(keep_updates=True)
        ),
        "keep_updates cannot be used with privacy: without one of its updates a release would tell of it",
    ),
    "COARSE_GRID": (
        lambda: plan(10**10, most=64, weight_bits=4).grid,
        "clip = 0.5 is 22 grid steps a coordinate with most = 64, weight_bits = 4; "
        "at least 128 are needed: lower most or weight_bits",
    ),
    "LITTLE_NOISE": (
        lambda: plan(noise=ob.Noise(multiplier=1e-5), most=4096),
        "σ = 6 grid steps is too little for exact noise: raise multiplier or lower most, "
        "at least 10000 are needed",
    ),
    "DELTA": (
        lambda: complete(ob.feddyn(), 200, noise=ob.Noise(multiplier=4, budget=ob.Budget(delta=0.01))),
        "delta = 0.01 is not allowed with 200 clients: it must be below 1/200",
    ),
    "SMALL_BUDGET": (
        lambda: plan(noise=ob.Noise(multiplier=0.5, budget=ob.Budget(epsilon=1))),
        "epsilon = 1 allows no release with multiplier = 0.5: raise one of them",
    ),
    "LABELS": (
        lambda: complete(ob.wireless(**RADIO)),
        "this policy needs exact label counts: add labels: public, or choose another",
    ),
    "LABELS_TELL_SAMPLES": (
        lambda: ob.Privacy(**PRIVATE, labels="public", samples_unit=50),
        "Privacy: samples_unit = 50 cannot be used with labels: public: label counts tell the number of "
        "samples; leave one of them out",
    ),
    "SAMPLES_UNIT": (
        lambda: check_register(Register(150, 5, held_out=20), None, labels_needed=False, unit=50),
        "held_out = 20 is not a multiple of samples_unit = 50 of this run: "
        "set samples_unit: 50 in the site's policy",
    ),
    "LEARNED_SELECTOR": (lambda: complete(asking()), "a learned selector tells losses: use a fixed one"),
    "CLIENT_METRICS": (
        lambda: simulate(
            ob.fedbuff(), evaluate=ob.Every(versions=1, at="clients"),
            until=ob.Until(versions=9, metric="clients.accuracy", reaches=0.9), learner=held_out(),
        ),
        "until clients.accuracy = 0.9: what clients find on their own data is not counted by the budget: "
        "choose a metric of the server's test data",
    ),
    "ROBUST": (
        lambda: complete(ob.compose(ob.fedbuff(), aggregator=robust.Median(), clip=0.5)),
        "median has no noise calibrated for it: leave it out, or leave noise out",
    ),
}  # fmt: skip


def held_out() -> ob.TorchLearner:
    plain = digits()
    data = ob.federate(ob.load("digits"), None, [range(i, 1000, 5) for i in range(5)], validation=0.2)
    return ob.TorchLearner(plain.module, data, plain.training)


@pytest.mark.parametrize("name", CASES)
def test_what_privacy_refuses_is_refused_in_these_words(name: str):
    given, sentence = CASES[name]
    with pytest.raises((ob.UsageError, InvalidUpdateError)) as error:
        given()
    assert str(error.value) == sentence
    assert re.search(pattern(Refusal[name]), sentence)


def pattern(refusal: Refusal | SecureRefusal) -> str:
    """A sentence in which anything stands for what was given."""
    parts = re.split(r"\{[^}]*\}", refusal.value)
    return r".+".join(map(re.escape, parts))


def test_a_release_that_does_not_fit_a_message_is_refused():
    secure = ob.Privacy(clip=0.5, most=4000, secure=ob.Secure(helpers=("a", "b", "c", "d"), colluding=1))
    with pytest.raises(ob.UsageError) as error:
        opened(secure, terms_of(clients=10))
    assert str(error.value) == (
        "most = 4000 is not allowed with helpers = 4, colluding = 1: a release of more than 832 updates "
        "does not fit into a message"
    )


def test_every_sentence_is_tested_and_on_the_page():
    assert set(CASES) == set(Refusal.__members__)
    shown = re.findall(r"^- `(.+)`$", (DOCS / "privacy-refusals.md").read_text("utf-8"), flags=re.MULTILINE)
    said = [*Refusal, *SecureRefusal]  # the latter are tested where they are said
    for refusal in said:
        assert any(re.fullmatch(pattern(refusal), line) for line in shown), refusal.value
    for line in shown:
        assert any(re.fullmatch(pattern(refusal), line) for refusal in said), line


def test_the_page_names_the_algorithms_that_go_with_privacy():
    text = (DOCS / "privacy.md").read_text("utf-8")
    row = re.search(r"^Sums are enough for: (.+)\.$", text, flags=re.MULTILINE)
    assert row is not None
    assert tuple(re.findall(r"`(\w+)`", row.group(1))) == sum_only()


def test_fixed_requests_and_fixed_policies_are_allowed():
    fixed = ob.compose(ob.fedbuff(), requests=ob.fedasmu(ask={"kind": "fixed", "at": "half"}))
    assert complete(fixed).weight_bits == 4
    assert complete(ob.wireless(**RADIO), labels="public").most == 2
    assert complete(ob.port(beta=0.0)).most == 10
    assert complete(ob.fedbuff(staleness=ob.constant())).weight_bits == 0

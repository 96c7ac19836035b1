"""Options that the tests give to every algorithm: drawn from the ranges of its signature, or one example.

A new algorithm has both without a line here.
"""

from typing import Any, Literal, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from offbeat.algorithms import ALGORITHMS
from offbeat.algorithms.hyperparameters import kind_of, option_classes, split
from offbeat.core.algorithm import Algorithm
from offbeat.core.errors import UsageError
from offbeat.core.staleness import AgeWeight

Options = dict[str, Any]

# What is not drawn: it needs a model of layers, updates of some length, or clients with labels.
NOT_DRAWN = {"asofed": {"features"}, "wireless": {"codec", "policy"}}
GAMMAS = st.sampled_from([0.03, 0.5, 1.0, 1.01])  # of an update that is 1024 versions old 2.0 is refused
# Between them they need all that a driver can have: rounds and timers, states of clients, a shared vector, …
EVERY_FEATURE = {
    "fedavg",
    "fedbuff",
    "fedcompass",
    "scaffold",
    "moon",
    "asofed",
    "fedasmu",
    "port",
    "ringmaster",
    "wireless",
}
# For what the drivers' other tests try with all of these: rounds, groups with timers, and states of clients.
FEW = {"fedasmu", "fedcompass", "moon"}
EXAMPLES: dict[str, Options] = {
    "fedavg": {"steps": 4, "clients_per_round": 3},
    "fedavgm": {"steps": 4, "momentum": 0.9},
    "first_of": {"steps": 4, "share": 0.6, "late": "next", "window": 2.5, "least": 2},
    "fedprox": {"steps": 4, "mu": 0.1},
    "fednova": {"epochs": 1, "clients_per_round": 3, "momentum": 0.5},
    "fedadagrad": {"steps": 4, "server_lr": 0.02},
    "fedadam": {"steps": 4, "server_lr": 0.02},
    "fedyogi": {"steps": 4, "server_lr": 0.02},
    "fedasync": {"steps": 4, "rho": 0.01},
    "fedbuff": {"steps": 4, "size": 3, "concurrency": 4},
    "fadas": {"steps": 4, "size": 3, "server_lr": 0.02, "threshold": 2},
    "delay_adaptive": {"steps": 4, "threshold": 3},
    "ringmaster": {"steps": 4, "threshold": 3},
    "rennala": {"steps": 4, "size": 4},
    "malenia": {"steps": 4, "size": 4},
    "ringleader": {"steps": 4, "most": 3},
    "ca2fl": {"steps": 4, "size": 3, "concurrency": 4, "left": "drop"},
    "ace": {"steps": 4, "concurrency": 4, "first": "seen", "max_age": 6},
    "mifa": {"steps": 4, "clients_per_round": 3},
    "fedvarp": {"steps": 4, "clients_per_round": 3},
    "fedstale": {"steps": 4, "clients_per_round": 3, "beta": 0.25},
    "fedfa": {"steps": 4, "size": 3, "concurrency": 4, "weights": "share", "normalize": True},
    "fedcompass": {"q_min": 2, "q_max": 9, "momentum": 0.5},
    "moon": {"steps": 4, "clients_per_round": 3, "mu": 5.0},
    "feddyn": {"steps": 4, "clients_per_round": 3, "alpha": 0.1},
    "scaffold": {"steps": 4, "clients_per_round": 3},
    "asofed": {"steps": 4, "concurrency": 4, "against": "copy"},
    "fedasmu": {"epochs": 4, "size": 3, "period": 3.0, "threshold": 5,
                "controls": {"lam_rate": 0.1}, "merge": {"gamma_rate": 0.1}},
    "fedssmu": {"epochs": 4, "clients_per_round": 4},
    "port": {"epochs": 3, "size": 1, "tau_max": 2, "urgent": True},
    "fedat": {"steps": 4, "retier": True},
    "wireless": {
        "steps": 4, "scheduled": 2, "period": 2.5, "gamma": 0.7, "policy": {"kind": "best_channel_best_norm"},
    },
}  # fmt: skip


def options_of(name: str) -> Options:
    """Options that show what an algorithm does on a few small clients."""
    short = {"steps": 4} if "steps" in ALGORITHMS[name].signature.parameters else {}
    return EXAMPLES.get(name, short)


def example(name: str) -> Algorithm:
    """An algorithm with these options."""
    return ALGORITHMS[name](**options_of(name))


def algorithms(name: str, clients: int) -> st.SearchStrategy[Algorithm]:
    """An algorithm with any of its options, for a world of so many clients."""
    parameters = ALGORITHMS[name].signature.parameters.values()
    drawn = {
        p.name: values(p.annotation, p.default, clients)
        for p in parameters
        if p.name not in NOT_DRAWN.get(name, set())
    }
    if name == "wireless":
        kinds = ("random", "best_channel", "best_channel_best_norm", "age_based")
        drawn |= {"policy": st.sampled_from([{"kind": kind} for kind in kinds]), "gamma": GAMMAS}
    required = {p.name: drawn.pop(p.name) for p in parameters if p.default is p.empty or p.name == "policy"}
    made = st.fixed_dictionaries(required, optional=drawn).map(lambda options: _made(name, options, clients))
    return made.filter(lambda algorithm: algorithm is not None)


def _made(name: str, options: Options, clients: int) -> Algorithm | None:
    """The algorithm; None where its options do not go together, or not with so many clients."""
    try:
        made = ALGORITHMS[name](**options)
        made.schedule.check_clients(clients)
    except UsageError:
        return None
    return made


def values(annotation: Any, default: Any, clients: int) -> st.SearchStrategy[Any]:
    """Values of an option: small numbers within its range, words, or mappings of the options within it."""
    kind, infos = split(annotation)
    bounds = {type(bound).__name__: bound for info in infos for bound in info.metadata}
    optional = any(type(None) in get_args(a) for a in (annotation, *get_args(annotation)))
    some: st.SearchStrategy[Any]
    if classes := option_classes(annotation):
        some = st.one_of([_mapping(option_class, clients) for option_class in classes])
    elif get_origin(kind) is Literal:
        some = st.sampled_from(get_args(kind))
    elif kind is bool:
        some = st.booleans()
    elif kind is int:
        least = bounds["Ge"].ge if "Ge" in bounds else 1
        some = st.integers(least, max(least, clients) if optional else least + 6)
    else:
        start = default if isinstance(default, float) and default > 0 else 0.5
        allowed = [x for x in (0.0, start / 16, start, 2 * start, 1.0) if _within(x, bounds)]
        some = st.sampled_from(allowed)
    return st.none() | some if optional else some


def _mapping(option_class: Any, clients: int) -> st.SearchStrategy[Options]:
    """A mapping of options within an option."""
    hints = get_type_hints(option_class, include_extras=True)
    fields = {k: f for k, f in option_class.__pydantic_fields__.items() if k != "kind"}
    inner = {name: values(hints[name], field.default, clients) for name, field in fields.items()}
    if option_class is AgeWeight:
        inner["gamma"] = GAMMAS
    tag = {} if kind_of(option_class) is None else {"kind": st.just(kind_of(option_class))}
    return st.fixed_dictionaries(tag, optional=inner)


def _within(x: float, bounds: dict[str, Any]) -> bool:
    at = {"Ge": x.__ge__, "Gt": x.__gt__, "Le": x.__le__, "Lt": x.__lt__}
    return all(at[name](getattr(bound, name.lower())) for name, bound in bounds.items() if name in at)

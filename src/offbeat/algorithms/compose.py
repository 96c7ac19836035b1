"""Composition: an algorithm with some of its parts taken from others.

>>> import offbeat as ob
>>> fedprox, fedavgm = ob.fedprox(mu=0.1), ob.fedavgm(momentum=0.5)
>>> mixed = compose(ob.fedbuff(3, steps=10), objective=fedprox, server_steps=fedavgm)
>>> mixed.objective, mixed.server_steps
(Proximal(mu=0.1), (Momentum(beta=0.5),))
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import wraps
from inspect import Parameter, signature
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from offbeat.algorithms.effects import numbers_in, option_without_effect
from offbeat.algorithms.factory import Factory, factory_of
from offbeat.algorithms.option_types import Positive
from offbeat.algorithms.robust import Clipped, RobustAggregator, RobustSpec
from offbeat.algorithms.wireless.over_radio import UploadSlots
from offbeat.codec import CodecSpec
from offbeat.core.aggregator import Aggregator
from offbeat.core.algorithm import Algorithm, usual_buffers
from offbeat.core.buffers import Buffers, unwrap_buffers
from offbeat.core.codec import Codec
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.schedule import unwrap_schedule
from offbeat.core.validation import did_you_mean, format_error
from offbeat.core.wrapper import layer, strip
from offbeat.named import named_errors

ASKING, MERGE, RADIO, BOUNDED = Feature.ASKING, Feature.MERGE, Feature.RADIO, Feature.BOUNDED
PARTS = ("aggregator", "objective", "server_steps", "requests")

Load = Callable[[str, str], Callable[..., Any]]


class CompositionOptions(BaseModel):
    """The options under "with" that are no part of another algorithm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    aggregator: RobustSpec | None = None
    clip: Positive | None = None
    codec: CodecSpec | None = None
    radio: UploadSlots | None = None
    buffers: Buffers | None = None


def compose(
    base: Algorithm,
    *,
    aggregator: Algorithm | RobustAggregator | None = None,
    objective: Algorithm | None = None,
    server_steps: Algorithm | None = None,
    requests: Algorithm | None = None,
    clip: float | None = None,
    codec: Codec | None = None,
    radio: UploadSlots | None = None,
    buffers: Buffers | None = None,
) -> Algorithm:
    """Replace parts of `base` by those of other algorithms; the schedule stays.

    Args:
        base: The algorithm whose schedule stays.
        aggregator: The algorithm that gives the aggregator, or a robust aggregator such as
            `offbeat.robust.Median()`.
        objective: The algorithm that gives the objective.
        server_steps: The algorithm that gives the server steps.
        requests: FedASMU or FedSSMU. Clients then request a fresh model during training and merge it, with
            any schedule and objective.
        clip: L2 norm to which each update is clipped, before any aggregator. Some robust aggregators need it.
        codec: Compression of the updates.
        radio: Slots of the channel that all clients share. Each upload has its own slot.
        buffers: Policy of the floating buffers. None means the base's if one was chosen for it, and else that
            for which the aggregator and the server steps are made.

    Returns:
        The algorithm, which records its parts by name.

    Raises:
        UsageError: A part requires what no other part provides, or more updates at a time than the schedule
            aggregates.
    """
    source, client_objective = requests or base, unwrap_buffers((objective or base).objective)
    schedule, goal = strip(unwrap_schedule(base.schedule), RADIO, ASKING), strip(client_objective, MERGE)
    asking, merge = layer(source.schedule, ASKING), layer(source.objective, MERGE)
    if asking and merge:
        schedule, goal = replace(asking, inner=schedule), replace(merge, inner=goal)
    elif requests is not None:
        raise UsageError(f"{requests.name} has no requests for fresh models: take those of fedasmu")
    if radio is not None and RADIO in base.schedule.requires:
        raise UsageError(f"{base.name} is on the radio already: leave radio out")
    if on_air := layer(base.schedule, RADIO):
        schedule = replace(on_air, inner=schedule)
    elif radio is not None:
        schedule = radio.around(schedule)
    algorithms = zip(PARTS, (aggregator, objective, server_steps, requests), strict=True)
    taken: dict[str, Any] = {part: _recorded(chosen) for part, chosen in algorithms if chosen is not None}
    options: dict[str, Any] = {"clip": clip, "codec": codec, "radio": radio, "buffers": buffers}
    taken |= {k: asdict(v) if k in ("codec", "radio") else v for k, v in options.items() if v is not None}
    return replace(
        base,
        schedule=schedule,
        aggregator=_clipped(base, aggregator, clip),
        objective=goal,
        server_steps=(server_steps or base).server_steps,
        codec=codec or base.codec,
        buffers=buffers or _buffers(base, aggregator, server_steps),
        hyperparameters={**base.hyperparameters, "with": {**base.hyperparameters.get("with", {}), **taken}},
    )


def _buffers(base: Algorithm, other: Algorithm | RobustAggregator | None, steps: Algorithm | None) -> Buffers:
    """The base's policy if it was chosen, else the one that goes with the aggregator and the server steps."""
    if base.buffers != usual_buffers(base.aggregator, base.server_steps):
        return base.buffers
    giver = other if isinstance(other, Algorithm) else base
    return usual_buffers(giver.aggregator, (steps or base).server_steps)


def _clipped(base: Algorithm, other: Algorithm | RobustAggregator | None, clip: float | None) -> Aggregator:
    """The aggregator taken, or the base's own, clipped as is asked or as either was."""
    taken = other.aggregator if isinstance(other, Algorithm) else other or base.aggregator
    before = layer(taken, BOUNDED) or layer(base.aggregator, BOUNDED)
    norm = clip if clip is not None else before.norm if before else None
    inner = strip(taken, BOUNDED)
    return inner if norm is None else Clipped(inner, norm)


def _recorded(part: Algorithm | RobustAggregator) -> dict[str, Any]:
    """A part by name or kind, with its options."""
    if isinstance(part, Algorithm):
        return {"name": part.name, **part.hyperparameters}
    if isinstance(part, RobustAggregator):
        return asdict(part)
    raise UsageError(
        f"{part!r} is no aggregator: give an algorithm, or an aggregator of offbeat.robust; "
        "with one of your own make an Algorithm"
    )


def build(
    factories: Mapping[str, Factory[...]], spec: Mapping[str, Any], load: Load | None = None
) -> Algorithm:
    """The algorithm of a mapping such as {"name": "fedbuff", "size": 3, "with": {"objective": {…}}}.

    Under "with", "aggregator", "objective", "server_steps" and "requests" are algorithms whose part is taken;
    an "aggregator" with "kind" is a robust one. "clip" is the norm that updates have at most, "codec" has a
    codec's options, "radio" those of `UploadSlots`, "buffers" is one of `Algorithm`'s policies.

    Args:
        factories: The algorithms by name.
        spec: The mapping.
        load: Finds a user's function, given a name "module:function" and the option. None means that there
            are none.

    Raises:
        UsageError: A name or an option is unknown, or a user's function raises.
    """
    options = dict(spec)
    parts, name = options.pop("with", {}), options.pop("name", None)
    if name is None:
        meant = next((key for key in options if key in factories), "fedbuff")
        raise UsageError(
            f"algorithm = {options} has no name: write {{name: {meant}}}, with its options beside the name"
        )
    if load is not None and isinstance(name, str) and ":" in name:
        base = _named_algorithm(name, options, load)
    else:
        base = factory_of(factories, name)(**options)
    if not isinstance(parts, Mapping):
        raise UsageError(
            f"{base.name}: with = {parts!r} is not allowed: "
            "name parts, such as {aggregator: {name: fedfa}}"
        )
    if not parts:
        return base
    return compose(
        base,
        **{part: _part(factories, base.name, part, part_spec, load) for part, part_spec in parts.items()},
    )


def check_effects(made: Algorithm, factories: Mapping[str, Factory[...]], spec: Mapping[str, Any]) -> None:
    """Check that each number in a composition counts: those of what is taken, and of what stays of the base.

    Args:
        made: The algorithm.
        factories: The algorithms by name.
        spec: The mapping of which it was built; one that names a user's function is not checked.

    Raises:
        UsageError: An option has no effect.
    """
    if "with" not in spec or _names_own(spec):
        return
    path = option_without_effect(made, lambda options: build(factories, options), spec, numbers_in(spec))
    if path is not None:
        raise UsageError(
            f"{spec['name']}: {'.'.join(path)} has no effect, as no part that is taken reads it: leave it out"
        )


def _names_own(spec: Any) -> bool:
    """Whether a mapping names a function of a user's."""
    if not isinstance(spec, Mapping):
        return False
    return ":" in str(spec.get("name", "")) or any(map(_names_own, spec.values()))


def own_factory(factories: Mapping[str, Factory[...]], name: str, load: Load) -> Factory[...]:
    """The factory of a user's function, by which it is described as a published algorithm is.

    Args:
        factories: The published algorithms by name, which the function's options may name.
        name: "module:function"; the function may be a factory itself, made by `@algorithm`.
        load: Finds the function, given its name and the option.

    Raises:
        UsageError: There is no such function.
    """
    function = load(name, "algorithm")
    if not callable(function):
        raise UsageError(f"algorithm {name} is a {type(function).__name__}: name a function that makes one")

    @wraps(function)
    def make(**options: Any) -> Algorithm:
        return build(factories, {"name": name, **options}, load)

    if isinstance(function, Factory):
        return Factory(name, function.paper, function.kind, make, function.signature)
    with named_errors(name, "algorithm"):
        own = signature(function, eval_str=True)
    named = [
        p for p in own.parameters.values() if p.kind not in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    ]
    return Factory(name, "", None, make, own.replace(parameters=named))


def _named_algorithm(name: str, options: Mapping[str, Any], load: Load) -> Algorithm:
    """The algorithm that a user's function makes, recorded under the function's name."""
    function = load(name, "algorithm")
    with named_errors(name, "algorithm"):
        made = function(**options)
    if not isinstance(made, Algorithm):
        raise UsageError(f"algorithm {name} returned a {type(made).__name__}: it must return an Algorithm")
    return replace(made, name=name, hyperparameters=dict(options))


def _part(
    factories: Mapping[str, Factory[...]], base: str, part: str, part_spec: Any, load: Load | None
) -> Any:
    """The value under "with" for one part."""
    names = tuple(dict.fromkeys((*PARTS, *CompositionOptions.model_fields)))
    if part not in names:
        raise UsageError(f"{base}: with.{part} is unknown{did_you_mean(str(part), names)}")
    robust = (
        part == "aggregator"
        and isinstance(part_spec, Mapping)
        and "kind" in part_spec
        and "name" not in part_spec
    )
    if robust or (part in CompositionOptions.model_fields and part not in PARTS):
        try:
            return getattr(CompositionOptions.model_validate({part: part_spec}), part)
        except ValidationError as error:
            text = format_error(error, document={part: part_spec})
            raise UsageError(f"{base}: with.{text}") from None
    if not isinstance(part_spec, Mapping):
        raise UsageError(f"{base}: with.{part} = {part_spec!r} is not allowed: give a mapping with a name")
    return build(factories, part_spec, load)

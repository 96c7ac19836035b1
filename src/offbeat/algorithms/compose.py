"""Composition: an algorithm with some of its parts taken from others.

>>> import offbeat as ob
>>> fedprox, fedavgm = ob.fedprox(mu=0.1), ob.fedavgm(momentum=0.5)
>>> mixed = compose(ob.fedbuff(3, steps=10), objective=fedprox, server_steps=fedavgm)
>>> mixed.objective, mixed.server_steps
(Proximal(mu=0.1), (Momentum(beta=0.5),))
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from offbeat.algorithms.registry import Factory, factory_of
from offbeat.algorithms.wireless.over_radio import UploadSlots
from offbeat.codec import CodecSpec
from offbeat.core.algorithm import Algorithm
from offbeat.core.buffers import Buffers, unwrap_buffers
from offbeat.core.codec import Codec
from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.validation import did_you_mean, format_error
from offbeat.core.wrapper import layer, strip
from offbeat.named import named_errors

ASKING, MERGE, RADIO = Feature.ASKING, Feature.MERGE, Feature.RADIO
PARTS = ("aggregator", "objective", "server_steps", "requests")

Load = Callable[[str, str], Callable[..., Any]]


class CompositionOptions(BaseModel):
    """What stands under "with" that is no part of another algorithm."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    codec: CodecSpec | None = None
    radio: UploadSlots | None = None
    buffers: Buffers | None = None


def compose(
    base: Algorithm,
    *,
    aggregator: Algorithm | None = None,
    objective: Algorithm | None = None,
    server_steps: Algorithm | None = None,
    requests: Algorithm | None = None,
    codec: Codec | None = None,
    radio: UploadSlots | None = None,
    buffers: Buffers | None = None,
) -> Algorithm:
    """`base`, with the parts of these algorithms in place of its own; its schedule stays.

    Args:
        base: the algorithm whose schedule is kept.
        aggregator: whose aggregator is taken.
        objective: whose objective is taken.
        server_steps: whose server steps are taken.
        requests: FedASMU or FedSSMU: clients request a fresh model in mid-training and merge it, around
            whatever the schedule and the objective are.
        codec: what updates go through.
        radio: puts the algorithm on the channel that all clients share, each upload in a slot of its own.
        buffers: what becomes of floating buffers.

    Returns:
        The algorithm, which records its parts by name.

    Raises:
        UsageError: where a part requires what no other provides.
    """
    source, own = requests or base, unwrap_buffers((objective or base).objective)
    schedule, goal = strip(base.schedule, RADIO, ASKING), strip(own, MERGE)
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
    taken: dict[str, Any] = {part: {"name": a.name, **a.hyperparameters} for part, a in algorithms if a}
    options: dict[str, Any] = {"codec": codec, "radio": radio, "buffers": buffers}
    taken |= {k: v if isinstance(v, str) else asdict(v) for k, v in options.items() if v is not None}
    return replace(
        base,
        schedule=schedule,
        aggregator=(aggregator or base).aggregator,
        objective=goal,
        server_steps=(server_steps or base).server_steps,
        codec=codec or base.codec,
        buffers=buffers or base.buffers,
        hyperparameters={**base.hyperparameters, "with": {**base.hyperparameters.get("with", {}), **taken}},
    )


def build(
    factories: Mapping[str, Factory[...]], spec: Mapping[str, Any], load: Load | None = None
) -> Algorithm:
    """The algorithm of a mapping such as {"name": "fedbuff", "size": 3, "with": {"objective": {…}}}.

    Under "with", "aggregator", "objective", "server_steps" and "requests" are algorithms whose part is taken;
    "codec" has a codec's options, "radio" those of `UploadSlots`, "buffers" is one of `Algorithm`'s policies.

    Args:
        factories: The algorithms by name.
        spec: The mapping.
        load: Finds a user's function, given a name "module:function" and the option. None means that there
            are none.

    Raises:
        UsageError: A name or an option is unknown, or a user's function raises.
    """
    options = dict(spec)
    others, name = options.pop("with", {}), options.pop("name", None)
    if load is not None and isinstance(name, str) and ":" in name:
        base = _own(name, options, load)
    else:
        base = factory_of(factories, name)(**options)
    if not isinstance(others, Mapping):
        raise UsageError(
            f"{base.name}: with = {others!r} is not allowed: "
            "name parts, such as {aggregator: {name: fedfa}}"
        )
    if not others:
        return base
    return compose(
        base, **{part: _part(factories, base.name, part, own, load) for part, own in others.items()}
    )


def _own(name: str, options: Mapping[str, Any], load: Load) -> Algorithm:
    """The algorithm that a user's function makes, recorded under the function's name."""
    function = load(name, "algorithm")
    with named_errors(name, "algorithm"):
        made = function(**options)
    if not isinstance(made, Algorithm):
        raise UsageError(f"algorithm {name} returned a {type(made).__name__}: it must return an Algorithm")
    return replace(made, name=name, hyperparameters=dict(options))


def _part(factories: Mapping[str, Factory[...]], base: str, part: str, own: Any, load: Load | None) -> Any:
    """What stands under "with" for one part."""
    known = (*PARTS, *CompositionOptions.model_fields)
    if part not in known:
        raise UsageError(f"{base}: with.{part} is unknown{did_you_mean(str(part), known)}")
    if part in CompositionOptions.model_fields:
        try:
            return getattr(CompositionOptions.model_validate({part: own}), part)
        except ValidationError as error:
            raise UsageError(f"{base}: with.{format_error(error)}") from None
    if not isinstance(own, Mapping):
        raise UsageError(f"{base}: with.{part} = {own!r} is not allowed: give a mapping with a name")
    return build(factories, own, load)

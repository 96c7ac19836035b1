"""Messages to a Flower `ClientApp`, and what its replies contain, for both kinds of app.

An app with functions (`@app.train()`) takes records under keys that its author chose. An app with a
`client_fn` takes the records into which Flower puts the arguments of a `Client`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import (
    DEFAULT_TTL,
    Array,
    ArrayRecord,
    ConfigRecord,
    Context,
    MessageType,
    Metadata,
    MetricRecord,
    RecordDict,
)
from flwr.app.message import make_message
from flwr.clientapp import ClientApp
from flwr.compat.common.parameter import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import (
    evaluateins_to_recorddict,
    fitins_to_recorddict,
    recorddict_to_evaluateres,
    recorddict_to_fitres,
)
from flwr.compat.common.typing import Code, EvaluateIns, EvaluateRes, FitIns, FitRes

from offbeat.core.errors import OffbeatError, RunError, UsageError
from offbeat.data.dataset import told_error

ConfigValue = bool | bytes | float | int | str
"""A value of a node's, a run's or a message's configuration."""
NamedArrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class RecordKeys:
    """Keys of the records in messages, as the arguments of Flower's strategies name them."""

    arrays: str = "arrays"
    config: str = "config"
    samples: str = "num-examples"


@dataclass(frozen=True)
class AppReply:
    """What an app has answered.

    Attributes:
        arrays: The trained arrays; empty for an evaluation.
        samples: Number of samples that it has trained on, or evaluated on.
        metrics: Its numbers by name.
    """

    arrays: NamedArrays
    samples: int
    metrics: dict[str, float]


def train(
    app: ClientApp, context: Context, arrays: NamedArrays, config: Mapping[str, ConfigValue], keys: RecordKeys
) -> AppReply:
    """Let an app train arrays.

    Raises:
        UsageError: The reply is none that a Flower strategy takes.
        RunError: The app replied with an error.
    """
    if not _has_client_fn(app):
        return _from_records(_call(app, context, MessageType.TRAIN, _records(arrays, config, keys)), keys, 1)
    instructions = FitIns(ndarrays_to_parameters(list(arrays.values())), dict(config))
    reply = _call(app, context, MessageType.TRAIN, fitins_to_recorddict(instructions, keep_input=True))
    fit: FitRes = recorddict_to_fitres(reply, keep_input=True)
    _check_status(fit)
    trained = parameters_to_ndarrays(fit.parameters)
    if len(trained) != len(arrays):
        raise UsageError(f"the app was sent {len(arrays)} arrays, and its fit returns {len(trained)}")
    return AppReply(dict(zip(arrays, trained, strict=True)), fit.num_examples, _numbers(fit.metrics))


def evaluate(
    app: ClientApp, context: Context, arrays: NamedArrays, config: Mapping[str, ConfigValue], keys: RecordKeys
) -> AppReply:
    """Let an app evaluate arrays on the samples that its node holds out. Raises as `train`."""
    if not _has_client_fn(app):
        return _from_records(
            _call(app, context, MessageType.EVALUATE, _records(arrays, config, keys)), keys, 0
        )
    instructions = EvaluateIns(ndarrays_to_parameters(list(arrays.values())), dict(config))
    reply = _call(
        app, context, MessageType.EVALUATE, evaluateins_to_recorddict(instructions, keep_input=True)
    )
    found: EvaluateRes = recorddict_to_evaluateres(reply)
    _check_status(found)
    return AppReply({}, found.num_examples, {"loss": float(found.loss), **_numbers(found.metrics)})


def check_app(app: Any) -> None:
    """Raises `UsageError` for anything but a `ClientApp`."""
    if isinstance(app, ClientApp):
        return
    if hasattr(app, "fit"):
        name = app.__name__ if isinstance(app, type) else type(app).__name__
        advice = f"give ClientApp(client_fn), where client_fn(context) returns {name}(…).to_client()"
    elif callable(app):
        advice = "if it is a client_fn, give ClientApp(client_fn)"
    else:
        advice = "give the app of the project's client_app.py"
    told = f"the class {app.__name__}" if isinstance(app, type) else f"a {type(app).__name__}"
    raise UsageError(f"app = {told} is no ClientApp: {advice}")


def _has_client_fn(app: ClientApp) -> bool:
    """Whether the app was made with a `client_fn`. Flower has no public way to ask."""
    return app._call is not None


def _call(app: ClientApp, context: Context, kind: str, content: RecordDict) -> RecordDict:
    """Send a message to an app, and give the content of its reply."""
    # The metadata are given because a message without them needs a Flower process around it.
    about = Metadata(context.run_id, "", 0, context.node_id, "", "", 0.0, DEFAULT_TTL, kind)
    try:
        reply = app(make_message(about, content=content), context)
    except OffbeatError:
        raise
    except Exception as error:
        if (told := _told(app, error, kind, content, context)) is None:
            raise
        raise UsageError(told) from error
    if reply.has_error():
        raise RunError(f"the app answered a {kind} message with an error: {reply.error.reason}")
    return reply.content


def _told(app: ClientApp, error: Exception, kind: str, content: RecordDict, context: Context) -> str | None:
    """The error of an app in a line where the call of `from_flower` lacks something, or the app itself."""
    if isinstance(error, KeyError) and isinstance(name := next(iter(error.args), None), str):
        given = [*context.run_config, *context.node_config]
        if name not in [*given, *(key for own in content.config_records.values() for key in own)]:
            return (
                f"the app asks for {name!r}, which from_flower was not given ({told_error(error)}): give "
                f"run_config={{{name!r}: …}} for what it reads in context.run_config, config=… for the "
                "message's configuration, a mapping for each of clients for context.node_config"
            )
    if isinstance(error, AttributeError) and _has_client_fn(app) and "'fit'" in str(error):
        return "the app's client_fn returns no client: return an object of its class, with .to_client()"
    if isinstance(error, ValueError) and str(error).startswith(f"No {kind} function registered"):
        return f"the app has no function for {kind} messages: register one with @app.{kind}()"
    return None


def _records(arrays: NamedArrays, config: Mapping[str, ConfigValue], keys: RecordKeys) -> RecordDict:
    named = ArrayRecord({name: Array(np.ascontiguousarray(array)) for name, array in arrays.items()})
    return RecordDict({keys.arrays: named, keys.config: ConfigRecord(dict(config))})


def _from_records(content: RecordDict, keys: RecordKeys, array_records: int) -> AppReply:
    """The reply of an app with functions; a strategy of Flower's demands the same of it."""
    arrays, metrics = list(content.array_records.values()), list(content.metric_records.values())
    if len(arrays) < array_records or len(arrays) > 1 or len(metrics) != 1:
        raise UsageError(
            f"the app's reply has {len(arrays)} array records and {len(metrics)} metric records: a reply to "
            "train has one of each, and a reply to evaluate has one metric record"
        )
    record: MetricRecord = metrics[0]
    if not isinstance(record.get(keys.samples), int | float):
        raise UsageError(
            f"the app's metric record has no number {keys.samples!r}: report the number of samples under "
            "this name, or name the one that the app reports: weighted_by_key"
        )
    found = {name: array.numpy() for record in arrays for name, array in record.items()}
    numbers = _numbers(record)
    return AppReply(found, int(numbers.pop(keys.samples)), numbers)


def _numbers(found: Mapping[str, Any]) -> dict[str, float]:
    """The metrics that are numbers: lists and texts are of the app's own use."""
    return {name: float(value) for name, value in found.items() if isinstance(value, int | float)}


def _check_status(result: FitRes | EvaluateRes) -> None:
    if result.status.code != Code.OK:
        raise RunError(f"the app's client answered {result.status.code.name}: {result.status.message}")

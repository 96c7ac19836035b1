"""Digests of a private task's order and of its result, which a site keeps."""

import json
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

from torch import Tensor

from offbeat.core.events import ClientId
from offbeat.core.learner import LocalResult
from offbeat.net.messages import TaskAssignment


def order_digest(assignment: TaskAssignment, plan: Mapping[str, Any], client: ClientId) -> str:
    """Digest of all that determines a task's training: its numbers, the model's content, and the plan.

    The options of privacy are no part of it: a task that was masked for helpers who are gone is masked for
    others.
    """
    a = assignment
    numbers = [a.task, a.base, a.steps, a.seed, a.ask_after, a.lr_factor, a.hold, client]
    trained = {name: value for name, value in plan.items() if name != "privacy"}
    text = json.dumps([numbers, trained], sort_keys=True).encode()
    return _digest(text, a.model.values, a.model.integers, a.model.shared)


def result_digest(steps: int, result: LocalResult) -> str:
    """Digest of a training's result: the number of steps, and the change of the model."""
    return _digest(str(steps).encode(), result.delta)


def _digest(text: bytes, *tensors: Tensor) -> str:
    digest = blake2b(text, digest_size=32)
    for tensor in tensors:
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()

"""The handles through which a training loop of the user's calls an objective's hooks, and that it does."""

from collections.abc import Container
from typing import Any

from offbeat.core.errors import UsageError
from offbeat.core.features import Feature
from offbeat.core.objective import Objective, ObjectiveWrapper
from offbeat.core.wrapper import Wrapper

HANDLES = {
    "loss": ("penalized", "adds to the loss", "call loss = task.penalized(loss) before loss.backward()"),
    "adjust": (
        "correct_gradients", "changes the gradients", "call task.correct_gradients() after loss.backward()",
    ),
}  # fmt: skip
"""For each hook of an objective: the loop's handle for it, its effect, and the call."""


def hooks_of(objective: Objective, *, merged: bool) -> dict[str, str]:
    """The hooks of `HANDLES` that change a step.

    Args:
        objective: The objective.
        merged: Whether a fresh model was merged before the step, by which the hooks of an objective that
            merges are about the step too.

    Returns:
        For each hook the name of the class, of those that the objective is made of, whose it is.
    """
    hooks = dict[str, str]()
    part: Any = objective
    while True:
        if merged or not (isinstance(part, Wrapper) and Feature.MERGE in part.own_provides):
            for hook in HANDLES:
                if getattr(type(part), hook) not in (
                    getattr(Objective, hook),
                    getattr(ObjectiveWrapper, hook),
                ):
                    hooks.setdefault(hook, type(part).__name__)
        if not isinstance(part, Wrapper):
            return hooks
        part = part.inner


def check_reach(objective: Objective, *, reachable: bool, is_module: bool) -> None:
    """Check, before the first step, that the weights are where the objective needs them.

    Args:
        objective: The objective.
        reachable: Whether a module or functions are bound to the task.
        is_module: Whether it is a module.

    Raises:
        UsageError: They are not.
    """
    if Feature.MERGE in objective.provides and not reachable:
        raise UsageError(
            "the algorithm merges fresh models in mid-task: call task.load_into(module), or "
            "task.bind(read, write), before task.steps"
        )
    adds = hooks_of(objective, merged=False).get("loss")
    if adds and not is_module:
        raise UsageError(
            f"{adds} {HANDLES['loss'][1]} of each step, which takes a PyTorch module: call "
            "task.load_into(module) before task.steps, or choose an algorithm with a plain objective"
        )


def check_called(objective: Objective, called: Container[str], *, merged: bool) -> None:
    """Check, after a step, that the loop has called the handles that the objective needs in it.

    Args:
        objective: The objective.
        called: The handles that the loop has called.
        merged: Whether a fresh model was merged before the step, with adapted weights.

    Raises:
        UsageError: It has not; names the handle.
    """
    for hook, name in hooks_of(objective, merged=merged).items():
        handle, does, call = HANDLES[hook]
        if handle in called:
            continue
        plain = "choose an algorithm with a plain objective"
        instead = "give task.steps no loss, for fixed weights" if merged else plain
        raise UsageError(
            f"{name} {does} of each step, and the loop did a step without task.{handle}: {call}, or {instead}"
        )

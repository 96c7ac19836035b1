"""Whether gradients reach the parameters that are trained: watched in a learner's first task.

A module can compute with other tensors than its parameters: with those of layers in a list, of a copy, or of
what was scripted. Then it is trained in name only. PyTorch says nothing of it, so this does: an error where
nothing is trained, a warning where a part is not.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from offbeat.core.errors import UsageError

log = logging.getLogger(__name__)
DETACHED = (
    "the loss depends on no parameter that is trained: was it detached? Leave out what ends gradients on the "
    "way to it: detach, .data, no_grad, argmax"
)
_REGISTER = (
    "keep layers in nn.ModuleList or nn.ModuleDict, tensors in nn.Parameter or nn.ParameterList, and train "
    "no copy of them"
)
_UNUSED = (
    "freeze what is not to be trained (requires_grad_(False)), or leave out what ends gradients on the way "
    "to them, such as detach"
)
_NODES = 100_000  # nodes of autograd's graph to be searched
_DEPTH = 4  # containers within an attribute
_SHOWN = 3


class GradientFlow:
    """Gradients of a learner's first task.

    Args:
        module: The module in training.
        trained: The parameters that are trained, by name.
        loss: The learner's loss, whose own parameters are not trained. None means the default.
    """

    def __init__(self, module: nn.Module, trained: Mapping[str, Tensor], loss: Any = None) -> None:
        self._module, self._trained, self._loss = module, trained, loss
        self._unreached = dict(trained)
        self._others: list[Tensor] | None = None
        # Names of parameters that the module has made or unfrozen since.
        self._later: list[str] = []
        self._nonzero = False

    @property
    def nonzero(self) -> bool:
        """Whether any gradient was not 0."""
        return self._nonzero

    @property
    def watched(self) -> bool:
        """Whether it has looked at any loss."""
        return self._others is not None

    def watch(self, loss: Tensor) -> None:
        """Look at a loss before it is differentiated."""
        if self._others is None:
            own = {id(tensor) for tensor in self._trained.values()}
            self._others = [leaf for leaf in _leaves(loss) if id(leaf) not in own]
            others = {id(leaf) for leaf in self._others}
            self._later = [name for name, p in self._module.named_parameters() if id(p) in others]

    def reached(self) -> None:
        """Look at the gradients that a loss has left at the parameters."""
        if self._unreached:
            self._unreached = {name: p for name, p in self._unreached.items() if p.grad is None}
        if not self._nonzero:
            found = (p.grad for p in self._trained.values() if p.grad is not None)
            self._nonzero = any(bool(gradient.any()) for gradient in map(_values, found))

    def check_any(self, whose: str) -> None:
        """Check that some parameter is trained.

        Args:
            whose: What was trained, such as "client 3, task 0".

        Raises:
            UsageError: No gradient reaches any; it says what the loss follows from.
        """
        name, unreached = type(self._module).__name__, list(self._unreached)
        if unreached and len(unreached) == len(self._trained):
            raise UsageError(
                f"{whose}: nothing is trained, as no gradient reaches any of the {len(unreached)} parameters "
                f"of {name} ({_some(unreached)}): {self._cause()}"
            )

    def end(self, whose: str, rate: float, *, moved: bool) -> None:
        """Report the parts of the module that are not trained.

        Args:
            whose: What was trained, such as "client 3, task 0".
            rate: The learning rate.
            moved: Whether the task has changed any parameter.

        Raises:
            UsageError: As of `check_any`.
        """
        self.check_any(whose)
        name, unreached = type(self._module).__name__, list(self._unreached)
        inside = list(self._names_of_others())
        if unreached:
            log.warning(
                "%s: no gradient reaches %d of the %d parameters of %s (%s), and they stay as they are: %s",
                whose, len(unreached), len(self._trained), name, _some(unreached),
                self._cause() if inside else _UNUSED,
            )  # fmt: skip
        elif inside:
            log.warning("%s: a part of %s is not trained: %s", whose, name, self._cause())
        elif not moved and rate:
            if self._nonzero:
                cause = (
                    f"the steps are lost in rounding (lr = {rate:g}; parameters are "
                    f"{_dtypes(self._trained.values())}), or the optimizer steps other tensors: give a "
                    "larger lr, float32, or another optimizer"
                )
            else:
                cause = "each gradient is 0, as where an output is rounded or saturated: look at the loss"
            log.warning("%s: the training changes no parameter of %s: %s", whose, name, cause)

    def _cause(self) -> str:
        """The tensors that the loss depends on in place of the parameters, and what to do."""
        if self._later:
            return (
                f"the loss follows from {_some(self._later)}, which the module has made or unfrozen later: "
                "only parameters that it begins with are trained, so make and unfreeze all of them at first"
            )
        if inside := list(self._names_of_others()):
            return f"the loss follows from {_some(inside)}, not registered as parameters: {_REGISTER}"
        if self._others:
            return (
                f"the loss follows from {len(self._others)} tensors that are none of its parameters, such as "
                f"one of shape {list(self._others[0].shape)}: compute it with the module that is given, not "
                "with another or a copy"
            )
        return "leave out what clears or drops gradients, such as zero_grad or a backward of one's own"

    def _names_of_others(self) -> Iterator[str]:
        """Where the module, or the loss, has the other tensors that the loss follows from."""
        other_ids = {id(tensor) for tensor in self._others or ()}
        if not other_ids:
            return
        yield from self._later
        yield from (name for name, tensor in _unregistered(self._module) if id(tensor) in other_ids)
        if isinstance(self._loss, nn.Module):
            yield from (f"loss.{n}" for n, p in self._loss.named_parameters() if id(p) in other_ids)


def nothing_to_train(module: nn.Module, *, personal: bool) -> UsageError:
    """The error about a module without a parameter that is trained and travels."""
    registered = {id(parameter) for parameter in module.parameters()}
    unregistered = [name for name, t in _unregistered(module) if t.requires_grad and id(t) not in registered]
    quantized = next((type(p).__name__ for p in module.modules() if "quantized" in type(p).__module__), None)
    if unregistered:
        reason = f"{_some(unregistered)}: not registered as parameters; {_REGISTER}"
    elif quantized is not None:
        reason = f"its {quantized} is quantized: train the float module, and quantize what comes of it"
    elif isinstance(module, torch.jit.ScriptModule) and next(module.parameters(), None) is None:
        reason = (
            "it is scripted and frozen, whose weights are constants: give the module before torch.jit.freeze"
        )
    else:
        at_clients = ", or stay at the clients (personal)" if personal else ""
        reason = f"all are frozen (requires_grad = False){at_clients}, or there is none; leave one to train"
    return UsageError(f"{type(module).__name__} has no parameter to train: {reason}")


def _unregistered(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """The tensors in a module's attributes that it has not registered, with their names."""
    for path, part in module.named_modules():
        for attribute, value in vars(part).items():
            if attribute not in ("_parameters", "_buffers", "_modules"):
                yield from _inside(value, f"{path}.{attribute}" if path else attribute)


def _leaves(loss: Tensor) -> list[Tensor]:
    """The tensors that a loss would leave gradients at, as far as its graph tells."""
    leaves: dict[int, Tensor] = {}
    seen: set[Any] = set()
    waiting: list[Any] = [loss.grad_fn]
    while waiting and len(seen) < _NODES:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if isinstance(leaf := getattr(node, "variable", None), Tensor):
            leaves[id(leaf)] = leaf
        waiting += [following for following, _ in node.next_functions]
    return list(leaves.values())


def _inside(value: Any, at: str, depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors inside of an attribute's value, with their names."""
    if isinstance(value, Tensor):
        yield at, value
    elif isinstance(value, nn.Module):
        yield from ((f"{at}.{name}", parameter) for name, parameter in value.named_parameters())
    elif depth < _DEPTH and isinstance(value, Mapping):
        for key, own in value.items():
            yield from _inside(own, f"{at}[{key!r}]", depth + 1)
    elif depth < _DEPTH and isinstance(value, list | tuple | set):
        for number, own in enumerate(value):
            yield from _inside(own, f"{at}[{number}]", depth + 1)


def _some(names: Sequence[str]) -> str:
    """The first names of some."""
    return ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")


def _dtypes(tensors: Any) -> str:
    return ", ".join(sorted({str(tensor.dtype).removeprefix("torch.") for tensor in tensors}))


def _values(gradient: Tensor) -> Tensor:
    """The values of a gradient that may be sparse."""
    return gradient._values() if gradient.layout is torch.sparse_coo else gradient

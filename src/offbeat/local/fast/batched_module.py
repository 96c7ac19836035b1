"""One module for many clients: its parameters are stacked, and each client has a slot of its own.

The samples of all clients go through the module as one batch. What has no parameters (activations, pooling,
reshaping) runs as it is, once for all. A layer that has some knows whose samples are whose: a linear layer
multiplies each client's by the client's own weights, in one batched multiplication; any other layer takes
one client after the other on a CPU, where that is faster. On a GPU, convolutions are one batched
multiplication too, and what is left takes all clients at once by `torch.func.vmap`.

The gradient of a linear layer's weights is the product of two small matrices. It is never formed: the product
is added to what it changes as it is computed, which spares writing and reading as much as the weights are.

On a CPU, with one thread, a client's numbers do not depend on who is beside it. A matrix multiplication
rounds differently at another address, so every slot begins at a multiple of 64 bytes. For the same reason a
client has a multiple of 16 samples: to those of its batch come some of weight zero. An activation takes 32
numbers at a time, two AVX-512 registers, and may round otherwise what is left over: where 16 samples do not
always fill them, a client has a multiple of 32. A client alone whose layer has one input or one output is
multiplied as two would be. A GPU has no such bits to keep, and its clients have the samples of their batch.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.func import functional_call, vmap
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from offbeat.local.fast.batched_dropout import DROPOUT, ClientDropout
from offbeat.local.fast.batched_norm import BATCH_NORM, ClientBatchNorm

ALIGNED = 16  # float32 numbers in 64 bytes


def aligned(number: int, to: int = ALIGNED) -> int:
    """The next multiple of 16, or of another number."""
    return -(-number // to) * to


class _PartialRegisters(TorchFunctionMode):
    """Looks whether any tensor that comes up has more numbers than fill pairs of registers: `seen`."""

    seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call the function, and look at its result."""
        out = func(*args, **(kwargs or {}))
        self.seen |= isinstance(out, Tensor) and out.numel() % (2 * ALIGNED) != 0
        return out


def padded_samples(module: nn.Module, x: Tensor, batch: int) -> int:
    """Number of samples of a client for a batch of `batch`; `x` are 16 of the module's samples."""
    with _PartialRegisters() as registers, torch.no_grad():
        module(x)
    return aligned(batch, 2 * ALIGNED if registers.seen else ALIGNED)


@dataclass(eq=False)
class ParameterSlots:
    """One parameter of all clients: `values` [clients, *shape], also as `flat`; `trains` unless frozen.

    `active` is the part of `values` that belongs to the clients at work.
    """

    values: Tensor
    flat: Tensor
    trains: bool
    active: Tensor

    @classmethod
    def like(cls, parameter: Tensor, clients: int) -> "ParameterSlots":
        """Uninitialised slots for `clients` clients."""
        size = parameter.numel()
        # A view of a single slot would forget the distance between slots.
        slots = max(clients, 2)
        flat = torch.empty(slots, aligned(size), device=parameter.device)[:, :size]
        values = flat.view(slots, *parameter.shape)[:clients]
        return cls(values, flat[:clients], parameter.requires_grad, values)


SlotsByParameter = Mapping[Tensor, ParameterSlots]


def product(left: Tensor, right: Tensor, added: Tensor | None = None) -> Tensor:
    """Matrix product of each client: `left` [clients, m, k] times `right` [clients, k, n].

    `added` is broadcast to [clients, m, n]; None means nothing is added.
    """
    if _alone_with_vector(left, right):
        return product(left.expand(2, -1, -1), right.expand(2, -1, -1), added)[:1]
    return torch.bmm(left, right) if added is None else torch.baddbmm(added, left, right)


def add_product(target: Tensor, left: Tensor, right: Tensor, sign: float) -> None:
    """target := target + sign · left · right, for each client; `target` is [clients, m, n]."""
    if _alone_with_vector(left, right):
        two = target.new_empty_strided((2, *target.shape[1:]), target.stride()).copy_(target)
        add_product(two, left.expand(2, -1, -1), right.expand(2, -1, -1), sign)
        target.copy_(two[:1])
    else:
        target.baddbmm_(left, right, alpha=sign)


def _alone_with_vector(left: Tensor, right: Tensor) -> bool:
    """Whether one client's product must be computed as a batch of two for the bits it has in a group.

    PyTorch has MKL's SGEMM multiply a batch of one, and SGEMM_BATCH a larger one. They round alike unless a
    dimension is 1: there SGEMM takes kernels for vectors.
    """
    return len(left) == 1 and 1 in (*left.shape[1:], right.shape[2])


@dataclass(frozen=True)
class Gradient:
    """A layer's contribution to its slots' gradient: a tensor, or the product of two."""

    left: Tensor
    right: Tensor | None = None

    def add_to(self, target: Tensor, sign: float) -> None:
        """target := target + sign · gradient."""
        if self.right is None:
            target.add_(self.left, alpha=sign)
        else:
            add_product(target, self.left, self.right, sign)


_NO_WEIGHTS = torch.zeros(0, 0)

GradientHook = Callable[[Tensor], object]
"""Called with the gradient that backward leaves in a leaf."""


class BatchedModule:
    """A module's twin for up to `clients` clients, of which the first `active` are at work.

    `slots` are those of the parameters that are trained, in the module's order; the others stay as they are.
    `samples` is how many of each client's samples are of its batch, and `generators` are what its layers draw
    from. With `autocast` autograd differentiates every layer, as it knows the types of all values.
    """

    def __init__(self, module: nn.Module, clients: int, *, autocast: bool = False) -> None:
        self.clients = self.active = clients
        self.samples: Sequence[int] = ()
        self.weights = _NO_WEIGHTS
        self.generators: Sequence[torch.Generator] = ()
        self._autocast = autocast
        module = deepcopy(module)
        slots: SlotsByParameter = {p: ParameterSlots.like(p, clients) for p in module.parameters()}
        self._all_slots = list(slots.values())
        self.slots = [own for own in self._all_slots if own.trains]
        for parameter, own in slots.items():
            if not own.trains:
                own.values.copy_(parameter.detach().expand_as(own.values))
        self._running = {buffer: ParameterSlots.like(buffer, clients) for buffer in running_buffers(module)}
        flats = [own.flat for own in (*self.slots, *self._running.values())]
        self._client_views = list(zip(*(flat.unbind() for flat in flats), strict=True))
        self._device = next(module.parameters()).device
        self._leaves: list[tuple[Tensor, GradientHook]] = []
        # The key is the node that is all of a leaf's graph.
        self._bypassed: dict[object, GradientHook] = {}
        self._gradients: dict[ParameterSlots, list[Gradient]] = {}
        self._module = self._replace_layers(module, slots, {}).train()

    def __call__(self, x: Tensor) -> Tensor:
        """The outputs [active · samples, ...] of the first `active` clients' samples, client by client."""
        output: Tensor = self._module(x)
        return output

    @property
    def draws(self) -> bool:
        """Whether any layer draws at random."""
        return any(isinstance(layer, ClientDropout) for layer in self._module.modules())

    @property
    def passed_again(self) -> bool:
        """Whether any batch norm layer has been passed more than once so far."""
        return any(isinstance(m, ClientBatchNorm) and m.passes > 1 for m in self._module.modules())

    def activate(self, clients: int, samples: Sequence[int] = (), weights: Tensor = _NO_WEIGHTS) -> None:
        """Have the first clients at work from now on.

        Args:
            clients: Number of clients at work.
            samples: Number of samples in the batch of each.
            weights: Weights of the samples, [clients, samples].
        """
        self.samples, self.weights = samples, weights
        if clients != self.active:
            self.active = clients
            for slots in (*self._all_slots, *self._running.values()):
                slots.active = slots.values[:clients]

    def load(self, models: Sequence[Tensor]) -> None:
        """Give each client its own flat values: parameters, and running statistics."""
        device, sizes = self._device, [flat.numel() for flat in self._client_views[0]]
        there = {model: torch.split(model.to(device), sizes) for model in models}
        own = [flat for client in self._client_views[: len(models)] for flat in client]
        torch._foreach_copy_(own, [part for model in models for part in there[model]])

    def flat(self, client: int) -> Tensor:
        """A copy of a client's flat values."""
        return torch.cat(self._client_views[client])

    def backward(self, output: Tensor, gradient: Tensor) -> None:
        """Do `output.backward(gradient)`; autograd has nothing to do where `output` is the first layer's."""
        hook = self._bypassed.get(output.grad_fn)
        if hook is None:
            output.backward(gradient)  # type: ignore[no-untyped-call]
        else:
            hook(gradient)

    def gradients(self) -> dict[ParameterSlots, list[Gradient]]:
        """The gradients that backward has left for each slot; they are removed here."""
        for leaf, hook in self._leaves:
            if leaf.grad is not None:
                hook(leaf.grad)
        found, self._gradients, self._leaves, self._bypassed = self._gradients, {}, [], {}
        return found

    def add_gradient(self, slots: ParameterSlots, gradient: Gradient) -> None:
        """Add a part of a slot's gradient."""
        self._gradients.setdefault(slots, []).append(gradient)

    def leaf(self, slots: ParameterSlots) -> Tensor:
        """The active clients' values, for a layer whose gradient autograd forms."""
        leaf = slots.active.detach().requires_grad_(slots.trains)
        self.watch(leaf, lambda gradient: self.add_gradient(slots, Gradient(gradient)))
        return leaf

    def watch(self, leaf: Tensor, hook: GradientHook) -> None:
        """Give `hook` the gradient that backward leaves in a leaf, if it does."""
        self._leaves.append((leaf, hook))

    def bypass_autograd(self, output: Tensor, hook: GradientHook) -> None:
        """Know that `output` is a leaf in another shape: its gradient goes to `hook`."""
        if output.grad_fn is not None:
            # Where the module wants no gradient, the output has no node.
            self._bypassed[output.grad_fn] = hook

    def _replace_layers(
        self, module: nn.Module, slots: SlotsByParameter, made: dict[nn.Module, nn.Module]
    ) -> nn.Module:
        """The module with the layers that have parameters of their own replaced, and all below them."""
        if module not in made:
            if isinstance(module, DROPOUT) and module.p > 0:
                made[module] = ClientDropout(module, self)
            elif isinstance(module, BATCH_NORM):
                affine = [partial(self.leaf, slots[p]) for p in module.parameters(recurse=False)]
                buffers = [module.running_mean, module.running_var] if module.track_running_stats else []
                running = [partial(_active, self._running[b]) for b in buffers if b is not None]
                made[module] = ClientBatchNorm(module, self, affine, running)
            elif type(module) is nn.Linear and not self._autocast:
                made[module] = _Linear(module, self, slots)
            elif _Convolution.takes(module):
                made[module] = _Convolution(module, self, slots)
            elif next(module.parameters(recurse=False), None) is not None:
                made[module] = _PerClient(module, self, slots)
            else:
                made[module] = module
                # `named_children` would give a child that occurs twice under one of its names only.
                for name, child in list(module._modules.items()):
                    if child is not None:
                        setattr(module, name, self._replace_layers(child, slots, made))
        return made[module]


def running_buffers(module: nn.Module) -> list[Tensor]:
    """The floating buffers of a module, in the order in which a model has them."""
    return [buffer for buffer in module.buffers() if buffer.is_floating_point()]


def _active(slots: ParameterSlots) -> Tensor:
    return slots.active


class _PerClient(nn.Module):
    """A layer of any kind: each client's samples through it with the client's own parameters."""

    def __init__(self, layer: nn.Module, stacked: BatchedModule, slots: SlotsByParameter) -> None:
        super().__init__()
        self._layer, self._stacked = layer, stacked
        of_pytorch = type(layer).__module__.startswith("torch.nn.modules")
        self._attends = isinstance(layer, nn.MultiheadAttention) or not of_pytorch
        self._slots = {
            f"{path}.{name}".removeprefix("."): slots[parameter]
            for path, module in layer.named_modules()
            for name, parameter in module.named_parameters(recurse=False)
        }

    def forward(self, *args: Any, **named: Any) -> Any:
        """[active · samples, ...] to [active · samples, ...].

        Also several tensors, by position or by name: those as long as the first are the clients' samples, and
        any other is the same for all. Of several outputs each is as long as that again.
        """
        values = {name: self._stacked.leaf(slots) for name, slots in self._slots.items()}
        forward = self.one_by_one if args[0].device.type == "cpu" else self.vectorized
        if len(args) == 1 and not named:
            return forward(values, self._divided(args[0]))
        call = _Call(self._one, args, named)
        return call.output(forward(values, *map(self._divided, call.samples), one=call))

    def __getattr__(self, name: str) -> Any:
        """What a module around it reads of the layer; not its tensors and layers, which no client has."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            layer = self.__dict__["_modules"].get("_layer")
            found = getattr(layer, name) if layer is not None else None
            if found is None or isinstance(found, Tensor | nn.Module):
                raise
            return found

    def _divided(self, x: Tensor) -> Tensor:
        """[active · samples, ...] as [active, samples, ...]."""
        return x.view(self._stacked.active, -1, *x.shape[1:])

    def one_by_one(self, values: Mapping[str, Tensor], *x: Tensor, one: "_OneClient | None" = None) -> Any:
        """One client after the other: each [active, samples, ...] to [active · samples, ...]."""
        each = zip(*(v.unbind() for v in values.values()), strict=True)
        own = (dict(zip(values, tensors, strict=True)) for tensors in each)
        parts = zip(*(samples.unbind() for samples in x), strict=True)
        found = [(one or self._one)(v, *samples) for v, samples in zip(own, parts, strict=True)]
        return torch.cat(found) if one is None else tuple(map(torch.cat, zip(*found, strict=True)))

    def vectorized(self, values: Mapping[str, Tensor], *x: Tensor, one: "_OneClient | None" = None) -> Any:
        """The same for all clients together."""
        # On a GPU, the fused kernels of attention refuse tensors as vmap lays them out.
        with sdpa_kernel(SDPBackend.MATH) if self._attends else nullcontext():
            found = vmap(one or self._one, randomness="error")(dict(values), *x)
        return found.flatten(0, 1) if one is None else tuple(part.flatten(0, 1) for part in found)

    def _one(self, values: dict[str, Tensor], *args: Any, **named: Any) -> Any:
        return functional_call(self._layer, values, args, named, tie_weights=False)


_OneClient = Callable[..., Any]
"""One client's output, from its values and its samples."""


UNFOLDED = 1 << 30
"""Bytes of a convolution's windows, of all clients together, up to which they are laid out in memory."""


class _Convolution(_PerClient):
    """A convolution: on a GPU the windows of all clients, in one batched multiplication.

    `torch.func.vmap` makes it a convolution with a group for each client, which multiplies small matrices. A
    row here is a window, and the rows of one client are multiplied together; the result is in channels_last.
    """

    @staticmethod
    def takes(layer: nn.Module) -> bool:
        """Whether a layer is a convolution of this kind."""
        plain = type(layer) is nn.Conv2d and layer.groups == 1 and layer.dilation == (1, 1)
        return plain and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)

    def forward(self, x: Tensor) -> Any:
        """[active · samples, channels, ...] to [active · samples, outputs, ...]."""
        if x.device.type == "cpu" or x.ndim != 4:
            return super().forward(x)
        windows = self.windows(x)
        if windows.numel() * windows.element_size() > UNFOLDED:
            return super().forward(x)
        return self.multiply(windows)

    def windows(self, x: Tensor) -> Tensor:
        """What the kernel meets at each place: a view [samples, rows, columns, channels, *kernel]."""
        layer: Any = self._layer
        (height, width), (down, right), (rows, columns) = layer.padding, layer.stride, layer.kernel_size
        padded = functional.pad(x.permute(0, 2, 3, 1), (0, 0, width, width, height, height))
        return padded.unfold(1, rows, down).unfold(2, columns, right)

    def multiply(self, windows: Tensor) -> Tensor:
        """Each client's windows times its own weights."""
        values = {name: self._stacked.leaf(slots) for name, slots in self._slots.items()}
        weight = values["weight"].flatten(2)
        rows = windows.reshape(len(weight), -1, weight.shape[2])
        if "bias" in values:
            y = torch.baddbmm(values["bias"].unsqueeze(1), rows, weight.transpose(1, 2))
        else:
            y = torch.bmm(rows, weight.transpose(1, 2))
        return y.view(*windows.shape[:3], -1).permute(0, 3, 1, 2)


class _Call:
    """A layer's call with several arguments: one client's, from the parts that differ between clients.

    Attributes:
        samples: The tensors that are divided among the clients, each once.
    """

    def __init__(self, layer: _OneClient, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._layer = layer
        self._flat, self._form = tree_flatten((args, named))
        size = len(args[0])
        divided = [t for t in self._flat if isinstance(t, Tensor) and t.ndim and len(t) == size]
        self.samples = list({id(t): t for t in divided}.values())
        self._outputs: list[Any] = []
        self._output_form: Any = None

    def __call__(self, values: dict[str, Tensor], *samples: Tensor) -> tuple[Tensor, ...]:
        """The tensors of one client's output."""
        own = {id(t): part for t, part in zip(self.samples, samples, strict=True)}
        args, named = tree_unflatten([own.get(id(t), t) for t in self._flat], self._form)
        self._outputs, self._output_form = tree_flatten(self._layer(values, *args, **named))
        return tuple(part for part in self._outputs if isinstance(part, Tensor))

    def output(self, tensors: Sequence[Tensor]) -> Any:
        """The output of all clients, in the form of one client's."""
        found = iter(tensors)
        filled = [next(found) if isinstance(part, Tensor) else part for part in self._outputs]
        return tree_unflatten(filled, self._output_form)


class _Linear(nn.Module):
    """A linear layer: all clients in one batched multiplication."""

    def __init__(self, layer: nn.Linear, stacked: BatchedModule, slots: SlotsByParameter) -> None:
        super().__init__()
        self._stacked = stacked
        self._weight = slots[layer.weight]
        self._bias = slots[layer.bias] if layer.bias is not None else None

    def forward(self, x: Tensor) -> Tensor:
        """[active · samples, ..., inputs] to [active · samples, ..., outputs]."""
        rows = x.contiguous().view(self._stacked.active, -1, x.shape[-1])
        if x.requires_grad:
            y: Tensor = _Multiply.apply(rows, self)  # type: ignore[no-untyped-call]
            return _flat(y, x)
        # Data: autograd begins behind the layer, which spares what a function of ours costs there.
        y = self.multiply(rows).requires_grad_()
        output, hook = _flat(y, x), partial(self.differentiate, rows, back=False)
        self._stacked.watch(y, hook)
        self._stacked.bypass_autograd(output, hook)
        return output

    def multiply(self, x: Tensor) -> Tensor:
        """y = x Wᵀ + b: [active, rows, inputs] to [active, rows, outputs], in either order in memory."""
        # With few outputs, (W xᵀ)ᵀ is the faster way.
        weight, few = self._weight.active, self._few(x)
        left, right = (weight, x.transpose(1, 2)) if few else (x, weight.transpose(1, 2))
        bias = None if self._bias is None else self._bias.active.unsqueeze(2 if few else 1)
        y = product(left, right, bias)
        return y.transpose(1, 2) if few else y

    def _few(self, x: Tensor) -> bool:
        """Whether there are fewer outputs than samples in x [active, samples, inputs]."""
        return self._weight.values.shape[1] < x.shape[1]

    def differentiate(self, x: Tensor, d: Tensor, *, back: bool) -> Tensor | None:
        """Leave the gradients of W and b, given that of y; returns that of x if it is wanted."""
        # With few outputs, dᵀ x is faster where dᵀ is contiguous.
        few = self._few(x)
        d = d.reshape(*x.shape[:2], -1)
        t = d.transpose(1, 2).contiguous() if few else d.contiguous().transpose(1, 2)
        d = t.transpose(1, 2)
        if self._weight.trains:
            self._stacked.add_gradient(self._weight, Gradient(t, x))
        if self._bias is not None and self._bias.trains:
            self._stacked.add_gradient(self._bias, Gradient(t.sum(2)))
        return product(d, self._weight.active) if back else None


class _Multiply(torch.autograd.Function):
    """A linear layer's part in autograd."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: _Linear) -> Tensor:
        """Call `_Linear.multiply`."""
        ctx.x, ctx.layer = x.detach(), layer
        return layer.multiply(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, None]:
        """Call `_Linear.differentiate`."""
        return ctx.layer.differentiate(ctx.x, d, back=True), None


def _flat(y: Tensor, x: Tensor) -> Tensor:
    """A layer's y [active, rows, outputs] in the shape of its x, contiguous, for one client as for many."""
    shape = [*x.shape[:-1], y.shape[2]]
    if not y.is_contiguous():
        return y.contiguous().view(shape)
    # Unlike what `view` gives of a leaf, this may be written to, as activations in place do.
    output: Tensor = torch.ops.aten._unsafe_view.default(y, shape)
    return output

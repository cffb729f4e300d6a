"""Fake inputs for a trace, from the captured graph and the example inputs, and what they share."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import ShapeEnv, guard_or_false
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from gyrator.errors import UnsupportedInput
from gyrator.torch_compat import is_buffer, is_zero, shape_env_of


@dataclass(frozen=True)
class Inputs:
    """Fake inputs of a trace.

    Attributes:
        mode: the mode that the fake tensors belong to.
        values: one per placeholder: fake tensor, symbolic size, or scalar.
        requires_grad: whether autograd tracks the input, per input.
        leaf: whether it is a leaf of the user's autograd graph (it can then not be mutated under autograd).
        static: inputs that are parameters or buffers, whose memory stays the same."""

    mode: FakeTensorMode
    values: tuple[Any, ...]
    requires_grad: tuple[bool, ...]
    leaf: tuple[bool, ...]
    static: tuple[int, ...]


def fake_inputs(gm: GraphModule, example_inputs: Sequence[Any]) -> Inputs:
    """The inputs of `gm` as fake tensors: those that capture made, which know the symbolic sizes, or new ones.

    Raises: UnsupportedInput for subclasses that change operators and for tensors that are not strided."""
    placeholders = gm.graph.find_nodes(op="placeholder")
    captured = [node.meta.get("example_value") for node in placeholders]
    values: list[Any] = []
    modes = (value.fake_mode for value in (*captured, *example_inputs) if isinstance(value, FakeTensor))
    environment = shape_env_of(captured) or ShapeEnv()  # of a graph that takes sizes alone, without a tensor
    mode = next(modes, None) or FakeTensorMode(shape_env=environment, allow_non_fake_inputs=False)
    for known, example in zip(captured, example_inputs, strict=True):
        _check(example)
        if isinstance(example, Tensor):
            # A symbol has a meaning in one mode alone: what another mode made is not mixed in.
            fakes = [fake for fake in (example, known) if isinstance(fake, FakeTensor) and fake.fake_mode is mode]
            if not isinstance(example, FakeTensor) and not (fakes and _lies_as(fakes[0], example)):
                fakes = [mode.from_tensor(example.detach(), static_shapes=True)]
            values.append(fakes[0] if fakes else example)
        else:
            values.append(known if isinstance(known, (torch.SymInt, torch.SymFloat)) else example)
    tracked = tuple(isinstance(example, Tensor) and example.requires_grad for example in example_inputs)
    leaf = tuple(not isinstance(example, Tensor) or example.is_leaf for example in example_inputs)
    held = [isinstance(example, (torch.nn.Parameter, torch.nn.Buffer)) for example in example_inputs]
    static = tuple(at for at, node in enumerate(placeholders) if held[at] or is_buffer(node))
    return Inputs(mode, tuple(values), tracked, leaf, static)


def _lies_as(fake: Tensor, example: Tensor) -> bool:
    """Whether a fake tensor still lies so: `y = x.float(); y.t_()` has transposed the one of `x`, too, in capture."""
    pairs = zip((*fake.shape, *fake.stride()), (*example.shape, *example.stride()), strict=False)
    return fake.ndim == example.ndim and not any(type(one) is int and one != other for one, other in pairs)


def has_subclasses(gm: GraphModule, example_inputs: Sequence[Any]) -> bool:
    """Whether the captured graph gets or makes tensors of subclasses that torch can take apart into plain ones."""
    values = (*example_inputs, *(node.meta.get("example_value") for node in gm.graph.nodes))
    return any(isinstance(value, Tensor) and is_traceable_wrapper_subclass(value) for value in values)


def overlapping(values: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether a tensor at one of the positions `written` shares memory with another of the tensors."""
    storages = {at: value.untyped_storage()._cdata for at, value in enumerate(values) if isinstance(value, Tensor)}
    if len({*storages.values()}) == len(storages):
        return False
    shared: dict[int, dict[int, Tensor]] = {}
    for at, storage in storages.items():
        shared.setdefault(storage, {})[at] = values[at]
    return any(len(on) > 1 and _overlap(on, on.keys() & written) for on in shared.values())


def negated(values: Sequence[Any], written: Sequence[int]) -> bool:
    """Whether a tensor's memory holds another value: one to be negated, to be conjugated if `written`, or none."""
    given = [(k, t) for k, t in enumerate(values) if isinstance(t, Tensor)]
    return any(t.is_neg() or is_zero(t) or (t.is_conj() and k in written) for k, t in given)


def reaches_outside(view: Tensor, owner: Tensor) -> bool:
    """Whether a view of `owner` leaves the memory that `owner` spans; what symbolic sizes say becomes a guard."""
    (start, end), (first, last) = _span(view), _span(owner)
    return not guard_or_false(start == end) and (guard_or_false(start < first) or guard_or_false(last < end))


def _overlap(tensors: Mapping[int, Tensor], written: Set[int]) -> bool:
    """The same of several on one storage, which may be thousands of gradients. Those of symbolic sizes are taken to."""
    places = (n for x in tensors.values() for n in (*x.shape, *x.stride(), x.storage_offset()))
    if any(type(number) is not int for number in places):
        return bool(written)
    before: list[tuple[int, int]] = []
    for start, end, at in sorted((*_span(x), at) for at, x in tensors.items()):
        before = [(last, other) for last, other in before if last > start]
        if any(not written.isdisjoint((at, k)) and _meet(tensors[k], tensors[at]) for _, k in before):
            return True
        before.append((end, at))
    return False


def _meet(one: Tensor, other: Tensor) -> bool:
    """Whether tensors whose spans meet may have memory in common: not if they interleave, as `x[:, :2]`, `x[:, 2:]`."""
    distance = _span(other)[0] - _span(one)[0]
    dims = sorted(zip(one.stride(), one.shape, other.shape, strict=False), reverse=True)
    alike = one.stride() == other.stride() and one.dtype == other.dtype
    return not alike or _reached(distance // one.element_size(), [dim for dim in dims if dim[0]])


def _reached(distance: int, dims: Sequence[tuple[int, int, int]]) -> bool:
    """Whether `distance` is a sum of k·step, -m < k < n, over (step, n, m) in `dims`, the largest step first."""
    if not dims:
        return distance == 0
    (step, n, m), *rest = dims
    low = -((sum(s * (size - 1) for s, size, _ in rest) - distance) // step)
    high = (sum(s * (size - 1) for s, _, size in rest) + distance) // step
    return any(_reached(distance - k * step, rest) for k in range(max(low, 1 - m), min(high, n - 1) + 1))


def _span(value: Tensor) -> tuple[Any, Any]:
    """The first byte of a tensor in its storage, and the first after it."""
    start = value.storage_offset() * value.element_size()
    sides = zip(value.shape, value.stride(), strict=True)
    count = 0 if guard_or_false(value.numel() == 0) else 1 + sum((size - 1) * step for size, step in sides)
    return start, start + count * value.element_size()


def of_subclass(tensor: Tensor) -> UnsupportedInput:
    """The refusal of a tensor subclass where it was not expected, or that cannot be taken apart."""
    hint = 'torch compiles tensor subclasses with torch.compile(backend="inductor" or "aot_eager")'
    return UnsupportedInput(f"a tensor of the subclass {type(tensor).__name__}", hint=hint)


def _check(example: Any) -> None:
    if not isinstance(example, Tensor) or isinstance(example, FakeTensor):
        return
    if type(example).__torch_dispatch__ != Tensor.__torch_dispatch__:
        raise of_subclass(example)
    if example.layout is not torch.strided or example.is_quantized:
        kind = f"a tensor of layout {example.layout}" + ", quantised" * example.is_quantized
        raise UnsupportedInput(kind, for_eager=True)

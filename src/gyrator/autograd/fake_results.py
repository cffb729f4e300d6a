"""Results of operators on fake tensors: as their real kernels return them, and asked of torch once per metadata.

A traced graph promises the strides of its fake tensors, and what the user sees must lie in memory as in eager. For
operators whose fake kernels state other strides, or sizes, than their real ones return, functions here stand in.

A model repeats its layers: most calls are like an earlier one, and what torch's fake mode does for a call,
its own cache included, costs ten times as much as making a tensor of known metadata."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate
from operator import attrgetter, mul
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import is_contiguous_or_false, is_non_overlapping_and_dense_or_false, suggest_memory_format
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import guard_or_false, guard_or_true
from torch.utils._pytree import tree_leaves, tree_map_only

from gyrator import torch_compat
from gyrator.autograd.effects import Effect, behaviour
from gyrator.autograd.symbols import expression, is_told_by_run
from gyrator.errors import UnsupportedInput

aten = torch.ops.aten

_UNKNOWN_SIZES = frozenset({torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output})

_PLAIN_TYPES = frozenset(
    {int, float, bool, complex, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format}
)


class FakeResults:
    """Fake tensors of one mode, made without asking torch where their metadata, sizes that are numbers, is known."""

    def __init__(self, mode: FakeTensorMode) -> None:
        self.mode = mode
        self._known: dict[Any, tuple[Any, list[Any]]] = {}
        self._shared: dict[Any, Tensor] = {}

    def call(self, op: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The results of a call of `op`: new tensors each time, which share memory with an argument where they are
        views. Their metadata is remembered of pure operators and views."""
        effect = behaviour(op).effect if isinstance(op, OpOverload) and op.namespace in ("aten", "prims") else None
        usual = partial(_pointwise, op) if effect is Effect.PURE and torch.Tag.pointwise in op.tags else op
        function: Callable[..., Any] = _STAND_INS.get(op, usual)
        if all(x.constant is not None for x in args if type(x) is FakeTensor):
            function = op  # torch computes with known values
        if op in _PARTS:
            function = partial(_fitting, function, *_PARTS[op])
        function = partial(_apart, function) if effect is Effect.PURE else function
        key = _key((op, args, *kwargs.items())) if effect in (Effect.PURE, Effect.VIEW) else None
        if key is None or not _UNKNOWN_SIZES.isdisjoint(op.tags):
            return function(*args, **kwargs)
        viewed = args[0] if effect is Effect.VIEW else None
        if key in self._known:
            kind, parts = self._known[key]
            made = [self._new(part, viewed) for part in parts]
            return made[0] if kind is FakeTensor else kind(made)
        out = function(*args, **kwargs)
        parts = [_metadata(result) for result in (out if type(out) in (tuple, list) else (out,))]
        if None not in parts and (viewed is not None or all(offset == 0 for *_, offset, _, _ in parts)):
            self._known[key] = type(out), parts
        return out

    def alias(self, tensor: Tensor) -> Tensor:
        """Another tensor on the same memory, of which autograd knows nothing."""
        if (metadata := _metadata(tensor)) is not None:
            return self._new(metadata, tensor)
        with self.mode, torch.no_grad():
            return aten.detach.default(tensor)

    def shared(self, tensor: Tensor) -> Tensor:
        """The one tensor that stands for all with this metadata, whatever value may be known of this one."""
        if (key := metadata_key(tensor)) not in self._shared:
            self._shared[key] = self.alias(tensor)
            self._shared[key].constant = None  # type: ignore[attr-defined]
        return self._shared[key]

    def _new(self, metadata: tuple[Any, ...], viewed: Tensor | None) -> FakeTensor:
        size, strides, dtype, device, offset, *_ = metadata
        with torch_compat.without_dispatch():
            meta = torch.empty_strided(size, strides, dtype=dtype, device="meta")
            if viewed is not None:
                meta.set_(viewed.untyped_storage(), offset, size, strides)
            return FakeTensor(self.mode, meta, device)


def _apart(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The results of a pure operator, in memory of their own: torch states some to be an operand, as of dropout in
    eval, and others, as of `slice_scatter`, to begin where an operand does."""
    out = function(*args, **kwargs)
    return tree_map_only(Tensor, lambda y: torch.empty_like(y) if any(y is x for x in args) else owned(y), out)


def owned(y: Tensor) -> Tensor:
    """A tensor like one that begins within memory, at the beginning of its own."""
    if y.layout is not torch.strided or (type(y.storage_offset()) is int and y.storage_offset() == 0):
        return y
    return y.new_empty_strided(y.shape, y.stride())


def _key(value: Any) -> Any:
    """A value as part of a key; None where a call with it is not to be remembered."""
    kind = type(value)
    if kind in _PLAIN_TYPES or kind is OpOverload:
        return kind, value
    if kind in (tuple, list, torch.Size):
        parts = [_key(item) for item in value]
        return None if None in parts else (kind, *parts)
    return _metadata(value)


def _metadata(value: Any) -> tuple[Any, ...] | None:
    """What an operator's fake kernel can see of a tensor; None with symbols, a known value or bits that change it."""
    if type(value) is not FakeTensor or value.constant is not None or value.layout is not torch.strided:
        return None
    known = all(type(number) is int for number in (*value.shape, *value.stride(), value.storage_offset()))
    return metadata_key(value) if known and not (value.is_conj() or value.is_neg()) else None


def metadata_key(value: Tensor) -> tuple[Any, ...]:
    """What distinguishes the metadata of two strided tensors, as a hashable value."""
    if value.layout is not torch.strided:
        hint = "take dense gradients (sparse=False), or run this part with torch.compiler.disable"
        raise UnsupportedInput(f"a result of layout {value.layout}", hint=hint, for_eager=True)
    size, strides = tuple(map(expression, value.shape)), tuple(map(expression, value.stride()))
    return size, strides, value.dtype, value.device, expression(value.storage_offset()), value.is_conj(), value.is_neg()


def _pointwise(op: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """A dimension that an operand lacks has stride 0 in eager's kernels; fake ones state another and count it. Operands
    of one shape that all lie in rows have a result in rows, also where channels could be said to lie last. Fake sums
    with a factor `alpha`, which changes neither type nor layout, lie otherwise than sums."""
    rank = max([x.ndim for x in args if isinstance(x, Tensor)], default=0)
    given = zip(args, [x.ndim and rank - x.ndim if isinstance(x, Tensor) else 0 for x in args], strict=True)
    full = [x.new_empty_strided((1,) * n + x.shape, (0,) * n + x.stride()) if n else x for x, n in given]
    out = op(*full, **{key: arg for key, arg in kwargs.items() if key != "alpha"})
    tensors = [x for x in args if isinstance(x, Tensor)]
    number = op._overloadname in ("Tensor", "Scalar") and len(tensors) == 1  # an operand without dimensions
    if number and _metadata(out) and 1 in out.shape:
        (x,) = tensors
        return out.new_empty_strided(out.shape, (x + x.new_empty_strided((1,) * rank, (0,) * rank)).stride())
    if number or op is aten.clone.default or not isinstance(out, Tensor):
        return out
    rows = _metadata(out) and all(_metadata(x) and x.shape == out.shape and x.is_contiguous() for x in tensors)
    return torch.empty_like(out, memory_format=torch.contiguous_format) if rows else out


def _like_a_sum(op: OpOverload, x: Any, y: Any, *args: Any, **kwargs: Any) -> Tensor:
    """Kernels lay the results of all functions of two operands in memory alike; fake ones of some do not."""
    return torch.empty_like(_pointwise(aten.add.Tensor, x, y), dtype=op(x, y, *args, **kwargs).dtype)


def _dense(op: OpOverload, layout: Callable[[Tensor], torch.memory_format], *args: Any, **kwargs: Any) -> Any:
    """The CPU kernel writes results with as many dimensions as its argument in the `layout` of that, others in rows.
    Statistics of 16 bits are float32 where parameters are; fake ones have the type of the argument."""
    out, (x, *more) = op(*args, **kwargs), [arg for arg in args if isinstance(arg, Tensor)]
    layouts, rows = {x.ndim: layout(x)}, torch.contiguous_format
    found = [torch.empty_like(y, memory_format=layouts.get(y.ndim, rows)) for y in tree_leaves(out)]
    if x.dtype.itemsize == 2 and any(y.dtype == torch.float32 for y in more):
        found[1:] = [y.float() for y in found[1:]]
    return out if x.device.type != "cpu" else tuple(found) if isinstance(out, tuple) else found[0]


def _rows_if_possible(x: Tensor) -> torch.memory_format:
    """Where channels may be said to lie last too, as of a single channel, the argument lies in rows."""
    return torch.contiguous_format if is_contiguous_or_false(x) else suggest_memory_format(x)


def _roll(x: Tensor, shifts: Sequence[Any], dims: Sequence[int] = ()) -> Tensor:
    """The CPU kernel concatenates two parts of the tensor for each dimension."""
    if x.device.type != "cpu" or not dims or x.numel() == 0:
        return aten.roll.default(x, shifts, dims)
    known = _key((x, shifts)) is not None
    for shift, dim in zip(shifts, dims, strict=True) if known else ():
        start = -shift % x.shape[dim]
        x = torch.cat([x.narrow(dim, start, x.shape[dim] - start), x.narrow(dim, 0, start)], dim)
    return x if known else torch.empty_like(x, memory_format=suggest_memory_format(x))


def _nearest(op: OpOverload, x: Tensor, size: Sequence[Any], *scales: Any) -> Any:
    """Torch's rule for a batch of none takes a count for a condition, which its check refuses."""
    none = guard_or_false(x.shape[0] == 0)
    return x.new_empty((*x.shape[:2], *size)) if none else _dense(op, suggest_memory_format, x, size, *scales)


def _view(x: FakeTensor, size: Sequence[Any]) -> Tensor:
    """Kernels give dimensions of one element other strides, by which later ones tell whether channels lie last."""
    if _key((x, size)) is None:
        return aten.view.default(x, size)
    with torch_compat.without_dispatch():
        return FakeTensor(x.fake_mode, x.view(size), x.device)


def is_empty(x: Tensor) -> bool:
    """Whether a tensor is known to have no elements."""
    return any(type(n) is int and n == 0 for n in x.shape)


def of_a_mean(op: Callable[..., Any], grad: Tensor, x: Tensor, *args: Any) -> Tensor:
    """Torch divides by the number of elements, even by none."""
    return torch.empty_like(x) if is_empty(x) else op(grad, x, *args)


def counted_from_0(op: Callable[..., Any], x: Tensor, p: float = 2, dims: Any = None, *args: Any, **of: Any) -> Tensor:
    """A norm by dimensions that torch 2.11 would keep where they are counted from the end and have one element."""
    return op(x, p, dims and [dim % max(x.ndim, 1) for dim in dims], *args, **of)


def _fitting(function: Callable[..., Any], part: Callable[..., Any], given: int, *args: Any, **kwargs: Any) -> Any:
    """Fake kernels take argument number `given` of any shape, and code compiled for it reads what is not there: it must
    have the shape of `part` of the arguments, if that is known: where only a run tells the place, its size is new."""
    told = any(map(is_told_by_run, tree_leaves((args, kwargs))))
    whole, ours = args[given].shape if told else part(*args, **kwargs).shape, args[given].shape
    if not same_sizes(whole, ours):
        raise RuntimeError(f"an operand of shape {tuple(whole)} is needed, not {tuple(ours)}")
    return function(*args, **kwargs)


def same_sizes(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes agree, if their sizes do that are only known when the program runs."""
    return len(one) == len(other) and all(guard_or_true(a == b) for a, b in zip(one, other, strict=True))


def _indexed(x: Tensor, indices: Sequence[Tensor | None], values: Tensor, *_: Any) -> Tensor:
    """What `values` replace, but one element where they have one; how much a mask chooses is not known."""
    masks = any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in indices)
    whole = values if masks else aten.index.Tensor(x, indices)
    sizes = zip(whole.shape[-values.ndim :], values.shape, strict=False)
    return whole.new_empty([b if guard_or_false(b == 1) else a for a, b in sizes])


def _slice(x: FakeTensor, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Tensor:
    """torch 2.11 may call a size by a new name, which nothing defines, where a run tells what it follows from."""
    size, sizes, strides = x.shape[dim], list(x.shape), list(x.stride())
    result: Tensor = aten.slice.Tensor(x, dim, start, end, step)
    if not any(map(is_told_by_run, (start, end, size))) or not torch_compat.fresh_symbols(x.fake_mode, result):
        return result
    given = 0 if start is None else start, size if end is None else end  # those that a run tells count from the start
    counted = [at if is_told_by_run(at) or at >= 0 else torch.sym_max(at + size, 0) for at in given]
    first, last = (torch.sym_min(at, size) for at in counted)
    sizes[dim], strides[dim] = (torch.sym_max(last - first, 0) + step - 1) // step, strides[dim] * step
    return x.as_strided(sizes, strides, x.storage_offset() + first * x.stride(dim))


def _unique(*args: Any, **kwargs: Any) -> Any:
    """Sizes are known from the values alone, though torch 2.11 states one element."""
    raise DynamicOutputShapeException(aten._unique.default)


def _unique_of(op: OpOverload, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
    """Places and counts are integers; torch 2.11 states them in the type of ``x``."""
    values, *numbers = op(x, *args, **kwargs)
    return values, *[n.new_empty(n.shape, dtype=torch.int64) for n in numbers]


def tangent_strides(result: Tensor) -> tuple[Any, ...]:
    """The strides a result's gradient is expected with: its own where dense, as autograd makes it, else contiguous; so
    too for symbolic sizes and transposed sequences: norms and products, which mostly come next, give such gradients."""
    static = all(type(n) is int for n in (*result.shape, *result.stride()))
    transposed = result.ndim == 3 and result.stride(1) == 1
    own = static and not transposed and is_non_overlapping_and_dense_or_false(result)
    return result.stride() if own else contiguous_strides(result.shape)


def contiguous_strides(shape: Sequence[Any]) -> tuple[Any, ...]:
    """Row-major strides; a dimension of size 0 counts as 1, as in torch."""
    counts = [max(size, 1) if isinstance(size, int) else size for size in reversed(shape[1:])]
    return tuple(reversed([*accumulate(counts, mul, initial=1)][: len(shape)]))


def overloads(names: str) -> tuple[OpOverload, ...]:
    """ATen's operators of these names, the default overload where none is named."""
    return tuple([attrgetter(name if "." in name else f"{name}.default")(aten) for name in names.split()])


OF_MEANS = overloads("huber_loss_backward mse_loss_backward smooth_l1_loss_backward")
_ROWS = overloads(
    "log_sigmoid_forward nll_loss2d_forward pow.Scalar native_layer_norm isin.Tensor_Tensor isin.Tensor_Scalar"
)
_BATCH_NORMS = overloads(
    "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit.no_stats "
    "_native_batch_norm_legit_no_training _native_batch_norm_legit_functional"
)
WITH_STATISTICS = (*_BATCH_NORMS, *overloads("native_group_norm native_layer_norm"))
_NEAREST = overloads(" ".join([f"upsample_nearest{n}d _upsample_nearest_exact{n}d" for n in (1, 2, 3)]))
_CHANNELS_LAST = overloads(
    "max_unpool2d reflection_pad3d replication_pad3d upsample_bilinear2d upsample_bicubic2d "
    "channel_shuffle native_group_norm"
)
_LIKE_SUMS = overloads(
    "copysign.Tensor div.Tensor_mode floor_divide heaviside logaddexp logaddexp2 special_xlog1py xlogy.Tensor "
    "logical_and logical_or logical_xor lcm gelu_backward logit_backward silu_backward tanh_backward"
)
_PARTS: Mapping[OpOverload, tuple[Callable[..., Any], int]] = {
    aten.select_scatter.default: (lambda x, _, *place, **named: aten.select.int(x, *place, **named), 1),
    aten.slice_scatter.default: (lambda x, _, *place, **named: _slice(x, *place, **named), 1),
    aten.diagonal_scatter.default: (lambda x, _, *place, **named: aten.diagonal.default(x, *place, **named), 1),
    **dict.fromkeys(overloads("index_add index_reduce"), (lambda x, dim, at, *_, **__: x.index_select(dim, at), 3)),
    **dict.fromkeys((aten.index_put.default, aten._unsafe_index_put.default), (_indexed, 2)),
    aten.nll_loss2d_forward.default: (lambda x, *_: x.sum(1), 1),
}

_STAND_INS: Mapping[OpOverload, Callable[..., Any]] = {
    **{op: partial(_dense, op, lambda x: torch.contiguous_format) for op in _ROWS},
    # a filled clone lies in memory as a clone does
    **dict.fromkeys((aten.index_fill.int_Scalar, aten.index_fill.int_Tensor), lambda x, *_, **__: torch.clone(x)),
    aten.as_strided_scatter.default: lambda x, *_, **__: x.new_empty_strided(x.shape, x.stride()),
    **{op: partial(_dense, op, suggest_memory_format) for op in _CHANNELS_LAST},
    **{op: partial(_nearest, op) for op in _NEAREST},
    **{op: partial(_dense, op, _rows_if_possible) for op in _BATCH_NORMS},
    **{op: partial(_like_a_sum, op) for op in _LIKE_SUMS},
    aten.ldexp.Tensor: lambda x, y: _pointwise(aten.mul.Tensor, x, (2.0**y).contiguous()).to(aten.ldexp.Tensor(x, y)),
    aten.angle.default: lambda x: _pointwise(aten.angle.default, x.contiguous() if x.is_complex() else x),
    **{op: partial(of_a_mean, op) for op in OF_MEANS},
    # fake kernels promote where real ones have the type of the input
    **{op: lambda x, *of, op=op: op(x, *of).to(x.dtype) for op in overloads("huber_loss soft_margin_loss")},
    aten.soft_margin_loss_backward.default: lambda g, x, *of: aten.soft_margin_loss_backward.default(g, x, *of).to(x),
    aten.pow.Tensor_Scalar: lambda x, n: _pointwise(aten.pow.Tensor_Scalar, x, n).to(torch.result_type(x, n)),
    # of a vector there is one loss, a scalar, which torch states as a vector
    aten.multilabel_margin_loss_forward.default: lambda x, target, reduction: tuple(
        x.new_empty(shape) for shape in (() if reduction else x.shape[:-1], target.shape)
    ),
    aten.linalg_vector_norm.default: partial(counted_from_0, aten.linalg_vector_norm.default),
    aten.roll.default: _roll,
    aten.slice.Tensor: _slice,
    aten.view.default: _view,
    aten._unique.default: _unique,
    **{op: partial(_unique_of, op) for op in overloads("_unique2 unique_dim unique_consecutive")},
}

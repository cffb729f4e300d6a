"""Evaluating indices and expressions on whole grids of iterations at once, with torch.

:func:`grid` gives each axis a tensor that broadcasts: axis ``k`` of ``n`` is ``arange(extent)`` along
dimension ``k``. Every expression then is a tensor that broadcasts to the grid's shape, in the IR's dtype."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import floordiv, mod
from typing import Any

import torch
from torch import Tensor

from gyrator.errors import IndexOutOfRange
from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Load, Masked, Op, Random, Ref, Value
from gyrator.ir.index import Atom, Axis, FloorDiv, Index, Indirect, Max, Min, Mod, Size, evaluate
from gyrator.ir.ops import OPS, REDUCTIONS, identity
from gyrator.ir.philox import integers, philox, rand, randn

IntOrTensor = int | Tensor


class OutOfRange(Exception):
    """A load or store without a mask left its value: the program itself is wrong."""


@dataclass(slots=True)
class Evaluator:
    """Evaluates expressions where the axes, sizes and locals have the given values.

    ``fetch`` gives the tensor of a value, whose last dimensions are the value's; before them it may have one
    dimension per grid dimension (scratch rows), which are then indexed by ``row``. Results are memoised: use
    a new evaluator when a value, axis or local has changed."""

    fetch: Callable[[Value], Tensor]
    sizes: Mapping[Size, int]
    axes: Mapping[Axis, IntOrTensor] = field(default_factory=dict)
    refs: Mapping[str, Tensor] = field(default_factory=dict)
    row: tuple[Tensor, ...] = ()
    _memo: dict[tuple[Expr, Tensor | None], Tensor] = field(default_factory=dict)
    _indices: dict[tuple[Index, Tensor | None], IntOrTensor] = field(default_factory=dict)

    def index(self, index: Index, guard: Tensor | None = None) -> IntOrTensor:
        """The value of ``index``: an int if no axis is a tensor."""
        key = (index, guard)  # tensors are told apart by identity
        if key not in self._indices:
            terms = (math.prod([self._atom(a, guard) for a in monomial], start=c) for monomial, c in index.terms)
            self._indices[key] = sum(terms)
        return self._indices[key]

    def _atom(self, atom: Atom, guard: Tensor | None) -> IntOrTensor:
        match atom:
            case Size():
                return self.sizes[atom]
            case Axis():
                return self.axes[atom]
            case FloorDiv(a, b) | Mod(a, b) | Min(a, b) | Max(a, b):
                return _OF_TWO[type(atom)](self.index(a, guard), self.index(b, guard))
            case Indirect(value, _):
                return self.value(value, guard)
        raise TypeError(f"{type(atom).__name__} is no atom")

    def value(self, expr: Expr, guard: Tensor | None = None) -> Tensor:
        """The value of ``expr`` at every iteration, as a tensor that broadcasts to the grid.

        Where ``guard`` is false the result is unspecified and nothing is read or checked.

        Raises: IndexOutOfRange for a ``Checked`` index; OutOfRange for a load outside its value."""
        key = (expr, guard)
        if key not in self._memo:
            self._memo[key] = self._compute(expr, guard)
        return self._memo[key]

    def _compute(self, expr: Expr, guard: Tensor | None) -> Tensor:
        match expr:
            case Const(value, dtype):
                return torch.tensor(value, dtype=dtype)
            case IndexValue(index):
                return torch.as_tensor(self.index(index, guard), dtype=torch.int64)
            case Load(value, at, mask, other) if mask is not None:
                return self.value(Masked(mask, Load(value, at), Const(other, value.dtype)), guard)
            case Load():
                return self._read(expr, guard)
            case Op("cast", (arg,), dtype):
                return self.value(arg, guard).to(dtype)
            case Op("bitcast", (arg,), dtype):
                return self.value(arg, guard).contiguous().view(dtype)
            case Op(name, args):
                return OPS[name].reference(*[self.value(a, guard) for a in args])
            case Masked(mask, body, other):
                m = self.value(mask, guard)
                return torch.where(m, self.value(body, m if guard is None else m & guard), self.value(other))
            case Checked(arg, size, mask) if mask is not None:
                return self.value(Masked(mask, Checked(arg, size), Const(0, torch.int64)), guard)
            case Checked():
                return self._checked(expr, guard)
            case Random(kind, seed, offset, dtype, args):
                key, place = self.value(seed, guard), self.value(IndexValue(offset), guard)
                if kind == "randint64":
                    return integers(philox(key, place), *(self.value(a, guard) for a in args))
                return (rand if kind == "rand" else randn)(key, place, dtype)
            case Ref(name, _, _):
                return self.refs[name]
        raise TypeError(f"{type(expr).__name__} is no expression")

    def _read(self, load: Load, guard: Tensor | None) -> Tensor:
        tensor = self.fetch(load.value)
        coords = self.coordinates(load.index, load.value, guard)
        if tensor.numel() == 0:  # nothing is read, as `coordinates` saw
            shape = torch.broadcast_shapes(*(c.shape for c in coords), () if guard is None else guard.shape)
            return torch.zeros(shape, dtype=load.dtype)
        coords = (*self.row[: tensor.dim() - len(coords)], *coords)
        return tensor[coords] if coords else tensor

    def coordinates(self, index: tuple[Index, ...], value: Value, guard: Tensor | None = None) -> tuple[Tensor, ...]:
        """Coordinates of ``value``, 0 where ``guard`` is false. Raises: OutOfRange if one lies outside."""
        found = []
        for i, extent in zip(index, value.shape, strict=True):
            at = torch.as_tensor(self.index(i, guard), dtype=torch.int64)
            if guard is not None:
                at = torch.where(guard, at, 0)
            size = self.index(extent)
            if (bad := _first(at, (at < 0) | (at >= size), guard)) is not None:
                raise OutOfRange(f"{value}[{', '.join(map(str, index))}]: {i} is {bad}, extent {size}")
            found.append(at)
        return tuple(found)

    def _checked(self, expr: Checked, guard: Tensor | None) -> Tensor:
        at, size = self.value(expr.arg, guard), self.index(expr.size, guard)
        if (bad := _first(at, (at < -size) | (at >= size), guard)) is not None:
            raise IndexOutOfRange(bad, int(size))
        wrapped = torch.where(at < 0, at + size, at)
        return wrapped if guard is None else torch.where(guard, wrapped, 0)


def _first(values: Tensor, chosen: Tensor, guard: Tensor | None) -> int | None:
    """The first of the chosen values for which ``guard`` holds."""
    chosen = chosen if guard is None else chosen & guard
    return int(values.broadcast_to(chosen.shape)[chosen][0]) if bool(chosen.any()) else None


def _larger(a: IntOrTensor, b: IntOrTensor) -> IntOrTensor:
    both_ints = isinstance(a, int) and isinstance(b, int)
    return max(a, b) if both_ints else torch.maximum(torch.as_tensor(a), torch.as_tensor(b))


_OF_TWO: Mapping[type[Atom], Callable[[IntOrTensor, IntOrTensor], IntOrTensor]] = {
    FloorDiv: floordiv, Mod: mod, Min: lambda a, b: -_larger(-a, -b), Max: _larger,
}  # fmt: skip


def grid(axes: tuple[Axis, ...], sizes: Mapping[Size, int]) -> tuple[tuple[int, ...], Mapping[Axis, IntOrTensor]]:
    """The shape of the iterations over ``axes``, and each axis's values along its own dimension."""
    shape = tuple(evaluate(a.extent, sizes) for a in axes)
    values = [torch.arange(n).reshape(n, *[1] * (len(axes) - k)) for k, n in enumerate(shape, 1)]
    return shape, dict(zip(axes, values, strict=True))


def allocate(value: Value, sizes: Mapping[Size, int]) -> Tensor:
    """An uninitialised tensor with exactly the shape, dtype and strides of ``value``."""
    shape, strides = ([evaluate(n, sizes) for n in part] for part in (value.shape, value.strides))
    return torch.empty_strided(shape, strides, dtype=value.dtype)


def as_reals(numbers: Tensor) -> Tensor:
    """Complex numbers as a program sees them: pairs of reals, in the same memory unless a conjugation is due."""
    return torch.view_as_real(numbers.resolve_conj())


def place(value: Value, data: Tensor, sizes: Mapping[Size, int]) -> Tensor:
    """``data`` broadcast to the shape of ``value`` and laid out by its strides."""
    tensor = allocate(value, sizes)
    return copy_into(tensor, data.broadcast_to(tensor.shape))


def copy_into(target: Tensor, source: Tensor) -> Tensor:
    """``target.copy_(source)``, where elements of the target that share memory are written once."""
    part = unrepeated(target)
    part.copy_(source if part is target else source[tuple(map(slice, part.shape))])
    return target


def copied(x: Tensor, strides: Sequence[Any]) -> Tensor:
    """A copy with these strides."""
    return copy_into(torch.empty_strided(x.shape, strides, dtype=x.dtype, device=x.device), x)


def unrepeated(x: Tensor, dims: int | None = None) -> Tensor:
    """A tensor without its repetitions along the first ``dims`` dimensions, by default all: then it can be written."""
    for dim, step in enumerate(x.stride()[:dims]):
        if type(step) is int and step == 0 and x.shape[dim] > 1:
            x = x.narrow(dim, 0, 1)
    return x


State = tuple[Tensor, ...]
"""The results of a reduction or scan of :data:`gyrator.ir.ops.REDUCTIONS`."""


def start(kind: str, dtype: torch.dtype) -> State:
    """The state of no elements; ``dtype`` is that of an element."""
    first, *others = REDUCTIONS[kind].dtypes(dtype)
    return torch.tensor(identity(kind, dtype), dtype=first), *(torch.zeros((), dtype=other) for other in others)


def reduce_dims(kind: str, args: State, first: int) -> State:
    """Reduce over the dimensions from ``first`` on. All of ``args`` have one shape."""
    shape, dtype = args[0].shape, args[0].dtype
    if 0 in shape[first:]:
        return tuple(s.expand(shape[:first]).clone() for s in start(kind, dtype))
    return _reduce_last(kind, tuple(a.reshape(*shape[:first], math.prod(shape[first:])) for a in args))


def _reduce_last(kind: str, args: State) -> State:
    x = args[0]
    if kind in _PLAIN:
        return (_PLAIN[kind](x),)
    match kind:
        case "argmax" | "argmin":
            best = x.amax(-1) if kind == "argmax" else x.amin(-1)
            return best, torch.where(equal(x, best.unsqueeze(-1)), args[1], torch.iinfo(torch.int64).max).amin(-1)
        case "welford":
            variance, mean = torch.var_mean(x.double(), -1, correction=0)
            count = torch.full_like(mean, x.shape[-1])
            return mean.to(x.dtype), (variance * count).to(x.dtype), count.to(x.dtype)
        case "softmax":
            top = x.amax(-1)
            return top, torch.exp(x - top.unsqueeze(-1)).sum(-1)
    raise ValueError(f"no such reduction: {kind}")


_PLAIN: Mapping[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda x: x.sum(-1, dtype=x.dtype),
    "prod": lambda x: x.prod(-1, dtype=x.dtype),
    "max": lambda x: x.amax(-1),
    "min": lambda x: x.amin(-1),
    "any": lambda x: x.any(-1),
    "all": lambda x: x.all(-1),
    "logaddexp": lambda x: torch.logsumexp(x, -1),
}
"""Reductions of one value to one result."""


def equal(a: Tensor, b: Tensor) -> Tensor:
    """Elementwise equality in which NaN equals itself."""
    return (a == b) | ((a != a) & (b != b))


def scan_dim(kind: str, args: State, dim: int) -> State:
    """Inclusive scan along ``dim``; for ``argmax``/``argmin`` the later of equal elements wins."""
    x = args[0]
    match kind:
        case "sum":
            return (x.cumsum(dim, dtype=x.dtype),)
        case "prod":
            return (x.cumprod(dim, dtype=x.dtype),)
        case "max" | "min" | "argmax" | "argmin":  # NaN stays extreme, and of equal elements the later wins
            best, at = x.cummax(dim) if kind.endswith("max") else x.cummin(dim)
            return best, *(numbers.gather(dim, at) for numbers in args[1:])
        case "logaddexp":
            return (torch.logcumsumexp(x, dim),)
        case "sort" | "sort_descending":
            return tuple(torch.sort(x, dim=dim, stable=True, descending=kind != "sort"))
    raise ValueError(f"{kind} is no scan")


def combine_into(flat: Tensor, index: Tensor, source: Tensor, combine: str) -> None:
    """``flat[index] = source``, or add, mul, max or min into it; repeated indices count every time."""
    if combine in ("set", "add"):
        flat.index_put_((index,), source, accumulate=combine == "add")
    else:
        how = {"mul": "prod", "max": "amax", "min": "amin"}[combine]
        flat.scatter_reduce_(0, index, source, how, include_self=True)

"""What lowerings are made of: tables of them, by operator overload, and the program under construction, the one mutable
object, passed to every lowering explicitly."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from itertools import count
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from gyrator.ir.build import COMPUTED, axes_of, cast, compute_dtype, coords_of
from gyrator.ir.expr import Expr, Load, Value
from gyrator.ir.index import ONE, ZERO, Coords, Index, const, contiguous_strides, dot
from gyrator.ir.program import Extern, Nest, Node, Pointwise, View
from gyrator.ir.symbols import Symbols
from gyrator.lowering.refs import TWO, Operand, TensorRef, element, reals, view_coords, whole
from gyrator.origin import Origin

Lowering = Callable[..., Any]
"""``lowering(builder, meta of the result, *args, **kwargs)``; NotImplemented leaves the op to an extern call."""

Family = Mapping[OpOverload, Lowering]


def rows(lowering: Lowering, names: str, overloads: str = "default") -> Family:
    """``lowering`` for every overload that the ATen operators of these names have."""
    packets = [getattr(torch.ops.aten, name) for name in names.split()]
    return {getattr(p, o): lowering for p in packets for o in overloads.split() if o in p.overloads()}


def named_rows(lowering: Lowering, names: str, overloads: str = "default") -> Family:
    """The same with the operator's own name as the first argument."""
    return {op: row for n in names.split() for op, row in rows(partial(lowering, n), n, overloads).items()}


@dataclass(frozen=True, slots=True)
class Meta:
    """What is known of a result before it is computed. Strides are in elements."""

    shape: tuple[Index, ...]
    dtype: torch.dtype
    strides: tuple[Index, ...]
    device: torch.device

    def with_dtype(self, dtype: torch.dtype) -> "Meta":
        """Another dtype."""
        return replace(self, dtype=dtype)

    def reals(self) -> "Meta":
        """That of the pairs of reals that complex numbers are."""
        shape, strides = (*self.shape, TWO), (*[2 * stride for stride in self.strides], ONE)
        return Meta(shape, self.dtype.to_real(), strides, self.device)

    def with_shape(self, shape: tuple[Index, ...]) -> "Meta":
        """Another shape, contiguous."""
        return Meta(shape, self.dtype, contiguous_strides(shape), self.device)


class Builder:
    """Collects nodes in order, names values after the FX node at hand, and remembers copies already made."""

    def __init__(
        self, symbols: Symbols, draws: int = 0, computed: frozenset[torch.dtype] = COMPUTED, *,
        deterministic: bool = False,
    ) -> None:  # fmt: skip
        """``draws``: the most random tensors drawn; ``computed``: dtypes of nests; ``deterministic``: torch's mode."""
        self.symbols, self.computed, self.deterministic = symbols, computed, deterministic
        self.nodes: list[Node] = []
        self.fallbacks: list[str] = []
        self.regions: dict[str, fx.GraphModule] = {}
        self._names: set[str] = set()
        self._copies: dict[tuple[TensorRef, tuple[Index, ...]], Value] = {}
        self.storage_offsets: dict[Value, Index] = {}  # how many elements into its storage a value begins, if not at 0
        self._draws = draws
        self._drawn = count()
        self._seeds: dict[torch.device, Value] = {}
        self._prefix = "v"
        self._origins: tuple[Origin, ...] = ()

    def begin(self, node: fx.Node, origin: Origin, *, last: bool = False) -> None:
        """What follows is the lowering of ``node``; the ``last`` before calls and outputs, or not."""
        self.last = last
        self._prefix = node.name.lstrip("_") or "v"
        self._origins = (origin,)

    def meta(self, tensor: torch.Tensor) -> Meta:
        """The metadata of a traced tensor."""
        shape, strides = self.symbols.shape(tensor.shape), self.symbols.shape(tensor.stride())
        return Meta(shape, tensor.dtype, strides, tensor.device)

    def value(self, meta: Meta, suffix: str = "") -> Value:
        """A new value, named after the node; contiguous if elements would overlap, pairs of reals if complex."""
        meta = meta.reals() if meta.dtype.is_complex else meta
        strides = meta.strides
        if any(s is ZERO and e is not ONE for s, e in zip(strides, meta.shape, strict=True)):
            strides = contiguous_strides(meta.shape)
        name = self._unique(f"{self._prefix}_{suffix}" if suffix else self._prefix)
        return Value(name, meta.shape, meta.dtype, strides, meta.device)

    def given(self, meta: Meta, name: str, storage_offset: Index = ZERO) -> Value:
        """A value that comes from outside, with its own strides, ``storage_offset`` elements into its storage."""
        if meta.dtype.is_complex:
            return self.given(meta.reals(), name, 2 * storage_offset)
        value = Value(self._unique(name), meta.shape, meta.dtype, meta.strides, meta.device)
        if storage_offset is not ZERO:
            self.storage_offsets[value] = storage_offset
        return value

    def _unique(self, stem: str) -> str:
        name, number = stem, 1
        while name in self._names:
            name = f"{stem}_{number}"
            number += 1
        self._names.add(name)
        return name

    def add(self, node: Node) -> None:
        """Append a node as it is, with the current origin."""
        self.nodes.append(replace(node, origins=self._origins))

    def pointwise(self, out: Meta, body: Callable[[Coords], Expr], suffix: str = "") -> TensorRef:
        """``out[i0, i1, …] = body((i0, i1, …))``, cast to the result's dtype."""
        axes = axes_of("i", out.shape)
        value = self.value(out, suffix)
        self.add(Nest((value,), axes, Pointwise(cast(body(coords_of(axes)), out.dtype))))
        return whole(value)

    def elementwise(
        self, out: Meta, operands: Sequence[Operand], function: Callable[..., Expr], suffix: str = ""
    ) -> TensorRef:
        """``out = function(*operands)`` element by element; operands are broadcast and cast to the compute dtype."""
        dtype = compute_dtype(out.dtype)
        return self.pointwise(out, lambda at: function(*[element(o, at, dtype) for o in operands]), suffix)

    def full(self, out: Meta, value: Operand, suffix: str = "") -> TensorRef:
        """A tensor filled with one number."""
        return self.pointwise(out, lambda at: element(value, at, out.dtype), suffix)

    def copy(self, ref: TensorRef, out: Meta, suffix: str = "") -> TensorRef:
        """A new value with ``ref``'s elements, broadcast and cast to ``out``."""
        if ref.dtype.is_complex:
            return whole(self.copy(reals(ref), out.reals(), suffix).value, out.dtype)
        return self.pointwise(out, ref.load, suffix)

    def narrowed(self, ref: TensorRef, out: Meta, suffix: str = "") -> TensorRef:
        """``ref``, which was computed in a wider dtype, in that of ``out``: itself where it has it."""
        return ref if ref.dtype == out.dtype else self.copy(ref, out, suffix)

    def seed(self, device: torch.device) -> Expr:
        """The seed of the next draw on ``device``, one of those of this program."""
        if (seeds := self._seeds.get(device)) is None:
            shape = (const(self._draws),)
            seeds = self._seeds[device] = Value(self._unique("seeds"), shape, torch.int64, (ONE,), device)
            self.add(Extern((seeds,), "gyrator.seeds.default", (shape[0], device), effects=True))
        return Load(seeds, (const(next(self._drawn)),))

    def materialise(self, ref: TensorRef, strides: tuple[Index, ...]) -> Value:
        """A value whose elements are ``ref``'s: the one it views if it views all of it, else a copy.
        It has these strides where a dimension has more than one element."""
        if ref.is_whole() and same_strides(ref.shape, ref.value.strides, strides):
            return ref.value
        if (ref, strides) not in self._copies:
            self._copies[ref, strides] = self.copy(ref, Meta(ref.shape, ref.dtype, strides, ref.device), "copy").value
        return self._copies[ref, strides]

    def as_view(self, ref: TensorRef, strides: tuple[Index, ...] | None = None) -> View:
        """``ref`` as a strided window, for an extern call or an output; a copy where its index map is not affine.
        With ``strides`` the window has exactly these, by a copy if need be. A dtype that nests do not compute in
        cannot be copied: its own strides then stand.

        Raises: ValueError if a copy is needed and impossible."""
        if ref.dtype.is_complex:
            wanted = None if strides is None else (*[2 * stride for stride in strides], ONE)
            return replace(self.as_view(reals(ref), wanted), dtype=ref.dtype)
        if (window := strided(ref)) is not None:
            given = ref.dtype if ref.dtype != ref.value.dtype else None
            if strides is not None and same_strides(ref.shape, window[0], strides):
                return View(ref.value, ref.shape, strides, window[1], given)
            if strides is None or ref.dtype not in self.computed:
                return View(ref.value, ref.shape, *window, given)
        if ref.dtype not in self.computed:
            raise ValueError(f"a view of {ref.value!r} ({ref.dtype}) with coordinates {ref.coords} is not strided")
        steps = strides or contiguous_strides(ref.shape)
        once = tuple([ONE if step is ZERO else n for n, step in zip(ref.shape, steps, strict=True)])
        value = self.materialise(ref.view(once, view_coords(once)), steps)  # what is repeated is copied once
        return View(value, ref.shape, steps, ZERO)

    def region(self, graph: fx.GraphModule) -> str:
        """The name by which a graph is called that runs op by op."""
        name = f"gyrator.region_{len(self.regions)}.default"
        self.regions[name] = graph
        return name


def same_strides(shape: Sequence[Index], a: Sequence[Index], b: Sequence[Index]) -> bool:
    """Whether two strides lay out ``shape`` equally: those of a dimension with one element do not matter."""
    return ZERO in shape or all(x is y or extent is ONE for extent, x, y in zip(shape, a, b, strict=True))


def strided(ref: TensorRef) -> tuple[Coords, Index] | None:
    """``(strides, offset)`` of ``ref`` in its value's memory; None if it is no strided window."""
    if ref.coords == view_coords(ref.shape) and ref.shape == ref.value.shape:
        return ref.value.strides, ZERO
    return _window(ref.shape, ref.coords, ref.value.strides)


@lru_cache(maxsize=1024)
def _window(shape: Coords, coords: Coords, memory: Coords) -> tuple[Coords, Index] | None:
    position = dot(coords, memory)
    strides: list[Index] = []
    for axis, fallback in zip(axes_of("d", shape), contiguous_strides(shape), strict=True):
        if axis.extent is ONE:
            strides.append(fallback)
            continue
        if (step := position.coefficient(axis)) is None:
            return None
        strides.append(step)
        position = position - step * axis.index()
    return None if position.axes() or position.indirects() else (tuple(strides), position)

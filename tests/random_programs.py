"""Random programs of loop nests with arguments, for comparing two ways to run one program.

Every root, most dtypes, masks, odd, zero and symbolic sizes, strided values, run-time indices, external calls
and updates of inputs occur. A program never has two right answers: each value carries a :class:`Purity`, and
what would amplify rounding (a comparison, a conversion to int) reads pure values only.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random as Rng

import torch
from torch import Tensor

from gyrator.ir.evaluate import place
from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Load, Masked, Op, Random, Value
from gyrator.ir.index import (
    ONE,
    ZERO,
    Axis,
    Index,
    Indirect,
    Size,
    const,
    contiguous_strides,
    evaluate,
    is_less,
    is_nonnegative,
)
from gyrator.ir.program import (
    Extern,
    Input,
    Nest,
    Node,
    Pointwise,
    Program,
    Reduce,
    Root,
    Scan,
    Scatter,
    Update,
    View,
    uses,
)

F32, F64, BF16, F16 = torch.float32, torch.float64, torch.bfloat16, torch.float16
I64, I32, U8, I8, BOOL = torch.int64, torch.int32, torch.uint8, torch.int8, torch.bool


class Purity(enum.IntEnum):
    """How exactly a value is known: EXACT is the same for any correct way to compute it, and finite."""

    EXACT = 0
    SPECIAL = 1  # exact, but perhaps infinite or NaN
    ROUNDED = 2  # depends on the order of a sum or on a library's last bit


@dataclass(frozen=True)
class Case:
    """A program, the sizes of one call, and an argument for each input.

    ``rounded`` names the values whose last bits may differ between correct runs.
    """

    program: Program
    sizes: Mapping[Size, int]
    arguments: tuple[Tensor | int, ...]
    rounded: frozenset[str]


@dataclass(frozen=True)
class Limits:
    """What random programs may contain. ``library``: ops whose last bit depends on who wrote them."""

    nodes: int = 5
    depth: int = 3
    dtypes: tuple[torch.dtype, ...] = (F32, F32, F32, I64, BOOL, BF16, F64, I32, F16, U8, I8)
    roots: tuple[str, ...] = (*["pointwise"] * 3, "reduce", "reduce", "scan", "scatter")
    library: bool = True
    masked: bool = True
    externs: bool = True
    random: bool = True
    symbolic: bool = True
    zero: bool = True
    strided: bool = True
    long: bool = False


EVERYTHING = Limits()
MOST_POINTS = 60_000

_FLOAT_EXACT = ("add", "sub", "mul", "neg", "abs", "maximum", "minimum", "sign", "where")
_UNARY = ("exp", "tanh", "sigmoid", "sqrt", "rsqrt", "log1p", "sin", "erf", "expm1")
_FLOAT_LIBRARY = ("div", "atan2", "hypot", *_UNARY)
_INT = ("add", "sub", "mul", "neg", "maximum", "minimum", "bitwise_and", "bitwise_xor", "floordiv", "where")
_BOOL = ("logical_and", "logical_or", "logical_xor", "logical_not", "compare", "compare")
_COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
_ONE_ARGUMENT = frozenset({"neg", "abs", "sign", "logical_not", *_UNARY})
_REDUCTIONS = ("sum", "sum", "max", "min", "prod", "any", "all", "argmax", "argmin", "welford")
_SCANS = ("sum", "max", "min", "argmax", "argmin", "prod")


def random_case(rng: Rng, limits: Limits = EVERYTHING) -> Case:
    """A random program within ``limits``, with arguments."""
    return _Generator(rng, limits).case()


@dataclass
class _Generator:
    rng: Rng
    limits: Limits
    sizes: dict[Size, int] = field(default_factory=dict)
    values: dict[Value, Purity] = field(default_factory=dict)
    inputs: list[Value] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    draws: int = 0
    names: int = 0

    # -- programs --------------------------------------------------------------------------------------------
    def case(self) -> Case:
        self.choose_sizes()
        for _ in range(self.rng.randint(1, 3)):
            self.inputs.append(self.input())
        for _ in range(self.rng.randint(1, self.limits.nodes)):
            if self.limits.externs and self.rng.random() < 0.08:
                self.extern()
            else:
                self.nest()
        program = self.program()
        rounded = frozenset(v.name for v, p in self.values.items() if p is Purity.ROUNDED)
        return Case(program, dict(self.sizes), self.arguments(), rounded)

    def program(self) -> Program:
        made = [v for n in self.nodes for v in _results(n)]
        read = frozenset[Value]().union(*(uses(n) for n in self.nodes))
        outputs = [v for v in made if v not in read or self.rng.random() < 0.2]
        updates = []
        for target in self.inputs:
            fits = [v for v in made if (v.shape, v.dtype) == (target.shape, target.dtype)]
            if fits and 0 not in [s.value for s in target.strides] and self.rng.random() < 0.3:
                updates.append(Update(target, _whole(self.rng.choice(fits))))
        inputs = [Input(size=s) for s in self.sizes] + [Input(value=v) for v in self.inputs]
        return Program("random", tuple(inputs), tuple(self.nodes), tuple(map(_whole, outputs)), tuple(updates))

    def choose_sizes(self) -> None:
        if self.limits.symbolic:
            self.sizes[Size("n", 1)] = self.rng.choice([1, 2, 3, 5, 9])
            if self.rng.random() < 0.5:
                low = 0 if self.limits.zero else 2
                self.sizes[Size("m", low)] = self.rng.choice([low, 2, 4, 7])

    def arguments(self) -> tuple[Tensor | int, ...]:
        generator = torch.Generator().manual_seed(self.rng.randrange(1 << 30))
        tensors = []
        for v in self.inputs:
            shape = [evaluate(s, self.sizes) for s in v.shape]
            special = self.values[v] is Purity.SPECIAL
            tensors.append(place(v, _data(shape, v.dtype, generator, special=special), self.sizes))
        return (*self.sizes.values(), *tensors)

    # -- values ----------------------------------------------------------------------------------------------
    def extent(self) -> Index:
        options: list[Index] = [const(k) for k in (1, 2, 3, 5, 8, 17)]
        options += [s.index() for s in self.sizes] * 2 + [s.index() * 2 + 1 for s in self.sizes]
        options += [a for v in self.values for a in v.shape]
        if self.limits.zero and self.rng.random() < 0.03:
            return ZERO
        if self.limits.long and self.rng.random() < 0.12:  # several vectors, blocks, threads
            return const(self.rng.choice([33, 70, 300, 5000]))
        return self.rng.choice(options)

    def shape(self) -> tuple[Index, ...]:
        if self.values and self.rng.random() < 0.5:
            return self.rng.choice(list(self.values)).shape
        return self.bounded([self.extent() for _ in range(self.rng.choice([0, 1, 1, 2, 2, 2, 3]))])

    def bounded(self, extents: list[Index], around: int = 1) -> tuple[Index, ...]:
        """Extents, the last ones replaced by 2 where ``around`` times their product would take too long."""
        kept: list[Index] = []
        for extent in extents:
            around *= max(1, evaluate(extent, self.sizes))
            kept.append(extent if around <= MOST_POINTS else const(2))
        return tuple(kept)

    def strides(self, shape: tuple[Index, ...], *, broadcast: bool) -> tuple[Index, ...]:
        if not self.limits.strided or self.rng.random() < 0.6:
            return contiguous_strides(shape)
        order = self.rng.sample(range(len(shape)), len(shape))
        strides = [ONE] * len(shape)
        step = const(self.rng.choice([1, 1, 2]))
        for dim in order:
            strides[dim] = step
            if shape[dim].value != 0:
                step = step * shape[dim] + self.rng.choice([0, 0, 3])
        if broadcast and shape and self.rng.random() < 0.3:
            strides[self.rng.randrange(len(shape))] = ZERO
        return tuple(strides)

    def input(self) -> Value:
        shape, dtype = self.shape(), self.rng.choice(self.limits.dtypes)
        v = Value(f"x{len(self.inputs)}", shape, dtype, self.strides(shape, broadcast=True))
        special = dtype.is_floating_point and self.rng.random() < 0.15
        self.values[v] = Purity.SPECIAL if special else Purity.EXACT
        return v

    def new(
        self, shape: tuple[Index, ...], dtype: torch.dtype, purity: Purity, strides: tuple[Index, ...] | None = None
    ) -> Value:
        strides = self.strides(shape, broadcast=False) if strides is None else strides
        v = Value(f"v{self.names}", shape, dtype, strides)
        self.names += 1
        self.values[v] = purity
        return v

    # -- nodes -----------------------------------------------------------------------------------------------
    def extern(self) -> None:
        source = self.rng.choice(list(self.values))
        purity = self.values[source]
        if source.dtype == BOOL or source.dtype == U8:
            return
        if self.rng.random() < 0.5 and source not in self.inputs:
            new = self.new(source.shape, source.dtype, purity, source.strides)
            self.nodes.append(Extern((), "aten.neg_.default", (_whole(source),), mutates=((source, new),)))
            return
        order = self.rng.sample(range(len(source.shape)), len(source.shape))
        shape = tuple(source.shape[d] for d in order)
        view = View(source, shape, tuple(source.strides[d] for d in order), ZERO)
        out = self.new(shape, source.dtype, purity)
        self.nodes.append(Extern((out,), "aten.neg.default", (view,)))

    def nest(self) -> None:
        root = self.rng.choice(self.limits.roots)
        shape = self.shape()
        axes = tuple(Axis(f"i{k}", e) for k, e in enumerate(shape))
        if root == "reduce":
            self.reduce(axes)
        elif root == "scan" and axes:
            self.scan(axes)
        elif root == "scatter" and self.scatter(axes):
            pass
        else:
            purity = self.purity()
            body = self.expr(self.rng.choice(self.limits.dtypes), axes, purity, self.limits.depth)
            self.add(axes, Pointwise(body), ((body.dtype, purity),))

    def add(self, axes: tuple[Axis, ...], root: Root, results: tuple[tuple[torch.dtype, Purity], ...]) -> None:
        shape = root.into.shape if isinstance(root, Scatter) else tuple(a.extent for a in axes)
        out: list[Value | None] = [self.new(shape, d, p) for d, p in results]
        if len(out) > 1 and self.rng.random() < 0.4:
            dropped = self.rng.randrange(len(out))
            del self.values[out[dropped]]  # type: ignore[arg-type]
            out[dropped] = None
        self.nodes.append(Nest(tuple(out), axes, root))

    def reduce(self, axes: tuple[Axis, ...]) -> None:
        kind = self.rng.choice((*_REDUCTIONS, "softmax"))
        pick = kind in ("argmax", "argmin")
        nonempty = pick or kind in ("welford", "softmax")
        points = math.prod(evaluate(a.extent, self.sizes) for a in axes)
        extents = list(self.bounded([self.extent() for _ in range(self.rng.choice([1, 1, 2]))], points))
        if kind == "prod":  # a longer one may overflow, which depends on the order
            extents = [const(self.rng.choice([1, 2, 5, 8, 17]))]
        if nonempty:
            extents = [e if is_nonnegative(e - 1) else const(3) for e in extents]
        reduced = tuple(Axis(f"r{k}", e) for k, e in enumerate(extents))
        dtype = self.element_dtype(kind)
        every = (*axes, *reduced)
        summing = kind in ("sum", "prod", "welford", "softmax") and dtype.is_floating_point
        purity = self.purity() if kind in ("max", "min", "sum") else Purity.SPECIAL if pick else Purity.EXACT
        body = self.expr(dtype, every, purity, self.limits.depth - 1)
        result = Purity.ROUNDED if summing or purity is Purity.ROUNDED else Purity.SPECIAL
        bodies: tuple[Expr, ...] = (body,)
        results: tuple[tuple[torch.dtype, Purity], ...] = ((dtype, result),)
        if pick:
            linear = ZERO
            for axis in reduced:
                linear = linear * axis.extent + axis.index()
            bodies, results = (body, IndexValue(linear)), ((dtype, result), (I64, Purity.EXACT))
        elif kind in ("any", "all"):
            results = ((BOOL, Purity.EXACT),)
        elif kind == "welford":
            results = ((dtype, result),) * 3
        elif kind == "softmax":
            results = ((dtype, result),) * 2
        self.add(axes, Reduce(kind, reduced, bodies), results)

    def element_dtype(self, kind: str) -> torch.dtype:
        if kind in ("any", "all"):
            return BOOL
        if kind in ("welford", "softmax"):
            return F32
        return self.rng.choice([F32, F32, F64, I64, I32] if kind != "prod" else [F32, F64, I64])

    def scan(self, axes: tuple[Axis, ...]) -> None:
        kind, axis = self.rng.choice(_SCANS), self.rng.choice(axes)
        if kind == "prod" and evaluate(axis.extent, self.sizes) > 20:
            kind = "sum"
        dtype = self.rng.choice([F32, F64, I64])
        pick = kind in ("argmax", "argmin")
        purity = Purity.SPECIAL if pick else Purity.EXACT
        body = self.expr(dtype, axes, purity, self.limits.depth - 1)
        rounded = kind in ("sum", "prod") and dtype.is_floating_point
        result = (dtype, Purity.ROUNDED if rounded else Purity.SPECIAL)
        bodies = (body, IndexValue(axis.index())) if pick else (body,)
        results = (result, (I64, Purity.EXACT)) if pick else (result,)
        self.add(axes, Scan(kind, axis, bodies), results)

    def scatter(self, axes: tuple[Axis, ...]) -> bool:
        """A scatter into an existing value; False where no value suits."""
        fits = [v for v in self.values if v.dtype in (F32, F64, I64, I32) and v.shape]
        if not fits:
            return False
        into = self.rng.choice(fits)
        combine = self.rng.choice(["set", "add", "max", "min", "mul"])
        if combine == "set":  # one writer per element
            axes = tuple(Axis(f"i{k}", e) for k, e in enumerate(into.shape))
            index = tuple(self.rng.choice([a.index(), a.extent - 1 - a.index()]) for a in axes)
        else:
            found = [(e, *self.coordinate(e, axes)) for e in into.shape]
            if any(needs is not None and not is_nonnegative(e - 1) for e, _, needs in found):
                return False
            index = tuple(i if needs is None else self.indirect(e, axes) for e, i, needs in found)
        purity = max(self.values[into], Purity.EXACT)
        body = self.expr(into.dtype, axes, Purity.EXACT, self.limits.depth - 1)
        if combine in ("add", "mul") and into.dtype.is_floating_point:
            purity = Purity.ROUNDED
        self.add(axes, Scatter(into, index, body, combine), ((into.dtype, max(purity, Purity.SPECIAL)),))
        return True

    # -- expressions -----------------------------------------------------------------------------------------
    def purity(self) -> Purity:
        return self.rng.choice([Purity.EXACT, Purity.SPECIAL, Purity.ROUNDED])

    def expr(self, dtype: torch.dtype, axes: tuple[Axis, ...], purity: Purity, depth: int) -> Expr:
        """A random expression of ``dtype`` at most as impure as ``purity``."""
        roll = self.rng.random()
        if depth <= 0 or roll < 0.2:
            return self.leaf(dtype, axes, purity)
        if self.limits.masked and roll < 0.28:
            mask = self.expr(BOOL, axes, Purity.EXACT, depth - 1)
            return Masked(mask, self.expr(dtype, axes, purity, depth - 1), self.constant(dtype))
        if roll < 0.4 or dtype in (BF16, F16):
            return self.convert(dtype, axes, purity, depth)
        if dtype == BOOL:
            return self.boolean(axes, depth)
        if dtype.is_floating_point:
            names = _FLOAT_EXACT + (_FLOAT_LIBRARY if purity is Purity.ROUNDED and self.limits.library else ())
        else:
            names = _INT
        name = self.rng.choice(names)
        if name == "where":
            condition = self.expr(BOOL, axes, Purity.EXACT, depth - 1)
            return Op(name, (condition, *(self.expr(dtype, axes, purity, depth - 1) for _ in range(2))), dtype)
        if name in _FLOAT_LIBRARY or name == "sign":  # these amplify rounding
            purity = Purity.EXACT
        args = [self.expr(dtype, axes, purity, depth - 1) for _ in range(1 if name in _ONE_ARGUMENT else 2)]
        return Op(name, tuple(args), dtype)

    def boolean(self, axes: tuple[Axis, ...], depth: int) -> Expr:
        name = self.rng.choice(_BOOL)
        if name == "compare":
            dtype = self.rng.choice([F32, I64, F64, I32])
            args = [self.expr(dtype, axes, Purity.SPECIAL, depth - 1) for _ in range(2)]
            return Op(self.rng.choice(_COMPARE), tuple(args), BOOL)
        args = [self.expr(BOOL, axes, Purity.EXACT, depth - 1) for _ in range(1 if name in _ONE_ARGUMENT else 2)]
        return Op(name, tuple(args), BOOL)

    def convert(self, dtype: torch.dtype, axes: tuple[Axis, ...], purity: Purity, depth: int) -> Expr:
        """A cast; to an integer only from integers, bools and finite inputs, whose range is small."""
        if dtype.is_floating_point:
            if dtype in (BF16, F16) and purity is Purity.ROUNDED:
                purity = Purity.SPECIAL
            source = self.rng.choice(
                [F32, F32, I64, BOOL, BF16, I32] if dtype != F32 else [BF16, F16, I64, BOOL, U8, F64]
            )
            return Op("cast", (self.expr(source, axes, purity, depth - 1),), dtype)
        if dtype == BOOL:
            return self.boolean(axes, depth)
        options = [v for v in self.inputs if v.dtype == F32 and self.values[v] is Purity.EXACT]
        if options and self.rng.random() < 0.5:
            return Op("cast", (self.load(self.rng.choice(options), axes),), dtype)
        return Op("cast", (self.expr(self.rng.choice([I64, BOOL, I32]), axes, Purity.EXACT, depth - 1),), dtype)

    def leaf(self, dtype: torch.dtype, axes: tuple[Axis, ...], purity: Purity) -> Expr:
        options = [v for v, p in self.values.items() if v.dtype == dtype and p <= purity]
        roll = self.rng.random()
        if options and roll < 0.8:
            return self.load(self.rng.choice(options), axes)
        if dtype == F32 and roll < 0.83 and self.limits.random and axes:
            return self.draw(axes, purity)
        if dtype == I64 and axes and roll < 0.93:
            return IndexValue(self.affine(axes))
        return self.constant(dtype)

    def draw(self, axes: tuple[Axis, ...], purity: Purity) -> Expr:
        linear = ZERO
        for axis in axes:
            linear = linear * axis.extent + axis.index()
        self.draws += 1
        kind = self.rng.choice(["rand", "rand", "randn"]) if purity is Purity.ROUNDED else "rand"
        return Random(kind, Const(self.draws, I64), linear, F32)

    def constant(self, dtype: torch.dtype) -> Const:
        if dtype == BOOL:
            return Const(self.rng.random() < 0.5, dtype)
        if dtype.is_floating_point:
            return Const(self.rng.choice([0.0, 1.0, -1.5, 0.25, 3.0]), dtype)
        return Const(self.rng.choice([0, 1, 2, 5] + ([] if dtype == U8 else [-1, -3])), dtype)

    # -- addresses -------------------------------------------------------------------------------------------
    def load(self, value: Value, axes: tuple[Axis, ...]) -> Expr:
        found = [self.coordinate(e, axes) for e in value.shape]
        index = tuple(i for i, _ in found)
        mask = _conjunction([m for _, m in found if m is not None])
        if mask is None:
            return Load(value, index)
        other = self.constant(value.dtype)
        if self.limits.masked and self.rng.random() < 0.6:
            return Masked(mask, Load(value, index), other)
        return Load(value, index, mask, other.value)

    def affine(self, axes: tuple[Axis, ...]) -> Index:
        total = const(self.rng.choice([0, 0, 1, 2]))
        for axis in self.rng.sample(axes, min(len(axes), self.rng.choice([1, 1, 2]))):
            total = total + axis.index() * self.rng.choice([1, 1, 1, 2, 3])
        return total

    def coordinate(self, extent: Index, axes: tuple[Axis, ...]) -> tuple[Index, Expr | None]:
        """A coordinate of a dimension of ``extent``, and the mask it needs (None: it is proved in range)."""
        index = self._coordinate(extent, axes)
        needs: list[Expr] = []
        at = IndexValue(index)
        if not is_nonnegative(index):
            needs.append(Op("ge", (at, Const(0, I64)), BOOL))
        if not is_less(index, extent):
            needs.append(Op("lt", (at, IndexValue(extent)), BOOL))
        return index, _conjunction(needs)

    def _coordinate(self, extent: Index, axes: tuple[Axis, ...]) -> Index:
        same = [a for a in axes if a.extent is extent]
        positive = is_nonnegative(extent - 1)
        if same and self.rng.random() < 0.7:
            axis = self.rng.choice(same).index()
            return extent - 1 - axis if self.rng.random() < 0.15 else axis
        roll = self.rng.random()
        if not axes or (positive and roll < 0.15):
            return ZERO
        if positive and roll < 0.3:
            return self.affine(axes) % extent
        if positive and roll < 0.42:
            return self.indirect(extent, axes)
        if roll < 0.6:
            return self.affine(axes) // const(self.rng.choice([2, 3, 4]))
        return self.affine(axes) - self.rng.choice([0, 1])

    def indirect(self, extent: Index, axes: tuple[Axis, ...]) -> Index:
        """A run-time index in ``[-extent, extent)``."""
        wild = self.expr(I64, axes, Purity.EXACT, 1)
        bound = IndexValue(extent)
        inside: Expr = Op("remainder", (wild, bound), I64)
        if self.rng.random() < 0.3:
            inside = Op("sub", (inside, bound), I64)
        return Indirect(Checked(inside, extent), extent).index()


def _whole(v: Value) -> View:
    return View(v, v.shape, v.strides, ZERO)


def _results(node: Node) -> list[Value]:
    mutated = [v for _, v in node.mutates] if isinstance(node, Extern) else []
    return [v for v in node.out if v is not None] + mutated


def _conjunction(masks: list[Expr]) -> Expr | None:
    total: Expr | None = None
    for mask in masks:
        total = mask if total is None else Op("logical_and", (total, mask), BOOL)
    return total


def _data(shape: list[int], dtype: torch.dtype, generator: torch.Generator, *, special: bool) -> Tensor:
    """Small numbers: multiples of 1/8 for floats, so that short chains of arithmetic are exact."""
    if dtype == BOOL:
        return torch.randint(0, 2, shape, generator=generator).bool()
    if not dtype.is_floating_point:
        return torch.randint(0 if dtype == U8 else -8, 9, shape, generator=generator).to(dtype)
    data = torch.randint(-16, 17, shape, generator=generator).double() / 8
    if special:
        which = torch.randint(0, 12, shape, generator=generator)
        for k, extreme in enumerate((torch.inf, -torch.inf, torch.nan)):
            data = torch.where(which == k, extreme, data)
    return data.to(dtype)

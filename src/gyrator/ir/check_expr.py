"""The rules of value expressions, as code: dtypes, ranks, ranges, scopes. An :class:`ExprChecker` visits each interned
node once per program or kernel, so checking costs time in the number of distinct nodes. Problems are raised as
:class:`RuleBroken`; the caller knows the node and the line."""

from collections.abc import Container
from dataclasses import dataclass, field
from functools import lru_cache

import torch

from gyrator.ir.expr import Checked, Const, Expr, Load, Masked, Op, Random, Ref, Scalar, Value, short
from gyrator.ir.index import Axis, Index, Indirect, Size, is_nonnegative, lower, upper
from gyrator.ir.ops import OPS, REDUCTIONS, Rule
from gyrator.passes import RuleBroken


@dataclass(slots=True)
class ExprChecker:
    """Checks expressions of one program or kernel, but not whether the values and locals in them exist.

    ``sizes`` are the symbols that are bound so far. ``masked`` allows ``Masked``, ``locals`` allows ``Ref``."""

    sizes: Container[Size]
    masked: bool
    locals: bool
    _seen: set[Expr] = field(default_factory=set)
    _guarded: set[Expr] = field(default_factory=set)
    _indices: set[Index] = field(default_factory=set)

    def value(self, expr: Expr, axes: frozenset[Axis], dtype: torch.dtype | None = None) -> None:
        """``expr`` is well formed, uses no axis outside ``axes``, and has ``dtype`` if one is given."""
        if not expr.axes() <= axes:
            raise RuleBroken(f"axes {_names(expr.axes() - axes)} are not in scope in {expr}")
        self._visit(expr, guarded=any(a.extent.value == 0 for a in axes))
        if dtype is not None and expr.dtype != dtype:
            raise RuleBroken(f"{expr} is {short(expr.dtype)}, but {short(dtype)} is needed")

    def coordinates(self, index: tuple[Index, ...], value: Value, axes: frozenset[Axis]) -> None:
        """``index`` addresses ``value`` from within ``axes``: rank, scope and range."""
        for i in index:
            if not i.axes() <= axes:
                raise RuleBroken(f"axes {_names(i.axes() - axes)} are not in scope in coordinate {i}")
            self.index(i)
        self._check_coordinates(index, value, guarded=any(a.extent.value == 0 for a in axes))

    def index(self, *indices: Index, guarded: bool = False) -> None:
        """The sizes in ``indices`` are bound and their indirect values are int64."""
        new = [index for index in indices if index not in self._indices]
        self._indices.update(() if guarded else new)
        for atom in (atom for index in new for atom in index.atoms()):
            if isinstance(atom, Size):
                if atom not in self.sizes:
                    raise RuleBroken(f"size {atom} is not defined here")
            elif isinstance(atom, Indirect):
                self._visit(atom.value, guarded=guarded)
                if atom.value.dtype != torch.int64:
                    raise RuleBroken(f"indirect index {atom} is {short(atom.value.dtype)}, not i64")
                self.index(atom.size)

    def _check_coordinates(self, index: tuple[Index, ...], value: Value, *, guarded: bool) -> None:
        if len(index) != len(value.shape):
            raise RuleBroken(f"{len(index)} coordinates for {value}, which has {len(value.shape)} dimensions")
        if guarded:
            return
        for position, (coordinate, extent) in enumerate(zip(index, value.shape, strict=True)):
            if (wrong := _check_range(coordinate, extent)) is not None:
                raise RuleBroken(f"coordinate {position} of {value}[{', '.join(map(str, index))}] {wrong}")

    def _visit(self, expr: Expr, *, guarded: bool) -> None:
        """``guarded``: the node is evaluated only under some mask, so its loads may be out of range."""
        if expr in self._seen or (guarded and expr in self._guarded):
            return
        (self._guarded if guarded else self._seen).add(expr)
        for child in expr.children():
            self._visit(child, guarded=guarded or (isinstance(expr, Masked) and child is expr.body))
        self.index(*expr.indices(), guarded=guarded)
        match expr:
            case Op():
                check_op(expr)
            case Load():
                if expr.mask is not None:
                    _need(expr.mask, torch.bool, "a mask")
                    check_literal(expr.other, expr.dtype)
                self._check_coordinates(expr.index, expr.value, guarded=guarded or expr.mask is not None)
            case Const(value, dtype):
                check_literal(value, dtype)
            case Ref():
                if not self.locals:
                    raise RuleBroken(f"local {expr} outside a kernel")
            case Masked(mask, body, other):
                if not self.masked:
                    raise RuleBroken(f"masked expression after predication: {expr}")
                _need(mask, torch.bool, "a mask")
                check_literal(other.value, other.dtype)
                if other.dtype != body.dtype:
                    raise RuleBroken(f"masked body and its other differ in dtype: {expr}")
            case Checked(arg, _, mask):
                if arg.dtype != torch.int32:
                    _need(arg, torch.int64, "a checked index")
                if mask is not None:
                    _need(mask, torch.bool, "a mask")
            case Random():
                _check_random(expr)


def check_op(op: Op) -> None:
    """The arguments and result of ``op`` have the dtypes that its row asks for."""
    if (row := OPS.get(op.name)) is None:
        raise RuleBroken(f"no such op: {op.name}")
    if len(op.args) != row.arity:
        raise RuleBroken(f"{op.name} takes {row.arity} arguments, not {len(op.args)}: {op}")
    if row.rule is Rule.CONVERT:
        if op.name == "bitcast" and op.args[0].dtype.itemsize != op.dtype.itemsize:
            raise RuleBroken(f"bitcast between widths: {op}")
        return
    first, *others = [a.dtype for a in op.args]
    if row.rule is Rule.SELECT:
        if first != torch.bool:
            raise RuleBroken(f"condition of {op} is {short(first)}, not b1")
        first, *others = others
    if any(d != first for d in others):
        raise RuleBroken(f"arguments of {op} differ in dtype: {', '.join(short(a.dtype) for a in op.args)}")
    result = torch.bool if row.rule in (Rule.COMPARE, Rule.LOGICAL) else first
    if op.dtype != result:
        raise RuleBroken(f"{op} gives {short(result)}, but the node says {short(op.dtype)}")
    if row.rule is Rule.LOGICAL and first != torch.bool:
        raise RuleBroken(f"{op.name} of {short(first)}: {op}")
    if row.rule is Rule.FLOAT and not first.is_floating_point:
        raise RuleBroken(f"{op.name} needs a floating dtype, not {short(first)}: {op}")
    if row.rule is Rule.INTEGER and first.is_floating_point:
        raise RuleBroken(f"{op.name} needs an integer dtype, not {short(first)}: {op}")


def check_literal(value: Scalar, dtype: torch.dtype) -> None:
    """``value`` is a float for floating dtypes, an int in range for integers, a bool for bool."""
    wanted: type = float if dtype.is_floating_point else bool if dtype == torch.bool else int
    if type(value) is not wanted:
        raise RuleBroken(f"literal {value!r} of {short(dtype)} is no {wanted.__name__}")
    if wanted is int:
        range_ = torch.iinfo(dtype)
        if not range_.min <= value <= range_.max:
            raise RuleBroken(f"literal {value} does not fit {short(dtype)}")


def check_combine(kind: str, dtypes: tuple[torch.dtype, ...]) -> tuple[torch.dtype, ...]:
    """The result dtypes of reducing elements of ``dtypes`` by ``kind``."""
    if (row := REDUCTIONS.get(kind)) is None:
        raise RuleBroken(f"no such reduction: {kind}")
    if len(dtypes) != row.inputs:
        raise RuleBroken(f"{kind} takes {row.inputs} values per element, not {len(dtypes)}")
    first = dtypes[0]
    if row.inputs == 2 and dtypes[1] != torch.int64:
        raise RuleBroken(f"the second value of {kind} is {short(dtypes[1])}, not i64")
    if kind in ("any", "all") and first != torch.bool:
        raise RuleBroken(f"{kind} of {short(first)}")
    if kind in ("sum", "prod") and first == torch.bool:
        raise RuleBroken(f"{kind} of bool: cast it first")
    if kind in ("welford", "softmax", "logaddexp") and not first.is_floating_point:
        raise RuleBroken(f"{kind} of {short(first)}")
    return row.dtypes(first)


@lru_cache(maxsize=1 << 13)
def _check_range(c: Index, extent: Index) -> str | None:
    """What is wrong with coordinate ``c`` of a dimension: some iteration is provably outside ``extent``."""
    if not _reaches_its_bounds(c):
        return None
    low, high = lower(c), upper(c)
    if low is not None and is_nonnegative(-low - 1):
        return f"reaches {low}"
    beyond = high is not None and is_nonnegative(high - extent)
    return f"reaches {high}, the extent is {extent}" if beyond else None


def _reaches_its_bounds(index: Index) -> bool:
    """Whether interval bounds are attained: at most one axis in a monomial, the rest and extents sizes."""
    for monomial, _ in index.terms:
        extents = [atom.extent for atom in monomial if isinstance(atom, Axis)]
        atoms = [*monomial, *(atom for extent in extents for term, _ in extent.terms for atom in term)]
        simple = len(extents) <= 1 and all(isinstance(atom, Axis | Size) for atom in atoms)
        if not simple or any(e.value is None and not is_nonnegative(e - 1) for e in extents):
            return False
    return True


def _check_random(random: Random) -> None:
    if random.kind not in ("rand", "randn", "randint64"):
        raise RuleBroken(f"no such random kind: {random.kind}")
    _need(random.seed, torch.int64, "a seed")
    if random.kind == "randint64":
        if random.dtype != torch.int64 or len(random.args) != 2:
            raise RuleBroken(f"randint64 is i64 with two bounds: {random}")
        for a in random.args:
            _need(a, torch.int64, "a bound")
    elif not random.dtype.is_floating_point or random.args:
        raise RuleBroken(f"{random.kind} has a floating dtype and no arguments: {random}")


def _need(expr: Expr, dtype: torch.dtype, what: str) -> None:
    if expr.dtype != dtype:
        raise RuleBroken(f"{what} must be {short(dtype)}: {expr} is {short(expr.dtype)}")


def _names(axes: frozenset[Axis]) -> str:
    return ", ".join(sorted(a.name for a in axes))

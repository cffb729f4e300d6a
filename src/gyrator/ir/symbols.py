"""From torch's symbolic ints to :class:`~gyrator.ir.index.Index`.

Polynomials, floor division, remainder, minimum and maximum become the same thing in the index algebra.
Whatever else (``round``, ``sqrt``, a float in between) becomes one opaque size symbol, computed at the start
of a call by a line of Python over the other symbols (:class:`~gyrator.ir.program.Derived`).

SymPy functions are told apart by name: torch's own classes are private and differ between versions."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial, reduce
from typing import Any

import sympy
import torch
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.pycode import PythonCodePrinter
from torch.fx.experimental.symbolic_shapes import ShapeEnv, statically_known_true

from gyrator.ir.index import UNBOUNDED, Index, Size, const, evaluate, exact_quotient, is_nonnegative, maximum, minimum
from gyrator.ir.program import Derived
from gyrator.ir.volume import rounded_hint
from gyrator.torch_compat import functions_of_numbers, symbol_hint

Rule = Callable[..., Index | None]


class Symbols:
    """The size symbols of one compilation. Equal SymPy expressions give the identical index.
    ``shape_env`` is where the symbols' bounds and hints come from; None stands for a program of plain ints."""

    def __init__(self, shape_env: ShapeEnv | None = None) -> None:
        self.shape_env = shape_env
        self._indices: dict[sympy.Basic, Index] = {}
        self._sizes: dict[str, Size] = {}
        self._expressions: dict[Size, sympy.Basic] = {}
        self._derived: dict[sympy.Basic, Derived] = {}

    @property
    def derived(self) -> tuple[Derived, ...]:
        """The opaque sizes met so far. Their texts mention torch's symbols, never one another."""
        return tuple(self._derived.values())

    def to_index(self, x: int | torch.SymInt) -> Index:
        """The index equal to ``x`` in every call."""
        if isinstance(x, int):
            return const(int(x))
        expr = x.node.expr
        new = expr not in self._indices and expr.args
        if new and x.node.has_hint() and x.node.hint == 1 and statically_known_true(x == 1):
            self._indices[expr] = const(1)  # as a guard may say of ``s // 2``: it broadcasts then, and must say so
        return self.from_sympy(expr)

    def nonnegative(self, index: Index) -> bool:
        """Whether ``index ≥ 0`` in every call that reaches this code: it is proved, or torch now guards it.

        False where it is false for the sizes compiled with, or has no value there: an axis, or a size that only a run
        tells. Once torch's guards are frozen it would drop a new one silently."""
        if is_nonnegative(index):
            return True
        env, hints = self.shape_env, {s: s.hint for s in self._expressions if s.hint is not None}
        known = hints.keys() >= index.sizes() and not index.axes() and not index.indirects()
        if env is None or env.frozen or not known or evaluate(index, hints) < 0:
            return False
        sizes = {s: env.create_symintnode(self._expressions[s], hint=hint) for s, hint in hints.items()}
        return bool(evaluate(index, sizes) >= 0)  # the truth value becomes a guard

    def shape(self, sizes: tuple[int | torch.SymInt, ...] | torch.Size) -> tuple[Index, ...]:
        """:meth:`to_index` of each size or stride of a tensor."""
        return tuple([self.to_index(s) for s in sizes])

    def from_sympy(self, expr: sympy.Basic) -> Index:
        """The index equal to a SymPy expression of integers; opaque where the algebra has no such term."""
        if expr not in self._indices:
            self._indices[expr] = self._convert(expr) or self.opaque(expr)
        return self._indices[expr]

    def _convert(self, expr: sympy.Basic) -> Index | None:
        if isinstance(expr, sympy.Integer):
            return const(int(expr))
        if isinstance(expr, sympy.Symbol):
            return self._size(expr).index() if expr.is_integer is not False else None
        name = type(expr).__name__
        if name == "Max" and sympy.S.One in expr.args and len(expr.args) == 2:  # as in strides, for sizes of 0
            (size,) = (self.from_sympy(a) for a in expr.args if a != 1)
            return size if self.nonnegative(size - 1) else maximum(const(1), size)
        if name in _ROUNDING:
            return self._rounded_quotient(name, expr.args[0])
        if isinstance(expr, sympy.Pow) and not isinstance(expr.exp, sympy.Integer):
            return None
        if isinstance(expr, sympy.Mul | sympy.Add) and (parts := expr.as_numer_denom())[1] != 1:  # exact, if an integer
            return _floordiv(*map(self.from_sympy, parts)) if expr.is_integer else None
        rule = _RULES.get(name)
        return None if rule is None else rule(*[self.from_sympy(a) for a in expr.args])

    def _rounded_quotient(self, rounding: str, quotient: sympy.Basic) -> Index | None:
        """``trunc(a / b)`` of a true division, which is exact floor division for sizes below 2**53."""
        if type(quotient).__name__ not in ("IntTrueDiv", "FloatTrueDiv"):
            return None
        num, den = (a.args[0] if type(a).__name__ == "ToFloat" else a for a in quotient.args)
        if num.is_integer is not True or den.is_integer is not True:
            return None
        a, b = self.from_sympy(num), self.from_sympy(den)
        if not is_nonnegative(b - 1) or (rounding == "TruncToInt" and not is_nonnegative(a)):
            return None
        return -((-a) // b) if rounding == "CeilToInt" else a // b

    def _size(self, symbol: sympy.Symbol) -> Size:
        return self._sizes.get(symbol.name) or self._record(symbol.name, symbol)

    def replaced(self, symbol: sympy.Symbol) -> Index | None:
        """What torch found ``symbol`` to be equal to after it was made; None if nothing."""
        expr = symbol if self.shape_env is None else self.shape_env.replace(symbol)
        return None if expr == symbol else self.from_sympy(expr)

    def opaque(self, expr: sympy.Basic) -> Index:
        """A new size for ``expr``, of which nothing more is known."""
        for symbol in sorted(expr.free_symbols, key=str):
            self._size(symbol)
        name = f"d{len(self._derived)}"
        while name in self._sizes:
            name += "_"
        size = self._record(name, expr)
        self._derived[expr] = Derived(size, "", python_text(expr))
        return self._indices.setdefault(expr, size.index())

    def _record(self, name: str, expr: sympy.Basic) -> Size:
        """The size of that name, which stands for an expression, with what torch knows of its value."""
        env = self.shape_env
        bounds = None if env is None else env.bound_sympy(expr)
        ends = (getattr(bounds, end, None) for end in ("lower", "upper"))
        low, high = (int(n) if isinstance(n, sympy.Integer) and abs(int(n)) < -UNBOUNDED else None for n in ends)
        low = (0 if expr.is_nonnegative else UNBOUNDED) if low is None else low
        size = self._sizes[name] = Size(name, low, high, hint_of(expr, env))
        self._expressions[size] = expr
        return size


def hint_of(expr: sympy.Basic, env: ShapeEnv | None, *, rounded: bool = False) -> int | None:
    """Its value in the call that is being compiled, or with sizes as keys have them; None if that is not known."""
    known = {} if env is None else {s: symbol_hint(env, s) for s in expr.free_symbols}
    if env is None or None in known.values():
        return None
    numbers = {s: sympy.sympify(rounded_hint(n) if rounded and isinstance(n, int) else n) for s, n in known.items()}
    with suppress(ZeroDivisionError):  # rounded sizes may leave no divisor
        value = expr.xreplace(numbers)
        return int(value) if value.is_number else None
    return None


def _floordiv(num: Index, den: Index) -> Index | None:
    if (exact := exact_quotient(num, den)) is not None:  # 0 / 0 was an error already
        return exact
    if is_nonnegative(den - 1):
        return num // den
    return (-num) // (-den) if is_nonnegative(-den - 1) else None


def _power(base: Index, exponent: Index) -> Index | None:
    times = exponent.value
    return None if times is None or not 0 <= times <= 8 else reduce(Index.__mul__, [base] * times, const(1))


def _shifted(index: Index, by: Index, apply: Callable[[Index, int], Index]) -> Index | None:
    bits = by.value
    return None if bits is None or not 0 <= bits < 62 else apply(index, 1 << bits)


_RULES: Mapping[str, Rule] = {
    "Add": lambda *args: reduce(Index.__add__, args),
    "Mul": lambda *args: reduce(Index.__mul__, args),
    **dict.fromkeys(("FloorDiv", "CleanDiv"), _floordiv),
    **dict.fromkeys(("Mod", "PythonMod"), lambda a, b: a % b if is_nonnegative(b - 1) else None),
    "Max": lambda *args: reduce(maximum, args),
    "Min": lambda *args: reduce(minimum, args),
    **dict.fromkeys(("Pow", "PowByNatural"), _power),
    "LShift": partial(_shifted, apply=Index.__mul__),
    "RShift": partial(_shifted, apply=Index.__floordiv__),
}
_ROUNDING = frozenset({"TruncToInt", "FloorToInt", "CeilToInt"})

_TEXT: Mapping[str, str] = {
    **dict.fromkeys(("FloorDiv", "CleanDiv"), "({} // {})"),
    **dict.fromkeys(("Mod", "PythonMod"), "({} % {})"),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), "({} / {})"),
    "PowByNatural": "({} ** {})", "FloatPow": "(float({}) ** {})", "LShift": "({} << {})", "RShift": "({} >> {})",
    "ToFloat": "float({})", "RoundToInt": "round({})", "RoundDecimal": "round({}, {})", "TruncToInt": "math.trunc({})",
    "FloorToInt": "math.floor({})", "CeilToInt": "math.ceil({})", "TruncToFloat": "float(math.trunc({}))",
    "BitwiseFn_bitwise_and": "({} & {})", "BitwiseFn_bitwise_or": "({} | {})", "BitwiseFn_bitwise_xor": "({} ^ {})",
    **{f"OpaqueUnaryFn_{name}": f"math.{name}({{}})" for name in functions_of_numbers()},
}  # fmt: skip


class _PythonText(PythonCodePrinter):  # type: ignore[misc]
    """What SymPy prints as Python, with torch's functions, which it does not know."""

    def _print_Function(self, expr: sympy.Function) -> str:
        name = type(expr).__name__
        if name not in _TEXT:
            raise ValueError(f"no Python text for {name} in {expr}")
        return _TEXT[name].format(*[self.parenthesize(arg, PRECEDENCE["Func"]) for arg in expr.args])

    _print_Mod = _print_Function  # SymPy's own would print the Mod of torch without the parentheses of a sum

    def _print_Float(self, expr: sympy.Float) -> str:
        return repr(float(expr))


def python_text(expr: sympy.Basic) -> str:
    """A Python expression over the symbols' names, ``math`` and builtins.

    Raises: ValueError for a function that has no text."""
    return _PythonText().doprint(expr)


_OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.USub: operator.neg,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.And: operator.and_, ast.Or: operator.or_, ast.Not: torch.sym_not,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
}  # fmt: skip
_CALLS: Mapping[str, Callable[..., Any]] = {
    "max": torch.sym_max, "min": torch.sym_min, "abs": operator.abs, "float": torch.sym_float, "round": round,
    "math.trunc": math.trunc, "math.floor": math.floor, "math.ceil": math.ceil,
    **{f"math.{name}": call for name, call in functions_of_numbers().items()},
}  # fmt: skip


def evaluated(text: str, numbers: Mapping[str, Any], apply: Callable[..., Any] | None = None) -> Any:
    """What a text as :func:`python_text` writes it is for these numbers, which may be symbolic. It is read as
    arithmetic: nothing is run as Python. ``apply(function, *arguments)`` makes each step, by default by a call.

    Raises: ValueError for any other text."""

    def value(node: ast.expr) -> Any:
        match node:
            case ast.Constant(bool() | int() | float() | "-inf"):  # SymPy's text of it is float('-inf')
                return node.value
            case ast.Name() | ast.Attribute() if (name := ast.unparse(node)) in numbers or name == "math.inf":
                return numbers.get(name, math.inf)
            case ast.UnaryOp(op, inner) if type(op) in _OPERATORS:
                return call(_OPERATORS[type(op)], value(inner))
            case ast.BinOp(left, op, right) | ast.Compare(left, [op], [right]) if type(op) in _OPERATORS:
                return call(_OPERATORS[type(op)], value(left), value(right))
            case ast.BoolOp(op, operands):
                return reduce(partial(call, _OPERATORS[type(op)]), map(value, operands))
            case ast.IfExp(condition, then, otherwise):
                return call(torch.sym_ite, value(condition), value(then), value(otherwise))
            case ast.Call(ast.Name("max" | "min" as name), operands, []):
                return reduce(partial(call, _CALLS[name]), map(value, operands))
            case ast.Call(func, operands, []) if ast.unparse(func) in _CALLS:
                return call(_CALLS[ast.unparse(func)], *map(value, operands))
        raise ValueError(f"{ast.unparse(node)} is no arithmetic on known numbers")

    call = apply or (lambda function, *arguments: function(*arguments))
    return value(ast.parse(text, mode="eval").body)

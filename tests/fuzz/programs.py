"""Draws a random program: its arguments, its statements, what it returns.

A program is straight-line Python kept as text, so that a failing one can be printed, shrunk and saved. It is
drawn while it runs in eager: a statement that raises, or whose value is too large or not finite, is dropped.
"""

from __future__ import annotations

import ast
import inspect
import math
import random
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.fuzz.captured import CAPTURED_NAMES, captured
from tests.fuzz.corners import CORNER_NAMES, corners
from tests.fuzz.operations import (
    DETACHING_MUTATIONS,
    DETACHING_OPERATIONS,
    FLOATS,
    MUTATIONS,
    OPERATIONS,
    Impossible,
    Operation,
    Scope,
)
from tests.fuzz.pieces import attention, chain, dense_block, hashed, image, recurrence, weights
from tests.fuzz.wider import WIDER_MUTATIONS, WIDER_OPERATIONS

DETACHING = 100_000
"""From this seed on programs also detach values and write to them where autograd does not look; all run backward."""

WIDER = 3_000_000
"""From this seed on programs also do what is in ``wider``, on more types."""

LONG = 10_000_000
"""From this seed on values have up to 400,000 elements: shared by threads, split into parts, in blocks with a tail."""

CAPTURED = 20_000_000
"""From this seed on programs are those of ``captured``."""

CORNERS = 30_000_000
"""From this seed on programs are those of ``corners``."""

LARGEST_TENSOR, LARGEST_LONG_TENSOR = 2048, 400_000
LARGEST_VALUE = 1e4
DTYPES = ("float32",) * 12 + ("float64", "bfloat16", "bfloat16", "int64", "int64", "int32", "bool", "uint8")
WIDER_DTYPES = (*DTYPES, "float16", "float16", "int8", "int16")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
SHAPES = (
    (3, 4), (5,), (2, 3, 4), (4, 4), (1, 6), (6, 1), (7, 3), (2, 1, 5), (33,), (3, 17), (2, 2, 3, 4), (16, 8),
    (), (0, 3), (1,), (40, 9), (4, 64), (2, 3, 8),
)  # fmt: skip
LONG_SHAPES = (
    (200_003,), (3, 70_001), (70_001, 3), (131, 1027), (2, 300, 257), (257, 513), (4096, 33), (2, 65, 31, 33),
    (1, 100_001), (40_000, 1), (64, 1024), (2, 8, 9000), (9000, 2, 8), (1027,), (5,), (1, 6), (),
)  # fmt: skip


def draw(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> Tensor:
    """Distinct multiples of 1/16 (as many as there are), exact in every dtype, or small integers."""
    generator = torch.Generator().manual_seed(seed)
    count = torch.Size(shape).numel()
    steps = torch.cat([torch.randperm(128, generator=generator) for _ in range(count // 128 + 1)])[:count] - 64
    if dtype == torch.bool:
        return (steps > 0).reshape(shape)
    values = steps / 16 if dtype.is_floating_point else (steps % 16 if dtype == torch.uint8 else steps // 8)
    return values.reshape(shape).to(dtype)


@dataclass(frozen=True)
class Program:
    """A random program.

    ``arguments`` maps each parameter to the text that makes its value (later ones may view earlier ones),
    ``outputs`` are the texts that are returned. With ``backward``, floating-point arguments require grad. What it
    makes lies on ``device``.
    """

    seed: int
    arguments: Mapping[str, str]
    statements: tuple[str, ...]
    outputs: tuple[str, ...]
    backward: bool
    device: str = "cpu"

    def source(self, name: str = "program") -> str:
        """The program as a Python function."""
        body = [*self.statements, f"return {', '.join(self.outputs)}{',' if len(self.outputs) == 1 else ''}"]
        text = f"def {name}({', '.join(self.arguments)}):\n" + "".join(f"    {line}\n" for line in body)
        return moved(text, self.device)

    def argument(self, name: str) -> str:
        """The text that makes an argument on the program's device."""
        return moved(self.arguments[name], self.device).strip()

    def make_arguments(self) -> tuple[Tensor, ...]:
        """Fresh arguments, always with the same values."""
        scope: dict[str, Any] = dict(NAMES)
        for name in self.arguments:
            scope[name] = eval(self.argument(name), scope)
        made = [scope[name] for name in self.arguments]
        if self.backward:
            made = [value.requires_grad_() if value.is_floating_point() else value for value in made]
        return tuple(made)

    def script(self, backend: str, dynamic: bool) -> str:
        """A pytest file that runs the program in eager and compiled, and fails if they differ."""
        return SCRIPT.format(
            seed=self.seed,
            draw=inspect.getsource(draw).replace("Tensor:", "torch.Tensor:"),
            arguments="".join(f"    {name} = {self.argument(name)}\n" for name in self.arguments),
            made=", ".join(self.arguments),
            source=self.source(),
            options=f"backend={backend!r}, backward={self.backward}, dynamic={dynamic}",
            grad=f".requires_grad_({self.backward} and v.is_floating_point())",
        )


SCRIPT = '''"""Random program {seed}. From the repository's root: python -m pytest THIS_FILE"""

import math  # noqa: F401

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint  # noqa: F401

from tests.acceptance import check
from tests.fuzz.pieces import attention, chain, dense_block, hashed, image, recurrence, weights  # noqa: F401
from tests.fuzz.programs import prepared

torch._dynamo.config.trace_autograd_ops = True

{draw}

def arguments():
{arguments}    return [v{grad} for v in ({made},)]


{source}

def test_program():
    check(program, arguments(), prepare=prepared, {options})
'''
PIECES = (attention, chain, dense_block, hashed, image, recurrence, weights)
NAMES: Mapping[str, Any] = {
    "torch": torch,
    "F": F,
    "draw": draw,
    **CAPTURED_NAMES,
    **CORNER_NAMES,
    **{p.__name__: p for p in PIECES},
}


_CREATORS = frozenset("tensor as_tensor arange ones zeros full eye linspace".split())


class _Mover(ast.NodeTransformer):
    def __init__(self, device: str) -> None:
        self.device = ast.Constant(device)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        match node.func:
            case ast.Name("draw"):
                return ast.Call(ast.Attribute(node, "to", ast.Load()), [self.device], [])
            case ast.Attribute(ast.Name("torch"), attr) if attr in _CREATORS:
                node.keywords.append(ast.keyword("device", self.device))
        return node


def moved(source: str, device: str) -> str:
    """Source whose drawn and created tensors lie on a device, which for the CPU is all source."""
    if device == "cpu":
        return source
    return ast.unparse(ast.fix_missing_locations(_Mover(device).visit(ast.parse(source)))) + "\n"


_NARROW = (
    (re.compile(r"torch\.(float32|bfloat16|float16)\b"), "torch.float64"),
    (re.compile(r"\.(float|half|bfloat16)\(\)"), ".double()"),
    (re.compile(r"torch\.complex64\b"), "torch.complex128"),
)


def in_float64(program: Program) -> Program:
    """The program with all types that its text names as wide as they come."""

    def widened(text: str) -> str:
        for narrow, wide in _NARROW:
            text = narrow.sub(wide, text)
        return text

    arguments = {name: widened(text) for name, text in program.arguments.items()}
    return replace(program, arguments=arguments, statements=tuple(map(widened, program.statements)))


def define(source: str, name: str = "program") -> Callable[..., Any]:
    """The function ``name`` that ``source`` defines."""
    scope: dict[str, Any] = dict(NAMES)
    exec(compile(source, f"<{name}>", "exec"), scope)
    return scope[name]


def generate(seed: int) -> Program:
    """The program of this seed; it is valid in eager, backward included."""
    rng = random.Random(seed)
    while (program := _drawn(rng, seed)) is None:
        pass
    return program


def _drawn(rng: random.Random, seed: int) -> Program | None:
    backward = seed % 5 < 2
    if seed < CAPTURED:
        return _Draft(rng, seed, backward=backward or DETACHING <= seed < WIDER).finish()
    parts = corners(rng, partial(_accepts, seed, backward)) if seed >= CORNERS else captured(rng, backward=backward)
    program = Program(seed, *parts, backward)
    return program if program.statements and runs(program, numbers=True) else None


def _accepts(
    seed: int, backward: bool, arguments: Mapping[str, str], statements: Sequence[str], outputs: Sequence[str]
) -> bool:
    """Whether eager runs it without a warning: what is deprecated (results resized by `out=`) is not compared."""
    always = torch.is_warn_always_enabled()
    torch.set_warn_always(True)
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):
            return runs(Program(seed, arguments, tuple(statements), tuple(outputs), backward), numbers=True)
    finally:
        torch.set_warn_always(always)


def _acceptable(value: object, most: int) -> bool:
    if not isinstance(value, Tensor) or value.numel() > most or value.ndim > 5:
        return False
    if value.dtype not in (*FLOATS, *INTEGERS, torch.complex64):
        return False
    if value.dtype.is_complex:
        value = value.abs()
    return value.numel() == 0 or bool((value.detach().double().abs() <= LARGEST_VALUE).all())


def _overlaps(value: Tensor) -> bool:
    """Whether two elements may be one memory location; writing to such a tensor has no defined result."""
    reach = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1:
            if stride < reach:
                return True
            reach += stride * (size - 1)
    return False


class _Small(TorchDispatchMode):
    """Refuses operators whose result is far larger than a program's values may be."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if any(isinstance(x, Tensor) and x.numel() > 20 * LARGEST_LONG_TENSOR for x in tree_leaves(out)):
            raise MemoryError
        return out


class _Draft:
    """A program being drawn, with the values that its variables have in eager."""

    def __init__(self, rng: random.Random, seed: int, *, backward: bool) -> None:
        self.rng, self.seed, self.backward = rng, seed, backward
        detaching, wider = DETACHING <= seed < WIDER, WIDER <= seed < LONG
        self.shapes, self.most = (LONG_SHAPES, LARGEST_LONG_TENSOR) if seed >= LONG else (SHAPES, LARGEST_TENSOR)
        self.operations = DETACHING_OPERATIONS if detaching else WIDER_OPERATIONS if wider else OPERATIONS
        self.mutations = DETACHING_MUTATIONS if detaching else WIDER_MUTATIONS if wider else MUTATIONS
        self.dtypes = WIDER_DTYPES if wider else DTYPES
        self.arguments = self._draw_arguments()
        self.statements: list[str] = []
        self.values: dict[str, Tensor] = {}
        self._run_again()

    def finish(self) -> Program | None:
        wanted = self.rng.randint(4, 12)
        for _ in range(4 * wanted):
            if len(self.statements) >= wanted:
                break
            if self.rng.random() < 0.2:
                self._mutate()
            else:
                self._assign()
        program = self._program(self._draw_outputs())
        return program if self.statements and runs(program) else None

    def _draw_arguments(self) -> dict[str, str]:
        texts: dict[str, str] = {}
        home = self.rng.choice(self.shapes)
        for index in range(self.rng.randint(1, 4)):
            related = self.rng.choice(
                [home, home[-1:], (*home[:-1], 1) if home else (), home[::-1], self.rng.choice(self.shapes)]
            )
            shape = home if index == 0 else related
            text = f"draw({shape}, torch.{self.rng.choice(self.dtypes)}, {self.rng.randrange(1000)})"
            texts[f"a{index}"] = self._laid_out(text, len(shape), math.prod(shape), list(texts))
        return texts

    def _laid_out(self, text: str, ndim: int, numel: int, before: list[str]) -> str:
        """The argument as it is, in another layout, or as a view of an earlier argument."""
        kind = self.rng.random()
        if before and kind < 0.12 and not self.backward:
            other = self.rng.choice(before)
            return self.rng.choice(
                [other, f"torch.atleast_1d({other})[..., :2]", f"{other}.reshape(-1)", f"{other}.T", f"{other}[None]"]
            )
        if kind < 0.22 and ndim >= 2:
            return f"{text}.transpose(0, -1)"
        if kind < 0.28 and ndim >= 1 and numel:
            return f"{text}.repeat_interleave(2, -1)[..., ::2]"
        if kind < 0.33 and ndim == 4:
            return f"{text}.contiguous(memory_format=torch.channels_last)"
        if kind < 0.37 and numel < 200:
            return f"{text}.expand(2, *[-1] * {ndim})"
        return text

    def _program(self, outputs: tuple[str, ...]) -> Program:
        return Program(self.seed, self.arguments, tuple(self.statements), outputs, self.backward)

    def _run_again(self) -> None:
        """Computes the variables anew, since a refused mutation may have changed some."""
        program = self._program(())
        scope: dict[str, Any] = dict(NAMES)
        scope |= dict(zip(self.arguments, prepared(program.make_arguments()), strict=True))
        for statement in self.statements:
            exec(statement, scope)
        names = [*self.arguments, *(line.split(" = ")[0] for line in self.statements if " = " in line)]
        self.values = {name: scope[name] for name in dict.fromkeys(names) if isinstance(scope.get(name), Tensor)}

    def _execute(self, statement: str) -> dict[str, Any] | None:
        scope = dict(NAMES) | self.values
        if self.most > LARGEST_TENSOR and self._is_huge(statement):
            return None
        try:
            exec(statement, scope)
        except (RuntimeError, IndexError, ValueError, TypeError, AttributeError, ArithmeticError, AssertionError):
            return None
        return scope

    def _is_huge(self, statement: str) -> bool:
        """Whether shapes alone tell that the statement would take gigabytes on its way."""
        scope = dict(NAMES) | {name: torch.empty_like(value, device="meta") for name, value in self.values.items()}
        try:
            with torch.no_grad(), torch.device("meta"), _Small():
                exec(statement, scope)
        except Exception as refusal:  # others: it reads values, or eager refuses it
            return isinstance(refusal, MemoryError)
        return False

    def _draw_from(self, table: Mapping[Operation, int]) -> str | None:
        operation = self.rng.choices(list(table), list(table.values()))[0]
        try:
            return operation(Scope(self.rng, self.values))
        except (Impossible, RuntimeError):  # RuntimeError: a part of a tensor that was written to since may not be read
            return None

    def _assign(self) -> None:
        expression = self._draw_from(self.operations)
        name = f"v{len(self.statements)}"
        scope = self._execute(f"{name} = {expression}") if expression else None
        if scope is not None and _acceptable(scope[name], self.most):
            self.values[name] = scope[name]
            self.statements.append(f"{name} = {expression}")

    def _mutate(self) -> None:
        statement = self._draw_from(self.mutations)
        if statement is None:
            return
        versions = {name: value._version for name, value in self.values.items()}
        try:
            ran = self._execute(statement) is not None and all(_acceptable(v, self.most) for v in self.values.values())
        except RuntimeError:  # a view that may not be used once its base was written to
            ran = False
        changed = [value for name, value in self.values.items() if value._version != versions[name]]
        if ran and not any(map(_overlaps, changed)):
            self.statements.append(statement)
        else:
            self._run_again()

    def _draw_outputs(self) -> tuple[str, ...]:
        body = "\n".join(self.statements)
        unused = [name for name in self.values if name not in self.arguments and body.count(name) == 1]
        kept = [name for name in unused if self.rng.random() < 0.85][-4:]
        extra = [name for name in self.values if self.rng.random() < 0.1]
        special = [text for text in ("None", "7") if self.rng.random() < 0.04]
        last = [] if kept else [list(self.values)[-1]]
        return tuple(dict.fromkeys([*kept, *extra, *special, *last]))


def prepared(args: Any) -> Any:
    """What a program gets for its arguments: clones of those that require grad, since it may mutate them."""
    return tuple(arg.clone() if isinstance(arg, Tensor) and arg.requires_grad else arg for arg in args)


def runs(program: Program, *, numbers: bool = False) -> bool:
    """Whether eager accepts the program, its backward included, and, if asked, its gradients are ``numbers``."""
    try:
        with torch.set_grad_enabled(program.backward):
            made = program.make_arguments()
            arguments = prepared(made)
            results = (*define(program.source())(*arguments), *arguments)
            roots = [r for r in results if isinstance(r, Tensor) and r.requires_grad]
            if program.backward and not roots:
                return False
            if roots:
                torch.autograd.backward(roots, [torch.ones_like(root) for root in roots])
    except (
        RuntimeError,
        IndexError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        NameError,
        UserWarning,
    ):
        return False
    return not (numbers and any(x.grad is not None and bool(x.grad.isnan().any()) for x in made))

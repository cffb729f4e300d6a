"""What identifies a compiled graph: everything on which the generated code depends, by named fields. Nodes are numbered
and symbols renamed in the order of their appearance, so that the names that a trace happened to choose do not matter;
neither do the user's file names and lines."""

import hashlib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import attrgetter
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from gyrator import torch_compat
from gyrator.cache.store import digest, files_digest
from gyrator.config import Config
from gyrator.ir.symbols import evaluated, python_text
from gyrator.ir.volume import rounded_hint
from gyrator.origin import origin_of
from gyrator.version import __version__

_OF_TORCH = (torch.dtype, torch.device, torch.layout, torch.memory_format, OpOverload)
_PLAIN = (bool, int, float, complex, str, type(None), type(...), *_OF_TORCH)
_SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
_NAME = re.compile(r"\b[A-Za-z_]\w*\b")
_SYMBOL = re.compile(r"\b[A-Za-z_]\w*\d\b")
_LIBRARIES = ("torch", "_operator", "math", "builtins")


class _Uncacheable(Exception):
    """A graph holds something that has no canonical text, so that it cannot be found again."""


@dataclass(frozen=True, slots=True)
class Key:
    """The fields of a graph's identity, each as a digest, and the digest of them all.
    `symbols` maps the canonical names of the graph's size symbols to those of the trace."""

    fields: Mapping[str, str]
    digest: str
    symbols: Mapping[str, str]


def graph_key(
    graph: fx.GraphModule,
    config: Config,
    about: str = "",
    *,
    captured: Sequence[object] | None = None,
    shape_env: ShapeEnv | None = None,
    target: str = "",
) -> Key | None:
    """The key of a functional ATen graph, or of a captured one, with torch's functions and the user's lines.

    None for one that is compiled anew each time: with arguments that are neither numbers, tensors nor names, or with
    modules; a captured one also with functions or operators that are not torch's own, whose code may change.

    Args:
        graph: nodes with `meta["val"]`, unless it was captured.
        config: its options that shape code.
        about: what roles outputs have. Of a captured graph, which inputs require gradients, which share memory.
        captured: the inputs of a captured graph: fake tensors, sizes and scalars, one per placeholder.
        shape_env: what is known of the graph's symbols.
        target: the compiler, its flags and the instruction set."""
    writer = _Writer(captured=captured is not None)
    try:
        if captured is None:
            texts = {"roles of outputs": about}
        else:
            texts = {"inputs": "\n".join([*map(writer.meta, captured), about]), "modes": _modes()}
        texts["graph"] = "\n".join(writer.graph(graph))
        texts["facts about sizes"] = "" if shape_env is None else "\n".join(writer.facts(shape_env))
    except _Uncacheable:
        return None
    deterministic, precision = torch.are_deterministic_algorithms_enabled(), torch_compat.float32_matmul_precision()
    texts |= {
        "constants": "\n".join(writer.constants),
        "options": config.key(),
        "gyrator": f"{__version__} {source_digest()}",
        "torch": torch.__version__,
        "target": target,
        "global state": repr((torch.get_default_dtype(), deterministic, precision)),
    }
    fields = {name: digest(text) for name, text in texts.items()}
    whole = digest("\n".join(f"{name}={value}" for name, value in sorted(fields.items())))
    return Key(fields, whole, {new: old for old, new in writer.symbols.items()})


def differing(key: Key, others: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """Why `key` was not found: the fields in which it differs from the most similar of the stored keys' fields."""
    differences = (tuple(name for name in key.fields if fields.get(name) != key.fields[name]) for fields in others)
    return min(differences, key=len, default=tuple(key.fields))


@lru_cache(maxsize=1)
def source_digest() -> str:
    """A digest of gyrator's own sources and headers: another compiler makes other code."""
    root = Path(__file__).resolve().parent.parent
    return files_digest(*sorted(path for path in root.rglob("*") if path.suffix in (".py", ".h", ".cpp", ".txt")))


def _modes() -> str:
    """The state under which a trace records other operators or other gradients."""
    cuda, mkldnn = torch.backends.cuda, torch.backends.mkldnn
    gradients = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_anomaly_enabled()
    autocast = [(kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")]
    kernels = cuda.flash_sdp_enabled, cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled, cuda.cudnn_sdp_enabled
    others = torch.is_autocast_cache_enabled(), mkldnn.is_available() and mkldnn.enabled
    return repr((gradients, autocast, [enabled() for enabled in kernels], others))


@lru_cache(maxsize=1 << 12)
def _printed(expr: Any) -> tuple[str, frozenset[str]]:
    """The text of an expression and the names in it, which take sympy a millisecond; all keys of a program ask."""
    return str(expr), frozenset(symbol.name for symbol in expr.free_symbols)


class _Writer:
    """Writes one graph; remembers which names it gave to symbols."""

    def __init__(self, *, captured: bool = False) -> None:
        self.captured = captured
        self.symbols: dict[str, str] = {}
        self.constants: list[str] = []

    def graph(self, module: fx.GraphModule) -> Iterator[str]:
        numbers: dict[fx.Node, int] = {}
        for node in module.graph.nodes:
            args = ", ".join(self.value(a, numbers) for a in node.args)
            kwargs = ", ".join(f"{k}={self.value(v, numbers)}" for k, v in sorted(node.kwargs.items()))
            if node.op == "call_module":
                raise _Uncacheable(f"a call of the module {node.target}, whose code and tensors may change")
            target = "" if node.op in ("placeholder", "output") else self.target(node.target)
            meta = self.meta(node.meta.get("val"))
            bindings = sorted(str(s) for s in node.meta.get("unbacked_bindings") or ())
            unbacked = " ".join(self.renamed(s) for s in bindings)
            place = str(origin_of(node)) if self.captured else ""
            yield f"%{len(numbers)} {node.op} {target}({args}; {kwargs}) -> {meta} {unbacked}{place}"
            numbers[node] = len(numbers)
            if node.op == "get_attr":
                yield from self.attribute(module, str(node.target))

    def attribute(self, module: fx.GraphModule, path: str) -> Iterator[str]:
        found = attrgetter(path)(module)
        if isinstance(found, fx.GraphModule):
            if self.captured and torch_compat.checkpoint_policy(found) is not None:
                raise _Uncacheable("a checkpoint's policy, a function of the user's")
            yield from ("{", *self.graph(found), "}")
        elif isinstance(found, torch.Tensor):
            if isinstance(found, torch._subclasses.FakeTensor) or found.device.type != "cpu":
                raise _Uncacheable(f"a constant on {found.device}")
            content = hashlib.sha256(torch_compat.raw_bytes(found)).hexdigest()
            self.constants.append(f"{path} {self.meta(found)} {content}")
        else:
            raise _Uncacheable(f"attribute {path} of type {type(found).__name__}")

    def target(self, target: object) -> str:
        of_library = isinstance(target, (OpOverload, OpOverloadPacket))
        if of_library and self.captured and str(target).partition(".")[0] not in ("aten", "prims"):
            raise _Uncacheable(f"a call of {target}, whose gradient may change")
        if isinstance(target, HigherOrderOperator) and str(target).startswith("triton_kernel"):
            raise _Uncacheable("a Triton kernel, which only this process knows by its number")
        if of_library or isinstance(target, (str, HigherOrderOperator)):
            return str(target)
        # a function of torch's or Python's own, by the name under which it is found again
        name = torch_compat.qualified_name(target) or ""
        name = name if "." in name else f"builtins.{name}"
        root, _, rest = name.partition(".")
        found = reduce(lambda outer, part: getattr(outer, part, None), rest.split("."), sys.modules.get(root))
        if root not in _LIBRARIES or found is not target:
            raise _Uncacheable(f"a call of {target}")
        return name

    def value(self, value: object, numbers: Mapping[fx.Node, int]) -> str:
        if isinstance(value, fx.Node):
            return f"%{numbers[value]}"
        if isinstance(value, (list, tuple)):
            kind = "list" * isinstance(value, list)  # x[[0, 1]] is not x[0, 1]
            return f"{kind}[{', '.join(self.value(v, numbers) for v in value)}]"
        if isinstance(value, slice):
            return f"slice{self.value((value.start, value.stop, value.step), numbers)}"
        if isinstance(value, _SYMBOLIC):
            return self.number(value)
        if isinstance(value, dict):
            return "{" + ", ".join(f"{k!r}: {self.value(v, numbers)}" for k, v in value.items()) + "}"
        if isinstance(value, _PLAIN):
            return repr(value)
        raise _Uncacheable(f"an argument of type {type(value).__name__}")

    def meta(self, value: object) -> str:
        if isinstance(value, torch.Tensor):
            if value.layout is not torch.strided:
                raise _Uncacheable(f"a tensor of layout {value.layout}")
            sizes = (*value.shape, "@", *value.stride(), "+", value.storage_offset())
            dims = " ".join(self.number(s) if isinstance(s, torch.SymInt) else str(s) for s in sizes)
            flags = f"{'c' if value.is_conj() else ''}{'n' if value.is_neg() else ''}"
            known = torch_compat.number_behind(value)
            return f"{value.dtype}{flags} {value.device} [{dims}]{'' if known is None else self.number(known)}"
        if isinstance(value, (list, tuple)):
            return f"({', '.join(self.meta(v) for v in value)})"
        if isinstance(value, _SYMBOLIC):
            return self.number(value)
        return repr(value) if isinstance(value, (bool, int, float, str, type(None))) else type(value).__name__

    def number(self, number: torch.SymInt | torch.SymFloat | torch.SymBool) -> str:
        expr = number.node.expr
        return repr(torch_compat.plain_number(expr)) if expr.is_number else self.renamed(_printed(expr)[0])

    def renamed(self, text: str) -> str:
        """An expression with canonical names of symbols: letters of torch's names, numbered by appearance."""

        def new(match: re.Match[str]) -> str:
            old = match.group()
            return self.symbols.setdefault(old, f"{old.rstrip('0123456789')}_{len(self.symbols)}")

        return _SYMBOL.sub(new, text)

    def facts(self, shape_env: ShapeEnv) -> Iterator[str]:
        """Ranges of the graph's symbols, their hints as cost models know them, and guards that speak of them alone."""
        known = dict(self.symbols)
        for symbol, bounds in shape_env.var_to_range.items():
            if symbol.name in known:
                hint = torch_compat.symbol_hint(shape_env, symbol)
                about = rounded_hint(hint) if isinstance(hint, int) else None
                yield f"{known[symbol.name]} in {bounds.lower} {bounds.upper} about {about}"
        for guard in shape_env.guards:
            text, names = _printed(guard.expr)
            if names and names <= known.keys():
                yield self.renamed(text)


# -- facts about sizes: texts of arithmetic, on which nothing is run as Python -----------------------------------------
def new_facts(shape_env: ShapeEnv, before: int, canonical: Mapping[str, str]) -> list[str]:
    """The guards that were added since there were `before` of them, as text over canonical names of symbols.

    Raises: ValueError if one has no text that can be read again, or speaks of a symbol without a canonical name."""
    facts = []
    for guard in shape_env.guards[before:]:
        if unknown := [s.name for s in guard.expr.free_symbols if s.name not in canonical]:
            raise ValueError(f"{guard.expr} speaks of {unknown[0]}")
        text = _NAME.sub(lambda m: canonical.get(m.group(), m.group()), python_text(guard.expr))
        hints = {canonical[s.name]: torch_compat.symbol_hint(shape_env, s) for s in guard.expr.free_symbols}
        if None in hints.values() or not holds(text, hints):
            raise ValueError(f"{text} reads otherwise than {guard.expr}")
        facts.append(text)
    return facts


def holds(fact: str, sizes: Mapping[str, object]) -> bool:
    """Whether a fact is true of these sizes; if they are symbolic, torch guards it from now on.

    Raises: ValueError for a text that is no arithmetic on known sizes."""
    try:
        return bool(evaluated(fact, sizes))
    except (ArithmeticError, AssertionError, SyntaxError, TypeError) as error:
        raise ValueError(f"{fact} is no fact about sizes") from error


def all_hold(facts: Iterable[object], symbols: Mapping[str, str], inputs: Sequence[object]) -> bool:
    """Whether every fact is true of a graph's inputs; False also for a text that cannot be read.

    `symbols` gives for the names in the facts the inputs' own."""
    known = {n.node.expr.name: n for n in torch_compat.symbolic_numbers(inputs) if n.node.expr.is_symbol}
    sizes = {new: known[old] for new, old in symbols.items() if old in known}
    try:
        return all(holds(str(fact), sizes) for fact in facts)
    except ValueError:
        return False

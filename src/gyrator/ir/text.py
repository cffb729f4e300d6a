"""Readable, stable text of programs and kernels: for dumps, reports, golden tests and people.

    program softmax(B >= 1, N >= 1, x: f32[B, N]) {
      # model.py:7 in forward: aten._softmax.default
      m: f32[B] = nest i0 < B: max over r0 < N of x[i0, r0]
      y: f32[B, N] = nest i0 < B, i1 < N: exp(x[i0, i1] - m[i0])
      return y
    }

A value's strides are written where they are not row-major. An expression that is used more than once in a
nest gets a name (``%0``), so the text is as long as the data."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import torch

from gyrator.ir import program as ir
from gyrator.ir.expr import Const, Expr, IndexValue, Load, Op, Ref, Value, count_uses, expr_text, short
from gyrator.ir.index import Atom, Index, Indirect, Size, atom_text, contiguous_strides
from gyrator.ir.tree import Attend, Contract, Kernel, Let, Loop, LoopKind, Param, Stage, Store, Update, walk_exprs
from gyrator.origin import places_of

COMBINES = {"set": "=", "add": "+=", "mul": "*=", "max": "max=", "min": "min="}
"""The ways to combine what is stored with what was there, and their text."""
_MENTIONED = re.compile(r"(?<![\w.])[A-Za-z_]\w*(?![\w(])")
"""What may be a value's name, and is no operator's or function's."""


def program_text(program: ir.Program) -> str:
    """The whole program, one line per node and named subexpression."""
    lines = [f"program {program.name}({', '.join(map(_input_text, program.inputs))}) {{"]
    lines += [f"  {declared(c)} = constant" for c in program.constants]
    lines += [f"  {_size_text(d.size)} = {f'{d.source}: ' if d.source else ''}{d.text}" for d in program.derived]
    lines += [f"  {line}" for node in program.nodes for line in node_text(node).splitlines()]
    lines += [f"  update {u.target} = {_view_text(u.value)}" for u in program.updates]
    lines.append(f"  return {', '.join(_arg_text(o) for o in program.outputs)}".rstrip())
    return "\n".join([*lines, "}"]) + "\n"


def node_text(node: ir.Node) -> str:
    """One node of a program, after a comment for each place of the user's program that it comes from."""
    return "\n".join([*(f"# {place}" for place in places_of(node.origins)), *_node_lines(node)])


def canonical_text(nodes: Sequence[ir.Node], shown: Collection[Value] = ()) -> str:
    """Nodes, what is known of their values and which are ``shown``, without the user's places. Values are called by the
    order in which they are mentioned, so that equal work has equal text, whatever its graph and process."""
    values = {value.name: value for node in nodes for value in (*ir.uses(node), *ir.defines(node))}
    text = "\n".join(node_text(replace(node, origins=())) for node in nodes)
    mentioned = [values[word] for word in dict.fromkeys(_MENTIONED.findall(text)) if word in values]
    lines = [declared(value) + " is shown" * (value in shown) for value in mentioned]
    names = {value.name: f"v{k}" for k, value in enumerate(mentioned)}
    return _MENTIONED.sub(lambda word: names.get(word.group(), word.group()), "\n".join([*lines, text]))


def _input_text(given: ir.Input) -> str:
    if given.value is not None:
        return declared(given.value) + (" (a number)" if given.number else " (complex)" if given.complex else "")
    return "_" if given.size is None else _size_text(given.size)


def _size_text(size: Size) -> str:
    return f"{size.name} >= {size.lo}" + ("" if size.hi is None else f" <= {size.hi}")


def declared(value: Value) -> str:
    """A value with all that is known of it: ``x: f32[4, 8] strides (1, 4) on cuda:0``."""
    text = f"{value.name}: {short(value.dtype)}[{listed(value.shape)}]"
    if value.strides != contiguous_strides(value.shape):
        text += f" strides ({listed(value.strides)})"
    return text if value.device.type == "cpu" else f"{text} on {value.device}"


def _node_lines(node: ir.Node) -> list[str]:
    results = ", ".join("_" if v is None else declared(v) for v in node.out)
    if isinstance(node, ir.Extern):
        return [_extern_text(node, results)]
    names = _Names(_shared(ir.expressions(node.root)))
    body = _root_text(node.root, names)
    head = f"{results} = nest {', '.join(f'{a} < {a.extent}' for a in node.axes)}".rstrip()
    lets = names.definitions()
    return [f"{head}: {body}"] if not lets else [f"{head}:", *(f"  {let}" for let in lets), f"  {body}"]


def _root_text(root: ir.Root, names: _Names) -> str:
    match root:
        case ir.Pointwise(body):
            return names.expr(body)
        case ir.Reduce(kind, reduced, body):
            over = ", ".join(f"{a} < {a.extent}" for a in reduced)
            return f"{kind} over {over} of {', '.join(map(names.expr, body))}"
        case ir.Scan(kind, axis, body):
            return f"scan {kind} along {axis} of {', '.join(map(names.expr, body))}"
        case ir.Scatter(into, index, body, combine):
            return f"{into} with [{names.indices(index)}] {COMBINES[combine]} {names.expr(body)}"


def _extern_text(node: ir.Extern, results: str) -> str:
    args = [_arg_text(a) for a in node.args] + [f"{k}={_arg_text(a)}" for k, a in node.kwargs]
    text = f"{node.op}({', '.join(args)})"
    made = [results] if node.out else []
    made += [f"{declared(new)} (of {old})" for old, new in node.mutates]
    made += [_size_text(s) for s in node.scalars]
    if made:
        text = f"{', '.join(made)} = {text}"
    return f"{text} with effects" if node.effects else text


def _arg_text(arg: ir.Arg | ir.Output) -> str:
    match arg:
        case ir.View():
            return _view_text(arg)
        case ir.Item(view):
            return f"{_view_text(view)}.item()"
        case tuple(items):
            return f"[{', '.join(map(_arg_text, items))}]"
    return str(arg) if isinstance(arg, Index | torch.dtype | torch.device | torch.layout) else repr(arg)


def _view_text(view: ir.View) -> str:
    value = view.value
    text, offset = value.name, f", {view.offset}" * (view.offset.value != 0)
    if offset or (view.shape, view.strides) != (value.shape, value.strides):
        text += f".view(({listed(view.shape)}), ({listed(view.strides)}){offset})"
    return text if view.dtype in (None, value.dtype) else f"{text}.bits({short(view.dtype)})"


def kernel_text(kernel: Kernel) -> str:
    """A loop tree, one line per loop and stage."""
    params = [_param_text(p) for p in kernel.params] + [_size_text(s) for s in kernel.sizes]
    lines = [*(f"# {place}" for place in places_of(kernel.origins)), f"kernel {kernel.name}({', '.join(params)}) {{"]
    lines += [f"  scratch {declared(v)}" for v in kernel.scratch]
    return "\n".join([*lines, *_block_lines(kernel.body, _Names(_shared(walk_exprs(kernel.body))), "  "), "}"]) + "\n"


def _param_text(param: Param) -> str:
    how = {(True, False): "", (False, True): "out ", (True, True): "inout ", (False, False): "unused "}
    alias = "" if param.alias is None else f" at {param.alias}"
    return f"{how[param.read, param.written]}{declared(param.value)}{alias}{' last' * param.last}"


def _block_lines(body: Iterable[Loop | Stage], names: _Names, indent: str) -> list[str]:
    """Stages line by line; a shared subexpression is named at its first use in each block that needs it."""
    outside = dict(names.known)
    lines: list[str] = []
    for item in body:
        if isinstance(item, Loop):
            lines.append(f"{indent}{_loop_text(item)}:")
            lines += _block_lines(item.body, names, indent + "  ")
        else:
            text = _stage_text(item, names)
            lines += [f"{indent}{let}" for let in names.definitions()]
            lines.append(indent + text)
    names.known = outside
    return lines


def _stage_text(stage: Stage, names: _Names) -> str:
    match stage:
        case Let(name, expr):
            return f"{name}: {short(name.dtype)} = {names.expr(expr)}"
        case Store(value, index, expr, combine, atomic):
            text = f"{value}[{names.indices(index)}] {COMBINES[combine]} {names.expr(expr)}"
            return f"atomic {text}" if atomic else text
        case Update(carry, args, running):
            text = f"update {carry} with {', '.join(map(names.expr, args))}"
            return f"{text} -> {_refs(running)}" if running else text
        case Contract(name, left, right, _, _, _, _, template):
            operands = [names.expr(e) for e in stage.elements] or [_view_text(left), _view_text(right)]
            groups = f" in groups to {_view_text(stage.ends)}" if stage.ends is not None else ""
            return f"{name}: {short(name.dtype)} = {' times '.join(operands)}{groups} by {template}"
        case Attend():
            return str(stage)


def _loop_text(loop: Loop) -> str:
    lanes = f" by {loop.lanes}" if loop.kind is LoopKind.LANES else ""
    grain = f" grain {loop.grain}" if loop.grain else ""
    carries = "".join(f", carry {c.name} = {c.kind} -> {_refs(c.results)}" for c in loop.carries)
    return f"{loop.kind.value} {loop.axis} < {loop.axis.extent}{lanes}{grain}{carries}"


def _refs(refs: tuple[Ref | None, ...]) -> str:
    return ", ".join("_" if r is None else f"{r}: {short(r.dtype)}" for r in refs)


def _shared(roots: Iterable[Expr]) -> tuple[Expr, ...]:
    """The expressions used more than once, but for short ones that are as clear as a name."""
    return tuple(e for e, n in count_uses(roots).items() if n > 1 and not _is_short(e))


def _is_short(expr: Expr) -> bool:
    match expr:
        case Const() | Ref() | IndexValue():
            return True
        case Load(_, index, mask, _):
            return mask is None and not any(i.indirects() for i in index)
        case Op("cast", (arg,), _):
            return _is_short(arg)
    return False


class _Names:
    """Prints expressions; each of ``shared`` becomes a definition ``%k = …``, and its name stands while ``known``."""

    def __init__(self, shared: tuple[Expr, ...]) -> None:
        self._shared = frozenset(shared)
        self._number: dict[Expr, int] = {}
        self.known: dict[Expr, str] = {}
        self._pending: list[str] = []

    def definitions(self) -> list[str]:
        """The definitions made since the last call."""
        made, self._pending = self._pending, []
        return made

    def expr(self, expr: Expr, within: bool = False) -> str:
        """The text of ``expr``; ``within`` another infix operator it is put in parentheses."""
        if expr not in self._shared:
            return expr_text(expr, self.expr, self.index, within)
        if expr not in self.known:
            text = expr_text(expr, self.expr, self.index, False)
            self.known[expr] = f"%{self._number.setdefault(expr, len(self._number))}"
            self._pending.append(f"{self.known[expr]} = {text}")
        return self.known[expr]

    def indices(self, indices: tuple[Index, ...]) -> str:
        return ", ".join(map(self.index, indices))

    def index(self, index: Index) -> str:
        return index.text(self._atom) if index.indirects() else str(index)

    def _atom(self, atom: Atom) -> str:
        return self.expr(atom.value, within=True) if isinstance(atom, Indirect) else atom_text(atom, self.index)


def listed(indices: Iterable[Index]) -> str:
    """Indices side by side."""
    return ", ".join(map(str, indices))

"""Which values backward may compute again, and what computing or saving them costs.

view                     free, never saved
pointwise, fill, gather  free where it fuses into its reader
reduction                only if its result is not far smaller than what it reads
equality of floats       never: other numbers may be equal when they are computed again
random                   never, unless its seed is a value of the graph
others                   matrix products, convolutions, attention, sorts: not by default"""

import operator
from collections.abc import Iterator, Sequence
from enum import Enum
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from gyrator.autograd import ops
from gyrator.autograd.builder import GraphBuilder, flatten
from gyrator.autograd.effects import Effect, arguments, behaviour
from gyrator.autograd.symbols import SYMBOLIC_TYPES
from gyrator.ir.symbols import hint_of

UNKNOWN_SIZE = 4096
"""What an unbacked size counts as."""
REDUCTION_RATIO = 4
"""A reduction whose result is this many times smaller than its input is saved rather than repeated."""
Cost = Enum("Cost", "VIEW POINTWISE EQUALITY REDUCTION HEAVY RANDOM NUMBER")
"""What it takes to compute a node again."""

_POINTWISE = frozenset(
    "clone copy where full full_like zeros ones zeros_like ones_like empty empty_like new_zeros new_full "
    "scalar_tensor arange iota fill constant_pad_nd cat index gather _unsafe_index embedding select_scatter "
    "slice_scatter triu tril repeat flip lift_fresh_copy convert_element_type restride masked_fill empty_strided "
    "eye index_select _to_copy rand randn".split()  # the last two of a seed: ATen's draws are random
)
_OF_NUMBERS = frozenset({"_operator", "math", "builtins", "torch", "torch.fx.experimental.sym_node"})
"""Modules whose functions compute sizes and other numbers."""


@cache
def _cost_of(target: Any) -> Cost:
    if target is operator.getitem:
        return Cost.VIEW
    if not isinstance(target, OpOverload):
        return Cost.NUMBER if getattr(target, "__module__", None) in _OF_NUMBERS else Cost.HEAVY
    if torch.Tag.nondeterministic_seeded in target.tags:
        return Cost.RANDOM
    if behaviour(target).effect is Effect.VIEW:
        return Cost.VIEW
    namespace, _, base = target._schema.name.partition("::")
    if namespace in ("aten", "prims", "gyrator"):
        if torch.Tag.reduction in target.tags:
            return Cost.REDUCTION
        if base in ("eq", "ne"):
            return Cost.EQUALITY
        if base in _POINTWISE or torch.Tag.pointwise in target.tags:
            return Cost.POINTWISE
    return Cost.HEAVY


def cost(node: Node) -> Cost:
    """What computing `node` again takes."""
    if node.op != "call_function":
        return Cost.VIEW
    kind = _cost_of(node.target)
    if kind is Cost.EQUALITY:
        values = [source.meta.get("val") for source in node.all_input_nodes]
        return kind if any(isinstance(v, Tensor) and v.is_floating_point() for v in values) else Cost.POINTWISE
    return Cost.HEAVY if kind is Cost.RANDOM and _drops_nothing(node) else kind


def _drops_nothing(node: Node) -> bool:
    """Whether a node is attention without dropout, which draws no numbers though its operator may."""
    given = arguments(node.target, node.args, node.kwargs) if isinstance(node.target, OpOverload) else {}
    return "attention" in str(node.target) and given.get("dropout_p", 0.0) == 0.0


def is_copyless(node: Node) -> bool:
    """Whether a node is a view: it reads and writes nothing."""
    return cost(node) is Cost.VIEW and node.op == "call_function" and node.target is not operator.getitem


def readers(node: Node) -> Iterator[Node]:
    """The users of a value and of its views."""
    for user in node.users:
        yield user
        if is_copyless(user):
            yield from readers(user)


def fusible(node: Node) -> bool:
    """Whether a node can be part of its readers' kernel."""
    return cost(node) in (Cost.VIEW, Cost.POINTWISE, Cost.EQUALITY, Cost.REDUCTION)


def size_hint(size: Any) -> int:
    """A size as a number; a symbolic one of hints as keys have them, for choices that are the same for equal keys."""
    if not isinstance(size, SYMBOLIC_TYPES):
        return int(size)
    hint = hint_of(size.node.expr, size.node.shape_env, rounded=True)
    return UNKNOWN_SIZE if hint is None else hint


def tensor_bytes(value: Any) -> int:
    """Bytes of a tensor's elements, or of all tensors of a tuple; 0 for anything else."""
    return sum(prod(map(size_hint, x.shape)) * x.dtype.itemsize for x in flatten(value) if isinstance(x, Tensor))


def work(node: Node) -> int:
    """About how many operations computing a node takes, itself alone."""
    name = node.target._schema.name.partition("::")[2] if isinstance(node.target, OpOverload) else ""
    written = sum(prod(map(size_hint, x.shape)) for x in flatten(node.meta.get("val")) if isinstance(x, Tensor))
    values = [arg.meta.get("val") for arg in flatten(node.args) if isinstance(arg, Node)]
    return operations(name, written, [[*map(size_hint, x.shape)] for x in values if isinstance(x, Tensor)])


def operations(op: str, written: int, operands: Sequence[Sequence[int]]) -> int:
    """About how many operations ATen's ``op`` takes, by the elements that it writes and the sizes of its tensors."""
    if op == "_grouped_mm":
        return 2 * prod(operands[0]) * operands[1][-1]
    if op in PRODUCTS and len(operands) >= 2:
        left = operands[1 if "add" in op else 0]
        return 2 * written * (left[-1] if left else 1)
    if op == "convolution" and len(operands) >= 2:
        return 2 * written * prod(operands[1][1:])
    if op == "convolution_backward" and len(operands) >= 3:
        return 4 * prod(operands[0]) * prod(operands[2][1:])
    if "attention" in op and len(operands) >= 2 and len(operands[1]) >= 2:
        return (10 if "backward" in op else 4) * prod(operands[0]) * operands[1][-2]
    return written


PRODUCTS = frozenset("mm bmm addmm _addmm_activation baddbmm _int_mm addmv mv dot _scaled_mm _grouped_mm".split())
"""ATen's products of matrices and vectors; what is added comes first."""


def reduces(node: Node) -> bool:
    """Whether a node's result is far smaller than what it reads."""
    read = sum(tensor_bytes(source.meta.get("val")) for source in node.all_input_nodes)
    return tensor_bytes(node.meta.get("val")) * REDUCTION_RATIO < read


_PURE = {getattr(torch.ops.aten, name).default: getattr(ops, name) for name in ("rand", "randn")}


def seed_recomputed(build: GraphBuilder) -> None:
    """Rewrites the draws that backward is to repeat, in a region that it computes again, as functions of a saved seed:

    r = aten.rand([4, 8])     →     s = gyrator.seeds(1, cpu);  r = gyrator.rand([4, 8], s, 0, float32, cpu)"""
    draws: dict[torch.device, list[Node]] = {}
    for node in build.graph.nodes:
        if node.op == "call_function" and node.target in _PURE and node.meta.get("repeated"):
            draws.setdefault(node.meta["val"].device, []).append(node)
    build.origin = {}
    for device, nodes in draws.items():
        with build.graph.inserting_before(nodes[0]):
            seeds = build.call(ops.seeds, (len(nodes), device), {})
        for slot, node in enumerate(nodes):
            args: tuple[Any, ...] = (node.args[0], seeds, slot, node.meta["val"].dtype, device)
            with build.graph.inserting_before(node):
                seeded = build.graph.call_function(_PURE[node.target], args)
            seeded.meta = node.meta
            node.replace_all_uses_with(seeded)
            build.graph.erase_node(node)

"""Which values backward may compute again, and what computing or saving them costs.

view                     free, never saved
pointwise, fill, gather  free where it fuses into its reader
reduction                only if its result is not far smaller than what it reads
random                   never, unless its seed is a value of the graph
others                   matrix products, convolutions, attention, sorts: not by default
"""

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.fx import Node

from gyrator.autograd.builder import flatten
from gyrator.autograd.effects import Effect, arguments, behaviour
from gyrator.autograd.symbols import SYMBOLIC_TYPES

UNKNOWN_SIZE = 4096
"""What an unbacked size counts as."""

REDUCTION_RATIO = 4
"""A reduction whose result is this many times smaller than its input is saved rather than repeated."""


class Cost(Enum):
    """What it takes to compute a node again."""

    VIEW = auto()
    POINTWISE = auto()
    REDUCTION = auto()
    HEAVY = auto()
    RANDOM = auto()
    NUMBER = auto()


_POINTWISE = frozenset(
    """
    clone copy where full full_like zeros ones zeros_like ones_like empty empty_like new_zeros new_full
    scalar_tensor arange iota fill constant_pad_nd cat index gather _unsafe_index embedding select_scatter
    slice_scatter triu tril repeat flip lift_fresh_copy convert_element_type restride masked_fill empty_strided
    eye index_select _to_copy
    """.split()
)
_REDUCTIONS = frozenset(
    """
    sum mean var var_mean std std_mean amax amin prod any all argmax argmin logsumexp aminmax max min
    linalg_vector_norm
    """.split()
)
_SEEDED = frozenset({"gyrator::rand", "gyrator::randn"})
_OF_NUMBERS = frozenset({"_operator", "math", "builtins", "torch", "torch.fx.experimental.sym_node"})
"""Modules whose functions compute sizes and other numbers."""


@cache
def _cost_of(target: Any) -> Cost:
    if target is operator.getitem:
        return Cost.VIEW
    if not isinstance(target, OpOverload):
        module = getattr(target, "__module__", None)
        return Cost.NUMBER if module in _OF_NUMBERS else Cost.HEAVY
    name = target._schema.name
    if name in _SEEDED:
        return Cost.POINTWISE
    if torch.Tag.nondeterministic_seeded in target.tags:
        return Cost.RANDOM
    if behaviour(target).effect is Effect.VIEW:
        return Cost.VIEW
    base = name.partition("::")[2]
    if name.startswith(("aten::", "prims::", "gyrator::")):
        if base in _REDUCTIONS:
            return Cost.REDUCTION
        if base in _POINTWISE or torch.Tag.pointwise in target.tags:
            return Cost.POINTWISE
    return Cost.HEAVY


def cost(node: Node) -> Cost:
    """What computing `node` again takes."""
    if node.op != "call_function":
        return Cost.VIEW
    kind = _cost_of(node.target)
    return Cost.HEAVY if kind is Cost.RANDOM and _drops_nothing(node) else kind


def _drops_nothing(node: Node) -> bool:
    """Whether a node is attention without dropout, which draws no numbers though its operator may."""
    given = arguments(node.target, node.args, node.kwargs) if isinstance(node.target, OpOverload) else {}
    return "attention" in str(node.target) and given.get("dropout_p", 0.0) == 0.0


def is_copyless(node: Node) -> bool:
    """Whether a node is a view: it reads and writes nothing."""
    return cost(node) is Cost.VIEW and node.op == "call_function" and node.target is not operator.getitem


def fusible(node: Node) -> bool:
    """Whether a node can be part of its readers' kernel."""
    return cost(node) in (Cost.VIEW, Cost.POINTWISE, Cost.REDUCTION)


def size_hint(size: Any) -> int:
    """A size as a number: its hint where it is symbolic."""
    if isinstance(size, SYMBOLIC_TYPES):
        hint = size.node.hint if size.node.has_hint() else None
        return UNKNOWN_SIZE if hint is None else int(hint)
    return int(size)


def tensor_bytes(value: Any) -> int:
    """Bytes of a tensor's elements, or of all tensors of a tuple; 0 for anything else."""
    return sum(_elements(item) * item.dtype.itemsize for item in flatten(value) if isinstance(item, Tensor))


def _elements(tensor: Tensor) -> int:
    return prod(map(size_hint, tensor.shape))


def work(node: Node) -> int:
    """About how many operations computing a node takes, itself alone."""
    elements = sum(_elements(item) for item in flatten(node.meta.get("val")) if isinstance(item, Tensor))
    name = node.target._schema.name.partition("::")[2] if isinstance(node.target, OpOverload) else ""
    return elements * _PRODUCT_DEPTH.get(name, lambda node: 1)(node)


def _sizes(node: Node, position: int) -> list[int]:
    """The sizes of the operand at `position`."""
    operand = node.args[position]
    assert isinstance(operand, Node)
    return [*map(size_hint, operand.meta["val"].shape)]


_ATTENTION = ("flash_attention_for_cpu", "flash_attention", "efficient_attention")
_PRODUCT_DEPTH: Mapping[str, Callable[[Node], int]] = {
    **dict.fromkeys(("mm", "bmm"), lambda node: 2 * _sizes(node, 0)[-1]),
    **dict.fromkeys(("addmm", "baddbmm"), lambda node: 2 * _sizes(node, 1)[-1]),
    "convolution": lambda node: 2 * prod(_sizes(node, 1)[1:]),
    **{f"_scaled_dot_product_{kind}": lambda node: 4 * _sizes(node, 1)[-2] for kind in _ATTENTION},
}
"""About how many operations each element of a product's result takes."""


@dataclass(frozen=True)
class Ban:
    """A node that backward must not compute again, and why; `negotiable` where a memory budget may overrule it."""

    reason: str
    negotiable: bool


def reduces(node: Node) -> bool:
    """Whether a node's result is far smaller than what it reads."""
    read = sum(tensor_bytes(source.meta.get("val")) for source in node.all_input_nodes)
    return tensor_bytes(node.meta.get("val")) * REDUCTION_RATIO < read

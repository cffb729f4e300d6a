"""oneDNN's linear layer with a unary function, the library's rival of a template with an epilogue.

mm(x, w') + b; relu    →    mkldnn._linear_pointwise(x, w, b, "relu", [], "")        w of N x K, a constant
"""

from __future__ import annotations

from types import MappingProxyType

import torch

from gyrator.ir.expr import Const, Expr, Load, Op
from gyrator.ir.index import ONE, contiguous_strides
from gyrator.ir.program import Extern, ListArg, Program, View, bodies, shown_values, uses
from gyrator.schedule.group import Group
from gyrator.schedule.products import Product

CALL = "mkldnn._linear_pointwise.default"
_UNARY = MappingProxyType({"maximum": "relu", "sigmoid": "sigmoid", "tanh": "tanh"})


def linear_unary(call: Extern, product: Product, group: Group, program: Program) -> Extern | None:
    """One call for a linear layer with a constant weight and the unary function in ``group``.

    Refuses a product that others read, scales, other functions, and a weight or result that does not lie row by row.
    """
    right, constants = product.right, {c.value for c in program.constants}
    readers = [node for node in program.nodes if product.out in uses(node)]
    if len(group.members) != 1 or len(readers) != 1 or product.out in shown_values(program):
        return None
    if right.value not in constants or len(right.shape) != 2 or (product.alpha, product.beta) != (1, 1):
        return None
    (nest,) = (m.nest for m in group.members)
    (out,), (body,) = nest.out, bodies(nest.root)
    weight = View(right.value, right.shape[::-1], right.strides[::-1], right.offset)
    name, bias = _unary(body, product), call.args[0] if product.bias is not None else None
    rows = weight.strides == contiguous_strides(weight.shape) and product.left.strides[-1] is ONE
    if name is None or out is None or not rows or out.strides != contiguous_strides(out.shape):
        return None
    if (out.shape, out.dtype) != (product.out.shape, product.out.dtype) or not torch.backends.mkldnn.is_available():
        return None
    if out.dtype not in (torch.float32, torch.bfloat16) or (isinstance(bias, View) and len(bias.shape) != 1):
        return None
    return Extern((out,), CALL, (product.left, weight, bias, name, ListArg(()), ""), origins=call.origins)


def _unary(expr: Expr, product: Product) -> str | None:
    """The function that an expression applies to the product's element, casts apart."""
    match expr:
        case Op("cast", (inner,)):
            return _unary(inner, product)
        case Op(name, (inner, *rest)) if name in _UNARY and _is_element(inner, product):
            zero = [isinstance(c, Const) and c.value == 0 for c in rest]
            return _UNARY[name] if zero == ([True] if name == "maximum" else []) else None
    return None


def _is_element(expr: Expr, product: Product) -> bool:
    while isinstance(expr, Op) and expr.name == "cast":
        (expr,) = expr.args
    return isinstance(expr, Load) and expr.value is product.out and expr.mask is None

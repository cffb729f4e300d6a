"""Linear layers of a processor: biases that the readers of products add, and oneDNN's linear layer with a unary
function, the library's rival of a template with an epilogue.

mm(x, w') + b; relu    →    mkldnn._linear_pointwise(x, w, b, "relu", [], "")        w of N x K, a constant"""

from collections.abc import Iterator
from dataclasses import replace

import torch

from gyrator.ir.build import axes_of, coords_of, op
from gyrator.ir.expr import Const, Expr, Load, Op, Value
from gyrator.ir.index import ONE, contiguous_strides
from gyrator.ir.program import Extern, Nest, Node, Pointwise, Program, View, bodies, shown_values, uses
from gyrator.schedule.group import Group
from gyrator.schedule.products import FLOATS, Product


def linear_unary(call: Extern, product: Product, group: Group, program: Program) -> Extern | None:
    """One call for a linear layer with a constant weight and the unary function in ``group``.

    Refuses a GPU, a product that others read, scales, other functions, and what does not lie row by row."""
    right, out, nest = product.right, group.members[0].nest.out[0], group.members[0].nest
    read = sum(product.out in uses(node) for node in program.nodes) + (product.out in shown_values(program))
    frozen = right.value in program.constants and len(right.shape) == 2
    if len(group.members) != 1 or read != 1 or not frozen or (product.alpha, product.beta) != (1, 1) or out is None:
        return None
    weight = View(right.value, right.shape[::-1], right.strides[::-1], right.offset)
    name = _unary(bodies(nest.root)[0], Load(product.out, coords_of(nest.axes)))
    bias = call.args[0] if product.bias is not None else None
    rows = weight.strides == contiguous_strides(weight.shape) and product.left.strides[-1] is ONE
    same = (out.shape, out.dtype, out.strides) == (product.out.shape, product.out.dtype, contiguous_strides(out.shape))
    row = not isinstance(bias, View) or len(bias.shape) == 1
    known = out.dtype in (torch.float32, torch.bfloat16) and torch.backends.mkldnn.is_available()
    if name is None or out.device.type != "cpu" or not (rows and same and row and known):
        return None
    args = (product.left, weight, bias, name, (), "")
    return Extern((out,), "mkldnn._linear_pointwise.default", args, origins=call.origins)


def _unary(expr: Expr, element: Load) -> str | None:
    """The function that an expression applies to an ``element``, casts apart; "" for the element itself."""
    match expr:
        case Load():
            return "" if expr is element else None
        case Op("cast", (inner,), dtype) if dtype in FLOATS:
            return _unary(inner, element)
        case Op("sigmoid" | "tanh" as name, (inner,)) if _unary(inner, element) == "":
            return name
        case Op("maximum", (Const(0), inner)) if _unary(inner, element) == "":
            return "relu"
    return None


def add_biases_later(program: Program) -> Program:
    """Take the bias, a vector, from a library's product that nests read.

    Before: ``y = addmm(b, x, w);  z = nest[i, j] relu(y[i, j])``
    after:  ``p = mm(x, w);  y = nest[i, j] p[i, j] + b[j];  z = nest[i, j] relu(y[i, j])``

    The library copies the bias to each row of the result before it adds the product to them: 6% more time than the
    product alone (the median of five sizes from 512x256x256 to 64x768x3072, float32, 2 cores). Refuses where no nest
    reads the result, or a call does; narrower types, whose product is rounded before; and GPUs, which add it first."""
    by_nests = {value for node in program.nodes if isinstance(node, Nest) for value in uses(node)}
    by_calls = {value for node in program.nodes if isinstance(node, Extern) for value in uses(node)}

    def apart(node: Node) -> Iterator[Node]:
        match node:
            case Extern((Value() as out,), "aten.addmm.default", (View() as bias, *args), kwargs=()) if (
                out in by_nests - by_calls and bias.shape == out.shape[1:] and bias.is_full
                and out.device.type == "cpu" and {out.dtype, bias.value.dtype} <= {torch.float32, torch.float64}
            ):  # fmt: skip
                product = replace(out, name=f"{out.name}_product")
                yield replace(node, out=(product,), op="aten.mm.default", args=tuple(args))
                axes = axes_of("i", out.shape)
                at = tuple(axis.index() for axis in axes)
                body = op("add", Load(product, at), Load(bias.value, at[1:]))
                yield Nest((out,), axes, Pointwise(body), node.origins)
            case _:
                yield node

    return replace(program, nodes=tuple(new for node in program.nodes for new in apart(node)))

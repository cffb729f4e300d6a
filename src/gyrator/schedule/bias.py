"""Biases of a processor's matrix products, added by the kernels that read the products."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from gyrator.ir.expr import Load, Op, Value
from gyrator.ir.index import Axis
from gyrator.ir.program import Extern, Nest, Node, Pointwise, Program, View, uses
from gyrator.schedule.plan import is_full


def add_biases_later(program: Program) -> Program:
    """Take the bias, a vector, from a library's product that nests read.

    Before: ``y = addmm(b, x, w);  z = nest[i, j] relu(y[i, j])``
    after:  ``p = mm(x, w);  y = nest[i, j] p[i, j] + b[j];  z = nest[i, j] relu(y[i, j])``

    The library copies the bias to each row of the result before it adds the product to them: 6% more time than the
    product alone (the median of five sizes from 512x256x256 to 64x768x3072, float32, 2 cores). Refuses where no nest
    reads the result, or a call does; narrower types, whose product is rounded before; and a GPU, whose library adds the
    bias before it stores.
    """
    by_nests = {value for node in program.nodes if isinstance(node, Nest) for value in uses(node)}
    by_calls = {value for node in program.nodes if isinstance(node, Extern) for value in uses(node)}

    def apart(node: Node) -> Iterator[Node]:
        match node:
            case Extern((Value() as out,), "aten.addmm.default", (View() as bias, *args), kwargs=()) if (
                out in by_nests - by_calls and bias.shape == out.shape[1:] and is_full(bias)
                and out.device.type == "cpu" and {out.dtype, bias.value.dtype} <= {torch.float32, torch.float64}
            ):  # fmt: skip
                product = Value(f"{out.name}_product", out.shape, out.dtype, out.strides, out.device)
                yield replace(node, out=(product,), op="aten.mm.default", args=tuple(args))
                axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(out.shape))
                at = tuple(axis.index() for axis in axes)
                body = Op("add", (Load(product, at), Load(bias.value, at[1:])), out.dtype)
                yield Nest((out,), axes, Pointwise(body), node.origins)
            case _:
                yield node

    return replace(program, nodes=tuple(new for node in program.nodes for new in apart(node)))

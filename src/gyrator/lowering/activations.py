"""Activations at the end of matrix products on a GPU, where the library applies them before it stores the result."""

import torch
from torch import fx

from gyrator.torch_compat import graph_module

aten = torch.ops.aten

_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
_SMALL, _SHORT = 1 << 29, 4096
"""Multiplications and length of sums up to which most are by the template of `gpu_gemm.short_configs`."""
_LIBRARY = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.convolution.default)


def with_activations(graph: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph in which products of 16-bit matrices end in the relu that alone reads them.

    Before: ``y = addmm(b, x, w); z = relu(view(y))``
    after:  ``y = _addmm_activation(b, x, w); z = view(y)``

    Refuses where a kernel reads what relu gives, so that it costs nothing there; a bias that is no vector of the
    columns; sides that are no multiples of 16 bytes, which have no fast kernels; and small products."""
    new, env = fx.Graph(), dict[fx.Node, fx.Node]()
    ending = {p: node for node in graph.graph.nodes if (p := _product_before(node)) is not None}
    over = set(ending.values())
    for node in graph.graph.nodes:
        env[node] = env[node.args[0]] if node in over else new.node_copy(node, env.__getitem__)
        if node in ending:
            env[node].target = aten._addmm_activation.default
    return graph_module(graph, new) if over else graph


def _leaves_kernels(node: fx.Node) -> bool:
    """Whether only library calls and the caller read a result, or a view of it."""
    return all(
        user.op == "output" or user.target in _LIBRARY or (user.target in _VIEWS and _leaves_kernels(user))
        for user in node.users
    )


def _product_before(node: fx.Node) -> fx.Node | None:
    """The product that ends in a relu, if the library has it."""
    if node.target is not aten.relu.default or not _leaves_kernels(node):
        return None
    product = node.all_input_nodes[0]
    while product.target in _VIEWS and len(product.users) == 1:
        product = product.all_input_nodes[0]
    if product.target is not aten.addmm.default or len(product.users) != 1:
        return None
    bias, left, right = (arg.meta["val"] for arg in product.args if isinstance(arg, fx.Node))
    out, sides = product.meta["val"], (left.shape[1], right.shape[1])
    fast = out.is_cuda and out.dtype.itemsize == 2 and all(isinstance(n, int) and n % 8 == 0 for n in sides)
    small = isinstance(out.numel(), int) and sides[0] <= _SHORT and out.numel() * sides[0] <= _SMALL
    vector = bias.shape == out.shape[1:] and bias.stride() == (1,)
    return product if fast and vector and not small and not product.kwargs else None

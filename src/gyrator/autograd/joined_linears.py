"""Frozen linear layers that read the same value are one product: that of queries, keys and values, of a gate.

q = linear(x, wq, bq);  k = linear(x, wk, bk)
→   both = linear(x, cat([wq, wk]), cat([bq, bk]));  q, k = both.split([len(wq), len(wk)], -1)"""

from collections.abc import Collection, Hashable, Mapping
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Graph, Node

from gyrator.autograd.attention import may_mutate, memory_of, name_of

MOST_BYTES = 1 << 24
"""Of weights that are joined, which lie in memory twice then. Products with larger ones gain little."""


def linears_to_join(graph: Graph, frozen: Collection[int]) -> dict[Node, tuple[Node, ...]]:
    """Linear layers of a captured graph, by the first of them, whose parameters are inputs at positions in `frozen`.

    Between them is no other linear layer, so that no result waits long. Refuses where something writes into what they
    read or make, what shares memory with a result, which has strides of its own, views that would tell that rows are
    apart, weights that are vectors, biases that are repeated, and layers autocast half converts."""
    inputs = graph.find_nodes(op="placeholder")
    parameters = {None, *(inputs[position] for position in frozen)}
    values: dict[Any, Any] = {node: node.meta.get("example_value") for node in graph.nodes}
    written = {memory_of(i) for node in graph.nodes if may_mutate(node) for i in node.all_input_nodes} - {None}
    layers = {memory_of(node): node for node in graph.nodes if node.target is F.linear}
    told = {m for n in graph.nodes if (m := memory_of(n)) and m in layers and not _keeps_rows(n, values[layers[m]])}
    apart = {None} | written | told | {memory_of(node) for node in graph.output_node().all_input_nodes}

    def alike(node: Node) -> Hashable:
        x, weight, bias = _arguments(node)
        fixed = not node.kwargs and {weight, bias} <= parameters and values[weight].ndim == 2
        if not fixed or not apart.isdisjoint(map(memory_of, (node, x, weight))) or memory_of(bias) in written:
            return node
        whole = bias is None or values[bias].shape == values[weight].shape[:1]
        return x, values[weight].dtype, values[node].dtype, bias is None, whole or node

    groups = [tuple(group) for _, group in groupby(layers.values(), alike)]
    weights = {g: sum(values[_arguments(layer)[1]].nbytes for layer in g) for g in groups if len(g) > 1}
    return {group[0]: group for group, size in weights.items() if size <= MOST_BYTES}


def _keeps_rows(node: Node, result: Tensor) -> bool:
    """Whether what shares memory with a layer's result means the same where its rows do not follow one another."""
    view, row = node.meta["example_value"], max(result.shape[-1:].numel(), 1)
    sides = [(n, s) for n, s in zip(view.shape, view.stride(), strict=True) if type(s) is int and s % row]
    plain = view.dtype == result.dtype and "as_strided" not in name_of(node)
    return plain and all(type(n) is int and n * s <= row for n, s in sides)


def joined(group: tuple[Node, ...], env: Mapping[Node, Any]) -> dict[Node, Tensor]:
    """The results of linear layers, given the values of their arguments."""
    (x, *_), weights, biases = zip(*map(_arguments, group), strict=True)
    rows = [env[weight] for weight in weights]
    bias = None if biases[0] is None else torch.cat([env[bias] for bias in biases])
    both = F.linear(env[x], torch.cat(rows), bias)
    return dict(zip(group, both.split([weight.shape[0] for weight in rows], -1), strict=True))


def _arguments(layer: Node) -> tuple[Any, ...]:
    """Input, weight and bias."""
    return (*layer.args, None, None, None)[:3]

"""Attention that a program writes out, by the operator that makes no matrix of scores.

    softmax(q @ kᵀ * scale + bias, -1) @ v                  →  scaled_dot_product_attention(q, k, v, bias, scale=scale)
    softmax((q @ kᵀ).masked_fill(hidden, -inf), -1) @ v     →  the same with mask ~hidden; nan in rows that see nothing

Products may be matmul, bmm or einsum, with casts and dropout between them. It stays as written where something else
reads scores or weights, where they have 64 bits, memory is written meanwhile, gradients or autocast are switched, a
bias has a gradient, within transforms of torch.func, and where there is no fused kernel or it would be slower."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeGuard

import torch
from torch import Tensor
from torch.backends import cuda
from torch.fx import Node

from gyrator.autograd.attention import Masks, may_mutate, memory_of, name_of, writes_between
from gyrator.autograd.fused_attention import autocast, laid_out
from gyrator.autograd.partition.recompute import size_hint

_CASTS = frozenset("to float half bfloat16 type type_as contiguous".split())
_SCALINGS = frozenset("mul imul div truediv itruediv".split())

_LEAST_KEYS = {False: 64, True: 512}
"""On a CPU, from how many keys on the fused kernel is no slower, by whether there are gradients: heads of 64, a thread
of a Zen 4 or of a Xeon that has a matrix unit, in up to 32 bits."""
_LEAST_SCORES = 1 << 22
"""On a GPU, from how many scores on kernels that read a mask pay (an H100)."""
_HIDES = -1e4
"""The largest number of which a score in its place is held for hidden."""

Values = Mapping[Node, Any]
Call = Callable[..., Tensor]


@dataclass(frozen=True, slots=True)
class _Product:
    """A product of two tensors; the dimensions of both and of the result have letters, as in einsum."""

    operands: tuple[Node, Node]
    letters: tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class _Scores:
    """What softmax is taken of: `node` times `scale`, plus `biases`; `fill` where `mask` (if it `keeps`, not)."""

    node: Node
    product: _Product
    scale: float = 1.0
    biases: tuple[Tensor, ...] = ()
    mask: Tensor | None = None
    keeps: bool = False
    fill: float = -math.inf


@dataclass(slots=True)
class _Walk:
    """Goes back from weights to the product that they come of, by nodes that are each read by the next alone. `dropout`
    is the rate at which weights are dropped."""

    values: Values
    dropout: float = 0.0

    def weights(self, node: object) -> _Scores | None:
        """The scores whose softmax along the last dimension `node` is."""
        if not self._is_link(node):
            return None
        if (name := name_of(node)) == "softmax":
            dim = node.kwargs.get("dim", (*node.args, None, None)[1])
            return self.scores(node.all_input_nodes[0]) if dim in (-1, self.values[node].ndim - 1) else None
        if name == "dropout":
            rate = dropout_rate(*node.args, **node.kwargs)
            if self.dropout or not isinstance(rate, (int, float)):
                return None
            self.dropout = rate
        return self.weights(node.all_input_nodes[0]) if name in (*_CASTS, "dropout") else None

    def scores(self, node: object) -> _Scores | None:
        if not self._is_link(node):
            return None
        name, given = name_of(node).strip("_"), [*node.args, *node.kwargs.values()]
        if name in _CASTS:
            return self.scores(given[0])
        if name in ("add", "iadd") and len(given) == 2:
            return self._biased(*given) or self._biased(*reversed(given))
        if name in _SCALINGS and len(given) == 2:
            divided = "div" in name
            return self._scaled(*(given if divided or isinstance(given[0], Node) else given[::-1]), divided=divided)
        if name in ("masked_fill", "where") and len(given) == 3:
            scores, mask = given[:2] if name == "masked_fill" else given[1::-1]
            return self._masked(scores, mask, given[2], keeps=name == "where")
        product = _product(node, self.values)
        return _Scores(node, product) if product else None

    def _biased(self, scores: object, bias: object) -> _Scores | None:
        added = self.values.get(bias) if isinstance(bias, Node) else None
        if not isinstance(added, Tensor) or added.requires_grad or (inner := self.scores(scores)) is None:
            return None
        return replace(inner, biases=(*inner.biases, added))

    def _scaled(self, scores: object, number: object, *, divided: bool) -> _Scores | None:
        if not isinstance(number, (int, float)) or number <= 0 or (inner := self.scores(scores)) is None:
            return None
        scale = inner.scale / number if divided else inner.scale * number
        return None if inner.biases or inner.fill != -math.inf else replace(inner, scale=scale)

    def _masked(self, scores: object, mask: object, fill: object, *, keeps: bool) -> _Scores | None:
        held = self.values.get(mask) if isinstance(mask, Node) else None
        if not isinstance(held, Tensor) or held.dtype != torch.bool or not isinstance(fill, (int, float)):
            return None
        inner = self.scores(scores)
        return replace(inner, mask=held, keeps=keeps, fill=float(fill)) if inner and inner.mask is None else None

    def _is_link(self, node: object) -> TypeGuard[Node]:
        value = self.values.get(node) if isinstance(node, Node) and len(node.users) == 1 else None
        return isinstance(value, Tensor) and value.is_floating_point() and value.dtype != torch.float64


def dropout_rate(input: Any, p: Any = 0.5, training: Any = True, *_: Any, **more: Any) -> Any:
    """At which a dropout of these arguments drops."""
    return p if more.get("train", training) else 0.0


def _product(node: Node, values: Values) -> _Product | None:
    name, given = name_of(node).strip("_"), () if node.kwargs else node.args  # names may stand in any order
    factors = [x for x in given if isinstance(x, Node)] if name in ("matmul", "bmm", "einsum") else []
    ranks = {values[x].ndim for x in factors}
    if len(factors) != 2 or ranks not in ({3}, {4}):
        return None
    (left, right), (rank,) = factors, ranks
    text = f"{'ab'[: rank - 2]}ik,{'ab'[: rank - 2]}kj->{'ab'[: rank - 2]}ij"
    if name == "einsum":
        text = given[0].replace(" ", "") if isinstance(given[0], str) and "." not in given[0] else ""
    found = re.split(",|->", text)
    if len(found) != 3 or any(len(each) != rank or len({*each}) != rank for each in found):
        return None
    return _Product((left, right), (found[0], found[1], found[2]))


def attend(node: Node, values: Values, result: Tensor, masks: Masks, call: Call) -> Tensor:
    """What attention gives that ends at `node`: the same as `result`, computed as written; that where none ends.

    Args:
        values: of the nodes so far.
        call: `scaled_dot_product_attention`, with named arguments."""
    if (last := _product(node, values)) is None or torch.func.debug_unwrap(result) is not result:
        return result
    for at in (0, 1):
        walk = _Walk(values)
        scores = walk.weights(last.operands[at])
        if scores is None or values[last.operands[at]].shape != values[scores.node].shape:
            continue
        found, links = _operands(scores.product, last, at), [scores.node]
        while links[-1] is not node:
            links.extend(links[-1].users)  # of each the only one
        if found is None or writes_between(scores.node, node, links):
            return result
        parts, letters = found
        operands = autocast(*[values[x].permute([have.index(c) for c in want]) for x, have, want in parts])
        if values[scores.node].dtype != operands[0].dtype:  # written under another autocast
            return result
        out = _attention(scores, walk.dropout, [x if x.ndim == 4 else x[None] for x in operands], masks, call)
        if out is None or out.dtype != result.dtype:
            return result
        out = (out if result.ndim == 4 else out[0]).permute([letters.index(c) for c in last.letters[2]])
        out = laid_out(out, [*map(size_hint, result.stride())])
        return out.clone() if result.requires_grad and _may_change(node) else out
    return result


def _may_change(node: Node) -> bool:
    """Whether something writes, or may, into the result, which backward of attention reads, or into a view of it."""
    views = [node]
    for view in views:
        views += [u for u in view.users if u not in views and (memory_of(u) or memory_of(node)) == memory_of(node)]
    return any(user.op == "output" or may_mutate(user) for view in views for user in view.users)


def _attention(scores: _Scores, dropout: float, operands: list[Tensor], masks: Masks, call: Call) -> Tensor | None:
    """Of query, key and value with four dimensions. None where a mask would not mean the same, or it is no gain.

    Where numbers hide all keys of a row, all count the same, whatever the query is: kernels need to be told."""
    query, key, value = operands
    mask, fits = _mask(scores, query.dtype, masks)
    unknown = mask if mask is not None and masks.kind(mask) is None else None
    if not fits or not _gains(operands, unknown, dropout):
        return None
    given = {"key": key, "value": value, "dropout_p": dropout, "scale": scores.scale}
    if unknown is None:
        return call(query=query, attn_mask=mask, **given)
    if unknown.dtype == torch.bool:
        blind = ~unknown.any(-1, keepdim=True)
        if scores.fill == -math.inf:
            return call(query=query, attn_mask=unknown, **given).masked_fill(blind, math.nan)
        return call(query=query.masked_fill(blind, 0.0), attn_mask=unknown | blind, **given)
    most = unknown.amax(-1, keepdim=True)
    even = most < -8 / torch.finfo(most.dtype).eps  # scores added to that are lost
    out = call(query=query.masked_fill(even, 0.0), attn_mask=torch.where(even, unknown - most, unknown), **given)
    return out.masked_fill(most == -math.inf, math.nan)


def _operands(scores: _Product, last: _Product, at: int) -> tuple[list[tuple[Node, str, str]], str] | None:
    """Query, key and value, each with its letters and those that attention takes; the letters of what that gives."""
    batch, row, column = scores.letters[2][:-2], *scores.letters[2][-2:]
    first = 0 if row in scores.letters[0] else 1
    width = "".join({*scores.letters[0]} - {*scores.letters[2]})
    again, line, place = last.letters[at][:-2], *last.letters[at][-2:]
    out = again + line + "".join({*last.letters[1 - at]} - {*last.letters[at]})
    found = [
        (scores.operands[first], scores.letters[first], batch + row + width),
        (scores.operands[1 - first], scores.letters[1 - first], batch + column + width),
        (last.operands[1 - at], last.letters[1 - at], again + place + out[-1:]),
    ]
    same = all(sorted(have) == sorted(want) for have, want in [*[part[1:] for part in found], (last.letters[2], out)])
    return (found, out) if same else None


def _mask(scores: _Scores, dtype: torch.dtype, masks: Masks) -> tuple[Tensor | None, bool]:
    """The mask of attention, and whether it says the same."""
    bias = sum(scores.biases[1:], scores.biases[0]) if scores.biases else None
    if bias is not None and (bias.dtype != dtype or bias.ndim == 0):
        return None, False
    if scores.mask is None:
        return (None if bias is None else torch.atleast_2d(bias)), True
    kept = scores.mask if scores.keeps else masks.inverse(scores.mask)
    if bias is not None:
        return torch.atleast_2d(torch.where(kept, bias, -math.inf)), scores.fill == -math.inf
    return torch.atleast_2d(kept), scores.fill <= _HIDES and kept.ndim > 0


def _gains(operands: list[Tensor], mask: Tensor | None, dropout: float) -> bool:
    """Whether there is a fused kernel, and it is not slower than products and softmax."""
    query, key, value = operands
    fits = key.shape == (*value.shape[:-1], query.shape[-1]) and key.shape[:-2] == query.shape[:-2]  # einsum repeats
    if len({(x.dtype, x.device) for x in operands}) > 1 or not fits:
        return False
    tracked = any(x.requires_grad for x in operands)
    if tracked and mask is not None and mask.dtype != torch.bool:
        return False  # rows that hide all keys have gradients too
    if query.device.type == "cuda":
        few = mask is not None and math.prod(map(size_hint, (*query.shape[:-1], key.shape[-2]))) < _LEAST_SCORES
        if few or (tracked and query.dtype == torch.float32):
            return False
        params = cuda.SDPAParams(query, key, value, mask, dropout, False, False)
        kernels = cuda.can_use_flash_attention, cuda.can_use_efficient_attention, cuda.can_use_cudnn_attention
        return any(can(params, False) for can in kernels)
    few = size_hint(key.shape[-2]) < _LEAST_KEYS[tracked]
    fits = query.shape[-1] == value.shape[-1] and value.stride(-1) == query.stride(-1) == 1 and dropout == 0
    return query.device.type == "cpu" and not few and fits and cuda.flash_sdp_enabled()

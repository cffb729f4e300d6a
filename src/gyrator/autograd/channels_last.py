"""Convolutions in channels-last memory, where libraries run them fastest.

    y = conv(x, w)            y = conv(clone(x, channels_last), w)    # y is channels-last, and so is
    z = relu(y)          →    z = relu(y)                             # what is computed from it
    return z                  return clone(z, contiguous)

The strides of a traced graph are eager's, and library calls get them exactly. So a new layout is given to a
convolution's operands, and the metadata of all that follows is found anew, as long as operators keep the
meaning of their arguments under any strides. Before all others the old layout is restored.

Likewise for values that norms read row by row though their columns lie in memory one after the other. A residual
stream that begins with a transposed view has such strides in eager up to its end:

    h = t.transpose(1, 2) + p  →  h = clone(t.transpose(1, 2), contiguous) + p
    n = layer_norm(h + f(h))      n = layer_norm(h + f(h))                        # all contiguous"""

import operator
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import sympy
import torch
from torch import Tensor, memory_format
from torch._ops import OpOverload
from torch.fx import Node

from gyrator.autograd.builder import ORIGIN_KEYS, GraphBuilder, flatten, inherited, values_of
from gyrator.autograd.fake_results import contiguous_strides, overloads
from gyrator.autograd.partition.recompute import size_hint
from gyrator.autograd.symbols import expression

aten = torch.ops.aten

SMALLEST = 20480
"""Elements of an image below which oneDNN is not used for it, and the layout does not matter."""
LEAST_PIXELS = 1024
"""Pixels of an image below which a transposed convolution is no faster in that layout."""
CHANNELS, LEAST_WORK = 8, 1 << 26
"""In float32 on a GPU: what channels are a multiple of, and products, with which eager uses tensor cores too."""
LARGEST_FILTER, MOST_FILTERS = 128, 4
"""Pixels of a depthwise filter up to which a GPU runs it as loops (`lowering/pooling.py`), in any layout; above it the
library's kernels for that layout are slow. How many filters a channel may have, of which two were measured."""
_IMAGES = {aten.convolution.default: (0,), aten.convolution_backward.default: (0, 1)}
"""Positions of the operands that should be channels-last."""

_FREE = overloads(
    "convolution convolution_backward sum.dim_IntList mean.dim amax amin var_mean.correction var.correction cat "
    "constant_pad_nd expand permute transpose.int slice.Tensor select.int unsqueeze squeeze.dim squeeze.dims view "
    "split.Tensor split_with_sizes avg_pool2d avg_pool2d_backward _adaptive_avg_pool2d _adaptive_avg_pool2d_backward "
    "max_pool2d_with_indices max_pool2d_with_indices_backward upsample_nearest2d.vec upsample_bilinear2d.vec "
    "native_group_norm"
)
"""Operators that mean the same whatever their arguments' strides, besides those tagged as pointwise."""

_ROWS = (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.var_mean.correction, aten.var.correction)
"""Reductions over given dimensions, by which norms and softmaxes begin."""


def prefer_layouts(build: GraphBuilder, *, always: bool) -> None:
    """Give convolutions channels-last operands, and lay values in rows that are reduced along them.

    Touched are 2-D convolutions of large enough images whose operands are contiguous, on a GPU in float32 only if they
    run on tensor cores (TF32). Outputs of the graph keep their strides. Unless ``always``, graphs are left where under
    a quarter of convolutions are depthwise or transposed: those gain most."""
    images = [node for node in build.graph.nodes if _gains(node)]
    forward = [node.args[6] or node.args[8] != 1 for node in images if len(node.args) == 9]
    if not always and (not forward or 4 * sum(forward) < len(forward)):
        return
    rows = _across_rows(build.graph.nodes)
    if rows or images:
        _Rewriter(build, rows).run()


def _across_rows(nodes: Iterable[Node]) -> set[Node]:
    """Pointwise results that do not lie row by row though they are reduced, or what follows from them, along rows."""
    reduced: set[Node] = set()
    found: set[Node] = set()
    for node in reversed(list(nodes)):
        value = node.meta.get("val")
        if node.target in _ROWS and len(node.args) > 1 and isinstance(source := node.args[0], Node):
            dims, rank = node.args[1], source.meta["val"].ndim
            if isinstance(dims, (list, tuple)) and len(dims) == 1 and dims[0] in (-1, rank - 1):
                reduced.add(source)
        elif isinstance(value, Tensor) and node in reduced and _is_pointwise(node.target):
            reduced.update(node.all_input_nodes)
            if _lies_across(value):
                found.add(node)
    return found


def _gains(node: Node) -> bool:
    if node.target not in _IMAGES:
        return False
    first = _IMAGES[node.target][-1]
    image, filters = values_of(node.args[first : first + 2])
    transposed, groups = node.args[first + 6], node.args[first + 8]
    if image.ndim != 4 or not image.is_floating_point() or image.dtype == torch.float64:
        return False
    if any(type(size) is int and size == 1 for size in image.shape[1:]):
        return False
    small = all(type(size) is int for size in image.shape) and image.numel() < SMALLEST
    if image.device.type == "cpu":
        slow = transposed and prod(map(size_hint, image.shape[2:])) < LEAST_PIXELS
        return not small and not slow and not _outweigh(filters, image)
    if depthwise := _depthwise(image, filters, groups):
        return depthwise <= LARGEST_FILTER and image.dtype.itemsize == 2
    return image.dtype.itemsize == 2 or _gains_in_float32(image, filters)


def _depthwise(image: Tensor, filters: Tensor, groups: object) -> int:
    """How many pixels each channel's own filter has, 0 if it has none."""
    sizes = (groups, image.shape[1], filters.shape[0])
    return prod(map(size_hint, filters.shape[2:])) if len(set(map(size_hint, sizes))) == 1 else 0


def _outweigh(filters: Tensor, image: Tensor) -> bool:
    """Whether filters of several pixels are far larger than images: a CPU's library lays them anew in each call."""
    elements, pixels = (prod(map(size_hint, x.shape)) for x in (filters, image))
    return image.device.type == "cpu" and elements > 4 * pixels and prod(map(size_hint, filters.shape[2:])) > 1


def _gains_in_float32(image: Tensor, filters: Tensor) -> bool:
    """Whether that layout is faster on a GPU, and no less exact than eager's."""
    channels, rows, columns = (size_hint(size) for size in (image.shape[1], *filters.shape[:2]))
    work = prod(map(size_hint, (*image.shape, *filters.shape)))
    odd = any(n % CHANNELS for n in (channels, rows, columns))
    if odd or channels < 2 * CHANNELS or work // channels < LEAST_WORK:
        return False
    return bool(torch.backends.cudnn.conv.fp32_precision == "tf32")  # type: ignore[attr-defined]


class _Rewriter:
    """One walk over the graph. Mutable, and private to one call of :func:`prefer_layouts`."""

    def __init__(self, build: GraphBuilder, rows: Collection[Node]) -> None:
        self._build = build
        self._rows = rows
        self._original: dict[Node, Any] = {}
        self._copies: dict[tuple[Node, memory_format | None], Node] = {}

    def run(self) -> None:
        for node in list(self._build.graph.nodes):
            gains = _gains(node)
            if not (gains or node in self._rows or any(arg in self._original for arg in node.all_input_nodes)):
                continue
            args = node.args
            if gains:
                self._lay(node, _IMAGES[node.target], torch.channels_last, _is_contiguous)
            elif node in self._rows:
                self._lay(node, range(len(node.args)), torch.contiguous_format, _lies_across)
            if not self._follow(node, gains):
                node.args = args  # else its result would have other strides than its metadata
                for argument in node.all_input_nodes:
                    if isinstance(before := self._original.get(argument), Tensor):
                        node.replace_input_with(argument, self._restored(node, argument, before))

    def _lay(self, node: Node, places: Iterable[int], layout: memory_format, gains: Callable[[Tensor], bool]) -> None:
        for position in places:
            given = node.args[position]
            if isinstance(given, Node) and isinstance(value := given.meta["val"], Tensor) and gains(value):
                node.update_arg(position, self._copy(node, given, layout))

    def _follow(self, node: Node, gains: bool) -> bool:
        """Find the node's metadata anew; False if it must see what it saw before."""
        if not callable(node.target) or not (node.target in (operator.getitem, *_FREE) or _is_pointwise(node.target)):
            return False
        if not gains and node.target in _IMAGES:
            first = _IMAGES[node.target][-1]
            image, filters = values_of(node.args[first : first + 2])
            free = 0 < _depthwise(image, filters, node.args[first + 8]) <= LARGEST_FILTER
            free |= image.dtype != torch.float32 or image.device.type == "cpu"
            if not free or _outweigh(filters, image):
                return False  # a library may use tensor cores in another layout though it does not in eager's
        before = node.meta["val"]
        try:
            with self._build.fake_mode, torch.no_grad():
                after = node.target(*values_of(node.args), **values_of(node.kwargs))
        except (RuntimeError, ValueError):  # a view that these strides do not allow
            return False
        if _strides(after) == _strides(before):
            return True
        if not all(_order(value) for value in flatten(before) if isinstance(value, Tensor)):
            return False
        self._original[node] = before
        node.meta["val"] = self._build.metadata(after)
        return True

    def _restored(self, user: Node, node: Node, before: Tensor) -> Node:
        if _is_contiguous(before):
            return self._copy(user, node, torch.contiguous_format)
        if (node, None) not in self._copies:
            order = _order(before)
            back = sorted(range(len(order)), key=order.__getitem__)
            turned = self._before(user, node, aten.permute.default, (node, order))
            dense = self._before(user, node, aten.clone.default, (turned,), torch.contiguous_format)
            self._copies[node, None] = self._before(user, node, aten.permute.default, (dense, back))
        return self._copies[node, None]

    def _copy(self, user: Node, node: Node, layout: memory_format) -> Node:
        if (node, layout) not in self._copies:
            self._copies[node, layout] = self._before(user, node, aten.clone.default, (node,), layout)
        return self._copies[node, layout]

    def _before(self, user: Node, like: Node, op: OpOverload, args: Any, layout: memory_format | None = None) -> Node:
        """A new call before ``user``, of the same origin as ``like``, or as ``user`` where that is an input."""
        self._build.origin = inherited((user if like.op == "placeholder" else like).meta, (*ORIGIN_KEYS, "backward"))
        kwargs = {} if layout is None else {"memory_format": layout}
        with self._build.graph.inserting_before(user):
            return self._build.call(op, args, kwargs)


def _is_pointwise(target: Any) -> bool:
    return isinstance(target, OpOverload) and torch.Tag.pointwise in target.tags


def _strides(value: Any) -> list[list[Any]]:
    """What is to be known of the strides of all tensors in ``value``."""
    return [_steps(t.shape, t.stride()) for t in flatten(value) if isinstance(t, Tensor)]


def _steps(shape: Sequence[Any], strides: Sequence[Any]) -> list[Any]:
    """The strides of the dimensions that are not known to have one element."""
    both = zip(shape, strides, strict=True)
    return [_multiplied(expression(step)) for size, step in both if type(size) is not int or size != 1]


@lru_cache(maxsize=1024)
def _multiplied(step: Any) -> Any:
    """A stride as a sum of products of sizes; ``max(1, n)``, where a size may be 0, as ``n``."""
    if not isinstance(step, sympy.Expr):
        return step
    of_size = lambda e: e.func.__name__ == "Max" and 1 in e.args and len(e.args) == 2  # noqa: E731
    return sympy.expand(step.replace(of_size, lambda e: sympy.Mul(*e.args)))


def _is_contiguous(value: Tensor) -> bool:
    return _steps(value.shape, value.stride()) == _steps(value.shape, contiguous_strides(value.shape))


def _lies_across(value: Tensor) -> bool:
    """Whether other elements than those of rows are neighbours; images that are channels-last do not count."""
    order = [*_order(value)]
    return bool(order) and order[-1] != value.ndim - 1 and order != [0, 2, 3, 1]


def _order(value: Tensor) -> Sequence[int]:
    """The order of dimensions in which the tensor is contiguous, the outermost first; nothing if there is none."""
    order = [*range(value.ndim)]
    if not _is_contiguous(value):
        order.sort(key=lambda d: -size_hint(value.stride(d)))
    shape, strides = [value.shape[d] for d in order], [value.stride(d) for d in order]
    return order if _steps(shape, strides) == _steps(shape, contiguous_strides(shape)) else ()

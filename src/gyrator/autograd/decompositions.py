"""The table of decompositions: which ATen ops are rewritten into smaller ones, by what, and which stay whole.

The reader of the result is a lowering from functional ATen to the loop IR. So an op is decomposed when its meaning is
a few pointwise ops, reductions, views or gathers, and stays whole when the loop IR says it in one piece (a sum, a
cumulative sum, a gather), when a library has a kernel for it (a matrix product), or when it could not be written as
loops at all (a sort). Few nodes matter: each one costs compile time in every later stage.

bfloat16 and float16 inputs are computed in float32 and rounded once, at the end, as in one of eager's kernels."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from itertools import accumulate, pairwise
from typing import Any, Literal

import torch
from torch import Tensor
from torch._decomp import get_decompositions
from torch._ops import OpOverload
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import guard_or_true

from gyrator import torch_compat
from gyrator.autograd.channels_last import MOST_FILTERS
from gyrator.autograd.fake_results import OF_MEANS, WITH_STATISTICS, counted_from_0, is_empty, of_a_mean, overloads
from gyrator.autograd.partition.recompute import size_hint

Decomposition = Callable[..., Any]
DecompositionTable = Mapping[OpOverload, Decomposition]
Numerics = Literal["fast", "eager"]

aten = torch.ops.aten

LOW_PRECISION = (torch.bfloat16, torch.float16)
LONGEST_SUM = 2048
"""Of wider products by elements on a processor. 4,096 rows by one of 768 take 0.85 of MKL's time on an EPYC's core, of
4,096 1.1; in bfloat16 0.4 to 0.6 of oneDNN's with any."""
TINY = {"cpu": 4, "cuda": 12}
"""Sides of matrices of which products are always computed by elements: 1,048,576 of 12 x 12 on an H200 take 0.19 to
0.69 of the library's time, of 16 x 16 0.22 to 1.2."""

_FROM_TORCH = (
    # pointwise
    "addr celu deg2rad elu elu_backward floor_divide frac gelu_backward glu glu_backward hardshrink hardsigmoid "
    "hardsigmoid_backward hardswish hardswish_backward hardtanh hardtanh_backward heaviside isneginf isposinf "
    "leaky_relu leaky_relu_backward log_sigmoid_backward log_sigmoid_forward logaddexp logaddexp2 logit "
    "logit_backward masked_fill mish mish_backward mvlgamma nan_to_num _prelu_kernel _prelu_kernel_backward rad2deg "
    "rrelu_with_noise_backward rsub sgn sigmoid_backward silu silu_backward sinc softplus softplus_backward softshrink "
    "special_entr special_log_ndtr special_xlog1py tanh_backward threshold threshold_backward xlogy lcm gcd isin "
    # losses
    "binary_cross_entropy_backward binary_cross_entropy_with_logits huber_loss mse_loss multi_margin_loss "
    "nll_loss2d_backward nll_loss2d_forward nll_loss_backward nll_loss_forward smooth_l1_loss soft_margin_loss "
    # normalisation
    "_batch_norm_with_update_functional _batch_norm_no_update batch_norm_backward cudnn_batch_norm "
    "cudnn_batch_norm_backward miopen_batch_norm_backward native_batch_norm_backward native_group_norm_backward "
    "native_layer_norm_backward _fused_rms_norm _fused_rms_norm_backward _weight_norm_interface renorm "
    # reductions
    "aminmax count_nonzero dist linalg_cross logsumexp nansum norm std std_mean trace _log_softmax "
    "_log_softmax_backward_data _softmax _softmax_backward_data _safe_softmax _euclidean_dist "
    # shapes
    "_reshape_alias _unsafe_view affine_grid_generator alias_copy block_diag channel_shuffle diag_embed "
    "diagonal_backward diagonal_copy expand_copy im2col col2im narrow_copy permute_copy pixel_shuffle pixel_unshuffle "
    "roll rot90 select_backward slice_backward split split_with_sizes_copy squeeze_copy stack t "
    "t_copy transpose transpose_copy tril triu tril_indices triu_indices unbind unbind_copy unfold_backward "
    "unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze_copy view_copy reflection_pad1d "
    "reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d reflection_pad3d_backward "
    "replication_pad1d replication_pad2d replication_pad3d "
    # creation
    "empty_like new_empty new_full new_ones new_zeros ones ones_like zeros zeros_like zero fill "
    # indexing
    "_unsafe_masked_index _unsafe_masked_index_put_accumulate "
    # sampling
    "upsample_linear1d upsample_bilinear2d upsample_bicubic2d upsample_trilinear3d grid_sampler_2d "
    # products
    "dot vdot mv addmv "
    # ranges and casts
    "linspace logspace hann_window _to_copy "
).split()

_OF_FLOATS = (
    "_adaptive_avg_pool2d _adaptive_avg_pool3d _log_softmax _softmax adaptive_max_pool2d adaptive_max_pool3d "
    "binary_cross_entropy celu elu frac gelu glu grid_sampler_2d hardshrink hardsigmoid hardswish huber_loss im2col "
    "lerp linspace log_sigmoid_forward logaddexp logaddexp2 mish multi_margin_loss nll_loss2d_forward "
    "nll_loss_forward silu smooth_l1_loss soft_margin_loss softplus upsample_bicubic2d upsample_bilinear2d "
    "upsample_linear1d upsample_trilinear3d angle"
)
_OF_NUMBERS = (
    "abs addcdiv addcmul argmax argmin avg_pool2d avg_pool3d ceil clamp dot floor linalg_cross "
    "max_pool2d_with_indices max_pool3d_with_indices mv reflection_pad1d reflection_pad2d reflection_pad3d relu "
    "round rsub sub threshold trunc"
)
_SAME = "_weight_norm_interface binary_cross_entropy complex grid_sampler_2d heaviside index_put linalg_cross mv polar"
_REFUSES: Sequence[tuple[str, Callable[[Sequence[torch.dtype]], bool]]] = (
    (_OF_FLOATS, lambda of: not of[0].to_real().is_floating_point),
    (_OF_NUMBERS, lambda of: torch.bool in of),
    (_SAME, lambda of: of[0] != of[1]),
    ("index_add index_copy index_reduce nll_loss_forward nll_loss2d_forward", lambda of: not {*of[2:]} <= {of[0]}),
    ("nll_loss_forward nll_loss2d_forward", lambda of: of[1] not in (torch.int64, torch.uint8)),
    ("index_copy index_fill", lambda of: of[1] != torch.int64),
    ("index_add index_select", lambda of: of[1].itemsize < 4),
    ("isin roll", lambda of: of[0].itemsize > 1 and not of[0].is_signed),
    ("hypot nextafter", lambda of: not of[-1].is_floating_point),
    ("fmod remainder", lambda of: of[-1] == torch.bool),
    ("pow", lambda of: of[:2] == [torch.bool, torch.bool]),
    ("bitwise_and bitwise_not bitwise_or bitwise_xor", lambda of: of[-1].is_floating_point),
    ("bitwise_left_shift bitwise_right_shift", lambda of: of[-1].is_floating_point or of[-1] == torch.bool),
)
_RULES = [(frozenset([getattr(aten, name) for name in names.split()]), rule) for names, rule in _REFUSES]
_PARTLY = overloads("nan_to_num linalg_vector_norm embedding_dense_backward binary_cross_entropy smooth_l1_loss")
_TORCHS: Mapping[Any, Decomposition] = get_decompositions([*_PARTLY, *OF_MEANS, *WITH_STATISTICS])
_NAN_TO_NUM, _NORM, _EMBEDDING, _CROSS_ENTROPY, _SMOOTH_L1 = [_TORCHS[op] for op in _PARTLY]


def stays_whole(node: Node) -> bool:
    """Whether a call is of dtypes of which loops would compute what eager does not, as it raises or has a way of its
    own: told by its operands', in order, and its result's."""
    rules = [rule for packets, rule in _RULES if getattr(node.target, "overloadpacket", None) in packets]
    values = [a.meta.get("val") for a in (*node.args, node) if rules and isinstance(a, Node)]
    return any(rule([x.dtype for x in values if isinstance(x, Tensor)]) for rule in rules)


def _widen(x: Tensor) -> Tensor:
    """x in the precision its computation runs in: float32 for bfloat16 and float16, else unchanged."""
    return x.to(torch.float32) if x.dtype in LOW_PRECISION else x


def _gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """gelu(x) → x/2·(1 + erf(x/√2)); for "tanh" x·sigmoid(2u), which is x/2·(1 + tanh(u)) without cancellation."""
    wide = _widen(x)
    if approximate != "tanh":
        return (0.5 * wide * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * (wide * wide * wide))
    return (wide * torch.sigmoid(2 * inner)).to(x.dtype)


def _native_dropout(x: Tensor, p: float, train: bool | None) -> tuple[Tensor, Tensor]:
    """native_dropout(x, p) → (x·keep/(1 − p), keep) with keep = rand ≥ p."""
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return torch.zeros_like(x), torch.zeros_like(x, dtype=torch.bool)
    keep = aten.rand.default(x.shape, dtype=torch.float32, device=x.device) >= p
    return (_widen(x) * keep * (1.0 / (1.0 - p))).to(x.dtype), keep


def _native_dropout_backward(grad: Tensor, mask: Tensor, scale: float) -> Tensor:
    """native_dropout_backward(g, keep, scale) → g·keep·scale, promoted as eager's multiplications do."""
    value = _widen(grad) * mask * scale
    return value.to(grad.dtype) if grad.is_floating_point() else value


def _divide(op: OpOverload, x: Any, y: Any, **mode: Any) -> Tensor:
    """The operator itself, but that eager refuses to divide integers by zero on a processor."""
    result: Tensor = op(x, y, **mode)
    y = y if isinstance(y, Tensor) or torch_compat.in_bounds(y != 0) else result.new_full((), y)
    if isinstance(y, Tensor) and y.is_cpu and not (result.is_floating_point() or is_empty(result)):
        aten._assert_async.msg((y != 0).all(), "ZeroDivisionError")
    return result


def _ordered(*numbers: float) -> bool:
    """Whether numbers are in order, as far as is known. Eager's operators refuse others, and stay whole then."""
    return all(guard_or_true(a <= b) for a, b in pairwise(numbers))


def _probabilities(p: Any) -> Any:
    """`p`, but that eager refuses, on a processor, elements that are no probabilities."""
    if isinstance(p, Tensor) and p.is_cpu:
        aten._assert_async.msg(((p >= 0) & (p <= 1)).all(), "all elements should be between 0 and 1")
    return p


def _eye(n: Any, m: Any = None, *, dtype: torch.dtype | None = None, device: Any = None, **_: object) -> Tensor:
    """eye(n, m) → (i == j) as the dtype; torch's table counts in uint16, which no kernel does."""
    row, column = (torch.arange(size, device=device) for size in (n, n if m is None else m))
    return (row[:, None] == column).to(dtype or torch.get_default_dtype())


def _of_wide(norm: Decomposition, x: Tensor, *args: Any) -> tuple[Tensor, ...]:
    """A norm by torch's table, which on a processor rounds the statistics of 16 bits, whatever parameters are."""
    if any(isinstance(y, Tensor) and y.dtype not in (x.dtype, _widen(x).dtype) for y in args):
        return NotImplemented  # eager refuses
    out, *statistics = norm(_widen(x) if x.device.type == "cpu" else x, *args)
    return out.to(x.dtype), *statistics


def _in_float32(x: Tensor) -> bool:
    """Whether convolutions are computed so: those of float16 on a processor for which the library has no kernels take
    it 6 to 70 times as long as float32's (64 x 64 channels, 3 x 3, of 2 x 56 x 56 on an EPYC's core: 136 ms, 4.3)."""
    return x.dtype == torch.float16 and x.device.type == "cpu" and not torch_compat.onednn_has_float16()


def _convolution(x: Tensor, w: Tensor, bias: Tensor | None, *options: Any) -> Tensor:
    """convolution(x, w, bias) → convolution(x, w) + bias on a GPU, where the library adds it in a pass of its own."""
    if _in_float32(x):
        wide = aten.convolution.default(x.float(), w.float(), None if bias is None else bias.float(), *options)
        return wide.to(x.dtype)
    if bias is None or x.device.type != "cuda":
        return NotImplemented
    return aten.convolution.default(x, w, None, *options) + bias.view(-1, *[1] * (x.ndim - 2))


def _convolution_backward(g: Tensor, x: Tensor, w: Tensor, biases: Any, *options: Any) -> tuple[Tensor | None, ...]:
    """On a GPU apart: the bias's gradient, which the library sums in a pass of its own, and the input's of a depthwise
    convolution, a transposed one of loops (`lowering/pooling.py`), summed over the filters that a channel has."""
    if _in_float32(x):
        found = aten.convolution_backward.default(g.float(), x.float(), w.float(), biases, *options)
        return tuple([None if wide is None else wide.to(x.dtype) for wide in found])
    *layout, (of_input, of_weight, of_bias) = options
    stride, padding, dilation, transposed, _, groups = layout
    points = max(w.shape[2:]) == 1 < max(stride) and groups == 1 and not (transposed or max(padding))
    if points and of_weight and w.shape[1] < 16 and x.is_cpu and x.dtype == torch.float32:
        # here oneDNN writes beyond the memory of the filters' gradient, where channels are neighbours
        rest = aten.convolution_backward.default(g, x, w, biases, *layout, [of_input, False, of_bias])
        for dim, step in zip(range(2, x.ndim), [*stride] * 3, strict=False):  # one may be for all sides
            x = aten.slice.Tensor(x, dim, None, None, step)
        return rest[0], (g.flatten(2) @ x.flatten(2).mT).sum(0).view_as(w), rest[2]
    filters = w.shape[0]
    depthwise = type(filters) is int and filters <= MOST_FILTERS * groups and w.shape[1] == 1 and not transposed
    turned = of_input and depthwise and (max(stride) == 1 or max(dilation) == 1)
    if x.device.type != "cuda" or not (of_bias or turned):
        return NotImplemented
    mask = [of_input and not turned, of_weight, False]
    dx, dw, _ = aten.convolution_backward.default(g, x, w, biases, *layout, mask) if any(mask) else (None,) * 3
    if turned:
        sides = zip(x.shape[2:], g.shape[2:], w.shape[2:], stride, padding, dilation, strict=True)
        rests = [n - (m - 1) * s + 2 * p - d * (k - 1) - 1 for n, m, k, s, p, d in sides]
        dx = aten.convolution.default(g, w, None, stride, padding, dilation, True, rests, filters)
        dx = dx if filters == groups else dx.unflatten(1, (groups, -1)).sum(2)
    return dx, dw, g.sum([0, *range(2, g.ndim)]) if of_bias else None


def _embedding_dense_backward(g: Tensor, indices: Tensor, rows: int, padding: int, by_count: bool) -> Tensor:
    """Few rows of a large table in 16 bits need no table in float32: sums lie in the place of one row of each index (on
    an H200 8,192 of 128,256 rows of 4,096 take 422 µs, else 1,294); of very few on a GPU they are the library's."""
    low, count = g.dtype in LOW_PRECISION, math.prod(map(size_hint, indices.shape))
    if low and g.device.type == "cuda" and count <= min(size_hint(rows) // 32, 1024):
        return NotImplemented
    if not low or by_count or 2 * count > size_hint(rows):
        return _EMBEDDING(g, indices, rows, padding, by_count)
    at, table = indices.flatten(), g.new_zeros(rows, g.shape[-1])
    wide = torch.where((at == padding)[:, None], 0.0, g.reshape(at.shape[0], g.shape[-1]).float())
    place = at.new_zeros(rows).index_put((at,), torch.arange(at.shape[0], dtype=at.dtype, device=at.device))[at]
    sums = torch.zeros_like(wide).index_put((place,), wide, accumulate=True)
    return table.index_put((at,), sums[place].to(g.dtype))


def _thin(*inputs: Tensor, alpha: float = 1, beta: float = 1) -> Tensor:
    """A product with a side of length 1, or of tiny matrices, by its elements, so that it is fused with what makes and
    reads its operands:

    mm(a, b) → sum over k of a·bᵀ where a is a row or b a column, a·b where there is one k; and so addmm and bmm.
    bmm(a, b) → a[:, :, :1]·b[:, :1, :] + a[:, :, 1:2]·b[:, 1:2, :] + … where no side is longer than TINY.

    Others stay whole: those whose k do not lie together (but for bmm of columns on a processor), and on a processor
    long sums of 32 bits and more, for several of which the library reads what they share once."""
    *bias, a, b = inputs
    bias = [x.expand(*a.shape[:-1], b.shape[-1]) for x in bias]  # or an error: fake kernels let it be of more rows
    sides = (*a.shape[-2:], b.shape[-1], a.stride(-1), b.stride(-2))
    row, single, column, a_together, b_together = [type(n) is int and n == 1 for n in sides]
    on_gpu = a.device.type == "cuda"
    fast = on_gpu or a.dtype in LOW_PRECISION or size_hint(a.shape[-1]) <= LONGEST_SUM
    summed = (fast and ((row and b_together) or (column and a_together))) or (column and a.ndim == 3 and not on_gpu)
    short = all(type(n) is int and 0 < n <= TINY.get(a.device.type, 0) for n in (*a.shape[1:], b.shape[-1]))
    alike = a.is_floating_point() and all(x.dtype == a.dtype for x in inputs)
    if not alike or not (single or summed or short):
        return NotImplemented
    if short and not single:
        pairs = zip(_widen(a).unbind(-1), _widen(b).unbind(-2), strict=True)
        total = reduce(torch.add, [column.unsqueeze(-1) * row.unsqueeze(-2) for column, row in pairs])
    else:
        product = _widen(a) * (_widen(b) if single else _widen(b).mT)
        total = product if single else product.sum(-1, keepdim=True) if column else product.sum(-1).unsqueeze(-2)
    return with_bias(total, bias, alpha, beta).to(a.dtype)


def with_bias(product: Tensor, bias: Sequence[Tensor], alpha: float, beta: float) -> Tensor:
    """``alpha · product + beta · bias``, or ``product`` without one. A scale of 0 hides even NaN."""
    if not bias:
        return product
    return alpha * product + beta * _widen(bias[0]) if beta else alpha * product


def _weight_norm_backward(grad: Tensor, v: Tensor, g: Tensor, norms: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Of w = v·(g/n), where n are the norms of v along `dim`: the gradients (g/n)·(d − v·(d·v)/n²) and (d·v)/n."""
    wide = _widen(v)
    dot = (grad * wide).sum([k for k in range(v.ndim) if k != dim], keepdim=True) / norms
    return ((g / norms) * (grad - wide * (dot / norms))).to(v.dtype), dot.to(g.dtype)


def _max_pool2d_backward(g: Tensor, x: Tensor, *options: Any) -> Tensor:
    """max_pool2d_backward(g, x, …, where) with `where` through 16 or 32 bits, which is what is saved for it then."""
    *others, where = options
    if any(type(side) is not int for side in x.shape[-2:]):
        return NotImplemented
    narrow = where.to(torch.int16 if math.prod(x.shape[-2:]) <= 1 << 15 else torch.int32)
    return aten.max_pool2d_with_indices_backward.default(g, x, *others, narrow.to(torch.int64))


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """masked_scatter(x, mask, s) → where(mask, [0, *s][cumsum(mask)], x), row by row; s may have no elements."""
    x, mask = torch.broadcast_tensors(x, mask)
    chosen = mask.flatten()
    taken = aten.constant_pad_nd(source.flatten(), [1, 0])[torch.where(chosen, chosen.cumsum(0), 0)]
    return torch.where(mask, taken.view(x.shape), x)


def _round_decimals(x: Tensor, *, decimals: int = 0) -> Tensor:
    """round(x, decimals=2) → round(x·100)/100, round(x, decimals=-2) → round(x/100)·100."""
    scale, wide = 10.0 ** abs(decimals), _widen(x)
    return (torch.round(wide * scale) / scale if decimals > 0 else torch.round(wide / scale) * scale).to(x.dtype)


def _bernoulli(x: Tensor, p: Tensor | float | None = None, generator: torch.Generator | None = None) -> Tensor:
    """bernoulli(x, p) → (rand < p) as x's dtype; p is x if not given. Whole with a generator of the user's own."""
    p = x if p is None else p
    if generator is not None or not (isinstance(p, Tensor) or _ordered(0, p, 1)):
        return NotImplemented
    return (_drawn_like(aten.rand.default, x, dtype=torch.float32) < _probabilities(p)).to(x.dtype)


def _drawn_like(draw: OpOverload, x: Tensor, **of: Any) -> Tensor:
    """rand_like(x) → rand(x.shape), and randn_like likewise."""
    return draw(x.shape, dtype=of.get("dtype") or x.dtype, device=of.get("device") or x.device)


def _scaled(draw: OpOverload, x: Tensor, scale: float, shift: float, generator: object = None) -> Tensor:
    """draw·scale + shift in the size and dtype of x; a generator of the user's own leaves the op whole."""
    if generator is not None or not _ordered(0, scale):
        return NotImplemented
    wide = torch.float32 if x.dtype in LOW_PRECISION else x.dtype
    return (draw(x.shape, dtype=wide, device=x.device) * scale + shift).to(x.dtype)


def _foreach_table() -> dict[OpOverload, Decomposition]:
    """Of every `_foreach_` operator that returns new tensors: ATen's own loop over them,
    _foreach_add([x, y], [a, b]) → [x + a, y + b]. But for two that take numbers as a tensor, and read them."""
    read = (aten._foreach_addcdiv.Tensor, aten._foreach_addcmul.Tensor)
    found = {op: loop for op, loop in torch_compat.foreach_loops().items() if not (op._schema.is_mutable or op in read)}
    return {**found, aten._foreach_zero.default: lambda tensors: [torch.zeros_like(x) for x in tensors]}


_OURS: Mapping[OpOverload, Decomposition] = {
    **dict.fromkeys((aten.mm.default, aten.addmm.default, aten.bmm.default), _thin),
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.embedding_dense_backward.default: _embedding_dense_backward,
    **dict.fromkeys((aten.eye.default, aten.eye.m), _eye),
    **{op: partial(_of_wide, _TORCHS[op]) for op in WITH_STATISTICS},
    **{op: partial(of_a_mean, _TORCHS[op]) for op in OF_MEANS},
    aten.masked_scatter.default: _masked_scatter,
    # slices: torch's table counts from where memory begins, and how a value lies in it is decided later
    aten.split_with_sizes.default: lambda x, n, d=0: [*map(partial(x.narrow, d), accumulate((0, *n[:-1])), n)],
    aten.binary_cross_entropy.default: lambda x, y, *of: _CROSS_ENTROPY(_probabilities(x), _probabilities(y), *of),
    aten.smooth_l1_loss.default: lambda *of: _SMOOTH_L1(*of) if _ordered(0, *of[3:]) else NotImplemented,
    aten.threshold_backward.default: lambda g, x, least: torch.where(_widen(x) <= least, 0, g),
    aten.view_copy.default: lambda x, size: x.reshape(size).clone(memory_format=torch.contiguous_format),
    aten.nan_to_num.default: lambda x, *a, **k: NotImplemented if x.is_complex() else _NAN_TO_NUM(x, *a, **k),
    aten.take.default: lambda x, at: aten.index.Tensor(x.flatten(), (at,)),  # brackets would read a single place
    aten.linalg_vector_norm.default: partial(counted_from_0, _NORM),
    aten.detach.default: lambda x: x,  # joint graphs of torch's are full of it
    aten.angle.default: lambda x: NotImplemented if x.is_complex() else torch.where(x >= 0, 0.0, x.clamp_min(math.pi)),
    aten.polygamma.default: lambda n, x: torch.digamma(x) if n == 0 else NotImplemented,
    aten.round.decimals: _round_decimals,
    aten._weight_norm_interface_backward.default: _weight_norm_backward,
    aten.gelu.default: _gelu,
    aten.native_dropout_backward.default: _native_dropout_backward,
}

_DIVISIONS = "div.Tensor_mode div.Scalar_mode fmod.Tensor fmod.Scalar remainder.Tensor remainder.Scalar"
WRAPPED: DecompositionTable = {
    **{op: partial(_divide, op) for op in overloads(f"{_DIVISIONS} remainder.Scalar_Tensor")},
    aten.max_pool2d_with_indices_backward.default: _max_pool2d_backward,
}
"""Operators that are part of their decompositions, which `decompose` alone can do."""

_RANDOM: Mapping[OpOverload, Decomposition] = {
    aten.native_dropout.default: _native_dropout,
    **dict.fromkeys((aten.bernoulli.p, aten.bernoulli.default, aten.bernoulli.Tensor), _bernoulli),
    aten.rand_like.default: partial(_drawn_like, aten.rand.default),
    aten.randn_like.default: partial(_drawn_like, aten.randn.default),
    aten.uniform.default: lambda x, low=0.0, high=1.0, **of: _scaled(aten.rand.default, x, high - low, low, **of),
    aten.normal_functional.default: lambda x, mean=0.0, std=1.0, **of: _scaled(aten.randn.default, x, std, mean, **of),
}


def decomposition_table(*, numerics: Numerics = "fast") -> dict[OpOverload, Decomposition]:
    """The decompositions that `aot_compile` uses unless told otherwise.

    Args:
        numerics: "fast" writes every random op in terms of `rand` and `randn`, which the compiler fuses;
            "eager" leaves random ops whole, so that their values are eager's own under the same seed."""
    torchs: Mapping[Any, Decomposition] = get_decompositions([getattr(aten, name) for name in _FROM_TORCH])
    return {**torchs, **_OURS, **_foreach_table(), **(_RANDOM if numerics == "fast" else {})}

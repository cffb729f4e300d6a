"""More statements: what models and numeric code are made of beyond the basic operators.

They are drawn from seed ``WIDER`` on, beside the others. Sizes are small and odd; windows, parts and rows are drawn so
that they often end beside a border.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from tests.fuzz.operations import FLOATS, MUTATIONS, OPERATIONS, Impossible, Operation, Scope

MATRICES = (torch.float32, torch.float64)


def distinct(s: Scope) -> str:
    """A floating-point variable without equal elements."""
    return s.pick(lambda value: value.dtype in FLOATS and value.unique().numel() == value.numel() > 0)


def filled(s: Scope, least: int = 1) -> str:
    """A floating-point variable of at least that many dimensions and at least one element."""
    return s.pick(lambda value: value.dtype in FLOATS and value.ndim >= least and value.numel() > 0)


def image(s: Scope) -> tuple[str, int]:
    """The text of images made of a variable, and their channels."""
    channels = s.rng.choice([1, 2, 4, 6, 8])
    height, width = s.rng.choice([(5, 6), (4, 4), (7, 3), (1, 9), (8, 8)])
    last = s.rng.choice([True, False])
    return f"image({filled(s)}, {channels}, {height}, {width}, last={last})", channels


# --- joining ---


def many_parts(s: Scope) -> str:
    x = filled(s)
    d, count = s.dim(x), s.rng.choice([3, 9, 10, 12, 17])
    scalar, size = s.number(), max(s.size(x, d), 1)
    return s.choose(
        f"torch.cat([torch.sin({x} * k) for k in range({count})], {d})",
        f"torch.cat([{x} + k if k % 3 else {x} for k in range({count})], {d})",
        f"torch.stack([{x} * k for k in range({count})], {d})",
        f"torch.cat([({x}[:k + 1] * {scalar}) for k in range({count})])",
        f"torch.cat([{x}.narrow({d}, 0, 1 + k % {size}).exp().clamp(max=9) for k in range({count})], {d})",
        f"torch.cat([{x}.roll(k, {d}) for k in range({count})], -1)",
        f"chain({x}, {count}, {d})",
        f"chain({x}, {count}, {d}, keep=2)",
        f"chain({x}, {count}, {d})[..., ::2]",
        f"torch.cat([{x}.mean({d}, keepdim=True) * k for k in range({count})], {d})",
        f"torch.cat([torch.softmax({x} * k, {d}) for k in range({count})], -1)",
        f"torch.cat([F.relu({x}).to(torch.float32), *[({x} - k).float() for k in range({count})]], {d})",
        f"torch.cat([*{x}.unbind({d}), *[t * 2 for t in {x}.unbind({d})]])",
        f"torch.cat([t.cumsum(-1) for t in [{x} * k for k in range({count})]], {d})",
    )


def blocks(s: Scope) -> str:
    x = s.pick(lambda value: value.dtype in FLOATS and value.ndim >= 2 and value.numel() > 0)
    ways = ("slices", "add", "columns", "stack", "cat")
    text = s.choose(
        f"dense_block({x}, {s.rng.choice([2, 4, 9])}, {s.rng.choice([1, 4, 16])})",
        *[f"recurrence({x}, {way!r})" for way in ways],
        *[f"recurrence({x}, {way!r})" for way in ways],
    )
    if "recurrence" in text and s.values[x].shape[0] > 17:
        raise Impossible
    return text


# --- searching and ordering ---


def searching(s: Scope) -> str:
    x, n = s.pick(), s.rng.choice([1, 2, 3, 7, 8, 31])
    right = s.rng.choice([True, False])
    grid = f"torch.linspace(-4, 4, {n})"
    return s.choose(
        f"torch.bucketize({x}, {grid}, right={right})",
        f"torch.bucketize({x}, {grid}, out_int32=True)",
        f"torch.searchsorted({grid}.to({x}.dtype), {x}, right={right})",
        f"torch.searchsorted({x}.sort(-1)[0].contiguous(), {x}.contiguous(), right={right})",
        f"torch.searchsorted(torch.arange({n}), {x}.long(), side='right')",
        f"torch.searchsorted(torch.arange({n}), {x}, right={right})",
        f"torch.bucketize({x}, torch.arange({n}, dtype=torch.int8), right={right})",
        f"torch.searchsorted(torch.arange({n}), 1.5)",
        f"torch.bucketize(torch.tensor(1.5), {x}.flatten().sort()[0])",
        f"torch.isin({x}.contiguous(), {x}.flatten()[:2])",
        f"torch.bincount({x}.long().abs().flatten() % {n}, minlength={n})",
        f"torch.histc({x}.float(), {n}, -4, 4)",
    )


def ordering(s: Scope) -> str:
    x = distinct(s)
    d, e = s.dim(x), s.rng.choice([True, False])
    k = s.rng.randrange(1, s.size(x, d) + 1)
    return s.choose(
        f"{x}.sort({d}, descending={e})[0]",
        f"{x}.sort({d}, descending={e})[1]",
        f"{x}.argsort({d}, descending={e})",
        f"{x}.topk({k}, {d}, largest={e})[0]",
        f"{x}.topk({k}, {d}, largest={e})[1]",
        f"{x}.kthvalue({k}, {d})[0]",
        f"{x}.median({d})[0]",
        f"{x}.nanmedian({d})[1]",
        f"torch.quantile({x}.float(), 0.3, {d})",
        f"torch.quantile({x}.double(), torch.tensor([0.25, 0.5], dtype=torch.float64), {d}, interpolation='nearest')",
        f"{x}.gather({d}, {x}.argsort({d}))",
        f"{x}.cummax({d})[1]",
        f"{x}.cummin({d})[0]",
        f"{x}.msort()",
        f"{x}.long().sort(dim={d}, stable=True)[1]",
        f"({x} > 0).sort(dim={d}, stable=True, descending={e})[1]",
        f"{x}.round().unique(return_inverse=True)[1]",
        f"{x}.flatten().long().sort()[0].unique_consecutive(return_inverse=True)[1]",
        f"torch.zeros_like({x}).scatter({d}, {x}.topk({k}, {d})[1], 1.0)",
    )


def scanning(s: Scope) -> str:
    x = s.pick(lambda value: value.numel() > 0)
    d = s.dim(x)
    return s.choose(
        f"{x}.cumsum({d})",
        f"{x}.cumsum({d}).flip({d})",
        f"{x}.flip({d}).cumsum({d}).flip({d})",
        f"({x} > 0).cumsum({d})",
        f"({x} > 0).long().cumprod({d})",
        f"{x}.sign().cumprod({d})",
        f"torch.logcumsumexp({x}.double(), {d})",
        f"{x}.cumsum({d}, dtype=torch.float64)",
        f"{x}.cumsum({d}, dtype=torch.int32)",
        f"torch.diff({x}.cumsum({d}), dim={d})",
        f"torch.trapezoid({x}.float(), dim={d})",
        f"torch.cumulative_trapezoid({x}.float(), dim={d})",
        f"{x}.cummax({d})[0] - {x}.cummin({d})[0]",
    )


# --- integers ---


def integers(s: Scope) -> str:
    x, y = s.pick(), s.integral()
    return s.choose(
        *[f"hashed({x}, {way!r})" for way in ("mix", "int32", "uint8", "int8", "int16", "lcg")],
        f"{y} * 1000003 % 4093",
        f"{y}.to(torch.uint8) - 3",
        f"{y}.to(torch.int8) << 5",
        f"{y}.to(torch.uint8) >> 2",
        f"-{y}.to(torch.uint8)",
        f"{y}.to(torch.int16).sum()",
        f"{y}.to(torch.uint8).prod(-1)",
        f"{y}.to(torch.int8).cumsum(-1)",
        f"torch.div({y}, -3, rounding_mode='floor')",
        f"torch.div({y}, -3, rounding_mode='trunc')",
        f"torch.fmod({y}, 3)",
        f"torch.remainder({y}, -4)",
        f"{y}.long() ** 3",
        f"torch.bitwise_left_shift({y}.int(), 3)",
        f"torch.gcd({y}.long(), torch.tensor(12))",
        f"torch.lcm({y}.long(), torch.tensor(4))",
        f"{y}.to(torch.float16)",
        f"{y}.to(torch.int8).to(torch.float32) / 3",
        f"{y}.to(torch.uint8).float().mean(-1)",
        f"{y}.to(torch.int16) + {y}.to(torch.uint8)",
        f"{y} // ({y} * {y} + 1)",
        f"{x}.to(torch.int8).view(torch.uint8)",
        f"{x}.float().view(torch.int32) >> 20",
    )


# --- indexing and scattering ---


def crowded(s: Scope) -> str:
    """Scatters of many elements into few, and reads at computed places."""
    x = s.ranked()
    d = s.rng.randrange(s.values[x].ndim)
    size, n = s.size(x, d), s.rng.choice([1, 2, 3, 8])
    at = f"torch.arange({size}) * 5 % {n}"
    how = s.choose("sum", "amax", "amin", "prod", "mean")
    own, reduce = s.rng.choice([True, False]), how.replace("sum", "mean")
    spread = f"({x}.long().abs() % {n})"
    shape = list(s.values[x].shape)
    shape[d] = n
    return s.choose(
        f"torch.zeros({shape}, dtype={x}.dtype).index_add({d}, {at}, {x})",
        f"torch.ones({shape}, dtype={x}.dtype).index_reduce({d}, {at}, {x}, {reduce!r}, include_self={own})",
        f"torch.zeros({shape}, dtype={x}.dtype).scatter_add({d}, {spread}, {x})",
        f"torch.ones({shape}, dtype={x}.dtype).scatter_reduce({d}, {spread}, {x}, {how!r}, include_self={own})",
        f"torch.zeros({n}, dtype={x}.dtype).index_put(({spread}.flatten(),), {x}.flatten(), accumulate=True)",
        f"torch.zeros({n}, {n}, dtype={x}.dtype).index_put(({spread}, {spread}), {x}, accumulate=True)",
        f"torch.zeros({n}, dtype=torch.int64).scatter_add(0, {spread}.flatten(), torch.ones_like({spread}).flatten())",
        f"F.one_hot({spread}, {n}).sum(0)",
        f"F.one_hot({spread}.movedim({d}, -1), {n})",
        f"{x}.gather({d}, ({spread} % {size})[..., :-1])",
        f"torch.zeros_like({x}).scatter_add({d}, ({spread} % {size})[..., :-1], {x})",
        f"torch.zeros_like({x}).scatter({d}, ({spread} % {size})[..., 1:], 2)",
        f"{x}.scatter_reduce({d}, ({spread} % {size})[:1], {x}, {how!r}, include_self={own})",
        f"torch.zeros(({n}, *{x}.shape), dtype={x}.dtype).scatter(0, {spread}[None], {x}[None])",
        f"F.embedding({spread}, {x}.flatten()[:{n}].repeat({n})[:{n}, None].expand({n}, 3))",
        f"{x}.float().flatten()[{spread}.clamp(max={x}.numel() - 1).contiguous()]",
        f"{x}.take({spread}.clamp(max={x}.numel() - 1))",
    )


def selecting(s: Scope) -> str:
    """Results whose size depends on values, brought back to a known one."""
    x = s.ranked()
    return s.choose(
        f"torch.masked_select({x}, {x} > 0).sum()",
        f"{x}[{x} > 0].sum()",
        f"({x} > 0).nonzero().sum(0)",
        f"torch.zeros_like({x}).masked_scatter({x} > 0, {x})",
        f"torch.zeros_like({x}).masked_scatter({x} > 0, {x}.flatten().flip(0))",
        f"({x} > 0).nonzero().float().square().sum()",
        f"torch.where({x} > 0)[0].sum()",
        f"F.pad({x}[{x} > 0].float(), (0, {x}.numel()))[:{x}.numel()]",
        f"torch.argwhere({x} > 1).sum()",
        f"{x}[({x} > 0).flatten().nonzero().flatten() % {x}.shape[0]].float().sum(0)",
        f"{x}.index_put(({x} > 0,), torch.tensor(1, dtype={x}.dtype))",
    )


def moving(s: Scope) -> str:
    x = s.ranked()
    d, e = s.dim(x), s.dim(x)
    shape, numel = s.values[x].shape, s.values[x].numel()
    k = s.rng.randrange(-2, 3)
    size = s.size(x, d)
    window = s.rng.randrange(1, size + 1)
    return s.choose(
        f"{x}.roll({k}, {d})",
        f"{x}.roll(({k}, 1), ({d}, {e}))",
        f"{x}.roll({k})",
        f"{x}.flip({d}, {e})" if d % len(shape) != e % len(shape) else f"{x}.flip({d})",
        f"{x}.rot90({k}, ({d}, {e}))",
        f"{x}.diagonal({k}, {d}, {e}) * 2",
        f"torch.diag_embed({x}, {k})",
        f"{x}.tril({k})",
        f"{x}.triu({k})",
        f"{x}.unfold({d}, {window}, {s.rng.choice([1, 2, 3])}).sum(-1)",
        f"{x}.unfold({d}, {window}, {s.rng.choice([1, 2])}) * 2",
        f"{x}.repeat_interleave(torch.arange({size}) % 3, {d}, output_size={sum(i % 3 for i in range(size))})",
        f"{x}.clone().as_strided(({min(3, numel)},), (1,), {numel - min(3, numel)})",
        f"{x}.contiguous().as_strided((2, {max(1, numel // 2)}), (1, 1))" if numel > 2 else f"{x} + 0",
        f"{x}.clone().as_strided(({numel},), (1,)) * 2",
        f"{x}.tile(2, 1)",
        f"torch.block_diag({x}, {x})",
        f"torch.kron({x} * 1, {x} * 1)",  # of copies: eager does not notice that what kron saves was overwritten
        f"{x}.expand(3, *{x}.shape).transpose(0, {d}).reshape(-1)",
        f"torch.cartesian_prod({x}.flatten()[:4], {x}.flatten()[:3])",
        f"torch.tensordot({x}.float(), {x}.float(), {len(shape)})",
        f"F.pad({x}[None, None], (1, 2), mode={s.choose('reflect', 'replicate', 'circular')!r})",
        f"F.pad({x}.flatten()[None, None], (1, 2), mode={s.choose('reflect', 'replicate', 'circular')!r})",
        f"F.pad({x}, ({k}, {-k}))",
        f"F.pad({x}.movedim({d}, -1), (2, 0), value=1).movedim(-1, {d})",
    )


# --- networks ---


def convolution(s: Scope) -> str:
    x, c = image(s)
    source = x[6 : x.index(",")]
    groups = s.rng.choice([1, 1, 2, c]) if c % 2 == 0 else 1
    out = groups * s.rng.choice([1, 2, 3])
    k = s.rng.choice([(1, 1), (3, 3), (1, 3), (2, 1)])
    stride, dilation = s.rng.choice([1, 2]), s.rng.choice([1, 1, 2])
    padding = s.rng.choice([0, 1, 2])
    weight = f"weights({source}, {out}, {c // groups}, {k[0]}, {k[1]})"
    turned = f"weights({source}, {c}, {out // groups}, {k[0]}, {k[1]})"
    bias = s.choose("None", f"weights({source}, {out})")
    how = f"stride={stride}, padding={padding}, dilation={dilation}, groups={groups}"
    text = s.choose(
        f"F.conv2d({x}, {weight}, {bias}, {how})",
        f"F.conv2d({x}, {weight}, {bias}, padding='same', groups={groups}, dilation={dilation})",
        f"F.conv_transpose2d({x}, {turned}, {bias}, {how}, output_padding={s.rng.randrange(max(stride, dilation))})",
        f"F.conv1d({x}.flatten(2), {weight}.flatten(2), {bias}, {how})",
        f"F.conv_transpose1d({x}.flatten(2), {turned}.flatten(2), {bias}, stride={stride}, groups={groups})",
        f"F.conv3d({x}[..., None, :], {weight}[..., None, :], {bias}, groups={groups}, padding=1)",
    )
    return s.choose(text, f"F.relu({text})", f"F.silu({text}).mean((-1, -2))", f"{text}.sum(1)")


def images(s: Scope) -> str:
    x, c = image(s)
    source = x[6 : x.index(",")]
    k, stride, pad = s.rng.choice([1, 2, 3]), s.rng.choice([1, 2, 3]), s.rng.choice([0, 1])
    ceil, inner = s.rng.choice([True, False]), s.rng.choice([True, False])
    mode = s.choose("nearest", "bilinear", "bicubic", "nearest-exact", "area")
    corners = f", align_corners={s.rng.choice([True, False])}" if mode[:2] == "bi" else ""
    size = s.rng.choice([(3, 5), (8, 2), (1, 1), (9, 13)])
    groups = s.rng.choice([1, c])
    rows = f"{x}.contiguous()"  # CUDA's backward of a channels-last pool misreads a tangent whose rows are contiguous
    turn = f"torch.eye(2, 3, dtype={source}.dtype)[None].expand(2, 2, 3) * 1.1 + 0.03"
    sampled, border = s.choose("bilinear", "nearest", "bicubic"), s.choose("zeros", "border", "reflection")
    return s.choose(
        f"F.max_pool2d({x}, {k}, {stride}, {min(pad, k // 2)}, ceil_mode={ceil})",
        f"F.max_pool2d({x}, {k}, {stride}, dilation=2, return_indices=True)[1]",
        f"F.avg_pool2d({rows}, {k}, {stride}, {min(pad, k // 2)}, ceil_mode={ceil}, count_include_pad={inner})",
        f"F.avg_pool2d({rows}, ({k}, 1), divisor_override=3)",
        f"F.lp_pool2d({x}.abs() + 0.5, 2, {k})",
        f"F.adaptive_avg_pool2d({x}, {size[:1] * 2})",
        f"F.adaptive_max_pool2d({x}, (2, 1))",
        f"F.max_pool1d({x}.flatten(2), {k}, {stride})",
        f"F.max_pool3d({x}, {k}, {stride})",
        f"F.interpolate({x}, {size}, mode={mode!r}{corners})",
        f"F.interpolate({x}, scale_factor=(2, 1.5), mode={mode!r}{corners})",
        f"F.interpolate({x}, scale_factor=0.5, mode={mode!r}{corners}, recompute_scale_factor=True)",
        f"F.interpolate({x}, {size}, mode='bilinear', antialias=True)",
        f"F.interpolate({x}.flatten(2), 7, mode='linear')",
        f"F.pad({x}, ({pad}, {k}, 1, {pad}), mode={s.choose('replicate', 'circular', 'reflect', 'constant')!r})",
        f"F.pixel_shuffle({x}.repeat(1, 4, 1, 1), 2)",
        f"F.pixel_unshuffle({x}[..., :2, :2], 2)",
        f"F.channel_shuffle({x}, {groups})",
        f"F.unfold({x}, {k}, padding={pad}, stride={stride})",
        f"F.fold(F.unfold({x}, {k}, padding={pad}), {x}.shape[-2:], {k}, padding={pad})",
        f"F.batch_norm({x}, None, None, weights({source}, {c}), training=True)",
        f"F.batch_norm({x}, weights({source}, {c}), weights({source}, {c}).abs() + 1)",
        f"F.group_norm({x}, {groups}, weights({source}, {c}), weights({source}, {c}))",
        f"F.instance_norm({x})",
        f"F.local_response_norm({x}, 2)",
        f"F.grid_sample({x}, F.affine_grid({turn}, (2, {c}, 3, 4)), align_corners={inner})",
        f"F.affine_grid({turn}, (2, {c}, 1, {size[1]}), align_corners={inner})",
        f"F.grid_sample({x}, weights({source}, 2, 3, 3, 2) * 4, mode={sampled!r}, padding_mode={border!r})",
        f"F.layer_norm({x}.permute(0, 2, 3, 1), ({c},)).permute(0, 3, 1, 2)",
        f"{x}.mean((2, 3), keepdim=True) * {x}",
        f"F.dropout2d({x}, 0.5, training=False)",
    )


def attending(s: Scope) -> str:
    x = s.pick(lambda value: value.dtype in FLOATS and value.ndim >= 2 and 0 < value.numel() < 400)
    columns = s.rng.choice([2, 4, 8])
    source = f"{x}.reshape(-1)[:{s.values[x].numel() // columns * columns}].reshape(1, -1, {columns})"
    if s.rng.random() < 0.3:
        source += ".expand(2, -1, -1)"
    mask = s.choose("none", "causal", "window", "added", "padding", "infinite", "from values", "heads")
    heads, scale = s.rng.choice([1, 2]), s.choose("None", "0.5", "1.0")
    return f"attention({source}, {heads}, {mask!r}, written={s.rng.choice([True, False])}, scale={scale})"


def losses(s: Scope) -> str:
    x = filled(s, 2)
    classes = s.values[x].shape[1]
    target = f"({x}.select(1, 0).detach().long().abs() % {classes})"
    reduction = s.choose("mean", "sum", "none")
    smoothing, ignored = s.rng.choice([0.0, 0.1]), s.rng.randrange(-1, classes)
    weight = s.choose("None", f"torch.linspace(0.5, 2, {classes}, dtype={x}.dtype)")
    how = f"{weight}, ignore_index={ignored}, reduction={reduction!r}"
    smooth = f"label_smoothing={smoothing}"
    table, bag = f"weights({x}, {classes + 2}, 3)", s.choose("sum", "mean", "max")
    return s.choose(
        f"F.cross_entropy({x}, {target}, {how}, {smooth})",
        f"F.cross_entropy({x}, torch.softmax({x} * 2, 1), {weight}, reduction={reduction!r}, {smooth})",
        f"F.nll_loss(torch.log_softmax({x}, 1), {target}, {how})",
        f"F.binary_cross_entropy_with_logits({x}, ({x} > 0).to({x}.dtype), reduction={reduction!r})",
        f"F.binary_cross_entropy(torch.sigmoid({x}), ({x} > 0).to({x}.dtype), reduction={reduction!r})",
        f"F.mse_loss({x}, {x}.flip(0), reduction={reduction!r})",
        f"F.smooth_l1_loss({x}, {x}.flip(0), reduction={reduction!r}, beta=0.5)",
        f"F.huber_loss({x}, {x}.flip(0), reduction={reduction!r}, delta=0.5)",
        f"F.kl_div(torch.log_softmax({x}, 1), torch.softmax({x} * 2, 1), reduction={reduction!r})",
        f"F.kl_div(torch.log_softmax({x}, 1), torch.log_softmax({x} * 2, 1), reduction={reduction!r}, log_target=True)",
        f"F.multi_margin_loss({x}.flatten(1), {target}.flatten()[:{x}.shape[0]], reduction={reduction!r})",
        f"F.cosine_similarity({x} + 1, {x}.flip(0), dim={s.dim(x)})",
        f"F.triplet_margin_loss({x}, {x}.flip(0), {x}.roll(1, 0) + 1, reduction={reduction!r})",
        f"F.gaussian_nll_loss({x}, {x}.flip(0), {x}.abs() + 0.5, reduction={reduction!r})",
        f"F.poisson_nll_loss({x}.clamp(max=2), {x}.abs(), reduction={reduction!r})",
        f"F.soft_margin_loss({x}, {x}.sign(), reduction={reduction!r})",
        f"F.hinge_embedding_loss({x}, ({x} > 0).to({x}.dtype) * 2 - 1, reduction={reduction!r})",
        f"F.l1_loss({x}, {x}.roll(1), reduction={reduction!r})",
        f"F.softmin({x}, {s.dim(x)})",
        f"F.glu({x}.repeat_interleave(2, -1), -1)",
        f"F.prelu({x}, weights({x}, {classes}))",
        f"F.embedding({target}, {table}, padding_idx=1)",
        f"F.embedding_bag({target}.flatten()[None], {table}, mode={bag!r})",
        f"F.bilinear({x}, {x}, weights({x}, 2, {x}.shape[-1], {x}.shape[-1])) / 64",
    )


# --- products and linear algebra ---


def products(s: Scope) -> str:
    x = filled(s, 2)
    rows, columns = s.values[x].shape[-2:]
    k = s.rng.choice([1, 3, 5, 16])
    w, b = f"weights({x}, {columns}, {k})", s.choose("torch.zeros(1)", f"weights({x}, {k})")
    flat = f"{x}.reshape(-1, {columns})"
    batch, count = f"{x}.reshape(-1, {rows}, {columns})", s.values[x].numel() // (rows * columns)
    order = s.choose("1", "2", "3", "float('inf')")
    return s.choose(
        f"torch.einsum('...ij,...kj->...ik', {x}, {x}) / 16",
        f"torch.einsum('...ij,...ij->...', {x}, {x}) / 16",
        f"torch.einsum('...ij,jk->...ki', {x}, {w})",
        f"torch.einsum('...ii->...i', {x} @ {x}.mT) / 16",
        f"torch.einsum('ij,kj->ik', {flat}, {flat}[:3]) / 16",
        f"torch.einsum('i,j->ij', {x}.flatten()[:8], {x}.flatten()[:5])",
        f"torch.addmm({b}.to({x}.dtype), {flat}, {w}, beta=0.5, alpha=2)",
        f"F.linear({x}, {w}.mT, {b}.to({x}.dtype).expand({k}))",
        f"F.gelu({x} @ {w}) @ {w}.mT",
        f"({x} @ {w}).relu().sum(-1)",
        f"torch.baddbmm({batch}, {batch}, weights({x}, 1, {columns}, {columns}).expand({count}, -1, -1))",
        f"{flat}.mv({w}[:, 0])",
        f"torch.dot({x}.flatten(), {x}.flatten()) / 64",
        f"torch.outer({x}.flatten()[:9], {x}.flatten()[-4:])",
        f"torch.chain_matmul({flat}, {w}, {w}.mT)",
        f"torch.cdist({x}.float(), {x}.float() + 1)",
        f"torch.cdist({x}.float(), {x}.float() + 1, p=1)",
        f"F.pdist({flat}.float() * 1.01)",
        f"torch.linalg.vector_norm({x}, {order}, dim={s.dim(x)})",
        f"torch.linalg.matrix_norm({x} + 1)",
        f"{x} @ {x}.transpose(-1, -2).tril() / 16",
        f"(weights({x}, {k}, {rows}) @ {x}) * {x}.mean(-2, keepdim=True)",
        f"torch.cov({flat}.float())",
        f"torch.corrcoef({flat}.float() + torch.arange({columns}))",
        f"torch.renorm({x}.float(), 2, 0, 1.5)",
    )


def algebra(s: Scope) -> str:
    x = s.pick(
        lambda v: v.dtype in MATRICES and v.ndim >= 2 and 0 < v.shape[-2] <= 8 and 0 < v.shape[-1] <= 8 and v.numel()
    )
    m = f"({x} @ {x}.mT / 32 + 2 * torch.eye({x}.shape[-2], dtype={x}.dtype))"
    return s.choose(
        f"torch.linalg.solve({m}, {x})",
        f"torch.linalg.inv({m})",
        f"torch.linalg.det({m}).log1p()",
        f"torch.linalg.slogdet({m})[1]",
        f"torch.linalg.cholesky({m})",
        f"torch.cholesky_solve({x}, torch.linalg.cholesky({m}))",
        f"torch.linalg.solve_triangular({m}.tril(), {x}, upper=False)",
        f"torch.linalg.eigvalsh({m})",
        f"torch.linalg.svdvals({m})",
        f"torch.linalg.matrix_exp({m} / 8)",
        f"torch.linalg.matrix_power({m} / 4, 3)",
        f"torch.linalg.cross({x}[..., :3], {x}[..., :3].flip(-1) + 1)",
        f"torch.fft.rfft({x}).abs().square()",
        f"torch.fft.irfft(torch.fft.rfft({x}) * 0.5, {x}.shape[-1])",
        f"torch.fft.fft2({x}).real",
        f"torch.fft.fftshift({x})",
    )


def complex_numbers(s: Scope) -> str:
    x = s.pick(lambda value: value.dtype in MATRICES and value.numel() > 0)
    z = f"torch.complex({x}, {x}.flip(0) * 0.5 if {x}.ndim else {x} + 1)"
    pairs = f"torch.view_as_complex({x}.repeat_interleave(2, -1).reshape(*{x}.shape, 2).contiguous())"
    return s.choose(
        f"torch.view_as_real({z} * {z})",
        f"({z} * torch.polar(torch.ones_like({x}), {x})).real",
        f"torch.view_as_real({pairs} * {z}).flatten(-2)",
        f"{z}.abs()",
        f"{z}.conj().imag",
        f"({z} / ({z}.abs() + 1)).real",
        f"torch.angle({z} + 5)",
        f"torch.view_as_real(({z} * 0.25).exp())",
        f"({z} @ {z}.mH).real / 64" if s.values[x].ndim > 1 else f"{z}.real",
        f"{z}.sum(-1).imag",
        f"{z}.mean().real",
        f"(({z} + 1) ** 2).imag",
        f"torch.view_as_real({z}.conj() * 2 - {z})",
        f"torch.nan_to_num({z} / {x}).imag",
        f"torch.cat([{z}, {z}.conj()]).imag" if s.values[x].ndim else f"{z}.imag",
        f"torch.where({x} > 0, {z}, 0j).real",
        f"{z}.cumsum(-1).imag",
        f"{z}",
    )


def of_complex(s: Scope) -> str:
    z = s.pick(lambda value: value.dtype.is_complex)
    text = s.choose(
        *("{}.real", "{}.imag", "torch.view_as_real({})", "{0} * {0}", "{}.conj()", "{}.abs()", "{} * 0.5j"),
        *("{}.sum(-1)", "{}.resolve_conj()", "{0} + {0}.real", "{}.mT", "{}.flip(0)", "{0} == {0}.conj()"),
        *("{}[..., ::2]", "{}.sgn()", "torch.view_as_real({}.conj())", "{}.clone().mul_(2)"),
    )
    return text.format(z)


# --- arithmetic that is rarely written ---


def special(s: Scope) -> str:
    x = s.floating()
    y = s.like(x)
    return s.choose(
        f"torch.erfinv({x}.tanh() * 0.9)",
        f"torch.lgamma({x}.abs() + 1)",
        f"torch.digamma({x}.abs() + 1)",
        f"torch.logaddexp({x}, {x}.flip(0) if {x}.ndim else {x})",
        f"torch.xlogy({x}, {x}.abs() + 1)",
        f"torch.nan_to_num({x} / {x}, 0.5, 1.0, -1.0)",
        f"torch.heaviside({x}, torch.tensor(0.5, dtype={x}.dtype))",
        f"torch.copysign({x}, {y})" if y in s.values else f"torch.copysign({x}, -1)",
        f"torch.ldexp({x}, torch.tensor(2))",
        f"torch.frexp({x})[0]",
        f"torch.frexp({x})[1]",
        f"torch.nextafter({x}, {x} + 1)",
        f"torch.float_power({x}.abs() + 0.5, 1.5)",
        f"({x}.abs() + 0.5) ** {y}.clamp(-2, 2)" if y in s.values else f"({x}.abs() + 0.5) ** {y}",
        f"{x} ** 3",
        f"{x}.fmod(1.5)",
        f"{x} % 1.5",
        f"{x} // 0.75",
        f"torch.sinc({x})",
        f"torch.i0({x}.clamp(-3, 3))",
        f"torch.special.entr({x}.abs())",
        f"torch.special.log_ndtr({x})",
        f"torch.asinh({x}) + torch.acosh({x}.abs() + 1.5)",
        f"torch.atanh({x}.tanh() * 0.9)",
        f"torch.tan({x}.clamp(-1, 1))",
        f"torch.signbit({x})",
        f"torch.fmax({x}, {x}.flip(0))" if s.values[x].ndim else f"torch.fmax({x}, {x})",
        f"torch.clamp({x}, {x} - 1, {x} * 0.5 + 1)",
        f"F.hardtanh({x})",
        f"F.mish({x})",
        f"F.selu({x})",
        f"F.celu({x}, 0.5)",
        f"F.softsign({x})",
        f"F.tanhshrink({x})",
        f"F.softshrink({x})",
        f"F.hardshrink({x})",
        f"F.hardsigmoid({x})",
        f"F.threshold({x}, 0.5, -1)",
        f"F.rrelu({x}, training=False)",
        f"{x}.to(torch.float16)",
        f"{x}.half() * 3 + 1",
        f"{x}.bfloat16().float() - {x}.float()",
        f"torch.std({x}, {s.dim(x)})",
        f"torch.std_mean({x}.flatten(), 0)[1]",
        f"torch.nansum(torch.where({x} > 0, {x}, float('nan')), {s.dim(x)})",
        f"torch.nanmean(torch.where({x} > -9, {x}, float('nan')), {s.dim(x)})",
        f"{x}.norm(p=3, dim={s.dim(x)})",
        f"{x}.prod()" if s.values[x].numel() < 6 else f"{x}.sum((-1,))",
        f"torch.dist({x}, {x} * 0.5)",
        f"{x}.mode({s.dim(x)})[0]",
        f"torch.equal({x}, {x}) * {x}",
    )


# --- mutation ---


def update_rows(s: Scope) -> str:
    x = s.ranked()
    d = s.rng.randrange(s.values[x].ndim)
    size, colons = s.size(x, d), ":, " * d
    at = s.rng.randrange(size)
    n = min(size, 4)
    index = s.index(size, n, distinct=True)
    loop = f"for k in range({min(size, 12)}): "
    return s.choose(
        loop + f"{x}[{colons}k] = {x}[{colons}k - 1] * 0.5",
        loop + f"{x}[{colons}k].add_(k)",
        loop + f"{x}[{colons}k] += {x}[{colons}{at}].clone()",
        f"{x}[{colons}{at}:] = {x}[{colons}:{size - at}].clone()",
        f"{x}[{colons}torch.tensor({index})] *= 2",
        f"{x}.index_copy_({d}, torch.tensor({index}) % {size}, {x}.flip({d}).narrow({d}, 0, {n}))",
        f"{x}.index_fill_({d}, torch.tensor([{at}]), 1)",
        f"{x}.scatter_reduce_({d}, torch.zeros_like({x}, dtype=torch.int64), {x} * 1, 'amax')",
        f"{x}.masked_scatter_({x} > 0, {x} * 2)",
        f"{x}.unsqueeze(0).transpose(0, -1)[..., 0].mul_(0.5)",
        f"{x}.unfold({d}, 1, 1).add_(1)",
        f"{x}.flatten(0)[::2] = 1",
        f"{x}.tril_() if {x}.ndim > 1 else {x}.sub_(1)",
        f"{x}.as_strided((1,), (1,), {x}.storage_offset()).fill_(2)",
        f"{x}.cumsum_({d}).mul_(0.25)",
        f"{x}.bitwise_xor_(3)",
        f"{x}.floor_divide_(2)",
        f"{x}.remainder_(3)",
        f"{x}.swapaxes(0, -1)[0] = 0.5",
        f"torch.sin({x}, out={x})",
        f"torch.add({x}, 1, out={x})",
        f"{x}.lerp_({x} * 2, 0.25)",
        f"{x}.copy_({x}.flip({d}).clone())",
    )


WIDER_OPERATIONS: Mapping[Operation, int] = {
    **OPERATIONS,
    many_parts: 10,
    blocks: 6,
    searching: 4,
    ordering: 5,
    scanning: 4,
    integers: 8,
    crowded: 8,
    selecting: 3,
    moving: 10,
    convolution: 7,
    images: 9,
    attending: 5,
    losses: 7,
    products: 7,
    algebra: 3,
    complex_numbers: 5,
    of_complex: 3,
    special: 9,
}
WIDER_MUTATIONS: Mapping[Operation, int] = {**MUTATIONS, update_rows: 10}

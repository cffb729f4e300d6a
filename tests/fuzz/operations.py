"""The statements a random program is drawn from.

Each operation is a function of a :class:`Scope` that returns the text of an expression (``v0.sum(1)``), whose
value gets a new name, or of a statement (``v0.add_(v1)``). It may ask for things that eager refuses, such as
a broadcast that does not fit: the program generator runs each draw in eager and drops what raises.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

FLOATS = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Impossible(Exception):
    """No live variable suits the operation."""


@dataclass(frozen=True)
class Scope:
    """The live variables of a half-drawn program, oldest first, with their values in eager."""

    rng: random.Random
    values: Mapping[str, Tensor]

    def pick(self, accept: Callable[[Tensor], bool] = lambda value: True) -> str:
        """The name of a variable, the newer the likelier; raises :class:`Impossible` if none is accepted."""
        names = [name for name, value in self.values.items() if accept(value)]
        if not names:
            raise Impossible
        return names[max(self.rng.randrange(len(names)), self.rng.randrange(len(names)))]

    def floating(self) -> str:
        return self.pick(lambda value: value.dtype in FLOATS)

    def integral(self) -> str:
        return self.pick(lambda value: value.dtype not in FLOATS)

    def ranked(self, least: int = 1) -> str:
        """A variable of at least that many dimensions and at least one element."""
        return self.pick(lambda value: value.ndim >= least and value.numel() > 0)

    def dim(self, name: str) -> int:
        """A dimension of the variable, counted from either end."""
        ndim = self.values[name].ndim
        return self.rng.randrange(-ndim, ndim) if ndim else 0

    def size(self, name: str, dim: int) -> int:
        value = self.values[name]
        return value.shape[dim] if value.ndim else 1

    def like(self, name: str) -> str:
        """Another variable that broadcasts with this one, or a number."""
        shape = self.values[name].shape

        def fits(value: Tensor) -> bool:
            pairs = zip(reversed(shape), reversed(value.shape), strict=False)
            return all(a == b or a == 1 or b == 1 for a, b in pairs)

        return self.number() if self.rng.random() < 0.2 else self.pick(fits)

    def number(self) -> str:
        return self.rng.choice(["0.5", "2", "-1", "1.25", "3"])

    def index(self, size: int, count: int, *, distinct: bool = False) -> str:
        """The text of a list of ``count`` valid indices."""
        if distinct:
            return str(self.rng.sample(range(size), min(count, size)))
        return str([self.rng.randrange(-size, size) for _ in range(count)])

    def choose(self, *options: str) -> str:
        return self.rng.choice(options)


Operation = Callable[[Scope], str]


# --- pointwise ---


def unary(s: Scope) -> str:
    return s.choose(
        "torch.sin({})",
        "torch.cos({})",
        "torch.tanh({})",
        "torch.sigmoid({})",
        "torch.relu({})",
        "{}.abs()",
        "-{}",
        "{}.square()",
        "torch.sqrt({}.abs() + 1)",
        "torch.rsqrt({}.abs() + 1)",
        "torch.log1p({}.abs())",
        "torch.exp({}.clamp(max=2))",
        "F.gelu({})",
        "F.gelu({}, approximate='tanh')",
        "F.silu({})",
        "torch.erf({})",
        "1 / ({}.abs() + 1)",
        "{}.clamp(-1, 1.5)",
        "F.leaky_relu({}, 0.1)",
        "F.softplus({})",
        "F.elu({})",
        "torch.expm1({}.clamp(max=2))",
        "torch.atan({})",
        "F.hardswish({})",
        "F.logsigmoid({})",
    ).format(s.floating())


def rounding(s: Scope) -> str:
    return s.choose("{}.floor()", "{}.round()", "{}.trunc()", "{}.sign()", "{}.frac()").format(s.floating())


def binary(s: Scope) -> str:
    x = s.pick()
    y = s.like(x)
    return s.choose(
        f"{x} + {y}",
        f"{x} - {y}",
        f"{x} * {y}",
        f"{y} * {x}",
        f"{x} / ({x} * {x} + 1)",
        f"torch.add({x}, {y}, alpha=2)",
        f"torch.maximum({x}, torch.as_tensor({y}))",
        f"torch.rsub({x}, {y})",
        f"torch.minimum({x}, torch.as_tensor({y}))",
        f"torch.atan2({x}, {x}.abs() + 1)",
        f"torch.hypot({x} * 1.0, {x} + 2.0)",
    )


def scalar(s: Scope) -> str:
    x = s.pick()
    return s.choose("{0} * {1}", "{1} - {0}", "{0} + {1}", "{0} / {1}", "{0} * {0}.shape[0]").format(x, s.number())


def ternary(s: Scope) -> str:
    x = s.floating()
    y, z = s.like(x), s.like(x)
    return s.choose(
        f"torch.where({x} > {y}, {x}, {z})",
        f"torch.addcmul({x}, {x}, {x}, value=0.5)",
        f"{x}.lerp({x} * 2, 0.25)",
        f"torch.clamp({x}, min={x}.mean())",
        f"torch.where({x} > 0, {z}, 0.0)",
    )


def comparison(s: Scope) -> str:
    x = s.pick()
    return f"{x} {s.choose('>', '<', '>=', '<=', '==', '!=')} {s.like(x)}"


def integer(s: Scope) -> str:
    x = s.integral()
    return s.choose(
        "{} // 3",
        "{} % 3",
        "~{}",
        "{} & 1",
        "{} | 2",
        "{} ^ 3",
        "{}.bitwise_not()",
        "{}.logical_not()",
        "({} * 1) << 1",  # torch's own capture refuses to shift bools
        "({} * 1) >> 1",
        "-{}.long()",
        "{}.long() ** 2",
        "{}.clamp(0, 2)",
    ).format(x)


def conversion(s: Scope) -> str:
    return s.choose(
        "{}.float()",
        "{}.double()",
        "{}.to(torch.bfloat16)",
        "{}.long()",
        "{}.bool()",
        "{}.to(torch.int32)",
        "{}.int()",
        "{}.clamp(0, 9).to(torch.uint8)",
    ).format(s.pick())


# --- views ---


def view(s: Scope) -> str:
    x = s.ranked()
    d, e = s.dim(x), s.dim(x)
    return s.choose(
        f"{x}.transpose({d}, {e})",
        f"{x}.movedim({d}, {e})",
        f"{x}.reshape(-1)",
        f"{x}.reshape({x}.shape[0], -1)",
        f"{x}.unsqueeze({d})",
        f"{x}.squeeze()",
        f"{x}.squeeze({d})",
        f"{x}.flatten()",
        f"{x}[None]",
        f"{x}.mT",
        f"{x}.view({x}.shape)",
        f"{x}.reshape(-1, {s.rng.choice([1, 2, 3, 4])})",
        f"{x}.unflatten({d}, (-1, 2))",
        f"{x}.permute({permutation(s, x)})",
        f"{x}.diagonal(dim1=0, dim2=1)",
        f"{x}.unfold({d}, 2, 1)",
        f"{x}.expand(2, *{x}.shape)",
        f"{x}.view(-1)",
        f"{x}.swapaxes({d}, -1)",
        f"{x}.view_as({x})",
    )


def permutation(s: Scope, x: str) -> str:
    dims = list(range(s.values[x].ndim))
    s.rng.shuffle(dims)
    return str(tuple(dims))


def piece(s: Scope) -> str:
    """A view of a part."""
    x = s.ranked()
    d = s.rng.randrange(s.values[x].ndim)
    size = s.size(x, d)
    start = s.rng.randrange(size)
    stop = s.rng.randrange(start, size) + 1
    colons = ":, " * d
    return s.choose(
        f"{x}[{colons}{start}:{stop}]",
        f"{x}[{colons}{start}:]",
        f"{x}[{colons}:-1]",
        f"{x}[{colons}::2]",
        f"{x}[{colons}{start}]",
        f"{x}.narrow({d}, {start}, {stop - start})",
        f"{x}[..., {s.rng.choice([0, -1])}]",
        f"{x}.select({d}, {start})",
        f"{x}[{colons}{start}:{start}]",
    )


def pieces(s: Scope) -> str:
    """Several views of one tensor, combined."""
    x = s.ranked()
    d = s.dim(x)
    size = s.values[x].shape[d]
    return s.choose(
        f"{x}.chunk(2, {d})[0]",
        f"torch.stack({x}.unbind({d})[::-1], 0)" if size <= 64 else f"torch.stack({x}.chunk(2, {d})[:1], 0)",
        f"torch.cat({x}.split({max(2, size // 32)}, {d})[::-1], {d})",
        f"sum({x}.chunk(2, {d})[:1])",
        f"{x}.tensor_split(2, {d})[-1]",
    )


def copied(s: Scope) -> str:
    x = s.ranked()
    d = s.dim(x)
    return s.choose(
        "{0}.clone()",
        "{0}.contiguous()",
        "{0}.flip({1})",
        "{0}.roll(1, {1})",
        "{0}.repeat(2, *[1] * {0}.ndim)",
        "{0}.repeat_interleave(2, {1})",
        "{0}.tril()",
        "{0}.triu(1)",
        "{0}.rot90()",
    ).format(x, d)


# --- reductions and scans ---


def reduction(s: Scope) -> str:
    x = s.floating()
    d, keep = s.dim(x), s.choose("", ", keepdim=True")
    return s.choose(
        f"{x}.sum({d}{keep})",
        f"{x}.mean({d}{keep})",
        f"{x}.amax({d}{keep})",
        f"{x}.amin({d}{keep})",
        f"{x}.sum()",
        f"{x}.var({d}{keep})",
        f"{x}.var({d}, correction=0{keep})",
        f"torch.logsumexp({x}, {d}{keep})",
        f"{x}.mean()",
        f"{x}.square().sum({d}{keep})",
        f"({x} > 0).any({d}{keep})",
        f"({x} > 0).all({d}{keep})",
        f"{x}.amax()",
        f"torch.var_mean({x}, {d})[0]",
        f"{x}.sum((0, -1))",
        f"{x}.abs().sum({d}).sqrt()",
        f"({x}.tanh() + 1.5).prod({d}{keep})",
        f"({x} > 0).sum({d})",
        f"{x}.count_nonzero({d})",
        f"{x}.aminmax()[1]",
    )


def integer_reduction(s: Scope) -> str:
    x = s.integral()
    d = s.dim(x)
    return s.choose(f"{x}.sum({d})", f"{x}.amax({d})", f"{x}.any({d})", f"{x}.all()", f"{x}.sum()", f"{x}.cumsum({d})")


def normalisation(s: Scope) -> str:
    x = s.floating()
    d = s.dim(x)
    return s.choose(
        f"torch.softmax({x}, {d})",
        f"torch.log_softmax({x}, {d})",
        f"F.layer_norm({x}, {x}.shape[-1:])",
        f"F.rms_norm({x}, {x}.shape[-1:])",
        f"{x} - {x}.mean({d}, keepdim=True)",
        f"F.normalize({x} + 3, dim={d})",
        f"{x} / ({x}.abs().amax({d}, keepdim=True) + 1)",
    )


def scan(s: Scope) -> str:
    x = s.floating()
    d = s.dim(x)
    return s.choose(
        f"{x}.cumsum({d})",
        f"{x}.cumsum({d})",
        f"({x}.tanh() + 1.5).cumprod({d})",
        f"torch.logcumsumexp({x}, {d})",
        f"{x}.cummax({d})[0]",
        f"{x}.diff(dim={d})",
    )


def position(s: Scope) -> str:
    """Where the extreme is; only of values without ties, whose answer is unique."""
    x = s.pick(lambda value: value.dtype in FLOATS and value.unique().numel() == value.numel() > 0)
    d = s.dim(x)
    return s.choose(
        f"{x}.argmax({d})",
        f"{x}.argmin({d})",
        f"{x}.argmax()",
        f"{x}.max({d})[1]",
        f"{x}.sort({d})[1]",
        f"{x}.topk(1, {d})[0]",
        f"{x}.min({d}, keepdim=True)[0]",
        f"{x}.argsort({d})",
    )


# --- indexing ---


def indexing(s: Scope) -> str:
    x = s.ranked()
    d = s.rng.randrange(s.values[x].ndim)
    size = s.size(x, d)
    colons = ":, " * d
    index = s.index(size, s.rng.choice([1, 2, 4]))
    plain = index.replace("-", "")  # index_select takes no negative index; out of range draws are dropped
    text = s.choose(
        f"{x}[{colons}torch.tensor({index})]",
        f"{x}.index_select({d}, torch.tensor({plain}))",
        f"{x}[{colons}torch.tensor([{index}, {index}])]",
        f"{x}[{colons}torch.arange({x}.shape[{d}]).flip(0)]",
        f"torch.take_along_dim({x}, {x}.argsort({d}, stable=True), {d})",
        f"{x}.gather({d}, torch.zeros_like({x}, dtype=torch.int64))",
        f"F.embedding(torch.tensor({plain}), {x})",
    )
    if text.startswith(f"{x}[") and 1 in s.values[x].shape and not s.values[x].is_contiguous():
        raise Impossible  # no rule says in what order eager lays the result's dimensions out
    return text


def masking(s: Scope) -> str:
    x = s.floating()
    return s.choose(
        f"{x}.masked_fill({x} > 0.5, -1.0)",
        f"{x} * ({x} > 0)",
        f"torch.where({x}.isfinite(), {x}, 0.0)",
        f"{x}.masked_fill(torch.ones({x}.shape[-1:], dtype=torch.bool).tril(), 0.25)",
    )


def scattering(s: Scope) -> str:
    x = s.ranked()
    d = s.rng.randrange(s.values[x].ndim)
    size = s.size(x, d)
    some = s.index(size, size, distinct=True)
    many = s.index(size, size).replace("-", "")
    y = s.like(x)
    return s.choose(
        f"{x}.index_add({d}, torch.tensor({many}), {x} * 2)",
        f"{x}.index_copy({d}, torch.tensor({some}), {x} + 1)",
        f"{x}.scatter({d}, torch.zeros_like({x}, dtype=torch.int64)[:1], 2)",
        f"{x}.index_fill({d}, torch.tensor({some}[:1]), 3)",
        f"{x}.index_put((torch.tensor({some}[:1]),), torch.as_tensor({y}).to({x}.dtype))",
        f"torch.zeros_like({x}).scatter_add({d}, ({x} > 0).long() % {size}, {x})",
        f"{x}.select_scatter({x}.select({d}, 0) + 1, {d}, -1)",
        f"{x}.slice_scatter({x}[:1] * 2, 0, 0, 1)",
    )


# --- joining, creating, library calls ---


def joining(s: Scope) -> str:
    x = s.ranked()
    shape = s.values[x].shape
    y = s.pick(lambda value: value.shape == shape)
    d = s.dim(x)
    a, b = s.rng.randrange(3), s.rng.randrange(3)
    return s.choose(
        f"torch.cat([{x}, {y}], {d})",
        f"torch.stack([{x}, {y}], {d})",
        f"torch.cat([{x}, {x}[:1] * 2, {y}])",
        f"F.pad({x}, ({a}, {b}), value=0.5)",
        f"F.pad({x}, (-1, {b}))",
        f"F.pad({x}, ({a}, 0, 1, {b}))",
        f"torch.hstack([{y}, {x}])",
        f"torch.cat([{x}.flatten(), {y}.flatten()])",
        f"torch.broadcast_tensors({x}, {y})[0]",
    )


def creation(s: Scope) -> str:
    x = s.ranked()
    return s.choose(
        "torch.zeros_like({0})",
        "torch.full_like({0}, 2)",
        "{0}.new_ones({0}.shape[-1:])",
        "torch.arange({0}.shape[0])",
        "torch.arange({0}.shape[-1]) * {0}",
        "torch.ones({0}.shape)",
        "torch.linspace(0, 1, {0}.shape[-1])",
        "torch.eye({0}.shape[-1])",
        "torch.tensor([1.0, 2.0])",
        "torch.full((), 2.5)",
    ).format(x)


def library(s: Scope) -> str:
    x = s.pick(lambda value: value.dtype in FLOATS and value.ndim >= 2)
    return s.choose(
        f"({x} @ {x}.mT) * 0.125",
        f"({x}.mT @ {x}) * 0.125",
        f"F.linear({x}, {x}.reshape(-1, {x}.shape[-1])[:2])",
        f"F.max_pool2d({x}[None], 2)",
        f"F.avg_pool2d({x}[None], 2)",
        f"F.max_pool1d({x}, 2)",
        f"F.interpolate({x}[None, None], scale_factor=2)",
    )


# --- mutation: of arguments, intermediates, and views of both ---


def meets(x: Tensor, y: Tensor) -> bool:
    """Whether y, broadcast to x, reads an element of memory at another position than where x has it: the
    result of an in-place operator is then whatever the order of its loop makes it."""
    if x.untyped_storage()._cdata != y.untyped_storage()._cdata:
        return False
    if torch.broadcast_shapes(x.shape, y.shape) != x.shape:
        return False  # eager refuses
    whole = torch.arange(x.untyped_storage().nbytes())
    mine, read = (
        whole.as_strided(
            t.shape, [step * t.element_size() for step in t.stride()], t.storage_offset() * t.element_size()
        )
        for t in (x, y)
    )
    read = read.expand(x.shape)
    return bool(torch.isin(read[read != mine], mine).any())


def apart(s: Scope, target: str) -> str:
    """What may be written into ``target``: eager's result depends on its order where the two meet in memory."""
    other = s.like(target)
    if other in s.values and meets(s.values[target], s.values[other]):
        raise Impossible
    return other


def update(s: Scope) -> str:
    x = s.pick()
    text = s.choose(
        "{0}.add_({1})",
        "{0}.mul_({1})",
        "{0}.sub_({1})",
        "{0}.copy_({1})",
        "{0}.zero_()",
        "{0}.fill_(2)",
        "{0}.clamp_(-1, 1)",
        "{0}.add_(1)",
        "{0}.mul_(0.5)",
        "{0} += {1}",
        "{0} *= 2",
        "{0}.neg_()",
    )
    return text.format(x, apart(s, x) if "{1}" in text else s.like(x))


def update_float(s: Scope) -> str:
    return s.choose(
        "{0}.relu_()",
        "{0}.sigmoid_()",
        "{0}.tanh_()",
        "{0}.masked_fill_({0} > 0, 0.5)",
        "{0}.clamp_(min=0)",
        "{0}.addcmul_({0}, {0}, value=0.1)",
        "{0}.div_({0}.abs() + 1)",
        "{0}.exp_().clamp_(max=4)",
    ).format(s.floating())


def update_part(s: Scope) -> str:
    x = s.ranked()
    d = s.rng.randrange(s.values[x].ndim)
    size, colons = s.size(x, d), ":, " * d
    at = s.rng.randrange(size)
    some = s.index(size, 2, distinct=True)
    return s.choose(
        f"{x}[{colons}{at}] = {s.number()}",
        f"{x}[{colons}{at}:] += 1",
        f"{x}[{colons}::2] *= 2",
        f"{x}[{colons}{at}].zero_()",
        f"{x}.transpose(0, -1).add_(1)",
        f"{x}.view(-1)[{at}:].mul_(2)",
        f"{x}[{colons}:1] = {x}[{colons}-1:]",
        f"{x}.index_add_({d}, torch.tensor({some}), {x}[{colons}:{min(2, size)}] * 1)",
        f"{x}[{colons}torch.tensor({some})] = 3",
        f"{x}[{colons}torch.tensor({some})] += 1",
        f"{x}[{x} > 1] = 0",
        f"{x}.index_put_((torch.tensor({some}),), {x}[0] * 2, accumulate=True)",
        f"{x}.diagonal(dim1=0, dim2=1).fill_(1)",
        f"{x}.scatter_({d}, torch.zeros_like({x}, dtype=torch.int64), 2)",
        f"{x}.narrow({d}, {at}, 1).copy_({x}.narrow({d}, 0, 1))",
    )


# How often each is drawn, relative to the others.
OPERATIONS: Mapping[Operation, int] = {
    unary: 10,
    rounding: 1,
    binary: 14,
    scalar: 5,
    ternary: 4,
    comparison: 3,
    integer: 3,
    conversion: 4,
    view: 16,
    piece: 10,
    pieces: 3,
    copied: 4,
    reduction: 10,
    integer_reduction: 2,
    normalisation: 4,
    scan: 3,
    position: 2,
    indexing: 5,
    masking: 3,
    scattering: 4,
    joining: 6,
    creation: 3,
    library: 2,
}
MUTATIONS: Mapping[Operation, int] = {update: 8, update_float: 4, update_part: 8}


# -- what autograd does not follow -----------------------------------------------------------------------------
def detached(s: Scope) -> str:
    return f"{s.pick()}.detach()"


def untracked(s: Scope) -> str:
    write = s.choose("{0}.mul_(2)", "{0}.add_(1)", "{0}.add_({1})", "{0}.view(-1)[:1].fill_(1)")
    within = s.choose("with torch.no_grad(): ", "")
    target = s.pick()
    other = apart(s, target) if "{1}" in write else s.like(target)
    return within + write.format(target if within else f"{target}.detach()", other)


DETACHING_OPERATIONS: Mapping[Operation, int] = {**OPERATIONS, detached: 16}
DETACHING_MUTATIONS: Mapping[Operation, int] = {**MUTATIONS, untracked: 10}

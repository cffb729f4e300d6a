"""Programs around the patterns that are looked for before autograd, in the many ways in which users write them.

Calls are functions, methods or operators, with arguments by place or by name; parts are in place, written to from
elsewhere, read twice, within a region that is computed again or under autocast. They are drawn from seed ``CAPTURED``
on.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@torch.library.custom_op("fuzz::double_", mutates_args=("x",))
def double_(x: Tensor) -> None:
    x.mul_(2)


@torch.library.custom_op("fuzz::softmax", mutates_args=())
def other_softmax(x: Tensor, dim: int) -> Tensor:
    return x.softmax(dim) * 2


@other_softmax.register_fake
def _(x: Tensor, dim: int) -> Tensor:
    return torch.empty_like(x)


CAPTURED_NAMES: Mapping[str, object] = {"math": math, "checkpoint": checkpoint}

ODD = 0.08
"""How often a part is drawn that a pattern does not have."""


class Captured:
    """A program being written. Mutable."""

    def __init__(self, rng: random.Random, *, backward: bool) -> None:
        self.rng, self.backward = rng, backward
        self.arguments: dict[str, str] = {}
        self.lines: list[str] = []
        self.floats: list[str] = []
        self.named = 0

    # --- choosing ---

    def odds(self, chance: float) -> bool:
        return self.rng.random() < chance

    def one(self, *texts: str) -> str:
        return self.rng.choice(texts)

    def near(self, usual: Sequence[str], odd: Sequence[str]) -> str:
        """One of what a pass knows, now and then one of what it should leave."""
        return self.rng.choice(odd if self.odds(ODD) else usual)

    def call(self, function: str, **arguments: str) -> str:
        """A call of torch's function or of the first argument's method, with some arguments by name, in any order."""
        given = list(arguments.items())
        first = given[0][1]
        if self.odds(0.35) and not function.startswith("F."):
            given, function = given[1:], f"{first}.{function.removeprefix('torch.')}"
        placed = self.rng.choice([len(given), len(given), 1, 1, 0])
        named = given[placed:]
        if self.odds(0.3):
            self.rng.shuffle(named)
        return (
            f"{function}({', '.join([*[text for _, text in given[:placed]], *[f'{k}={text}' for k, text in named]])})"
        )

    # --- writing ---

    def argument(self, *shape: int, dtype: str = "float32", by: float = 1, parameter: bool = False) -> str:
        name = f"a{len(self.arguments)}"
        text = f"draw({shape}, torch.{dtype}, {self.rng.randrange(1000)})"
        text = text if by == 1 else f"{text} * {by}"
        self.arguments[name] = f"torch.nn.Parameter({text}, requires_grad=False)" if parameter else text
        if dtype != "bool":
            self.floats.append(name)
        return name

    def let(self, text: str, *, floating: bool = True) -> str:
        name = f"v{self.named}"
        self.named += 1
        self.lines.append(f"{name} = {text}")
        if floating:
            self.floats.append(name)
        return name

    def change(self, chance: float, *favoured: str) -> None:
        """Perhaps a write into some value, by a view of it, a flag, an operator or a region."""
        if not self.odds(chance) or not self.floats:
            return
        x = self.rng.choice(favoured) if favoured and self.odds(0.7) else self.rng.choice(self.floats)
        self.lines.append(
            self.one(
                f"{x}.mul_(0.5)",
                f"{x} += 1",
                f"{x}.__imul__(0.5)",
                f"torch.relu_({x})",
                f"F.relu({x}, inplace=True)",
                f"F.relu({x}, True)",
                f"F.leaky_relu({x}, 0.5, True)",
                f"F.elu(input={x}, inplace=True)",
                f"F.hardtanh({x}, -1, 1, True)",
                f"F.dropout({x}, 0.0, inplace=True)",
                f"{x}[..., :1] *= 2",
                f"{x}[0] = 0.5",
                f"{x}[..., 0].fill_(0.5)",
                f"{x}.view_as({x}).add_(1)",
                f"{x}.mT.neg_()",
                f"{x}.detach().mul_(0.5)",
                f"with torch.no_grad(): {x}.mul_(0.5)",
                f"torch._foreach_mul_([{x}], 0.5)",
                f"torch.mul({x}.detach(), 0.5, out={x}.detach())",
                f"torch.ops.fuzz.double_({x}.detach())",
                f"{x}.masked_fill_({x} > 0.5, 0.25)",
                f"{x}.copy_({x} * 0.5)",
                f"{x} = {x}.clone()",
                f"checkpoint(lambda t: t.mul_(0.5).sum(), {x}, use_reentrant=False)",
                f"F.embedding(torch.tensor([0]), {x}.detach().flatten(0, -2), max_norm=0.5)",
            )
        )


# --- attention ---


def attention(s: Captured) -> str:
    """Attention of queries, keys and values that come in several layouts, written out or as one call."""
    keys = s.rng.choice([512, 520] if s.backward else [64, 65, 72])
    rows = s.rng.choice([1, 5, keys])
    heads, width = s.rng.choice([1, 2, 4]), s.rng.choice([8, 16])
    rank = int(s.near(["3", "4", "4", "4"], ["5"]))
    dtype = s.one("float32", "float32", "float32", "bfloat16")
    batch = {3: (heads,), 4: (s.rng.choice([1, 2]), heads), 5: (1, 2, heads)}[rank]
    q = s.argument(*batch, rows, width, dtype=dtype, by=0.25)
    layout = s.one("apart", "apart", "packed", "turned", "shared", "shared", "same", "linear")
    if layout == "packed":
        both = s.argument(*batch, keys, 2 * width, dtype=dtype, by=0.25)
        k, v = (s.let(text) for text in (f"{both}[..., :{width}]", f"{both}[..., {width}:]"))
    elif layout == "turned" and rank == 4:
        k, v = (s.argument(batch[0], keys, heads, width, dtype=dtype, by=0.25) for _ in range(2))
        k, v = (s.let(s.one(f"{x}.transpose(1, 2)", f"{x}.permute(0, 2, 1, 3)")) for x in (k, v))
    elif layout == "shared" and rank == 4 and heads > 1:
        k, v = (s.argument(batch[0], heads // 2, keys, width, dtype=dtype, by=0.25) for _ in range(2))
        if s.odds(0.2):
            return s.let(fused(s, q, k, v, rows, keys, gqa=True))
        k, v = (copied(s, x, batch[0], heads // 2, 2, keys, width) for x in (k, v))
    elif layout == "linear" and dtype == "float32":
        x = s.argument(*batch, keys, 6, by=0.25)
        weights = [s.argument(width, 6, by=0.25, parameter=not s.backward) for _ in range(2)]
        k, v = (s.let(linear(s, x, w, None)) for w in weights)
    elif layout == "same":
        k = v = s.argument(*batch, keys, width, dtype=dtype, by=0.25)
    else:
        k, v = (s.argument(*batch, keys, width, dtype=dtype, by=0.25) for _ in range(2))
    s.change(0.1, q, k, v)
    if s.odds(0.3) and rank < 5:
        return s.let(fused(s, q, k, v, rows, keys))
    return written(s, q, k, v, rank, rows, keys, width)


def copied(s: Captured, x: str, batch: int, heads: int, groups: int, keys: int, width: int) -> str:
    """Keys or values once for each head that shares them."""
    if s.odds(0.3):
        return s.let(s.call("torch.repeat_interleave", input=x, repeats=str(groups), dim="1"))
    wide = s.let(f"{x}[:, :, None]" + s.one(f".expand({batch}, {heads}, {groups}, {keys}, {width})",
                                           f".expand(-1, -1, {groups}, -1, -1)"))  # fmt: skip
    s.change(0.1, x)
    shape = f"{batch}, {heads * groups}, {keys}, {width}"
    out = s.let(s.one(f"{wide}.reshape({shape})", f"torch.reshape({wide}, ({shape}))", f"{wide}.flatten(1, 2)"))
    s.change(0.1, x, out)
    return out


def mask(s: Captured, q: str, k: str, rows: int, keys: int, *, boolean: bool) -> str:
    """A mask of which keys a row sees, or numbers to add."""
    at = f"torch.arange({keys})"
    kept = s.one(
        f"torch.ones({rows}, {keys}, dtype=torch.bool).tril()",
        f"torch.ones({rows}, {keys}).tril(diagonal=0) == 1",
        f"~torch.triu(torch.ones({rows}, {keys}, dtype=torch.bool), 1)",
        f"{at} <= {at}[:{rows}, None]",
        f"torch.le({at}[None], torch.arange({rows})[:, None])",
        f"({at} - torch.arange({rows})[:, None]).abs() < 9",
        f"({at} >= 0).expand({rows}, -1)",
        f"torch.ones({rows}, {keys}, dtype=torch.bool)",
        f"({at} < {keys} - 3)[None]",
        f"{k}[..., None, :, 0] > 0",
        f"{q}[..., :1] > 0",
        f"{k}.detach()[..., None, :, 0] > 9",
        s.argument(rows, keys, dtype="bool") if s.odds(0.3) else f"{at} % 3 > 0",
    )
    found = s.let(kept, floating=False)
    if s.odds(0.15):
        s.lines.append(
            s.one(
                f"{found} = {found}.clone(); {found}[0] = True",
                f"{found} = {found}.clone(); {found}.view_as({found})[..., :2] = True",
                f"{found} = {found}.clone(); {found}.__ior__(torch.ones({keys}, dtype=torch.bool))",
                f"{found} = {found}.clone(); {found}.logical_not_()",
                f"{found} = {found} & True; checkpoint(lambda m: m[0].fill_(True) + 0, {found}, use_reentrant=False)",
            )
        )
    if boolean:
        return found
    if s.odds(0.2):
        return s.argument(rows, keys, by=0.25)
    least = s.one("-math.inf", "-1e9", "torch.finfo(torch.float32).min", "-2.0")
    return s.let(
        s.one(
            f"torch.zeros({rows}, {keys}).masked_fill(~{found}, {least})",
            f"torch.where({found}, 0.0, {least})",
            f"torch.full(({rows}, {keys}), {least}).triu(1)",
            f"{at} * 0.125",
            f"(1.0 - {found}.float()) * -10000.0",
        )
    )


def fused(s: Captured, q: str, k: str, v: str, rows: int, keys: int, *, gqa: bool = False) -> str:
    """A call of scaled_dot_product_attention."""
    given = {"query": q, "key": k, "value": v}
    if s.odds(0.5):
        given["attn_mask"] = mask(s, q, k, rows, keys, boolean=s.odds(0.6))
        if s.odds(0.2):
            given["attn_mask"] += ".to(" + q + ".dtype)" if s.odds(0.5) else "[None]"
    elif s.odds(0.4):
        given["is_causal"] = s.one("True", "False")
    if s.odds(0.2):
        given["dropout_p"] = s.one("0.0", "0")
    if s.odds(0.3):
        given["scale"] = s.one("0.25", "None", "1.0")
    if gqa:
        given["enable_gqa"] = "True"
    s.change(0.1, q, k, v)
    order = list(given)[3:]
    s.rng.shuffle(order)
    first = [f"{q}, {k}, {v}"] if s.odds(0.6) else [f"{name}={given[name]}" for name in ("key", "query", "value")]
    return f"F.scaled_dot_product_attention({', '.join([*first, *[f'{name}={given[name]}' for name in order]])})"


def product(s: Captured, left: str, right: str, rank: int, *, turned: bool = False) -> str:
    """The product of two tensors, the right one of which may have its last two dimensions exchanged before."""
    letters = "xyz"[: rank - 2]
    if s.odds(0.2):
        inner = f"{letters}kj" if not turned else f"{letters}jk"
        text = f"{letters}ik,{inner}->{letters}ij"
        if s.odds(0.2):
            return f"torch.einsum('{inner},{letters}ik->{letters}ij', {right}, {left})"
        dotted = text.replace(letters, "...")
        return s.near(
            [
                f"torch.einsum('{text}', {left}, {right})",
                f"torch.einsum('{text.replace(',', ' , ')}', {left}, {right})",
            ],
            [f"torch.einsum('{text}', [{left}, {right}])", f"torch.einsum('{dotted}', {left}, {right})"],
        )
    if turned:
        right += s.one(".mT", ".transpose(-1, -2)", ".transpose(dim0=-2, dim1=-1)", ".swapaxes(-1, -2)")
    if rank == 3 and s.odds(0.6):
        added = f"torch.baddbmm({left}.new_zeros(1), {left}, {right}, beta=0, alpha=0.5)"
        return s.near(
            [f"torch.bmm({left}, {right})", f"{left}.bmm({right})"],
            [s.call("torch.bmm", input=left, mat2=right), added],
        )
    named = s.call("torch.matmul", input=left, other=right)
    return s.near([f"{left} @ {right}", f"torch.matmul({left}, {right})", f"{left}.__matmul__({right})"], [named])


def written(s: Captured, q: str, k: str, v: str, rank: int, rows: int, keys: int, width: int) -> str:
    """Attention written out."""
    region = s.one(*[""] * 9, "whole", "last", "autocast", "no_grad")
    if s.odds(0.2):
        q = s.let(s.one(f"{q} * 0.5", f"{q} / math.sqrt({width})", f"{q}.div({width} ** 0.5)"))
    start = len(s.lines)
    scores = s.let(product(s, q, k, rank, turned=True))
    for _ in range(s.rng.choice([0, 1, 2, 2, 3])):
        scores = on_scores(s, scores, q, k, rows, keys, width)
        s.change(0.07, q, k, v, scores)
    weights = s.let(softmax(s, scores, rank))
    for _ in range(s.rng.choice([0, 0, 1, 2])):
        s.change(0.07, q, k, v, weights)
        weights = s.let(
            s.near(
                [
                    s.call("F.dropout", input=weights, p=s.one("0.0", "0")),
                    f"F.dropout({weights}, p=0.5, training=False)",
                    f"torch.dropout({weights}, 0.5, train=False)",
                    f"torch.nn.Dropout(0.1).eval()({weights})",
                    f"F.dropout({weights}, 0.0, True, True)",
                    f"{weights}.to({v}.dtype)",
                    f"{weights}.type_as({v})",
                    f"{weights}.to(dtype={v}.dtype)",
                    f"{weights}.contiguous()",
                    f"{weights}.contiguous()",
                ],
                [
                    f"{weights}.float()",
                    f"{weights}.nan_to_num(0.0)",
                    f"{weights} * ({weights} > 0.01)",
                    f"torch.nan_to_num_({weights})",
                    f"{weights}.view_as({weights})",
                    f"{weights}.detach()",
                ],
            )
        )
    s.change(0.07, q, k, v)
    last = product(s, weights, v, rank)
    match region:
        case "last":
            last = f"checkpoint(lambda {weights}, {v}: {last}, {weights}, {v}, use_reentrant=False)"
        case "autocast" | "no_grad":
            mode = "torch.autocast('cpu', torch.bfloat16)" if region == "autocast" else "torch.no_grad()"
            first = s.rng.randrange(2)
            lines = [line for line in s.lines if line.startswith((f"{scores} =", f"{weights} ="))][first:]
            s.lines = [f"with {mode}: {line}" if line in lines else line for line in s.lines]
    if region == "whole" and not any(line.startswith("with") for line in s.lines[start:]):
        s.lines[start:] = [f"def region(): {'; '.join([*s.lines[start:], f'return {last}'])}"]
        last = "checkpoint(region, use_reentrant=False)"
    out = s.let(last)
    return s.let(
        s.one(f"{out} + 0", f"{out}.transpose(-2, -3)", f"{out}.transpose(-2, -3).contiguous()", f"{out}.relu_()")
    )


def on_scores(s: Captured, x: str, q: str, k: str, rows: int, keys: int, width: int) -> str:
    """A step between the product and softmax."""
    kinds = ["scale", "scale", "mask", "mask", "cast", "bias"]
    kind = s.near(kinds[: 5 if s.backward else 6], ["bias", "other"])
    if kind == "scale":
        root = f"math.sqrt({width})"
        return s.let(
            s.near(
                [
                    f"{x} * 0.25",
                    f"0.25 * {x}",
                    f"{x} / {root}",
                    f"{x}.mul_(0.25)",
                    s.call("torch.mul", input=x, other="0.25"),
                    s.call("torch.div", input=x, other=root),
                    f"{x} * {x}.shape[-1] ** -0.5",
                    f"{x}.div_({root})",
                ],
                [
                    f"torch.div({x}, {root}, rounding_mode=None)",
                    f"{x} / torch.sqrt(torch.tensor({width}.0))",
                    f"{x} / torch.tensor({width}.0)",
                    f"{x} / -2",
                ],
            )
        )
    if kind == "mask":
        kept, hidden = (
            mask(s, q, k, rows, keys, boolean=True),
            s.one("-math.inf", "-1e9", "-1e4", "-3.0", "float('-inf')"),
        )
        low = s.one(hidden, "torch.finfo(torch.float32).min", f"torch.finfo({x}.dtype).min")
        return s.let(
            s.near(
                [
                    s.call("torch.masked_fill", input=x, mask=f"~{kept}", value=low),
                    f"{x}.masked_fill_(~{kept}, {low})",
                    f"{x}.masked_fill({kept} == 0, {low})",
                    f"{x}.masked_fill({kept}.logical_not(), {low})",
                    f"torch.where({kept}, {x}, {hidden})",
                    f"torch.where(condition={kept}, input={x}, other={hidden})",
                ],
                [
                    f"torch.where(input={x}, condition={kept}, other={hidden})",
                    f"{x}.where({kept}, {hidden})",
                    f"torch.where(~{kept}, {hidden}, {x})",
                    f"{x}.masked_fill(~{kept}, torch.tensor(-1e9))",
                ],
            )
        )
    if kind == "bias":
        bias = mask(s, q, k, rows, keys, boolean=False)
        return s.let(
            s.near(
                [
                    f"{x} + {bias}",
                    f"{bias} + {x}",
                    f"{x}.add_({bias})",
                    s.call("torch.add", input=x, other=bias),
                    f"{x}.__add__({bias})",
                    f"{x}.__iadd__({bias})",
                    f"{x} + {bias}.to({x}.dtype)",
                    f"{x} + {bias}.detach().to({x}.dtype)",
                ],
                [f"torch.add({x}, {bias}, alpha=2)", f"{x} - {bias}", f"{x} + {x}"],
            )
        )
    if kind == "cast":
        return s.let(
            s.near(
                [f"{x}.float()", f"{x}.to(torch.float32)", f"{x}.contiguous()", f"{x}.type_as({k})"], [f"{x}.double()"]
            )
        )
    return s.let(
        s.one(
            f"{x}.clamp(-2, 2)",
            f"torch.tanh({x})",
            f"{x} - {x}.amax(-1, keepdim=True)",
            f"{x}.view_as({x})",
            f"{x}.detach()",
            f"{x}[...]",
            f"{x}.clone()",
            f"{x}.relu_()",
        )
    )


def softmax(s: Captured, x: str, rank: int) -> str:
    dim = s.near(["-1", "-1", str(rank - 1)], ["-2"])
    return s.near(
        [
            s.call("torch.softmax", input=x, dim=dim),
            s.call("torch.softmax", input=x, dim=dim),
            s.call("F.softmax", input=x, dim=dim),
            f"F.softmax({x}, dim={dim}, dtype=torch.float32)",
            f"F.softmax({x}, {dim}, 3, torch.float32)",
            f"torch.softmax({x}, {dim}, dtype=torch.float32)",
            f"{x}.softmax({dim}, torch.float32)",
            f"torch.nn.Softmax(dim={dim})({x})",
        ],
        [
            f"{x}.softmax({dim}, dtype=torch.float64).float()",
            f"torch.exp({x} - {x}.logsumexp({dim}, keepdim=True))",
            f"F.log_softmax({x}, {dim}).exp()",
            f"torch.ops.fuzz.softmax({x}.detach(), {dim})",
            f"torch.ops.aten.softmax({x}, {dim})",
        ],
    )


# --- layers ---


def linear(s: Captured, x: str, weight: str, bias: str | None) -> str:
    """A linear layer in one of its spellings."""
    if bias is None:
        named = s.call("F.linear", input=x, weight=weight)
        return s.near([f"F.linear({x}, {weight})"], [named, f"{x} @ {weight}.T"])
    named = s.call("F.linear", input=x, weight=weight, bias=bias)
    return s.near([f"F.linear({x}, {weight}, {bias})"], [named, f"{x} @ {weight}.t() + {bias}"])


def activation(s: Captured, x: str) -> str:
    return s.one(
        f"F.relu({x}, inplace=True)",
        f"F.silu({x}, inplace=True)",
        f"F.silu({x})",
        f"F.gelu({x}, approximate='tanh')",
        f"F.gelu(input={x})",
        f"F.leaky_relu({x}, 0.1, True)",
        f"F.leaky_relu_({x})",
        f"F.hardswish({x}, True)",
        f"F.hardsigmoid({x}, inplace=True)",
        f"F.mish({x}, inplace=True)",
        f"F.elu({x}, 1.0, True)",
        f"F.threshold({x}, 0.1, 0.2, True)",
        f"F.relu6({x}, inplace=True)",
        f"F.celu({x}, inplace=True)",
        f"F.selu({x}, True)",
        f"{x}.relu_()",
        f"{x}.sigmoid_()",
        f"torch.tanh_({x})",
        f"{x} * torch.sigmoid({x})",
        f"{x}.mul_(torch.sigmoid({x}))",
        f"torch.nn.ReLU(inplace=True)({x})",
        f"torch.nn.SiLU(inplace=True)({x})",
        f"F.dropout({x}, 0.0, True, True)",
        f"F.glu({x}, dim=-1)",
        f"torch.clamp({x}, min=0.0)",
        f"torch.clamp_min_({x}, 0)",
    )


def layers(s: Captured) -> str:
    """Linear layers of one input, what happens to their results, and what becomes of them."""
    x = s.argument(2, 5, 8, by=0.25)
    widths = [s.rng.choice([6, 6, 6, 1, 12]) for _ in range(s.rng.choice([2, 3]))]
    found, biased = [], s.odds(0.5)
    for width in widths:
        weight = s.argument(width, 8, by=0.25, parameter=not s.backward and s.odds(0.95))
        bias = s.argument(s.rng.choice([width, width, width, 1]), parameter=not s.backward) if biased else None
        found.append(s.let(linear(s, x, weight, bias)))
        s.change(0.06, x, weight)
    for k, y in enumerate(found):
        found[k] = s.let(
            s.one(
                activation(s, y),
                f"{y}.relu()",
                f"{y}.view(2, 5, 2, -1).transpose(1, 2).clone()",
                f"torch.sigmoid(input={y})",
                f"{y}.view(2, 5, 1, -1).transpose(1, 2)",
                f"{y}.view(10, -1)",
                f"{y}.view(-1)",
                f"{y}.reshape(2, -1)",
                f"{y}[:, ::2]",
                f"{y}.T.contiguous()",
                f"{y}.unflatten(-1, (-1, 1))",
                f"{y}.permute(2, 0, 1).clone()",
                f"{y}.as_strided((2, 3), (3, 1))",
                f"{y}.chunk(2, -1)[0]",
                f"{y} + 0",
            )
        )
        s.change(0.08, *found)
    return s.let(s.one(f"sum([t.sum() for t in [{', '.join(found)}]])", f"{found[0]} + {found[0]}", f"{found[-1]} * 2"))


def perceptron(s: Captured) -> str:
    """A block with a residual that is added in place."""
    x = s.argument(4, 8, by=0.25)
    up, down = s.argument(16, 8, by=0.25, parameter=not s.backward), s.argument(8, 16, by=0.25)
    bias = s.argument(16, parameter=not s.backward)
    start = s.let(s.one(norm(s, x), f"{x} * 1"))
    h = s.let(linear(s, start, up, s.one(bias, bias, "") or None))
    h = s.let(activation(s, h))
    s.change(0.15, x, h, start)
    out = s.let(linear(s, h, down, None) if s.lines[-1].find("glu(") < 0 else f"{h} * 2")
    s.change(0.15, x, h, out)
    if s.odds(0.5):
        s.lines.append(s.one(f"{out} += {start}", f"{out}.add_({start}, alpha=2)", f"{start}.add_({out})"))
    s.lines.append("")
    return s.let(norm(s, out))


def norm(s: Captured, x: str) -> str:
    size = f"{x}.shape[-1:]"
    return s.one(
        f"{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-6)",
        f"{x}.float().mul_(torch.rsqrt({x}.float().square().mean(dim=-1, keepdim=True).add_(1e-5)))",
        f"({x} - {x}.mean(-1, keepdim=True)) / torch.sqrt({x}.var(-1, unbiased=False, keepdim=True) + 1e-5)",
        f"({x} - {x}.mean(-1, True)).div_({x}.std(dim=-1, keepdim=True) + 1e-5)",
        f"F.layer_norm({x}, {size})",
        f"F.layer_norm(input={x}, normalized_shape={size}, eps=1e-3)",
        f"F.rms_norm({x}, {size}, eps=1e-5)",
        f"F.normalize({x}, dim=-1)",
        f"F.normalize(input={x}, p=2.0, dim=-1, eps=1e-6)",
    )


def images(s: Captured) -> str:
    """Convolution, norm and activation, with a residual."""
    channels, groups = s.rng.choice([4, 8]), s.rng.choice([1, 1, 2])
    x = s.argument(2, channels, 6, 5, by=0.25)
    if s.odds(0.4):
        x = s.let(f"{x}.contiguous(memory_format=torch.channels_last)")
    weight = s.argument(channels, channels // groups, 3, 3, by=0.125, parameter=not s.backward)
    bias = s.argument(channels, parameter=not s.backward)
    y = s.let(
        s.one(
            f"F.conv2d({x}, {weight}, {bias}, padding=1, groups={groups})",
            f"F.conv2d(input={x}, weight={weight}, bias=None, padding='same', groups={groups})",
            f"torch.conv2d({x}, {weight}, {bias}, 1, 1, 1, {groups})",
            f"F.conv2d(F.pad({x}, (1, 1, 1, 1)), {weight}, groups={groups})",
        )
    )
    s.change(0.1, x, y)
    mean, square = (s.let(f"{s.argument(channels)}.detach().clone()") for _ in range(2))
    s.lines.append(f"{square}.abs_().add_(1)")
    y = s.let(
        s.one(
            f"F.batch_norm({y}, {mean}, {square}, training=True, momentum=0.1)",
            f"F.batch_norm({y}, {mean}, {square}, {bias}, {bias}, True)",
            f"F.batch_norm(input={y}, running_mean={mean}, running_var={square}, weight={bias}, eps=1e-3)",
            f"F.batch_norm({y}, {mean}, {square})",
            f"F.instance_norm({y}, weight={bias})",
            f"F.group_norm({y}, 2, {bias})",
            f"{y} * {bias}.view(-1, 1, 1)",
        )
    )
    s.change(0.1, x, y, mean)
    y = s.let(activation(s, y).replace("dim=-1", "dim=1"))
    s.change(0.15, x, y)
    s.lines.append(s.one("", "", f"{y} += {x}", f"{y}.add_({x}, alpha=0.5)", f"{x} += {y}"))
    return s.let(
        s.one(
            f"{y} + {mean}.view(-1, 1, 1)",
            f"F.max_pool2d({y}, 2)",
            f"F.relu({y}, inplace=True)",
            f"F.avg_pool2d({y}, 2)",
        )
    )


PATTERNS = (attention, attention, attention, attention, layers, layers, perceptron, images)


def captured(rng: random.Random, *, backward: bool) -> tuple[dict[str, str], tuple[str, ...], tuple[str, ...]]:
    """Arguments, statements and outputs of a program."""
    s = Captured(rng, backward=backward)
    last = rng.choice(PATTERNS)(s)
    s.change(0.1)
    lines = tuple(line for line in s.lines if line)
    made = [name for name in s.floats if name.startswith("v") and name != last]
    return s.arguments, lines, (last, *[name for name in made if s.odds(0.04)])

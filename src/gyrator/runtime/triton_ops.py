"""The device library of Triton kernels: what generated kernels call by the name ``rt``.

Only generated kernels import this module. Integer division by zero gives 0, as in the reference
interpreter; comparisons and extremes treat NaN as torch does."""

# ruff: noqa: D103  (named after the rows of the op table, where they are described)
# mypy: ignore-errors
from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

NAN = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def to_float8e5(x):
    """Rounded to float8e5; a conversion alone would make the largest number of what is too large, and of infinity."""
    x = x.to(tl.float32)
    infinite = tl.where(x < 0, 0xFC, 0x7C).to(tl.uint8)
    bits = tl.where(tl.abs(x) >= 61440, infinite, x.to(tl.float8e5).to(tl.uint8, bitcast=True))
    return bits.to(tl.float8e5, bitcast=True)


@triton.jit
def to_float8e4(x):
    """Rounded to float8e4nv, four numbers in a register at once: the assembler of CUDA 12.8 loses halves of registers
    that are packed and read by themselves as well."""
    assembly: tl.constexpr = """{ .reg .b16 low, high;
        cvt.rn.satfinite.e4m3x2.f32 low, $2, $1;
        cvt.rn.satfinite.e4m3x2.f32 high, $4, $3;
        mov.b32 $0, {low, high}; }"""
    bits = tl.inline_asm_elementwise(assembly, "=r,f,f,f,f", [x.to(tl.float32)], tl.uint8, is_pure=True, pack=4)
    return bits.to(tl.float8e4nv, bitcast=True)


# -- arithmetic --------------------------------------------------------------------------------------------
@triton.jit
def floordiv(a, b):
    if a.dtype.is_floating():
        return floor_division_of_floats(a, b)
    else:
        safe = tl.where(b == 0, 1, b).to(b.dtype)
        quotient = a // safe
        rest = a - quotient * safe
        down = (rest != 0) & ((rest < 0) != (safe < 0))
        return tl.where(b == 0, 0, tl.where(down, quotient - 1, quotient)).to(a.dtype)


@triton.jit
def floor_division_of_floats(a, b):
    """Python's rule, as in torch: the quotient of what is left after the remainder, rounded down."""
    rest = libdevice.fmod(a, b)
    quotient = (a - rest) / b
    quotient = tl.where((rest != 0) & ((b < 0) != (rest < 0)), quotient - 1, quotient)
    down = tl.floor(quotient)
    down = tl.where(quotient - down > 0.5, down + 1, down)
    down = tl.where(quotient == 0, libdevice.copysign(quotient * 0, a / b), down)
    return tl.where(b == 0, a / b, down)


@triton.jit
def truncdiv(a, b):
    if a.dtype.is_floating():
        return libdevice.trunc(quotient(a, b))
    else:
        safe = tl.where(b == 0, 1, b).to(b.dtype)
        return tl.where(b == 0, 0, a // safe).to(a.dtype)


@triton.jit
def remainder(a, b):
    if a.dtype.is_floating():
        rest = libdevice.fmod(a, b)
        return tl.where((rest != 0) & ((b < 0) != (rest < 0)), rest + b, rest)
    safe = tl.where(b == 0, 1, b).to(b.dtype)
    rest = a % safe
    wrapped = tl.where((rest != 0) & ((rest < 0) != (safe < 0)), rest + safe, rest)
    return tl.where(b == 0, 0, wrapped).to(a.dtype)


@triton.jit
def fmod(a, b):
    if a.dtype.is_floating():
        return libdevice.fmod(a, b)
    safe = tl.where(b == 0, 1, b).to(b.dtype)
    return tl.where(b == 0, 0, a % safe).to(a.dtype)


@triton.jit
def floor_div(a, b):
    """Of indices, ``b`` positive."""
    quotient = a // b
    return tl.where(a - quotient * b < 0, quotient - 1, quotient)


@triton.jit
def floor_mod(a, b):
    rest = a % b
    return tl.where(rest < 0, rest + b, rest)


@triton.jit
def neg(a):
    """Triton's own minus is 0 - a, by which the opposite of 0 has no sign."""
    return a * -1.0 if a.dtype.is_floating() else -a


@triton.jit
def sign(a):
    if a.dtype.is_floating() or a.dtype.is_int_signed():
        return (a > 0).to(a.dtype) - (a < 0).to(a.dtype)
    return (a != 0).to(a.dtype)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=NAN)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=NAN)


@triton.jit
def pow(a, b):
    if (a + b).dtype.is_floating():  # one of the two may be a literal
        return libdevice.pow(a, b)
    else:
        return integer_pow(a + b * 0, b + a * 0)


@triton.jit
def integer_pow(a, b):
    """By squaring, wrapping; a negative exponent gives 0 unless the base is 1 or -1, as in torch."""
    result = (a * 0 + 1).to(a.dtype)
    base = a
    left = tl.where(b > 0, b, 0)
    for _ in tl.static_range(tl.constexpr(a.dtype.primitive_bitwidth)):
        result = tl.where((left & 1) != 0, result * base, result).to(a.dtype)
        base = (base * base).to(a.dtype)
        left = left >> 1
    if b.dtype.is_int_signed():
        unit = tl.where(a == 1, 1, tl.where(a + 1 == 0, 1 - 2 * (b & 1), 0)).to(a.dtype)
        return tl.where(b < 0, unit, result)
    return result


@triton.jit
def sqrt(a):
    if a.dtype == tl.float32:
        return tl.sqrt_rn(a)
    return tl.sqrt(a)


@triton.jit
def erf_16(x):
    """For results of 16 bits: a polynomial, off by 4e-5 at most. The exact one takes longer than the loads."""
    x = tl.clamp(x, -3.05, 3.05, propagate_nan=NAN)
    y = x * x
    p = 3.989923769154302e-08 * y - 1.9303840872453293e-06
    p = p * y + 4.1146788134938106e-05
    p = p * y - 0.0005147612537257373
    p = p * y + 0.004270106554031372
    p = p * y - 0.025253651663661003
    p = p * y + 0.11140607297420502
    p = p * y - 0.3756355941295624
    p = p * y + 1.1283706426620483
    return tl.clamp(p * x, -1.0, 1.0, propagate_nan=NAN)


@triton.jit
def tanh_16(x):
    """For results of 16 bits: off by a millionth."""
    return tl.where(tl.abs(x) < 0.05, x - 0.33333334 * x * x * x, 1.0 - 2.0 / (tl.exp(2.0 * x) + 1.0))


@triton.jit
def isinf(a):
    return tl.abs(a) == float("inf")


@triton.jit
def lshift(a, b):
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    return tl.where(inside, a << tl.where(inside, b, 0).to(b.dtype), 0).to(a.dtype)


@triton.jit
def rshift(a, b):
    inside = (b >= 0) & (b < a.dtype.primitive_bitwidth)
    if a.dtype.is_int_signed():
        return a >> tl.where(inside, b, a.dtype.primitive_bitwidth - 1).to(b.dtype)
    return tl.where(inside, a >> tl.where(inside, b, 0).to(b.dtype), 0).to(a.dtype)


# -- ways to combine ---------------------------------------------------------------------------------------
@triton.jit
def add(a, b):
    return a + b


@triton.jit
def multiply(a, b):
    return a * b


@triton.jit
def logaddexp(a, b):
    top = maximum(a, b)
    rest = tl.exp(-tl.abs(a - b))
    return tl.where(a == b, top + 0.6931471805599453, top + libdevice.log1p(rest))


@triton.jit
def argmax(a, i, b, j):
    """The larger, NaN above all; of equal ones that with the lower number."""
    first = (a > b) | ((a != a) & (b == b))
    same = (a == b) | ((a != a) & (b != b))
    first = first | (same & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def argmin(a, i, b, j):
    first = (a < b) | ((a != a) & (b == b))
    same = (a == b) | ((a != a) & (b != b))
    first = first | (same & (i < j))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def last_argmax(a, i, b, j):
    """Of ``a`` and what comes later; of equal ones the later."""
    first = (a > b) | ((a != a) & (b == b))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def last_argmin(a, i, b, j):
    first = (a < b) | ((a != a) & (b == b))
    return tl.where(first, a, b), tl.where(first, i, j)


@triton.jit
def quotient(a, b):
    """Rounded once, as a / b need not be: 6 / 2 is no less than 3, and the mean of equal numbers is that number."""
    b = tl.zeros_like(a) + b
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b


@triton.jit
def welford(mean, m2, n, mean_b, m2_b, n_b):
    """The state (mean, sum of squared deviations, count) of both sets of elements."""
    count = n + n_b
    share = tl.where(count == 0, 0, n_b / count)
    delta = mean_b - mean
    return mean + delta * share, m2 + m2_b + delta * delta * n * share, count


@triton.jit
def welford_next(mean, m2, n, x, ok):
    """The state after one more element, where ``ok``; rows of a tile have one count, so that few divisions do."""
    count = n + 1
    delta = x - mean
    new = mean + delta * (1.0 / count)
    return tl.where(ok, new, mean), tl.where(ok, m2 + delta * (x - new), m2), tl.where(ok, count, n)


@triton.jit
def welford_tile(x, ok, count, axis: tl.constexpr, KEEP: tl.constexpr):
    """The state of ``count`` elements along an axis, those that are ``ok``, in two passes over registers: their mean,
    then squared deviations from it."""
    mean = quotient(tl.sum(tl.where(ok, x, 0.0), axis, keep_dims=KEEP), count)
    off = tl.where(ok, x - mean, 0.0)
    return mean, tl.sum(off * off, axis, keep_dims=KEEP), mean * 0 + count


@triton.jit
def softmax_next(top, total, x):
    """The states (maximum, sum of exp(x - maximum)) after one more element each, or after as many neighbours in a
    row as there are elements for a state: what a thread loads at once needs one exponential more, not one for each.
    -inf adds nothing."""
    last: tl.constexpr = len(x.shape) - 1
    size: tl.constexpr = x.shape[last] // top.shape[last]
    if last == 0:
        x = tl.reshape(x, [top.shape[0], size])
    else:
        x = tl.reshape(tl.broadcast_to(x, [top.shape[0], x.shape[1]]), [top.shape[0], top.shape[1], size])
    new = maximum(top, tl.reduce(x, last + 1, maximum))
    base = tl.where(new == float("-inf"), 0.0, new).to(new.dtype)
    return new, total * tl.exp(top - base) + tl.sum(tl.exp(x - tl.expand_dims(base, last + 1)), last + 1)


# -- reductions of a tile ----------------------------------------------------------------------------------
@triton.jit
def reduce_max(x, axis: tl.constexpr, keep: tl.constexpr):
    return tl.reduce(x, axis, maximum, keep_dims=keep)


@triton.jit
def reduce_min(x, axis: tl.constexpr, keep: tl.constexpr):
    return tl.reduce(x, axis, minimum, keep_dims=keep)


@triton.jit
def reduce_prod(x, axis: tl.constexpr, keep: tl.constexpr):
    return tl.reduce(x, axis, multiply, keep_dims=keep)


@triton.jit
def reduce_logaddexp(x, axis: tl.constexpr, keep: tl.constexpr):
    top, total = reduce_softmax(x, (x * 0 + 1).to(x.dtype), axis, keep)
    return tl.where(tl.abs(top) == float("inf"), top, top + tl.log(total))


@triton.jit
def reduce_argmax(x, i, axis: tl.constexpr, keep: tl.constexpr):
    return tl.reduce((x, i), axis, argmax, keep_dims=keep)


@triton.jit
def reduce_argmin(x, i, axis: tl.constexpr, keep: tl.constexpr):
    return tl.reduce((x, i), axis, argmin, keep_dims=keep)


@triton.jit
def reduce_welford(mean, m2, n, axis: tl.constexpr, keep: tl.constexpr):
    return tl.reduce((mean, m2, tl.broadcast_to(n, mean.shape)), axis, welford, keep_dims=keep)


@triton.jit
def reduce_softmax(top, total, axis: tl.constexpr, keep: tl.constexpr):
    """Of states: the maximum of all, and the sum with respect to it, which is NaN if that is -inf: exp(-inf - -inf)."""
    highest = tl.reduce(top, axis, maximum, keep_dims=True)
    share = tl.where(top == float("-inf"), highest - highest, total * tl.exp(top - highest))
    return tl.reduce(top, axis, maximum, keep_dims=keep), tl.sum(share, axis, keep_dims=keep)


@triton.jit
def pick(x, here, axis: tl.constexpr, keep: tl.constexpr):
    """The one element of each row where ``here``."""
    return tl.sum(tl.where(here, x, 0), axis, keep_dims=keep).to(x.dtype)


# -- programs that wait for each other -----------------------------------------------------------------------
@triton.jit
def after_launches():
    """Until all that was launched before on the stream is done; from capability 9.0 on."""
    tl.inline_asm_elementwise("griddepcontrol.wait; mov.u32 $0, 0;", "=r", [], dtype=tl.int32, is_pure=False, pack=1)


@triton.jit
def acquired(counter):
    """What a counter says; what others stored before they changed it can be read from then on."""
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.u32 $0, [$1];", "=r,l", [counter], dtype=tl.int32, is_pure=False, pack=1
    )


@triton.jit
def counted(part, PARTS: tl.constexpr):
    """What one of the programs that share a counter adds to it."""
    return tl.where(part == 0, 2147483647 - PARTS + 2, 1)


@triton.jit
def arrive(counters, at, part, PARTS: tl.constexpr):
    """Count one of the programs that share a counter, after all that it stored: the ticket to wait with for the others.

    Together they add 2**31, so that the counter's sign changes when the last one is there, and all else is as before.
    They may meet there any number of times: nobody comes to the next time before all came to this one."""
    tl.debug_barrier()
    counter = counters.to(tl.pointer_type(tl.int32), bitcast=True) + at
    return tl.atomic_add(counter, counted(part, PARTS), sem="acq_rel")


@triton.jit
def wait(counters, at, ticket):
    """Until all programs that share the counter are there: they must run at the same time."""
    counter = counters.to(tl.pointer_type(tl.int32), bitcast=True) + at
    while (acquired(counter) ^ ticket) >= 0:
        pass


@triton.jit
def arrived_last(counters, at, part, PARTS: tl.constexpr):
    """Count one of the programs that share a counter, after all that it stored: whether the others came before it."""
    return ((arrive(counters, at, part, PARTS) + counted(part, PARTS)) & 2147483647) == 0


@triton.jit
def leave(x, space, at, part, PARTS: tl.constexpr):
    """Store what a part of a row came to where the others find it: the number ``at`` of the workspace."""
    if PARTS > 1:
        tl.store((space + (at * PARTS + part) * 8).to(tl.pointer_type(x.dtype), bitcast=True), x)


@triton.jit
def meet(counters, row, part, PARTS: tl.constexpr):
    """Until all parts of the row have left what they came to."""
    if PARTS > 1:
        wait(counters, row, arrive(counters, row, part, PARTS))


@triton.jit
def collect(x, space, at, other, PARTS: tl.constexpr):
    """What the parts left, in their order, and then ``other`` up to a power of two; ``x`` is what this one did."""
    if PARTS > 1:
        parts = tl.arange(0, triton.next_power_of_2(PARTS))
        places = (space + (at * PARTS + parts) * 8).to(tl.pointer_type(x.dtype), bitcast=True)
        return tl.load(places, parts < PARTS, other, cache_modifier=".cg")
    else:
        return tl.full([1], x, x.dtype)


# -- scans over programs ------------------------------------------------------------------------------------
# Programs are numbered as they begin, so that all with lower numbers run or have ended: waiting for them needs no
# cooperative launch. The first word of the workspace counts programs that ended and, in its upper half, that began.
# Then each row of each scan has a place for each of its parts, and for each GROUP of them, for what it came to, 32 bits
# in a word with a flag, so that neither is seen without the other. What comes before a part is combined from the groups
# before its own and the parts before it in its own, the same way in every launch.
GROUP = tl.constexpr(128)


@triton.jit
def ticket(words):
    """The number of this program."""
    return tl.atomic_add(words.to(tl.pointer_type(tl.int32), bitcast=True) + 1, 1, sem="relaxed") & 2147483647


@triton.jit
def tidy(words, parts, WORDS: tl.constexpr):
    """The program that ends last leaves all words at 0, of which there are ``WORDS`` for each part in all scans of all
    its columns."""
    programs = tl.num_programs(0)
    tl.debug_barrier()
    ended = tl.atomic_add(words.to(tl.pointer_type(tl.int32), bitcast=True), 1, sem="acq_rel")
    if (ended & 2147483647) == programs - 1:
        count = 1 + programs // parts * WORDS * (parts + tl.cdiv(parts, GROUP))
        for start in range(0, count, 1024):
            at = start + tl.arange(0, 1024)
            tl.store(words.to(tl.pointer_type(tl.int64), bitcast=True) + at, 0, at < count)


@triton.jit
def seen(word):
    """A word that another program may be writing."""
    return tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.u64 $0, [$1];", "=l,l", [word], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def send(x, words, at):
    """Leave a number of 32 or 64 bits where others look for it."""
    words = words.to(tl.pointer_type(tl.int64), bitcast=True) + at
    if x.dtype.primitive_bitwidth == 64:
        bits = x.to(tl.uint64, bitcast=True)
        tl.atomic_xchg(words + 1, ((bits >> 32) | (1 << 32)).to(tl.int64), sem="relaxed")
        bits = bits & 0xFFFFFFFF
    else:
        bits = x.to(tl.uint32, bitcast=True).to(tl.uint64)
    tl.atomic_xchg(words, (bits | (1 << 32)).to(tl.int64), sem="relaxed")


@triton.jit
def arrived(words, ok):
    """The lower halves of words, once all of them that are ``ok`` have their flags."""
    word = seen(words)
    while tl.min(tl.where(ok, word >> 32, 1) & 1) == 0:
        word = seen(words)
    return word & 0xFFFFFFFF


@triton.jit
def lanes_of_group(x):
    """The parts of a group, along a dimension of their own beside columns."""
    lane = tl.arange(0, GROUP)
    return lane[None, :] if len(x.shape) > 0 else lane


@triton.jit
def received(x, start, words, first, count, WORDS: tl.constexpr):
    """What ``count`` parts or groups (at most GROUP) left from ``first`` on, the last one at the end; before them
    ``start``, in the type of ``x``: for a row, ``[GROUP]``, or for columns, whose ``first`` is ``[columns, 1]``."""
    lane = lanes_of_group(x)
    ok = lane + count >= GROUP
    words = words.to(tl.pointer_type(tl.int64), bitcast=True)
    words += tl.where(ok, first + (lane + count - GROUP) * WORDS, 0)
    bits = arrived(words, ok)
    if x.dtype.primitive_bitwidth == 64:
        bits = (arrived(words + 1, ok) << 32) | bits
        found = bits.to(x.dtype, bitcast=True)
    else:
        found = bits.to(tl.uint32).to(x.dtype, bitcast=True)
    return tl.where(ok, found, start).to(x.dtype)


@triton.jit
def joined(a, b, KIND: tl.constexpr):
    """What two parts in a row come to."""
    if KIND == "sum":
        return a + b
    elif KIND == "prod":
        return a * b
    elif KIND == "max":
        return maximum(a, b)
    elif KIND == "min":
        return minimum(a, b)
    else:
        return logaddexp(a, b)


@triton.jit
def folded(x, KIND: tl.constexpr):
    """What all along the last dimension come to."""
    last: tl.constexpr = len(x.shape) - 1
    if KIND == "sum":
        return tl.reduce(x, last, add, keep_dims=last > 0)
    elif KIND == "prod":
        return tl.reduce(x, last, multiply, keep_dims=last > 0)
    elif KIND == "max":
        return tl.reduce(x, last, maximum, keep_dims=last > 0)
    elif KIND == "min":
        return tl.reduce(x, last, minimum, keep_dims=last > 0)
    else:
        return tl.reduce(x, last, logaddexp, keep_dims=last > 0)


@triton.jit
def before(x, start, KIND: tl.constexpr, words, row, part, parts, WORDS: tl.constexpr):
    """What the parts of a row before this one came to, which comes to ``x``; ``start`` for the first one. ``row`` is a
    number, or one for each of several columns, ``[columns, 1]`` as ``x`` is."""
    first = 1 + row * (parts + tl.cdiv(parts, GROUP)) * WORDS
    groups = first + parts * WORDS
    send(x, words, first + part * WORDS)
    group, place = part // GROUP, part % GROUP
    near = folded(received(x, start, words, first + group * GROUP * WORDS, place, WORDS), KIND)
    if place == GROUP - 1:
        send(joined(near, x, KIND), words, groups + group * WORDS)
    far = tl.full(x.shape, start, x.dtype)
    for done in range(0, group, GROUP):
        count = tl.minimum(group - done, GROUP)
        far = joined(far, folded(received(x, start, words, groups + done * WORDS, count, WORDS), KIND), KIND)
    return joined(far, near, KIND)


@triton.jit
def joined_two(a, i, b, j, KIND: tl.constexpr):
    if KIND == "argmax":
        return last_argmax(a, i, b, j)
    else:
        return last_argmin(a, i, b, j)


@triton.jit
def received_two(x, y, start, start_y, KIND: tl.constexpr, words, first, count, WORDS: tl.constexpr):
    """What parts or groups came to together, in their order, which matters for the positions of extremes."""
    a = received(x, start, words, first, count, WORDS)
    b = received(y, start_y, words + (WORDS - 2) * 8, first, count, WORDS)
    axis: tl.constexpr = len(x.shape) // 2
    if KIND == "argmax":
        a, b = tl.associative_scan((a, b), axis, last_argmax)
    else:
        a, b = tl.associative_scan((a, b), axis, last_argmin)
    last = lanes_of_group(x) == GROUP - 1
    return pick(a, last, axis, axis > 0), pick(b, last, axis, axis > 0)


@triton.jit
def before_two(x, y, start, start_y, KIND: tl.constexpr, words, row, part, parts, WORDS: tl.constexpr):
    """As `before`, of states of a number and a position, which lies behind it."""
    first = 1 + row * (parts + tl.cdiv(parts, GROUP)) * WORDS
    groups = first + parts * WORDS
    send(x, words, first + part * WORDS)
    send(y, words, first + part * WORDS + (WORDS - 2))
    group, place = part // GROUP, part % GROUP
    own = first + group * GROUP * WORDS
    near, near_y = received_two(x, y, start, start_y, KIND, words, own, place, WORDS)
    if place == GROUP - 1:
        all_x, all_y = joined_two(near, near_y, x, y, KIND)
        send(all_x, words, groups + group * WORDS)
        send(all_y, words, groups + group * WORDS + (WORDS - 2))
    far, far_y = tl.full(x.shape, start, x.dtype), tl.full(y.shape, start_y, y.dtype)
    for done in range(0, group, GROUP):
        count = tl.minimum(group - done, GROUP)
        a, b = received_two(x, y, start, start_y, KIND, words, groups + done * WORDS, count, WORDS)
        far, far_y = joined_two(far, far_y, a, b, KIND)
    return joined_two(far, far_y, near, near_y, KIND)


# -- sorting -------------------------------------------------------------------------------------------------
@triton.jit
def ranked(x):
    """Integers in the order of numbers of up to 32 bits: NaN is the largest, and -0 equals 0."""
    if x.dtype.is_floating():
        last: tl.constexpr = 0x7FFF if x.dtype.primitive_bitwidth == 16 else 0x7FFFFFFF
        plain = tl.where(x == 0, tl.zeros_like(x), x)
        if x.dtype.primitive_bitwidth == 16:
            bits = plain.to(tl.int16, bitcast=True).to(tl.int32)
        else:
            bits = plain.to(tl.int32, bitcast=True)
        return tl.where(x != x, last, tl.where(bits < 0, bits ^ last, bits))
    else:
        return x


@triton.jit
def sort(x, inside, DESCENDING: tl.constexpr):
    """Rows along the last dimension, and where their elements were. A key and a position are sorted as one integer, so
    that equal keys stay in order; what is not ``inside`` comes last."""
    last: tl.constexpr = len(x.shape) - 1
    size: tl.constexpr = x.shape[last]
    narrow: tl.constexpr = x.dtype.primitive_bitwidth <= 16 and x.dtype != tl.uint16
    kind: tl.constexpr = tl.int32 if narrow else tl.int64
    bits: tl.constexpr = 16 if narrow else 32
    most: tl.constexpr = 0x7FFFFFFF if narrow else 0x7FFFFFFFFFFFFFFF
    key = ranked(x).to(kind)
    if DESCENDING:
        key = -1 - key
    lane = tl.arange(0, size).to(kind)
    if last == 1:
        lane = lane[None, :]
    both = tl.sort(tl.where(inside, (key << bits) | lane, most), last)
    position = (both & ((1 << bits) - 1)).to(tl.int32) & (size - 1)
    return tl.gather(x, position, last), position.to(tl.int64)


# -- special functions -------------------------------------------------------------------------------------
@triton.jit
def digamma(x):
    """The recurrence up to 10, then the asymptotic series; the reflection formula below 0."""
    whole = libdevice.nearbyint(x)
    reflected = -3.141592653589793 / libdevice.tan((x - whole) * 3.141592653589793)
    y = tl.where(x < 0, 1.0 - x, x)
    total = tl.where(x < 0, reflected, 0.0)
    for _ in tl.static_range(10):
        total = tl.where(y < 10, total - 1.0 / y, total)
        y = tl.where(y < 10, y + 1.0, y)
    z = 1.0 / (y * y)
    series = (z * 0.08333333333333333 - 0.021092796092796094) * z + 0.007575757575757576
    series = ((series * z - 0.004166666666666667) * z + 0.003968253968253968) * z - 0.008333333333333333
    series = (series * z + 0.08333333333333333) * z
    total = total + tl.log(y) - 0.5 / y - series
    total = tl.where((x < 0) & (whole == x), float("nan"), total)
    return tl.where(x == 0, -1.0 / x, total)


# -- random numbers: gyrator.ir.philox is the same in torch --------------------------------------------------
@triton.jit
def words(seed, offset):
    """The four words for element ``offset``: Philox 4x32-10 with the seed as key."""
    low = (offset & 0xFFFFFFFF).to(tl.uint32)
    high = ((offset >> 32) & 0xFFFFFFFF).to(tl.uint32)
    zero = low * 0
    return tl.philox(seed, low, high, zero, zero)


@triton.jit
def unit_double(low, high):
    return (((high.to(tl.uint64) << 32) | low.to(tl.uint64)) >> 11).to(tl.float64) * 1.1102230246251565e-16


@triton.jit
def unit_float(word, BITS: tl.constexpr):
    return (word >> (32 - BITS)).to(tl.int32).to(tl.float32) * 2.0**-BITS


@triton.jit
def unit_of(word, kind: tl.constexpr):
    return unit_float(word, 24 if kind == tl.float32 else 11 if kind == tl.float16 else 8).to(kind)


@triton.jit
def normal_of(u, v):
    return sqrt(-2.0 * tl.log(1.0 - u)) * tl.cos(6.283185307179586 * v)


@triton.jit
def rand(seed, offset, kind: tl.constexpr):
    if kind == tl.float64:
        w0, w1, _, _ = words(seed, offset)
        return unit_double(w0, w1)
    else:
        w0, w1, w2, w3 = words(seed, offset >> 2)
        odd, high = (offset & 1) != 0, (offset & 2) != 0
        return unit_of(tl.where(high, tl.where(odd, w3, w2), tl.where(odd, w1, w0)), kind)


@triton.jit
def randn(seed, offset, kind: tl.constexpr):
    if kind == tl.float64:
        w0, w1, w2, w3 = words(seed, offset)
        return normal_of(unit_double(w0, w1), unit_double(w2, w3))
    else:
        w0, w1, w2, w3 = words(seed, offset >> 2)
        high = (offset & 2) != 0
        u, v = unit_float(tl.where(high, w2, w0), 24), unit_float(tl.where(high, w3, w1), 24)
        return normal_of(u, v - 0.25 * (offset & 1).to(tl.float32)).to(kind)


# ``rand`` and ``randn`` of tiles whose rows are runs of offsets from multiples of four on: a quarter of the work
@triton.jit
def words_of_run(seed, offset):
    length: tl.constexpr = offset.shape[len(offset.shape) - 1]
    rows: tl.constexpr = offset.numel // length
    some, _ = tl.split(tl.reshape(offset, [rows, length // 4, 2, 2]))
    first, _ = tl.split(some)
    return words(seed, first >> 2)


@triton.jit
def in_turns(a, b, c, d, like):
    return tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), like.shape)


@triton.jit
def rand_of_run(seed, offset, kind: tl.constexpr):
    if offset.shape[len(offset.shape) - 1] % 4 != 0:
        return rand(seed, offset, kind)
    else:
        w0, w1, w2, w3 = words_of_run(seed, offset)
        return unit_of(in_turns(w0, w1, w2, w3, offset), kind)


@triton.jit
def randn_of_run(seed, offset, kind: tl.constexpr):
    if offset.shape[len(offset.shape) - 1] % 4 != 0:
        return randn(seed, offset, kind)
    else:
        w0, w1, w2, w3 = words_of_run(seed, offset)
        u, v, x, y = unit_float(w0, 24), unit_float(w1, 24), unit_float(w2, 24), unit_float(w3, 24)
        pairs = in_turns(normal_of(u, v), normal_of(u, v - 0.25), normal_of(x, y), normal_of(x, y - 0.25), offset)
        return pairs.to(kind)


@triton.jit
def randint64(seed, offset, low, high):
    w0, w1, _, _ = words(seed, offset)
    bits = (w1.to(tl.uint64) << 32) | w0.to(tl.uint64)
    span = (high - low).to(tl.uint64)
    return low + (bits % tl.where(span == 0, 1, span)).to(tl.int64)


@triton.jit
def store_apart(pointer, value, inside, whole, near, modifier: tl.constexpr):
    """Store what is ``inside``, and what of it is in ``whole`` groups of neighbours 16 bytes at once; others are only
    where ``near`` is true."""
    tl.store(pointer, value, whole, cache_modifier=modifier)
    if near:
        tl.store(pointer, value, inside & (whole == 0), cache_modifier=modifier)

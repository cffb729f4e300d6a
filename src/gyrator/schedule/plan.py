"""Plans: a whole graph as an ordered list of steps with every decision about memory made.

A plan is printed as the wrapper program, step by step, and nothing is decided after it.

    plan f(x: f32[B, N]@[N, 1], w: f32[N, M]@[M, 1]):
      B = x.shape[0]
      allocate a  fresh
      launch softmax_0(x, a; B)
      free x
      b = aten.mm.default(a, w)
      allocate c  in place of b
      launch add_1(b, c; B)
      return c

Names end by ``Free`` and in no other way: a value that another one was placed upon keeps its name until it is
freed, inputs included. A plan frees every value but those that its outputs view."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

from gyrator.ir.expr import Value
from gyrator.ir.index import ZERO, Index
from gyrator.ir.program import Derived, Extern, Input, Output, View, defines, uses, views
from gyrator.ir.tree import Kernel
from gyrator.origin import Origin


@dataclass(frozen=True, slots=True)
class Allocate:
    """Name the memory of ``value``: its own, with undefined contents, or that of ``upon`` with its contents.

    The latter has the same dtype and either the same shape and strides or as many elements without gaps, and the step
    that defines ``value`` is the last to read it, if any is (an elementwise kernel, an op that mutates). With an
    ``offset`` in its elements, ``value`` begins there in ``upon``, which is written when ``value`` has ended, or joined
    of such; in a call where ``upon`` has fewer bytes than it ``needs``, its memory is its own."""

    value: Value
    upon: Value | None = None
    offset: Index | None = None
    needs: Index | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the kernel of that name on one value per ``Kernel.params`` and one index per ``Kernel.sizes``.

    Equal kernels are one ``Kernel`` with several launches, so ``args`` need not have the names of the kernel's params,
    but their shapes, strides and dtypes with ``Kernel.sizes`` := ``sizes``. Written params are allocated before."""

    kernel: str
    args: tuple[Value, ...]
    sizes: tuple[Index, ...] = ()
    origins: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class Call:
    """Call ``extern.op``.

    ``into``: every result is allocated before and the op writes there, by the overload that ``OUT_VARIANTS``
    names. Otherwise the op allocates; each result that has a value is checked against the value's shape,
    dtype and strides, and copied if only the strides differ.

    For each of ``extern.mutates`` the new version is allocated before, either in place of the old one or fresh with a
    ``Copy`` of the old one into it; the op receives the new one's memory. ``extern.scalars`` are bound after the call:
    to a result's size where a result has the symbol as a dimension, else to the number that the op returns."""

    extern: Extern
    into: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """``into[...] = source[...]`` with conversion to ``into``'s dtype: an input's update, a copy to be mutated."""

    into: View
    source: View


@dataclass(frozen=True, slots=True)
class Join:
    """What is in ``parts``, which follow each other in each of the ``rows`` of ``whole``, is its contents unmoved."""

    whole: Value
    parts: tuple[Value, ...]
    rows: Index


@dataclass(frozen=True, slots=True)
class Free:
    """No later step and no output names the value."""

    value: Value


Step = Allocate | Launch | Call | Copy | Join | Free


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph ready to be printed.

    All updates of inputs are steps: in place of the input, or a ``Copy`` into it after its last reader."""

    name: str
    inputs: tuple[Input, ...]
    steps: tuple[Step, ...]
    outputs: tuple[Output, ...]
    kernels: tuple[Kernel, ...]
    constants: tuple[Value, ...] = ()
    derived: tuple[Derived, ...] = ()

    def owners(self) -> dict[Value, Value]:
        """For each allocated value the first in its memory: itself, also within another, or what it lies upon."""
        first: dict[Value, Value] = {}
        for step in self.steps:
            if isinstance(step, Allocate):
                upon = step.upon if step.offset is None else None
                first[step.value] = step.value if upon is None else first.get(upon, upon)
        return first


def held(plan: Plan, size_of: Callable[[Value], int]) -> Iterator[tuple[int, Collection[Value]]]:
    """After each launch, call, copy and join: bytes held, those of inputs apart, and the values that were first in that
    memory. ``size_of`` gives the bytes of a value. The collection changes when the iterator goes on."""
    first: dict[Value, Value] = {}  # for each name the first value in its memory
    names = Counter[Value]()
    total = 0
    for step in plan.steps:
        match step:
            case Allocate(value, upon) if upon is None or upon in first:
                first[value] = value if upon is None else first[upon]
                names[first[value]] += 1
                total += size_of(value) if upon is None else 0
            case Free(value) if value in first:
                memory = first.pop(value)
                names[memory] -= 1
                if not names[memory]:
                    del names[memory]
                    total -= size_of(memory)
            case _ if not isinstance(step, Allocate | Free):
                new = [v for v in step.extern.out if v is not None] if isinstance(step, Call) and not step.into else []
                first |= zip(new, new, strict=True)
                names.update(new)
                total += sum(map(size_of, new))
                yield total, names.keys()


def touched(step: Step, kernels: Mapping[str, Kernel]) -> tuple[Collection[Value], Collection[Value]]:
    """The values that a launch, call or copy reads, and those that it writes."""
    match step:
        case Launch(name, args):
            both = list(zip(kernels[name].params, args, strict=True))
            return [v for p, v in both if p.read], [v for p, v in both if p.written]
        case Call(extern):
            return uses(extern), defines(extern)
        case Copy(into, source):
            return [source.value], [into.value]
        case Join(whole, parts, _):
            return parts, [whole]
    return (), ()


POOLED_BYTES = 1 << 20
"""A CPU's values of at least so many bytes come from the pool; torch's allocator keeps the memory of smaller ones."""
EXPERTS_IN_A_LOOP = "transformers.grouped_mm_fallback"
"""The operator by which transformers calls experts where torch's own does not."""

OUT_VARIANTS: Mapping[str, str] = {
    f"aten.{op}.default": f"aten.{op}.out" for op in ("mm", "addmm", "_addmm_activation", "bmm", "baddbmm")
} | {f"{EXPERTS_IN_A_LOOP}.default": "gyrator.grouped_mm.out"}
"""Ops with one result whose variant writes into given memory of any strides without a temporary of that size.

``aten.convolution.out`` is not among them: it computes into memory of its own and copies. The last is for results that
end within the program alone: what is saved for gradients that operators allocate should not come from the pool."""


def has_out_variant(extern: Extern) -> bool:
    """Whether a call can write into given memory, which holds reals."""
    known = extern.op in OUT_VARIANTS and all(value is not None for value in extern.out)
    return known and not any(view.complex for view in views(extern))


def full_view(value: Value) -> View:
    """All of ``value`` as it lies."""
    return View(value, value.shape, value.strides, ZERO)

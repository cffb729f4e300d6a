"""The specification of plans as code: names are there while they are used, and so are the contents of their memory."""

from collections.abc import Iterable

from gyrator.ir.expr import Value
from gyrator.ir.index import ZERO, Index, is_nonnegative, product
from gyrator.ir.program import output_values
from gyrator.origin import first_known
from gyrator.passes import RuleBroken, blame
from gyrator.schedule.plan import Allocate, Call, Free, Join, Launch, Plan, Step, touched


def check_plan(plan: Plan) -> None:
    """Check that each step reads what was written before, and neither freed nor overwritten since by what was placed
    upon it; that what lies within a value has ended when a step names that value, or is joined to it, and does not
    meet there; that a name is given and freed once; that only outputs, and inputs that nobody reads, are left.

    Raises: InternalCheckError naming the first step that breaks a rule, and the user's line."""
    checker = _Checker(plan)
    for step in plan.steps:
        made = step if isinstance(step, Launch) else step.extern if isinstance(step, Call) else None
        with blame(step, first_known(made.origins if made is not None else ()), within="memory"):
            checker.step(step)
    with blame(f"the end of {plan.name}", within="memory"):
        checker.end()


class _Checker:
    def __init__(self, plan: Plan) -> None:
        self._kernels = {kernel.name: kernel for kernel in plan.kernels}
        self._given = {i.value for i in plan.inputs if i.value is not None} | {*plan.constants}
        self._shown = output_values(plan.outputs)
        self._named = set(self._given)
        self._empty: set[Value] = set()  # not written yet
        self._lost: dict[Value, Value] = {}  # overwritten, and by what
        self._upon: dict[Value, Value] = {}
        self._within: dict[Value, tuple[Value, Index]] = {}  # the host, and where in it
        self._joined: dict[Value, tuple[Value, ...]] = {}
        self._parts = {part for step in plan.steps if isinstance(step, Join) for part in step.parts}

    def step(self, step: Step) -> None:
        match step:
            case Allocate(value, None):
                self._name([value])
                self._empty.add(value)
            case Allocate(value, Value() as upon, None):
                self._name([value])
                self._readable([upon], "place a value upon")
                self._upon[value] = upon
            case Allocate(value, Value() as host, Index() as at, needs):
                self._name([value])
                self._lie(value, host, at, needs)
            case Join(whole, parts, rows):
                self._join(whole, parts, rows)
            case Free(value):
                self._known([value])
                self._named.discard(value)
                self._within.pop(value, None)
            case _:
                reads, writes = touched(step, self._kernels)
                self._readable([v for v in reads if v not in writes], "read")  # else the kernel may write first
                if isinstance(step, Call) and not step.into:
                    self._name(value for value in step.extern.out if value is not None)
                self._write(writes)
                over = next((v for v in reads if v in self._parts and self._lost.get(v) in writes), None)
                if over is not None:
                    raise RuleBroken(f"{over} is read while {self._lost[over]} is written over it")

    def end(self) -> None:
        self._readable(self._shown, "show")
        if left := self._named - self._given - self._shown:
            raise RuleBroken(f"{', '.join(sorted(value.name for value in left))} is never freed")

    def _name(self, values: Iterable[Value]) -> None:
        for value in values:
            if value in self._named:
                raise RuleBroken(f"{value} is named twice")
            self._named.add(value)
            self._lost.pop(value, None)

    def _known(self, values: Iterable[Value]) -> None:
        for value in values:
            if value not in self._named:
                raise RuleBroken(f"{value} has no memory here: it is not allocated yet, or freed already")

    def _readable(self, values: Iterable[Value], what: str) -> None:
        self._known(values)
        for value in values:
            if value in self._lost:
                raise RuleBroken(f"cannot {what} {value}: {self._lost[value]} was written over it")
            if value in self._empty:
                raise RuleBroken(f"cannot {what} {value}: nothing was written there")

    def _write(self, values: Iterable[Value]) -> None:
        self._known(values)
        for value in values:
            if self._lost.pop(value, None) in self._named:
                raise RuleBroken(f"{value} is written over what lies upon it")
            guest = next((guest for guest, (host, _) in self._within.items() if host is value), None)
            if guest is not None:
                raise RuleBroken(f"{value} is written while {guest} lies in it")
            self._empty.discard(value)
            old = self._upon.get(value)
            while old is not None:
                self._lost |= dict.fromkeys((old, *self._joined.get(old, ())), value)
                old = self._upon.get(old)

    def _lie(self, value: Value, host: Value, at: Index, needs: Index | None) -> None:
        if host not in self._empty:
            raise RuleBroken(f"{value} is to lie in {host}, which is written already")
        start, end = at * value.dtype.itemsize, at * value.dtype.itemsize + value.nbytes
        if needs is None and not is_nonnegative(host.nbytes - end):
            raise RuleBroken(f"{value} need not fit into {host}")
        for other, (there, place) in self._within.items():
            if there is not host or self._parts.issuperset((value, other)):
                continue
            begin = place * other.dtype.itemsize
            if not is_nonnegative(begin - end) and not is_nonnegative(start - begin - other.nbytes):
                raise RuleBroken(f"{value} and {other} may meet in {host}")
        self._within[value] = (host, at)
        self._empty.add(value)

    def _join(self, whole: Value, parts: tuple[Value, ...], rows: Index) -> None:
        self._readable(parts, "join")
        places = [self._within.pop(part, (None, ZERO)) for part in parts]
        if any(host is not whole for host, _ in places):
            raise RuleBroken(f"not all of {', '.join(part.name for part in parts)} lie in {whole}")
        starts, step = [at for _, at in places], product(whole.shape) // rows
        if starts[0] is not ZERO:
            raise RuleBroken(f"{parts[0]} does not begin where {whole} does")
        for part, at, after in zip(parts, starts, (*starts[1:], step), strict=True):
            row = after - at
            if product(part.shape) is not row * rows or part.span is not (rows - 1) * step + row:
                raise RuleBroken(f"{part} does not fill its place in {whole} up to the next one's")
        self._joined[whole] = parts
        self._empty.discard(whole)

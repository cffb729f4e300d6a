"""The wrapper: a plan printed as a Python program.

    def bind(runtime):
        empty = runtime.empty
        num_threads = runtime.num_threads

        softmax_0 = runtime.kernel("4be2…", "softmax_0", 2)

        def call(args):
            (x,) = args
            args.clear()
            threads = num_threads()
            buf0 = empty((8, 16), (16, 1), torch.float32)
            softmax_0(x.data_ptr(), buf0.data_ptr(), threads)
            return (buf0,)

        return call

The program finds kernels and constants in its own folder, by name of content, so that the folder can move. As a script
it runs on random inputs and prints the time; so do scripts of each kernel, with the option `benchmark_kernel`."""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from textwrap import wrap

import torch

from gyrator.codegen.python_text import Names, constant_text, tuple_of
from gyrator.codegen.texts import WIDTH, broken, origin_comments
from gyrator.codegen.triton_source import GridAxis, Pointer, SizeArgument, TritonKernel, Workspace
from gyrator.ir.expr import Checked, Value
from gyrator.ir.index import UNBOUNDED, ZERO, Atom, Index, Size, const, exact_quotient, is_nonnegative, substitute
from gyrator.ir.program import Arg, Extern, Input, Item, View, output_values, views
from gyrator.ir.tree import Contract, Kernel, Store, walk_exprs, walk_stages
from gyrator.ir.volume import WITHIN_32_BITS, count_of
from gyrator.metrics.kernels import facts_of
from gyrator.origin import Origin, merge
from gyrator.schedule.plan import OUT_VARIANTS, POOLED_BYTES, Allocate, Call, Copy, Free, Launch, Plan, Step, full_view
from gyrator.schedule.products import product_of

_RESERVED = (
    "torch math runtime call bind args inputs main random_tensor empty take allocate reinterpret"
    " as_reals as_complex checked leaves num_threads threads Runtime min max abs int float bool round"
    " stream current_stream empty_cuda workspace aligned"
).split()

_FOR_VIEWS = ("aten.view_copy.dtype", "aten.as_strided_copy.default")
"""Operators that stand for views that are no index maps; their results get its strides, which are not their own."""

_FRAME = Path(__file__).with_name("wrapper.txt").read_text("utf-8")
_KERNEL_FRAME = Path(__file__).with_name("kernel_script.txt").read_text("utf-8")


@dataclass(frozen=True, slots=True)
class BuiltKernel:
    """Where a kernel of the plan is found: its library's name, its symbol there, and its checked indices.

    `sites` describes each `Checked` index of the kernel: the size it must stay below, and the user's place."""

    library: str
    symbol: str
    sites: tuple[tuple[int | None, Origin | None], ...] = ()


_Window = tuple[Value, torch.dtype, tuple[Index, ...], tuple[Index, ...], Index]
"""A place in the memory of the first value there."""
Kernels = Mapping[str, BuiltKernel | TritonKernel]
"""The kernels of a plan by their names there."""


def print_wrapper(plan: Plan, kernels: Kernels, shown: Container[int] = (), align: Container[Value] = ()) -> str:
    """The text of the program that performs `plan`.

    A result of an operator that only operators read, or the user as an output at a position in `shown`, keeps
    the strides that the operator gave it, as in eager; whatever else it promised. Outputs there get memory of hardly
    more than their size, as the user may keep many.

    `kernels` has an entry for each kernel of the plan. Inputs in `align` that are not aligned are copied."""
    return _Wrapper(plan, kernels, shown, align).text()


class _Wrapper:
    """One plan on its way into text: the names given, and the lines written so far."""

    def __init__(self, plan: Plan, kernels: Kernels, shown: Container[int], align: Container[Value]) -> None:
        self.plan = plan
        self.kernels = kernels
        self.free_strides = _free_strides(plan, shown)
        self.align = align
        self.gpu = gpu_of(plan)
        read = (size for step in plan.steps if isinstance(step, Call) for size in step.extern.scalars)
        given = (i.size for i in plan.inputs if i.size is not None)
        self.unbound = {size.name for size in (*given, *(d.size for d in plan.derived), *read)}
        self.names = Names((*_RESERVED, *self.unbound))
        self.by_name = {i.value.name: i.value for i in plan.inputs if i.value is not None}
        self.bound: list[str] = []  # lines before `call`
        self.lines: list[str] = []
        self.waiting = list(plan.derived)
        self.owners = plan.owners()
        # the values that were first in the memory of what the user may keep
        kept = output_values([output for position, output in enumerate(plan.outputs) if position in shown])
        self.lasting = frozenset(self.owners[value] for value in kept if value in self.owners)
        self.launched = Counter(self.memory(v) for s in plan.steps if isinstance(s, Launch) for v in s.args)
        self.viewed = Counter(map(self.window, _inner_views(plan)))
        self.constants = frozenset(plan.constants)
        # by the value that was first in a memory: how many values there are not freed, and the variables that hold it
        self.alive = Counter[Value]()
        self.holders: dict[Value, list[str]] = defaultdict(list)
        self.windows: dict[_Window, str] = {}
        self.pointers: dict[Value, str] = {}
        self.copies: dict[Value, str] = {}
        self.freeing: list[str] = []
        self.tools: set[str] = set()
        self.operators: dict[str, str] = {}

    def text(self) -> str:
        for kernel in self.plan.kernels:
            self.kernel_name(kernel.name)
        for constant in self.plan.constants:
            self.name(constant)
        self.unpack()
        for step in self.plan.steps:
            if not isinstance(step, Free):
                self.flush()
            self.step(step)
        self.flush()
        self.viewed.clear()  # the caller gets tensors of its own
        self.windows.clear()
        self.emit(f"return {tuple_of(self.argument(o, {}) for o in self.plan.outputs)}")
        body = "\n".join(f"        {line}" for line in self.lines)
        lines = [piece for line in self.setup() for piece in broken(line, WIDTH - 4)]
        setup = "\n".join(f"    {line}" if line else "" for line in lines)
        ranges = index_ranges(self.plan)
        made = "\n".join(f"        {self.made_input(given, ranges)}," for given in self.plan.inputs)
        call = "call" if self.gpu is None else f"runtime.on_device({self.gpu.index}, call)"
        math = "import math\n\n" if "math." in body else ""
        return _FRAME.format(name=self.plan.name, setup=setup, body=body, call=call, made=made, math=math)

    def emit(self, line: str) -> None:
        self.lines += broken(line, WIDTH - 8)

    def name(self, value: Value) -> str:
        return self.names.of(value, value.name)

    def kernel_name(self, kernel: str) -> str:
        return self.names.of(f"kernel {kernel}", kernel)

    def tool(self, name: str) -> str:
        """A function of the runtime, fetched once in `bind`."""
        self.tools.add(name)
        return name

    def setup(self) -> list[str]:
        """The lines of `bind` before `call`."""
        lines = [f"{tool} = runtime.{tool}" for tool in sorted(self.tools)]
        lines += [f'{name} = runtime.operator("{op}")' for op, name in self.operators.items()]
        for v in self.plan.constants:
            where = f"{tuple_of(v.shape)}, {tuple_of(v.strides)}, {v.dtype}"
            lines.append(f'{self.name(v)} = runtime.constant("{v.name}", {where})')
        lines += self.bound
        launches = [step for step in self.plan.steps if isinstance(step, Launch)]
        for kernel in self.plan.kernels:
            origins = merge(kernel.origins, *(step.origins for step in launches if step.kernel == kernel.name))
            lines += ["", *origin_comments(origins, "#"), *self.kernel(kernel)]
        return lines

    def kernel(self, kernel: Kernel) -> list[str]:
        name, built = self.kernel_name(kernel.name), self.kernels[kernel.name]
        if isinstance(built, TritonKernel):
            changed = updated_text(kernel, built) if len(built.variants) > 1 else []
            given = [programs_text(built), *changed, *fits_text(built)]
            return [f'{name} = runtime.gpu_kernel("{built.name}", {", ".join(given)})']
        head = f'{name} = runtime.kernel("{built.library}", "{built.symbol}", {len((*kernel.params, *kernel.sizes))}'
        if not built.sites:
            return [f"{head})"]
        return [f"{head}, (", *[f"    ({size}, {where and astuple(where)})," for size, where in built.sites], "))"]

    def memory(self, value: Value) -> Value:
        """The value that was first in a value's memory."""
        return self.owners.get(value, value)

    def window(self, view: View) -> _Window:
        return self.memory(view.value), view.dtype or view.value.dtype, view.shape, view.strides, view.offset

    def hold(self, value: Value) -> str:
        """The variable that a value gets here. It stays while any value of its memory does."""
        memory, name = self.memory(value), self.name(value)
        self.alive[memory] += 1
        self.holders[memory].append(name)
        self.windows.setdefault(self.window(full_view(value)), name)
        return name

    def free(self, value: Value) -> None:
        memory = self.memory(value)
        self.alive[memory] -= 1
        if not self.alive[memory]:
            self.freeing += self.holders.pop(memory)

    def unpack(self) -> None:
        names, changed = [], []
        for given in self.plan.inputs:
            name = "_" if given.size is None else given.size.name
            if (value := given.value) is not None:
                name = self.hold(value)
                if given.number:
                    changed.append(f"{name} = torch.tensor({name}, dtype={value.dtype})")
                if given.complex:
                    changed.append(f"{name} = {self.tool('as_reals')}({name})")
                if value in self.align:
                    changed.append(f"{name} = {self.tool('aligned')}({name})")
            names.append(name)
            self.unbound.discard(name)
        self.emit(f"{tuple_of(names)} = args" if names else "assert not args")
        for line in ("args.clear()", *changed):
            self.emit(line)
        launched = {step.kernel for step in self.plan.steps if isinstance(step, Launch)}
        if any(isinstance(self.kernels[name], BuiltKernel) for name in launched):
            self.emit(f"threads = {self.tool('num_threads')}()")
        if self.gpu is not None and any(isinstance(self.kernels[name], TritonKernel) for name in launched):
            self.emit(f"stream = {self.tool('current_stream')}({self.gpu.index})")
        self.derive()

    def derive(self) -> None:
        """Write derived sizes whose parts are known by now, first those read off inputs; no other is a part of one."""
        for derived in list(self.waiting):
            given = f"{self.name(self.by_name[derived.source])}." if derived.source else ""
            if given or self.unbound.isdisjoint(re.findall(r"\w+", derived.text)):
                self.waiting.remove(derived)
                self.bind_size(derived.size, given + derived.text)

    def bind_size(self, size: Size, text: str) -> None:
        self.emit(f"{size.name} = {text}")
        self.unbound.discard(size.name)

    def step(self, step: Step) -> None:
        match step:
            case Allocate(value, None):
                self.emit(f"{self.hold(value)} = {self.fresh(value)}")
            case Allocate(value, Value() as upon, offset, needs):
                there = self.view(View(upon, value.shape, value.strides, offset or ZERO, value.dtype))
                if needs is not None:
                    there += f" if {needs} <= {upon.nbytes} else {self.fresh(value)}"
                self.emit(f"{self.hold(value)} = {there}  # {'in place' if offset is None else 'not written yet'}")
            case Launch():
                self.launch(step)
            case Call():
                self.call(step)
            case Copy(into, source):
                self.emit(f"{self.view(into)}.copy_({self.view(source)})")
            case Free(value) if value not in self.constants:
                self.free(value)

    def flush(self) -> None:
        """Write the frees collected so far."""
        self.lines += [f"del {line.removesuffix(',')}" for line in wrap(", ".join(self.freeing), WIDTH - 12)]
        self.freeing.clear()

    def fresh(self, value: Value) -> str:
        where = f"{tuple_of(value.shape)}, {tuple_of(value.strides)}, {value.dtype}"
        if value.device == self.gpu:
            return f"{self.tool('empty_cuda')}({where})"
        nbytes, lasting = value.nbytes.value, ", lasting=True" * (value in self.lasting)
        if nbytes is None:
            return f"{self.tool('allocate')}({where}{lasting})"
        if nbytes >= POOLED_BYTES:
            return f"{self.tool('take')}({nbytes}, {where}{lasting})"
        return f"{self.tool('empty')}({where})"

    def launch(self, step: Launch) -> None:
        name, built = self.kernel_name(step.kernel), self.kernels[step.kernel]
        if isinstance(built, TritonKernel):
            self.launch_on_gpu(step, name, built)
        else:
            args = [self.pointer(v) for v in step.args] + [*map(str, step.sizes)]
            self.emit(f"{name}({', '.join([*args, 'threads'])})")

    def launch_on_gpu(self, step: Launch, name: str, kernel: TritonKernel) -> None:
        values, args, own = iter(step.args), ["stream"], []
        symbols = [param.size for param in kernel.params if isinstance(param, SizeArgument)]
        known: dict[Atom, Index] = dict(zip(symbols, step.sizes, strict=True))
        for param in kernel.params:
            match param:
                case Pointer():
                    args.append(self.gpu_pointer(next(values)))
                case SizeArgument(_, size):
                    args.append(str(known[size]))
                case Workspace(_, nbytes, zeroed):
                    own.append(self.names.fresh("space"))
                    amount = str(substitute(nbytes, known))
                    self.emit(f"{own[-1]} = {self.tool('workspace')}({amount}, {zeroed}, stream)")
                    args.append(f"{own[-1]}.data_ptr()")
        self.emit(f"{name}({', '.join(args)})")
        if own:
            self.emit(f"del {', '.join(own)}")

    def gpu_pointer(self, value: Value) -> str:
        """The address of a value on the GPU; that of a copy for what lies on the CPU. For numbers nothing waits."""
        if value.device == self.gpu:
            return self.pointer(value)
        if value not in self.copies:
            assert self.gpu is not None
            name, device = self.name(value), constant_text(self.gpu)
            made = f"{name}.to({device})"  # indices, which may lie there too
            if not value.shape:
                made = f"torch.full((), {name}.item(), dtype={value.dtype}, device={device})"
            self.copies[value] = self.names.fresh(f"{name}_gpu")
            self.emit(f"{self.copies[value]} = {made}")
        return f"{self.copies[value]}.data_ptr()"

    def pointer(self, value: Value) -> str:
        """The address of a value; kept in a variable where several launches need it."""
        text, memory = f"{self.name(value)}.data_ptr()", self.memory(value)
        if self.launched[memory] == 1:
            return text
        if memory not in self.pointers:
            self.pointers[memory] = self.names.fresh(f"{self.name(value)}_ptr")
            self.emit(f"{self.pointers[memory]} = {text}")
        return self.pointers[memory]

    def call(self, step: Call) -> None:
        extern = step.extern
        op = OUT_VARIANTS[extern.op] if step.into else extern.op
        new = dict(extern.mutates)
        args = [self.argument(a, new) for a in extern.args]
        args += [f"{k}={self.argument(a, new)}" for k, a in extern.kwargs]
        if step.into:
            args += [f"out={self.name(v)}" for v in extern.out if v is not None]
        text = f"{self.operator(op)}({', '.join(args)})"
        self.lines += origin_comments(tuple(o for o in extern.origins if o.file)[:1], "#")
        if step.into or not (extern.scalars or any(v is not None for v in extern.out)):
            self.emit(text)
        else:
            self.results(extern, text)
        self.derive()

    def operator(self, op: str) -> str:
        if op not in self.operators:
            self.operators[op] = self.names.fresh(op.removesuffix(".default").replace(".", "_"))
        return self.operators[op]

    def results(self, extern: Extern, text: str) -> None:
        """Name what an operator returned, after it was checked, and the sizes and numbers among it."""
        first, places, name = next(iter(extern.out), None), [text], ""
        if len(extern.out) > 1:
            name = self.names.fresh("results")
            self.emit(f"{name} = {self.tool('leaves')}({text})")
            places = [f"{name}[{k}]" for k in range(len(extern.out))]
        elif extern.scalars and first is not None:
            places = [self.name(first)]
            self.emit(f"[{places[0]}] = {self.tool('leaves')}({text})")
        both = list(zip(extern.out or (None,), places, strict=True))
        found = {value: place for value, place in both if value is not None}
        self.bind_scalars(extern, found, [place for value, place in both if value is None])
        for value, place in found.items():
            self.emit(f"{self.hold(value)} = {self.checked(value, place, extern.op)}")
        if name:
            self.emit(f"del {name}")

    def bind_scalars(self, extern: Extern, found: Mapping[Value, str], numbers: Sequence[str]) -> None:
        """A symbol is read as a size of a result, or is a number among them. Code counts on its bounds: it checks."""
        left = list(numbers)
        for size in extern.scalars:
            texts = [(f"{where}.shape", value.shape) for value, where in found.items()]
            texts += [(f"{where}.stride()", value.strides) for value, where in found.items()]
            places = [f"{text}[{sizes.index(size.index())}]" for text, sizes in texts if size.index() in sizes]
            at = places[0] if places else left.pop(0)
            low = None if size.lo <= (0 if places else UNBOUNDED) else size.lo
            if (low, size.hi) != (None, None):
                at = f'{self.tool("within")}({at}, {low}, {size.hi}, "{extern.op}")'
            self.bind_size(size, at)

    def checked(self, value: Value, text: str, op: str) -> str:
        strides = "None" if value in self.free_strides else tuple_of(value.strides)
        where = f"{tuple_of(value.shape)}, {strides}, {value.dtype}"
        return f'{self.tool("checked")}({text}, {where}, "{op}")'

    def argument(self, arg: Arg, new: Mapping[Value, Value]) -> str:
        """An argument or output; `new` has the new versions of the values that the op writes."""
        match arg:
            case View():
                return self.view(replace(arg, value=new.get(arg.value, arg.value)))
            case Item(view):
                return f"{self.view(view)}.item()"
            case Index():
                return str(arg)
            case tuple(items):
                return f"[{', '.join(self.argument(item, new) for item in items)}]"
            case _:
                return constant_text(arg)

    def view(self, view: View) -> str:
        if view.complex:
            return f"{self.tool('as_complex')}({self.view(replace(view, dtype=None))}, {view.dtype})"
        if view.is_full:
            return self.name(view.value)
        window = self.window(view)
        if window in self.windows:
            return self.windows[window]
        where = f"{tuple_of(view.shape)}, {tuple_of(view.strides)}, {view.offset}"
        whole = self.name(view.value)
        whole = whole if view.dtype in (None, view.value.dtype) else f"{whole}.view({view.dtype})"
        text = f"{self.tool('reinterpret')}({whole}, {where})"
        constant = view.value in self.constants
        if self.viewed[window] < (1 if constant else 2):
            return text
        self.windows[window] = name = self.names.fresh(f"{self.name(view.value)}_view")
        if constant:
            self.bound.append(f"{name} = {text}")
        else:
            self.holders[self.memory(view.value)].append(name)
            self.emit(f"{name} = {text}")
        return name

    def made_input(self, given: Input, ranges: Mapping[Value, tuple[str, Index]]) -> str:
        """An expression for an input that the script makes up."""
        value = given.value
        if value is None:
            return "None" if given.size is None else str(count_of(given.size.index()))
        if given.number:
            return "True" if value.dtype == torch.bool else "1.5"
        made = random_tensor(value, value.device, ranges)
        return f"torch.view_as_complex({made})" if given.complex else made


def gpu_of(plan: Plan) -> torch.device | None:
    """The GPU that a plan's values lie on; None if there is none."""
    values = [p.value for k in plan.kernels for p in k.params]
    values += [s.value for s in plan.steps if isinstance(s, Allocate)]
    values += [i.value for i in plan.inputs if i.value is not None]
    return next((v.device for v in values if v.device.type == "cuda"), None)


def _inner_views(plan: Plan) -> Iterator[View]:
    """The views that steps name. Those among outputs are the caller's own."""
    for step in plan.steps:
        match step:
            case Allocate(value, Value() as upon, None):
                yield View(upon, value.shape, value.strides, ZERO)
            case Call(extern):
                yield from views(extern)
            case Copy(into, source):
                yield from (into, source)


def _free_strides(plan: Plan, shown: Container[int]) -> frozenset[Value]:
    """Values that nothing addresses by their strides: they are read whole, by operators or by the user."""
    found: set[Value] = set()
    others: set[Value] = set()
    for position, output in enumerate(plan.outputs):
        view = output.view if isinstance(output, Item) else output
        if isinstance(view, View):
            (found if view is output and view.is_full and position in shown else others).add(view.value)
    for step in plan.steps:
        match step:
            case Allocate(_, upon) if upon is not None:
                others.add(upon)
            case Launch(_, args):
                others.update(args)
            case Call(extern):
                if extern.op in _FOR_VIEWS:
                    others.update(value for value in extern.out if value is not None)
                # whether it means the same whatever strides its arguments have; an operator of users may not
                takes_any = extern.op.startswith("aten.") and "as_strided" not in extern.op and not extern.mutates
                for view in views(extern):
                    (found if takes_any and view.is_full else others).add(view.value)
            case Copy(into, source):
                others.update((into.value, source.value))
    return frozenset(found - others)


def kernel_scripts(plan: Plan, kernels: Kernels) -> Iterator[tuple[str, str]]:
    """For each kernel of a plan a program that times it: (file, text), with random arguments as of its first launch."""
    ranges = index_ranges(plan)
    first = {step.kernel: step for step in reversed(plan.steps) if isinstance(step, Launch)}
    for kernel in plan.kernels:
        built, launch = kernels[kernel.name], first[kernel.name]
        if isinstance(built, TritonKernel):
            name, device = built.name, torch.device("cuda")
            load = f'gpu_kernel("{name}", {", ".join([programs_text(built), *fits_text(built)])})'
            spaces = [p for p in built.params if isinstance(p, Workspace)]
        else:
            name, device = built.symbol, torch.device("cpu")
            load, spaces = f'kernel("{built.library}", "{name}", {len(launch.args) + len(launch.sizes)})', []
        tensors = [random_tensor(value, device, ranges) for value in launch.args]
        tensors += [f'torch.zeros({count_of(s.nbytes)}, dtype=torch.uint8, device="cuda")' for s in spaces]
        sizes = ", ".join(str(count_of(n)) for n in launch.sizes)
        places = "\n".join(f"    {origin}: {origin.op}" for origin in kernel.origins)
        made, nbytes = "\n".join(f"        {tensor}," for tensor in tensors), facts_of(kernel).bytes
        text = _KERNEL_FRAME.format(name=name, load=load, places=places, tensors=made, sizes=sizes, nbytes=nbytes)
        yield f"kernel_{name}.py", text


def index_ranges(plan: Plan) -> Mapping[Value, tuple[str, Index]]:
    """Integer values whose elements are checked to lie ``below`` a size, with the smallest such size known, or that
    are ``ends`` of groups of so many rows.

    Found in kernels (`Checked` loads, products of groups) and in calls."""
    found: dict[Value, tuple[str, Index]] = {}
    for value, word, size in _ranges(plan):
        if value not in found or is_nonnegative(found[value][1] - size):
            found[value] = word, size
    return found


def _ranges(plan: Plan) -> Iterator[tuple[Value, str, Index]]:
    kernels = {k.name: ([param.value for param in k.params], tuple(_ranges_of(k))) for k in plan.kernels}
    for step in plan.steps:
        if isinstance(step, Launch):
            params, ranges = kernels[step.kernel]
            given = dict(zip(params, step.args, strict=True))
            yield from ((given[value], word, size) for value, word, size in ranges if value in given)
        elif isinstance(step, Call) and step.extern.op == "aten.embedding.default":
            table, index = step.extern.args[:2]
            if isinstance(table, View) and isinstance(index, View):
                yield index.value, "below", table.shape[0]
        elif isinstance(step, Call) and (product := product_of(step.extern)) is not None and product.ends is not None:
            yield product.ends.value, "ends", product.left.shape[0 if product.rows_in_groups else 1]


def _ranges_of(kernel: Kernel) -> Iterator[tuple[Value, str, Index]]:
    for stage in walk_stages(kernel.body):
        if isinstance(stage, Contract) and stage.ends is not None:
            yield stage.ends.value, "ends", stage.left.shape[0 if stage.rows_in_groups else 1]
    for expr in walk_exprs(kernel.body):
        for node in expr.walk():
            if isinstance(node, Checked):
                integers = (load for load in node.arg.loads() if not load.dtype.is_floating_point)
                yield from ((load.value, "below", node.size) for load in integers)


def random_tensor(value: Value, device: torch.device, ranges: Mapping[Value, tuple[str, Index]]) -> str:
    """The text of a call that makes up a tensor like `value`; indices stay within their ranges."""
    shape, strides = (tuple([count_of(n) for n in sizes]) for sizes in (value.shape, value.strides))
    word, size = ranges.get(value, ("", ZERO))
    limit = f", {word}={count_of(size)}" if word else ""
    place = "" if device.type == "cpu" else f', device="{device}"'
    return f"random_tensor({shape}, {strides}, {value.dtype}{limit}{place})"


def argument_alignment(
    plan: Plan, kernels: Mapping[str, TritonKernel], inputs: Iterable[Value] = ()
) -> dict[str, frozenset[int]]:
    """The positions of the arguments of each kernel, by its name, that surely lie at multiples of 16 bytes at all its
    launches. `inputs` are those that the wrapper aligns; what an operator returns may be a view of anything."""
    found: dict[str, frozenset[int]] = {}
    known = set(inputs)
    for step in plan.steps:
        if isinstance(step, Allocate) and (step.upon is None or step.upon in known):
            start = (step.offset or ZERO) * step.value.dtype.itemsize
            known |= {step.value} if exact_quotient(start, const(16)) is not None else set()
        if isinstance(step, Launch) and step.kernel in kernels:
            params = kernels[step.kernel].params
            pointers = [at for at, param in enumerate(params) if isinstance(param, Pointer)]
            aligned = {at for at, value in zip(pointers, step.args, strict=True) if value in known}
            aligned |= {at for at, param in enumerate(params) if isinstance(param, Workspace)}
            found[step.kernel] = found.get(step.kernel, frozenset(aligned)) & aligned
    return found


def inputs_to_align(plan: Plan) -> tuple[Value, ...]:
    """Inputs that a wrapper may replace by an aligned copy: kernels read them, and nothing writes or returns them."""
    read = {v for step in plan.steps if isinstance(step, Launch) for v in step.args}
    written = {step.upon for step in plan.steps if isinstance(step, Allocate)}
    written |= {step.into.value for step in plan.steps if isinstance(step, Copy)}
    shown = {output.value for output in plan.outputs if isinstance(output, View)}
    given = [i.value for i in plan.inputs if i.value is not None and not i.number]
    return tuple(v for v in given if v in read and v not in written | shown and v.device.type != "cpu")


def programs_text(kernel: TritonKernel) -> str:
    """How many programs a launch runs: ``lambda s0, XBLOCK: -(-s0 // XBLOCK)``; not over a block size ``PROGRAMS``, if
    that is not 0: they take tiles until all are done."""
    blocks = dict.fromkeys(name for _, config in kernel.variants for name, _ in config.blocks)
    text = " * ".join(text for text in map(_count_text, kernel.grid) if text != "1") or "1"
    shared = "PROGRAMS" in blocks and any(axis.block for axis in kernel.grid)
    return _function_of(kernel, blocks, f"min({text}, PROGRAMS or {text})" if shared else text)


def _count_text(axis: GridAxis) -> str:
    extent = str(axis.extent)
    extent = extent if extent.isalnum() else f"({extent})"
    if axis.block is None:
        return extent
    count = f"-(-{extent} // {axis.block})"
    return f"({count} + {axis.more})" if axis.more else count


def _function_of(kernel: TritonKernel, blocks: Iterable[str], body: str) -> str:
    """A function of the symbols of a kernel's sizes, in the order of its arguments, and of blocks."""
    names = [*(param.size.name for param in kernel.params if isinstance(param, SizeArgument)), *blocks]
    return f"lambda {', '.join(names)}: {body}" if names else f"lambda: {body}"


def fits_text(kernel: TritonKernel) -> list[str]:
    """Whether 32 bits are enough: ``fits=lambda s0, s1: s0*s1 < 2147418112``; nothing where that is known."""
    small = " and ".join(f"{bound} < {WITHIN_32_BITS}" for bound in kernel.below)
    return [f"fits={_function_of(kernel, (), small)}"] if small else []


def updated_text(tree: Kernel, kernel: TritonKernel) -> list[str]:
    """The bytes of each argument that a launch changes from what it finds there, so that running it again
    would change it again: ``{2: lambda s0: 4 * s0}``; nothing if there are none."""
    changing = {p.value.name for p in tree.params if (p.read and p.written) or p.alias is not None}
    changing |= {s.value.name for s in walk_stages(tree.body) if isinstance(s, Store) and s.combine != "set"}
    pointers = [at for at, param in enumerate(kernel.params) if isinstance(param, Pointer)]
    values = {at: param.value for at, param in zip(pointers, tree.params, strict=True) if param.value.name in changing}
    entries = [f"{at}: {_function_of(kernel, (), str(value.nbytes))}" for at, value in values.items()]
    return [f"{{{', '.join(entries)}}}"] if entries else []

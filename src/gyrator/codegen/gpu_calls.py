"""How a wrapper calls the GPU kernels of a plan: how many programs run, what of their arguments is known."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from gyrator.codegen.triton_source import GridAxis, Pointer, SizeArgument, TritonKernel, Workspace
from gyrator.ir.expr import Value
from gyrator.ir.program import View, views
from gyrator.ir.tree import Kernel, Store, walk_stages
from gyrator.schedule.plan import Allocate, Call, Copy, Launch, Plan


def argument_alignment(
    plan: Plan, kernels: Mapping[str, TritonKernel], inputs: Iterable[Value] = ()
) -> dict[str, frozenset[int]]:
    """The positions of the arguments of each kernel, by its name, that surely lie at multiples of 16 bytes at all its
    launches. `inputs` are those that the wrapper aligns; what an operator returns may be a view of anything."""
    found: dict[str, frozenset[int]] = {}
    known = set(inputs)
    for step in plan.steps:
        if isinstance(step, Allocate) and (step.upon is None or step.upon in known):
            known.add(step.value)
        if not isinstance(step, Launch) or step.kernel not in kernels:
            continue
        params = kernels[step.kernel].params
        pointers = [at for at, param in enumerate(params) if isinstance(param, Pointer)]
        aligned = {at for at, value in zip(pointers, step.args, strict=True) if value in known}
        aligned |= {at for at, param in enumerate(params) if isinstance(param, Workspace)}
        found[step.kernel] = found.get(step.kernel, frozenset(aligned)) & aligned
    return found


def inputs_to_align(plan: Plan) -> tuple[Value, ...]:
    """The inputs that a wrapper may replace by an aligned copy: kernels read them, and nothing writes into
    them or returns them."""
    read = {v for step in plan.steps if isinstance(step, Launch) for v in step.args}
    kept = {value for step in plan.steps for value in _in_place(step)}
    kept |= {output.value for output in plan.outputs if isinstance(output, View)}
    given = [i.value for i in plan.inputs if i.value is not None and not i.number]
    return tuple(v for v in given if v in read and v not in kept and v.device.type != "cpu")


def _in_place(step: object) -> Iterator[Value]:
    match step:
        case Allocate(_, upon) if upon is not None:
            yield upon
        case Copy(into, _):
            yield into.value
        case Call(extern) if extern.mutates:
            yield from (view.value for view in views(extern))


# -- texts ---------------------------------------------------------------------------------------------------
def programs_text(kernel: TritonKernel) -> str:
    """How many programs a launch runs: ``lambda s0, XBLOCK: -(-s0 // XBLOCK)``."""
    blocks = dict.fromkeys(name for _, config in kernel.variants for name, _ in config.blocks)
    counts = [_count_text(axis) for axis in kernel.grid]
    return _lambda([*size_names(kernel), *blocks], " * ".join(text for text in counts if text != "1") or "1")


def _lambda(names: Sequence[str], body: str) -> str:
    return f"lambda {', '.join(names)}: {body}" if names else f"lambda: {body}"


def _count_text(axis: GridAxis) -> str:
    extent = str(axis.extent)
    if axis.block is None:
        return extent if axis.extent.value is not None else f"({extent})"
    inner = extent if extent.isalnum() else f"({extent})"
    count = f"-(-{inner} // {axis.block})"
    return f"({count} + {axis.more})" if axis.more else count


def size_names(kernel: TritonKernel) -> list[str]:
    """The symbols of a kernel's sizes, in the order of its arguments."""
    return [param.size.name for param in kernel.params if isinstance(param, SizeArgument)]


def updated_text(tree: Kernel, kernel: TritonKernel) -> str:
    """The bytes of each argument that a launch changes from what it finds there, so that running it again
    would change it again: ``{2: lambda s0: 4 * s0}``; empty if there are none."""
    changing = {p.value.name for p in tree.params if p.read and p.written}
    changing |= {p.value.name for p in tree.params if p.alias is not None}
    changing |= {s.value.name for s in walk_stages(tree.body) if isinstance(s, Store) and s.combine != "set"}
    pointers = [at for at, param in enumerate(kernel.params) if isinstance(param, Pointer)]
    values = {at: param.value for at, param in zip(pointers, tree.params, strict=True) if param.value.name in changing}
    entries = [f"{at}: {_lambda(size_names(kernel), str(value.nbytes))}" for at, value in values.items()]
    return f"{{{', '.join(entries)}}}" if entries else ""

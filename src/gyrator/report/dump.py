"""The option `dump`: every stage as a numbered file of the session's folder. Graphs are Python programs that run alone
on random inputs and print their time; nests, kernels and plans are text."""

import re
import shutil
from collections.abc import Iterator, Sequence
from operator import attrgetter
from textwrap import indent
from types import ModuleType

import torch
from torch import fx

from gyrator.autograd.partition.plan import JointGraph, Partition
from gyrator.cache.store import Entry
from gyrator.ir.program import Extern
from gyrator.ir.text import kernel_text, node_text
from gyrator.ir.volume import UNKNOWN_SIZE
from gyrator.origin import origin_of
from gyrator.report.data import GraphRecord
from gyrator.report.diagram import diagram
from gyrator.runtime.gpu_kernels import DESCRIPTION
from gyrator.runtime.load import WRAPPER
from gyrator.schedule.plan import Allocate, Call, Copy, Free, Join, Launch, Step
from gyrator.schedule.products import defines_of, nodes_of
from gyrator.schedule.stage import Scheduled
from gyrator.session import DumpWriter
from gyrator.torch_compat import number_behind, qualified_name

RUNNER = "gyrator.runtime.standalone.run_graph"


def dump_graph(dump: DumpWriter, name: str, gm: fx.GraphModule, values: Sequence[object]) -> None:
    """Write an FX graph as a program; `values` are fake tensors, sizes and numbers, one per placeholder."""
    constants = dict(gm.state_dict())
    saved = ""
    if constants:
        saved = dump.write(f"{name}_constants", "", suffix="pt").name
        torch.save(constants, dump.folder / saved)
    dump.write(name, graph_program(name, gm, values, saved), suffix="py")


def dump_partition(dump: DumpWriter, joint: JointGraph, partition: Partition) -> None:
    """Write the joint graph as a program, and what the partition saves and recomputes, with the reasons."""
    values = [node.meta.get("val") for node in joint.graph.nodes if node.op == "placeholder"]
    if all(node.op != "get_attr" for node in joint.graph.nodes):
        dump_graph(dump, "joint", fx.GraphModule({}, joint.graph), values)
    else:  # its bodies are written with the halves
        dump.write("joint", str(joint.graph))
    lines = [f"# saved: {partition.saved_bytes} bytes; all that backward reads: {partition.default_bytes} bytes"]
    lines += [f"{node.name}: {reason}   # {origin_of(node)}" for node, reason in partition.reasons.items()]
    dump.write("partition", "\n".join(lines))


def dump_compiled(dump: DumpWriter, scheduled: Scheduled, record: GraphRecord, entry: Entry) -> None:
    """Write what became of a lowered program: groups, kernels, plan, wrapper with its libraries, and the picture."""
    dump.write("nests_after_fusion", groups_text(scheduled))
    plan = scheduled.plan
    dump.write("kernel_plans", "\n\n".join(kernel_text(kernel) for kernel in plan.kernels))
    dump.write("plan", "\n".join([f"plan {plan.name}:", *(f"  {_step_text(step)}" for step in plan.steps)]))
    on_gpu = any(kernel.tiling is not None for kernel in plan.kernels)
    dump.write("kernels", "\n".join(kernel.source for kernel in record.kernels), suffix="txt" if on_gpu else "cpp")
    for path in entry.folder.iterdir():
        if path.suffix in (".so", ".bin", ".cubin") or path.name == DESCRIPTION:
            shutil.copyfile(path, dump.folder / path.name)
    dump.write("wrapper", entry.text(WRAPPER), suffix="py")
    dump.write("graph", diagram(record), suffix="svg")


def graph_program(
    name: str, gm: fx.GraphModule, values: Sequence[object], saved: str = "", given: str = "", runner: str = RUNNER,
    more: str = "",
) -> str:  # fmt: skip
    """An FX graph as a program that stands alone. Files beside it: `saved` has its constants, `given` its
    inputs, which are random if there is none. `runner` is the function that runs it, with the arguments `more`."""
    imports: dict[str, None] = dict.fromkeys(["from pathlib import Path", "", "import torch", ""])
    body = "\n\n".join(_classes("Graph", gm, "", imports))
    if "torch.ops.gyrator." in body:
        imports["import gyrator.autograd.ops"] = None
    imports["from gyrator.runtime.standalone import random_tensor"] = None
    module, _, function = runner.rpartition(".")
    imports[f"from {module} import {function}"] = None
    load = f"CONSTANTS = {_load_text(saved)}\n\n\n" if saved else ""
    made = "\n".join(["[", *(f"        {_input_text(value)}," for value in values), "    ]"])
    return (
        f'"""The graph {name!r}, as a program that runs by itself: with `{function}`."""\n\n'
        + "\n".join(imports)
        + f"\n\n{load}{body}\n\ndef inputs():\n    return {_load_text(given) if given else made}\n\n\n"
        + f'if __name__ == "__main__":\n    {function}(Graph(), inputs{more})\n'
    )


def _load_text(file: str) -> str:
    return f'torch.load(Path(__file__).parent / "{file}")'


def _classes(name: str, gm: fx.GraphModule, path: str, imports: dict[str, None]) -> Iterator[str]:
    code = gm.graph.python_code("self", verbose=True)
    for alias, target in code.globals.items():
        if re.search(rf"\b{re.escape(alias)}\b", code.src) and alias != "torch":
            imports[_import_text(alias, target)] = None
    fields = []
    for node in gm.graph.find_nodes(op="get_attr"):
        target = str(node.target)
        found = attrgetter(target)(gm)
        if isinstance(found, fx.GraphModule):
            inner = f"{name}_{target.replace('.', '_')}"
            yield from _classes(inner, found, f"{path}{target}.", imports)
            fields.append(f"self.{target} = {inner}()")
        elif isinstance(found, torch.Tensor):
            fields.append(f'self.{target} = CONSTANTS["{path}{target}"]')
    setup = "\n        ".join(["super().__init__()", *dict.fromkeys(fields)])
    src = "\n".join(f"    {line}" if line.strip() else "" for line in code.src.strip().splitlines())
    yield f"class {name}(torch.nn.Module):\n    def __init__(self):\n        {setup}\n\n{src}\n"


def _import_text(alias: str, target: object) -> str:
    if isinstance(target, ModuleType):
        return f"import {target.__name__} as {alias}"
    if isinstance(target, float):
        return f'{alias} = float("{target}")'
    if target is type(None):
        return f"{alias} = type(None)"
    module, _, name = (qualified_name(target) or f"{type(target).__module__}.{alias}").rpartition(".")
    return f"from {module} import {name} as {alias}"


def _input_text(value: object) -> str:
    if isinstance(value, torch.Tensor):
        shape, strides = ([_number(n) for n in sizes] for sizes in (value.shape, value.stride()))
        if (known := number_behind(value)) is not None:
            return f"torch.tensor({_number(known)}, dtype={value.dtype})"
        device = "" if value.device.type == "cpu" else f', device="{value.device.type}"'
        return f"random_tensor({tuple(shape)}, {tuple(strides)}, {value.dtype}{device})"
    return str(_number(value)) if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) else repr(value)


def _number(size: int | torch.SymInt | torch.SymFloat | torch.SymBool) -> int | float | bool:
    if isinstance(size, (int, float, bool)):
        return size
    return size.node.hint if size.node.has_hint() else UNKNOWN_SIZE


def groups_text(scheduled: Scheduled) -> str:
    """The program's nests by the kernel that they became part of, with the user's lines."""
    launches = [step for step in scheduled.plan.steps if isinstance(step, Launch)]
    kernels = {value: step.kernel for step in reversed(launches) for value in step.args}  # the first writes it
    parts = []
    for unit in scheduled.units:
        name = next((kernels[value] for value in defines_of(unit) if value in kernels), "of several")
        title = f"call {unit.op}" if isinstance(unit, Extern) else f"kernel {name}"
        texts = "\n".join(map(node_text, nodes_of(unit)))
        parts.append(f"{title}\n{indent(texts, '  ')}")
    return "\n\n".join(parts)


def _step_text(step: Step) -> str:
    match step:
        case Allocate(value, upon, offset, needs):
            where = "in place of" if offset is None else f"{offset} elements into"
            asked = "" if needs is None else f" if it has {needs} bytes, else fresh"
            return f"allocate {value.name}  {'fresh' if upon is None else f'{where} {upon.name}{asked}'}"
        case Launch(kernel, args, sizes):
            return f"launch {kernel}({', '.join([*(value.name for value in args), *map(str, sizes)])})"
        case Call(extern, into):
            return f"call {node_text(extern).splitlines()[-1].strip()}{'  into its result' if into else ''}"
        case Copy(into, source):
            return f"copy {source.value.name} into {into.value.name}"
        case Join(whole, parts, _):
            return f"join {', '.join(part.name for part in parts)} as {whole.name}"
        case Free(value):
            return f"free {value.name}"

"""The option `benchmark_kernel`: for each kernel a program that times it on random inputs."""

from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from gyrator.codegen.gpu_calls import programs_text
from gyrator.codegen.ranges import index_ranges, random_tensor
from gyrator.codegen.triton_source import TritonKernel, Workspace
from gyrator.codegen.wrapper import BuiltKernel
from gyrator.ir.volume import count_of
from gyrator.metrics.kernels import facts_of
from gyrator.schedule.plan import Launch, Plan

_FRAME = Path(__file__).with_name("kernel_script.txt").read_text("utf-8")


def kernel_scripts(plan: Plan, kernels: Mapping[str, BuiltKernel | TritonKernel]) -> Iterator[tuple[str, str]]:
    """(file, text) for each kernel of a plan, with the arguments of its first launch."""
    ranges = index_ranges(plan)
    first = {step.kernel: step for step in reversed(plan.steps) if isinstance(step, Launch)}
    for kernel in plan.kernels:
        built, launch = kernels[kernel.name], first[kernel.name]
        count = len(launch.args) + len(launch.sizes)
        if isinstance(built, TritonKernel):
            name, device = built.name, torch.device("cuda")
            load = f'gpu_kernel("{name}", {programs_text(built)})'
            spaces = [p for p in built.params if isinstance(p, Workspace)]
        else:
            name, device = built.symbol, torch.device("cpu")
            load, spaces = f'kernel("{built.library}", "{name}", {count})', []
        tensors = [random_tensor(value, device, ranges) for value in launch.args]
        tensors += [f'torch.zeros({count_of(s.nbytes)}, dtype=torch.uint8, device="cuda")' for s in spaces]
        sizes = ", ".join(str(count_of(n)) for n in launch.sizes)
        places = "\n".join(f"    {origin}: {origin.op}" for origin in kernel.origins)
        made, nbytes = "\n".join(f"        {tensor}," for tensor in tensors), facts_of(kernel).bytes
        text = _FRAME.format(name=name, load=load, places=places, tensors=made, sizes=sizes, nbytes=nbytes)
        yield f"kernel_{name}.py", text

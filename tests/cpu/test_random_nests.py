"""Random programs through the scheduler and the C++ path, against the reference interpreter.

A plan is first run by the interpreter of loop trees, so that a failure names the stage: the scheduler, or the
printer of kernels. Kernels of several programs are built together.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random as Rng

import pytest
import torch
from torch import Tensor

from gyrator.cache.store import Store
from gyrator.codegen.cpp import CppKernel, print_kernel
from gyrator.codegen.wrapper import BuiltKernel, print_wrapper
from gyrator.config import Config
from gyrator.ir.interp import Result, Run, run_program
from gyrator.ir.text import kernel_text
from gyrator.runtime.build import start_build
from gyrator.runtime.load import Runtime, library_file, load
from gyrator.runtime.pool import Pool
from gyrator.runtime.toolchain import find_toolchain
from gyrator.schedule.plan import Plan
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.random_programs import Case, Limits, random_case
from tests.run_plan import run_plan
from tests.strategies import compare, fresh_arguments

# Lowering calls torch's sort, so kernels never sort.
LIMITS = Limits(roots=(*["pointwise"] * 3, "reduce", "reduce", "scan", "scatter"), long=True)
CONFIG = Config(numerics="eager", check="every", threads=2)
PROGRAMS, AT_ONCE = 24, 12


def test_scheduled_and_built_programs_give_what_the_interpreter_gives(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """``--fuzz N`` runs N programs, from ``--fuzz-seed`` on."""
    first = request.config.getoption("--fuzz-seed")
    seeds = range(first, first + (request.config.getoption("--fuzz") or PROGRAMS))
    for start in range(0, len(seeds), AT_ONCE):
        cases = [random_case(Rng(seed), LIMITS) for seed in seeds[start : start + AT_ONCE]]
        check_programs(cases, tmp_path)


def check_programs(cases: Sequence[Case], folder: Path) -> None:
    """Schedule, interpret, build and run every program."""
    plans = [scheduled(case) for case in cases]
    runs = [run_program(case.program, case.arguments) for case in cases]
    for case, plan, run in zip(cases, plans, runs, strict=True):
        arguments = fresh_arguments(case)
        judge(case, run, run_plan(plan, arguments), arguments, plan)
    for case, plan, run, call in zip(cases, plans, runs, built(plans, folder), strict=True):
        arguments = fresh_arguments(case)
        judge(case, run, call(list(arguments)), arguments, plan)


def scheduled(case: Case) -> Plan:
    with Session(CONFIG, torch.device("cpu"), "random") as session:
        return schedule(case.program, session).plan


def judge(case: Case, run: Run, outputs: Sequence[Result], arguments: Sequence[Tensor | int], plan: Plan) -> None:
    inputs = [i.value for i in case.program.inputs]
    updated = [arguments[inputs.index(u.target)] for u in case.program.updates]
    try:
        compare(case, [*run.outputs, *run.updates], [*outputs, *updated], run.values)
    except AssertionError as difference:
        kernels = "\n".join(kernel_text(k) for k in plan.kernels)
        raise AssertionError(f"{difference}\nsizes {case.sizes}\n{kernels}") from None


def built(plans: Sequence[Plan], folder: Path) -> list:  # type: ignore[type-arg]
    """A callable for each plan; all kernels are built at once."""
    printed: dict[str, CppKernel] = {k.name: print_kernel(k) for plan in plans for k in plan.kernels}
    with Session(CONFIG, torch.device("cpu"), "random") as session:
        store = Store(folder / "store", "kernels")
        build = start_build(list(printed.values()), find_toolchain(CONFIG), store, session, {})
        for name, path in build.wait().items():
            if not (folder / library_file(name)).exists():  # a loaded library must not be written over
                shutil.copy(path, folder / library_file(name))
    runtime = Runtime(folder, Pool(), {}, CONFIG.threads)
    calls = []
    for plan in plans:
        symbols = {k.name: printed[k.name].name for k in plan.kernels}
        kernels = {name: BuiltKernel(build.library_of[symbol], symbol) for name, symbol in symbols.items()}
        calls.append(load(print_wrapper(plan, kernels), runtime))
    return calls

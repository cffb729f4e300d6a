"""Random programs through the scheduler for GPUs and the printer, in Triton's interpreter, against the
reference interpreter."""

from __future__ import annotations

from random import Random as Rng

from gyrator.ir.interp import run_program
from tests.random_programs import Limits, random_case
from tests.run_plan import run_plan
from tests.strategies import compare, fresh_arguments
from tests.triton.harness import gpu_plan, on_gpu, runner
from tests.triton.worker import Worker

INTERPRETED = [*range(10), *range(11, 16), *range(400, 411)]  # 10 takes Triton's interpreter ten minutes
PROGRAMS = 16
LIMITS = Limits(roots=("pointwise", "pointwise", "reduce", "scatter"))
WITH_SCANS = Limits(roots=("pointwise", "reduce", "scan", "scatter"))  # of float64 Triton interprets no cummax


def check(seed: int, limits: Limits, interpreter: Worker | None) -> None:
    case = random_case(Rng(seed), limits)
    program = on_gpu(case.program)
    expected = run_program(case.program, case.arguments)
    arguments = fresh_arguments(case)
    plan = gpu_plan(program)
    if interpreter is None:
        results = run_plan(plan, arguments)
    else:
        results = run_plan(plan, arguments, launch=runner(interpreter))
    inputs = [i.value for i in program.inputs]
    updates = [arguments[inputs.index(u.target)] for u in program.updates]
    compare(case, [*expected.outputs, *expected.updates], [*results, *updates], expected.values)


def test_random_programs_give_what_the_reference_interpreter_gives(interpreter: Worker) -> None:
    for seed in INTERPRETED:
        check(seed, LIMITS, interpreter)


def test_loop_trees_for_a_gpu_mean_the_same_without_triton() -> None:
    for seed in range(200, 200 + 2 * PROGRAMS):
        check(seed, WITH_SCANS, None)

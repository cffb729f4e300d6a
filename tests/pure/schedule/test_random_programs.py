"""Whatever the program, every pass keeps what it means, and so does the plan that is made of it."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings

from gyrator.config import Config
from gyrator.ir.check import LOWERED, PREDICATED, SCHEDULED
from gyrator.ir.interp import run_program
from gyrator.ir.program import Program
from gyrator.ir.simplify import simplifier, simplify
from gyrator.schedule.dce import remove_dead
from gyrator.schedule.inline import inline
from gyrator.schedule.predicate import predicate
from gyrator.schedule.scatter import scatters_to_selects
from gyrator.schedule.split import split_reductions
from gyrator.schedule.stage import schedule
from gyrator.session import Session
from tests.random_programs import Case, Limits
from tests.run_plan import run_plan
from tests.strategies import cases, check_pass, compare, fresh_arguments

EXACT = simplifier(exact_rounding=True)


def test_doing_nothing_keeps_meaning() -> None:
    check_pass(lambda p: p, examples=20)


def test_dead_code() -> None:
    check_pass(remove_dead, leaves=LOWERED)


def test_simplify() -> None:
    check_pass(lambda p: simplify(p, EXACT))


def test_scatters_to_selects() -> None:
    check_pass(scatters_to_selects)


def test_inline() -> None:
    check_pass(lambda p: inline(p, EXACT))


def test_predicate() -> None:
    check_pass(lambda p: predicate(p, EXACT), leaves=PREDICATED)


def test_split_reductions() -> None:
    check_pass(lambda p: predicate(split_reductions(remove_dead(p)), EXACT), leaves=PREDICATED)


def test_all_passes_in_order() -> None:
    def all_passes(program: Program) -> Program:
        program = simplify(remove_dead(program), EXACT)
        program = inline(scatters_to_selects(program), EXACT)
        return remove_dead(predicate(split_reductions(program), EXACT))

    check_pass(all_passes, leaves=SCHEDULED)


# Lowering calls torch's sort, so kernels never sort.
SCHEDULED_ROOTS = Limits(roots=(*["pointwise"] * 3, "reduce", "reduce", "scan", "scatter"))
CONFIG = Config(numerics="eager", check="every")


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(SCHEDULED_ROOTS))
def test_a_plan_gives_what_its_program_gives(case: Case) -> None:
    """Fusion, loops, memory and updates of inputs: the plan's kernels are interpreted."""
    with Session(CONFIG, torch.device("cpu"), "random") as session:
        plan = schedule(case.program, session).plan
    arguments = fresh_arguments(case)
    run = run_program(case.program, case.arguments)
    outputs = run_plan(plan, arguments)
    inputs = [i.value for i in case.program.inputs]
    updated = [arguments[inputs.index(u.target)] for u in case.program.updates]
    compare(case, [*run.outputs, *run.updates], [*outputs, *updated], run.values)

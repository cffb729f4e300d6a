"""Every pass on programs gives a program that means the same, whatever the program."""

from __future__ import annotations

from gyrator.ir.check import LOWERED, PREDICATED, SCHEDULED
from gyrator.ir.program import Program
from gyrator.schedule.dce import remove_dead
from gyrator.schedule.inline import inline
from gyrator.schedule.predicate import predicate
from gyrator.schedule.scatter import scatters_to_selects
from gyrator.schedule.simplify import simplifier, simplify
from gyrator.schedule.split import split_reductions
from tests.strategies import check_pass

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
    check_pass(lambda p: split_reductions(remove_dead(predicate(p, EXACT))), leaves=PREDICATED)


def test_all_passes_in_order() -> None:
    def all_passes(program: Program) -> Program:
        program = simplify(remove_dead(program), EXACT)
        program = inline(scatters_to_selects(program), EXACT)
        return split_reductions(remove_dead(predicate(program, EXACT)))

    check_pass(all_passes, leaves=SCHEDULED)

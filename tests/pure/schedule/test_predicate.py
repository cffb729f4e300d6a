"""Masks into loads: which loads get one, and what they are where it does not hold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from gyrator.ir.check import PREDICATED, check_program
from gyrator.ir.expr import Masked, Op
from gyrator.ir.program import Input, Nest, Pointwise, Program
from gyrator.ir.simplify import simplifier
from gyrator.ir.tree import walk_exprs
from gyrator.schedule.predicate import predicate
from tests.pure.ir.examples import axis, between, const, load, op, value, whole
from tests.pure.schedule.harness import scheduled

EXACT = simplifier(exact_rounding=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8, torch.bool])
def test_a_load_under_a_mask_is_zero_of_its_own_type_where_it_reads_nothing(dtype: torch.dtype) -> None:
    x, y, i = value("x", 4, dtype=dtype), value("y", 6, dtype=torch.bool), axis("i0", 6)
    inside = between(1, i.index(), 5)
    shifted = load(x, i.index() - 1)
    body = Masked(inside, op("eq", shifted, shifted), const(True, torch.bool))
    before = Program("p", (Input(x),), (Nest((y,), (i,), Pointwise(body)),), (whole(y),))
    after = predicate(before, EXACT)
    check_program(after, PREDICATED)
    (nest,) = after.nodes
    assert isinstance(nest, Nest) and isinstance(nest.root, Pointwise)
    (read,) = nest.root.body.loads()
    assert read.mask is not None
    assert type(read.other) is (float if dtype.is_floating_point else bool if dtype == torch.bool else int)
    assert read.other == 0


def test_an_element_that_is_read_under_a_mask_in_two_ways_is_read_once() -> None:
    x, y, i = value("x", 4), value("y", 6), axis("i0", 6)
    inside, shifted = between(1, i.index(), 5), load(x, i.index() - 1)
    alone, within = Masked(inside, shifted, const(0.0)), Masked(inside, op("exp", shifted), const(1.0))
    body = op("add", alone, within)
    after = predicate(Program("p", (Input(x),), (Nest((y,), (i,), Pointwise(body)),), (whole(y),)), EXACT)
    (nest,) = after.nodes
    assert isinstance(nest, Nest) and isinstance(nest.root, Pointwise)
    assert [read.other for read in nest.root.body.loads()] == [0.0]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bool])
def test_what_a_kernel_joins_and_reads_again_under_masks_has_its_type(dtype: torch.dtype) -> None:
    def fn(a: Tensor) -> Tensor:
        half = a == 0 if dtype == torch.bool else 0.5 - a
        joined = torch.cat([half, half])
        flat = joined.view(-1)
        return flat.slice_scatter(flat[3:].logical_not().to(flat.dtype), 0, 3).view(joined.shape)

    scheduled(fn, [(torch.arange(24) % 3).to(dtype).view(2, 3, 4)], dynamic=True)


def test_parts_of_a_concatenation_are_chosen_once_each() -> None:
    def fn(x: Tensor) -> Tensor:
        return torch.cat([x * 2, x * 3, x * 4, x * 5], -1)

    found = scheduled(fn, [torch.randn(4, 5)])
    (kernel,) = found.plan.kernels
    choices = {e for root in walk_exprs(kernel.body) for e in root.walk() if isinstance(e, Op) and e.name == "where"}
    assert len(choices) == 3
    assert all(isinstance(e.args[0], Op) and e.args[0].name == "lt" for e in choices)

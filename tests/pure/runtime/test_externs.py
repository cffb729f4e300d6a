"""Calls of torch's operators: found by name, and held to what their fake kernels promised."""

from __future__ import annotations

import pytest
import torch
import transformers.integrations.moe  # noqa: F401 - defines transformers::grouped_mm_fallback

from gyrator.autograd.builder import flatten
from gyrator.errors import OutputMismatch, UnsupportedOperator
from gyrator.runtime.externs import aligned, checked, operator


def test_an_operator_is_found_by_its_name() -> None:
    x = torch.randn(3, 3)
    for name, expected in (("aten.mm.default", x @ x), ("aten.linalg_det.default", torch.linalg.det(x))):
        assert torch.equal(operator(name)(*((x, x) if "mm" in name else (x,))), expected)


@pytest.mark.parametrize("name", ["nowhere.op.default", "aten.no_such_operator.default", "aten.add.NoSuchOverload"])
def test_an_operator_that_no_library_defines_is_named(name: str) -> None:
    with pytest.raises(UnsupportedOperator, match=name):
        operator(name)


def test_results_in_lists_are_numbered_in_order() -> None:
    assert flatten((1, [2, (3,)], 4)) == [1, 2, 3, 4]


def test_a_result_as_promised_is_passed_on() -> None:
    x = torch.randn(2, 3)
    assert checked(x, (2, 3), (3, 1), torch.float32, "my::op") is x


def test_other_strides_are_made_right() -> None:
    x = torch.randn(3, 2).t()
    made = checked(x, (2, 3), (3, 1), torch.float32, "my::op")
    assert made.stride() == (3, 1)
    assert torch.equal(made, x)


@pytest.mark.parametrize("result", [torch.randn(3, 2), torch.randn(2, 3).double(), None, 3.0])
def test_a_broken_promise_names_the_operator(result: object) -> None:
    with pytest.raises(OutputMismatch, match=r"my::op promised torch\.float32 of shape \(2, 3\) but returned"):
        checked(result, (2, 3), (3, 1), torch.float32, "my::op")


@pytest.mark.parametrize("ends", [(2, 2, 7), (0, 3, 5), (0, 0, 0)])
def test_groups_of_rows_are_multiplied_where_told(ends: tuple[int, ...]) -> None:
    """Rows of no group are zeros, whatever lay there before."""
    rows, matrices, offs = torch.randn(7, 4), torch.randn(3, 5, 4).mT, torch.tensor(ends, dtype=torch.int32)
    out = torch.full((7, 5), torch.nan)
    operator("gyrator.grouped_mm.out")(rows, matrices, offs=offs, out=out)
    assert torch.equal(out, operator("transformers.grouped_mm_fallback.default")(rows, matrices, offs=offs))


def test_what_is_not_aligned_is_copied_as_it_lies() -> None:
    for view in (torch.arange(12.0).view(4, 3)[:, 1:], torch.arange(5.0)[1:].expand(3, 4)):
        moved = aligned(view)
        assert moved.data_ptr() % 16 == 0 and moved.stride() == view.stride() and torch.equal(moved, view)


def test_a_result_of_no_elements_may_be_left_away() -> None:
    assert checked(None, (0,), (1,), torch.float32, "my::op") is None
    with pytest.raises(OutputMismatch, match="returned NoneType"):
        checked(None, (2,), (1,), torch.float32, "my::op")

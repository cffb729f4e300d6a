"""The worked examples are well formed, print as the golden files say, and mean what torch computes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from gyrator.ir.check import PREDICATED, check_program
from gyrator.ir.interp import run_program
from gyrator.ir.text import program_text
from tests.pure.ir.examples import EXAMPLES, Example

each_example = pytest.mark.parametrize("build", EXAMPLES, ids=lambda f: f.__name__)


@each_example
def test_is_well_formed(build: Callable[[], Example]) -> None:
    check_program(build().program)


@each_example
def test_only_masks_make_it_less_than_predicated(build: Callable[[], Example]) -> None:
    program = build().program
    if build.__name__ == "pad_cat":
        with pytest.raises(Exception, match="masked expression after predication"):
            check_program(program, PREDICATED)
    else:
        check_program(program, PREDICATED)


@each_example
def test_prints_as_the_golden_file(build: Callable[[], Example], golden: Callable[[str, str], None]) -> None:
    program = build().program
    golden(f"ir/{program.name}.txt", program_text(program))


@each_example
def test_interpreter_agrees_with_torch(build: Callable[[], Example]) -> None:
    torch.manual_seed(0)
    example = build()
    arguments = example.arguments()
    run = run_program(example.program, arguments)
    results = [*run.outputs, *run.updates]
    expected = example.reference(*arguments)
    assert len(results) == len(expected)
    for actual, wanted in zip(results, expected, strict=True):
        torch.testing.assert_close(actual, wanted, equal_nan=True)

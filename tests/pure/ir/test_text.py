"""The text of parts of programs by which equal work is found; that of whole programs is in tests/golden."""

import torch
from torch import Tensor

from gyrator.ir.program import output_values
from gyrator.ir.text import canonical_text
from tests.pure.lowering.harness import lowered

A, B = torch.empty(4, 8), torch.empty(8, 4)


def test_equal_work_has_equal_text_whatever_its_values_are_called_and_where_they_come_from() -> None:
    def last(unread: Tensor, y: Tensor, x: Tensor) -> Tensor:
        return (torch.sin(x) + x) @ y

    first = lowered(lambda x, y: (torch.sin(x) + x) @ y, A, B).program
    assert canonical_text(first.nodes) == canonical_text(lowered(last, A, B, A).program.nodes)
    assert canonical_text(first.nodes) != canonical_text(lowered(last, A, B.double(), A.double()).program.nodes)
    assert canonical_text(first.nodes) != canonical_text(first.nodes, output_values(first.outputs))

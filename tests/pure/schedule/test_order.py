"""Of two products next to each other, the one that ends what is large comes first."""

from __future__ import annotations

import torch
from torch import Tensor

from gyrator.config import Config
from gyrator.schedule.plan import Allocate, Call
from gyrator.schedule.products import Templated
from gyrator.schedule.stage import Scheduled, schedule
from gyrator.session import Session
from tests.pure.lowering.harness import lowered
from tests.pure.schedule.harness import scheduled
from tests.pure.schedule.test_prologue import on_processor

r = torch.randn


def products(made: Scheduled) -> list[tuple[object, ...]]:
    """The shapes of the products' results, in the plan's order."""
    calls = [step.extern for step in made.plan.steps if isinstance(step, Call)]
    return [tuple(side.value for side in out.shape) for call in calls for out in call.out if out is not None]


def backward_of_linear(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
    y = x.sin()  # large, and read by the weight's gradient alone
    return torch.mm(g, w), torch.mm(g.t(), y)


def test_a_weights_gradient_comes_before_what_takes_the_place_of_its_operand() -> None:
    made = scheduled(backward_of_linear, (r(640, 480), r(32, 480), r(640, 32)))
    assert products(made) == [(32, 480), (640, 480)]


def test_products_that_end_nothing_stay_in_order() -> None:
    made = scheduled(lambda g, w, y: (torch.mm(g, w), torch.mm(g.t(), y), y + 1), (r(640, 32), r(32, 480), r(640, 480)))
    assert products(made) == [(640, 480), (32, 480)]


def test_what_the_caller_has_does_not_end_here() -> None:
    """Else gradients of weights larger than activations would wait for one another, up to the last layer's."""

    def backward(g: Tensor, w: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.mm(g.t(), y), torch.mm(g, w).relu()

    args = r(16, 640), r(640, 480), r(16, 480)
    assert products(scheduled(backward, args)) == [(640, 480), (16, 480)]


def test_what_forward_saved_ends_at_its_last_use() -> None:
    low = lowered(lambda y, g, w: (torch.mm(g, w), torch.mm(g.t(), y)), r(640, 480), r(640, 32), r(32, 480))
    for freed, first in ((0, (640, 480)), (1, (32, 480))):
        made = schedule(low.program, Session(Config(), torch.device("cpu")), freed=freed)
        assert products(made)[0] == first


def test_a_product_of_a_product_stays_behind_it() -> None:
    made = scheduled(lambda a, b: torch.mm(torch.mm(a, b), b), (r(600, 300), r(300, 300)))
    assert len(products(made)) == 2
    assert sum(isinstance(step, Allocate) for step in made.plan.steps) == 2


def test_so_do_templates_with_what_follows() -> None:
    def with_activation(x: Tensor, w: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        dx, dw = backward_of_linear(x, w, g)
        return dx.sigmoid(), dw

    units = on_processor(with_activation, r(640, 480), r(32, 480), r(640, 32))
    made = [unit.call.out[0] for unit in units if isinstance(unit, Templated)]
    assert [[n.value for n in out.shape] for out in made if out is not None] == [[32, 480], [640, 480]]

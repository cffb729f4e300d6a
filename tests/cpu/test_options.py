"""Options as a user of torch.compile meets them."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch._dynamo.exc import BackendCompilerFailed

from gyrator.errors import GyratorWarning


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("mode", ["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_every_mode_compiles(mode: str) -> None:
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GyratorWarning)
        out = torch.compile(add_one, backend="gyrator", mode=mode)(torch.ones(3))
    assert torch.equal(out, torch.full((3,), 2.0))


def test_what_has_no_effect_yet_is_said_once_in_a_process() -> None:
    torch.compiler.reset()
    options = {"coordinate_descent": True}
    compiled = torch.compile(add_one, backend="gyrator", options=options, dynamic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(torch.ones(3))
        compiled(torch.ones(4))  # compiled anew
    told = [str(w.message) for w in caught if issubclass(w.category, GyratorWarning)]
    assert told == ["option coordinate_descent=True has no effect yet"]


def test_an_unknown_option_is_an_error_with_the_valid_ones() -> None:
    torch.compiler.reset()
    with pytest.raises(
        BackendCompilerFailed, match=r"unknown option 'fuse'; valid options are\n  numerics: "
    ):
        torch.compile(add_one, backend="gyrator", options={"fuse": True})(torch.ones(3))

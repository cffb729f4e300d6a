"""Options as a user of torch.compile meets them."""

from __future__ import annotations

import warnings
from pathlib import Path

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


def test_a_variable_that_names_no_option_is_told_once_in_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.compiler.reset()
    monkeypatch.setenv("GYRATOR_FUSOIN", "0")
    compiled = torch.compile(add_one, backend="gyrator", dynamic=False)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        compiled(torch.ones(3))
        compiled(torch.ones(4))  # compiled anew
    told = [str(w.message) for w in caught if issubclass(w.category, GyratorWarning)]
    assert told == ["GYRATOR_FUSOIN names no option; did you mean GYRATOR_FUSION?"]


def test_an_unknown_option_is_an_error_with_the_valid_ones() -> None:
    torch.compiler.reset()
    with pytest.raises(BackendCompilerFailed, match=r"unknown option 'fuse'; valid options are\n  numerics: "):
        torch.compile(add_one, backend="gyrator", options={"fuse": True})(torch.ones(3))


def two_steps(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide = x.exp()
    return wide, (wide * 2).sum(-1)


@pytest.mark.parametrize(
    ("option", "kernels"),
    [({}, 1), ({"fusion": False}, 2), ({"max_fused_nodes": 1}, 2), ({"fusion": False, "inline": False}, 3)],
    ids=str,
)
def test_options_of_fusion_change_how_many_kernels_there_are(
    option: dict[str, object], kernels: int, tmp_path: Path
) -> None:
    torch.compiler.reset()
    x = torch.randn(33, 65)
    compiled = torch.compile(two_steps, backend="gyrator", options={"cache_dir": tmp_path, **option})
    torch.testing.assert_close(compiled(x), two_steps(x))
    assert wrapper_of(tmp_path).count("runtime.kernel(") == kernels


@pytest.mark.parametrize("option", ["inplace", "reuse_buffers"])
def test_without_sharing_memory_results_are_the_same(option: str, tmp_path: Path) -> None:
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return torch.mm(x + y, y).relu().cumsum(0)

    torch.compiler.reset()
    ours = (torch.randn(600, 600), torch.randn(600, 600))
    eager = tuple(t.clone() for t in ours)
    compiled = torch.compile(step, backend="gyrator", options={"cache_dir": tmp_path, option: False})
    for _ in range(2):
        torch.testing.assert_close(compiled(*ours), step(*eager), rtol=1e-4, atol=1e-2)
        torch.testing.assert_close(ours[0], eager[0])
    assert ("# in place" in wrapper_of(tmp_path)) is (option != "inplace")


def wrapper_of(folder: Path) -> str:
    """The text of the only wrapper in a cache folder."""
    (wrapper,) = folder.glob("graphs/??/*/wrapper.py")
    return wrapper.read_text()


def test_eager_numerics_draw_the_numbers_that_eager_draws() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return torch.rand_like(x) + torch.nn.functional.dropout(x, 0.5)

    x = torch.ones(50)
    compiled = torch.compile(noisy, backend="gyrator", options={"numerics": "eager"})
    results = []
    for fn in (noisy, compiled):
        torch.manual_seed(3)
        results.append(fn(x))
    assert torch.equal(*results)

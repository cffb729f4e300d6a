"""The user's doors: `gyrator.compile` and `gyrator.reset`."""

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypedDict, TypeVar, Unpack, overload

import torch

from gyrator.config import Config

P = ParamSpec("P")
R = TypeVar("R")


class _Options(TypedDict, total=False):
    fullgraph: bool
    dynamic: bool | None
    mode: str | None
    options: Mapping[str, object] | None
    disable: bool


@overload
def compile(model: Callable[P, R], **options: Unpack[_Options]) -> Callable[P, R]: ...


@overload
def compile(model: None = None, **options: Unpack[_Options]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def compile(
    model: Callable[P, R] | None = None, **options: Unpack[_Options]
) -> Callable[P, R] | Callable[[Callable[P, R]], Callable[P, R]]:
    """Compile a function or module; without one, a decorator that does. The same as `torch.compile(backend="gyrator")`,
    except that a wrong mode or option is reported at once, not at the first call, and that threads may begin together.

    Raises: UnknownOption, InvalidOption."""
    given = options.get("options")
    Config.from_options(options.get("mode"), given)
    options["options"] = dict(given) if given else None
    return torch.compile(model, backend=importlib.import_module("gyrator.backend").gyrator, **options)  # type: ignore[arg-type]


def reset() -> None:
    """Forget everything compiled in this process: torch's captures and gyrator's pools. The cache on disk stays."""
    torch.compiler.reset()  # which tells a backend once for each function that is wrapped to be compiled
    if (loaded := sys.modules.get("gyrator.backend")) is not None:
        loaded.gyrator.reset()

"""gyrator: a compiler for PyTorch programs. `torch.compile(f, backend="gyrator")` and `gyrator.compile(f)` are its two
doors. Importing the package is cheap."""

import importlib
from typing import TYPE_CHECKING

from gyrator.api import compile as compile
from gyrator.api import reset as reset
from gyrator.config import Config as Config
from gyrator.torch_compat import register_backend
from gyrator.version import __version__ as __version__

if TYPE_CHECKING:
    from gyrator.insight import counters as counters
    from gyrator.insight import explain as explain

__all__ = ["Config", "__version__", "compile", "counters", "explain", "reset"]


def __getattr__(name: str) -> object:
    """What needs the whole compiler is imported when it is first asked for."""
    if name in ("counters", "explain"):
        return getattr(importlib.import_module("gyrator.insight"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


register_backend("gyrator", target="gyrator.backend:gyrator")

"""gyrator: a compiler for PyTorch programs.

`torch.compile(f, backend="gyrator")` and `gyrator.compile(f)` are its two doors. Importing the package is
cheap and makes the backend known to torch even from a source tree that is not installed.
"""

from gyrator.api import compile as compile
from gyrator.api import reset as reset
from gyrator.config import Config as Config
from gyrator.torch_compat import register_backend
from gyrator.version import __version__ as __version__

__all__ = ["Config", "__version__", "compile", "reset"]

register_backend("gyrator", target="gyrator.backend:gyrator", version=__version__)

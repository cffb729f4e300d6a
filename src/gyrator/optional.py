"""Every optional third-party package, imported here and nowhere else."""

import importlib.util
from types import ModuleType

from gyrator.errors import ToolchainMissing

_INSTALL = {
    "triton": "install a CUDA build of torch, which brings Triton, or `pip install triton`",
    "plotly": "pip install 'gyrator[report]'",
    "redis": "pip install 'gyrator[redis]'",
}


def available(package: str) -> bool:
    """Whether an optional package can be imported, without importing it."""
    return bool(_INSTALL[package]) and importlib.util.find_spec(package) is not None


def require(package: str, module: str = "") -> ModuleType:
    """Import an optional package, or a module of it.

    Raises: ToolchainMissing if it is not installed; the hint is the command that installs it."""
    if not available(package):
        raise ToolchainMissing(f"the package {package}", _INSTALL[package])
    return importlib.import_module(f"{package}.{module}" if module else package)

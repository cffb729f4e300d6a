"""What a printed Triton kernel is: its text, and all that is needed to build and launch it.

The module's text defines ``@triton.jit def <name>(<params>, <blocks>: tl.constexpr, …)``, with the params in
the order of ``TritonKernel.params`` and then the block sizes in the order of ``Config.blocks``. It imports
``triton``, ``triton.language``, the device library ``gyrator.runtime.triton_ops`` and ``gyrator.templates``.

A launch runs in one dimension as many programs as the axes of ``TritonKernel.grid`` come to, none if that is 0."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from gyrator.ir.expr import short
from gyrator.ir.index import Index, Size
from gyrator.ir.tree import Config


@dataclass(frozen=True, slots=True)
class Pointer:
    """A tensor: the address of its first element, for the value of ``Kernel.params`` with that name."""

    name: str
    dtype: torch.dtype
    written: bool

    @property
    def type(self) -> str:
        """The type in Triton's signature: ``*bf16``."""
        return f"*{_TYPES.get(self.dtype) or short(self.dtype).replace('f', 'fp', 1)}"


@dataclass(frozen=True, slots=True)
class SizeArgument:
    """A size symbol of ``Kernel.sizes``, passed as a 64-bit integer whatever its value. ``even``: if a multiple
    of 16, or of 8, it lets a thread move so many elements at once."""

    name: str
    size: Size
    even: bool
    type = "i64"


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory of the launch's own: ``nbytes`` over the size symbols, large enough for every config.

    If ``zeroed``, it is for 32-bit counters, 0 at first, of which a launch changes the sign or nothing: programs know
    by them which is last, take tiles (``PROGRAMS``), or wait for each other, and so run at the same time."""

    name: str
    nbytes: Index
    zeroed: bool
    type = "*i8"


Parameter = Pointer | SizeArgument | Workspace


@dataclass(frozen=True, slots=True)
class GridAxis:
    """``⌈extent / block⌉ + more`` programs, ``block`` the name of a block size; ``extent`` of them if it is None."""

    extent: Index
    block: str | None = None
    more: int = 0


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """A printed kernel.

    ``configs`` are alternatives, the best guess first; all give the same results. ``asserts``: it checks indices by
    device asserts, which Triton keeps only when it compiles with ``debug=True``. ``early``: it waits itself until what
    was launched before is done. ``category`` is one of ``pointwise | persistent | looped | cooperative | scan | split
    scan | foreach | template``, for metrics and autotuning. ``other`` is the same function written in another way, with
    configs of its own, ``plain`` its text for arguments that are not aligned, if ``source`` cannot do without, and for
    sizes with which not all of ``below`` are WITHIN_32_BITS. ``room``, for coordinate descent: how large each block may
    get that may be any power of two."""

    name: str
    source: str
    params: tuple[Parameter, ...]
    grid: tuple[GridAxis, ...]
    configs: tuple[Config, ...]
    category: str
    asserts: bool = False
    early: bool = False
    other: "TritonKernel | None" = None
    plain: str = ""
    below: tuple[Index, ...] = ()
    room: tuple[tuple[str, int], ...] | None = None

    @property
    def variants(self) -> "tuple[tuple[TritonKernel, Config], ...]":
        """Every config with the text that it belongs to, those of ``other`` last."""
        return tuple((self, config) for config in self.configs) + (() if self.other is None else self.other.variants)

    def signature(self, config: Config) -> dict[str, str]:
        """Name → Triton type of every argument; block sizes are ``constexpr``."""
        return {p.name: p.type for p in self.params} | {name: "constexpr" for name, _ in config.blocks}


OPTIONS: Mapping[str, object] = {"sanitize_overflow": False}
"""Options that every build takes: index arithmetic is proved not to overflow."""

_TYPES = {torch.bool: "i1", torch.bfloat16: "bf16", torch.float8_e4m3fn: "fp8e4nv", torch.float8_e5m2: "fp8e5"}

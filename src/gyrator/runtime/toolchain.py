"""The C++ compiler, its flags and the processor's instruction set."""

import ctypes
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from gyrator.config import Config
from gyrator.errors import ToolchainMissing

FLAGS = (
    *("-std=c++20", "-O2", "-fPIC", "-shared", "-fopenmp", "-fvisibility=hidden", "-w"),
    *("-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math", "-fno-strict-aliasing"),
    *("-fno-exceptions", "-fno-rtti"),
)

LIBRARIES = ("-nostartfiles", "-nodefaultlibs", "-lgomp", "-lm", "-lc", "-lgcc")
"""What kernels need of the system. Without the C++ library and start files a link takes 15 ms, not 75."""

_AVX2 = ("avx2", "fma", "f16c", "bmi2")
_AVX512 = (*_AVX2, "avx512f", "avx512bw", "avx512dq", "avx512vl")
_VNNI = (*_AVX512, "avx512_vnni")
_NEEDED = {
    "scalar": (),
    "avx2": _AVX2,
    "avx512": _AVX512,
    "avx512_vnni": _VNNI,
    "avx512_bf16": (*_VNNI, "avx512_bf16"),
    "amx": (*_AVX512, "avx512_bf16", "amx_tile", "amx_bf16", "amx_int8"),
}
"""What the processor must have for each instruction set, by its names in /proc/cpuinfo, from the least to the most. The
two between avx512 and amx multiply and add up groups of int8, and of bfloat16 too; all else is as with avx512."""


def _flags_of(features: tuple[str, ...]) -> tuple[str, ...]:
    """The compiler's flags; tiles are used without its help."""
    flags = (f"-m{feature.replace('_', '')}" for feature in features if not feature.startswith("amx"))
    wide, tiles = "avx512f" in features, "amx_tile" in features
    return (*flags, *(["-mprefer-vector-width=512"] * wide), *(["-DGY_AMX"] * tiles))


ISA_FLAGS: Mapping[str, tuple[str, ...]] = {isa: _flags_of(features) for isa, features in _NEEDED.items()}

_ASK_FOR_TILES = (158, 0x1023, 18)
"""The call arch_prctl(ARCH_REQ_XCOMP_PERM, XTILE_DATA), without which Linux refuses AMX tiles."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A compiler that exists, with an `identity` that changes when it is replaced, and the processor's instructions."""

    compiler: Path
    isa: str
    identity: str

    @property
    def flags(self) -> tuple[str, ...]:
        """What the compiler is given beside the files."""
        return (*FLAGS, *ISA_FLAGS[self.isa])

    @property
    def vectors(self) -> str:
        """The instruction set that the headers use by themselves; they know no vectors of clang's."""
        return "scalar" if "clang" in self.identity else self.isa

    @property
    def libraries(self) -> tuple[str, ...]:
        """What the compiler is given after the files when it links kernels. Clang finds its own OpenMP."""
        return () if "clang" in self.identity else LIBRARIES

    def key(self) -> str:
        """Everything about the toolchain on which a library depends."""
        return " ".join((self.identity, *self.flags, *self.libraries))


def find_toolchain(config: Config) -> Toolchain:
    """The toolchain that the options ask for.

    Raises: ToolchainMissing without a C++ compiler, or for an instruction set that this processor lacks."""
    isa = cpu_isa()
    wanted = isa if config.cpu_isa == "auto" else config.cpu_isa
    order = tuple(ISA_FLAGS)
    if order.index(wanted) > order.index(isa):
        raise ToolchainMissing(f"the instruction set {wanted}", f"this processor has {isa}: set cpu_isa to auto")
    return _toolchain(config.cxx, os.environ.get("CXX"), wanted, os.environ.get("PATH"))


@lru_cache(maxsize=8)
def _toolchain(asked: str | None, variable: str | None, isa: str, path: str | None) -> Toolchain:
    for name in (asked,) if asked else (variable, "g++", "clang++"):
        found = shutil.which(name, path=path) if name else None
        if found is not None:
            real = Path(found).resolve()
            status = real.stat()
            return Toolchain(Path(found), isa, f"{real.name} {status.st_size} {status.st_mtime_ns}")
    what = f"the C++ compiler {asked}" if asked else "a C++ compiler"
    raise ToolchainMissing(what, "install g++ 12 or newer (Debian and Ubuntu: `apt install g++`), or set CXX")


@lru_cache(maxsize=4)
def cpu_about(field: str) -> str:
    """What /proc/cpuinfo says of the processor (`flags`, `vendor_id`); nothing where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith(field)), "")


@lru_cache(maxsize=1)
def cpu_isa() -> str:
    """The best of `ISA_FLAGS` that the processor and the system support."""
    found = [isa for isa, needed in _NEEDED.items() if {*cpu_about("flags").split()}.issuperset(needed)]
    return found[-1] if found[-1] != "amx" or ctypes.CDLL(None).syscall(*_ASK_FOR_TILES) == 0 else found[-2]

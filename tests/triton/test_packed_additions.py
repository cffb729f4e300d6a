"""ptxas takes a constant for 0 where half of a sum of two packed 16-bit integers is read: kernels hold no such sums."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from gyrator.codegen.triton_source import OPTIONS
from gyrator.optional import require
from gyrator.runtime.triton_worker import without_packed_additions
from gyrator.runtime.workers import Worker

# Rolled by one; each thread has 16 elements, whose indices LLVM narrows and pairs.
ROLL = """
import triton
import triton.language as tl
from triton.language.extra import libdevice

@triton.jit
def roll(x, y, XBLOCK: tl.constexpr):
    pid = tl.program_id(0)
    if (pid >= 0) & (pid < 1):
        i0 = pid * XBLOCK + tl.arange(0, XBLOCK)
        i0_ok = i0 < 3
        k = (i0 + 2) % 3
        t = tl.load(x)
        t = libdevice.tanh(tl.where((k < 1), t, tl.where((k < 2), t * 2.0, t)))
        tl.store(y + i0, t, i0_ok)
"""
PAIR = """
.version 8.7
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 out, .param .u32 x) {
  .reg .b64 %rd<2>; .reg .b32 %r<6>; .reg .b16 %rs<4>;
  ld.param.u64 %rd1, [out]; ld.param.u32 %r1, [x];
  cvt.u16.u32 %rs1, %r1;
  mov.b32 %r2, {%rs1, %rs1};
  mov.b32 %r3, 262149;
  add.s16x2 %r4, %r2, %r3;
  mov.b32 {%rs2, %rs3}, %r4;
  cvt.u32.u16 %r5, %rs3;
  st.global.b32 [%rd1], %r5;
  ret;
}
"""


def tool(name: str) -> Path:
    return Path(require("triton").__file__ or "").parent / "backends" / "nvidia" / "bin" / name


def instructions(binary: Path) -> str:
    done = subprocess.run([tool("nvdisasm"), "-c", binary], capture_output=True, text=True, check=True)
    return done.stdout


def adds_nothing(binary: Path) -> bool:
    return re.search(r"VIADD\.16x2 R\d+, R\d+(\.reuse)?, 0x0 ;", instructions(binary)) is not None


@pytest.mark.parametrize("mended", [False, True])
def test_a_pair_of_which_half_is_read(mended: bool, tmp_path: Path) -> None:
    """Fails without the mend once ptxas is right: then it can go."""
    text, binary = tmp_path / "pair.ptx", tmp_path / "pair.cubin"
    text.write_text(without_packed_additions(PAIR) if mended else PAIR)
    subprocess.run([tool("ptxas"), "-arch=sm_90a", text, "-o", binary], check=True)
    assert adds_nothing(binary) is not mended


def test_kernels_are_built_without_packed_additions() -> None:
    worker = Worker.start()
    try:
        options = {**OPTIONS, "enable_fp_fusion": False}
        answer = worker.ask({
            "source": ROLL, "function": "roll", "signature": {"x": "*fp32", "y": "*fp32", "XBLOCK": "constexpr"},
            "constants": {"XBLOCK": 2048}, "aligned": [0, 1], "options": options, "capability": 90,
        })  # fmt: skip
        binary = Path(answer["binary"])
        assert not adds_nothing(binary) and "16x2" not in instructions(binary)
    finally:
        worker.process.kill()
        worker.process.wait()
        worker.folder.cleanup()

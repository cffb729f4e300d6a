"""What LLVM and ptxas get wrong is kept from them: half of a sum of two packed 16-bit integers (ptxas takes a constant
for 0), and undefined remainders in vectors (LLVM takes them for 0, and then does not make them 0)."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gyrator.codegen.triton_source import OPTIONS
from gyrator.optional import require
from gyrator.runtime.triton_worker import _mend, with_defined_remainders, without_packed_additions
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
# As LLVM vectorises three remainders: the second one is widened together with the third, which is undefined.
REMAINDERS = """
target datalayout = "e-p3:32:32-p4:32:32-p5:32:32-p6:32:32-p7:32:32-i64:64-i128:128-i256:256-v16:16-v32:32-n16:32:64"
target triple = "nvptx64-nvidia-cuda"
define ptx_kernel void @k(ptr addrspace(1) %p, i16 %a, i16 %b, i16 %c) {
  %1 = insertelement <4 x i16> poison, i16 %a, i64 0
  %2 = insertelement <4 x i16> %1, i16 %b, i64 1
  %3 = insertelement <4 x i16> %2, i16 %c, i64 3
  %4 = urem <4 x i16> %3, <i16 14, i16 14, i16 1, i16 14>, !srcloc !0
  %5 = extractelement <4 x i16> %4, i64 1
  %6 = zext i16 %5 to i32
  store i32 %6, ptr addrspace(1) %p
  %7 = extractelement <4 x i16> %4, i64 3
  %8 = zext i16 %7 to i32
  %9 = getelementptr i32, ptr addrspace(1) %p, i64 1
  store i32 %8, ptr addrspace(1) %9
  ret void
}
!0 = !{i64 0}
"""
TO_PTX = """
import sys
from triton._C.libtriton import llvm
llvm.init_targets()
print(llvm.translate_to_asm(sys.stdin.read(), "nvptx64-nvidia-cuda", "sm_90a", "+ptx87", [], False, False))
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
            "constants": {"XBLOCK": 2048}, "divisors": [[0, 16], [1, 16]], "options": options, "capability": 90,
        })  # fmt: skip
        binary = Path(answer["binary"])
        assert not adds_nothing(binary) and "16x2" not in instructions(binary)
    finally:
        worker.process.kill()
        worker.process.wait()
        worker.folder.cleanup()


@pytest.mark.parametrize("mended", [False, True])
def test_a_remainder_beside_an_undefined_one(mended: bool) -> None:
    """Fails without the mend once LLVM is right: then it can go."""
    text = with_defined_remainders(REMAINDERS) if mended else REMAINDERS
    ptx = subprocess.run([sys.executable, "-c", TO_PTX], input=text, capture_output=True, text=True, check=True).stdout
    widened_with_its_neighbour = "or.b64" in ptx
    assert widened_with_its_neighbour is not mended


def test_remainders_of_divisions_by_other_numbers_stay() -> None:
    plain = "%1 = urem <2 x i16> %0, <i16 14, i16 11>\n  %2 = urem i16 %3, 1\n  %4 = udiv <2 x i16> %0, <i16 1, i16 2>"
    assert with_defined_remainders(plain) == plain


def test_both_mends_are_part_of_the_build() -> None:
    stages = {"ptx": lambda ir, metadata: ir + metadata}
    _mend(None, stages)
    made = stages["ptx"]("%1 = srem <2 x i8> %0, <i8 1, i8 5>", "add.s16x2 %r1, %r2, %r3;")
    assert "select <2 x i1> <i1 false, i1 true>, <2 x i8> %all1, <2 x i8> zeroinitializer" in made
    assert "s16x2" not in made

"""What the compiler makes of the header: vector instructions, nothing lane by lane.

GCC 12 silently does so for wide selects, 16-bit conversions and masks when asked the plain way.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache

import pytest

from tests.cpu.runtime.headers import MODES, build

# name: (inputs, output, expression, instructions with AVX-512, with AVX2)
CASES: dict[str, tuple[tuple[str, ...], str, str, str, str]] = {
    "add_floats": (("float",) * 2, "float", "gy::add(a, b)", "vaddps:1", "vaddps:2"),
    "add_longs": (("int64_t",) * 2, "int64_t", "gy::add(a, b)", "vpaddq:2", "vpaddq:4"),
    "select": (("float",) * 2, "float", "gy::where(gy::lt(a, b), a, gy::mul(b, b))", "vcmplt_oqps:1", "vblendvps:2"),
    "select_doubles": (
        ("double",) * 2,
        "double",
        "gy::where(gy::lt(a, b), a, gy::mul(b, b))",
        "vcmplt_oqpd:2",
        "vblendvpd:4",
    ),
    "select_bytes": (("int8_t",) * 2, "int8_t", "gy::where(gy::lt(a, b), a, b)", "vpblendmb:1", "vpblendvb:1"),
    "select_longs": (
        ("float", "int64_t"),
        "int64_t",
        "gy::where(gy::isnan(a), b, gy::add(b, b))",
        "vcmpneqps:1",
        "vpblendvb:4",
    ),
    "from_bf16": (("gy::bf16",), "float", "gy::cast<float>(a)", "vpmovzxwd:1 vpslld:1", "vpmovzxwd:2 vpslld:2"),
    "to_bf16": (("float",), "gy::bf16", "gy::cast<gy::bf16>(a)", "vpmovdw:1 vcmpunordps:1", "vpackusdw:1"),
    "from_f16": (("gy::f16",), "float", "gy::cast<float>(a)", "vcvtph2ps:1", "vcvtph2ps:2"),
    "to_f16": (("float",), "gy::f16", "gy::cast<gy::f16>(a)", "vcvtps2ph:1", "vcvtps2ph:2"),
    "from_byte": (("uint8_t",), "float", "gy::cast<float>(a)", "vpmovzxbd:1 vcvtdq2ps:1", "vcvtdq2ps:2"),
    "to_byte": (("float",), "int8_t", "gy::cast<int8_t>(a)", "vcvttps2dq:1 vpmovdb:1", "vcvttps2dq:2"),
    "narrow_longs": (("int64_t",), "int32_t", "gy::cast<int32_t>(a)", "vpmovqd:2", "vshufps:2"),
    "widen_floats": (("float",), "double", "gy::cast<double>(a)", "vcvtps2pd:2", "vcvtps2pd:4"),
    "narrow_doubles": (("double",), "float", "gy::cast<float>(a)", "vcvtpd2ps:2", "vcvtpd2psy:4"),
    "store_mask": (("float",) * 2, "bool", "gy::lt(a, b)", "vcmplt_oqps:1 vmovdqu8:1", "vcmpltps:2 vpacksswb:1"),
    "load_mask": (("bool", "float"), "float", "gy::where(a, b, gy::mul(b, b))", "vpcmpnequb:1", "vblendvps:2"),
    "maximum": (("float",) * 2, "float", "gy::maximum(a, b)", "vmaxps:1 vblendmps:1", "vmaxps:2 vblendvps:2"),
    "gather": (("int64_t",), "float", "gy::gather<L>((const float*)x0, a)", "vinsertps:8", "vinsertps:8"),
    "exp": (("float",), "float", "gy::exp(a)", "vscalefps:1", "vpslld:2"),
    "erf": (("float",), "float", "gy::erf(a)", "vfmadd:15", "vfmadd:30"),
    "tanh": (("float",), "float", "gy::tanh(a)", "vrcp14ps:1", "vdivps:2"),
}
LANE_BY_LANE = re.compile(
    r"^(v?(add|sub|mul|div|cvt|ucomi|comi|max|min|fn?madd)\w*s[sd]|v?pinsr\w|v?pextr\w|movs[bw]\w|movz\w+|call)$"
)


def source() -> str:
    text = ""
    for name, (inputs, output, expression, _, _) in CASES.items():
        parameters = ", ".join(f"const {t}* x{i}" for i, t in enumerate(inputs))
        loads = " ".join(f"const auto {'abc'[i]} = gy::load<L>(x{i} + j);" for i in range(len(inputs)))
        text += (
            f'extern "C" void {name}({output}* y, {parameters}, int64_t n) {{ constexpr int L = 16; '
            f"for (int64_t j = 0; j + L <= n; j += L) {{ {loads} gy::store(y + j, {expression}); }} }}\n"
        )
    return text


@lru_cache(maxsize=4)
def instructions(mode: str) -> dict[str, list[str]]:
    """The mnemonics of each kernel."""
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", build(source(), mode)], capture_output=True, text=True, check=True
    ).stdout
    kernels: dict[str, list[str]] = {}
    for part in listing.split("\n\n"):
        head = re.search(r"<(\w+)>:", part)
        if head and head.group(1) in CASES:
            kernels[head.group(1)] = re.findall(r"^\s+[0-9a-f]+:\t(\S+)", part, re.MULTILINE)
    return kernels


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("mode", [m for m in MODES if m.values[0] != "scalar"])
@pytest.mark.parametrize("name", CASES)
def test_sixteen_lanes_are_vector_instructions(name: str, mode: str) -> None:
    found = instructions(mode)[name]
    assert [i for i in found if LANE_BY_LANE.match(i)] == []
    for wanted in CASES[name][3 if mode == "avx512" else 4].split():
        mnemonic, _, count = wanted.partition(":")
        assert sum(i.startswith(mnemonic) for i in found) >= int(count), " ".join(found)


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("mode", [m for m in MODES if m.values[0] == "avx512"])
def test_a_loop_has_no_more_than_its_work(mode: str) -> None:
    """Loads, the operation, a store, the counter: nothing goes through memory in between."""
    most = {"add_floats": 18, "select": 21, "from_bf16": 18, "to_f16": 18, "select_bytes": 19, "maximum": 20, "exp": 48}
    longer = {k: len(instructions(mode)[k]) for k, limit in most.items() if len(instructions(mode)[k]) > limit}
    assert longer == {}


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("mode", [m for m in MODES if m.values[0] == "avx2"])
def test_some_lanes_of_16_bits_are_read_in_pairs(mode: str) -> None:
    """AVX2 has masks for 32 and 64 bits alone; lane after lane takes several times as long."""
    text = """extern "C" void copied(gy::bf16* y, const gy::bf16* x, int64_t n) {
      const auto some = gy::first_lanes<16>(n);
      gy::store(y, gy::load<16>(x, some, gy::bf16{}), some);
    }"""
    listing = ["objdump", "-d", "--no-show-raw-insn", str(build(text, mode))]
    found = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert found.count("vpmaskmovd") == 1


@pytest.mark.skipif(shutil.which("objdump") is None, reason="no objdump")
@pytest.mark.parametrize("mode", [m for m in MODES if m.values[0] == "avx2"])
def test_the_variance_of_a_short_row_is_summed_in_registers(mode: str) -> None:
    """Halves of registers that go to memory and whole ones that come back wait for each other in each row."""
    text = """extern "C" void variances(float* y, const float* x, int64_t rows) {
      for (int64_t i = 0; i < rows; ++i) {
        gy::Welford<float, 16> all;
        for (int64_t j = 0; j < 32; j += 16) all.update(gy::load<16>(x + i * 32 + j));
        gy::store(y + i, all.result().m2);
      }
    }"""
    listing = ["objdump", "-d", "--no-show-raw-insn", str(build(text, mode))]
    found = subprocess.run(listing, capture_output=True, text=True, check=True).stdout
    assert re.findall(r"vmov\w+ +%xmm\d+,[-\w]*\(%r[sb]p\)", found) == []

"""Questions are answered by measurement: ranks, records, failures, tables and logs."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from gyrator.autotune.parts import Builder
from gyrator.autotune.sandbox import Sandboxes
from gyrator.cache.store import MANIFEST
from gyrator.errors import GyratorWarning, KernelBuildError
from gyrator.ir.program import Program
from gyrator.schedule.products import Alternative, Question, Unit
from tests.cpu.autotune.harness import asker, program_of, units_of


class Pretending:
    """Sandboxes that run nothing: candidates take so many milliseconds, in order."""

    def __init__(self, *milliseconds: float | str) -> None:
        self.milliseconds, self.asked = milliseconds, 0

    def time(self, folders: list[Path], *_: object) -> list[float | str]:
        assert all((folder / "wrapper.py").exists() for folder in folders)
        self.asked += 1
        return list(self.milliseconds[: len(folders)])


def question(*families: str, rows: int = 64) -> Question:
    """A product and its reader, as a call and kernels; the alternatives differ in what they fuse."""
    program = program_of(lambda a, b: torch.relu(torch.mm(a, b)).sum(1) + 1, torch.randn(64, 16), torch.randn(16, 32))
    found = [
        Alternative(f"{family}_{k}", family, units_of(program, k + 1), (("BLOCK_M", 32), ("EVEN_K", True)))
        for k, family in enumerate(families)
    ]
    return Question(f"mm({rows}x16, 16x32)", program, tuple(found))


def pretending(*milliseconds: float) -> Sandboxes:
    return Pretending(*milliseconds)  # type: ignore[return-value]


def names(ranked: tuple[Alternative, ...]) -> list[str]:
    return [alternative.name for alternative in ranked]


def test_answers_come_best_first_with_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with asker(tmp_path, pretending(0.5, 0.25, 1.0)) as (ask, tuner):
        ranked = ask(question("aten", "triton", "cpp"))
    assert names(ranked) == ["triton_1", "aten_0", "cpp_2"]
    assert capsys.readouterr().err == (
        "AUTOTUNE mm(64x16, 16x32)\n"
        "  triton_1 0.2500 ms 100.0%  BLOCK_M=32, EVEN_K=True\n"
        "  aten_0   0.5000 ms  50.0%  BLOCK_M=32, EVEN_K=True\n"
        "  cpp_2    1.0000 ms  25.0%  BLOCK_M=32, EVEN_K=True\n"
    )
    (choice,) = tuner.choices
    assert choice.title == "mm(64x16, 16x32)" and not choice.known


def test_an_option_silences_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with asker(tmp_path, pretending(0.5, 0.25), autotune_silent=True) as (ask, _):
        ask(question("aten", "triton"))
    assert capsys.readouterr().err == ""


def test_the_log_has_a_json_document_for_each_timing(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with asker(tmp_path, pretending(0.5, 0.25), autotune_log=log) as (ask, _):
        ask(question("aten", "triton"))
    first, second = (json.loads(line) for line in log.read_text().splitlines())
    assert (first["name"], first["backend"], first["milliseconds"]) == ("triton_1", "triton", 0.25)
    assert first["choice"] == second["choice"] == "mm(64x16, 16x32)"
    assert first["parameters"] == {"BLOCK_M": 32, "EVEN_K": True}


def test_times_are_recorded_for_other_graphs_and_processes(tmp_path: Path) -> None:
    for k, sandboxes in enumerate((Pretending(0.5, 0.25), Pretending(9.0, 9.5))):
        with asker(tmp_path, sandboxes) as (ask, tuner):  # type: ignore[arg-type]
            assert names(ask(question("aten", "triton"))) == ["triton_1", "aten_0"]
            assert tuner.choices[0].known == (k == 1)
            assert sandboxes.asked == 1 - k


def test_a_choice_with_a_time_out_is_not_recorded(tmp_path: Path) -> None:
    for took, ranked in (("no answer after 1 s", ["aten_0"]), (0.25, ["triton_1", "aten_0"])):
        with asker(tmp_path, Pretending(0.5, took)) as (ask, tuner):  # type: ignore[arg-type]
            assert names(ask(question("aten", "triton"))) == ranked
            assert not tuner.choices[0].known


def test_other_shapes_or_candidates_are_timed_anew(tmp_path: Path) -> None:
    sandboxes = Pretending(0.5, 0.25, 0.1)
    with asker(tmp_path, sandboxes) as (ask, _):  # type: ignore[arg-type]
        ask(question("aten", "triton"))
        ask(question("aten", "triton", "cpp"))
        program = program_of(
            lambda a, b: torch.relu(torch.mm(a, b)).sum(1) + 1, torch.randn(8, 16), torch.randn(16, 32)
        )
        asked = question("aten", "triton")
        units = [units_of(program, 1), units_of(program, 2)]
        alternatives = [replace(a, units=u) for a, u in zip(asked.alternatives, units, strict=True)]
        ask(Question(asked.title, program, tuple(alternatives)))
    assert sandboxes.asked == 3


@pytest.mark.parametrize("damage", ["{}", '{"format": 1, "files": {}, "notes": {"trials": {"mm": 0.5}}}', "not json"])
def test_a_record_that_cannot_be_read_is_a_miss(tmp_path: Path, damage: str) -> None:
    sandboxes = Pretending(0.5, 0.25)
    for _ in range(3):
        with asker(tmp_path, sandboxes) as (ask, _):  # type: ignore[arg-type]
            assert names(ask(question("aten", "triton"))) == ["triton_1", "aten_0"]
        if sandboxes.asked == 1:
            (record,) = (tmp_path / "times").glob(f"*/*/{MANIFEST}")
            record.write_text(damage)
    assert sandboxes.asked == 2


def test_a_candidate_that_cannot_be_built_has_no_answer_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, build = question("aten", "triton", "cpp"), Builder.start_units

    def refused(builder: Builder, part: Program, units: Sequence[Unit]) -> Callable[[], Path]:
        if units is asked.alternatives[1].units:
            raise KernelBuildError("tiled", "tiled.py", "out of shared memory")
        return build(builder, part, units)

    monkeypatch.setattr(Builder, "start_units", refused)
    with asker(tmp_path, pretending(0.5, 0.25)) as (ask, tuner):
        assert names(ask(asked)) == ["cpp_2", "aten_0"]
    assert "out of shared memory" in tuner.choices[0].trials[-1].failure


def test_families_that_are_not_named_or_too_large_for_the_product_do_not_compete(tmp_path: Path) -> None:
    with asker(tmp_path, pretending(0.5, 0.25), gemm_backends="aten,cpp") as (ask, _):
        assert names(ask(question("aten", "triton", "cpp"))) == ["cpp_2", "aten_0"]
    with asker(tmp_path, pretending(0.5, 0.25), cpp_min_gemm_size=64 * 16 * 32 + 1) as (ask, _):
        assert names(ask(question("aten", "triton", "cpp"))) == ["triton_1", "aten_0"]
    with asker(tmp_path, pretending(0.5, 0.25, 0.2), cpp_min_gemm_size=64 * 16 * 32) as (ask, _):
        assert names(ask(question("aten", "triton", "cpp"))) == ["cpp_2", "triton_1", "aten_0"]


def test_cpp_alone_is_taken_without_timing(tmp_path: Path) -> None:
    sandboxes = Pretending()
    with asker(tmp_path, sandboxes, gemm_backends="cpp") as (ask, _):  # type: ignore[arg-type]
        assert names(ask(question("aten", "cpp", "cpp"))) == ["cpp_1"]
    assert sandboxes.asked == 0


def test_a_call_without_a_rival_is_not_timed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sandboxes = Pretending()
    with asker(tmp_path, sandboxes) as (ask, tuner):  # type: ignore[arg-type]
        assert names(ask(question("aten"))) == ["aten_0"]
    assert (sandboxes.asked, tuner.choices, capsys.readouterr().err) == (0, [], "")


def test_without_a_viable_candidate_there_is_no_answer_and_a_warning(tmp_path: Path) -> None:
    why = re.escape("mm(64x16, 16x32): no candidate is viable, so the library is called")
    with asker(tmp_path, pretending(), gemm_backends="triton") as (ask, _), pytest.warns(GyratorWarning, match=why):
        assert ask(question("aten", "cpp")) == ()


@pytest.fixture(scope="module")
def sandboxes() -> Iterator[Sandboxes]:
    made = Sandboxes()
    yield made
    made.stop()


def test_a_question_is_answered_by_real_timing(tmp_path: Path, sandboxes: Sandboxes) -> None:
    """Sums of four large tensors in one kernel are faster than in four."""
    inputs = [torch.randn(1 << 20) for _ in range(5)]
    program = program_of(lambda a, b, c, d, e: a * b + (c - a) * d + (e + a) * e, *inputs)
    ways = [Alternative("apart", "aten", units_of(program, 1)), Alternative("together", "cpp", units_of(program, 9))]
    with asker(tmp_path, sandboxes, autotune_timeout=60.0) as (ask, _):
        assert names(ask(Question("sums", program, tuple(ways)))) == ["together", "apart"]

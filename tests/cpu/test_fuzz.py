"""Random programs do what eager does. ``--fuzz N`` runs N of them, ``--fuzz-seed`` picks others."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.acceptance import expect
from tests.fuzz import harness
from tests.fuzz.harness import Settings, complaint, run
from tests.fuzz.known import KNOWN
from tests.fuzz.programs import CAPTURED, CORNERS, DETACHING, LONG, WIDER, Program, define, generate
from tests.fuzz.shrink import shrink

IN_CI, DETACHING_IN_CI, WIDER_IN_CI, LONG_IN_CI, CAPTURED_IN_CI = 1900, 300, 100, 200, 100
CHUNK = 100


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "first_seed" in metafunc.fixturenames:
        asked = metafunc.config.getoption("--fuzz")
        count = IN_CI if asked is None else asked
        start = metafunc.config.getoption("--fuzz-seed")
        detaching = range(DETACHING, DETACHING + DETACHING_IN_CI, CHUNK) if asked is None else ()
        long = range(LONG, LONG + LONG_IN_CI, CHUNK) if asked is None else ()
        wider = range(WIDER, WIDER + WIDER_IN_CI, CHUNK) if asked is None else ()
        captured = range(CAPTURED, CAPTURED + CAPTURED_IN_CI, CHUNK) if asked is None else ()
        more = (*detaching, *wider, *long, *captured)
        metafunc.parametrize("first_seed", [*range(start, start + count, CHUNK), *more])


def test_random_programs_match_eager(
    first_seed: int, backend: str, request: pytest.FixtureRequest, two_threads: None
) -> None:
    settings = Settings(backend, Path(request.config.rootpath) / "fuzz_failures")
    seeds = [seed for seed in range(first_seed, first_seed + CHUNK) if seed not in KNOWN]
    failures = list(run(seeds, settings))
    assert not failures, "\n\n".join(map(str, failures))


def test_few_programs_are_known_to_fail() -> None:
    assert len(KNOWN) <= IN_CI // 200


def test_a_seed_gives_the_same_program_and_the_same_arguments() -> None:
    assert generate(17) == generate(17)
    first, second = (generate(17).make_arguments() for _ in range(2))
    assert all((a == b).all() for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("seed", range(CORNERS, CORNERS + 4))
def test_views_and_writes_in_any_order(seed: int, backend: str) -> None:
    assert complaint([generate(seed)], backend, dynamic=False) is None


def test_a_part_that_may_not_be_read_once_its_whole_was_written_is_not_drawn() -> None:
    assert generate(712_362).statements


def test_intermediate_values_may_be_rounded_otherwise(backend: str, tmp_path: Path) -> None:
    assert not [*run([711_654, 714_059], Settings(backend, tmp_path))]


def test_what_no_operator_rounds_is_exact_in_every_run() -> None:
    runs = expect(lambda x: ((y := x * 0.5).t(), -y.clone(), y.sum()), (torch.randn(3, 4),)).perturbed()
    found = [(run.tensors["output[0]"], run.tensors["output[1]"]) for run in runs]
    assert all(torch.equal(one.t(), -other) for one, other in found)
    assert len({run.tensors["output[2]"].item() for run in runs}) > 1


def test_a_wrong_answer_is_found(backend: str) -> None:
    def one_off(graph, inputs):
        def run(*args):
            return tuple(out + 1e-3 if out is not None else out for out in graph(*args))

        return run

    program = Program(0, {"a0": "draw((3, 4), torch.float32, 1)"}, ("v0 = a0 * 2",), ("v0",), backward=False)
    assert complaint([program], backend="eager", dynamic=False) is None
    assert "rms error" in (complaint([program], backend=one_off, dynamic=False) or "")


def test_what_amplified_rounding_excuses_has_to_be_right_in_float64() -> None:
    def scaled(by: float):  # type: ignore[no-untyped-def]
        return lambda graph, inputs: lambda *args: tuple(out * by for out in graph(*args))

    program = Program(0, {"a0": "draw((3, 4), torch.float32, 1)"}, ("v0 = (a0 * 1e6).sin()",), ("v0",), backward=False)
    assert complaint([program], scaled(1 + 1e-9), dynamic=False) is None
    assert (complaint([program], scaled(1 + 1e-5), dynamic=False) or "").endswith("(in float64)")


@pytest.mark.parametrize(
    ("first", "failures"), [("v0 = a0 * 2", 1), ("v0 = a0[9] if torch.compiler.is_compiling() else a0", 0)]
)
def test_what_torch_itself_does_not_capture_is_no_failure(
    first: str, failures: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(graph, inputs):
        raise ValueError("refused")

    program = Program(0, {"a0": "draw((3, 4), torch.float32, 1)"}, (first,), ("v0",), backward=False)
    monkeypatch.setattr(harness, "generate", lambda seed: program)
    assert len([*run([0], Settings(refuse, tmp_path))]) == failures


def test_shrinking_keeps_only_what_fails() -> None:
    program = Program(
        seed=0,
        arguments={"a0": "draw((3, 4), torch.float32, 1)", "a1": "draw((5,), torch.float32, 2)"},
        statements=("v0 = a0 * 2", "v1 = a1 + 1", "v2 = v0.sum()", "v3 = v1.exp()", "v4 = v2 + 1"),
        outputs=("v4", "v3"),
        backward=True,
    )
    small = shrink(program, lambda candidate: "sum" in candidate.source())
    assert small.statements == ("v0 = a0 * 2", "v2 = v0.sum()") or small.statements == ("v2 = v0.sum()",)
    assert list(small.arguments) == ["a0"] and not small.backward
    assert define(small.source())(*small.make_arguments())


def test_views_whose_sizes_become_known_do_not_shift_the_results_after_them(backend: str) -> None:
    """Backward was compiled again, for gradients that were missing, and looked for them at other positions."""
    assert complaint([generate(seed) for seed in (890393, 890397, 890398)], backend, dynamic=True) is None

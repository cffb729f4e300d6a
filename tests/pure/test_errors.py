"""The catalogue of errors: what each message tells, and that each is raised where it belongs."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from gyrator import errors
from gyrator.errors import (
    CacheCorrupt,
    GyratorError,
    IndexOutOfRange,
    InternalCheckError,
    KernelBuildError,
    OutputMismatch,
    ToolchainMissing,
    UnsupportedOperator,
    WrongResult,
)
from gyrator.optional import require
from gyrator.origin import Origin

TESTS = Path(__file__).parents[1]
PLACE = Origin("model.py", 42, "forward", "aten.gather")

CATALOGUE = {
    name: kind
    for name, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, GyratorError) and kind is not GyratorError
}

NOT_RAISED_YET = {}
"""Errors whose part of the compiler has no test yet, with that part. Must become empty."""


def raised_in_tests() -> set[str]:
    """Every name that stands in a `pytest.raises` of a test other than this one."""
    files = [p for p in TESTS.rglob("*.py") if p != Path(__file__)]
    calls = [call for p in files for call in re.findall(r"raises\(([^)]*)\)?", p.read_text())]
    return {name for call in calls for name in re.findall(r"[A-Za-z_]+", call)}


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_each_error_is_raised_by_some_test(name: str) -> None:
    here = {"ToolchainMissing"}
    assert (name in raised_in_tests() | here) != (name in NOT_RAISED_YET)


def test_a_message_says_what_where_and_what_to_try() -> None:
    error = InternalCheckError("fuse", "%3 reads itself", where=PLACE, node="%2 = sin(%1)\n%3 = add(%3)\n%4 = neg(%3)")
    assert str(error).splitlines() == [
        "internal check failed after pass 'fuse': %3 reads itself",
        "  at: model.py:42 in forward (aten.gather)",
        "  node: %2 = sin(%1)",
        "        %3 = add(%3)",
        "        %4 = neg(%3)",
        "  try: this is a bug of gyrator: please report it with the files that GYRATOR_DUMP=dir writes",
    ]


def test_the_base_cannot_be_raised() -> None:
    with pytest.raises(TypeError, match="abstract"):
        GyratorError("something")


def test_every_error_has_a_docstring() -> None:
    assert [name for name, kind in CATALOGUE.items() if not kind.__doc__] == []


def test_a_kernel_that_does_not_build_names_kernel_file_line_and_message() -> None:
    error = KernelBuildError("softmax_3", "/cache/softmax_3.cpp", "12:5: error: 'q' was not declared\n", where=PLACE)
    text = str(error)
    for part in ("softmax_3", "/cache/softmax_3.cpp", "  | 12:5: error: 'q' was not declared", "model.py:42"):
        assert part in text


def test_an_index_error_is_both_kinds_that_eager_raises() -> None:
    error = IndexOutOfRange(5, 3, where=PLACE)
    assert isinstance(error, IndexError) and isinstance(error, RuntimeError)
    assert str(error).startswith("index 5 is out of bounds with size 3\n  at: model.py:42")
    assert str(IndexOutOfRange(None, None)) == "index out of range"


def test_the_other_messages_name_their_subject() -> None:
    assert "my::op promised (2, 3) but returned (3, 2)" in str(OutputMismatch("my::op", "(2, 3)", "(3, 2)"))
    assert "operator my::op cannot be compiled: it has no fake" in str(UnsupportedOperator("my::op", "it has no fake"))
    assert "cache entry k/ab is damaged: digest" in str(CacheCorrupt("k/ab", "digest"))
    assert "stage 'fuse' changed output 0: rms 1e-2" in str(WrongResult("fuse", "output 0", "rms 1e-2"))


def test_an_optional_package_that_is_missing_is_named_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ToolchainMissing, match=r"package redis not found\n  try: pip install 'gyrator\[redis\]'"):
        require("redis")
    with pytest.raises(KeyError):
        require("pandas")

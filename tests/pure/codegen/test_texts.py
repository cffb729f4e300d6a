"""Long lines of generated code."""

import pytest

from gyrator.codegen.texts import broken


@pytest.mark.timeout(60)
def test_a_call_of_many_parts_is_broken_after_commas_in_linear_time() -> None:
    line = f"joined = cat([{', '.join(f'part{i}' for i in range(200_000))}])"
    lines = broken(line, 110)
    assert max(map(len, lines)) <= 110
    assert all(text.endswith(",") for text in lines[:-1])
    assert " ".join(text.strip() for text in lines) == line


def test_strings_stay_whole_and_what_has_no_place_to_break_at_stays_long() -> None:
    assert broken('f(a, "b, c", d)', 12) == ["f(a,", '    "b, c",', "    d)"]
    assert broken("x" * 30, 12) == ["x" * 30]

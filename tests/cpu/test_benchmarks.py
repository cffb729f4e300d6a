"""What the benchmarks' command line refuses."""

from __future__ import annotations

import pytest

from benchmarks.run import parse


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["models", "--only", "bert_inference"], "no case bert_inference; there are layer_norm,"),
        (["models", "--device", "cpu", "--only", "mamba"], "no case mamba; there are bert,"),
        (["model"], "no suite model; there are overhead,"),
    ],
)
def test_an_unknown_name_ends_the_run_with_those_there_are(
    arguments: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(arguments)
    assert named in capsys.readouterr().err

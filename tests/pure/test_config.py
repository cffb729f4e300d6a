"""Options: where values come from, what is refused, what is equal, and the page that documents them."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

from gyrator.config import MODES, Config, option_types, type_text, unknown_environment
from gyrator.errors import InvalidOption, UnknownOption
from gyrator.inductor_names import OTHER_NAMES
from tests.config_page import SAME_NAMES, config_page

ROOT = Path(__file__).parents[2]


def config(mode: str | None = None, env: dict[str, str] | None = None, **options: object) -> Config:
    return Config.from_options(mode, options, env or {})


def test_without_anything_every_option_has_its_default() -> None:
    assert config() == Config()


def test_code_wins_over_mode_over_environment() -> None:
    env = {"GYRATOR_MAX_AUTOTUNE": "0", "GYRATOR_NUMERICS": "eager"}
    assert config("max-autotune", env).max_autotune
    assert config("max-autotune", env).numerics == "eager"
    assert not config("max-autotune", env, max_autotune=False).max_autotune


def test_equal_settings_are_equal_and_hash_equally() -> None:
    one = config(logs=["fusion", "cache"], memory_budget=1)
    two = config(env={"GYRATOR_LOGS": " cache,FUSION,"}, memory_budget=1.0)
    assert one == two
    assert hash(one) == hash(two)
    assert one != config()


def test_a_config_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        config().fusion = False  # type: ignore[misc]


def test_an_unknown_option_lists_the_valid_ones_with_types_and_suggests_the_closest() -> None:
    with pytest.raises(UnknownOption) as caught:
        config(max_autotun=True)
    text = str(caught.value)
    assert "did you mean 'max_autotune'?" in text
    for name, kind in option_types().items():
        assert f"{name}: {type_text(kind)}" in text


def test_one_of_inductors_names_is_answered_with_ours() -> None:
    with pytest.raises(UnknownOption, match=r"Inductor's triton\.cudagraphs is cuda_graphs here"):
        config(**{"triton.cudagraphs": True})
    with pytest.raises(UnknownOption, match="is dump here: a folder instead of a flag"):
        config(**{"trace.enabled": True})


def test_an_unknown_mode_lists_the_modes() -> None:
    with pytest.raises(UnknownOption, match="did you mean 'max-autotune'") as caught:
        config("max-autotun")
    assert all(mode in str(caught.value) for mode in MODES)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("fusion", 1),
        ("fusion", "yes"),
        ("max_fused_nodes", True),
        ("max_fused_nodes", 0),
        ("max_fused_nodes", 2.0),
        ("memory_budget", 1.5),
        ("memory_budget", float("nan")),
        ("numerics", "slow"),
        ("logs", ["fusion", "everything"]),
        ("logs", 3),
        ("cache_dir", 3),
        ("cxx", b"g++"),
        ("fusion", None),
    ],
)
def test_a_value_of_the_wrong_type_or_range_is_refused(name: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=f"'{name}' must be"):
        config(**{name: value})


def test_a_wrong_environment_variable_is_named() -> None:
    with pytest.raises(InvalidOption, match="from GYRATOR_MAX_FUSED_NODES"):
        config(env={"GYRATOR_MAX_FUSED_NODES": "many"})
    with pytest.raises(InvalidOption, match="from GYRATOR_FUSION"):
        config(env={"GYRATOR_FUSION": "maybe"})


def test_environment_variables_are_read_in_each_type() -> None:
    env = {
        "GYRATOR_FUSION": "off",
        "GYRATOR_THREADS": "3",
        "GYRATOR_MEMORY_BUDGET": "0.5",
        "GYRATOR_CACHE_DIR": "~/kernels",
        "GYRATOR_CXX": "none",
    }
    read = config(env=env)
    assert (read.fusion, read.threads, read.memory_budget, read.cxx) == (False, 3, 0.5, None)
    assert read.cache_dir == Path.home() / "kernels"


def test_a_misspelt_environment_variable_can_be_reported() -> None:
    assert unknown_environment({"GYRATOR_DUMPS": "x", "GYRATOR_DUMP": "x", "HOME": "/"}) == (
        "GYRATOR_DUMPS names no option; did you mean GYRATOR_DUMP?",
    )


def test_the_cache_key_depends_on_what_shapes_code_only() -> None:
    assert config(numerics="eager").key() != config().key()
    assert config(dump="/tmp/x", progress="off").key() == config().key()


def test_code_reads_every_option() -> None:
    declaring = {"config.py", "inductor_names.py"}
    files = [p for p in (ROOT / "src/gyrator").rglob("*.py") if p.name not in declaring and p.parent.name != "cli"]
    text = "\n".join(p.read_text() for p in files)
    own = (ROOT / "src/gyrator/config.py").read_text()
    ways = (("config", text), ("_options", text), ("self", own))
    read = {f.name for f in fields(Config) if any(f"{holder}.{f.name}" in where for holder, where in ways)}
    assert {f.name for f in fields(Config)} - read == set(), "no code reads these"


def test_the_page_of_options_is_current() -> None:
    page = (ROOT / "docs/config.md").read_text()
    assert page == config_page(), "run: python -m tests.config_page > docs/config.md"


def test_every_counterpart_of_inductors_names_exists() -> None:
    assert option_types().keys() >= {*SAME_NAMES}
    for ours, note in OTHER_NAMES.values():
        assert note if ours is None else ours in option_types()

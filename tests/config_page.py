"""docs/config.md, generated from the declarations: `python -m tests.config_page > docs/config.md`."""

from collections.abc import Mapping
from dataclasses import MISSING, Field, fields
from typing import Any

from gyrator.config import MODES, Config, env_name, option_types, type_text
from gyrator.inductor_names import OTHER_NAMES

SAME_NAMES = """
    max_autotune freezing benchmark_kernel profile_bandwidth max_epilogue_benchmarked_choices assume_aligned_inputs
    benchmark_fusion combo_kernels
""".split()
"""What TorchInductor calls the same."""

SECTIONS: Mapping[str, str] = {
    "numerics": "Answers",
    "fusion": "Fusion and memory",
    "max_autotune": "Choosing kernels",
    "cpu_isa": "Target",
    "build_threads": "Building and caching",
    "dump": "Seeing what happens",
}
"""The sections of the options' page, each by the option that it begins with."""


def config_page() -> str:
    """The text of docs/config.md."""
    parts = [_PAGE_HEAD]
    for option in fields(Config):
        if option.name in SECTIONS:
            parts.append(f"## {SECTIONS[option.name]}\n\n{_option_entry(option)}")
        else:
            parts[-1] += f"\n{_option_entry(option)}"
    parts.append(_modes_part())
    parts.append(_inductor_part())
    return "\n\n".join(parts) + "\n"


_PAGE_HEAD = """\
# Options

This page is generated from `src/gyrator/config.py` by
`python -m tests.config_page > docs/config.md`.

```python
torch.compile(model, backend="gyrator", mode="default", options={"numerics": "eager"})
```

A value comes from, first found first: `options`, `mode`, the environment variable, the default. An option
that does not exist or a value of the wrong type is an error that lists what is valid. In environment
variables, lists are separated by commas and flags are 1 or 0."""


def _option_entry(option: Field[Any]) -> str:
    assert option.default is not MISSING
    default = list(option.default) if isinstance(option.default, tuple) else option.default
    facts = f"{type_text(option_types()[option.name])}; default `{default!r}`; `{env_name(option.name)}`"
    return f"- **`{option.name}`** ({facts})\n  {option.metadata['doc']}"


def _modes_part() -> str:
    rows = [
        f"| `{mode}` | " + (", ".join(f"`{k}={v!r}`" for k, v in values.items()) or "nothing") + " |"
        for mode, values in MODES.items()
    ]
    return "\n".join(["## Modes", "", "| mode | sets |", "|---|---|", *rows])


def _inductor_part() -> str:
    rows = [
        f"| `{inductor}` | " + (f"`{ours}` | yes" if ours else "none | not yet") + f" | {note} |"
        for inductor, (ours, note) in ({name: (name, "") for name in SAME_NAMES} | OTHER_NAMES).items()
    ]
    head = ["## Inductor's names", "", "| TorchInductor | gyrator | works | note |", "|---|---|---|---|"]
    return "\n".join([*head, *rows])


if __name__ == "__main__":
    print(config_page(), end="")

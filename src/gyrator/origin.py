"""Where a node comes from in the user's program: file, line, function and operator. Every nest, kernel and error
carries origins, so that generated code and reports can name the user's lines."""

import re
import sysconfig
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import torch
from torch import fx


@dataclass(frozen=True, slots=True)
class Origin:
    """A place in the user's program and the operator that stands there."""

    file: str
    line: int
    function: str
    op: str

    def __str__(self) -> str:
        if not self.file:
            return f"module {self.function}" if self.function else "unknown place"
        return f"{self.file}:{self.line} in {self.function}" if self.function else f"{self.file}:{self.line}"


Origins = tuple[Origin, ...]

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+?)\s*$', re.MULTILINE)
_PACKAGE = str(Path(__file__).resolve().parent)
_LIBRARIES = (str(Path(torch.__file__).resolve().parent) + "/", _PACKAGE + "/", sysconfig.get_paths()["stdlib"] + "/")


def origin_of(node: fx.Node) -> Origin:
    """The origin of an FX node: the innermost frame of its stack that lies outside torch, gyrator and Python's own
    library. Without a recorded stack, the innermost module that the node ran in stands for the function."""
    file, line, function = _innermost_user_frame(node.meta.get("stack_trace") or "")
    modules = node.meta.get("nn_module_stack")
    if modules and not file:
        function = str([*modules.values()][-1][0])
    target = node.target
    op = str(target) if isinstance(target, (str, torch._ops.OpOverload)) else getattr(target, "__name__", str(target))
    return Origin(file, line, function, op)


def merge(*groups: Origins) -> Origins:
    """The origins of all groups, each once, in the order of their first appearance."""
    return tuple(dict.fromkeys(origin for group in groups for origin in group))


def places_of(origins: Origins) -> tuple[str, ...]:
    """A line for each place of the user's program, with the operators that stand there."""
    found: dict[str, dict[str, None]] = {}
    for origin in origins:
        found.setdefault(str(origin).replace("\n", " "), {})[origin.op] = None
    return tuple(f"{place}: {', '.join(ops)}" for place, ops in found.items())


def first_known(origins: Origins) -> Origin | None:
    """The first of several origins whose file is known, else the first one."""
    return next((o for o in origins if o.file), origins[0] if origins else None)


def place_of(origins: Origins) -> str:
    """The first known `file:line in function` of several origins; "unknown place" where there is none."""
    return str(first_known(origins) or "unknown place")


def in_context(node: fx.Node) -> str:
    """A node between the one before and the one after it, a line each."""
    near = (node.prev, node, node.next)
    return "\n".join(text for n in near if n.op != "root" and (text := n.format_node()) is not None)


@lru_cache(maxsize=4096)
def _innermost_user_frame(stack: str) -> tuple[str, int, str]:
    """File, line and function of the last frame that is no library's; the last frame of all where every one is."""
    frames = [(m["file"], int(m["line"]), m["function"]) for m in _FRAME.finditer(stack)]
    users = (f for f in reversed(frames) if not f[0].startswith(_LIBRARIES) and "/site-packages/torch/" not in f[0])
    return next(users, frames[-1] if frames else ("", 0, ""))

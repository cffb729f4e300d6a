"""A traced program as JSON, without its code: what the shell does and how the halves are joined. With the compiled
graphs, which lie in the cache anyway, a later process has the program without tracing it. Plain values stand for
themselves, all others are an object of one key: {"tuple": [...]}, {"FromInput": [0, …]}."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from operator import attrgetter
from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from gyrator.autograd.aliasing import FromGraph, FromInput, Program
from gyrator.autograd.aot import Traced
from gyrator.autograd.function import Differentiable, Tangent
from gyrator.autograd.interface import BoxedCallable, Update
from gyrator.autograd.views import ViewCall
from gyrator.cache.store import Json


class Unrecordable(ValueError):
    """A program holds something that has no text: a tensor, a symbolic stride, an object of the user's."""


def to_json(traced: Traced) -> dict[str, Json]:
    """Everything about a program but its compiled graphs. Raises: Unrecordable if it cannot be written down."""
    halves = _fields(traced.run, "forward", "backward") if isinstance(traced.run, Differentiable) else None
    return {"program": _encode(traced.program), "halves": halves}


def from_json(data: Mapping[str, Any], calls: Sequence[BoxedCallable]) -> Traced:
    """The program that `to_json` wrote, with its compiled graph, or forward and backward.

    Raises: KeyError, TypeError, ValueError, AttributeError for a text of another version, or without its operators."""
    program: Program = _decode(data["program"])
    if data["halves"] is None:
        return Traced(program, *calls)
    forward, backward = calls
    halves = {name: _decode(value) for name, value in data["halves"].items()}
    return Traced(program, Differentiable(forward, backward, **halves))


def _fields(record: Any, *left_out: str) -> dict[str, Json]:
    return {f.name: _encode(getattr(record, f.name)) for f in fields(record) if f.name not in left_out}


def _named(kind: type, text: str) -> Any:
    """What torch calls so: `torch.float32`, `aten.mm.default`."""
    found = attrgetter(text.removeprefix("torch."))(torch.ops if kind is OpOverload else torch)
    if not isinstance(found, kind):
        raise ValueError(f"{text} is no {kind.__name__}")
    return found


_RECORDS: Mapping[str, type[Any]] = {c.__name__: c for c in (FromGraph, FromInput, Program, Tangent, Update, ViewCall)}
_TYPES: Mapping[str, Callable[[Any], Any]] = {
    **{kind.__name__: partial(_named, kind) for kind in (torch.dtype, torch.layout, torch.memory_format, OpOverload)},
    "device": torch.device,
    "TreeSpec": pytree.treespec_loads,
    "list": lambda items: [_decode(item) for item in items],
    **dict.fromkeys(("tuple", "Size"), lambda items: tuple(_decode(item) for item in items)),
    "dict": lambda items: {key: _decode(item) for key, item in items},
}


def _encode(value: Any) -> Json:
    name = type(value).__name__
    match value:
        case None | bool() | int() | float() | str():
            return value
        case list() | tuple():
            return {name: [_encode(item) for item in value]}
        case dict():
            return {name: [[key, _encode(item)] for key, item in value.items()]}
        case torch.dtype() | torch.layout() | torch.memory_format() | torch.device() | OpOverload():
            return {name: str(value)}
        case pytree.TreeSpec():
            try:
                return {"TreeSpec": pytree.treespec_dumps(value)}
            except (NotImplementedError, TypeError, ValueError) as error:
                raise Unrecordable(str(error)) from error
        case _ if _RECORDS.get(name) is type(value):
            return {name: [*_fields(value).values()]}
    raise Unrecordable(f"a value of type {name}")


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    return _RECORDS[kind](*map(_decode, content)) if kind in _RECORDS else _TYPES[kind](content)

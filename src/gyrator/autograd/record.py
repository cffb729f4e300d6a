"""A traced program as JSON, without its code: what the shell does and how the halves are joined.

With the compiled graphs, which lie in the cache anyway, a later process has the program without tracing it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from gyrator.autograd.aliasing import (
    Forward,
    FromGraph,
    FromInput,
    InputUpdate,
    Literal,
    MetadataChange,
    Number,
    ReplayedView,
    Source,
)
from gyrator.autograd.aot import Traced
from gyrator.autograd.function import Differentiable, Tangent
from gyrator.autograd.interface import BoxedCallable
from gyrator.autograd.shell import Program
from gyrator.autograd.views import View

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class Unrecordable(ValueError):
    """A program holds something that has no text: a tensor, a symbolic stride, an object of the user's."""


def to_json(traced: Traced) -> dict[str, Json]:
    """Everything about a program but its compiled graphs.

    Raises:
        Unrecordable: it cannot be written down.
    """
    program, forward, link = traced.program, traced.program.forward, traced.link
    if program.constants:
        raise Unrecordable("the program holds tensors")
    try:
        structure = pytree.treespec_dumps(forward.structure)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise Unrecordable(str(error)) from error
    return {
        "inputs": program.inputs,
        "written": [*sorted(program.written)],
        "autocast": program.autocast,
        "results": len(forward.nodes),
        "exact": [*forward.exact],
        "updates": [[u.input, u.result, u.tracked] for u in forward.updates],
        "changes": [[c.input, _encode(c.op), _encode(c.args)] for c in forward.changes],
        "sources": [_source_to_json(source) for source in forward.sources],
        "structure": structure,
        "differentiable": [*forward.differentiable],
        "offsets": [[*pair] for pair in forward.offsets],
        "link": None if link is None else _link_to_json(link),
    }


def from_json(data: Mapping[str, Any], forward: BoxedCallable, backward: BoxedCallable | None) -> Traced:
    """The program that `to_json` wrote, with its compiled graphs.

    Raises:
        KeyError, TypeError, ValueError, AttributeError: the text is not of this version or names an operator
        that does not exist.
    """
    results = data["results"]
    description = Forward(
        nodes=(None,) * results,
        tensors=(None,) * results,
        exact=tuple(data["exact"]),
        updates=tuple(InputUpdate(*update) for update in data["updates"]),
        changes=tuple(MetadataChange(at, _decode(op), _decode(args)) for at, op, args in data["changes"]),
        sources=tuple(_source_from_json(source) for source in data["sources"]),
        structure=pytree.treespec_loads(data["structure"]),
        differentiable=tuple(data["differentiable"]),
        offsets=tuple((position, offset) for position, offset in data["offsets"]),
    )
    program = Program(
        run=forward,
        forward=description,
        inputs=data["inputs"],
        constants=(),
        written=frozenset(data["written"]),
        fallback=None,
        autocast=data["autocast"],
    )
    link = data["link"]
    if link is None:
        return Traced(program, None)
    if backward is None:
        raise ValueError("a program with gradients needs a backward graph")
    return Traced(program, _link_from_json(link, forward, backward))


# -- the halves ----------------------------------------------------------------------------------------------
def _link_to_json(link: Differentiable) -> dict[str, Json]:
    return {
        "results": link.results,
        "saved_values": link.saved_values,
        "saved_inputs": [*link.saved_inputs],
        "tangents": [
            [t.result, _encode(t.shape), _encode(t.strides), _encode(t.dtype), _encode(t.device)] for t in link.tangents
        ],
        "gradients": [*link.gradients],
        "inputs": link.inputs,
    }


def _link_from_json(link: Mapping[str, Any], forward: BoxedCallable, backward: BoxedCallable) -> Differentiable:
    return Differentiable(
        forward=forward,
        backward=backward,
        results=link["results"],
        saved_values=link["saved_values"],
        saved_inputs=tuple(link["saved_inputs"]),
        tangents=tuple(Tangent(t[0], *(_decode(part) for part in t[1:])) for t in link["tangents"]),
        gradients=tuple(link["gradients"]),
        inputs=link["inputs"],
    )


# -- outputs -------------------------------------------------------------------------------------------------
def _source_to_json(source: Source) -> Json:
    match source:
        case FromGraph(result, views):
            return ["graph", result, _views_to_json(views)]
        case FromInput(given, views):
            return ["input", given, _views_to_json(views)]
        case Literal(value):
            return ["literal", _encode(value)]


def _source_from_json(source: Sequence[Any]) -> Source:
    match source:
        case ["graph", int(result), views]:
            return FromGraph(result, _views_from_json(views))
        case ["input", int(given), views]:
            return FromInput(given, _views_from_json(views))
        case ["literal", value]:
            return Literal(_decode(value))
    raise ValueError(f"{source} is no source of an output")


def _views_to_json(views: Sequence[ReplayedView]) -> Json:
    return [
        [_encode(v.view.op), _encode(v.view.args), _encode(dict(v.view.kwargs)), v.view.index, v.tracks_grad]
        for v in views
    ]


def _views_from_json(views: Sequence[Any]) -> tuple[ReplayedView, ...]:
    return tuple(
        ReplayedView(View(_decode(op), _decode(args), _decode(kwargs), index), tracks)
        for op, args, kwargs, index, tracks in views
    )


# -- values --------------------------------------------------------------------------------------------------
_TYPES: Mapping[str, Callable[[str], Any]] = {
    "dtype": lambda text: _member(text, torch.dtype),
    "layout": lambda text: _member(text, torch.layout),
    "memory_format": lambda text: _member(text, torch.memory_format),
    "device": torch.device,
    "op": lambda text: _operator(text),
}


def _encode(value: Any) -> Json:
    """Plain numbers and strings as they are; everything else as an object of one key, its kind."""
    match value:
        case None | bool() | int() | float() | str():
            return value
        case Number(result):
            return {"number": result}
        case list() | tuple():
            return {type(value).__name__: [_encode(item) for item in value]}
        case dict():
            return {"dict": [[key, _encode(item)] for key, item in value.items()]}
        case torch.dtype():
            return {"dtype": str(value)}
        case torch.layout():
            return {"layout": str(value)}
        case torch.memory_format():
            return {"memory_format": str(value)}
        case torch.device():
            return {"device": str(value)}
        case OpOverload():
            return {"op": str(value)}
    raise Unrecordable(f"a value of type {type(value).__name__}")


def _decode(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    match kind:
        case "number":
            return Number(content)
        case "list":
            return [_decode(item) for item in content]
        case "tuple" | "Size":
            return tuple(_decode(item) for item in content)
        case "dict":
            return {key: _decode(item) for key, item in content}
    return _TYPES[kind](content)


def _member(text: str, kind: type) -> Any:
    found = getattr(torch, text.removeprefix("torch."))
    if not isinstance(found, kind):
        raise ValueError(f"{text} is no {kind.__name__}")
    return found


def _operator(text: str) -> OpOverload:
    library, packet, overload = text.split(".")
    found = getattr(getattr(getattr(torch.ops, library), packet), overload)
    if not isinstance(found, OpOverload):
        raise ValueError(f"{text} is no operator")
    return found

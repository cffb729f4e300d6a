"""What an operator does besides returning values, read from its schema: views, writes, effects, and how to undo writes.

functional_form(add_.Tensor) → add.Tensor        the new value is the last result"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch._ops import OpOverload
from torch.fx import Node

aten = torch.ops.aten

Effect = Enum("Effect", "PURE VIEW WRITES METADATA BATCH_NORM NUMBER STATEMENT REFUSED")
"""What recording must do about an operator."""


@dataclass(frozen=True)
class Behaviour:
    """How an operator behaves.

    Attributes:
        effect: the kind.
        written: names of the arguments that it writes, in the schema's order.
        functional: the operator that computes the same without writing; None if there is none.
        plain_results: how many results are not the written arguments themselves."""

    effect: Effect
    written: tuple[str, ...] = ()
    functional: OpOverload | None = None
    plain_results: int = 0


BATCH_NORMS = frozenset({aten.native_batch_norm.default, aten.cudnn_batch_norm.default, aten.miopen_batch_norm.default})
"""They update running statistics though their schemas do not say so."""

_REFUSED = frozenset("resize_ resize_as_ resize_storage_bytes_ set_ set_data shallow_copy_data_ set".split())


@cache
def behaviour(op: OpOverload) -> Behaviour:
    """The behaviour of `op`, from its schema."""
    schema = op._schema
    if op in BATCH_NORMS:
        return Behaviour(Effect.BATCH_NORM)
    if op.namespace in ("aten", "inductor") and schema.name.partition("::")[2] in _REFUSED:
        return Behaviour(Effect.REFUSED)
    if torch.Tag.inplace_view in op.tags:
        return Behaviour(Effect.METADATA, functional=_functional_form(op))
    if schema.is_mutable:
        written = tuple(a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write)
        plain = sum(result.alias_info is None for result in schema.returns)
        return Behaviour(Effect.WRITES, written, _functional_form(op), plain)
    if op.is_view:
        return Behaviour(Effect.VIEW)
    if not schema.returns:
        return Behaviour(Effect.STATEMENT)
    if not any("Tensor" in str(result.type) for result in schema.returns):
        return Behaviour(Effect.NUMBER)
    return Behaviour(Effect.PURE)


def is_statement(node: Node) -> bool:
    """Whether a node is there for what it does, not for what it returns."""
    return isinstance(node.target, OpOverload) and behaviour(node.target).effect is Effect.STATEMENT


def arguments(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call by name; those left out are missing."""
    return {**dict(zip((a.name for a in op._schema.arguments), args, strict=False)), **kwargs}


def _functional_form(op: OpOverload) -> OpOverload | None:
    """The overload with the same arguments, less those that only receive results, that writes nothing."""
    schema = op._schema
    wanted = [(argument.name, str(argument.type)) for argument in schema.arguments if not argument.is_out]
    name = schema.name.partition("::")[2]
    base = name[:-1] if name.endswith("_") and not name.endswith("__") else name
    library = getattr(torch.ops, op.namespace)
    packets = [getattr(library, found) for found in (base, f"{base}_functional") if hasattr(library, found)]
    overloads = (getattr(packet, name) for packet in packets for name in packet.overloads())
    pure = (found for found in overloads if found._schema.returns and not found._schema.is_mutable)
    return next((found for found in pure if [(a.name, str(a.type)) for a in found._schema.arguments] == wanted), None)

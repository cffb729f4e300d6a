"""Interning (hash-consing): building the same immutable node twice gives the same object. Equality of interned nodes is
identity, so a comparison costs nothing, a dictionary keyed by nodes never walks a tree, and an analysis may be memoised
on the node itself."""

import dataclasses
import struct
from collections.abc import Callable
from functools import partial
from inspect import get_annotations
from typing import Any, TypeVar, dataclass_transform
from weakref import ref

T = TypeVar("T")
Table = dict[object, ref[object]]


@dataclass_transform(frozen_default=True, eq_default=False, field_specifiers=(dataclasses.field,))
def interned(cls: type[T]) -> type[T]:
    """Class decorator: makes ``cls`` an interned, frozen dataclass.

    Numbers that are equal yet different (``1`` and ``True``, ``0.0`` and ``-0.0``) are told apart in fields annotated
    as ``Scalar``. Names with a first ``_`` (``field(init=False)``), of bases too, are cache slots, at first None."""
    record = dataclasses.dataclass(frozen=True, slots=True, weakref_slot=True, eq=False, init=False, repr=False)
    new: Any = record(cls)
    names = get_annotations(cls)
    fields = [n for n in names if not n.startswith("_")]
    caches = [n for c in cls.__mro__ for n in get_annotations(c) if n.startswith("_")]
    defaults = {f.name: f.default for f in dataclasses.fields(new) if f.default is not dataclasses.MISSING}
    table: Table = {}
    scope: dict[str, object] = {"get": table.get, "put": _adder(table), "make": object.__new__, "defaults": defaults}
    scope.update({f"set_{n}": getattr(new, n).__set__ for n in (*fields, *caches)})
    scope["bits"] = lambda x: (type(x), struct.pack("d", x) if isinstance(x, float) else x)
    params = ", ".join(f"{n}=defaults[{n!r}]" if n in defaults else n for n in fields)
    parts = [f"bits({n})" if names[n] == "Scalar" else n for n in fields]
    lines = [
        f"def __new__(cls, {params}):",
        f"    k = {parts[0]}" if len(parts) == 1 else f"    k = ({', '.join(parts)})",
        "    found = get(k)",
        "    if found is not None:",
        "        node = found()",
        "        if node is not None: return node",
        "    node = make(cls)",
        *[f"    set_{n}(node, {n})" for n in fields],
        *[f"    set_{n}(node, None)" for n in caches],
        "    return put(k, node)",
    ]
    exec("\n".join(lines), scope)  # one constructor per class, built from field names alone
    new.__new__, new.__reduce__ = scope["__new__"], _reduce
    return new


def remember(node: object, slot: str, value: T) -> T:
    """``value``, now also in a cache slot of ``node``."""
    object.__setattr__(node, slot, value)
    return value


def _adder(table: Table) -> Callable[[object, object], object]:
    """A function that enters a node under its key, or gives the one that another thread entered first.
    The table holds nodes weakly. A plain dictionary of references is twice as fast as WeakValueDictionary."""

    def forget(key: object, dead: ref[object]) -> None:
        if table.get(key) is dead:
            del table[key]

    def put(key: object, node: object) -> object:
        new = ref(node, partial(forget, key))
        while True:
            entered = table.setdefault(key, new)
            if entered is new:
                return node
            if (first := entered()) is not None:
                return first
            forget(key, entered)

    return put


def _reduce(self: object) -> tuple[type, tuple[object, ...]]:
    """Copies and pickles rebuild the node, and so find the one that exists."""
    fields: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]
    return type(self), tuple(getattr(self, n) for n in fields)

"""Interning (hash-consing): building the same immutable node twice gives the same object.

Equality of interned nodes is identity, so a comparison costs nothing, a dictionary keyed by nodes never
walks a tree, and an analysis may be memoised on the node itself."""

import struct
from collections.abc import Callable
from functools import partial
from inspect import get_annotations
from typing import TypeAlias, TypeVar, dataclass_transform
from weakref import ref

T = TypeVar("T")
Table: TypeAlias = "dict[object, ref[object]]"


@dataclass_transform(frozen_default=True, eq_default=False)
def interned(cls: type[T]) -> type[T]:
    """Class decorator: makes ``cls`` an immutable, interned record of its annotated fields.

    Fields take defaults as in a dataclass. Numbers that are equal yet different (``1`` and ``True``, ``0.0`` and
    ``-0.0``) are told apart in fields annotated as ``Scalar``. A name that starts with ``_`` (annotated as ClassVar for
    type checkers) is a cache slot, not a field: it begins as None. So do those slots of base classes."""
    names = get_annotations(cls)
    fields = [n for n in names if not n.startswith("_")]
    caches = [n for c in cls.__mro__ for n in get_annotations(c) if n.startswith("_")]
    defaults = {n: cls.__dict__[n] for n in fields if n in cls.__dict__}
    body = {k: v for k, v in cls.__dict__.items() if k not in defaults and k not in ("__dict__", "__weakref__")}
    body["__slots__"] = (*names, "__weakref__")
    new = type(cls.__name__, cls.__bases__, body)
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
    methods = {"__new__": scope["__new__"], "__init__": _no_init, "__setattr__": _refuse, "__reduce__": _reduce}
    for name, method in {**methods, "__match_args__": tuple(fields)}.items():
        setattr(new, name, method)
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
            first = entered()
            if first is not None:
                return first
            forget(key, entered)

    return put


def _reduce(self: object) -> tuple[type, tuple[object, ...]]:
    """Copies and pickles rebuild the node, and so find the one that exists."""
    fields: tuple[str, ...] = type(self).__match_args__  # type: ignore[attr-defined]
    return type(self), tuple(getattr(self, n) for n in fields)


def _no_init(self: object, *args: object, **kwargs: object) -> None:
    """Fields are set by ``__new__``, once."""


def _refuse(self: object, name: str, value: object) -> None:
    raise AttributeError(f"{type(self).__name__} is immutable: cannot set {name!r}")

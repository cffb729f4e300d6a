"""Parts of a concatenation that is a call are made where they end, as are the states of a recurrence.

a = f(x)[n, 64];  b = g(a)[n, 64];  …;  y = cat([a, b, …], 1)
→
a, b, … lie within y, in rows as long as those of y, and nothing is moved"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from gyrator.ir.expr import Value
from gyrator.ir.index import ONE, ZERO, Index, contiguous_strides, is_less, product
from gyrator.ir.program import Arg, Extern, Nest, Node, Program, View, views
from gyrator.ir.volume import volume
from gyrator.schedule.pad import PRODUCTS, copied, free_results, needed

LEAST_RUN = 64
"""Bytes of a part that lie one after the other from which on it is worth writing them apart from the next."""


def lay_parts(program: Program) -> Program:
    """Give parts of concatenations the strides that they have within the result.

    Before: ``a: f32[n, 64]@[64, 1];  y: f32[n, 640] = cat([a, …], 1)``; after: ``a: f32[n, 64]@[640, 1]``.

    A part that no nest makes, that is shown, is a part twice, or that another call than matrix products needs as it
    lies, is copied there by a nest. Refuses calls of which that would be more than half; of which a part is no whole
    value, or has fewer than 64 bytes in a row."""
    calls = [node for node in program.nodes if isinstance(node, Extern)]
    found = {node: parts for node in calls if (parts := _parts(node))}
    if not found:
        return program
    windows = {n: [v for v in views(n) if n in found or (n.op in PRODUCTS and _is_window(v))] for n in calls}
    free = free_results(program) - needed(program, windows)
    laid, copies = dict[Value, Value](), dict[Extern, dict[int, Nest]]()
    for node, parts in found.items():
        mine = {v for v, times in Counter(view.value for view, _ in parts).items() if times == 1 and v in free}
        if 2 * len(mine) >= len(parts):
            free -= mine
            laid |= {view.value: _laid(view, node) for view, _ in parts if view.value in mine}
            copies[node] = {k: _copy(v, node, k) for k, (v, _) in enumerate(parts) if v.value not in mine}
    nodes: list[Node] = []
    for step in program.nodes:
        copied = copies.get(step, {}) if isinstance(step, Extern) else {}
        nodes += (nest.renamed(laid) for nest in copied.values())
        nodes.append(_moved(step, laid, copied))
    return replace(program, nodes=tuple(nodes))


def joined(program: Program) -> dict[Extern, tuple[dict[Value, Index], Index]]:
    """Concatenations whose parts are made within the result: where each begins there, in elements; and the rows."""
    free = free_results(program)
    found: dict[Extern, tuple[dict[Value, Index], Index]] = {}
    for node in (node for node in program.nodes if isinstance(node, Extern)):
        parts = _parts(node)
        at = {view.value: start for view, start in parts if view.value is _laid(view, node)}
        if parts and len(at) == len(parts) and at.keys() <= free:
            free -= at.keys()
            found[node] = at, product(parts[0][0].shape[: _along(node)])
    return found


def _parts(node: Extern) -> list[tuple[View, Index]]:
    """The parts, and where each begins in the result; none if one is another view than of a whole value."""
    whole = node.out[0] if node.op == "aten.cat.default" else None
    if whole is None or whole.strides != contiguous_strides(whole.shape):
        return []
    along, start = _along(node), ZERO
    found: list[tuple[View, Index]] = []
    for view in views(node):
        row = volume(view.shape[along:]) * whole.dtype.itemsize
        if not _is_window(view, whole=True) or view.value.dtype != whole.dtype or row < LEAST_RUN:
            return []
        found.append((view, start * whole.strides[along]))
        start += view.shape[along]
    return found if start is whole.shape[along] else []


def _along(node: Extern) -> int:
    dim = node.args[1] if len(node.args) > 1 else 0
    assert isinstance(dim, int)
    return dim % len(views(node)[0].shape)


def _is_window(view: View, *, whole: bool = False) -> bool:
    """Whether a view begins where its value does and stays within the value's dimensions; has all, if ``whole``."""
    shown, own = _sides(view), _sides(view.value)
    if view.offset is not ZERO or view.dtype is not None:
        return False
    ends = [(sum((n - 1 for n, s in shown if s is step), ZERO), step) for _, step in shown]
    return shown == own if whole else all(any(s is step and is_less(end, n) for n, s in own) for end, step in ends)


def _sides(of: View | Value) -> list[tuple[Index, Index]]:
    """The sizes and steps of dimensions that do not have one element."""
    return [(n, step) for n, step in zip(of.shape, of.strides, strict=True) if n is not ONE]


def _laid(view: View, node: Extern, name: str = "") -> Value:
    """The value of a part with the strides of the result of ``node``."""
    whole, value = node.out[0], view.value
    assert whole is not None
    steps = iter([step for n, step in zip(view.shape, whole.strides, strict=True) if n is not ONE])
    strides = [step if n is ONE else next(steps) for n, step in zip(value.shape, value.strides, strict=True)]
    return replace(value, name=name or value.name, strides=tuple(strides))


def _copy(view: View, node: Extern, number: int) -> Nest:
    return copied(view.value.shape, view.value, _laid(view, node, f"{node.out[0]}_part{number}"), node.origins)


def _moved(node: Node, laid: Mapping[Value, Value], copied: Mapping[int, Nest]) -> Node:
    """The same node of values that lie elsewhere; ``copied`` are parts by their numbers."""
    if isinstance(node, Nest):
        return node.renamed(laid)

    def moved(arg: Arg, new: Value | None = None) -> Arg:
        if isinstance(arg, tuple):
            return tuple(map(moved, arg, (nest.out[0] if (nest := copied.get(k)) else None for k in range(len(arg)))))
        value = (new or laid.get(arg.value)) if isinstance(arg, View) else None
        if value is None or not isinstance(arg, View):
            return arg
        steps = {old: new for (_, old), (_, new) in zip(_sides(arg.value), _sides(value), strict=True)}
        return replace(arg, value=value, strides=tuple(steps.get(step, step) for step in arg.strides))

    return replace(node, args=tuple(map(moved, node.args)))

"""Masks of attention before autograd: they decide which library kernel runs, and so what backward saves.

    attention(q, k, v, mask = arange(s)[None, :] >= 0)               →  attention(q, k, v)
    attention(q, k, v, mask = arange(s)[None, :] <= arange(s)[:, None])  →  attention(q, k, v, is_causal=True)
    attention(q, *(x[:, :, None].expand(b, h, g, n, d).reshape(b, h * g, n, d) for x in (k, v)))
                                                    →  attention(q, k, v, enable_gqa=True), on a CPU and in the template

Models under a compiler build masks that an eager run leaves away. One that is made of constants alone is computed when
the program is compiled. So is, for several sizes, one whose sizes vary, if it only compares sums of positions and
constants: sizes beyond all the constants tell of all sizes. Of the others those whose rows are not contiguous are
copied, because the fused kernels of GPUs refuse them and attention would be computed in float32, score by score. Those
that have gradients stay: eager computes them that way, and more precisely than the fused kernels."""

from collections.abc import Mapping, MutableMapping, Sequence, Set
from contextlib import suppress
from functools import cache
from inspect import isfunction, signature
from math import prod
from operator import attrgetter
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_aggregate, map_arg

from gyrator import torch_compat
from gyrator.autograd.builder import Args, Kwargs, ancestors
from gyrator.autograd.effects import arguments
from gyrator.autograd.symbols import expression
from gyrator.ir.evaluate import unrepeated

_UPDATES = "setitem iadd isub imul itruediv ifloordiv imod ipow iand ior ixor ilshift irshift".split()
_COMPARE = frozenset("add sub diff cumsum eq ne le lt ge gt".split())
_CHOOSE = frozenset(
    "and or invert logical_and logical_or logical_not bitwise_and bitwise_or arange getitem unsqueeze expand to ones "
    "zeros full new_ones new_zeros new_full tril triu where masked_fill".split()
)
_EXACT = (torch.bool, torch.int32, torch.int64)
"""What a mask of any size may be made by: sums and comparisons of such numbers, and what no number decides."""
_MOST_ELEMENTS = {"cpu": 1 << 26, "cuda": 1 << 30}
"""That are computed to know a mask, by the device on which it is: some 50 ms."""
Kind = Literal["open", "causal"]
"""What a known mask lets pass: all scores, or those of keys that are not after the query."""
Kinds = Mapping[int, Kind]
"""Of masks among a graph's inputs, by position."""


class Masks:
    """What masks are, by the nodes that make them, or by the position of inputs. Mutable, and private to one trace."""

    def __init__(self, graph: Graph, given: Kinds) -> None:
        self._makers: dict[int, tuple[Node, Tensor, bool]] = {}
        inputs = {node: given[at] for at, node in enumerate(graph.find_nodes(op="placeholder")) if at in given}
        self._about = cache(_sizes_and_written)  # of one graph it is asked for each mask
        written = self._about(graph)[1] if inputs else ()
        unwritten = {(node, False): kind for node, kind in inputs.items() if memory_of(node) not in written}
        self._known: dict[tuple[Node, bool], Kind | None] = {**unwritten}
        self._values: dict[Node, Any] = {}
        self._last: Node | None = None

    def note(self, node: Node, value: object) -> None:
        """Remember which node made a value first; the value too, lest another one get its place in memory."""
        self._values[node], self._last = value, node
        if isinstance(value, Tensor):
            self._makers.setdefault(id(value), (node, value, False))

    def inverse(self, mask: Tensor) -> Tensor:
        """`~mask`, of which is known what is known of `mask`."""
        inverse = ~mask
        if id(mask) in self._makers:
            node, _, inverted = self._makers[id(mask)]
            self._makers[id(inverse)] = (node, inverse, not inverted)
        return inverse

    def simplified(self, target: object, args: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
        """The arguments of a call; those of attention with a simpler mask that means the same."""
        if target is not F.scaled_dot_product_attention:
            return args, kwargs
        given = arguments(torch.ops.aten.scaled_dot_product_attention.default, args, kwargs)
        given = self.shared(given) if given["query"].device.type == "cpu" else given
        mask = given.get("attn_mask")
        if not isinstance(mask, Tensor) or given.get("is_causal"):
            return (), given
        kind = self.kind(mask)
        if kind == "open":
            given["attn_mask"] = None
        elif kind == "causal" and mask.shape[-2:] == (given["query"].shape[-2], given["key"].shape[-2]):
            given |= {"attn_mask": None, "is_causal": True}
        elif mask.device.type == "cuda" and mask.ndim >= 2 and mask.stride(-1) != 1 and not mask.requires_grad:
            given["attn_mask"] = in_rows(mask)
        return (), given

    def shared(self, given: Kwargs) -> Kwargs:
        """Arguments of attention with keys and values that were not copied for heads that share them."""
        key, value = (self._before_copies(given[name], given["query"]) for name in ("key", "value"))
        if given.get("enable_gqa") or key is None or value is None or key.shape[1] != value.shape[1]:
            return given
        return {**given, "key": key, "value": value, "enable_gqa": True}

    def _before_copies(self, x: Tensor, query: Tensor) -> Tensor | None:
        """Keys or values before they were copied for heads that share them; None if not, or written since."""
        chain: list[Any] = [self._makers.get(id(x), (None,))[0]]
        for name in ("reshape", "expand"):
            if not isinstance(chain[-1], Node) or name_of(chain[-1]) != name or not chain[-1].args:
                return None
            chain.append(chain[-1].args[0])
        (copied, wide, was), last = map(self._values.get, chain), self._last
        if copied is not x or wide is None or was is None or last is None or last.graph is not chain[0].graph:
            return None
        fits = was.ndim == 5 and was.shape == (*wide.shape[:2], 1, *wide.shape[3:])
        joins = fits and x.shape == (was.shape[0], query.shape[1], *was.shape[3:])
        joins = joins and x.requires_grad == was.requires_grad  # else gradients end here
        return was.squeeze(2) if joins and not writes_between(chain[0], last.next) else None

    def kind(self, mask: Tensor) -> Kind | None:
        """What a mask lets pass, if the program's text tells."""
        node, _, inverted = self._makers.get(id(mask), (None, None, False))
        return self.kind_of(node, mask.device, inverted=inverted) if node else None

    def kind_of(self, node: Node, device: torch.device, *, inverted: bool = False) -> Kind | None:
        """What the mask that a node makes lets pass, or its inverse."""
        if (node, inverted) not in self._known:
            sizes, written = self._about(node.graph)
            sources = sorted(ancestors([node], known=sizes))  # sizes count as given, wherever they are read
            with torch_compat.outside_tracing(), torch.no_grad():
                found = [_evaluated(sources, given) for given in _tried(sources, sizes, written, device)]
                kinds = {_kind_of(~x if inverted and x is not None else x) for x in found}
            self._known[node, inverted] = kinds.pop() if len(kinds) == 1 else None
        return self._known[node, inverted]


def handed_on(graph: Graph, told: MutableMapping[Tensor, Kind]) -> Kinds:
    """What is `told` of masks that a part of a captured graph gets, by position; of those that it hands on, other parts
    are told. The captured tensor that a node has is one in all parts."""
    captured = [node.meta.get("example_value") for node in graph.find_nodes(op="placeholder")]
    found = {at: told[x] for at, x in enumerate(captured) if isinstance(x, Tensor) and x in told}
    masks = Masks(graph, found)
    for node in graph.output_node().all_input_nodes:
        value = node.meta.get("example_value")
        if isinstance(value, Tensor) and (kind := masks.kind_of(node, value.device)) is not None:
            told[value] = kind
    return found


def _tried(sources: list[Node], sizes: Set[Node], written: Set[object], device: torch.device) -> list[dict[Node, int]]:
    """Numbers for those of the ``sizes`` that the last node follows from. None at all where it does not follow from
    them and constants alone, which nothing changes in place, at little cost, or not in a way that a few tell of all."""
    varying = {n: expression(n.meta["example_value"]) for s in sources for n in s.all_input_nodes if n in sizes}
    constant = all(name_of(s) and memory_of(s) not in written for s in sources)
    if not constant or (varying and not all(map(_is_positional, sources))):
        return []
    numbers = [abs(int(n)) for size in varying.values() for n in size.atoms() if n.is_Integer]
    most = dict.fromkeys(varying, 1)  # what positions and constants add up to in a node, or are compared with
    for node in sources:
        read: list[Any] = []
        map_aggregate((node.args, node.kwargs), read.append)
        numbers += [abs(x) for x in read if type(x) is int]
        found = [1, *(abs(x) if type(x) is int else most.get(x, 0) for x in read)]
        most[node] = (sum if name_of(node).strip("_") in _COMPARE else max)(found)
    symbols = sorted({s for size in varying.values() for s in size.free_symbols}, key=str)
    far = 2 * max(sum(numbers), *most.values()) + 9
    made = [x for node in sources if isinstance(x := node.meta.get("example_value", node.meta.get("val")), Tensor)]
    longest = far * (len(symbols) + 1)
    if sum(prod(n if type(n) is int else longest for n in x.shape) for x in made) > _MOST_ELEMENTS.get(device.type, 0):
        return []
    orders = (symbols, symbols[::-1])  # nothing says which of two numbers is larger, or whether one is
    some = {2, 3, *numbers, sum(numbers), far} - {0, 1}  # what grows with a size may pass a constant
    each = {tuple((s, n + d * k) for k, s in enumerate(order)) for order in orders for n in some for d in (far, 0)}
    return [{node: int(size.subs(n)) for node, size in varying.items()} for n in sorted(map(dict, each), key=str)]


def _is_positional(node: Node) -> bool:
    """Whether positions in it are exact, or it is a mask of numbers, which only chooses among constants."""
    here, *given = (n.meta.get("example_value") for n in (node, *node.all_input_nodes))
    exact = all(x.dtype in _EXACT for x in given if isinstance(x, Tensor))
    name = name_of(node).strip("_")  # ``__eq__`` is ``eq``, ``and_`` is ``and``
    chosen = name in _CHOOSE and isinstance(here, Tensor) and (exact or here.dtype not in _EXACT)
    return chosen or (name in _COMPARE and exact)


def name_of(node: Node) -> str:
    """What the function or method that a node calls is called; nothing where it calls none of torch or Python."""
    home = getattr(node.target, "__module__", None) or "torch"  # a method of tensors is in no module
    named = home.split(".")[0] in ("torch", "_operator", "builtins") and home.partition("._ops.")[2] in ("", "aten")
    return str(getattr(node.target, "__name__", node.target)) if named and node.op.startswith("call") else ""


def memory_of(node: object) -> int | None:
    """Which memory the tensor that a captured node stands for has; None for what has none."""
    value = node.meta.get("example_value", node.meta.get("val")) if isinstance(node, Node) else None
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return None
    return torch.func.debug_unwrap(value).untyped_storage()._cdata


def mutates(node: Node) -> bool:
    """Whether a node of a captured graph writes into one of its arguments."""
    name = str(getattr(node.target, "__name__", node.target))
    given = {**dict(zip(_parameters(node.target), node.args, strict=False)), **node.kwargs}
    schema = getattr(getattr(node.target, "default", node.target), "_schema", None)
    if "out" in given or name == "triton_kernel_wrapper_mutation" or (schema is not None and schema.is_mutable):
        return True
    if isinstance(node.target, HigherOrderOperator) and any(map(_writes_into_inputs, _bodies(node))):
        return True
    if given.get("inplace") or given.get("max_norm") is not None:  # by the latter an embedding scales rows of its table
        return True
    of_operator = getattr(node.target, "__module__", "") == "_operator"  # which calls ``and`` ``and_``
    return name.strip("_") in _UPDATES or (name.endswith("_") and not (of_operator or name.endswith("__")))


@cache
def _parameters(function: object) -> tuple[str, ...]:
    """What a Python function calls its arguments; nothing of any other, which has a schema or a name that tells."""
    with suppress(ValueError):  # one that wraps a builtin has none that is known: Tensor.__pow__
        return tuple(signature(function).parameters) if isfunction(function) else ()
    return ()


def _sizes_and_written(graph: Graph) -> tuple[Set[Node], Set[object]]:
    """The nodes of a graph that are sizes, and the memory that it writes into."""
    sizes = {node for node in graph.nodes if type(node.meta.get("example_value")) is torch.SymInt}
    return sizes, {memory_of(i) for node in graph.nodes if mutates(node) for i in node.all_input_nodes} - {None}


def _bodies(node: Node) -> list[GraphModule]:
    """The graphs that a node runs."""
    owner = node.graph.owning_module
    held = [attrgetter(str(n.target))(owner) for n in node.all_input_nodes if n.op == "get_attr" and owner is not None]
    return [body for body in held if isinstance(body, GraphModule)]


def _writes_into_inputs(body: GraphModule) -> bool:
    given = {memory_of(node) for node in body.graph.find_nodes(op="placeholder")} - {None}
    return any(mutates(n) and not given.isdisjoint(map(memory_of, n.all_input_nodes)) for n in body.graph.nodes)


def may_mutate(node: Node) -> bool:
    """Whether a node writes into one of its arguments, or the graph that it runs may."""
    return isinstance(node.target, HigherOrderOperator) or mutates(node)


def writes_between(first: Node, last: Node, links: Sequence[Node] = ()) -> bool:
    """Whether something writes into memory between two nodes, but a link into the one before, or switches gradients."""
    node = last.prev
    while node is not first:
        own = node in links and node.args and node.args[0] in links
        if name_of(node) == "_set_grad_enabled" or (may_mutate(node) and not own):
            return True
        node = node.prev
    return False


def _evaluated(sources: list[Node], sizes: Mapping[Node, int]) -> Tensor | None:
    """Computes the last node on its device. None if that fails, or draws random numbers."""
    values: dict[Node, Any] = {**sizes}
    states = _random_states()
    try:
        for source in sources:
            args, kwargs = map_arg((source.args, source.kwargs), values.__getitem__)
            call = getattr(type(args[0]), source.target) if isinstance(source.target, str) else source.target
            values[source] = call(*args, **kwargs)
    except (RuntimeError, TypeError, ValueError, IndexError):  # a GPU that is not here, for one
        return None
    if not all(map(torch.equal, states, _random_states())):
        for restore, state in zip((torch.set_rng_state, torch.cuda.set_rng_state), states, strict=False):
            restore(state)
        return None
    return unrepeated(values[sources[-1]])


def _random_states() -> list[Tensor]:
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


def _kind_of(mask: Tensor | None) -> Kind | None:
    """None for a mask that lets other scores pass, or that adds something else than zero or minus infinity."""
    if mask is None or mask.ndim < 2:
        return None
    passing = mask if mask.dtype == torch.bool else mask == 0
    if mask.dtype != torch.bool and not bool((passing | (mask <= torch.finfo(mask.dtype).min)).all()):
        return None
    if bool(passing.all()):
        return "open"
    queries, keys = mask.shape[-2:]
    triangle = torch.ones(queries, keys, dtype=torch.bool, device=mask.device).tril()
    return "causal" if queries == keys and bool((passing == triangle).all()) else None


def in_rows(mask: Tensor) -> Tensor:
    """The mask with contiguous rows; those that are repeated are in memory once."""
    return unrepeated(mask, mask.ndim - 1).contiguous().expand(mask.shape)

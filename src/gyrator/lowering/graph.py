"""From a functional ATen graph to a :class:`~gyrator.ir.program.Program`, node by node."""

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import fx
from torch._ops import OpOverload

from gyrator import torch_compat
from gyrator.autograd.builder import flatten, mapped
from gyrator.autograd.decompositions import Numerics, stays_whole
from gyrator.autograd.partition.recompute import Cost, cost
from gyrator.ir.build import COMPUTED, holds, number, op
from gyrator.ir.evaluate import as_reals
from gyrator.ir.expr import Expr, Scalar, Value
from gyrator.ir.index import ZERO, Index, Size
from gyrator.ir.program import Derived, Input, Output, Program, Update, View
from gyrator.ir.symbols import Symbols
from gyrator.lowering import creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views
from gyrator.lowering.builder import Builder, Family, Meta
from gyrator.lowering.complex_numbers import LOWERINGS as COMPLEX
from gyrator.lowering.extern import Result, refused
from gyrator.lowering.refs import TensorRef, promoting_like, whole
from gyrator.origin import origin_of
from gyrator.passes import blame

aten = torch.ops.aten

FAMILIES = (creation, extern, gathers, joins, pointwise, pooling, reductions, sampling, scatters, views)
LOWERINGS: Family = {op: row for family in FAMILIES for op, row in family.LOWERINGS.items()}
"""Every lowering by operator overload; no operator stands in two families. Others become extern calls."""
_CHECKED = frozenset(
    "add addcdiv addcmul clamp clamp_max clamp_min constant_pad_nd full full_like index_fill pow scatter sub".split()
)
"""What eager's kernels refuse numbers for that the type of the result does not hold."""


@dataclass(frozen=True)
class Lowered:
    """A program and what it refers to.

    Attributes:
        program: the nests and calls.
        constants: the tensors it holds, by key.
        fallbacks: the operator of each extern call that stands for a node of the graph.
        regions: the graphs that extern calls named ``gyrator.region_k.default`` run op by op."""

    program: Program
    constants: Mapping[str, torch.Tensor] = field(default_factory=dict)
    fallbacks: tuple[str, ...] = ()
    regions: Mapping[str, fx.GraphModule] = field(default_factory=dict)


def lower(
    graph: fx.GraphModule,
    symbols: Symbols,
    name: str = "graph",
    updates: Sequence[tuple[int, int]] = (),
    numerics: Numerics = "fast",
    computed: frozenset[torch.dtype] = COMPUTED,
) -> Lowered:
    """The program that computes what ``graph`` does.

    Args:
        graph: functional ATen ops after decomposition. Shapes, dtypes and strides come from ``meta["val"]``.
            Its only mutations are auto_functionalized ops and effectful calls.
        numerics: "eager" leaves random ops to the library, so that they draw eager's own numbers.
        computed: the dtypes of kernels; operators on others stay calls.
        updates: pairs (input, output): that output is the input's new value; the program returns None there.

    Raises:
        UnsupportedOperator: an op that can neither be lowered nor called.
        InternalCheckError: a lowering failed; names the node and the user's line."""
    return _Lowering(graph, symbols, numerics, computed).run(name, updates)


class _Lowering:
    """One walk over one graph: what each FX node became so far."""

    def __init__(
        self, graph: fx.GraphModule, symbols: Symbols, numerics: Numerics, computed: frozenset[torch.dtype]
    ) -> None:
        self.graph = graph
        self.random = numerics == "fast"
        draws = sum(n.target in creation.RANDOM for n in graph.graph.nodes) if self.random else 0
        self.b = Builder(symbols, draws, computed, deterministic=torch.are_deterministic_algorithms_enabled())
        self.rounding = rounding_nodes(graph.graph) if self.random else frozenset[fx.Node]()
        self.env: dict[fx.Node, Result] = {}
        self.inputs: list[Input] = []
        self.constants: dict[Value, torch.Tensor] = {}
        given = [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")]
        known = {number.node.expr for number in torch_compat.symbolic_numbers(given)}
        for value in given:
            if isinstance(value, torch.SymInt) and not value.node.expr.free_symbols <= known:
                symbols.opaque(value.node.expr)
        values = [(node.target, node.meta.get("val")) for node in graph.graph.nodes]
        computed_here = [v.node.expr for target, v in values if isinstance(v, torch.SymInt) or target is round]
        self.roots = frozenset[object]().union(*[expr.free_symbols for expr in computed_here])

    def run(self, name: str, updates: Sequence[tuple[int, int]]) -> Lowered:
        end = self.graph.graph.output_node()
        for node in [node for node in self.graph.graph.nodes if node is not end]:
            origin = origin_of(node)
            with blame(node, origin):
                self.b.begin(node, origin, last=_is_last(node))
                self.env[node] = self._node(node)
        shown = [(self._argument(traced), traced) for traced in flatten(end.args[0])]
        outputs: list[Output] = [extern.argument(self.b, end, *pair, exact=True) for pair in shown]  # type: ignore[misc]
        changed = self._updates(updates, outputs)
        program = Program(
            name, tuple(self.inputs), tuple(self.b.nodes), tuple(outputs), changed, tuple(self.constants),
            self._derived(),
        )  # fmt: skip
        constants = {value.name: tensor for value, tensor in self.constants.items()}
        return Lowered(program, constants, tuple(self.b.fallbacks), self.b.regions)

    def _node(self, node: fx.Node) -> Result:
        if node.op == "placeholder":
            return self._placeholder(node)
        if node.op == "get_attr":
            return self._attribute(node)
        target = node.target
        if target is operator.getitem:
            collection, at = self._argument(node.args[0]), node.args[1]
            assert isinstance(collection, (list, tuple)) and isinstance(at, int)
            return collection[at]
        traced, new = node.meta.get("val"), node.meta.get("unbacked_bindings")
        if isinstance(traced, (torch.SymInt, bool, int, float)) and not new:
            return self._argument(traced)
        args = [self._argument(a) for a in node.args]
        kwargs = {k: self._argument(a) for k, a in node.kwargs.items()}
        return (self._operator if isinstance(target, OpOverload) else self._other)(node, args, kwargs)

    def _operator(self, node: fx.Node, args: list[Result], kwargs: dict[str, Result]) -> Result:
        op, traced = node.target, node.meta.get("val")
        assert isinstance(op, OpOverload)
        if isinstance(traced, torch.SymInt):
            return extern.call(self.b, node, op, args, kwargs)
        if isinstance(traced, (torch.SymFloat, torch.SymBool)):
            made = (traced.node.expr, *(node.meta.get("unbacked_bindings") or ()))
            if not self.roots.isdisjoint(made):  # the host reads it, too
                extern.call(self.b, node, op, args, kwargs)
            return read_number(node, args)
        typed = [x for x in flatten([traced, *args]) if isinstance(x, (torch.Tensor, TensorRef, complex))]
        dtypes = {torch.complex64 if isinstance(x, complex) else x.dtype for x in typed}
        moves = op in views.LOWERINGS  # computes nothing, and so takes any dtype
        table = COMPLEX if not moves and any(dtype.is_complex for dtype in dtypes) else LOWERINGS
        left = stays_whole(node) or (op in creation.RANDOM and not self.random)
        left |= op._opname in _CHECKED and not all(holds(node.meta["val"].dtype, a) for a in (*args, *kwargs.values()))
        lowering = (None if left else table.get(op)) or pointwise.REGISTERED_LATE.get(str(op))
        if lowering is not None and (moves or {dtype.to_real() for dtype in dtypes} <= self.b.computed):
            out = mapped(traced, lambda t: self.b.meta(t) if isinstance(t, torch.Tensor) else None)
            if node in self.rounding and not moves:
                args = mapped(args, lambda a: replace(a, rounded=True) if isinstance(a, TensorRef) else a)
            result: Result = lowering(self.b, out, *args, **kwargs)
            if result is not NotImplemented:
                return result
        return extern.call(self.b, node, op, args, kwargs)

    def _other(self, node: fx.Node, args: list[Result], kwargs: dict[str, Result]) -> Result:
        """Python functions on numbers, and higher-order ops."""
        target, traced = node.target, node.meta.get("val")
        if target is round and isinstance(traced, torch.SymFloat) and isinstance(args[1], int):
            unit = 10 ** max(args[1], 0)  # round(x, 2) → round(round(x, 2) * 100) / 100: kernels know no digits
            target, args = operator.truediv, [self.b.symbols.to_index(round(traced * unit)), unit]
        if (number := number_of(target, args)) is not None:
            return number
        if str(node.target) == "auto_functionalized":
            return extern.auto_functionalized(self.b, node, kwargs)
        if str(node.target) == "gyrator_attention":
            bodies = [body for body in flatten(args[1]) if isinstance(body, fx.GraphModule)]
            for body in bodies:  # no kernel says what is wrong with one of many scores, such as a division by zero
                body.graph.eliminate_dead_code(lambda node: node.op in ("placeholder", "output"))
                body.recompile()
            functions = [lower(body, symbols=self.b.symbols, computed=self.b.computed).program for body in bodies]
            return extern.attention(self.b, node, args, tuple(functions))
        return extern.region(self.b, node, self.env)

    def _argument(self, arg: object) -> Result:
        if isinstance(arg, fx.Node):
            return self.env[arg]
        if isinstance(arg, (list, tuple)):
            return [self._argument(a) for a in arg]
        return self.b.symbols.to_index(arg) if isinstance(arg, torch.SymInt) else arg  # type: ignore[return-value]

    def _placeholder(self, node: fx.Node) -> Result:
        example = node.meta.get("val")
        if isinstance(example, torch.Tensor):
            offset = self.b.symbols.to_index(example.storage_offset())
            value = self.b.given(self.b.meta(example), str(node.target), offset)
            self.inputs.append(Input(value=value, complex=example.is_complex()))
            return whole(value, example.dtype)
        if isinstance(example, torch.SymInt):
            index = self.b.symbols.to_index(example)
            self.inputs.append(Input(size=index.atom if isinstance(index.atom, Size) else None))
            return index
        if isinstance(example, (torch.SymFloat, torch.SymBool)):
            dtype = torch.bool if isinstance(example, torch.SymBool) else torch.float64
            value = self.b.given(Meta((), dtype, (), torch.device("cpu")), str(node.target), ZERO)
            self.inputs.append(Input(value=value, number=True))
            return whole(value).load(())
        self.inputs.append(Input())
        return example

    def _attribute(self, node: fx.Node) -> Result:
        tensor = operator.attrgetter(str(node.target))(self.graph)
        if isinstance(tensor, fx.GraphModule):
            return tensor
        assert isinstance(tensor, torch.Tensor)
        meta = self.b.meta(tensor)
        if (literal := _literal(tensor)) is not None:
            return self.b.full(meta, literal)
        known = next((v for v, held in self.constants.items() if held is tensor), None)
        if known is None:
            known = self.b.given(meta, str(node.target).replace(".", "_").lstrip("_"))
            self.constants[known] = as_reals(tensor) if tensor.is_complex() else tensor
        return whole(known, tensor.dtype)

    def _updates(self, pairs: Sequence[tuple[int, int]], outputs: list[Output]) -> tuple[Update, ...]:
        """The outputs that are inputs' new values, which are taken off the ``outputs``."""
        changed: list[Update] = []
        for position, output in pairs:
            target, new = self.inputs[position].value, outputs[output]
            assert target is not None and isinstance(new, View)
            changed.append(Update(target, replace(new, dtype=None) if new.complex else new))
            outputs[output] = None
        return tuple(changed)

    def _derived(self) -> tuple[Derived, ...]:
        """Sizes that no input passes: read off the shapes of inputs, then those computed from other sizes."""
        known = {i.size for i in self.inputs if i.size is not None}
        found: dict[Size, Derived] = {}
        for value in (i.value for i in self.inputs if i.value is not None):
            for text, indices in (("shape[{}]", value.shape), ("stride({})", value.strides)):
                for k, index in enumerate(indices):
                    if isinstance(size := index.atom, Size) and size not in known:
                        found.setdefault(size, Derived(size, value.name, text.format(k)))
        known |= found.keys()
        return (*found.values(), *[derived for derived in self.b.symbols.derived if derived.size not in known])


def _is_last(node: fx.Node) -> bool:
    """Whether only calls and the output take the result of a node, or views of it."""
    return all(_is_last(u) if u.target in views.LOWERINGS else u.target not in LOWERINGS for u in node.users)


def _literal(tensor: torch.Tensor) -> bool | int | float | None:
    """The number that a 0-d constant holds, where it can be read now and be a literal of every kernel."""
    plain = tensor.device.type == "cpu" and type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if not plain or tensor.dim() or tensor.dtype not in COMPUTED or tensor.requires_grad:
        return None
    with torch_compat.outside_tracing():
        return tensor.item()


_CHOOSES = (aten.argmax.default, aten.argmin.default)
_LARGEST = (aten.amax.default, aten.amin.default, aten.max.default, aten.min.default)


def rounding_nodes(graph: fx.Graph) -> frozenset[fx.Node]:
    """The nodes that read 16-bit floats as rounded: that test equality or choose, and what computes their operands.

    Elsewhere a kernel that widens them keeps the digits that eager rounds away, which is faster and closer to the exact
    result. But in ``y = x.float(); y == y.amax()`` both sides must be rounded alike, or none is equal."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        kind = cost(node)
        follows = node.target in _LARGEST or kind in (Cost.VIEW, Cost.POINTWISE)
        if kind is Cost.EQUALITY or node.target in _CHOOSES or (follows and not found.isdisjoint(node.users)):
            found.add(node)
    return frozenset(found)


Number = Expr | Index | Scalar
Rule = Callable[[Sequence[Number]], Expr]


def number_of(target: object, args: Sequence[object]) -> Expr | None:
    """The float or bool that ``target`` computes from numbers, ``div(cast<f64>(index(s0)), 2.0)`` for ``s0 / 2``; None
    if it is no such function. Integers are indices by what they were traced to mean."""
    numbers = [a for a in args if isinstance(a, (Expr, Index, bool, int, float))]
    rule = _RULES.get(target)
    return None if rule is None or len(numbers) != len(args) else rule(numbers)


def read_number(node: fx.Node, args: Sequence[object]) -> Expr:
    """An op that gives a float or bool to Python: ``item`` becomes a load wherever the number is used.

    Raises: UnsupportedOperator for any other op."""
    source = args[0] if args else None
    if isinstance(source, TensorRef) and node.target in (aten._local_scalar_dense.default, aten.item.default):
        return views.reshape(source, ()).load(())
    if (found := number_of(node.target, args)) is None:
        raise refused(node.target, node, "it returns a float or bool that only a call can know")
    return found


def _common(values: Sequence[Number]) -> torch.dtype:
    """float64 if any number is a float, bool if all are bools, else int64."""
    kinds = {type(promoting_like(value)) for value in values}
    return torch.float64 if float in kinds else torch.bool if kinds == {bool} else torch.int64


def _same(name: str, on_bools: str = "") -> Rule:
    """An op whose arguments are widened to one dtype, bools to integers unless an op is given for them."""

    def rule(values: Sequence[Number]) -> Expr:
        dtype = _common(values if on_bools else (*values, 0))
        return op(on_bools if dtype == torch.bool else name, *[number(v, dtype) for v in values])

    return rule


def _float(name: str) -> Rule:
    return lambda values: op(name, *[number(v, torch.float64) for v in values])


def _ite(values: Sequence[Number]) -> Expr:
    condition, *results = values
    dtype = _common(results)
    return op("where", number(condition, torch.bool), *[number(v, dtype) for v in results])


_RULES: Mapping[object, Rule] = {
    **{getattr(operator, name): _same(name) for name in "add sub mul floordiv neg abs eq ne lt le gt ge".split()},
    operator.truediv: _float("div"), operator.mod: _same("remainder"), operator.pow: _float("pow"),
    operator.and_: _same("bitwise_and", "logical_and"), operator.or_: _same("bitwise_or", "logical_or"),
    **dict.fromkeys((operator.not_, torch.sym_not), lambda v: op("logical_not", number(v[0], torch.bool))),
    torch.sym_float: lambda v: number(v[0], torch.float64),
    torch.sym_max: _same("maximum"), torch.sym_min: _same("minimum"), torch.sym_ite: _ite,
    **{function: _float(name) for name, function in torch_compat.functions_of_numbers().items()},
    **{getattr(math, name): _float(name) for name in "sqrt exp log floor ceil".split()},
}  # fmt: skip

"""Records the operators of a run on fake tensors as one functional graph.

The recorder is a dispatch mode below autograd: it sees ATen operators of the forward run and of the backward run that
torch.autograd makes of it, with composite operators already taken apart. Mutation is functionalised on the way.

Of operators that take graphs
    inlined   tag_activation_checkpoint, invoke_subgraph, foreach_map: their body is traced in their place (`joint.py`);
              flex_attention: the operators that define it are
    recorded  cond, while_loop, map_impl, scan, associative_scan: one node, whose bodies are graphs of their own
    passed    auto_functionalized and others without bodies: one node; the rest is refused"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch._ops import HigherOrderOperator, OpOverload
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from gyrator import torch_compat
from gyrator.autograd.builder import Args, GraphBuilder, Kwargs, flatten, mapped
from gyrator.autograd.effects import Behaviour, Effect, arguments, behaviour
from gyrator.autograd.fake_results import metadata_key, owned
from gyrator.autograd.functionalize import Alias, Root, new_root, read, viewed, write
from gyrator.autograd.inputs import of_subclass, overlapping, reaches_outside
from gyrator.autograd.symbols import SYMBOLIC_TYPES, counted_from_start, expression, is_told_by_run
from gyrator.autograd.triton_kernels import LIBRARY, launch
from gyrator.autograd.views import IDENTITY_VIEWS, ViewCall
from gyrator.errors import InternalCheckError, UnsupportedOperator

aten = torch.ops.aten
MOVES = "it changes what memory a tensor owns"


def _parts(tensors: Sequence[Any]) -> list[Any]:
    return [x.select(0, 0) if isinstance(x, Tensor) else x for x in tensors]


RECORDED: Mapping[str, Callable[[Sequence[Any]], Mapping[int, Sequence[Any]]]] = {
    "cond": lambda args: {1: args[3], 2: args[3]},
    "while_loop": lambda args: dict.fromkeys((0, 1), (*map(torch_compat.of_any_step, args[2]), *args[3])),
    "map_impl": lambda args: {0: (*_parts(args[1]), *args[2])},
    "scan": lambda args: {0: (*args[1], *_parts(args[2]), *args[3])},
    "associative_scan": lambda args: {0: (*_parts(args[1]), *_parts(args[1]), *args[2])},
    **dict.fromkeys(("auto_functionalized", "out_dtype", "run_and_save_rng_state"), lambda args: {}),
}
"""For the position of each body among the arguments of an operator that is recorded, what it is called with."""


class InMemory(HigherOrderOperator):
    """`in_memory(op, roots, places, arguments)` → what `op` returns, then the roots as it leaves copies of them.

    In place of each tensor among the arguments it takes the view of a copy at its place: the root's number, elements
    before the first, sizes, strides. Where there is no place it takes the tensor itself."""

    def __init__(self) -> None:
        super().__init__("gyrator_in_memory")

    def __call__(self, op: OpOverload, roots: Any, places: Any, arguments: Mapping[str, Any]) -> Any:
        """The results."""
        copies, left = [x.new_empty_strided(x.shape, x.stride()).copy_(x) for x in roots], iter(places)

        def placed(leaf: Any) -> Any:
            place = next(left) if isinstance(leaf, Tensor) else None
            return leaf if place is None else leaf.new_empty(0).set_(copies[place[0]].untyped_storage(), *place[1:])

        out = op(**mapped(arguments, placed))
        return (*(out if isinstance(out, tuple) else (out,)), *copies)


in_memory = InMemory()


class Recorder(TorchDispatchMode):
    """A dispatch mode to be entered on top of the fake mode of `build`.

    Attributes:
        build: the graph so far.
        constants: tensors that the program holds, with the memory that stands for them.
        policy: `policy(op, *args, **kwargs)` says whether an operator's results are to be computed again.
        backward_origin: while backward runs, what nodes inherit by the number of the autograd node that runs."""

    supports_higher_order_operators = True

    def __init__(self, build: GraphBuilder) -> None:
        super().__init__()
        self.build = build
        self.policy: Callable[..., bool] | None = None
        self.backward_origin: Callable[[int], Mapping[str, Any]] | None = None
        self.constants: list[tuple[Root, Tensor]] = []
        self.metadata_changes: list[tuple[Tensor, ViewCall]] = []
        self.moves: dict[int, tuple[Tensor, Root]] = {}
        self._aliases: dict[int, tuple[Tensor, Alias]] = {}
        self._tensors: dict[Alias, list[Tensor]] = {}
        self._inputs: list[Node] = []

    def __torch_dispatch__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        if func is torch.ops.prim.device.default:
            return args[0].fake_device
        on_version = torch_compat.ON_VERSIONS.get(func.name())
        if on_version is not None and all(self.alias_of(x).root.input is None for x in _tensors(args)):
            return on_version(*args)  # of values in the graph nobody counts them
        kwargs = kwargs or {}
        if not isinstance(func, OpOverload):
            self._take_origin()
            return self._higher_order(func, args, kwargs)
        if func is aten._to_copy.default and isinstance(args[0], SYMBOLIC_TYPES):  # vmap's, of n in `x / n`
            func = aten.scalar_tensor.default
        how = behaviour(func)
        if how.effect is Effect.REFUSED:
            return self._take_memory(func, *args)
        if func is aten._assert_scalar.default and torch_compat.in_bounds(args[0]):
            return None
        given = [x for x in flatten(args) if type(x) is FakeTensor]
        if given and not any(id(x) in self._aliases for x in given):
            return func(*args, **kwargs)  # torch's own: it makes the backward of `scan` from them
        if func is aten.select.int and is_told_by_run(args[2]):  # kernels read there without asking
            size = args[0].shape[args[1]]
            inside = (args[2] >= -size) & (args[2] < size), "select(): index out of range"
            self.__torch_dispatch__(aten._assert_scalar.default, (), inside)
        args = counted_from_start(func, args)
        out = self.build.results.call(func, args, kwargs)
        if how.effect is Effect.NUMBER:
            return self._number(func, args, kwargs, out) if type(out) in SYMBOLIC_TYPES else out
        self._take_origin()
        if self.policy is not None and self.backward_origin is None:
            self.build.origin = {**self.build.origin, "repeated": self.policy(func, *args, **kwargs)}
        _RECORD[how.effect](self, func, args, kwargs, out)
        return out

    def _take_origin(self) -> None:
        """In backward, new nodes inherit from where the autograd node that runs was made."""
        if self.backward_origin is not None:
            self.build.origin = self.backward_origin(torch_compat.current_autograd_sequence())

    def add_input(self, name: str, value: Any, position: int | None = None) -> None:
        """A placeholder for `value`; a tensor becomes a root."""
        node = self.build.placeholder(name, value)
        self._inputs.append(node)
        if isinstance(value, Tensor):
            self._bind(value, new_root(node, value, position))

    def add_tangent(self, name: str, value: Tensor) -> None:
        """A placeholder for a gradient; inputs and constants, also those that backward brings, stand before it."""
        self._bind(value, new_root(self.build.placeholder(name, value), value))

    def add_constant(self, value: Tensor, fake: Tensor, *, literal: bool = False) -> None:
        """A tensor that the program holds itself: an input that the runtime supplies. A `literal`, `tensor([1, 2])`,
        is new in each run: a write to it stays inside. One of a single number, as in `x[0] = 7`, the graph makes."""
        if literal and value.numel() == 1:
            with torch_compat.outside_tracing():
                size, number = tuple(value.shape), value.item()
            self._define(aten.full.default, (size, number), {"dtype": value.dtype, "device": value.device}, fake, None)
            return
        given, graph = self._inputs, self.build.graph
        with graph.inserting_after(given[-1]) if given else graph.inserting_before():
            self.add_input(f"constant_{len(self.constants)}", fake, None if literal else len(given))
        self.constants.append((self.alias_of(fake).root, value))

    def share(self, tensor: Tensor, source: Tensor) -> None:
        """Makes `tensor` another name of `source`, the same memory."""
        self._bind(tensor, self.alias_of(source))

    def _take_memory(self, func: OpOverload, target: Tensor, source: Any = None, *_: Any) -> Tensor:
        """`target.set_(source)`, or `target.data = source`: a new name of it. Refused for another size or layout."""
        if not torch_compat.sets_data(func) or metadata_key(target) != metadata_key(source):
            raise UnsupportedOperator(str(func), MOVES, for_eager=True)
        root = self.alias_of(target).root
        if self.alias_of(source).root is not root:  # a module's `to` may be without effect
            self.moves[id(target)] = source, self.moves.pop(id(target), (source, root))[1]  # the last, in its place
            self.share(target, source)
        return target

    def alias_of(self, tensor: Tensor) -> Alias:
        """What is known of a tensor of the program."""
        if id(tensor) in self._aliases:
            return self._aliases[id(tensor)][1]
        if type(tensor) not in (FakeTensor, Tensor):
            raise of_subclass(tensor)
        raise InternalCheckError("joint trace", f"a tensor of size {tuple(tensor.shape)} was made out of sight")

    def node_of(self, value: Any) -> Any:
        """The node that holds a value's present state; constants unchanged; lists and tuples item by item."""
        if isinstance(value, Tensor):
            return read(self.alias_of(value), self.build)
        if isinstance(value, (list, tuple)):
            return [self.node_of(item) for item in value]
        if isinstance(value, dict):
            return {key: self.node_of(item) for key, item in value.items()}
        return self.build.number(value)

    def _append(self, func: Any, args: Args, kwargs: Kwargs, out: Any, new: Mapping[Any, Any] | None = None) -> Node:
        """A call of `func` on the present values of its arguments; those that are nodes are taken as they are."""
        return self.build.append(func, tuple(self.node_of(args)), self.node_of(kwargs), out, new)

    def record(self, func: Any, args: Args, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results of a call of `func`, which is not made: dense tensors `like` those given."""
        self._take_origin()
        with torch_compat.outside_tracing(), self.build.fake_mode:
            out = tuple([torch.empty_like(x) for x in like])
            self._results(self._append(func, args, {}, out), out)
        return out

    def _bind(self, tensor: Tensor, alias: Alias) -> None:
        self._aliases[id(tensor)] = tensor, alias  # the tensor lives on: none other gets its id
        self._tensors.setdefault(alias, []).append(tensor)

    def tensors_of(self, alias: Alias) -> list[Tensor]:
        """The tensor that has this alias; none if it took another shape in place."""
        return [tensor for tensor in self._tensors.get(alias, ()) if self.alias_of(tensor) is alias]

    def _results(self, node: Node, out: Any, *, sized: bool = False) -> None:
        """Binds the results `out` of a call to nodes; if it made symbols (`sized`), their sizes too."""
        if isinstance(out, Tensor):
            self._bind(out.requires_grad_(False), new_root(node, out))  # fake kernels of pads copy it from the argument
            if sized:
                self.build.symbols.bind(out, node)
        elif isinstance(out, (tuple, list)):
            for index, item in enumerate(out):
                if isinstance(item, (Tensor, list, tuple, *SYMBOLIC_TYPES)):
                    self._results(self.build.result(node, index), item, sized=sized)
        elif type(out) in SYMBOLIC_TYPES:
            self.build.symbols.bind(out, node)

    def _pure(self, func: Any, args: Args, kwargs: Kwargs, out: Any) -> None:
        if func is aten.lift_fresh_copy.default and not isinstance(args[0], FakeTensor):
            self._view(aten.lift_fresh.default, args, kwargs, out)
        else:
            self._define(func, args, kwargs, out, torch_compat.fresh_symbols(self.build.fake_mode, out))

    def _number(self, func: Any, args: Args, kwargs: Kwargs, out: Any) -> Any:
        """A number read from data is recorded where its symbol is new. One that has a single value is that value."""
        number, bindings = expression(out), torch_compat.fresh_symbols(self.build.fake_mode, out)
        if not bindings and func is aten._local_scalar_dense.default:
            if number.is_number:
                return torch_compat.plain_number(number)
            if type(out) is torch.SymInt and number.is_symbol and self.build.symbols.find(number) is None:
                bindings = {number: ()}  # of an input, and capture has a name for it
        if bindings or type(out) is torch.SymFloat:
            self._define(func, args, kwargs, out, bindings)
        return out

    def _define(self, func: Any, args: Args, kwargs: Kwargs, out: Any, bindings: Mapping[Any, Any] | None) -> None:
        """Appends a call and binds its results, and the symbols that it makes, by `bindings`, to nodes."""
        self._results(self._append(func, args, kwargs, out, bindings), out, sized=bool(bindings))

    def _view(self, func: Any, args: Args, kwargs: Kwargs, out: Any) -> None:
        source = args[0]
        if isinstance(source, complex):  # derivatives take the conjugate of a number of the program
            self._define(aten.scalar_tensor.default, (source.conjugate(),), {"dtype": out.dtype}, out, None)
            return
        if not isinstance(source, FakeTensor):
            self.add_constant(source, out, literal=func is aten.lift_fresh.default)
            return
        parent = self.alias_of(source)
        counted = func is aten.as_strided.default and arguments(func, args, kwargs).get("storage_offset") is not None
        if counted and parent.root.input is not None and reaches_outside(out, parent.root.tensor):
            raise UnsupportedOperator(str(func), "it reaches memory that its tensor does not span")
        view = ViewCall(func, args[1:], dict(kwargs), tracks_grad=torch.is_grad_enabled())
        again = func in _FROM_ROOT or (parent.root.generation and owned(source) is not source)
        node = viewed(parent, view, self.build) if again else self._append(func, args, kwargs, out)
        if isinstance(out, Tensor):
            self._bind(out, Alias(parent.root, parent, view, node))
            return
        for index, item in enumerate(out):
            self._bind(item, Alias(parent.root, parent, replace(view, index=index), self.build.result(node, index)))

    def _metadata(self, func: Any, args: Args, kwargs: Kwargs, out: Any) -> None:
        op, parent = behaviour(func).functional, self.alias_of(args[0])
        assert op is not None
        view = ViewCall(op, args[1:], dict(kwargs), tracks_grad=torch.is_grad_enabled())
        self.metadata_changes.append((args[0], replace(view, op=func)))
        self._bind(args[0], Alias(parent.root, parent, view, self._append(op, args, kwargs, args[0])))

    def _writes(self, func: Any, args: Args, kwargs: Kwargs, out: Any) -> None:
        how = behaviour(func)
        given = arguments(func, args, kwargs)
        targets: list[Any] = [given.get(name) for name in how.written]
        if how.functional is None and _shows_what_it_writes(func, given, targets):
            self._in_memory(func, given, out, targets)
            return
        if how.functional is not None:
            node = self.build.call(how.functional, *self._arguments_of(how.functional, func, given))
            first = how.plain_results
        else:
            node = self._auto_functionalized(func, how, given, out)
            first = max(len(func._schema.returns), 1)
        results = out if isinstance(out, tuple) else (out,)
        for index in range(how.plain_results):
            self._results(self._part(node, index), results[index], sized="unbacked_bindings" in node.meta)
        alone = how.functional is not None and first == 0 and len(targets) == 1
        for index, target in enumerate(targets):
            if target is not None:
                self._write(target, node if alone else self._part(node, first + index), even=func in _FILLS)
        for index, item in enumerate(results):
            if isinstance(item, Tensor) and id(item) not in self._aliases:
                self.share(item, targets[max(index - how.plain_results, 0)])

    def _in_memory(self, func: OpOverload, given: Mapping[str, Any], out: Any, targets: Sequence[Any]) -> None:
        """A call that writes to a tensor of which another argument shows elements: they lie in memory in common."""
        roots = list(dict.fromkeys([self.alias_of(x).root for x in _tensors(targets)]))
        places: list[Any] = []
        for x in _tensors(given.values()):
            root = self.alias_of(x).root
            first, alike = root.tensor.storage_offset() * root.tensor.itemsize, (x.is_conj(), x.is_neg())
            if root in roots and (first % x.itemsize or alike != (root.tensor.is_conj(), root.tensor.is_neg())):
                raise UnsupportedOperator(str(func), "it writes to memory that it cannot get a copy of")
            place = x.storage_offset() - first // x.itemsize, [*x.shape], [*x.stride()]
            places.append([roots.index(root), *place] if root in roots else None)
        own = out if isinstance(out, tuple) else (out,)
        args = (func, [root.node for root in roots], places, dict(given))
        results = (*own, *(root.node.meta["val"] for root in roots))
        node = self._append(in_memory, args, {}, results, torch_compat.fresh_symbols(self.build.fake_mode, results))
        for index, item in enumerate(own):
            if isinstance(item, (Tensor, list, *SYMBOLIC_TYPES)) and id(item) not in self._aliases:
                self._results(self.build.result(node, index), item, sized="unbacked_bindings" in node.meta)
        for index, root in enumerate(roots, len(own)):
            write(Alias(root, None, None, root.node), self.build.result(node, index), self.build)

    def _part(self, node: Node, index: int) -> Node:
        """Result `index` of a call, which is the call itself where it has only one."""
        return self.build.result(node, index) if isinstance(node.meta["val"], tuple) else node

    def _write(self, target: Any, value: Node, *, even: bool = False) -> None:
        if isinstance(target, Tensor):
            write(self.alias_of(target), value, self.build, even=even)
        else:
            torch.autograd.graph.increment_version(target)  # fake kernels of lists do not, and views go by it
            for position, item in enumerate(target):
                self._write(item, self.build.result(value, position), even=even)

    def _arguments_of(self, op: OpOverload, func: OpOverload, given: Mapping[str, Any]) -> tuple[Args, Kwargs]:
        """The nodes of `op`'s arguments out of those `given` to `func`, by position as far as the schema allows."""
        wanted = op._schema.arguments
        values = {a.name: a.default_value for a in (*wanted, *func._schema.arguments)} | dict(given)
        args = tuple(self.node_of(values[a.name]) for a in wanted if not a.kwarg_only)
        return args, {a.name: self.node_of(given[a.name]) for a in wanted if a.kwarg_only and a.name in given}

    def _auto_functionalized(self, func: OpOverload, how: Behaviour, given: Mapping[str, Any], out: Any) -> Node:
        """`auto_functionalized(func, **arguments)` → func's own results, None for none; then the new values."""
        written = tree_map_only(Tensor, owned, [given.get(name) for name in how.written])
        results = (*(out if isinstance(out, tuple) else (out,)), *written)
        kwargs = {a.name: self.node_of(given.get(a.name, a.default_value)) for a in func._schema.arguments}
        new = torch_compat.fresh_symbols(self.build.fake_mode, results)
        return self.build.append(torch.ops.higher_order.auto_functionalized, (func,), kwargs, results, new)

    def _batch_norm(self, func: Any, args: Args, kwargs: Kwargs, out: Any) -> None:
        """As the operator whose schema says what it writes; what else it returns, for a library, is empty."""
        if not args[5]:  # not training
            self._pure(func, args, kwargs, out)
            return
        if args[3] is None:  # without running statistics
            self._pure(_LEGIT.no_stats, (*args[:3], *args[5:8]), {}, tuple(out[:3]))
        else:
            self._writes(_LEGIT.default, args[:8], {}, tuple(out[:3]))
        for reserve in out[3:]:
            like = {"dtype": reserve.dtype, "device": reserve.device}
            self._results(self.build.append(aten.empty.memory_format, (list(reserve.shape),), like, reserve), reserve)

    def _higher_order(self, func: Any, args: Args, kwargs: Kwargs) -> Any:
        """One node for a higher-order operator; its bodies are traced on their own."""
        name = func.name()
        if name == "triton_kernel_wrapper_mutation":
            op, given = launch(**kwargs)
            return self._writes(op, given, {}, None)
        calls = RECORDED.get(name.removesuffix("_stack_output"))  # of a while_loop that keeps its steps
        if calls is None:
            text = "it takes a graph, and gyrator does not trace into it"
            raise UnsupportedOperator(name, text, for_eager=name == "trace_wrapped")
        out = func(*args, **kwargs)
        bindings = torch_compat.fresh_symbols(self.build.fake_mode, out)  # now: a body's operators make their own
        passed = list(args)
        for position, operands in calls(args).items():
            passed[position] = self.body(name, args[position], operands)
        self._define(func, tuple(passed), kwargs, out, bindings)
        return out

    def body(self, name: str, function: Callable[..., Any], operands: Sequence[Any]) -> Node:
        """The functional graph of `function`, called with values like `operands`."""
        build = GraphBuilder(self.build.results)
        recorder = Recorder(build)
        inputs = []
        with torch.no_grad():
            for index, operand in enumerate(operands):
                value = operand
                if isinstance(operand, Tensor):
                    value = aten.alias.default(operand)
                    value.constant = None  # a loop's body meets other values too
                recorder.add_input(f"x{index}", value, index)
                inputs.append(value)
            with recorder:
                out = function(*inputs)
        if any(isinstance(value, Tensor) and recorder.alias_of(value).root.generation for value in inputs):
            raise UnsupportedOperator(name, "its body mutates an input")
        if recorder.constants:
            raise UnsupportedOperator(name, "its body holds a tensor")
        results = recorder.node_of(out)
        build.graph.output(tuple(results) if isinstance(results, list) else results)
        return self.build.body(build)


def _shows_what_it_writes(func: OpOverload, given: Mapping[str, Any], targets: Sequence[Any]) -> bool:
    """Whether elements of what a call writes are shown by another argument; of a Triton kernel, by one that it writes:
    its programs do not wait for each other, so that none can mean to read what another writes."""
    tensors, written = _tensors(targets if func.namespace == LIBRARY else given.values()), {*map(id, flatten(targets))}
    return overlapping(tensors, [k for k, x in enumerate(tensors) if id(x) in written])


def _tensors(values: Iterable[Any]) -> list[Tensor]:
    return [x for x in flatten([*values]) if isinstance(x, Tensor)]


_LEGIT = aten._native_batch_norm_legit
_FROM_ROOT = {*IDENTITY_VIEWS, aten.as_strided.default}
_FILLS = (aten.fill_.Scalar, aten.fill_.Tensor, aten.zero_.default, aten._foreach_zero_.default)

_RECORD: Mapping[Effect, Callable[..., None]] = {
    Effect.PURE: Recorder._pure,
    Effect.VIEW: Recorder._view,
    Effect.METADATA: Recorder._metadata,
    Effect.WRITES: Recorder._writes,
    Effect.BATCH_NORM: Recorder._batch_norm,
    Effect.STATEMENT: Recorder._pure,
}

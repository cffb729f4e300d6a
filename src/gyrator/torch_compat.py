"""The one file that touches torch's private interfaces. Works on torch 2.11 to 2.14. Everything else in gyrator uses
torch's public or stable parts (torch.fx, torch.library, FakeTensorMode, make_fx, ShapeEnv, decomposition tables,
pytree)."""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cache, partial
from importlib.metadata import EntryPoint
from inspect import signature
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import DataDependentOutputException
from torch.fx import Graph, GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule

if TYPE_CHECKING:  # it brings SymPy
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

T = TypeVar("T")
R = TypeVar("R")


def register_backend(name: str, target: str) -> None:
    """Let `torch.compile(backend=name)` find `target` ("module:function"), which is imported on first use.

    torch reads of it in the metadata of the package, which a source tree has too (`src/gyrator.dist-info`). Here it is
    put into torch's table, in case torch looked for backends before the package was on Python's path."""
    if (registry := sys.modules.get("torch._dynamo.backends.registry")) is not None:
        registry._BACKENDS.setdefault(name, EntryPoint(name, target, "torch_dynamo_backends"))


def symbol_hint(shape_env: Any, symbol: Any) -> int | float | None:
    """The value that a symbol has in the call being compiled; None for an unbacked one."""
    value = shape_env.backed_var_to_val.get(symbol)
    return plain_number(value) if getattr(value, "is_number", False) else None  # a nested tensor's size is none


graph_module: Callable[[Any, Graph], GraphModule] = _LazyGraphModule
"""`GraphModule(root, graph)` that writes its Python code when that is asked for, which of most graphs it never is."""


def is_buffer(placeholder: Node) -> bool:
    """Whether capture took an input from a module's buffers: its name alone is one that arguments may have, too."""
    return "_dynamo_static_input_type" in placeholder.meta.get("tensor_dict", ()) and "_buffers_" in placeholder.name


def drawn_numbers(gm: GraphModule) -> list[int]:
    """Which inputs are numbers that module `random` draws: fractions, captured as float32, are passed as float64."""
    sources = [getattr(n.meta.get("grapharg"), "source", None) for n in gm.graph.find_nodes(op="placeholder")]
    return [k for k, source in enumerate(sources) if type(source).__name__ == "RandomValueSource"]


def append_node(graph: Graph, op: str, target: Any, args: Any, kwargs: Any, name: str | None = None) -> Node:
    """`graph.create_node`, in half the time: torch 2.13 searches the arguments for numbers that no graph holds."""
    node = graph.create_node(op, target, name=name)
    node._update_args_kwargs(args, kwargs)
    return node


_guards: Any = torch._C._dynamo.guards

EmptyStrided = Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]

empty_strided_cpu: EmptyStrided = _guards._empty_strided_cpu
"""(shape, strides, dtype) → new memory on the CPU, in half the time of `torch.empty_strided`."""

empty_strided_cuda: EmptyStrided = _guards._empty_strided_cuda
"""The same on the current GPU, from torch's caching allocator."""

reinterpret: Callable[[torch.Tensor, Sequence[int], Sequence[int], int], torch.Tensor] = _guards._reinterpret_tensor
"""(base, shape, strides, offset) → a tensor on the memory of `base`, `offset` elements in; autograd sees no view."""

profiler_enabled: Callable[[], bool] = torch._C._autograd._profiler_enabled
"""Whether a profiler is recording in this thread."""

copy_all: Callable[[list[torch.Tensor], list[torch.Tensor]], None] = torch._foreach_copy_
"""Copies the second tensors into the first ones, of the same shapes, strides and dtype, by few launches on a GPU."""


def float32_matmul_precision() -> str:
    """As `torch.get_float32_matmul_precision`, which refuses where the user set backends apart; then that of CUDA's."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return "high" if torch.backends.cuda.matmul.fp32_precision == "tf32" else "highest"


raw_stream: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""The address of the current stream of a GPU, by its number; missing in builds for CPUs."""


def on_device(index: int, call: Callable[[T], R]) -> Callable[[T], R]:
    """`call` with that GPU as the current one."""
    current = getattr(torch._C, "_cuda_getDevice", None)  # missing in builds for CPUs
    if current is None:
        return call

    def entered(argument: T) -> R:
        if current() == index:
            return call(argument)
        with torch.cuda.device(index):
            return call(argument)

    return entered


def storage_holders(storage: torch.UntypedStorage) -> Callable[[], int]:
    """A function that counts who holds a storage: tensors, and Python objects of it.

    Only differences between two calls mean something: the storage's own Python object counts too."""
    count, address, references = torch._C._storage_Use_Count, storage._cdata, sys.getrefcount
    return lambda: count(address) + references(storage)


def plain_number(expr: Any) -> int | float | bool:
    """A constant expression of torch's symbolic shapes as a Python number."""
    return bool(expr) if expr.is_Boolean else int(expr) if expr.is_Integer else float(expr)


def functions_of_numbers() -> Mapping[str, Callable[..., object]]:
    """What graphs call for a function of the module math on a symbolic number, by the function's name."""
    names = ("acos", "asin", "atan", "cos", "cosh", "log2", "sin", "sinh", "sqrt", "tan", "tanh")
    return {name: getattr(torch, f"_sym_{name}") for name in names}


def fresh_symbols(fake_mode: Any, value: object) -> Mapping[Any, Any] | None:
    """The data-dependent sizes that the last operator made, with the path to each in its result."""
    if fake_mode.shape_env is None or not fake_mode.shape_env.pending_fresh_unbacked_symbols:
        return None
    module = importlib.import_module("torch.fx.experimental.symbolic_shapes")
    return module.compute_unbacked_bindings(fake_mode.shape_env, value)


def of_any_step(carried: object) -> Any:
    """What a loop carries, an integer as one that changes from step to step, for the fake mode that is on."""
    env = cast(Any, torch._guards.detect_fake_mode()).shape_env
    with env.ignore_fresh_unbacked_symbols():
        return env.create_unbacked_symint() if isinstance(carried, (int, torch.SymInt)) else carried


def in_bounds(condition: "bool | torch.SymBool") -> bool:
    """Whether a condition is true for all numbers within the bounds that torch knows of its symbols so far."""
    if isinstance(condition, bool):
        return condition
    return bool(condition.node.shape_env.bound_sympy(condition.node.expr).lower)


def triton_kernel(index: int, constants: int) -> tuple[Any, Mapping[str, Any]]:
    """The user's Triton kernel that capture put into a table, and constant arguments of it."""
    table = importlib.import_module("torch._higher_order_ops.triton_kernel_wrap").kernel_side_table
    return table.get_kernel(index), table.get_constant_args(constants)


def is_size(path: Iterable[object]) -> bool:
    """Whether the path to a symbol, one of :func:`fresh_symbols`, leads to a size of a tensor, not to a number."""
    return any(type(key).__name__ == "CallMethodKey" for key in path)


def symbolic_numbers(values: Iterable[object]) -> Iterator[torch.SymInt | torch.SymFloat | torch.SymBool]:
    """What is symbolic of a graph's inputs: numbers, sizes, strides, and what capture calls the number in a tensor."""
    for value in values:
        parts = (*value.shape, *value.stride(), number_behind(value)) if isinstance(value, torch.Tensor) else (value,)
        yield from (part for part in parts if isinstance(part, (torch.SymInt, torch.SymFloat, torch.SymBool)))


def shape_env_of(values: Iterable[object]) -> "ShapeEnv | None":
    """The environment of a graph's inputs; None if all are plain."""
    return next((number.node.shape_env for number in symbolic_numbers(values)), None)


def number_behind(fake: torch.Tensor) -> torch.SymInt | torch.SymFloat | None:
    """What capture calls the number in this 0-d input, be it one of the user's; what is found out of it is guarded."""
    known = getattr(fake, "item_memo", None)
    return known if isinstance(known, (torch.SymInt, torch.SymFloat)) and known.node.hint is not None else None


def guard_floats(value: object) -> None:
    """Guards the floats of the program that decide an integer or a tensor's size: these hold for them alone."""
    for number in symbolic_numbers([value]):
        if isinstance(number, torch.SymInt):
            env = number.node.shape_env
            for symbol in number.node.expr.free_symbols:
                if symbol in env.backed_var_to_val and not symbol.is_integer:
                    env.evaluate_expr(importlib.import_module("sympy").Eq(symbol, env.backed_var_to_val[symbol]))


def set_number_behind(fake: Any, number: torch.SymInt | torch.SymFloat | None) -> None:
    """Make `number` the item of a fake tensor, or leave it unknown."""
    fake.item_memo = number


next_autograd_sequence: Callable[[], int] = torch.autograd._get_sequence_nr  # type: ignore[attr-defined]
"""The number that the next autograd node will carry; numbers grow in the order of the forward run."""


def current_autograd_sequence() -> int:
    """The number of the autograd node whose backward runs now; -1 outside of backward."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else node._sequence_nr()


replayed_views: Callable[[], Any] = partial(torch.autograd._force_original_view_tracking, True)  # type: ignore[attr-defined]
"""A context in which backward of an in-place write to a view replays the view, not `as_strided`."""

keep_gpu_busy: Callable[[], None] = partial(torch.cuda._sleep, 100_000)
"""Let the current stream wait for some 50 microseconds, in which the processor launches what is to be timed."""

DUAL_LEVEL = "_current_level"
"""The attribute of `torch.autograd.forward_ad` that is -1 where no tensor has a tangent."""
SET_GRAD_ENABLED = torch._C._set_grad_enabled
"""What captured graphs call where the program turns gradients on or off."""

without_autocast: Callable[[], Any] = torch._C._DisableAutocast
"""A context in which no operator is cast by autocast."""

autocast_enabled: Callable[[], bool] = torch._C._is_any_autocast_enabled
"""Whether autocast is on for any device."""


def autocast_again() -> Callable[[], AbstractContextManager[None]]:
    """What makes contexts in which autocast is as it is now."""
    settings = [(kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in ("cpu", "cuda")]

    @contextmanager
    def again() -> Iterator[None]:
        with ExitStack() as stack:
            for kind, dtype, enabled in settings:
                if enabled or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype, enabled))
            yield

    return again


def rules_for_sizes(gm: GraphModule, values: Iterable[object]) -> Any:
    """Where the inputs `values` of a captured graph or sizes that it makes are symbolic, a context in which torch's
    Python rules, which know symbolic sizes, take composite operators apart; else one without effect."""
    made = [type(n.meta.get("example_value")) is torch.SymInt or "unbacked_bindings" in n.meta for n in gm.graph.nodes]
    return _python_rules() if any(made) or shape_env_of(values) is not None else nullcontext()


def _python_rules() -> Any:
    return importlib.import_module("torch._dispatch.python").enable_python_dispatcher()


def by_rules_if_data_is_read(run: Callable[[Node], Any], node: Node) -> Any:
    """`run(node)`; by torch's Python rules where checks of an operator read data (istft) or lack (one_hot)."""
    try:
        with _python_rules() if node.target is torch._C._nn.one_hot else nullcontext():
            return run(node)
    except DataDependentOutputException:
        with _python_rules():
            return run(node)


def tracing_under(mode: Any) -> AbstractContextManager[None]:
    """Within it `mode` is the fake mode of the trace: of another one, which capture may have left behind, torch 2.11
    takes the tensors when it traces the bodies of higher-order operators."""
    context = torch._guards.TracingContext
    return nullcontext() if context.try_get() is None else context.patch(fake_mode=mode)


def freed_with_optimizer(held: list[torch.Tensor]) -> list[torch.Tensor]:
    """What a captured graph holds, as a list; torch empties it once the optimizer whose step the graph is has ended."""
    if held and (context := torch._guards.TracingContext.try_get()) is not None:
        context.params_flat = held
    return held


def is_of_user(fake: Any) -> bool:
    """Whether a fake tensor is of the user's mode, not of capture's, as are inputs of parts into which DDP cuts."""
    context = torch._guards.TracingContext.try_get()
    return context is not None and fake.fake_mode is not context.fake_mode


def qualified_name(function: object) -> str | None:
    """`torch.nn.functional.gelu` and so on, also for functions written in C; None if it has no name."""
    try:
        return torch.fx.node._get_qualified_name(function).replace("__torch__.", "")  # type: ignore[arg-type]
    except (RuntimeError, AttributeError):
        return None


def each_sample(call: Callable[[list[Any]], Sequence[Any]], boxed: list[Any], last: int) -> Sequence[Any]:
    """`call(boxed)`; where some of the `last` tensors stand for batches, without memory of their own (is_grads_batched,
    vmap): what it returns for one sample after the other, as batches."""
    legacy, functorch = torch._C._functorch.is_legacy_batchedtensor, torch._C._functorch
    given = (x for x in boxed[len(boxed) - last :] if isinstance(x, torch.Tensor))  # no list, which would hold them
    batched = [x for x in given if functorch.is_batchedtensor(x) or legacy(x)]
    if not batched:
        return call(boxed)
    kind, level = (torch, 1) if legacy(batched[0]) else (functorch, max(map(functorch.maybe_get_level, batched)))
    parts = [kind._remove_batch_dim(x, level, 1, 0) if any(x is b for b in batched) else [x] for x in boxed]
    samples = [each_sample(call, [part[n % len(part)] for part in parts], last) for n in range(max(map(len, parts)))]
    return [None if x[0] is None else kind._add_batch_dim(torch.stack(x), 0, level) for x in zip(*samples, strict=True)]


is_zero: Callable[[torch.Tensor], bool] = torch.Tensor._is_zerotensor
"""Whether it stands for zeros, without memory of its own."""

ON_VERSIONS: dict[str, Callable[..., Any]] = {
    "prims::_tensor_version": attrgetter("_version"),
    "prims::_unsafe_set_version_counter": torch._C._autograd._unsafe_set_version_counter,
}
"""Operators that ask or say how often tensors were written to. They exist once Dynamo has met a program with them."""

preserved_version = torch.autograd.grad_mode._unsafe_preserve_version_counter
"""Inside, autograd does not note that the tensor is written to."""


def uncaptured_backward() -> AbstractContextManager[None]:
    """Backward runs at once, though the caller may let compiled autograd capture its own."""
    module = sys.modules.get("torch._dynamo.compiled_autograd")
    return nullcontext() if module is None else cast("AbstractContextManager[None]", module._disable())


ignore_saved_hooks: Callable[[bool], bool] = torch._C._autograd._saved_tensors_hooks_set_tracing
"""Says whether autograd saves tensors as they are, whatever the caller's hooks; gives what was said before."""

outside_tracing: Callable[[], AbstractContextManager[None]] = torch.utils._python_dispatch._disable_current_modes
"""Inside, tensors are real even while torch traces with fake ones around it."""

without_dispatch: Callable[[], AbstractContextManager[None]] = torch.utils._mode_utils.no_dispatch
"""Inside, no mode and no kind of tensor sees an operator: a fake tensor is the meta tensor that it wraps."""

without_functions: Callable[[], AbstractContextManager[None]] = torch._C.DisableTorchFunctionSubclass
"""Inside, no kind of tensor changes functions of Python."""


@contextmanager
def without_onednn() -> Iterator[None]:
    """Inside, operators are not left to oneDNN; its public flags may be frozen, and cannot be changed one by one."""
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(False)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)


def taken_apart(
    gm: GraphModule, examples: Sequence[Any], compiler: Callable[..., Any], table: Mapping[Any, Callable[..., Any]]
) -> Callable[..., Any]:
    """A captured graph that torch's AOTAutograd differentiates, and whose tensor subclasses it takes apart into plain
    tensors. `compiler` makes a function of a list of each graph of ATen operators, but those of `table`, that comes."""

    def boxed(graph: GraphModule, fakes: Sequence[Any]) -> Callable[[list[Any]], Any]:
        call = torch.compiler.disable(compiler(graph, fakes))
        call.__dict__["_boxed_call"] = True
        return call

    aot = importlib.import_module("torch._functorch.aot_autograd")
    partition = importlib.import_module("torch._functorch.partitioners").min_cut_rematerialization_partition
    how = {"partition_fn": partition, "decompositions": table, "keep_inference_input_mutations": True}
    return aot.aot_module_simplified(gm, examples, torch.compiler.disable(boxed), **how)


def sets_data(op: OpOverload) -> bool:
    """Whether capture writes `target.data = source` as a call of it; since torch 2.14 there is one of its own."""
    return op is torch.ops.aten.set_.source_Tensor or op._schema.name == "aten::shallow_copy_data_"


def guard_parameters() -> None:
    """From now on guards see that `parameter.data = other` has other strides, sizes or another type. torch 2.11 skips
    them while no attribute changes, and a compiled program reads memory as it lay before."""
    if torch.__version__ < "2.13":
        torch._dynamo.config.skip_tensor_guards_with_matching_dict_tags = False


@cache
def foreach_loops() -> Mapping[OpOverload, Callable[..., Any]]:
    """For each of ATen's `_foreach_` operators what it does where a device has no kernel for lists: a loop."""
    plain = torch._C.DispatchKey.CompositeExplicitAutograd
    paths = (name.split("::")[1] for name in torch._C._dispatch_get_all_op_names() if "aten::_foreach_" in name)
    ops = [attrgetter(path if "." in path else f"{path}.default")(torch.ops.aten) for path in paths]
    return {op: partial(op._op_dk, plain) for op in ops}


@cache
def onednn_has_float16() -> bool:
    """Whether oneDNN has kernels for float16 on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


def float8_saturates() -> bool:
    """Whether numbers beyond the range of float8_e4m3fn become its largest one, as in torch 2.13; in 2.11, NaN."""
    with outside_tracing():
        return not torch.tensor(1e9, device="cpu").to(torch.float8_e4m3fn).isnan().item()


def raw_bytes(tensor: torch.Tensor) -> bytes:
    """The elements of a CPU tensor row by row; of a copy, as a single one counts as contiguous with any stride."""
    with outside_tracing():
        rows = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu").copy_(tensor.detach())
        return rows.view(-1).view(torch.uint8).numpy().tobytes()


def checkpoint_policy(body: Any) -> Callable[..., bool] | None:
    """For a body of an activation checkpoint: whether an operator's results are computed again in backward,
    as the user's `context_fn` says; None where all are."""
    if (make_contexts := body.meta.get("_checkpoint_context_fn")) is None:
        return None
    policy = make_contexts()[0].policy_fn
    module = importlib.import_module("torch.utils.checkpoint")
    keep = (True, module.CheckpointPolicy.MUST_SAVE, module.CheckpointPolicy.PREFER_SAVE)
    context = module.SelectiveCheckpointContext(is_recompute=False)
    return lambda op, *args, **kwargs: policy(context, op, *args, **kwargs) not in keep


ISOLATED = dict.fromkeys({"isolate_recompiles"} & signature(torch.compile).parameters.keys(), True)
"""What torch.compile is told, if it knows that, to count compilations of a function apart from its others: behind some
number of them the function runs as it is."""


def recompile_reason() -> str | None:
    """While torch.compile captures a function again: the guard that failed, as torch words it."""
    metrics = importlib.import_module("torch._dynamo.utils").get_metrics_context()
    reason = getattr(metrics, "_metrics", {}).get("recompile_reason")
    return None if not reason else str(reason).splitlines()[0].partition(": ")[2].partition("  #")[0].strip()


def capture_end(gm: torch.fx.GraphModule) -> tuple[str, str]:
    """Why torch.compile ended a captured graph where it did, and the user's place; "" if it did not say."""
    ended: Any = getattr(gm, "compile_subgraph_reason", None)
    frames = list(getattr(ended, "user_stack", None) or ())
    place = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    if getattr(ended, "graph_break", False):
        return str(ended.reason).splitlines()[0], place
    return "" if ended is None else "the function returned", place


def user_function(compiled: object) -> Any:
    """What torch.compile made `compiled` of: a module or function; itself if it did not make it."""
    module = getattr(compiled, "_orig_mod", None)
    return getattr(compiled, "_torchdynamo_orig_callable", compiled) if module is None else module

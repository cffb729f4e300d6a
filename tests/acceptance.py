"""What "the same answer as eager" means, and how to ask it of a compiled function.

A run is *observed*: its outputs, its arguments afterwards, the gradients, and which of them share a storage.
Observations of the compiled run and of eager are compared tensor by tensor. Shape, dtype, device, strides,
``requires_grad`` and sharing must be equal; integers and booleans must be eager's, or those of float64 (what
is 2.99 there may have been rounded to 3 in bfloat16 before it became an integer); floating-point tensors are
judged against a third run, eager in float64:

    rms(actual - reference) <= 2 * rms(eager - reference) + slack * eps * rms(reference)

Programs that amplify rounding (a threshold on a sum that cancels) have no single right answer. Where the rule
above refuses, eager is run again on inputs moved by a few units in the last place, and with each intermediate value
that an operator rounds moved by up to one; the compiled run passes if its error is at most twice theirs, and an
integer may differ where those runs differ.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

# Multiples of eps * rms(reference) allowed beyond twice eager's own error. Rounding alone is about 0.3. Half
# precision is computed in float32 inside a kernel and needs no more; in float64 eager is the reference itself
# and has no error of its own.
SLACK: Mapping[torch.dtype, float] = {
    torch.float64: 64.0,
    torch.float32: 4.0,
    torch.bfloat16: 1.0,
    torch.float16: 1.0,
    torch.complex128: 64.0,
    torch.complex64: 4.0,
    torch.complex32: 1.0,
}
# A gradient that is zero by symmetry (of a bias before softmax) is rounding alone: its scale counts as at
# least this share of the largest gradient's.
ZERO_GRADIENT = 1e-3
PERTURBED_RUNS = 4
MESSAGE_LIMIT = 12


@dataclass(frozen=True)
class Observation:
    """Everything a caller can see of one run.

    ``tensors`` maps names such as ``output[0]``, ``argument[1]`` (after the run) and ``gradient[1]`` to
    tensors; ``others`` the outputs that are no tensors; ``sharing`` holds each set of outputs and arguments
    with one storage; ``identical`` the pairs (output, argument) that are one Python object.
    """

    tensors: Mapping[str, Tensor]
    others: Mapping[str, object] = field(default_factory=dict)
    sharing: frozenset[frozenset[str]] = frozenset()
    identical: frozenset[tuple[str, str]] = frozenset()


# --- copying ---


def _storage_key(tensor: Tensor) -> int | None:
    if type(tensor) not in (Tensor, nn.Parameter) or tensor.is_quantized:
        return None
    if tensor.layout is not torch.strided or tensor.device.type == "meta":
        return None
    storage = tensor.untyped_storage()
    return storage._cdata if storage.nbytes() > 0 else None


def _flat(tensor: Tensor) -> Tensor:
    """The whole storage of ``tensor`` as a vector of its dtype."""
    storage = tensor.untyped_storage()
    flat = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return flat.set_(storage, 0, (storage.nbytes() // tensor.element_size(),))


def _copy_dense(tensor: Tensor, transform: Callable[[Tensor], Tensor]) -> Tensor:
    flat = transform(_flat(tensor.detach()).clone())
    out = torch.empty(0, dtype=flat.dtype, device=flat.device)
    out.set_(flat.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    return out


def _copy_module(module: nn.Module, transform: Callable[[Tensor], Tensor]) -> nn.Module:
    clone = copy.deepcopy(module)
    with torch.no_grad():
        for tensor in (*clone.parameters(), *clone.buffers()):
            tensor.data = transform(tensor.data)
    return clone


def _same(flat: Tensor) -> Tensor:
    return flat


def copy_arguments(args: Any, transform: Callable[[Tensor], Tensor] = _same) -> Any:
    """A deep copy of a pytree of arguments that with their strides, aliasing, bases and ``requires_grad``.

    ``transform`` maps each copied storage, given as a flat vector, to the vector that takes its place.
    """
    leaves, spec = pytree.tree_flatten(args)
    bases: dict[int, Tensor] = {}
    copies: dict[int, object] = {}

    def base_first(index: int) -> bool:
        leaf = leaves[index]
        return isinstance(leaf, Tensor) and leaf._base is not None

    def clone(leaf: object) -> object:
        if isinstance(leaf, nn.Module):
            return _copy_module(leaf, transform)
        if not isinstance(leaf, Tensor):
            return copy.deepcopy(leaf) if isinstance(leaf, torch.Generator) else leaf
        key = _storage_key(leaf)
        if key is None:
            return leaf.detach().clone().requires_grad_(leaf.requires_grad)
        if key in bases and bases[key].element_size() == leaf.element_size():
            base = bases[key]
            with torch.set_grad_enabled(leaf.grad_fn is not None and base.requires_grad):
                view = base.as_strided(leaf.size(), leaf.stride(), leaf.storage_offset())
            return view if view.requires_grad or not leaf.requires_grad else view.detach().requires_grad_()
        bases[key] = _copy_dense(leaf, transform).requires_grad_(leaf.requires_grad)
        return nn.Parameter(bases[key], leaf.requires_grad) if isinstance(leaf, nn.Parameter) else bases[key]

    for index in sorted(range(len(leaves)), key=base_first):
        leaf = leaves[index]
        if id(leaf) not in copies:
            copies[id(leaf)] = clone(leaf)
    return pytree.tree_unflatten([copies[id(leaf)] for leaf in leaves], spec)


_WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float64,
    torch.float16: torch.float64,
    torch.complex64: torch.complex128,
    torch.complex32: torch.complex128,
}


def widen(flat: Tensor) -> Tensor:
    """``flat`` in float64 or complex128; integers and booleans stay as they are."""
    return flat.to(_WIDER.get(flat.dtype, flat.dtype))


def perturbation(seed: int, precision: torch.dtype | None = None) -> Callable[[Tensor], Tensor]:
    """A transform that moves each floating-point element by up to two units in the last place, or by up to half a
    unit of the type ``precision`` to which the program rounds its operands itself, as autocast does."""
    generator = torch.Generator().manual_seed(seed)

    def move(flat: Tensor) -> Tensor:
        if not flat.dtype.is_floating_point or flat.element_size() < 2:
            return flat
        steps = torch.randint(-2, 3, flat.shape, generator=generator).to(flat.device, torch.float64)
        unit = torch.finfo(flat.dtype).eps if precision is None else torch.finfo(precision).eps / 4
        moved = flat.double() * (1 + steps * unit)
        return torch.where(moved.isfinite(), moved, flat.double()).to(flat.dtype)

    return move


class _Rounded(TorchDispatchMode):
    """Moves each element that an operator computes by up to a unit in the last place, as if it were rounded otherwise.

    Elements that an operator takes from its operands, up to their sign, are exact in any implementation and stay.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        operands = [self._magnitudes(x) for x in pytree.tree_leaves((args, kwargs)) if self._is_number(x)]
        out = func(*args, **kwargs)
        for parameter, given in zip(func._schema.arguments, args, strict=False):
            if isinstance(given, list) and parameter.alias_info is not None and parameter.alias_info.is_write:
                torch.autograd.graph.increment_version(given)  # as kernels of lists do where no mode is on
        if not any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns):
            for result in pytree.tree_leaves(out):
                if isinstance(result, Tensor) and self._is_number(result) and operands and 0 not in result.stride():
                    self._move(result, torch.cat([x.to(result.device) for x in operands]))
        return out

    @staticmethod
    def _is_number(x: object) -> bool:
        if isinstance(x, Tensor):
            return x.is_floating_point() and x.element_size() > 1 and x.layout is torch.strided
        return isinstance(x, (int, float)) and not isinstance(x, bool)

    @staticmethod
    def _magnitudes(x: Any) -> Tensor:
        return torch.as_tensor(x).to(torch.float64).abs().flatten()

    def _move(self, result: Tensor, operands: Tensor) -> None:
        values = result.double()
        steps = torch.randint(-1, 2, result.shape, generator=self.generator).to(result.device, torch.float64)
        kept = torch.isin(values.abs(), operands) | ~values.isfinite()
        result.copy_(torch.where(kept, values, values * (1 + steps * torch.finfo(result.dtype).eps)))


_NARROWING = {"float", "half", "bfloat16"}
_ROUGH_ON_CUDA = {F.hardswish: lambda x: x * (x + 3).clamp(0, 6) / 6, F.hardsigmoid: lambda x: (x + 3).clamp(0, 6) / 6}
"""Functions whose kernels multiply by a sixth that was rounded to float32 (torch 2.11), in full precision."""


class _DoublePrecision(TorchFunctionMode):
    """Replaces every request for a narrower floating-point dtype by float64 or complex128."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _ROUGH_ON_CUDA and args[0].is_cuda and not (kwargs or {}).get("inplace", False):
            return _ROUGH_ON_CUDA[func](args[0])
        func = torch.Tensor.double if getattr(func, "__name__", "") in _NARROWING else func
        args, kwargs = pytree.tree_map_only(torch.dtype, lambda d: _WIDER.get(d, d), (args, kwargs or {}))
        return func(*args, **kwargs)


@contextmanager
def double_precision() -> Iterator[None]:
    """Inside, floating-point work is done in float64, explicit casts to a narrower dtype included."""
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _DoublePrecision():
            yield
    finally:
        torch.set_default_dtype(default)


# --- observing ---


def _named_tensors(prefix: str, tree: Any) -> tuple[dict[str, Tensor], dict[str, object]]:
    tensors: dict[str, Tensor] = {}
    others: dict[str, object] = {}
    for path, leaf in pytree.tree_flatten_with_path(tree)[0]:
        name = prefix + pytree.keystr(path)
        if isinstance(leaf, Tensor):
            tensors[name] = leaf
        elif isinstance(leaf, nn.Module):
            tensors |= {f"{name}.{key}": buffer for key, buffer in leaf.named_buffers()}
        else:
            others[name] = leaf
    return tensors, others


def _gradients(args: Any) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for path, leaf in pytree.tree_flatten_with_path(args)[0]:
        name = "gradient" + pytree.keystr(path)
        if isinstance(leaf, nn.Module):
            found |= {f"{name}.{k}": p.grad for k, p in leaf.named_parameters() if p.grad is not None}
        elif isinstance(leaf, Tensor) and leaf.is_leaf and leaf.grad is not None:
            found[name] = leaf.grad
    return found


def _distinct(after: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> list[Tensor]:
    """Arguments through which a gradient may flow because they were mutated, less those returned too."""
    returned = {id(output) for output in outputs.values()}
    return [tensor for tensor in after.values() if not tensor.is_leaf and id(tensor) not in returned]


def _run_backward(outputs: Sequence[Tensor], seed: int) -> None:
    """Backward from every differentiable output; tangents depend on the seed and the shapes alone."""
    generator = torch.Generator().manual_seed(seed)
    eighths = torch.tensor([k / 8 for k in range(-8, 9)], dtype=torch.float64)
    roots, tangents = [], []
    for output in outputs:
        if output.requires_grad and output.grad_fn is not None:
            drawn = eighths[torch.randint(0, 17, output.shape, generator=generator)]
            roots.append(output)
            tangents.append(drawn.to(output.device, output.dtype))
    if roots:
        torch.autograd.backward(roots, tangents)


def _sharing(tensors: Mapping[str, Tensor]) -> frozenset[frozenset[str]]:
    groups: dict[int, set[str]] = {}
    for name, tensor in tensors.items():
        key = _storage_key(tensor)
        if key is not None:
            groups.setdefault(key, set()).add(name)
    return frozenset(frozenset(group) for group in groups.values() if len(group) > 1)


def observe(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = False,
    seed: int = 0,
    prepare: Callable[[Any], Any] = lambda args: args,
) -> Observation:
    """Runs ``fn`` on ``args`` (which it may mutate) and reports all that a caller can see.

    ``prepare`` maps the leaves to what ``fn`` gets, for instance to clones that may be mutated in place.
    """
    kwargs = dict(kwargs or {})
    torch.manual_seed(seed)
    passed = prepare(tuple(args))
    with torch.set_grad_enabled(backward):
        result = fn(*passed, **kwargs)
    outputs, others = _named_tensors("output", result)
    after, _ = _named_tensors("argument", (passed, kwargs) if kwargs else passed)
    sharing = _sharing({**outputs, **after})
    identical = frozenset((o, a) for o, x in outputs.items() for a, y in after.items() if x is y)
    kept = {name: tensor.detach() for name, tensor in after.items()}
    flags = {name: tensor.requires_grad for name, tensor in outputs.items()}
    if backward:
        _run_backward([*outputs.values(), *_distinct(after, outputs)], seed)
    grads = _gradients((args, kwargs) if kwargs else tuple(args))
    return Observation({**outputs, **kept, **grads}, {**others, "requires_grad": flags}, sharing, identical)


# --- comparing ---


def _strides(tensor: Tensor) -> tuple[int, ...] | None:
    """Strides of the dimensions along which one can step; others cannot be told apart by reading."""
    if tensor.layout is not torch.strided or tensor.numel() == 0:
        return None
    return tuple(stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1)


def metadata_mismatch(actual: Tensor, eager: Tensor, *, strides: bool = True) -> str | None:
    """The first of shape, dtype, device, layout and strides in which two tensors differ."""
    for attribute in ("layout", "shape", "dtype", "device"):
        got, want = getattr(actual, attribute), getattr(eager, attribute)
        if got != want:
            return f"{attribute} is {got}, eager's is {want}"
    if strides and _strides(actual) != _strides(eager):
        return f"strides are {actual.stride()}, eager's are {eager.stride()}, for shape {tuple(eager.shape)}"
    return None


def _plain(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_conj().resolve_neg()
    return torch.view_as_real(tensor.to(torch.complex128)) if tensor.dtype.is_complex else tensor


def _rms(error: Tensor) -> float:
    return error.square().mean().sqrt().item() if error.numel() else 0.0


def _worst(actual: Tensor, eager: Tensor, wrong: Tensor) -> str:
    """Names the element with the largest entry of ``wrong`` and says how many entries are not zero."""
    flat = int(torch.nan_to_num(wrong.to(torch.float64), nan=math.inf).flatten().argmax())
    where = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), wrong.shape))
    count = int((wrong != 0).sum())
    return f"worst of {count}/{wrong.numel()} at {where}: {actual[where].item()}, eager {eager[where].item()}"


def _discrete_mismatch(actual: Tensor, eager: Tensor, others: Sequence[Tensor]) -> str | None:
    wrong = actual != eager
    for other in others:
        wrong &= other == eager
    return f"values differ: {_worst(actual, eager, wrong)}" if bool(wrong.any()) else None


def _class_of(values: Tensor) -> Tensor:
    """0 finite, 1 inf, 2 -inf, 3 nan."""
    return values.isposinf() * 1 + values.isneginf() * 2 + values.isnan() * 3


def _float_mismatch(
    actual: Tensor, eager: Tensor, reference: Tensor, others: Sequence[Tensor], slack: float, floor: float
) -> str | None:
    actual, eager, reference = actual.double(), eager.double(), reference.double()
    kinds = [_class_of(values) for values in (eager, reference, *(other.double() for other in others))]
    foreign = torch.ones_like(actual, dtype=torch.bool)
    for kind in kinds:
        foreign &= _class_of(actual) != kind
    if bool(foreign.any()):
        return f"NaN or infinity in other places: {_worst(actual, eager, foreign)}"
    finite = actual.isfinite() & eager.isfinite() & reference.isfinite()
    actual, eager, reference = (torch.where(finite, t, 0.0) for t in (actual, eager, reference))
    scale, own, error = max(_rms(reference), floor), _rms(eager - reference), _rms(actual - reference)
    allowed = 2 * own + slack * scale + torch.finfo(torch.float32).tiny
    for other in others:
        allowed = max(allowed, 2 * _rms(torch.where(finite, other.double(), 0.0).nan_to_num() - reference))
    if error <= allowed:
        return None
    worst = _worst(actual, eager, (actual - reference).abs())
    return f"rms error {error:.3g}, eager's own {own:.3g}, allowed {allowed:.3g}, scale {scale:.3g}; {worst}"


def value_mismatch(
    actual: Tensor,
    eager: Tensor,
    reference: Tensor,
    others: Sequence[Tensor] = (),
    slack: float | None = None,
    floor: float = 0.0,
) -> str | None:
    """Why ``actual`` is no acceptable answer, or None. ``others`` are eager's results on perturbed inputs."""
    if actual.device.type == "meta" or eager.numel() == 0:
        return None
    dtype = eager.dtype
    plain = [_plain(tensor) for tensor in (actual, eager, reference)]
    rest = [_plain(other) for other in others if other.shape == eager.shape]
    if reference.shape != eager.shape:
        plain[2] = plain[1]
    if not (dtype.is_floating_point or dtype.is_complex):
        return _discrete_mismatch(plain[0], plain[1], plain[2:] + rest)
    slack = SLACK.get(dtype, 1.0) if slack is None else slack
    return _float_mismatch(*plain, rest, slack * torch.finfo(dtype).eps, floor)


def mismatches(
    actual: Observation,
    eager: Observation,
    reference: Observation,
    perturbed: Sequence[Observation] = (),
    *,
    slack: float | None = None,
    strides: bool = True,
    values: bool = True,
) -> list[str]:
    """Each way in which a compiled run differs from eager's, one line each, the tensor's name first."""
    lines = []
    missing = set(eager.tensors) - set(actual.tensors) - _zero_gradients(eager)
    extra = set(actual.tensors) - set(eager.tensors) - _zero_gradients(actual)
    lines += [f"{name}: missing" for name in sorted(missing)]
    lines += [f"{name}: not in eager's results" for name in sorted(extra)]
    if not _equal_leaves(actual.others, eager.others):
        lines.append(f"other outputs are {actual.others}, eager's are {eager.others}")
    if actual.sharing != eager.sharing:
        lines.append(f"sharing of storage is {_groups(actual.sharing)}, eager's is {_groups(eager.sharing)}")
    if actual.identical != eager.identical:
        lines.append(f"identity is {sorted(actual.identical)}, eager's is {sorted(eager.identical)}")
    floor = ZERO_GRADIENT * _largest_gradient(reference)
    for name in sorted(set(actual.tensors) & set(eager.tensors)):
        got, want = actual.tensors[name], eager.tensors[name]
        line = metadata_mismatch(got, want, strides=strides and not name.startswith("gradient"))
        if line is None and values:
            others = [run.tensors[name] for run in perturbed if name in run.tensors]
            least = floor if name.startswith("gradient") else 0.0
            line = value_mismatch(got, want, reference.tensors.get(name, want), others, slack, least)
        if line is not None:
            lines.append(f"{name}: {line}")
    return lines


def _largest_gradient(observation: Observation) -> float:
    gradients = [t for name, t in observation.tensors.items() if name.startswith("gradient")]
    return max((_rms(_plain(g).double()) for g in gradients if g.is_floating_point()), default=0.0)


def _zero_gradients(observation: Observation) -> set[str]:
    """Gradients that are zero throughout, which may as well be None."""
    return {
        name
        for name, tensor in observation.tensors.items()
        if name.startswith("gradient") and not bool(_plain(tensor).any())
    }


def _equal_leaves(left: Mapping[str, object], right: Mapping[str, object]) -> bool:
    return left.keys() == right.keys() and all(_equal(left[key], right[key]) for key in left)


def _equal(left: object, right: object) -> bool:
    if isinstance(left, float) and isinstance(right, float):
        both_nan = math.isnan(left) and math.isnan(right)
        return both_nan or left == right or math.isclose(left, right, rel_tol=1e-5)
    return type(left) is type(right) and left == right


def _groups(sharing: frozenset[frozenset[str]]) -> list[list[str]]:
    return sorted(sorted(group) for group in sharing)


# --- doors ---


@dataclass(frozen=True)
class Expected:
    """Eager's runs of one call, made once and compared with any number of compiled runs."""

    fn: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    backward: bool
    seed: int
    prepare: Callable[[Any], Any]
    eager: Observation
    reference: Observation

    def perturbed(self, precision: torch.dtype | None = None, *, inside: bool = True) -> list[Observation]:
        """Eager's answers on inputs moved by a :func:`perturbation`, and with values ``inside`` moved; runs that raise
        are left out.
        """
        runs = []
        for index in range(PERTURBED_RUNS):
            ways = [(perturbation(index, precision), nullcontext()), (_same, _Rounded(index))]
            for transform, context in ways if inside else ways[:1]:
                try:
                    with context:
                        runs.append(self.observe(self.fn, transform))
                except (RuntimeError, ValueError, IndexError):
                    continue
        return runs

    def observe(self, fn: Callable[..., Any], transform: Callable[[Tensor], Tensor] = _same) -> Observation:
        """Runs ``fn``, eager or compiled, on a fresh copy of the arguments."""
        args, kwargs = copy_arguments((tuple(self.args), dict(self.kwargs or {})), transform)
        return observe(fn, args, kwargs, backward=self.backward, seed=self.seed, prepare=self.prepare)

    def mismatches(
        self, compiled: Callable[..., Any], precision: torch.dtype | None = None, **options: Any
    ) -> list[str]:
        """How a compiled function's run differs; see :func:`perturbation` and :func:`mismatches` for the options."""
        actual = self.observe(compiled)
        lines = mismatches(actual, self.eager, self.reference, **options)
        others = self.perturbed(precision) if lines else []
        return mismatches(actual, self.eager, self.reference, others, **options) if lines else []


def expect(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    backward: bool = False,
    seed: int = 0,
    prepare: Callable[[Any], Any] = lambda args: args,
) -> Expected:
    """Runs ``fn`` in eager and in float64; the arguments themselves are left untouched.

    Where the function cannot run in float64, eager's own answer is the reference.
    """

    def run(transform: Callable[[Tensor], Tensor], context: AbstractContextManager[None]) -> Observation:
        copied, named = copy_arguments((tuple(args), dict(kwargs or {})), transform)
        with context:
            return observe(fn, copied, named, backward=backward, seed=seed, prepare=prepare)

    eager = run(_same, nullcontext())
    try:
        reference = run(widen, double_precision())
    except (RuntimeError, TypeError, ValueError, IndexError, NotImplementedError):
        reference = eager
    return Expected(fn, args, kwargs, backward, seed, prepare, eager, reference)


def check(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    backend: str,
    backward: bool = False,
    seeds: Sequence[int] = (0,),
    prepare: Callable[[Any], Any] = lambda args: args,
    strides: bool = True,
    **compile_options: Any,
) -> None:
    """Compiles ``fn`` with ``backend`` and asserts that each call does what eager does."""
    compiled = torch.compile(fn, backend=backend, **compile_options)
    for seed in seeds:
        expected = expect(fn, args, kwargs, backward=backward, seed=seed, prepare=prepare)
        assert_none(expected.mismatches(compiled, strides=strides))


def assert_none(lines: Sequence[str]) -> None:
    """Raises an AssertionError that lists the mismatches, a dozen at most."""
    if lines:
        more = [f"and {len(lines) - MESSAGE_LIMIT} more"] if len(lines) > MESSAGE_LIMIT else []
        raise AssertionError("differs from eager:\n  " + "\n  ".join([*lines[:MESSAGE_LIMIT], *more]))


def assert_matches(
    actual: Tensor, eager: Tensor, reference: Tensor, *, name: str = "tensor", slack: float | None = None
) -> None:
    """Asserts that one tensor has eager's metadata and an acceptable value (see the module's rule)."""
    line = metadata_mismatch(actual, eager) or value_mismatch(actual, eager, reference, slack=slack)
    assert_none([f"{name}: {line}"] if line else [])

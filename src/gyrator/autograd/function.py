"""The torch.autograd.Function around a forward and a backward graph."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from gyrator import torch_compat
from gyrator.autograd.fake_results import contiguous_strides
from gyrator.autograd.inputs import of_subclass
from gyrator.autograd.interface import BoxedCallable
from gyrator.errors import UnsupportedInput
from gyrator.ir.evaluate import copied


@dataclass(frozen=True)
class Tangent:
    """A gradient that backward expects: for result `result`, with this shape and strides, or None where sizes are
    symbolic, and strides then contiguous. `dtype` and `device` describe the zeros that stand in for a missing one."""

    result: int
    layout: tuple[tuple[int, ...], tuple[int, ...]] | None
    dtype: torch.dtype
    device: torch.device


@dataclass(frozen=True)
class Differentiable:
    """What the Function needs.

    Attributes:
        forward: boxed; returns results, saved values, and what `numbers` names.
        backward: boxed; takes numbers, saved values, saved inputs, tangents; returns what `gradients` lists.
        results: number of results.
        saved_values: number of saved values after them.
        saved_inputs: positions of the inputs that backward reads.
        tangents: those that backward takes.
        missing: results with a tangent too, which backward takes to be missing.
        gradients: for each gradient that backward returns, the position of its input.
        written: positions of the inputs whose new values backward returns after them.
        inputs: number of arguments."""

    forward: BoxedCallable
    backward: BoxedCallable
    results: int
    saved_values: int
    numbers: tuple[str, ...]
    saved_inputs: tuple[int, ...]
    tangents: tuple[Tangent, ...]
    missing: tuple[int, ...]
    gradients: tuple[int, ...]
    written: tuple[int, ...]
    inputs: int


def differentiable(spec: Differentiable) -> tuple[int, ...]:
    """The results that may have a gradient, in order."""
    return tuple(sorted({*spec.missing, *[tangent.result for tangent in spec.tangents]}))


def make_function(spec: Differentiable, complete: Callable[[], Differentiable]) -> BoxedCallable:
    """A boxed callable that runs forward and links its results to backward. `complete` compiles the program once more,
    with a backward that misses no tangent; it is called when one is there after all."""
    forward, completed = spec.forward, cache(complete)
    results, saved_end = spec.results, spec.results + spec.saved_values
    constant_results = tuple(sorted({*range(results)} - {*differentiable(spec)}))
    dynamic = (*spec.missing, *[tangent.result for tangent in spec.tangents if tangent.layout is None])
    leads_back = bool(spec.saved_values and {*spec.gradients} - {*spec.saved_inputs})
    # Detached, else autograd would run the graph that made them, and free what it saved.
    unreached = tuple(sorted({*range(spec.inputs)} - {*spec.gradients}))
    order = tuple(map({position: index for index, position in enumerate(spec.gradients)}.get, range(spec.inputs)))

    class Compiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, *args: Any) -> tuple[Any, ...]:
            outputs = forward(list(args))
            # Saved, this result leads from what forward computed to the inputs, for gradients that have gradients.
            origin = [torch.empty(0, device="cpu")] if leads_back else []
            ctx.save_for_backward(*outputs[results:saved_end], *[args[index] for index in spec.saved_inputs], *origin)
            ctx.numbers, ctx.written = outputs[saved_end:], [args[index] for index in spec.written]
            ctx.set_materialize_grads(False)
            ctx.mark_non_differentiable(*[x for at in constant_results if isinstance(x := outputs[at], Tensor)])
            ctx.shapes = {index: tuple(outputs[index].shape) for index in dynamic}
            return (*outputs[:results], *origin)

        @staticmethod
        # a compiled function that calls `loss.backward()` would capture this code
        @torch.compiler.disable  # type: ignore[untyped-decorator]
        def backward(ctx: Any, *gradients: Any) -> tuple[Any, ...]:
            saved = ctx.saved_tensors
            again = torch.is_grad_enabled()
            inputs = saved[spec.saved_values :] if again else ()
            link = spec if all(gradients[index] is None for index in spec.missing) else completed()
            numbers = dict(zip(spec.numbers, ctx.numbers, strict=True))
            tangents = [gradients[tangent.result] for tangent in link.tangents]
            boxed = [*[numbers[name] for name in link.numbers], *saved[: len(saved) - leads_back], *tangents]
            del saved, tangents
            ctx.maybe_clear_saved_tensors()  # unless backward may run again
            with torch_compat.without_functions(), torch.no_grad() if again else nullcontext():  # as forward ran
                values = torch_compat.each_sample(partial(_run_backward, link, ctx.shapes), boxed, len(link.tangents))
                for target, value in zip(ctx.written, values[len(spec.gradients) :], strict=True):
                    target.copy_(value)
            if again:
                values = _SecondDerivative.apply(len(values), *values, *inputs, *gradients)
            return tuple([None if index is None else values[index] for index in order])

    def call(args: list[Any]) -> Any:
        for at in unreached:
            if isinstance(args[at], Tensor) and args[at].requires_grad:
                args[at] = args[at].detach()
        return Compiled.apply(*args)[:results]

    return call


class _SecondDerivative(torch.autograd.Function):
    """The identity on the first `count` values, gradients by create_graph=True of the rest. Its backward is refused."""

    @staticmethod
    def forward(ctx: Any, count: int, *values: Any) -> tuple[Any, ...]:
        return tuple(None if value is None else value.view_as(value) for value in values[:count])

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise UnsupportedInput("a second derivative", hint="set torch._dynamo.config.trace_autograd_ops = True")


def _run_backward(spec: Differentiable, shapes: dict[int, tuple[int, ...]], boxed: list[Any]) -> Sequence[Any]:
    """What backward returns for saved values and gradients, which lie at the end of `boxed` in any strides."""
    for at, tangent in enumerate(spec.tangents, len(boxed) - len(spec.tangents)):
        shape, strides = tangent.layout or (shapes[tangent.result], contiguous_strides(shapes[tangent.result]))
        boxed[at] = _received(boxed[at], shape, strides, tangent)
    return spec.backward(boxed)


def _received(gradient: Any, shape: Any, strides: Any, tangent: Tangent) -> Tensor:
    """The gradient with the strides that backward was compiled for; zeros for one that autograd did not compute."""
    if gradient is None:
        return torch.empty_strided(shape, strides, dtype=tangent.dtype, device=tangent.device).zero_()
    if type(gradient) is not Tensor:
        raise of_subclass(gradient)
    gradient = gradient.to_dense() if gradient.layout is not torch.strided else gradient
    fits = gradient.stride() == strides and not torch_compat.is_zero(gradient)
    return gradient if fits else copied(gradient, strides)

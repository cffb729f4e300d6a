"""Origins: from an FX node to the user's line."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import fx, nn

from gyrator.origin import Origin, merge, origin_of, place_of

TORCH = str(Path(torch.__file__).parent / "nn" / "modules" / "linear.py")


def node(**meta: object) -> fx.Node:
    graph = fx.Graph()
    x = graph.placeholder("x")
    add = graph.call_function(torch.ops.aten.add.Tensor, (x, x))
    add.meta.update(meta)
    return add


def test_the_innermost_frame_outside_torch_is_taken() -> None:
    stack = (
        '  File "/home/me/train.py", line 10, in main\n    model(x)\n'
        '  File "/home/me/model.py", line 42, in forward\n    return self.out(x)\n'
        f'  File "{TORCH}", line 134, in forward\n    return F.linear(x)\n'
    )
    assert origin_of(node(stack_trace=stack)) == Origin("/home/me/model.py", 42, "forward", "aten.add.Tensor")


def test_where_all_frames_are_torchs_the_last_is_taken() -> None:
    assert origin_of(node(stack_trace=f'File "{TORCH}", line 134, in forward\n  x\n')).line == 134


def test_without_a_stack_the_module_stands_for_the_function() -> None:
    stack = {"a": ("L['self']", nn.Module), "b": ("L['self'].out", nn.Linear)}
    assert origin_of(node(nn_module_stack=stack)) == Origin("", 0, "L['self'].out", "aten.add.Tensor")


def test_an_operator_without_any_trace_is_still_named() -> None:
    assert origin_of(node()) == Origin("", 0, "", "aten.add.Tensor")
    assert str(origin_of(node())) == "unknown place"
    assert str(Origin("", 0, "L['self'].out", "aten.add.Tensor")) == "module L['self'].out"


def test_a_captured_graph_leads_back_to_this_file() -> None:
    seen: list[Origin] = []

    def backend(graph: fx.GraphModule, inputs: list[torch.Tensor]) -> fx.GraphModule:
        seen.extend(origin_of(n) for n in graph.graph.nodes if n.op == "call_function")
        return graph

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() + nn.functional.softmax(x, 0)

    torch.compile(f, backend=backend)(torch.ones(3))
    assert seen and all(Path(o.file) == Path(__file__) and o.function == "f" for o in seen)


def test_origins_merge_without_repetition() -> None:
    a, b = Origin("m.py", 1, "f", "add"), Origin("m.py", 2, "f", "mul")
    assert merge((a, b), (b,), (a,)) == (a, b)
    assert place_of((Origin("", 0, "", "add"), b)) == "m.py:2 in f"
    assert place_of(()) == "unknown place"

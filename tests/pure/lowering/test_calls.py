"""What is no nest: extern calls, custom ops, effects, higher-order ops, constants, updates, numbers, random
draws.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._higher_order_ops.auto_functionalize import auto_functionalized
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.autograd import ops
from gyrator.errors import UnsupportedOperator
from gyrator.ir.check import check_program
from gyrator.lowering.graph import lower
from tests.pure.lowering.harness import check, lowered, run, symbols_of, tensor, trace


def seeds(count: int, device: torch.device) -> Tensor:
    return torch.arange(count) * 7919 + 11


SEEDS = {"gyrator.seeds.default": seeds}


@torch.library.custom_op("lowering_tests::pair", mutates_args=())
def pair(x: Tensor, by: int) -> tuple[Tensor, Tensor]:
    return x * by, x + by


@pair.register_fake
def _(x: Tensor, by: int) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), torch.empty_like(x)


@torch.library.custom_op("lowering_tests::bump", mutates_args=("x",))
def bump(x: Tensor, by: Tensor) -> Tensor:
    x.add_(by)
    return x * 2


@bump.register_fake
def _(x: Tensor, by: Tensor) -> Tensor:
    return torch.empty_like(x)


# -- library calls -----------------------------------------------------------------------------------------
def test_library_calls() -> None:
    check(lambda x: x @ x.t(), tensor(5, 8), externs=["aten.mm.default"])
    check(lambda x: x.sort(1), tensor(3, 4), externs=["aten.sort.default"])
    check(lambda x: x.topk(2), tensor(3, 4), externs=["aten.topk.default"])
    check(
        lambda x, w: F.conv2d(x, w, padding=1),
        tensor(2, 3, 5, 5),
        tensor(4, 3, 3, 3),
        externs=["aten.convolution.default"],
    )


def test_a_result_that_nobody_reads_gets_no_value() -> None:
    low = lowered(lambda x: x.sort(1)[1], tensor(3, 4))
    (call,) = low.program.nodes
    assert [v is None for v in call.out] == [True, False]


def test_custom_ops_get_the_strides_they_were_traced_with() -> None:
    low = check(lambda x: pair(x.t(), 3)[0] + 1, tensor(3, 4), externs=["lowering_tests.pair.default"])
    call = low.program.nodes[0]
    assert [str(s) for s in call.args[0].strides] == ["1", "4"]


def test_a_custom_op_that_writes_makes_a_new_version() -> None:
    def fn(x: Tensor, by: Tensor) -> Any:
        y = x * 2
        out, new = auto_functionalized(torch.ops.lowering_tests.bump.default, x=y[1:], by=by)
        return out, new + 1, y

    args = (tensor(3, 4), tensor(4))
    graph = make_fx(fn, tracing_mode="fake")(*args)
    low = lower(graph, symbols=symbols_of(graph))
    check_program(low.program)
    y = args[0] * 2
    out, new, old = run(low, args).outputs
    torch.testing.assert_close((out, new, old), ((y[1:] + args[1]) * 2, y[1:] + args[1] + 1, y))


def test_what_is_read_and_written_by_one_call_is_copied() -> None:
    def fn(x: Tensor) -> Any:
        return auto_functionalized(torch.ops.lowering_tests.bump.default, x=x, by=x[0])

    graph = make_fx(fn, tracing_mode="fake")(tensor(3, 4))
    low = lower(graph, symbols=symbols_of(graph))
    x = tensor(3, 4)
    out, new = run(low, (x,)).outputs
    torch.testing.assert_close((out, new), ((x + x[0]) * 2, x + x[0]))


def test_in_place_ops_are_refused() -> None:
    graph = make_fx(lambda x: (x + 1).mul_(2), tracing_mode="fake")(tensor(3))
    with pytest.raises(UnsupportedOperator, match=r"aten\.mul_.*functional") as raised:
        lower(graph, symbols=symbols_of(graph))
    before, node, after = (raised.value.node or "").splitlines()  # with its neighbours
    assert "aten.add.Tensor" in before and "aten.mul_.Tensor" in node and after == "return mul_"


def test_an_error_names_the_node() -> None:
    graph = trace(lambda x: x + 1, (tensor(3),))
    node = next(n for n in graph.graph.nodes if n.op == "call_function")
    node.args = (node.args[0], "one")
    with pytest.raises(Exception, match=r"aten\.add\.Tensor"):
        lower(graph, symbols=symbols_of(graph))


# -- where programs begin and end
# -----------------------------------------------------------------------------
def test_an_output_may_be_an_update() -> None:
    graph = trace(lambda x, y: (x + y, x * 2), (tensor(3), tensor(3)))
    low = lower(graph, symbols=symbols_of(graph), updates=[(1, 1)])
    result = run(low, (tensor(3), tensor(3)))
    assert result.outputs[1] is None
    torch.testing.assert_close(result.updates[0], tensor(3) * 2)


def test_constants_are_held_once_and_numbers_become_literals() -> None:
    held = torch.arange(4.0)
    low = check(lambda x: x + held * torch.tensor(2.0) + held, tensor(4))
    assert [str(c) for c in low.program.constants] == list(low.constants)
    assert len(low.constants) == 1


def test_none_and_numbers_leave_the_graph() -> None:
    low = lowered(lambda x: (x + 1, None, 3, x.shape[0]), tensor(4), dynamic=True)
    assert run(low, (tensor(4),)).outputs[1:] == (None, 3, 4)


# -- numbers from sizes and items
# ---------------------------------------------------------------------------------
def test_sizes_as_numbers() -> None:
    check(lambda x: x * x.shape[0] + x.shape[1] / 2, tensor(3, 4), dynamic=True)
    check(lambda x: x.mean() * (x.numel() // 2) ** 0.5, tensor(3, 4), dynamic=True)
    check(lambda x: x.new_zeros(x.shape[0] * 2, 3) + x.shape[1], tensor(3, 4), dynamic=True)


def test_a_float_read_from_a_tensor_is_a_load() -> None:
    low = check(lambda x, s: x * torch.ops.aten._local_scalar_dense(s), tensor(3), torch.tensor(0.1), dynamic=True)
    assert str(low.program.nodes[0].root.body) == "arg0_1[i0] * arg1_1[]"


def test_assertions_on_sizes_are_calls_with_effects() -> None:
    def fn(x: Tensor) -> Tensor:
        n = x.max().item()
        torch._check(n >= 2)
        return x + n

    low = lowered(fn, torch.tensor([1, 5]), dynamic=True)
    kinds = [(n.op, n.effects) for n in low.program.nodes if hasattr(n, "op")]
    assert kinds[0] == ("aten._local_scalar_dense.default", True)
    assert all(op == "aten._assert_async.msg" and effects for op, effects in kinds[1:])


# -- random draws
# --------------------------------------------------------------------------------------------------------
def test_draws_share_one_call_for_seeds() -> None:
    low = lowered(lambda x: torch.rand(4) + torch.randn(4) + torch.rand_like(x), tensor(4))
    calls = [n for n in low.program.nodes if hasattr(n, "op")]
    assert [c.op for c in calls] == ["gyrator.seeds.default"]
    assert str(calls[0].args[0]) == "3"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_random_numbers_have_the_right_distribution(dtype: torch.dtype) -> None:
    low = lowered(
        lambda: (torch.rand(10000, dtype=dtype), torch.randn(10000, dtype=dtype), torch.randint(3, 9, (10000,)))
    )
    uniform, normal, whole = (t.double() for t in run(low, (), externs=SEEDS).outputs)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02 and abs(uniform.var() - 1 / 12) < 0.01
    assert abs(normal.mean()) < 0.05 and abs(normal.var() - 1) < 0.1
    assert sorted(set(whole.tolist())) == [3, 4, 5, 6, 7, 8]


def test_eager_numerics_leave_draws_to_the_library() -> None:
    graph = trace(lambda: torch.rand(4), ())
    low = lower(graph, symbols=symbols_of(graph), numerics="eager")
    assert low.fallbacks == ("aten.rand.default",)
    assert low.program.nodes[0].effects


def test_draws_with_seeds_of_the_graph_are_what_the_operator_gives() -> None:
    def fn(seeds: Tensor) -> tuple[Tensor, ...]:
        cpu = torch.device("cpu")
        dtypes = (torch.float32, torch.float64, torch.bfloat16)
        drawn = [ops.rand([3, 4], seeds, 1, dtype, cpu) for dtype in dtypes]
        return (*drawn, ops.randn([5], seeds, 0, torch.float32, cpu))

    check(fn, torch.tensor([123, -456]))


def test_restride_is_a_copy() -> None:
    check(lambda x: ops.restride(x, [1, 3]), tensor(3, 4))

"""The key of a graph: equal for equal work, different for whatever the code depends on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from gyrator.cache.key import Key, differing, graph_key
from gyrator.config import Config
from gyrator.torch_compat import raw_bytes


def traced(function: Callable[..., Any], *args: torch.Tensor, mode: str = "fake") -> fx.GraphModule:
    return make_fx(function, tracing_mode=mode)(*args)


def key_of(function: Callable[..., Any], *args: torch.Tensor, mode: str = "fake", **options: Any) -> Key:
    graph = traced(function, *args, mode=mode)
    sizes = [n.meta["val"] for n in graph.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    symbolic = [s for t in sizes for s in t.shape if isinstance(s, torch.SymInt)]
    env = symbolic[0].node.shape_env if symbolic else None
    return graph_key(graph, Config(**options), shape_env=env)


def base(x: torch.Tensor) -> torch.Tensor:
    return x.sin() + 1


X = torch.randn(4, 6)


def test_two_traces_of_one_function_have_one_key() -> None:
    assert key_of(base, X) == key_of(base, X.clone())


DIFFERENT: dict[str, Callable[[], Key]] = {
    "op": lambda: key_of(lambda x: x.cos() + 1, X),
    "number": lambda: key_of(lambda x: x.sin() + 2, X),
    "kind of number": lambda: key_of(lambda x: x.sin() + 1.0, X),
    "shape": lambda: key_of(base, torch.randn(4, 7)),
    "strides": lambda: key_of(base, torch.randn(6, 4).t()),
    "dtype": lambda: key_of(base, X.double()),
    "option": lambda: key_of(base, X, numerics="eager"),
    "dynamic": lambda: key_of(base, X, mode="symbolic"),
}


@pytest.mark.parametrize("what", DIFFERENT)
def test_key_depends_on(what: str) -> None:
    assert DIFFERENT[what]().digest != key_of(base, X).digest


def test_target_and_updates_are_part_of_the_key() -> None:
    graph = traced(base, X)
    digests = {
        graph_key(graph, Config()).digest,
        graph_key(graph, Config(), target="g++ 12").digest,
        graph_key(graph, Config(), "output 0 updates input 0").digest,
        graph_key(graph, Config(), "output 0 is shown").digest,
    }
    assert len(digests) == 4


def test_global_state_is_part_of_the_key() -> None:
    before = key_of(base, X)
    torch.set_float32_matmul_precision("high")
    try:
        after = key_of(base, X)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert differing(after, [before.fields]) == ("global state",)


def test_precisions_that_backends_have_apart_are_part_of_the_key() -> None:
    before, matmul = key_of(base, X), torch.backends.cuda.matmul
    kept = matmul.fp32_precision
    matmul.fp32_precision = "tf32"  # torch then refuses to name one precision
    try:
        assert differing(key_of(base, X), [before.fields]) == ("global state",)
    finally:
        matmul.fp32_precision = kept
    assert key_of(base, X) == before


def test_options_that_shape_no_code_do_not_matter() -> None:
    assert key_of(base, X, progress="off").digest == key_of(base, X, progress="lines").digest


def test_constants_count_by_content() -> None:
    def with_constant(numbers: list[float]) -> Key:
        constant = torch.tensor(numbers)
        return key_of(lambda x: x + constant, torch.randn(2), mode="real")

    assert with_constant([1.0, 2.0]) == with_constant([1.0, 2.0])
    assert differing(with_constant([1.0, 2.0]), [with_constant([1.0, 3.0]).fields]) == ("constants",)


def test_constants_lie_in_any_way() -> None:
    numbers = torch.tensor([1 + 2j, 3 - 4j])
    for constant in (numbers.conj()[1:], numbers.conj().imag[::2], numbers.expand(3, 2), numbers[:0]):
        assert raw_bytes(constant) == constant.clone().contiguous().numpy(force=True).tobytes()


def test_names_of_symbols_do_not_matter() -> None:
    def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum()

    first, second = torch.randn(3, 5), torch.randn(7)
    once = key_of(plus, first, second, mode="symbolic")
    again = key_of(plus, first, second, mode="symbolic")
    assert once.digest == again.digest and set(once.symbols) == set(again.symbols)


def test_guards_are_printed_once_for_the_keys_of_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = traced(lambda x: x.reshape(-1, 4) + 1, torch.ones(6, 8), mode="symbolic")
    env = next(node.meta["val"] for node in graph.graph.nodes).shape[0].node.shape_env
    assert env.guards
    first = graph_key(graph, Config(), shape_env=env)
    monkeypatch.setattr(type(env.guards[0].expr), "__str__", lambda _: pytest.fail("printed again"))
    assert graph_key(graph, Config(), shape_env=env) == first


def test_equal_and_unequal_symbols_are_told_apart() -> None:
    def plus(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x.sum() + y.sum()

    same = key_of(plus, torch.randn(5), torch.randn(5), mode="symbolic")
    other = key_of(plus, torch.randn(5), torch.randn(6), mode="symbolic")
    assert same.digest != other.digest


def test_sizes_that_are_symbols_count_as_the_power_of_two_that_cost_models_see() -> None:
    few, more, many = (key_of(base, torch.randn(rows, 6), mode="symbolic") for rows in (3, 7, 900))
    assert few.digest == more.digest != many.digest
    assert many.digest == key_of(base, torch.randn(1000, 6), mode="symbolic").digest


def test_source_lines_do_not_matter() -> None:
    one, other = traced(base, X), traced(base, X)
    for node in other.graph.nodes:
        node.meta["stack_trace"] = 'File "elsewhere.py", line 99, in f'
    assert graph_key(one, Config()).digest == graph_key(other, Config()).digest


def test_what_cannot_be_written_down_has_no_key() -> None:
    graph = fx.Graph()
    graph.output(graph.call_function(base, (graph.placeholder("x"),)))
    assert graph_key(fx.GraphModule(torch.nn.Module(), graph), Config()) is None


def test_reason_of_a_miss_is_taken_from_the_most_similar_entry() -> None:
    wanted = key_of(base, X)
    near, far = dict(wanted.fields) | {"options": "?"}, dict.fromkeys(wanted.fields, "?")
    assert differing(wanted, [far, near]) == ("options",)
    assert set(differing(wanted, [])) == set(wanted.fields)

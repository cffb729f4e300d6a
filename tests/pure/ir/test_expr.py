"""Expressions: equal nodes are one object, rewriting keeps what is shared, text is short and stable."""

from __future__ import annotations

import copy
import math
import pickle

import pytest
import torch

from gyrator.ir.expr import Checked, Const, Expr, IndexValue, Load, Masked, rewrite, walk_all
from gyrator.ir.index import Indirect, Size
from gyrator.ir.index import const as number
from gyrator.ir.ops import OPS, REDUCTIONS, ROWS, Rule, ScalarOp, identity
from gyrator.ir.program import Nest, Pointwise
from gyrator.ir.text import node_text
from tests.pure.ir.examples import axis, cast, const, load, op, value

F32, I64, BOOL = torch.float32, torch.int64, torch.bool
i, j = axis("i0", 4), axis("i1", 6)
x, idx = value("x", 4, 6), value("idx", 4, dtype=I64)


def test_equal_nodes_are_one_object() -> None:
    assert op("add", load(x, i, j), const(1.0)) is op("add", load(x, i, j), const(1.0))
    assert value("x", 4, 6) is x
    assert value("x", 4, 6, dtype=torch.float64) is not x


def test_literals_that_compare_equal_stay_apart() -> None:
    assert const(0.0) is not const(-0.0)
    assert const(math.nan) is const(math.nan)
    assert Const(True, BOOL) is not Const(1, BOOL)
    assert Load(x, (i.index(), j.index()), None, 0.0) is not Load(x, (i.index(), j.index()), None, -0.0)


def test_nodes_are_immutable_and_copy_to_themselves() -> None:
    e = op("exp", load(x, i, j))
    with pytest.raises(AttributeError, match="cannot assign"):
        e.name = "log"  # type: ignore[misc]
    assert copy.deepcopy(e) is e and pickle.loads(pickle.dumps(e)) is e


def test_an_expression_knows_its_axes_and_sizes() -> None:
    n = Size("n", 1)
    at = Indirect(Checked(load(idx, i), n.index()), n.index()).index()
    e = op("add", load(x, i, at), cast(IndexValue(j.index()), F32))
    assert e.axes() == {i, j}
    assert e.sizes() == {n}


def test_what_is_shared_often_is_neither_printed_nor_searched_as_often() -> None:
    e, at, n = load(idx, i), i.index(), Size("n", 1)
    texts = [repr(e := op("mul", op("add", e, e), e)) for _ in range(60)]
    assert len(set(texts)) == 60 and max(map(len, texts)) < 9000
    for _ in range(60):
        at = Indirect(op("add", op("mul", load(idx, at), load(idx, at + 1)), load(idx, at)), n.index()).index()
    assert len(repr(at)) < 9000
    assert load(idx, at + n.index()).sizes() == {n}


def test_substitution_reaches_indirect_indices() -> None:
    at = Indirect(Checked(load(idx, i), number(6)), number(6)).index()
    moved = load(x, i, at).substitute({i: j.index() // 2})
    inner = Indirect(Checked(load(idx, j.index() // 2), number(6)), number(6)).index()
    assert moved is load(x, j.index() // 2, inner)


def test_rewriting_visits_a_shared_node_once() -> None:
    shared = op("exp", load(x, i, j))
    deep: Expr = shared
    for _ in range(40):  # 2**40 paths
        deep = op("add", deep, deep)
    visited = []

    def replace(e: Expr) -> Expr | None:
        visited.append(e)
        return const(1.0) if e is shared else None

    result = rewrite(deep, replace)
    assert len(visited) == 42
    assert result is not deep and sum(1 for _ in result.walk()) == 41


def test_rewriting_nothing_gives_the_same_object() -> None:
    e = Masked(op("lt", load(x, i, j), const(0.0)), op("neg", load(x, i, j)), const(0.0))
    assert rewrite(e, lambda _: None) is e
    assert e.substitute({}) is e


def test_walking_several_expressions_skips_what_was_seen() -> None:
    a = op("exp", load(x, i, j))
    seen: set[Expr] = set()
    assert [*walk_all(a, seen)] == [load(x, i, j), a]
    assert [*walk_all(op("neg", a), seen)] == [op("neg", a)]


@pytest.mark.parametrize(
    ("expr", "text"),
    [
        (op("add", op("mul", load(x, i, j), const(2.0)), const(1.0)), "(x[i0, i1] * 2.0) + 1.0"),
        (cast(load(x, i, j), torch.bfloat16), "bf16(x[i0, i1])"),
        (const(1.5, torch.float64), "1.5:f64"),
        (Const(True, BOOL), "true"),
        (op("where", op("lt", load(idx, i), const(3, I64)), const(1.0), const(0.0)), "where(idx[i0] < 3, 1.0, 0.0)"),
        (load(x, i, Indirect(load(idx, i), number(6)).index() + 1), "x[i0, idx[i0] + 1]"),
    ],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_text(expr: Expr, text: str) -> None:
    nest = Nest((value("y", 4, 6, dtype=expr.dtype),), (i, j), Pointwise(expr))
    assert node_text(nest).endswith(f": {text}")


# -- the op table --------------------------------------------------------------------------------------------
FLOATS = torch.tensor([-2.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, math.inf, -math.inf, math.nan])


def _arguments(row: ScalarOp) -> list[torch.Tensor]:
    if row.rule is Rule.LOGICAL:
        return [torch.tensor([True, False])] * row.arity
    if row.rule is Rule.INTEGER:
        return [torch.tensor([0, 1, 2, 5])] * row.arity
    if row.rule is Rule.SELECT:
        return [torch.tensor([True, False]), torch.zeros(2), torch.ones(2)]
    return [FLOATS] * row.arity


def test_no_two_rows_have_one_name() -> None:
    assert len(OPS) == len(ROWS)


@pytest.mark.parametrize("name", [n for n in OPS if n not in ("cast", "bitcast")])
def test_references_give_the_dtype_of_their_rule(name: str) -> None:
    row = OPS[name]
    result = row.reference(*_arguments(row))
    boolean = row.rule in (Rule.COMPARE, Rule.LOGICAL)
    assert result.dtype == (BOOL if boolean else _arguments(row)[-1].dtype)


SINGLE = [k for k, r in REDUCTIONS.items() if r.inputs == 1 and len(r.results) == 1]


@pytest.mark.parametrize("kind", SINGLE)
def test_combining_with_the_identity_changes_nothing(kind: str) -> None:
    dtype = BOOL if kind in ("any", "all") else F32
    operation = {
        "sum": torch.add, "prod": torch.mul, "max": torch.maximum, "min": torch.minimum,
        "any": torch.logical_or, "all": torch.logical_and,
        "logaddexp": torch.logaddexp,
    }[kind]  # fmt: skip
    element = torch.tensor([1, 0], dtype=dtype)
    start = torch.tensor(identity(kind, dtype), dtype=dtype)
    assert torch.equal(operation(element, start), element)

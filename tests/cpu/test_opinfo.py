"""Every op of torch's OpInfo database does what eager does, or is listed with a reason.

The usual run takes float32 with backward and one other dtype of each op; ``--opinfo-full`` takes float32,
bfloat16, int64 and bool forward and float32 backward.
"""

from __future__ import annotations

import pytest
from torch.testing._internal.common_methods_invocations import op_db

from tests.opinfo import exceptions, op_name, ops_of_shard, summary, sweep

SHARDS = 32


@pytest.mark.parametrize("shard", range(SHARDS))
@pytest.mark.filterwarnings("ignore")
def test_ops(shard: int, backend: str, request: pytest.FixtureRequest) -> None:
    full = request.config.getoption("--opinfo-full")
    report = summary(sweep(ops_of_shard(shard, SHARDS), backend, full=full), 0.0, backend)
    assert not report["unexpected"], "\n".join(f"{f['task']}: {f['reason']}" for f in report["unexpected"])


def test_a_wrong_answer_is_found() -> None:
    def off_by_a_little(graph, inputs):
        return lambda *args: tuple(out * (1 + 1e-5) if out.is_floating_point() else out for out in graph(*args))

    ops = ops_of_shard(0, 1, only=["softmax"])
    assert all(result.reason is None for result in sweep(ops, "eager", full=False))
    wrong = sweep(ops, off_by_a_little, full=False)
    assert any(result.reason is not None for result in wrong)


def test_at_most_one_op_in_a_hundred_is_excepted() -> None:
    known = {op_name(op) for op in op_db}
    listed = {key.split(":")[0] for key in exceptions()}
    assert listed <= known, f"no such op: {sorted(listed - known)}"
    assert len(listed) <= len(known) // 100

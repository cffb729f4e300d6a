"""Small products without matrix units: what is bound by memory is multiplied and summed in one kernel of its own.

bmm(a: [B, M, K], b: [B, K, N])   →   sum over k of a[:, :, k, None] * b[:, None, k, :]
"""

from torch import Tensor, fx

from gyrator.autotune.decompose_k import operands, template
from gyrator.autotune.subgraphs import SubgraphTemplate

MANY_ROWS, MANY_PRODUCTS = 4096, 256
LONGEST, MOST_MULTIPLIED = 64, 4096
"""The longest small side, and the most elements that are multiplied for a row (of mm) or a product (of bmm)."""


def products_by_elements(node: fx.Node) -> tuple[SubgraphTemplate, ...]:
    """The template for mm and addmm of many rows with a small matrix, and for bmm of many small matrices.

    Refuses (none) other dtypes than fp32, fp16 and bf16, sizes that are not static, few rows, and so the gradient of a
    linear layer's input for a small batch.
    """
    sides = operands(node)
    if sides is None:
        return ()
    left, right = sides
    *batch, m, k = left.shape
    small = (m, k, right.shape[-1]) if batch else (1, k, right.shape[-1])
    many = batch[0] >= MANY_PRODUCTS if batch else m >= MANY_ROWS
    if not many or not 0 < max(small) <= LONGEST or small[0] * small[1] * small[2] > MOST_MULTIPLIED:
        return ()
    return (template(node, "by_elements", _by_elements),)


def _by_elements(left: Tensor, right: Tensor) -> Tensor:
    """``left @ right``, multiplied and summed in float32."""
    return (left.float().unsqueeze(-1) * right.float().unsqueeze(-3)).sum(-2)

"""What a machine can do at best, and the time that a step takes by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paren.ir.types import DType
from paren.plan.cost import Cost, step_cost
from paren.plan.plan import Attention, Buffer, Loop, Product, Step


@dataclass(frozen=True)
class Limits:
    """Rates of a device. `traffic`: bytes a second, read plus written, of buffers beyond the caches. `products`:
    operations a second of large products by the name of their operands' dtype. `instructions`: scalar instructions a
    second of a kernel in the cache. `start`: seconds that a step takes beyond its work.
    """

    traffic: float
    products: Mapping[str, float]
    instructions: float
    start: float

    def product_rate(self, dtype: DType) -> float:
        """Operations a second of products of this dtype; of float32 where it is not known."""
        return self.products.get(dtype.value, self.products[DType.FLOAT32.value])


def step_seconds(step: Step, buffers: Mapping[int, Buffer], limits: Limits, cost: Cost | None = None) -> float:
    """The least time of a step: the longest of moving its bytes, its products and its instructions, and its start.
    `cost` is the step's, if it is known already."""
    known = step_cost(step, buffers) if cost is None else cost
    return cost_seconds(known, limits, _product_dtype(step, buffers)) + limits.start


def _product_dtype(step: Step, buffers: Mapping[int, Buffer]) -> DType:
    """The type that the products of a step multiply in; float32 if it has none."""
    if isinstance(step, Product):
        return DType.BFLOAT16 if step.rounded else buffers[step.a.buffer].type.dtype  # float16 is as fast
    if isinstance(step, Attention):
        return DType.BFLOAT16
    if isinstance(step, Loop):
        for piece in step.body:
            if isinstance(piece.step, Product):
                return DType.BFLOAT16 if piece.step.rounded else piece.dtypes[0]
    return DType.FLOAT32


def cost_seconds(cost: Cost, limits: Limits, dtype: DType = DType.FLOAT32) -> float:
    """The least time of work, without the starts of its steps."""
    return max(
        cost.bytes / limits.traffic,
        cost.flops / limits.product_rate(dtype),
        cost.instructions / limits.instructions,
    )

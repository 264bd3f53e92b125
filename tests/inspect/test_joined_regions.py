"""Reports of products that are one step with the kernels after them."""

from __future__ import annotations

import pytest
from activated import gelu, network, on_cards

from paren.inspect.regions import report_graph
from paren.plan.epilogue import epilogues_of
from paren.plan.limits import Limits

LIMITS = Limits(traffic=1e9, products={"float32": 1e12, "bfloat16": 1e13}, instructions=1e12, start=1e-5)


@pytest.mark.parametrize("limits", [None, LIMITS])
def test_the_work_of_a_joined_kernel_is_its_product_s(limits: Limits | None) -> None:
    """Without what is not moved, and nothing is left of the kernel: its time is none."""
    plan = on_cards(network(gelu))
    epilogues = epilogues_of(plan)
    two = report_graph("g", plan, 1, "step", limits)
    assert report_graph("g", plan, 1, "step", limits, ["another"]) == two
    one = report_graph("g", plan, 1, "step", limits, [each.form for each in epilogues.values()])
    assert len(one.regions) == len(two.regions)
    assert one.cost.bytes == two.cost.bytes - sum(each.spared_bytes for each in epilogues.values())
    assert (one.cost.flops, one.cost.operations) == (two.cost.flops, two.cost.operations)
    for number in epilogues:
        product, kernel = one.regions[number : number + 2]
        assert product.name == f"{two.regions[number].name} {two.regions[number + 1].name}"
        assert product.result == kernel.result == two.regions[number + 1].result
        assert (kernel.kind, kernel.name, kernel.cost.bytes) == ("kernel", "in its product", 0)
    if limits is None:
        assert one.seconds is None
    else:
        assert one.seconds is not None
        assert two.seconds is not None
        assert one.seconds < two.seconds

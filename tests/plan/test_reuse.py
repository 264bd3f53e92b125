"""Values kept between the stages of a kernel: the same bits, and each exponential once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from mixed_graphs import training_graph, values_for
from networks import SPAN, batch, softmax, state, total
from plan_runs import cpu, run_plan

from paren.ir.graph import Builder, Graph
from paren.plan.contractions import normalise_contractions
from paren.plan.kernel import Compute, Kernel
from paren.plan.lower import lower
from paren.plan.memory import kernels_of, launches_of, place
from paren.plan.plan import Plan
from paren.plan.reuse import keep_between_stages, reuse_values
from paren.plan.sharing import may_share
from paren.plan.verify_kernel import verify_kernel


def unplaced(graph: Graph) -> Plan:
    return lower(normalise_contractions(graph))


def exponentials(kernel: Kernel) -> int:
    return sum(isinstance(s, Compute) and s.op == "exp" for stage in kernel.stages for s in stage.body)


def softmax_kernel() -> Kernel:
    builder = Builder("test")
    graph = builder.graph({"y": softmax(builder, batch(builder, "x", 6, 40))})
    (launch,) = launches_of(unplaced(graph).steps)
    return launch.kernel


def test_a_softmax_computes_its_exponentials_once() -> None:
    kernel = softmax_kernel()
    kept = keep_between_stages(kernel)
    verify_kernel(kept)
    assert (exponentials(kernel), exponentials(kept)) == (2, 1)
    assert may_share(kept, 0, 1) is may_share(kernel, 0, 1) is True
    assert keep_between_stages(kept) is kept


def test_a_stage_that_reads_the_elements_again_stays_as_it_is() -> None:
    """Keeping the exponentials would forbid to write the result over the input."""
    builder = Builder("test")
    x = batch(builder, "x", 6, 40)
    y = builder.apply("mul", softmax(builder, x), x)
    (launch,) = launches_of(unplaced(builder.graph({"y": y})).steps)
    assert keep_between_stages(launch.kernel) is launch.kernel


def test_nothing_to_keep() -> None:
    builder = Builder("test")
    y = builder.apply("add", total(builder, batch(builder, "x", 3, 4)), state(builder, "s"), span=SPAN)
    for launch in launches_of(unplaced(builder.graph({"s": y})).steps):
        assert keep_between_stages(launch.kernel) is launch.kernel


@settings(max_examples=25, derandomize=True)
@given(st.integers(0, 10**6))
def test_random_training_graphs(seed: int) -> None:
    graph = training_graph(seed)
    values = values_for(graph, seed)
    plain = unplaced(graph)
    kept = reuse_values(plain)
    for kernel in kernels_of(kept).values():
        verify_kernel(kernel)
    wanted = run_plan(cpu(), place(plain), values)
    found = run_plan(cpu(), place(kept), values)
    for name, array in wanted.items():
        assert found[name].tobytes() == array.tobytes(), name

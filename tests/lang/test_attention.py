"""`attention` offers its operation beside its formula: the same values, wherever the operation computes what is asked
for, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest
from small_programs import program

from paren.ir.evaluate import evaluate
from paren.ir.graph import Builder, Graph
from paren.ir.rebuild import rebuild
from paren.passes.alternatives import choose
from paren.passes.simplify import simplify

Q, K, V = "(q float32 [6 5 4])", "(k float32 [{} {} 4])", "(v float32 [{} {} {}])"


def offered(model: str, groups: int = 3, keys: int = 5, width: int = 4, training: bool = True) -> Graph:
    """The loss graph of a model of q, k and v."""
    fields = f"{Q} {K.format(groups, keys)} {V.format(groups, keys, width)}"
    made = program(fields, f"(+ {model} (param zero [] :init 0))", loss="(mean (reshape (m q k v) [-1]))")
    return made.loss if training else made.evaluate


def operations(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        ("(attention q k v)", (3, 5, 4)),
        ("(attention q k v :causal true)", (6, 5, 4)),
        ("(attention q k v :causal true)", (1, 9, 2)),
        ("(attention q k v :scale 0.3)", (2, 1, 4)),
    ],
)
def test_the_operation_gives_what_is_written(model: str, shapes: tuple[int, int, int]) -> None:
    graph = offered(model, *shapes)
    (either,) = (node for node in graph.nodes if node.op.name == "either")
    builder = Builder("both")
    made = rebuild(graph, builder)
    both = builder.graph({name: made[arg] for name, arg in zip(("one", "other"), either.args, strict=True)})
    generator = np.random.default_rng(1)
    values = {str(node.attrs["name"]): generator.normal(size=node.shape).astype(np.float32) for node in both.inputs}
    found = evaluate(both, values)
    np.testing.assert_allclose(found["one"], found["other"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("model", "shapes"),
    [
        ("(attention q k v :mask (causal-mask 5 5))", (3, 5, 4)),
        ("(attention q k v :dropout-rate 0.1)", (3, 5, 4)),
        ("(attention q k v :scale (param s [] :init 1))", (3, 5, 4)),
        ("(attention q k v :causal true)", (3, 4, 4)),
        ("(attention (param p [6 5 4] :init 1) k v)", (3, 5, 4)),
    ],
)
def test_what_the_operation_does_not_compute_is_only_written(model: str, shapes: tuple[int, int, int]) -> None:
    assert {"attention", "either"}.isdisjoint(operations(offered(model, *shapes)))


def test_outside_training_dropout_is_none() -> None:
    assert "attention" in operations(offered("(attention q k v :dropout-rate 0.1)", training=False))


def test_nothing_is_left_of_what_was_not_chosen() -> None:
    """Neither where a graph is chosen from, nor where it is only simplified; what is left is the same."""
    graph = offered("(attention q k v :causal true)", 6)
    assert {"attention", "either"} <= set(operations(graph))
    chosen = choose(graph)
    assert {"attention", "either"}.isdisjoint(operations(chosen))
    assert operations(simplify(graph)) == operations(simplify(chosen))


def test_attention_of_something_else_is_only_written() -> None:
    """`attend` itself, with operands that do not belong together."""
    made = program("(x float32 [2 1 3 4]) (k float32 [2 3 4])", "(* (attend x k k x) (param one [] :init 1))")
    assert "either" in operations(made.loss)
    made = program("(x float32 [2 1 3 4]) (k float32 [2 3 4])", "(* (attend x x k x) (param one [] :init 1))")
    assert "either" not in operations(made.loss)

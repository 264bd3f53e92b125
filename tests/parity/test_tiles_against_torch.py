"""Attention in tiles and the head in chunks, at the sizes that they are for, against torch: losses and gradients."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from plan_runs import cpu, run_plan
from torch.nn import functional

from paren.ir.op import Array
from paren.lang.elaborate import elaborate
from paren.passes.assemble import accumulation
from paren.pipeline import plan_graph
from paren.plan.plan import Loop

ATTENTION = """
(defdata pairs (python "p.py" pairs :fields ((x float32 [{seq} 24]) (y float32 [{seq} 24])) :split ((train 1.0))))
(defmodel net ((x float32 [{seq} 24])) (causal-attention x :heads 3))
(defrun :data pairs :loss (mean-squared-error (net x) y) :optimizer (sgd :rate 0.1) :batch {rows} :steps 1)
"""
HEAD = """
(defdata pairs (python "p.py" pairs :fields ((x float32 [{seq} 8]) (y int32 [{seq}])) :split ((train 1.0))))
(defmodel net ((x float32 [{seq} 8])) (matmul x (transpose (param table [{vocab} 8] :init (normal 0.5)))))
(defrun :data pairs :loss (cross-entropy (net x) y) :optimizer (sgd :rate 0.1) :batch {rows} :steps 1)
"""


def gradients(tmp_path: Path, text: str, values: dict[str, Array]) -> tuple[dict[str, Array], list[Loop]]:
    """The outputs of the training graph, and the loops of its plan."""
    (tmp_path / "net.paren").write_text(text)
    graph = accumulation(elaborate(tmp_path / "net.paren"), adding=False)
    plan = plan_graph(graph)
    rows = next(node for node in graph.inputs if node.attrs["name"] == "$valid").shape[0]
    extra: dict[str, Array] = {"$valid": np.ones(rows, np.float32), "$rows": np.arange(rows, dtype=np.uint32)}
    scalars: dict[str, Array] = {"$seed": np.zeros((), np.uint32), "$step": np.zeros((), np.uint32)}
    return run_plan(cpu(), plan, {**values, **extra, **scalars}), [s for s in plan.steps if isinstance(s, Loop)]


def assert_close(found: Array, wanted: torch.Tensor, tolerance: float = 2e-5) -> None:
    array = wanted.detach().numpy()
    np.testing.assert_allclose(found, array, rtol=0, atol=tolerance * float(np.abs(array).max()))


@pytest.mark.parametrize(("seq", "rows", "loops"), [(1, 1, 0), (7, 1, 0), (1000, 1, 2), (1024, 2, 2)])
def test_causal_attention(tmp_path: Path, seq: int, rows: int, loops: int) -> None:
    generator = np.random.default_rng(seq)

    def normal(*shape: int) -> Array:
        return generator.standard_normal(shape).astype(np.float32)

    values = {
        "x": normal(rows, seq, 24),
        "y": normal(rows, seq, 24),
        "qkv.weight": normal(24, 72) / 4,
        "qkv.bias": normal(72),
        "projection.weight": normal(24, 24) / 4,
        "projection.bias": normal(24),
    }
    found, made = gradients(tmp_path, ATTENTION.format(seq=seq, rows=rows), values)
    assert [loop.name for loop in made] == ["causal tiles"] * loops
    tensors = {name: torch.from_numpy(array.astype(np.float64)).requires_grad_() for name, array in values.items()}
    projected = tensors["x"] @ tensors["qkv.weight"] + tensors["qkv.bias"]
    q, k, v = (part.reshape(rows, seq, 3, 8).transpose(1, 2) for part in projected.split(24, dim=2))
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, seq, 24)
    result = mixed @ tensors["projection.weight"] + tensors["projection.bias"]
    loss = ((result - tensors["y"]) ** 2).mean(dim=(1, 2)).sum()
    loss.backward()
    assert float(found["$loss"]) == pytest.approx(loss.item(), rel=1e-6)
    for name in ("qkv.weight", "qkv.bias", "projection.weight", "projection.bias"):
        gradient = tensors[name].grad
        assert gradient is not None
        assert_close(found[f"gradient:{name}"], gradient)


@pytest.mark.parametrize(("seq", "rows", "chunked"), [(1, 1, False), (7, 3, False), (1000, 1, True)])
@pytest.mark.parametrize("scale", [1.0, 1e4])
def test_the_head_of_a_large_vocabulary(tmp_path: Path, seq: int, rows: int, chunked: bool, scale: float) -> None:
    """50,257 classes; with extreme logits too, of which a few decide."""
    vocab = 50257
    generator = np.random.default_rng(seq)
    x = (scale * generator.standard_normal((rows, seq, 8))).astype(np.float32)
    table = (0.5 * generator.standard_normal((vocab, 8))).astype(np.float32)
    y = generator.integers(0, vocab, (rows, seq)).astype(np.int32)
    text = HEAD.format(seq=seq, rows=rows, vocab=vocab)
    found, made = gradients(tmp_path, text, {"x": x, "y": y, "table": table})
    assert [loop.sizes for loop in made] == ([()] if chunked else [])
    weights = torch.from_numpy(table).requires_grad_()
    logits = torch.from_numpy(x).reshape(-1, 8) @ weights.T
    loss = functional.cross_entropy(logits, torch.from_numpy(y).reshape(-1).long(), reduction="sum") / (rows * seq)
    loss.backward()
    wanted = weights.grad
    assert wanted is not None
    weight = float(found["$weight"])
    assert float(found["$loss"]) / weight == pytest.approx(loss.item(), rel=1e-5)
    assert_close(found["gradient:table"] / weight, wanted, 2e-4 if scale > 1 else 2e-5)

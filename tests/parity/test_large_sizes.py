"""Sizes around 2^31 elements: planned with 64-bit arithmetic or refused, never a wrong address."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from compiled_training import program

from paren import api
from paren.codegen.llvm import emit_kernel
from paren.forecast.plans import make_plans
from paren.ir.graph import Builder
from paren.ir.types import DType, TensorType
from paren.pipeline import plan_graph
from paren.plan.memory import kernels_of
from paren.runtime.cache import KernelCache
from paren.runtime.device import open_device
from paren.runtime.executor import Executable
from paren.runtime.native import Compiler
from paren.text.errors import ParenError
from paren.text.source import Source, Span

SPAN = Span(Source("test.paren", "x"), 0, 1)
LIMIT = 2**31
MODEL = """
(defdata d (python "f.py" g :fields ((tokens int32 [{length}]) (targets int32 [{length}]))))
(defmodel m ((tokens int32 [{length}]))
  (linear (take (param table [{vocab} 2] :init (normal 1)) tokens) {vocab}))
(defrun :data d :loss (cross-entropy (m tokens) targets) :metrics ((right (= (argmax (m tokens)) targets)))
  :optimizer (sgd :rate 0.1) :batch {rows} :steps 1)
"""


@pytest.mark.parametrize(
    ("rows", "length", "vocab"),
    [
        (1, 2**15, 2**16 - 1),  # logits of 2^31 - 2^15 elements
        (1, 2**15, 2**16),  # 2^31
        (1, 2**15, 2**16 + 1),
        (4, 2**13 + 1, 2**16),
        (3, 40_000, 50_257),  # three times 2^31
        (1, 2, 2**30 + 5),
    ],
)
def test_cross_entropy_is_planned(rows: int, length: int, vocab: int) -> None:
    """Every kernel can be emitted and compiled, no offset is negative
    or beyond its buffer (which the plan's checkers prove)."""
    plans = make_plans(program(MODEL.format(rows=rows, length=length, vocab=vocab)))
    largest = max(buffer.type.size for buffer in plans.accumulate.buffers)
    assert largest >= rows * length * vocab
    assert plans.accumulate.arena_bytes >= 4 * rows * length * vocab
    texts = {}
    for plan in (plans.accumulate, plans.evaluate):
        texts |= {digest: emit_kernel(kernel, "kernel") for digest, kernel in kernels_of(plan).items()}
    assert len(Compiler(KernelCache(None)).load(texts, "kernel")) == len(texts)


def test_a_run_of_such_a_size_is_refused_before_anything_is_allocated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAREN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PAREN_MEMORY", "1GiB")
    length, vocab = 2**15, 2**16 + 1
    (tmp_path / "f.py").write_text(
        "import numpy as np\n\n\ndef g():\n"
        f"    return {{name: np.zeros((2, {length}), np.int32) for name in ('tokens', 'targets')}}\n"
    )
    text = MODEL.format(rows=1, length=length, vocab=vocab)
    (tmp_path / "large.paren").write_text(text.replace(" g :fields", " g :split ((train 1.0)) :fields"))
    with pytest.raises(ParenError) as caught:
        api.load(tmp_path / "large.paren").run(tmp_path / "out")
    assert caught.value.code == "E-MEM-001"
    # About 8 GiB of logits: the workspaces of the products, beside them, depend on the processor.
    assert re.fullmatch(r"the run needs 8(\.01)? GiB, and 1 GiB are free", caught.value.message)


@pytest.mark.parametrize("extra", [0, 1, 64])
def test_sums_over_more_than_31_bits(extra: int) -> None:
    """Zero pages cost no memory, so the addresses are really computed and read: the last elements are counted."""
    size = LIMIT + extra
    builder = Builder("test")
    x = builder.input("x", TensorType(DType.BOOL, (size,)), "batch", SPAN)
    ones = builder.emit("cast", (x,), {"dtype": DType.FLOAT32}, SPAN)
    outputs = {"sum": builder.emit("sum", (ones,), {"axes": (0,)}, SPAN)}
    device = open_device("cpu", 1)
    values = device.allocate(size).view(bool)
    values[[0, LIMIT // 2, size - 2, size - 1]] = True
    plan = plan_graph(builder.graph(outputs))
    found = Executable(device, plan).run({}, {"x": values}, device.allocate(max(64, plan.arena_bytes)))
    assert found["sum"] == 4


def test_rows_beyond_31_bits_are_taken() -> None:
    """A gather at an element offset of 2^31 and more."""
    rows, width = 2**26 + 2, 32
    builder = Builder("test")
    table = builder.input("table", TensorType(DType.BOOL, (rows, width)), "batch", SPAN)
    ids = builder.input("ids", TensorType(DType.INT32, (4,)), "batch", SPAN)
    graph = builder.graph({"taken": builder.emit("take", (table, ids), {}, SPAN)})
    device = open_device("cpu", 1)
    values = device.allocate(rows * width).view(bool).reshape(rows, width)
    values[0, 1] = values[rows - 1, 3] = values[rows - 2, 2] = True
    plan = plan_graph(graph)
    wanted = np.array([rows - 1, 0, rows - 2, 2**25], np.int32)
    arena = device.allocate(max(64, plan.arena_bytes))
    found = Executable(device, plan).run({}, {"table": values, "ids": wanted}, arena)["taken"]
    np.testing.assert_array_equal(found, values[wanted])

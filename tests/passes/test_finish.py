"""What a step's sums say about its update: the graph `finish` against its formulas."""

from __future__ import annotations

import math

import numpy as np
import pytest

from paren.ir.types import DType
from paren.passes.assemble import LOSS, ROW, SCALE, SQUARES, STOP, UPDATE, UPDATES, WEIGHT, finish_graph
from paren.pipeline import plan_graph
from paren.runtime.device import open_device
from paren.runtime.executor import Executable
from paren.runtime.memory import allocate
from paren.text.source import Source, Span

SPAN = Span(Source("test.paren", "x"), 0, 1)
RESULTS = {SQUARES: DType.FLOAT64, SCALE: DType.FLOAT32, STOP: DType.INT32, UPDATE: DType.FLOAT32}


def aligned(value: np.ndarray) -> np.ndarray:
    array = allocate(max(64, value.nbytes))[: value.nbytes].view(value.dtype).reshape(value.shape)
    array[...] = value
    return array


def finish(
    gradients: np.ndarray, loss: float, weight: float, clip: float | None, device: str = "cpu", updates: int = 6
) -> dict[str, float]:
    graph = finish_graph(len(gradients), clip, SPAN)
    plan = plan_graph(graph, graph.outputs.keys())
    given = {LOSS: np.float64(loss), WEIGHT: np.float64(weight), UPDATES: np.int32(updates), "gradients": gradients}
    state = {name: aligned(np.asarray(value)) for name, value in given.items()}
    state |= {name: aligned(np.zeros((), dtype.numpy)) for name, dtype in RESULTS.items()}
    Executable(open_device(device, 2), plan).run(state, {}, allocate(max(64, plan.arena_bytes)))
    return {name: float(state[name]) for name in (*RESULTS, UPDATES)}


def random(size: int, scale: float = 1.0) -> np.ndarray:
    return (scale * np.random.default_rng(size).normal(size=size)).astype(np.float32)


@pytest.mark.parametrize("device", ["cpu", "reference"])
@pytest.mark.parametrize("clip", [None, 0.5, 1e9])
def test_the_scale_divides_by_the_weight_and_clips_the_norm(clip: float | None, device: str) -> None:
    gradients = random(1000, 10)
    found = finish(gradients, 3.0, 7.0, clip, device)
    squares = float(np.sum(np.square(gradients, dtype=np.float64)))
    norm = math.sqrt(squares) / 7.0
    assert found[SQUARES] == pytest.approx(squares, rel=1e-12)
    assert found[SCALE] == pytest.approx(min(1.0, (clip or math.inf) / norm) / 7.0, rel=1e-6)
    assert (found[STOP], found[UPDATES], found[UPDATE]) == (0, 7, 7)


@pytest.mark.parametrize("size", [1, 15, ROW, 2 * ROW, 2 * ROW + 16, 37 * ROW])
@pytest.mark.parametrize("scale", [1e30, 1e-30])
def test_the_sum_of_squares_of_any_size(size: int, scale: float) -> None:
    """Squares that float32 could not hold, in one row and in many."""
    gradients = random(size, scale)
    squares = float(np.sum(np.square(gradients, dtype=np.float64)))
    assert finish(gradients, 0.0, 1.0, None)[SQUARES] == pytest.approx(squares, rel=1e-12)


def test_without_gradients_the_norm_is_0() -> None:
    found = finish(np.zeros(0, np.float32), 1.0, 2.0, 1.0)
    assert (found[SQUARES], found[SCALE], found[STOP], found[UPDATES]) == (0.0, 0.5, 0, 7)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", ["loss", "weight", "gradient", "last gradient"])
def test_there_is_no_update_for_sums_that_are_not_finite(place: str, wrong: float) -> None:
    gradients = random(3000)
    if "gradient" in place:
        gradients[-1 if place.startswith("last") else 5] = wrong
    loss, weight = (wrong if place == name else 1.0 for name in ("loss", "weight"))
    found = finish(gradients, loss, weight, 1.0)
    assert (found[STOP], found[UPDATES], found[UPDATE]) == (1, 6, 6)


@pytest.mark.parametrize("weight", [0.0, -0.0, -2.0])
def test_there_is_no_update_without_weight(weight: float) -> None:
    found = finish(random(100), 1.0, weight, None)
    assert (found[STOP], found[UPDATES]) == (1, 6)


def test_numbers_of_updates_are_counted_as_integers() -> None:
    """Beyond what float32 counts one by one."""
    found = finish(random(10), 1.0, 1.0, None, updates=2**24 + 4)
    assert found[UPDATES] == 2**24 + 5
    assert found[UPDATE] == float(np.float32(2**24 + 5))

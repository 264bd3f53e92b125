"""The functions on tensors, on each example of a batch, against numpy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from small_programs import Values, expression

generator = np.random.default_rng(5)
X = generator.normal(size=(3, 4, 6)).astype(np.float32)
Y = generator.normal(size=(3, 4, 6)).astype(np.float32)
POSITIVE = np.abs(X) + np.float32(0.1)
IDS = generator.integers(0, 4, (3, 2, 5)).astype(np.int32)
SMALL = generator.integers(-9, 9, (3, 7)).astype(np.int32)
LINE = generator.integers(0, 4, (3, 5)).astype(np.int32)
UPDATES = generator.normal(size=(3, 5, 6)).astype(np.float32)
SQUARE = generator.normal(size=(3, 2, 5, 5)).astype(np.float32)


def scattered(base: np.ndarray, ids: np.ndarray, updates: np.ndarray) -> np.ndarray:
    result = base.astype(np.float64).copy()
    np.add.at(result, ids, updates)
    return result.astype(np.float32)


def windows(image: np.ndarray) -> np.ndarray:
    """Windows of 3 x 2 with stride 2 and one zero around."""
    padded = np.pad(image, ((0, 0), (1, 1), (1, 1)))
    rows, columns = (padded.shape[1] - 3) // 2 + 1, (padded.shape[2] - 2) // 2 + 1
    result = np.zeros((image.shape[0], 3, 2, rows, columns), np.float32)
    for y in range(rows):
        for x in range(columns):
            result[..., y, x] = padded[:, 2 * y : 2 * y + 3, 2 * x : 2 * x + 2]
    return result


CASES: dict[str, tuple[str, Values, Callable[..., np.ndarray]]] = {
    "arithmetic": ("(/ (* (+ x 2) (- y)) 3)", {"x": X, "y": Y}, lambda x, y: (x + 2) * -y / np.float32(3)),
    "number first": ("(- 1 x)", {"x": X}, lambda x: 1 - x),
    "powers": ("(pow p 1.5)", {"p": POSITIVE}, lambda p: p ** np.float32(1.5)),
    "unary": (
        "(exp (log (sqrt (* (rsqrt p) (abs (sin (cos (tanh p))))))))",
        {"p": POSITIVE},
        lambda p: np.sqrt(1 / np.sqrt(p) * np.abs(np.sin(np.cos(np.tanh(p))))),
    ),
    "log1p and expm1": ("(log1p (expm1 p))", {"p": POSITIVE}, lambda p: p),
    "rounding": ("(+ (floor x) (* 10 (ceil y)))", {"x": X, "y": Y}, lambda x, y: np.floor(x) + 10 * np.ceil(y)),
    "integers": ("(+ (// i 4) (* 100 (% i 4)))", {"i": SMALL}, lambda i: i // 4 + 100 * (i % 4)),
    "extremes": ("(max (min x y) 0.1)", {"x": X, "y": Y}, lambda x, y: np.maximum(np.minimum(x, y), np.float32(0.1))),
    "comparison": (
        "(and (> x 0) (or (<= y 0) (/= x y)))",
        {"x": X, "y": Y},
        lambda x, y: (x > 0) & ((y <= 0) | (x != y)),
    ),
    "not": ("(not (>= x 0))", {"x": X}, lambda x: x < 0),
    "where": ("(where (> x 0) y -1)", {"x": X, "y": Y}, lambda x, y: np.where(x > 0, y, np.float32(-1))),
    "where of numbers": ("(where (> x 0) 1 0.5)", {"x": X}, lambda x: np.where(x > 0, 1, 0.5).astype(np.float32)),
    "cast": ("(cast (* 3 x) int32)", {"x": X}, lambda x: (3 * x).astype(np.int32)),
    "is-finite": ("(is-finite (log x))", {"x": X}, lambda x: x > 0),
    "stop-gradient": ("(stop-gradient x)", {"x": X}, lambda x: x),
    "counting": ("(sum (> x 0))", {"x": X}, lambda x: (x > 0).sum(-1).astype(np.int32)),
    "any and every": (
        "(and (any (> x 0) :axis 0) (not (every (> y 0) :axis 0)))",
        {"x": X, "y": Y},
        lambda x, y: (x > 0).any(0) & ~(y > 0).all(0),
    ),
    "argmax": ("(argmax x :axis 0)", {"x": X}, lambda x: x.argmax(0).astype(np.int32)),
    "argmin": ("(argmin x :keep true)", {"x": X}, lambda x: x.argmin(-1, keepdims=True).astype(np.int32)),
    "reshape": ("(reshape x [2 -1 3])", {"x": X}, lambda x: x.reshape(2, -1, 3)),
    "transpose": ("(transpose s)", {"s": SQUARE}, lambda s: s.swapaxes(-1, -2)),
    "transpose of axes": ("(transpose s :axes [2 0 -2])", {"s": SQUARE}, lambda s: s.transpose(2, 0, 1)),
    "broadcast": (
        "(broadcast (reshape i [7 1]) [2 7 3])",
        {"i": SMALL},
        lambda i: np.broadcast_to(i[:, None], (2, 7, 3)),
    ),
    "slice": ("(slice x 1 none)", {"x": X}, lambda x: x[:, 1:]),
    "slice by step": ("(slice x 0 -1 :axis 0 :step 2)", {"x": X}, lambda x: x[0:-1:2]),
    "select": ("(select x -2)", {"x": X}, lambda x: x[:, -2]),
    "pad": ("(pad x [[1 0] [2 3]] :value 0.5)", {"x": X}, lambda x: np.pad(x, ((1, 0), (2, 3)), constant_values=0.5)),
    "pad of integers": ("(pad i [[1 2]] :value -1)", {"i": SMALL}, lambda i: np.pad(i, (1, 2), constant_values=-1)),
    "concat": ("(concat x y x :axis 0)", {"x": X, "y": Y}, lambda x, y: np.concatenate([x, y, x], 0)),
    "concat with a constant": (
        "(concat x (full [4 2] 0.5))",
        {"x": X},
        lambda x: np.concatenate([x, np.full((4, 2), 0.5, np.float32)], -1),
    ),
    "stack": ("(stack [x y] :axis -1)", {"x": X, "y": Y}, lambda x, y: np.stack([x, y], -1)),
    "split": (
        "(let (([a b c] (split x [1 2 3]))) (concat c a b))",
        {"x": X},
        lambda x: np.concatenate([x[:, 3:], x[:, :1], x[:, 1:3]], -1),
    ),
    "split in equal parts": ("(last (split x 2 :axis 0))", {"x": X}, lambda x: x[2:]),
    "iota": (
        "(+ i (iota [2 7] :axis 1))",
        {"i": SMALL},
        lambda i: i + np.arange(7, dtype=np.int32) + np.zeros((2, 1), np.int32),
    ),
    "one-hot": ("(one-hot ids 4)", {"ids": IDS}, lambda ids: np.eye(4, dtype=np.float32)[ids]),
    "take from a constant": (
        "(take (* 10 (iota [4 3] :axis 0)) ids)",
        {"ids": IDS},
        lambda ids: np.broadcast_to(10 * ids[..., None], (*ids.shape, 3)),
    ),
    "take from each example": ("(take x ids)", {"x": X, "ids": IDS}, lambda x, ids: x[ids]),
    "take along an axis": ("(take x ids :axis 1)", {"x": X, "ids": IDS}, lambda x, ids: np.take(x, ids, 1)),
    "take with fixed ids": ("(take x (reverse-ids 4))", {"x": X}, lambda x: x[::-1]),
    "scatter-add": ("(scatter-add x ids u)", {"x": X, "ids": LINE, "u": UPDATES}, scattered),
    "scatter-add on a constant": (
        "(scatter-add (zeros [4 6]) ids u)",
        {"ids": LINE, "u": UPDATES},
        lambda ids, u: scattered(np.zeros((4, 6), np.float32), ids, u),
    ),
    "dot": ("(dot x y)", {"x": X, "y": Y}, lambda x, y: (x * y).sum(-1)),
    "patches": ("(patches s :kernel [3 2] :stride 2 :padding 1)", {"s": SQUARE}, windows),
    "questions": (
        "(+ (* 0 (sum x :axis all)) (full [3] (+ (rank x) (size x) (size x :axis 0) (length (shape x)))))",
        {"x": X},
        lambda x: np.full(3, 2 + 24 + 4 + 2, np.float32),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_primitive(name: str) -> None:
    text, inputs, reference = CASES[name]
    found = expression(text, inputs, before="(def (reverse-ids n) (- (- n 1) (iota n)))")
    wanted = np.stack([reference(*parts) for parts in zip(*inputs.values(), strict=True)])
    if found.shape == wanted.shape[1:]:
        found = np.broadcast_to(found, wanted.shape)
    assert found.dtype == wanted.dtype
    np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=1e-6)

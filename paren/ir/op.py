"""The record that describes one operation, and the table of all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paren.ir.types import TensorType

if TYPE_CHECKING:
    from paren.ir.graph import Builder, Node

Attrs = Mapping[str, Hashable]
Array = npt.NDArray[np.generic]
Infer = Callable[[Sequence[TensorType], Attrs], TensorType]
Evaluate = Callable[[Sequence[Array], Attrs], Array]
Vjp = Callable[["Builder", "Node", "Node"], Sequence["Node | None"]]
KINDS = ("leaf", "elementwise", "shape", "reduce", "index", "contract")


@dataclass(frozen=True)
class Sample:
    """Operands on which tests try an operation: arrays (float64 for floats) and attributes."""

    args: tuple[Array, ...]
    attrs: Attrs


@dataclass(frozen=True)
class Op:
    """One operation, whole: its types, its meaning, its gradient, and what tests try it on.

    - `infer(types, attrs)` gives the result's type or raises `TypeMismatch` with what does not fit.
    - `evaluate(arrays, attrs)` is the definition, in numpy.
    - `vjp(builder, node, gradient)` gives, for each argument of `node`, the gradient that flows to it, or None where
      none does (integers). None instead of a function says that the result carries no gradient at all.
    - `torch(tensors, attrs)` in the tests' table compares with torch; it is kept there so that paren runs without it.
    - `samples(generator)` draws operands inside the operation's domain and away from its kinks.
    """

    name: str
    kind: str
    infer: Infer
    evaluate: Evaluate
    vjp: Vjp | None
    samples: Callable[[np.random.Generator], list[Sample]]


OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Adds an operation to the table; modules of `paren.ir.ops` do so when they are imported.

    In the table `evaluate` always gives an array (never a numpy scalar) and does not warn about overflow, division by
    zero or NaN: these are values like others.
    """
    if op.name in OPS:
        raise ValueError(f"operation {op.name} is registered twice")
    if op.kind not in KINDS:
        raise ValueError(f"operation {op.name} has the unknown kind {op.kind}")
    OPS[op.name] = replace(op, evaluate=_quiet(op.evaluate))
    return OPS[op.name]


def _quiet(evaluate: Evaluate) -> Evaluate:
    def quiet(arrays: Sequence[Array], attrs: Attrs) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(evaluate(arrays, attrs))

    return quiet

"""Operations that choose rows of a table by integer ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import TensorType, TypeMismatch


def _table(type_: TensorType) -> None:
    if type_.rank < 1:
        raise TypeMismatch(f"the table is {type_}, at least one dimension is needed")


def _infer_take(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 2)
    table, ids = types
    _table(table)
    need.member(ids, need.INTEGERS)
    return TensorType(table.dtype, ids.shape + table.shape[1:])


def _clamped(ids: Array, size: int) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    return np.clip(ids.astype(np.int64), 0, size - 1).astype(np.intp)


def _evaluate_take(arrays: Sequence[Array], attrs: Attrs) -> Array:
    table, ids = arrays
    return np.take(table, _clamped(ids, table.shape[0]), axis=0)


def _take_vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    table, ids = node.args
    zero = builder.constant(0.0, g.dtype, node.span)
    base = builder.broadcast(zero, table.shape, span=node.span)
    return [builder.emit("scatter_add", (base, ids, g), {}, node.span), None]


def _infer_scatter_add(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 3)
    base, ids, updates = types
    _table(base)
    need.member(base, need.NUMBERS)
    need.member(ids, need.INTEGERS)
    need.same_dtype(base, updates)
    wanted = TensorType(base.dtype, ids.shape + base.shape[1:])
    if updates.shape != wanted.shape:
        raise TypeMismatch(f"the updates are {updates}, {wanted} are needed for ids {ids} into {base}")
    return base


def _evaluate_scatter_add(arrays: Sequence[Array], attrs: Attrs) -> Array:
    """Additions happen in the order of the ids."""
    base, ids, updates = arrays
    result = base.copy()
    np.add.at(result, _clamped(ids, base.shape[0]), updates)
    return result


def _scatter_add_vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    return [g, None, builder.emit("take", (g, node.args[1]), {}, node.span)]


def _take_samples(generator: np.random.Generator) -> list[Sample]:
    return [
        Sample((generator.normal(size=(5, 3)), generator.integers(0, 5, (2, 4)).astype(np.int32)), {}),
        Sample((generator.normal(size=(4,)), np.array([3, 0, 0, 1, 3])), {}),
        Sample((generator.normal(size=(6, 2, 2)), np.array(2, np.uint32)), {}),
    ]


def _scatter_add_samples(generator: np.random.Generator) -> list[Sample]:
    def normal(*shape: int) -> Array:
        return generator.normal(size=shape)

    return [
        Sample((normal(5, 3), generator.integers(0, 5, (2, 4)).astype(np.int32), normal(2, 4, 3)), {}),
        Sample((normal(4), np.array([3, 0, 0, 1, 3]), normal(5)), {}),
        Sample((normal(6, 2, 2), np.array(2, np.int32), normal(2, 2)), {}),
    ]


TAKE = register(Op("take", "index", _infer_take, _evaluate_take, _take_vjp, _take_samples))
SCATTER_ADD = register(
    Op("scatter_add", "index", _infer_scatter_add, _evaluate_scatter_add, _scatter_add_vjp, _scatter_add_samples)
)

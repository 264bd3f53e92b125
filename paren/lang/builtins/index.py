"""Integers that choose: take, scatter-add, one-hot. Fields of the data that are used so get a bound, checked before
step 1."""

from __future__ import annotations

from paren.ir.graph import Node
from paren.ir.program import Bound
from paren.ir.types import DType
from paren.lang.builtins.registry import builtin
from paren.lang.builtins.shape import moved, reshaped
from paren.lang.elementwise import cast, elementwise
from paren.lang.operand import (
    argument,
    batch_rows,
    expand,
    forbid_weight,
    mismatch_notes,
    need_axis,
    need_dtype,
    need_integer,
    need_tensor,
    wrong_kind,
)
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value

_MOVING = frozenset(("reshape", "transpose", "broadcast", "slice"))


def _need_ids(session: Session, site: Site, value: Value, key: int) -> Tensor:
    ids = need_tensor(session, site, value, key)
    if not ids.dtype.is_integer:
        raise wrong_kind(session, site, ids, key, "a tensor of integers")
    return ids


def record_bound(session: Session, site: Site, ids: Tensor, size: int, ignore: int | None = None) -> None:
    """Notes that ids from the data must be in 0 <= id < size. Follows moves and widening casts back to the field; ids
    that are computed from a field get a warning, since only the kernel's clamp guards them."""
    node = ids.node
    while node.op.name in _MOVING or (node.op.name == "cast" and node.args[0].dtype.is_integer):
        node = node.args[0]
    if node.op.name == "input" and node.attrs["role"] == "batch":
        bound = Bound(str(node.attrs["name"]), 0, size, ignore, session.span(site))
        session.declarations.bound(bound)
    elif node.op.name not in ("argmax", "argmin") and (name := _field_below(node)):
        session.declarations.note(
            f"{session.span(site)}: indices computed from the field {name} are not checked before step 1; "
            f"those outside 0 to {size - 1} count as the nearest"
        )


def _field_below(node: Node) -> str | None:
    """A field of the data that the node depends on, not through argmax or argmin."""
    pending, seen = [node], set()
    while pending:
        current = pending.pop()
        if current.number in seen or current.op.name in ("argmax", "argmin"):
            continue
        seen.add(current.number)
        if current.op.name == "input" and current.attrs["role"] == "batch":
            return str(current.attrs["name"])
        pending.extend(current.args)
    return None


def _rows_in_one_table(session: Session, site: Site, ids: Tensor, size: int) -> Node:
    """Ids into the tables of all examples laid end to end: id + example x size, int32 [rows ...]."""
    rows = batch_rows(session, site)
    spread = expand(session, site, cast(session, site, ids, DType.INT32), ids.shape, True)
    attrs = {"shape": spread.shape, "axis": 0, "dtype": DType.INT32}
    example = session.emit("iota", (), attrs, site)
    factor = session.need_trace(site).builder.broadcast(session.constant(size, DType.INT32, site), spread.shape)
    offset = session.emit("mul", (example, factor), {}, site)
    if rows * size >= 2**31:
        raise session.error(
            "E-TYPE-006", f"{rows} tables of {size} rows are more than an int32 can number", site, at=argument(site, 0)
        )
    return session.emit("add", (spread, offset), {}, site)


@builtin("take", "table ids :axis", axis=0)
def take(session: Session, site: Site, table: Value, ids: Value, axis: Value) -> Value:
    """The entries of an axis of the table that the ids name; the axes of the ids stand in its place."""
    source, chosen = need_tensor(session, site, table, 0), _need_ids(session, site, ids, 1)
    forbid_weight(session, site, source)
    along = need_axis(session, site, source, need_integer(session, site, axis, "axis", "an axis (an integer)"), "axis")
    front = moved(session, site, source, along, 0)
    size = front.shape[0]
    record_bound(session, site, chosen, size)
    if not source.batched:
        node = session.emit("take", (front.node, chosen.node), {}, site)
        result = session.tensor(node, chosen.batched, site)
    else:
        numbers = _rows_in_one_table(session, site, chosen, size)
        flat = session.emit("reshape", (front.node,), {"shape": (front.node.shape[0] * size, *front.shape[1:])}, site)
        result = session.tensor(session.emit("take", (flat, numbers), {}, site), True, site)
    for position in range(along):
        result = moved(session, site, result, chosen.rank + position, position)
    return result


@builtin("scatter-add", "base ids updates")
def scatter_add(session: Session, site: Site, base: Value, ids: Value, updates: Value) -> Value:
    """The base with each update added to the entry of axis 0 that its id names; one result an example."""
    target, chosen, added = (
        need_tensor(session, site, base, 0),
        _need_ids(session, site, ids, 1),
        need_tensor(session, site, updates, 2),
    )
    need_axis(session, site, target, 0, 0)
    if added.shape != chosen.shape + target.shape[1:] or added.dtype != target.dtype:
        wanted = f"{target.dtype}[{' '.join(map(str, chosen.shape + target.shape[1:]))}]"
        raise session.error(
            "E-TYPE-001",
            f"the updates of scatter-add are {wanted}, not {added}",
            site,
            at=argument(site, 2),
            notes=mismatch_notes([target, chosen, added]),
        )
    size = target.shape[0]
    record_bound(session, site, chosen, size)
    if not (target.batched or chosen.batched or added.batched):
        return session.tensor(
            session.emit("scatter_add", (target.node, chosen.node, added.node), {}, site), False, site
        )
    spread = expand(session, site, target, target.shape, True)
    flat = session.emit("reshape", (spread,), {"shape": (spread.shape[0] * size, *target.shape[1:])}, site)
    numbers = _rows_in_one_table(session, site, chosen, size)
    changes = expand(session, site, added, added.shape, True)
    node = session.emit("scatter_add", (flat, numbers, changes), {}, site)
    node = session.emit("reshape", (node,), {"shape": spread.shape}, site)
    return session.tensor(node, True, site)


@builtin("one-hot", "ids classes :dtype :ignore", dtype=DType.FLOAT32, ignore=None)
def one_hot(session: Session, site: Site, ids: Value, classes: Value, dtype: Value, ignore: Value) -> Value:
    """A new last axis of `classes` elements: 1 where the position is the id, else 0. The id `ignore` may occur too."""
    chosen = _need_ids(session, site, ids, 0)
    count = need_integer(session, site, classes, 1)
    if count < 1:
        raise wrong_kind(session, site, classes, 1, "a positive number of classes")
    record_bound(
        session, site, chosen, count, None if ignore is None else need_integer(session, site, ignore, "ignore")
    )
    wide = reshaped(session, site, cast(session, site, chosen, DType.INT32), (*chosen.shape, 1))
    shape = (*(1,) * chosen.rank, count)
    attrs = {"shape": shape, "axis": chosen.rank, "dtype": DType.INT32}
    positions = session.tensor(session.emit("iota", (), attrs, site), False, site)
    hits = elementwise(session, site, "one-hot", "eq", [wide, positions])
    wanted = need_dtype(session, site, dtype, "dtype")
    return hits if wanted == DType.BOOL else cast(session, site, hits, wanted)


@builtin("weighted", "value mask")
def weighted(session: Session, site: Site, value: Value, mask: Value) -> Value:
    """A loss or metric that counts only where the mask (booleans or weights) says so, in the mean over the batch."""
    tensor, weights = need_tensor(session, site, value, 0), need_tensor(session, site, mask, 1)
    if weights.shape != tensor.shape:
        raise session.error(
            "E-TYPE-001",
            f"the mask has another shape than the value: {tensor} and {weights}",
            site,
            at=argument(site, 1),
            notes=mismatch_notes([tensor, weights]),
        )
    batched = tensor.batched or weights.batched
    node = expand(session, site, tensor, tensor.shape, batched)
    own = expand(session, site, cast(session, site, weights, DType.FLOAT32), tensor.shape, batched)
    if tensor.weight is not None:
        before = expand(session, site, Tensor(tensor.weight, tensor.batched, tensor.origin), tensor.shape, batched)
        own = session.emit("mul", (before, own), {}, site)
    return Tensor(node, batched, session.span(site), own)

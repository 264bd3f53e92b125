"""Arguments of builtins: what kind they must be, which axis they mean, how operands of one example meet."""

from __future__ import annotations

from collections.abc import Sequence

from paren.ir.graph import Node
from paren.ir.types import DType
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value, kind
from paren.text.errors import Note, ParenError
from paren.text.source import Span

Key = int | str  # a positional argument's index, or a keyword


def argument(site: Site, key: Key) -> Span | None:
    if isinstance(key, str):
        return site.keywords.get(key)
    return site.positional[key] if key < len(site.positional) else None


def wrong_kind(session: Session, site: Site, value: Value, key: Key, wanted: str) -> ParenError:
    """E-CALL-007: an argument of another kind than the builtin takes."""
    notes = [Note(f"it is {kind(value)}", value.origin)] if isinstance(value, Tensor) else []
    parts = value if isinstance(value, tuple) else (value,)
    whole = "integer" in wanted and any(isinstance(part, float) and part.is_integer() for part in parts)
    return session.error(
        "E-CALL-007",
        f"{wanted} is expected here, not {kind(value)}",
        site,
        at=argument(site, key),
        notes=notes,
        fix="// divides integers to an integer, / to a float" if whole else None,
    )


def need_tensor(session: Session, site: Site, value: Value, key: Key) -> Tensor:
    if isinstance(value, Tensor):
        return value
    raise wrong_kind(session, site, value, key, "a tensor")


def need_integer(session: Session, site: Site, value: Value, key: Key, wanted: str = "an integer") -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise wrong_kind(session, site, value, key, wanted)


def need_number(session: Session, site: Site, value: Value, key: Key) -> int | float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    raise wrong_kind(session, site, value, key, "a number")


def need_boolean(session: Session, site: Site, value: Value, key: Key) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong_kind(session, site, value, key, "a boolean")


def need_string(session: Session, site: Site, value: Value, key: Key) -> str:
    if isinstance(value, str):
        return value
    raise wrong_kind(session, site, value, key, "a string")


def need_list(session: Session, site: Site, value: Value, key: Key) -> tuple[Value, ...]:
    if isinstance(value, tuple):
        return value
    raise wrong_kind(session, site, value, key, "a list")


def need_dtype(session: Session, site: Site, value: Value, key: Key) -> DType:
    if isinstance(value, DType):
        return value
    raise wrong_kind(session, site, value, key, "a type such as float32")


def need_integers(session: Session, site: Site, value: Value, key: Key, wanted: str) -> tuple[int, ...]:
    """A list of integers; one integer stands for a list of it alone."""
    if isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if isinstance(value, tuple):
        found = tuple(item for item in value if isinstance(item, int) and not isinstance(item, bool))
        if len(found) == len(value):
            return found
    raise wrong_kind(session, site, value, key, wanted)


def need_shape(session: Session, site: Site, value: Value, key: Key) -> tuple[int, ...]:
    """A shape: positive integers. Raises E-TYPE-008."""
    shape = need_integers(session, site, value, key, "a shape (a list of integers)")
    if any(size < 1 for size in shape):
        raise session.error("E-TYPE-008", f"the shape {_words(shape)} has a size below 1", site, at=argument(site, key))
    return shape


def need_axis(session: Session, site: Site, tensor: Tensor, axis: int, key: Key) -> int:
    """The axis of one example counted from 0. Raises E-TYPE-004 for what could only be the batch axis, E-TYPE-003."""
    rank = tensor.rank
    if -rank <= axis < rank:
        return axis % rank
    at = argument(site, key)
    note = Note(f"the operand is {tensor}", tensor.origin)
    if tensor.batched and (rank == 0 or axis == -rank - 1):
        raise session.error(
            "E-TYPE-004",
            f"axis {axis} of {tensor} could only be the batch, whose examples cannot be mixed",
            site,
            at=at,
            notes=[
                note,
                Note("the batch is split over microbatches and devices, so a result over it would depend on the split"),
            ],
        )
    if rank == 0:
        raise session.error("E-TYPE-003", f"{tensor} has no axes", site, at=at, notes=[note])
    raise session.error(
        "E-TYPE-003",
        f"axis {axis} is outside {tensor}, whose axes are {-rank} to {rank - 1}",
        site,
        at=at,
        notes=[note],
    )


def need_axes(session: Session, site: Site, tensor: Tensor, axis: Value, axes: Value) -> tuple[int, ...]:
    """The axes of one example that `:axis` or `:axes` name, ascending: an integer, a list, or `all`."""
    given, key = (axes, "axes") if axes is not None else (axis, "axis")
    if given == "all":
        return tuple(range(tensor.rank))
    wanted = "an axis (an integer)" if key == "axis" else "a list of axes"
    numbers = need_integers(session, site, given, key, wanted)
    found = sorted({need_axis(session, site, tensor, number, key) for number in numbers})
    if len(found) != len(numbers):
        raise session.error(
            "E-TYPE-003", f"the axes {_words(numbers)} are not all different", site, at=argument(site, key)
        )
    return tuple(found)


def node_axis(tensor: Tensor, axis: int) -> int:
    """The axis of the node for an axis of one example."""
    return axis + 1 if tensor.batched else axis


def full_shape(session: Session, site: Site, shape: tuple[int, ...], batched: bool) -> tuple[int, ...]:
    """The shape of a node whose examples have this shape."""
    if not batched:
        return shape
    return (batch_rows(session, site), *shape)


def batch_rows(session: Session, site: Site) -> int:
    rows = session.need_trace(site).rows
    assert rows is not None, "a batched tensor exists only in a graph with a batch"
    return rows


def common_shape(session: Session, site: Site, name: str, operands: Sequence[Tensor]) -> tuple[int, ...]:
    """The shape of one example that operands broadcast to, aligned at the end.

    An axis of size 1 meets any size. Raises E-TYPE-001 for sizes that do not fit. Raises E-TYPE-002 if operands of
    different rank would both be repeated ([n] against [n 1]): written on purpose, both have the same rank.
    """
    shape: tuple[int, ...] = ()
    for operand in operands:
        other = operand.shape
        if other == shape or not other:
            continue
        width = max(len(shape), len(other))
        a, b = (1,) * (width - len(shape)) + shape, (1,) * (width - len(other)) + other
        if any(x != y and x != 1 and y != 1 for x, y in zip(a, b, strict=True)):
            raise _mismatch(session, site, "E-TYPE-001", f"the shapes of {name} do not fit", operands)
        shape = tuple(max(x, y) for x, y in zip(a, b, strict=True))
    if shape and len({operand.rank for operand in operands if operand.rank}) > 1:
        growing = [operand for operand in operands if operand.rank and _grows(operand.shape, shape)]
        if len(growing) > 1 and all(operand.shape != shape for operand in operands):
            raise _mismatch(
                session,
                site,
                "E-TYPE-002",
                f"the operands of {name} would both be repeated, to {_words(shape)}",
                operands,
                fix="reshape one operand, so that both have the same number of axes if this is meant",
            )
    return shape


def _grows(shape: tuple[int, ...], result: tuple[int, ...]) -> bool:
    return shape != result


def mismatch_notes(operands: Sequence[Tensor]) -> list[Note]:
    """Where each operand came from."""
    names = ("first", "second", "third", "fourth", "fifth")
    if len(operands) == 1:
        return [Note(f"the operand is {operands[0]}", operands[0].origin)]
    return [
        Note(f"the {names[i] if i < len(names) else f'{i + 1}th'} operand is {operand}", operand.origin)
        for i, operand in enumerate(operands)
    ]


def _mismatch(
    session: Session, site: Site, code: str, what: str, operands: Sequence[Tensor], fix: str | None = None
) -> ParenError:
    shapes = " and ".join(str(operand) for operand in operands)
    return session.error(code, f"{what}: {shapes}", site, notes=mismatch_notes(operands), fix=fix)


def expand(session: Session, site: Site, tensor: Tensor, shape: tuple[int, ...], batched: bool) -> Node:
    """The node of `tensor` broadcast to examples of `shape`, which it fits."""
    node = tensor.node
    target = full_shape(session, site, shape, batched)
    if node.shape == target and tensor.batched == batched:
        return node
    own = tensor.shape
    offset = len(shape) - len(own)
    kept = [i for i, size in enumerate(own) if size == shape[offset + i]]
    axes = [offset + i + (1 if batched else 0) for i in kept]
    sizes = [own[i] for i in kept]
    if tensor.batched:
        axes.insert(0, 0)
        sizes.insert(0, node.shape[0])
    if tuple(sizes) != node.shape:
        node = session.emit("reshape", (node,), {"shape": tuple(sizes)}, site)
    if node.shape == target:
        return node
    return session.emit("broadcast", (node,), {"shape": target, "axes": tuple(axes)}, site)


def forbid_weight(session: Session, site: Site, tensor: Tensor) -> None:
    """Raises E-TYPE-007 if the value carries a mask: only elementwise arithmetic keeps it."""
    if tensor.weight is not None:
        raise session.error(
            "E-TYPE-007",
            f"{tensor} carries the mask of :ignore, which only elementwise arithmetic keeps",
            site,
            notes=[Note("the mask comes from here", tensor.origin)],
            fix="give the mask by :weight of the run instead of :ignore",
        )


def _words(numbers: Sequence[int]) -> str:
    return f"[{' '.join(map(str, numbers))}]"

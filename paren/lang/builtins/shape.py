"""Operations that move elements: reshape, transpose, slice, pad, concat, split, stack, patches. Axes are of one
example."""

from __future__ import annotations

import math

from paren.ir.types import DType
from paren.lang.builtins.registry import builtin
from paren.lang.elementwise import common_dtype, lift
from paren.lang.operand import (
    argument,
    expand,
    forbid_weight,
    full_shape,
    mismatch_notes,
    need_axis,
    need_dtype,
    need_integer,
    need_integers,
    need_list,
    need_shape,
    need_tensor,
    node_axis,
    wrong_kind,
)
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value
from paren.text.size import count_of, form_of


def reshaped(session: Session, site: Site, x: Tensor, shape: tuple[int, ...]) -> Tensor:
    """The elements of one example in another shape of equal size."""
    target = full_shape(session, site, shape, x.batched)
    if target == x.node.shape:
        return x
    return session.tensor(session.emit("reshape", (x.node,), {"shape": target}, site), x.batched, site)


def transposed(session: Session, site: Site, x: Tensor, axes: tuple[int, ...]) -> Tensor:
    """Axis i of the result is axis `axes[i]` of one example."""
    if axes == tuple(range(len(axes))):
        return x
    order = (0, *(axis + 1 for axis in axes)) if x.batched else axes
    return session.tensor(session.emit("transpose", (x.node,), {"axes": order}, site), x.batched, site)


def moved(session: Session, site: Site, x: Tensor, source: int, target: int) -> Tensor:
    """The axis `source` of one example at the place `target`, the others in their order."""
    order = [axis for axis in range(x.rank) if axis != source]
    order.insert(target, source)
    return transposed(session, site, x, tuple(order))


def cut(session: Session, site: Site, x: Tensor, axis: int, start: int, stop: int, step: int = 1) -> Tensor:
    """`start <= index < stop` of one axis of one example, every `step`-th."""
    if (start, stop, step) == (0, x.shape[axis], 1):
        return x
    along = node_axis(x, axis)
    shape = x.node.shape
    attrs = {
        "start": tuple(start if i == along else 0 for i in range(len(shape))),
        "stop": tuple(stop if i == along else size for i, size in enumerate(shape)),
        "step": tuple(step if i == along else 1 for i in range(len(shape))),
    }
    return session.tensor(session.emit("slice", (x.node,), attrs, site), x.batched, site)


def joined(session: Session, site: Site, name: str, tensors: list[Tensor], axis: int) -> Tensor:
    """Tensors side by side along an axis of one example. Raises E-TYPE-001 if other axes differ."""
    first = tensors[0]
    common_dtype(session, site, name, tensors)
    for other in tensors[1:]:
        if other.rank != first.rank or any(
            a != b for i, (a, b) in enumerate(zip(first.shape, other.shape, strict=True)) if i != axis
        ):
            raise session.error(
                "E-TYPE-001",
                f"{name} along axis {axis} needs equal other axes: {' and '.join(str(t) for t in tensors)}",
                site,
                notes=mismatch_notes(tensors),
            )
    batched = any(tensor.batched for tensor in tensors)
    nodes = [expand(session, site, tensor, tensor.shape, batched) for tensor in tensors]
    attrs = {"axis": axis + 1 if batched else axis}
    return session.tensor(session.emit("concat", nodes, attrs, site), batched, site)


def _plain(session: Session, site: Site, value: Value, key: int = 0) -> Tensor:
    tensor = need_tensor(session, site, value, key)
    forbid_weight(session, site, tensor)
    return tensor


@builtin("reshape", "x shape")
def reshape(session: Session, site: Site, x: Value, shape: Value) -> Value:
    """The elements of one example in another shape; one size may be -1, which is what is left."""
    tensor = _plain(session, site, x)
    sizes = need_integers(session, site, shape, 1, "a shape (a list of integers)")
    known = math.prod(size for size in sizes if size != -1)
    if sizes.count(-1) == 1 and known > 0 and math.prod(tensor.shape) % known == 0:
        sizes = tuple(math.prod(tensor.shape) // known if size == -1 else size for size in sizes)
    if any(size < 1 for size in sizes) or math.prod(sizes) != math.prod(tensor.shape):
        words, has = f"[{' '.join(map(str, sizes))}]", math.prod(tensor.shape)
        raise session.error(
            "E-TYPE-006",
            f"{tensor} has {count_of(has, 'element')}, which {form_of(has, 'does', 'do')} not fill the shape {words}",
            site,
            at=argument(site, 1),
            notes=mismatch_notes([tensor]),
        )
    return reshaped(session, site, tensor, sizes)


@builtin("transpose", "x :axes", axes=None)
def transpose(session: Session, site: Site, x: Value, axes: Value) -> Value:
    """The last two axes exchanged, or axis i of the result is axis `axes[i]`."""
    tensor = _plain(session, site, x)
    if axes is None:
        if tensor.rank < 2:
            raise session.error(
                "E-TYPE-003",
                f"transpose exchanges the last two axes, and {tensor} has {tensor.rank}",
                site,
                at=argument(site, 0),
                notes=mismatch_notes([tensor]),
            )
        order = (*range(tensor.rank - 2), tensor.rank - 1, tensor.rank - 2)
    else:
        numbers = need_integers(session, site, axes, "axes", "a list of axes")
        order = tuple(need_axis(session, site, tensor, number, "axes") for number in numbers)
        if sorted(order) != list(range(tensor.rank)):
            raise session.error(
                "E-TYPE-003",
                f"[{' '.join(map(str, numbers))}] is not an order of the axes of {tensor}",
                site,
                at=argument(site, "axes"),
                notes=mismatch_notes([tensor]),
            )
    return transposed(session, site, tensor, order)


@builtin("broadcast", "x shape")
def broadcast(session: Session, site: Site, x: Value, shape: Value) -> Value:
    """One example repeated to a shape, aligned at the end; axes of size 1 are repeated."""
    tensor, target = _plain(session, site, x), need_shape(session, site, shape, 1)
    padded = (1,) * (len(target) - tensor.rank) + tensor.shape
    if len(padded) != len(target) or any(a not in (1, b) for a, b in zip(padded, target, strict=True)):
        raise session.error(
            "E-TYPE-001",
            f"{tensor} cannot be repeated to [{' '.join(map(str, target))}]",
            site,
            at=argument(site, 1),
            notes=mismatch_notes([tensor]),
        )
    return session.tensor(expand(session, site, tensor, target, tensor.batched), tensor.batched, site)


def _position(session: Session, site: Site, value: Value, key: int, default: int, size: int) -> int:
    if value is None:
        return default
    number = need_integer(session, site, value, key)
    return number + size if number < 0 else number


@builtin("slice", "x start stop :axis :step", axis=-1, step=1)
def slice_axis(session: Session, site: Site, x: Value, start: Value, stop: Value, axis: Value, step: Value) -> Value:
    """The positions `start` up to `stop` (excluded; none: to the end) of an axis; negative ones count from the end."""
    tensor = _plain(session, site, x)
    along = need_axis(session, site, tensor, need_integer(session, site, axis, "axis", "an axis (an integer)"), "axis")
    size = tensor.shape[along]
    low = _position(session, site, start, 1, 0, size)
    high = _position(session, site, stop, 2, size, size)
    stride = need_integer(session, site, step, "step")
    if not 0 <= low < high <= size or stride < 1:
        raise session.error(
            "E-TYPE-006",
            f"the positions {low} up to {high} by {stride} are not within axis {along} of {tensor}",
            site,
            notes=mismatch_notes([tensor]),
        )
    return cut(session, site, tensor, along, low, high, stride)


@builtin("select", "x index :axis", axis=-1)
def select(session: Session, site: Site, x: Value, index: Value, axis: Value) -> Value:
    """One position of an axis, which vanishes."""
    tensor = _plain(session, site, x)
    along = need_axis(session, site, tensor, need_integer(session, site, axis, "axis", "an axis (an integer)"), "axis")
    size = tensor.shape[along]
    position = _position(session, site, index, 1, 0, size)
    if not 0 <= position < size:
        raise session.error(
            "E-TYPE-006",
            f"position {position} is outside axis {along} of {tensor}",
            site,
            at=argument(site, 1),
            notes=mismatch_notes([tensor]),
        )
    part = cut(session, site, tensor, along, position, position + 1)
    return reshaped(session, site, part, tensor.shape[:along] + tensor.shape[along + 1 :])


@builtin("pad", "x widths :value", value=0)
def pad(session: Session, site: Site, x: Value, widths: Value, value: Value) -> Value:
    """`[[low high] ...]` elements of `value` around the last axes, one pair for each."""
    tensor = _plain(session, site, x)
    pairs = [need_integers(session, site, w, 1, "a pair [low high]") for w in need_list(session, site, widths, 1)]
    if len(pairs) > tensor.rank or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise session.error(
            "E-TYPE-006",
            f"the padding is one pair [low high] for each of the last axes of {tensor}",
            site,
            at=argument(site, 1),
            notes=mismatch_notes([tensor]),
        )
    free = len(tensor.node.shape) - len(pairs)
    fill = lift(session, site, value, 2, tensor.dtype).node.attrs["value"]
    attrs = {
        "low": (0,) * free + tuple(pair[0] for pair in pairs),
        "high": (0,) * free + tuple(pair[1] for pair in pairs),
        "value": fill,
    }
    return session.tensor(session.emit("pad", (tensor.node,), attrs, site), tensor.batched, site)


def _tensors(session: Session, site: Site, values: tuple[Value, ...]) -> list[Tensor]:
    if len(values) == 1 and isinstance(values[0], tuple):
        site = Site(site.span, (), {}, site.internal)
        values = values[0]
    if not values:
        raise session.error("E-CALL-001", "at least one tensor is needed", site)
    return [_plain(session, site, value, key) for key, value in enumerate(values)]


@builtin("concat", ":axis & tensors", axis=-1)
def concat(session: Session, site: Site, axis: Value, tensors: tuple[Value, ...]) -> Value:
    """Tensors side by side along an axis; also one list of them."""
    found = _tensors(session, site, tensors)
    number = need_integer(session, site, axis, "axis", "an axis (an integer)")
    return joined(session, site, "concat", found, need_axis(session, site, found[0], number, "axis"))


@builtin("stack", ":axis & tensors", axis=0)
def stack(session: Session, site: Site, axis: Value, tensors: tuple[Value, ...]) -> Value:
    """Tensors of one shape along a new axis; also one list of them."""
    found = _tensors(session, site, tensors)
    rank = found[0].rank
    number = need_integer(session, site, axis, "axis", "an axis (an integer)")
    if not -rank - 1 <= number <= rank:
        raise session.error(
            "E-TYPE-003",
            f"a new axis of {found[0]} is {-rank - 1} to {rank}, not {number}",
            site,
            at=argument(site, "axis"),
        )
    along = number % (rank + 1)
    if any(other.shape != found[0].shape for other in found):
        raise session.error(
            "E-TYPE-001",
            f"stack needs equal shapes: {' and '.join(str(t) for t in found)}",
            site,
            notes=mismatch_notes(found),
        )
    shape = (*found[0].shape[:along], 1, *found[0].shape[along:])
    return joined(session, site, "stack", [reshaped(session, site, tensor, shape) for tensor in found], along)


@builtin("split", "x parts :axis", axis=-1)
def split(session: Session, site: Site, x: Value, parts: Value, axis: Value) -> Value:
    """A list of parts along an axis: so many equal ones, or parts of the listed sizes."""
    tensor = _plain(session, site, x)
    along = need_axis(session, site, tensor, need_integer(session, site, axis, "axis", "an axis (an integer)"), "axis")
    size = tensor.shape[along]
    if isinstance(parts, int) and not isinstance(parts, bool):
        sizes = (size // parts,) * parts if parts > 0 and size % parts == 0 else ()
    else:
        sizes = need_integers(session, site, parts, 1, "a number of parts or a list of sizes")
    if sum(sizes) != size or any(part < 1 for part in sizes):
        what = f"{parts} equal parts" if isinstance(parts, int) else f"parts of [{' '.join(map(str, sizes))}]"
        raise session.error(
            "E-TYPE-006",
            f"axis {along} of {tensor} cannot be split into {what}",
            site,
            at=argument(site, 1),
            notes=mismatch_notes([tensor]),
        )
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return tuple(
        cut(session, site, tensor, along, start, start + part) for start, part in zip(starts, sizes, strict=True)
    )


@builtin("full", "shape value :dtype", dtype=DType.FLOAT32)
def full(session: Session, site: Site, shape: Value, value: Value, dtype: Value) -> Value:
    """A tensor whose elements are all the number."""
    sizes = need_shape(session, site, shape, 0)
    if isinstance(value, Tensor):
        raise wrong_kind(session, site, value, 1, "a number")
    constant = lift(session, site, value, 1, need_dtype(session, site, dtype, "dtype"))
    return session.tensor(expand(session, site, constant, sizes, False), False, site)


@builtin("iota", "shape :axis :dtype", axis=-1, dtype=DType.INT32)
def iota(session: Session, site: Site, shape: Value, axis: Value, dtype: Value) -> Value:
    """The positions 0, 1, ... along an axis of the shape."""
    sizes = need_shape(session, site, shape, 0)
    number = need_integer(session, site, axis, "axis", "an axis (an integer)")
    if not -len(sizes) <= number < len(sizes):
        raise session.error(
            "E-TYPE-003",
            f"axis {number} is outside a shape of {count_of(len(sizes), 'axis', 'axes')}",
            site,
            at=argument(site, "axis"),
        )
    attrs = {"shape": sizes, "axis": number % len(sizes), "dtype": need_dtype(session, site, dtype, "dtype")}
    return session.tensor(session.emit("iota", (), attrs, site), False, site)


def _two(session: Session, site: Site, value: Value, key: str) -> tuple[int, int]:
    numbers = need_integers(session, site, value, key, "an integer or a pair [vertical horizontal]")
    if len(numbers) == 1:
        numbers = numbers * 2
    if len(numbers) != 2:
        raise wrong_kind(session, site, value, key, "an integer or a pair [vertical horizontal]")
    return numbers[0], numbers[1]


def _sides(session: Session, site: Site, value: Value) -> tuple[tuple[int, int], tuple[int, int]]:
    """Padding: one number, [vertical horizontal], or [[top bottom] [left right]]."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(side, tuple) for side in value):
        return _two(session, site, value[0], "padding"), _two(session, site, value[1], "padding")
    vertical, horizontal = _two(session, site, value, "padding")
    return (vertical, vertical), (horizontal, horizontal)


@builtin("patches", "x :kernel :stride :padding :dilation", stride=1, padding=0, dilation=1)
def patches(
    session: Session, site: Site, x: Value, kernel: Value, stride: Value, padding: Value, dilation: Value
) -> Value:
    """The windows of an image [C H W] as [C KH KW OH OW], zero outside. Numbers stand for both directions."""
    tensor = _plain(session, site, x)
    if tensor.rank != 3:
        raise session.error(
            "E-TYPE-006",
            f"an image has the axes [channels height width], {tensor} has {tensor.rank}",
            site,
            at=argument(site, 0),
            notes=mismatch_notes([tensor]),
        )
    attrs = {
        "kernel": _two(session, site, kernel, "kernel"),
        "stride": _two(session, site, stride, "stride"),
        "padding": _sides(session, site, padding),
        "dilation": _two(session, site, dilation, "dilation"),
    }
    node = tensor.node
    if not tensor.batched:
        node = session.emit("reshape", (node,), {"shape": (1, *node.shape)}, site)
    node = session.emit("patches", (node,), attrs, site)
    if not tensor.batched:
        node = session.emit("reshape", (node,), {"shape": node.shape[1:]}, site)
    return session.tensor(node, tensor.batched, site)

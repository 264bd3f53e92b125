"""Elementwise operations on values of one example: numbers become constants, operands broadcast, masks are kept."""

from __future__ import annotations

from collections.abc import Sequence

from paren.ir.graph import Node
from paren.ir.op import Attrs
from paren.ir.types import DType
from paren.lang.operand import common_shape, expand, mismatch_notes, wrong_kind
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value

_NO_ATTRS: Attrs = {}


def elementwise(session: Session, site: Site, name: str, op: str, operands: Sequence[Value]) -> Tensor:
    """An operation on tensors and numbers, at least one of them a tensor. `name` is what the program calls it."""
    tensors = [operand for operand in operands if isinstance(operand, Tensor)]
    dtype = common_dtype(session, site, name, tensors)
    if op in _ARITHMETIC and dtype == DType.BOOL:
        raise session.error(
            "E-TYPE-005",
            f"{name} does not take booleans",
            site,
            notes=mismatch_notes(tensors),
            fix="cast them first: (cast x float32)",
        )
    if dtype.is_short and op not in ("eq", "ne"):
        raise session.error(
            "E-TYPE-005",
            f"{name} does not compute in {dtype}, which is for storage and products",
            site,
            notes=mismatch_notes(tensors),
            fix="cast first: (cast x float32)",
        )
    if op in _FLOATS and not dtype.is_float:
        raise session.error(
            "E-TYPE-005",
            f"{name} takes floats, not {dtype}",
            site,
            notes=mismatch_notes(tensors),
            fix="cast first: (cast x float32)" + ("; for whole numbers there is //" if op == "div" else ""),
        )
    return combine(session, site, name, op, [lift(session, site, o, i, dtype) for i, o in enumerate(operands)])


def combine(
    session: Session, site: Site, name: str, op: str, tensors: Sequence[Tensor], attrs: Attrs = _NO_ATTRS
) -> Tensor:
    """The operation on tensors whose types fit, broadcast to their common shape."""
    first = tensors[0]
    if all(t.node.shape == first.node.shape and t.batched == first.batched for t in tensors):
        nodes = [tensor.node for tensor in tensors]
        batched = first.batched
    else:
        batched = any(tensor.batched for tensor in tensors)
        shape = common_shape(session, site, name, tensors)
        nodes = [expand(session, site, tensor, shape, batched) for tensor in tensors]
    node = session.emit(op, nodes, attrs, site)
    return Tensor(node, batched, session.span(site), joined_weight(session, site, tensors, node, batched))


def joined_weight(session: Session, site: Site, tensors: Sequence[Tensor], node: Node, batched: bool) -> Node | None:
    """The product of the operands' masks, in the shape of the result."""
    weight: Node | None = None
    for tensor in tensors:
        if tensor.weight is None:
            continue
        mask = Tensor(tensor.weight, tensor.batched, tensor.origin)
        shape = node.shape[1:] if batched else node.shape
        own = expand(session, site, mask, shape, batched)
        weight = own if weight is None or weight is own else session.emit("mul", (weight, own), _NO_ATTRS, site)
    return weight


def common_dtype(session: Session, site: Site, name: str, tensors: Sequence[Tensor]) -> DType:
    """The one element type of the operands. Raises E-TYPE-005 if they differ."""
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype != dtype:
            raise session.error(
                "E-TYPE-005",
                f"the element types of {name} differ: {' and '.join(str(t) for t in tensors)}",
                site,
                notes=mismatch_notes(tensors),
                fix=f"cast one of them, as in (cast x {dtype})",
            )
    return dtype


def lift(session: Session, site: Site, value: Value, key: int, dtype: DType) -> Tensor:
    """A number as a constant of the type. Raises E-TYPE-005 if it is not one of that type."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, bool):
        if dtype == DType.BOOL:
            return session.tensor(session.constant(value, dtype, site), False, site)
    elif isinstance(value, (int, float)):
        if dtype.is_float:
            return session.tensor(session.constant(float(value), dtype, site), False, site)
        if dtype.is_integer and isinstance(value, int) and fits(value, dtype):
            return session.tensor(session.constant(value, dtype, site), False, site)
    else:
        raise wrong_kind(session, site, value, key, "a tensor or a number")
    from_value = "true or false" if isinstance(value, bool) else f"the number {value}"
    raise session.error(
        "E-TYPE-005",
        f"{from_value} cannot meet a tensor of {dtype}",
        site,
        at=site.positional[key] if key < len(site.positional) else None,
        fix="cast the tensor first",
    )


def fits(value: int, dtype: DType) -> bool:
    bits = dtype.bytes * 8
    if dtype in (DType.UINT8, DType.UINT32):
        return 0 <= value < 1 << bits
    return -(1 << (bits - 1)) <= value < 1 << (bits - 1)


def cast(session: Session, site: Site, tensor: Tensor, dtype: DType) -> Tensor:
    if tensor.dtype == dtype:
        return tensor
    node = session.emit("cast", (tensor.node,), {"dtype": dtype}, site)
    return Tensor(node, tensor.batched, session.span(site), tensor.weight)


_FLOATS = frozenset(
    ("div", "exp", "log", "log1p", "expm1", "sqrt", "rsqrt", "tanh", "erf", "sin", "cos", "floor", "ceil", "is_finite")
)
_ARITHMETIC = (
    frozenset(
        ("add", "sub", "mul", "div", "pow", "maximum", "minimum", "remainder", "floor_divide", "neg", "abs", "sign")
    )
    | _FLOATS
)

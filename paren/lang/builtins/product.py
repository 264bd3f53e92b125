"""Products of tensors: matmul and einsum, as contractions of pairs, and attention. The batch axis is never summed."""

from __future__ import annotations

from collections.abc import Sequence

from paren.ir.graph import Node
from paren.ir.ops.operands import FLOATS
from paren.lang.builtins.registry import builtin
from paren.lang.elementwise import common_dtype, elementwise
from paren.lang.operand import (
    argument,
    forbid_weight,
    mismatch_notes,
    need_boolean,
    need_number,
    need_string,
    need_tensor,
)
from paren.lang.session import Session
from paren.lang.signature import Site
from paren.lang.value import Tensor, Value
from paren.text.size import count_of

BATCH = "*"  # the label of the batch axis
Labels = tuple[str, ...]


def _labels(tensor: Tensor, labels: Labels) -> Labels:
    return (BATCH, *labels) if tensor.batched else labels


def contract(
    session: Session, site: Site, a: Tensor, labels_a: Labels, b: Tensor, labels_b: Labels, result: Labels
) -> Tensor:
    """The product of two tensors whose axes are labelled, each label once a tensor. A label that is not in `result`
    is summed. Labels are of one example; the batch is added here and comes first in the result."""
    batched = a.batched or b.batched
    full_a, full_b = _labels(a, labels_a), _labels(b, labels_b)
    wanted = (BATCH, *result) if batched else result
    node_a, full_a = _summed(session, site, a, full_a, set(full_b) | set(wanted))
    node_b, full_b = _summed(session, site, b, full_b, set(full_a) | set(wanted))
    lead = next((label for label in wanted if (label in full_a) != (label in full_b)), None)
    if lead is not None and lead in full_b:
        node_a, full_a, node_b, full_b = node_b, full_b, node_a, full_a
    shared = [label for label in wanted if label in full_a and label in full_b]
    summed = [label for label in full_a if label in full_b and label not in wanted]
    attrs = {
        "batch": (tuple(full_a.index(x) for x in shared), tuple(full_b.index(x) for x in shared)),
        "contracting": (tuple(full_a.index(x) for x in summed), tuple(full_b.index(x) for x in summed)),
    }
    node = session.emit("contract", (node_a, node_b), attrs, site)
    gone = {*shared, *summed}
    made = (*shared, *(x for x in full_a if x not in gone), *(x for x in full_b if x not in gone))
    if made != wanted:
        node = session.emit("transpose", (node,), {"axes": tuple(made.index(x) for x in wanted)}, site)
    return session.tensor(node, batched, site)


def _summed(session: Session, site: Site, x: Tensor, labels: Labels, needed: set[str]) -> tuple[Node, Labels]:
    axes = tuple(i for i, label in enumerate(labels) if label not in needed)
    if not axes:
        return x.node, labels
    kept = tuple(label for label in labels if label in needed)
    return session.emit("sum", (x.node,), {"axes": axes}, site), kept


def _operands(session: Session, site: Site, name: str, values: Sequence[Value], first: int) -> list[Tensor]:
    tensors = [need_tensor(session, site, value, key) for key, value in enumerate(values, start=first)]
    for tensor in tensors:
        forbid_weight(session, site, tensor)
    if not common_dtype(session, site, name, tensors).is_float:
        raise session.error(
            "E-TYPE-005",
            f"{name} takes floats, not {tensors[0].dtype}",
            site,
            notes=mismatch_notes(tensors),
            fix="cast first: (cast x float32)",
        )
    return tensors


@builtin("matmul", "x y")
def matmul(session: Session, site: Site, x: Value, y: Value) -> Value:
    """The matrix product over the last axis of x and the last but one of y, as numpy's on the shapes of one example:
    axes in front are broadcast, a vector counts as one row or one column that vanishes."""
    a, b = _operands(session, site, "matmul", (x, y), 0)
    lead_a, lead_b = a.shape[:-2], b.shape[:-2]
    if not a.rank or not b.rank:
        scalar = a if not a.rank else b
        raise session.error(
            "E-TYPE-001",
            f"matmul needs axes, and {scalar} has none",
            site,
            notes=mismatch_notes([a, b]),
            fix="multiply with *",
        )
    inner_b = b.shape[-2] if b.rank > 1 else b.shape[-1]
    labels = [f"{i}" for i in range(max(len(lead_a), len(lead_b)))]
    fits = a.shape[-1] == inner_b
    own_a, own_b = labels[len(labels) - len(lead_a) :], labels[len(labels) - len(lead_b) :]
    sizes: dict[str, int] = {}
    for label, size in (*zip(own_a, lead_a, strict=True), *zip(own_b, lead_b, strict=True)):
        fits = fits and (size == 1 or sizes.get(label, 1) in (1, size))
        sizes[label] = max(size, sizes.get(label, 1))
    if not fits:
        raise session.error(
            "E-TYPE-001",
            f"the shapes of matmul do not fit: {a} and {b}",
            site,
            notes=mismatch_notes([a, b]),
            fix=_matmul_hint(a, b),
        )
    if all(size == 1 or size == sizes[label] for label, size in zip(own_a + own_b, lead_a + lead_b, strict=True)):
        a, own_a = _without_ones(session, site, a, own_a, sizes)
        b, own_b = _without_ones(session, site, b, own_b, sizes)
    row = ("m",) if a.rank > len(own_a) + 1 else ()
    column = ("n",) if b.rank > len(own_b) + 1 else ()
    labels_a, labels_b = (*own_a, *row, "k"), (*own_b, "k", *column)
    return contract(session, site, a, labels_a, b, labels_b, (*labels, *row, *column))


def _without_ones(
    session: Session, site: Site, x: Tensor, labels: list[str], sizes: dict[str, int]
) -> tuple[Tensor, list[str]]:
    """Drops leading axes of size 1 that the other operand repeats."""
    gone = [i for i, label in enumerate(labels) if x.shape[i] == 1 and sizes[label] != 1]
    if not gone:
        return x, labels
    shape = tuple(size for i, size in enumerate(x.shape) if i not in gone)
    target = (x.node.shape[0], *shape) if x.batched else shape
    node = session.emit("reshape", (x.node,), {"shape": target}, site)
    kept = [label for i, label in enumerate(labels) if i not in gone]
    return Tensor(node, x.batched, x.origin), kept


def _matmul_hint(a: Tensor, b: Tensor) -> str | None:
    if b.rank > 1 and a.shape[-1] == b.shape[-1]:
        return "transpose the second operand: (matmul x (transpose y))"
    return None


@builtin("einsum", "spec & tensors")
def einsum(session: Session, site: Site, spec: Value, tensors: tuple[Value, ...]) -> Value:
    """A sum of products over axes named by letters of one example: `(einsum "hsd,htd->hst" q k)`. Labels that the
    result lacks are summed; operands are combined from left to right."""
    text = need_string(session, site, spec, 0)
    found = _operands(session, site, "einsum", tensors, 1) if tensors else []
    labels, result = _parse(session, site, text, found)
    value, own = found[0], labels[0]
    if len(found) == 1:
        return _single(session, site, value, own, result)
    for index, (other, names) in enumerate(zip(found[1:], labels[1:], strict=True), start=2):
        later = {*result, *(label for part in labels[index:] for label in part)}
        kept = tuple(dict.fromkeys(label for label in (*own, *names) if label in later))
        value = contract(session, site, value, own, other, names, result if index == len(found) else kept)
        own = kept
    return value


def _parse(session: Session, site: Site, text: str, tensors: list[Tensor]) -> tuple[list[Labels], Labels]:
    compact = text.replace(" ", "")
    left, arrow, right = compact.partition("->")
    parts = [tuple(part) for part in left.split(",")]
    letters = set(left.replace(",", ""))
    well_formed = arrow and all(letter.isalpha() for letter in letters | set(right)) and len(set(right)) == len(right)
    if not well_formed or set(right) - letters or any(len(set(part)) != len(part) for part in parts):
        raise session.error(
            "E-TYPE-010",
            f'the specification "{text}" is not of the form "ab,bc->ac" with each letter once a tensor',
            site,
            at=argument(site, 0),
        )
    if len(parts) != len(tensors):
        raise session.error(
            "E-TYPE-010",
            f'the specification "{text}" is for {count_of(len(parts), "tensor")}, not {len(tensors)}',
            site,
            at=argument(site, 0),
        )
    sizes: dict[str, int] = {}
    for part, tensor in zip(parts, tensors, strict=True):
        fits = len(part) == tensor.rank
        for letter, size in zip(part, tensor.shape, strict=False):
            fits = fits and sizes.setdefault(letter, size) == size
        if not fits:
            shapes = " and ".join(str(t) for t in tensors)
            raise session.error(
                "E-TYPE-001", f'the shapes do not fit "{text}": {shapes}', site, notes=mismatch_notes(tensors)
            )
    return parts, tuple(right)


def _single(session: Session, site: Site, x: Tensor, labels: Labels, result: Labels) -> Tensor:
    full, wanted = _labels(x, labels), _labels(x, result)
    node, kept = _summed(session, site, x, full, set(wanted))
    if kept != wanted:
        node = session.emit("transpose", (node,), {"axes": tuple(kept.index(label) for label in wanted)}, site)
    return session.tensor(node, x.batched, site)


@builtin("dot", "x y")
def dot(session: Session, site: Site, x: Value, y: Value) -> Value:
    """The sum of products over the last axis of two tensors of one shape."""
    a, b = _operands(session, site, "dot", (x, y), 0)
    product = elementwise(session, site, "dot", "mul", [a, b])
    axis = len(product.node.shape) - 1
    if not product.rank:
        raise session.error("E-TYPE-003", f"{product} has no axes", site, notes=mismatch_notes([a, b]))
    return session.tensor(session.emit("sum", (product.node,), {"axes": (axis,)}, site), product.batched, site)


@builtin("attend", "q k v written :causal :scale", causal=False, scale=1.0)
def attend(
    session: Session, site: Site, q: Value, k: Value, v: Value, written: Value, causal: Value, scale: Value
) -> Value:
    """The value of `written`, which must be softmax(scale q k') v of q [groups heads queries width], k [groups keys
    width] and v; a device that has one step for it takes that. `attention` is written with it."""
    operands = [need_tensor(session, site, value, key) for key, value in enumerate((q, k, v, written))]
    for tensor in operands:
        forbid_weight(session, site, tensor)
    masked, factor = need_boolean(session, site, causal, "causal"), need_number(session, site, scale, "scale")
    if not _fits(operands, masked):
        return operands[3]
    *factors, result = operands
    turned = [
        session.emit("transpose", (x.node,), {"axes": _turned(x, order)}, site)
        for x, order in zip(factors, ((2, 0, 1, 3), (1, 0, 2), (1, 0, 2)), strict=True)
    ]
    node = session.emit("attention", turned, {"causal": masked, "scale": float(factor)}, site)
    node = session.emit("transpose", (node,), {"axes": _turned(result, (1, 2, 0, 3))}, site)
    return session.tensor(session.emit("either", (node, result.node), {}, site), result.batched, site)


def _turned(x: Tensor, order: tuple[int, ...]) -> tuple[int, ...]:
    """An order of the axes of one example as one of the node's."""
    return (0, *(axis + 1 for axis in order)) if x.batched else order


def _fits(operands: list[Tensor], causal: bool) -> bool:
    """Whether this is what the operation `attention` computes: examples of all operands or of none, each query with a
    key to see."""
    q, k, v, written = operands
    alike = len({(x.batched, x.dtype) for x in operands}) == 1 and q.dtype in FLOATS
    if not alike or (q.rank, k.rank, v.rank) != (4, 3, 3):
        return False
    groups, repeat, queries, width = q.shape
    _, keys, values = v.shape
    shapes = (groups, keys, width), (groups, keys, values), (groups, repeat, queries, values)
    return shapes == (k.shape, v.shape, written.shape) and not (causal and queries > keys)

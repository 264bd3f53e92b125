"""Proof that a step of attention stays within its buffers, and that its results fill theirs."""

from __future__ import annotations

from collections.abc import Mapping

from paren.ir.types import DType, TensorType
from paren.plan.plan import Attention, Buffer, Heads
from paren.text.errors import InternalError


def check_attention(step: Attention, buffers: Mapping[int, Buffer]) -> None:
    """Raises `InternalError` where an operand is of another type than bfloat16 or reaches beyond its buffer, and where
    results leave elements of their buffers unwritten or write one twice."""
    name = step.nodes[0]
    if step.heads % step.groups:
        raise InternalError("plan", f"{name} has no kernel: {step.heads} heads in {step.groups} groups")
    if step.causal and step.queries != step.keys:
        raise InternalError("plan", f"{name} has no kernel: {step.keys} causal keys for {step.queries} queries")
    for number, heads in enumerate((*step.operands, *(each for each in step.results if each is not None))):
        if not step.dtype.is_short or buffers[heads.buffer].type.dtype is not step.dtype:
            raise InternalError("plan", f"{name} takes {buffers[heads.buffer].type} for operand {number}")
    for number, heads in enumerate(step.operands):
        last = heads.offset + _reach(heads, step.size_of(number))
        if not 0 <= heads.offset <= last < buffers[heads.buffer].type.size:
            raise InternalError("plan", f"{name} touches element {last} of {buffers[heads.buffer].type}")
    written: dict[int, list[tuple[Heads, tuple[int, int, int, int]]]] = {}
    for number, result in enumerate(step.results):
        if result is not None:
            written.setdefault(result.buffer, []).append((result, step.size_of(number)))
    for buffer, parts in written.items():
        _check_filled(name, parts, buffers[buffer].type)
    if step.statistics is not None:
        type_, size = buffers[step.statistics].type, step.examples * step.heads * step.queries
        if (type_.dtype, type_.size) != (DType.FLOAT32, size):
            raise InternalError("plan", f"{name} takes {type_} for {size} statistics")


def _reach(heads: Heads, size: tuple[int, int, int, int]) -> int:
    """The distance of the last element from the first."""
    return sum((count - 1) * stride for count, stride in zip(size, (*heads.strides, 1), strict=True))


def _check_filled(name: str, parts: list[tuple[Heads, tuple[int, int, int, int]]], type_: TensorType) -> None:
    """Parts of a buffer lie beside one another in rows, each of which holds one position of every part."""
    parts = sorted(parts, key=lambda part: part[0].offset)
    row = sum(heads * width for _, (_, _, heads, width) in parts)
    end = 0
    for part, (examples, positions, heads, width) in parts:
        wanted = zip(part.strides, (positions * row, row, width), (examples, positions, heads), strict=True)
        regular = all(stride == expected for stride, expected, count in wanted if count > 1)
        if part.offset != end or not regular or examples * positions * row != type_.size:
            raise InternalError("plan", f"{name} does not fill {type_}")
        end += heads * width

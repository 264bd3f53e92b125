"""Structured control flow and vectors in LLVM IR, for functions that are written out and not derived from a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from paren.codegen.writer import Writer


@contextmanager
def loop(w: Writer, first: str, end: str, step: str = "1") -> Iterator[str]:
    """A loop over i64 from `first` in steps while less than `end`; gives the index. What stands inside is its body."""
    before, name = w.block, w.fresh()
    w.put(f"br label %{name}.test")
    w.begin(f"{name}.test")
    place = len(w.lines)
    w.put("")
    w.put(f"%{name}.more = icmp slt i64 %{name}, {end}")
    w.put(f"br i1 %{name}.more, label %{name}.body, label %{name}.end")
    w.begin(f"{name}.body")
    yield f"%{name}"
    w.put(f"%{name}.next = add i64 %{name}, {step}")
    w.lines[place] = f"  %{name} = phi i64 [ {first}, %{before} ], [ %{name}.next, %{w.block} ]"
    w.put(f"br label %{name}.test")
    w.begin(f"{name}.end")


@contextmanager
def when(w: Writer, condition: str) -> Iterator[None]:
    """What stands inside runs only if the condition, an i1, holds."""
    name = w.fresh()
    w.put(f"br i1 {condition}, label %{name}.yes, label %{name}.no")
    w.begin(f"{name}.yes")
    yield
    w.put(f"br label %{name}.no")
    w.begin(f"{name}.no")


def negate(w: Writer, condition: str) -> str:
    return w.value(f"xor i1 {condition}, true")


def move(w: Writer, pointer: str, distance: str) -> str:
    """A pointer some bytes further."""
    return w.value(f"getelementptr i8, ptr {pointer}, i64 {distance}")


def least(w: Writer, left: str, right: str) -> str:
    return w.value(f"call i64 @llvm.smin.i64(i64 {left}, i64 {right})")


def spread(w: Writer, type_: str, lanes: int, value: str) -> str:
    """A vector with one value, of type `type_`, in all lanes."""
    vector = f"<{lanes} x {type_}>"
    one = w.value(f"insertelement {vector} poison, {type_} {value}, i64 0")
    return w.value(f"shufflevector {vector} {one}, {vector} poison, <{lanes} x i32> zeroinitializer")


def first_lanes(w: Writer, lanes: int, count: str) -> str:
    """A mask of the lanes whose number is below `count`, an i64 that may be negative."""
    numbers = ", ".join(f"i64 {lane}" for lane in range(lanes))
    return w.value(f"icmp slt <{lanes} x i64> <{numbers}>, {spread(w, 'i64', lanes, count)}")


def shuffle(w: Writer, vector: str, left: str, right: str, lanes: Sequence[int]) -> str:
    """Lanes of two vectors, those of `right` numbered after those of `left`."""
    order = ", ".join(f"i32 {lane}" for lane in lanes)
    return w.value(f"shufflevector {vector} {left}, {vector} {right}, <{len(lanes)} x i32> <{order}>")

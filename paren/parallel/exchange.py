"""Sums over ranks in a fixed order. Ranks only send each other bytes: what is added, in which order, is said here.

A vector is summed bucket after bucket. Within a node every rank gets one share of the bucket from all ranks of the node
and adds them in rank order. With several nodes, the ranks of one place on all nodes do the same with that share: each
adds a part of it in node order, and the parts are gathered. Then the shares are. That moves the bytes of a ring's
all-reduce, and every rank ends with the same bits.

Between nodes a sum may travel in bfloat16: what a node sends is rounded, and the sum is once more. What both roundings
take off is carried: it is added to the same elements of the next sum, so nothing is lost for good. A sum of gradients
is divided by the weight of its batch later, and weights differ, so what is carried is of the quotient.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from paren.ir.types import DType
from paren.parallel.tree import sum_as_tree
from paren.runtime.memory import Bytes, allocate
from paren.text.size import show_bytes

Floats = npt.NDArray[np.float32]
Half = npt.NDArray[np.generic]  # bfloat16
Number = TypeVar("Number", bound=np.generic)
BFLOAT16 = DType.BFLOAT16.numpy
ALIGNED = 16  # elements between the beginnings of two shares: 64 bytes
BUCKET = 1 << 20  # elements that are summed at a time: what the buffers of an exchange hold


class Mover(Protocol):
    """Moves bytes among the ranks of one group; this one has the number `place` in it."""

    @property
    def size(self) -> int: ...

    @property
    def place(self) -> int: ...

    def swap(self, sent: Sequence[Bytes], received: Sequence[Bytes]) -> None:
        """`sent[i]` goes to rank i of the group, and what that sends to this rank fills `received[i]`, which is as
        long. What is at this rank's own place stays where it is."""


@dataclass
class Traffic:
    """Bytes that this rank sent to others within its node and between nodes."""

    within: int = 0
    between: int = 0


@dataclass(frozen=True)
class Exchanged:
    """What the sums of some steps took on this rank: seconds in which gradients were sent, awaited and added, those of
    them in which it computed meanwhile, and the bytes that it sent within its node and between nodes."""

    steps: int = 0
    seconds: float = 0.0
    hidden: float = 0.0
    within: int = 0
    between: int = 0

    def plus(self, other: Exchanged) -> Exchanged:
        """Both together."""
        return Exchanged(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))

    def __str__(self) -> str:
        """`41 ms a step, 60 % of it beside the backward, 43.2 MiB sent within the node and 21.6 MiB between nodes`."""
        steps = max(1, self.steps)
        share = 100 * self.hidden / max(self.seconds, 1e-9)
        ways = ((self.within, "within the node"), (self.between, "between nodes"))
        sent = " and ".join(f"{show_bytes(size // steps)} {where}" for size, where in ways if size)
        return f"{1e3 * self.seconds / steps:.3g} ms a step, {share:.0f} % of it beside the backward, {sent} sent"


NO_STEPS = Exchanged()


class Exchange:
    """The sums of one rank over vectors float32[length]. `within` are the ranks of its node, `between` those of the
    same place on all nodes.

    `traffic` counts what was sent. `carried` is what rounding took off this rank's shares so far, divided by `weight`,
    which is set before each sum, in float32, in the order of the buckets (see `owned_ranges`); empty where sums travel
    exactly. With `tree`, sums are those of `paren.parallel.tree`.
    """

    def __init__(self, within: Mover, between: Mover, length: int, rounds: bool, tree: bool = False) -> None:
        self._sum: Callable[[Sequence[Floats]], Floats] = _sum_tree if tree else sum_in_order
        self.within = within
        self.between = between
        self.traffic = Traffic()
        self.weight = 1.0
        self.buckets = buckets(length)
        rounds = rounds and between.size > 1
        needs = Needs.of(length, within.size, between.size, rounds)
        self._received = allocate(needs.received)
        self._rounded = allocate(needs.rounded).view(BFLOAT16)
        self._wide = allocate(needs.wide).view(np.float32)
        owned = owned_ranges(length, within.size, within.place)
        self._begins = [0]
        for begin, end in owned:
            self._begins.append(self._begins[-1] + end - begin)
        self.carried = np.zeros(self._begins[-1] if rounds else 0, np.float32)

    def carried_in(self, number: int) -> Floats:
        """The part of `carried` that belongs to a bucket."""
        return self.carried[self._begins[number] : self._begins[number + 1]]

    def sum_bucket(self, number: int, part: Floats) -> None:
        """Replaces one bucket of a vector by its sum over all ranks."""

        def between(own: Floats) -> None:
            if self.carried.size:
                self._sum_rounded(own, self.carried_in(number))
            elif self.between.size > 1:
                self.traffic.between += self._sum_over(self.between, own)

        if self.within.size == 1:
            between(part)
        else:
            self.traffic.within += self._sum_over(self.within, part, between)

    def _sum_over(self, mover: Mover, part: Floats, also: Callable[[Floats], None] | None = None) -> int:
        """Replaces a part by its sum over the ranks of a group, on which `also` works before they gather it. Gives the
        bytes that this rank sent."""
        shares = _cut(part, mover.size)
        own = shares[mover.place]
        rows = self._rows(mover, own)
        mover.swap(_bytes(shares), _bytes(rows))
        total = self._sum(rows)
        if total is not own:
            own[...] = total
        if also is not None:
            also(own)
        mover.swap(_bytes([own] * mover.size), _bytes(shares))
        return part.nbytes - own.nbytes + own.nbytes * (mover.size - 1)

    def _sum_rounded(self, own: Floats, carried: Floats) -> None:
        """The same between nodes, in bfloat16."""
        mover = self.between
        rounded, wide = self._rounded[: own.size], self._wide[: own.size]
        counts = np.isfinite(self.weight) and self.weight != 0.0  # else the sum is not used, and nothing comes of it
        if counts:
            np.multiply(carried, np.float32(self.weight), out=wide)
            own += wide
        _round(own, rounded, wide)
        if counts:
            np.subtract(own, wide, out=carried)
        parts = _cut(rounded, mover.size)
        mine = parts[mover.place]
        rows = self._rows(mover, mine)
        mover.swap(_bytes(parts), _bytes(rows))
        total = wide[: mine.size]
        total[...] = rows[0]
        for row in rows[1:]:
            np.add(total, row, out=total)
        again = own[: mine.size]  # the whole of `own` is filled below
        _round(total, mine, again)
        if counts:
            total -= again
            begin = _edges(own.size, mover.size)[mover.place]
            carried[begin : begin + mine.size] += total
            carried /= np.float32(self.weight)
            if not np.isfinite(carried.sum()):  # of what is not finite, nothing is to be added to later sums
                carried[~np.isfinite(carried)] = 0.0
        mover.swap(_bytes([mine] * mover.size), _bytes(parts))
        own[...] = rounded
        self.traffic.between += rounded.nbytes - mine.nbytes + mine.nbytes * (mover.size - 1)

    def _rows(self, mover: Mover, own: npt.NDArray[Number]) -> list[npt.NDArray[Number]]:
        """What every rank's share is received in, in rank order; this rank's own is where it is."""
        others = self._received[: own.nbytes * (mover.size - 1)].view(own.dtype).reshape(mover.size - 1, own.size)
        return [*others[: mover.place], own, *others[mover.place :]]


@dataclass(frozen=True)
class Needs:
    """Bytes of the buffers of an exchange: what others sent, a share in bfloat16, and a share that was rounded, as it
    is then, in float32. `carried`: what rounding took off a rank's shares."""

    received: int
    rounded: int
    wide: int
    carried: int

    @classmethod
    def of(cls, length: int, here: int, nodes: int, rounds: bool) -> Needs:
        """For vectors float32[length] over so many nodes of `here` ranks."""
        bucket = min(length, BUCKET)
        share = _largest(bucket, here)
        half = _largest(share, nodes)
        within, between = 4 * share * (here - 1), (2 if rounds else 4) * half * (nodes - 1)
        carried = sum(_largest(end - begin, here) for begin, end in buckets(length)) if rounds else 0
        # An exchange between nodes is made while the shares within one are no longer needed.
        return cls(max(within, between), 2 * share if rounds else 0, 4 * share if rounds else 0, 4 * carried)

    @property
    def bytes(self) -> int:
        """Of the buffers."""
        return self.received + self.rounded + self.wide


def sum_in_order(parts: Sequence[Floats]) -> Floats:
    """The sum of parts, the first two first, in place of the first."""
    return functools.reduce(_add, parts)


def _sum_tree(parts: Sequence[Floats]) -> Floats:
    return sum_as_tree(parts, _add)


def _add(left: Floats, right: Floats) -> Floats:
    left += right
    return left


def _round(given: Floats, rounded: Half, wide: Floats) -> None:
    """Fills `rounded` with the values in bfloat16, and `wide` with those in float32."""
    with np.errstate(over="ignore"):
        rounded[...] = given
    wide[...] = rounded


def buckets(length: int) -> list[tuple[int, int]]:
    """Where a vector of `length` elements is cut: (begin, end) of each bucket."""
    return [(begin, min(begin + BUCKET, length)) for begin in range(0, length, BUCKET)]


def owned_ranges(length: int, here: int, place: int) -> Iterator[tuple[int, int]]:
    """The elements (begin, end) of each bucket that the rank of a place in its node, of `here` ranks, adds up."""
    for begin, end in buckets(length):
        edges = _edges(end - begin, here)
        yield begin + edges[place], begin + edges[place + 1]


def _edges(size: int, count: int) -> list[int]:
    """Where so many elements are cut into `count` shares, the last of which may be shorter, or empty."""
    share = _largest(size, count)
    return [min(number * share, size) for number in range(count + 1)]


def _largest(size: int, count: int) -> int:
    """Elements of the largest of `count` shares of so many."""
    return -(-size // count // ALIGNED) * ALIGNED if count > 1 else size


def _cut(part: npt.NDArray[Number], count: int) -> list[npt.NDArray[Number]]:
    return [part[begin:end] for begin, end in pairwise(_edges(part.size, count))]


def _bytes(arrays: Sequence[npt.NDArray[np.generic]]) -> list[Bytes]:
    return [array.view(np.uint8) for array in arrays]

"""Sums over ranks in a fixed order. Ranks only send each other bytes: what is added, in which order, is said here.

Vectors lie in host memory and are added by numpy, or on cards, which send and add them (`paren.parallel.cards`).

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
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paren.ir.op import Array
from paren.ir.types import DType
from paren.parallel.tree import sum_as_tree
from paren.runtime.array import AnyArray, AnyBytes, on_host
from paren.runtime.link import Sums
from paren.runtime.memory import allocate
from paren.text.size import show_bytes

Floats = npt.NDArray[np.float32]
BFLOAT16 = DType.BFLOAT16.numpy
ALIGNED = 16  # elements between the beginnings of two shares: 64 bytes
BUCKET = 1 << 20  # elements that are summed at a time: what the buffers of an exchange hold


class Mover(Protocol):
    """Moves bytes among the ranks of one group; this one has the number `place` in it."""

    @property
    def size(self) -> int: ...

    @property
    def place(self) -> int: ...

    def swap(self, sent: Sequence[AnyArray], received: Sequence[AnyArray]) -> None:
        """`sent[i]` goes to rank i of the group, and what that sends to this rank fills `received[i]`, which is as
        long. What is at this rank's own place stays where it is. Bytes."""


class HostSums:
    """The definition, in host memory; shares to be rounded have at most `wide` bytes in float32."""

    def __init__(self, wide: int) -> None:
        self._wide = allocate(wide).view(np.float32)

    def allocate(self, size: int) -> AnyBytes:
        return allocate(size)

    def add(self, own: AnyArray, others: AnyArray, place: int, tree: bool) -> None:
        rows = _rows(on_host(own), on_host(others), place)
        total = sum_as_tree(rows, _add) if tree else functools.reduce(_add, rows)
        if total is not own:
            own[...] = total

    def round(self, own: AnyArray, carried: AnyArray, rest: AnyArray, rounded: AnyArray, weight: float | None) -> None:
        value, wide = on_host(own), self._wide[: own.size]
        if weight is not None:
            np.multiply(on_host(carried), np.float32(weight), out=wide)
            np.add(value, wide, out=value)
        with np.errstate(over="ignore"):
            rounded[...] = value
        wide[...] = rounded
        if weight is not None:
            np.subtract(value, wide, out=on_host(rest))

    def add_rounded(self, own: AnyArray, others: AnyArray, place: int, rest: AnyArray, weight: float | None) -> None:
        rows = _rows(on_host(own), on_host(others), place)
        total = self._wide[: own.size]
        total[...] = rows[0]
        for row in rows[1:]:
            np.add(total, row, out=total)
        with np.errstate(over="ignore"):
            own[...] = total
        if weight is not None:
            np.subtract(total, on_host(own), out=total)
            np.add(on_host(rest), total, out=on_host(rest))

    def widen(self, rounded: AnyArray, own: AnyArray, rest: AnyArray, weight: float | None) -> None:
        own[...] = rounded
        if weight is not None:
            carried = on_host(rest)
            np.divide(carried, np.float32(weight), out=carried)
            if not np.isfinite(carried.sum()):
                carried[~np.isfinite(carried)] = 0.0


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
    same place on all nodes; `sums` is the arithmetic where they lie.

    `traffic` counts what was sent. `carried` is what rounding took off this rank's shares so far, divided by `weight`,
    which is set before each sum, in float32, in the order of the buckets (see `owned_ranges`); empty where sums travel
    exactly. With `tree`, sums are those of `paren.parallel.tree`. Where a sum `may_be_dropped`, what is carried changes
    only once it is accepted.
    """

    def __init__(
        self,
        within: Mover,
        between: Mover,
        sums: Sums,
        length: int,
        rounds: bool,
        tree: bool = False,
        may_be_dropped: bool = False,
    ) -> None:
        self.within = within
        self.between = between
        self.traffic = Traffic()
        self.weight = 1.0
        self.buckets = buckets(length)
        self._sums = sums
        self._tree = tree
        rounds = rounds and between.size > 1
        needs = Needs.of(length, within.size, between.size, rounds)
        self._received = sums.allocate(needs.received)
        self._rounded = sums.allocate(needs.rounded).view(BFLOAT16)
        owned = owned_ranges(length, within.size, within.place)
        self._begins = [0]
        for begin, end in owned:
            self._begins.append(self._begins[-1] + end - begin)
        size = 4 * self._begins[-1] if rounds else 0
        self.carried = sums.allocate(size).view(np.float32)
        self._rest = sums.allocate(size).view(np.float32) if may_be_dropped else self.carried

    def carried_in(self, number: int) -> AnyArray:
        """The part of `carried` that belongs to a bucket."""
        return self.carried[self._begins[number] : self._begins[number + 1]]

    def accept(self) -> None:
        """The last sum is used: what rounding took off is carried."""
        self.carried, self._rest = self._rest, self.carried

    def sum_bucket(self, number: int, part: AnyArray) -> None:
        """Replaces one bucket of a vector by its sum over all ranks."""

        def between(own: AnyArray) -> None:
            if self.carried.size:
                rest = self._rest[self._begins[number] : self._begins[number + 1]]
                self._sum_rounded(own, self.carried_in(number), rest)
            elif self.between.size > 1:
                self.traffic.between += self._sum_over(self.between, own)

        if self.within.size == 1:
            between(part)
        else:
            self.traffic.within += self._sum_over(self.within, part, between)

    def _sum_over(self, mover: Mover, part: AnyArray, also: Callable[[AnyArray], None] | None = None) -> int:
        """Replaces a part by its sum over the ranks of a group, on which `also` works before they gather it. Gives the
        bytes that this rank sent."""
        shares = _cut(part, mover.size)
        own = shares[mover.place]
        others = self._others(mover, own)
        mover.swap(_bytes(shares), _bytes(_among(others, own, mover)))
        self._sums.add(own, others, mover.place, self._tree)
        if also is not None:
            also(own)
        mover.swap(_bytes([own] * mover.size), _bytes(shares))
        return part.nbytes - own.nbytes + own.nbytes * (mover.size - 1)

    def _sum_rounded(self, own: AnyArray, carried: AnyArray, rest: AnyArray) -> None:
        """The same between nodes, in bfloat16."""
        mover, rounded = self.between, self._rounded[: own.size]
        # A sum without a weight is not used, and nothing comes of it.
        weight = self.weight if np.isfinite(self.weight) and self.weight != 0.0 else None
        self._sums.round(own, carried, rest, rounded, weight)
        parts = _cut(rounded, mover.size)
        mine = parts[mover.place]
        others = self._others(mover, mine)
        mover.swap(_bytes(parts), _bytes(_among(others, mine, mover)))
        begin = _edges(own.size, mover.size)[mover.place]
        self._sums.add_rounded(mine, others, mover.place, rest[begin : begin + mine.size], weight)
        mover.swap(_bytes([mine] * mover.size), _bytes(parts))
        self._sums.widen(rounded, own, rest, weight)
        self.traffic.between += rounded.nbytes - mine.nbytes + mine.nbytes * (mover.size - 1)

    def _others(self, mover: Mover, own: AnyArray) -> AnyArray:
        """Where the shares of the other ranks are received, one after another in their order."""
        return self._received[: own.nbytes * (mover.size - 1)].view(own.dtype)


@dataclass(frozen=True)
class Needs:
    """Bytes of the buffers of an exchange: what others sent, a share in bfloat16, and in host memory a share that was
    rounded, as it is then, in float32. `carried`: what rounding took off a rank's shares."""

    received: int
    rounded: int
    wide: int
    carried: int

    @classmethod
    def of(cls, length: int, here: int, nodes: int, rounds: bool, may_be_dropped: bool = False) -> Needs:
        """For vectors float32[length] over so many nodes of `here` ranks; the flags are those of `Exchange`."""
        bucket = min(length, BUCKET)
        share = _largest(bucket, here)
        half = _largest(share, nodes)
        within, between = 4 * share * (here - 1), (2 if rounds else 4) * half * (nodes - 1)
        carried = sum(_largest(end - begin, here) for begin, end in buckets(length)) if rounds else 0
        # An exchange between nodes is made while the shares within one are no longer needed.
        vectors = 8 * carried if may_be_dropped else 4 * carried
        return cls(max(within, between), 2 * share if rounds else 0, 4 * share if rounds else 0, vectors)

    @property
    def bytes(self) -> int:
        """Of the buffers in host memory."""
        return self.received + self.rounded + self.wide

    @property
    def on_cards(self) -> int:
        """Of the buffers where cards add: their kernels keep in registers what numpy needs an array for."""
        return self.received + self.rounded


def _rows(own: Array, others: Array, place: int) -> list[Array]:
    """The rows of all ranks in their order."""
    rows = list(others.reshape(-1, own.size)) if own.size else []
    return [*rows[:place], own, *rows[place:]]


def _add(left: Array, right: Array) -> Array:
    np.add(left, right, out=left)
    return left


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


def _cut(part: AnyArray, count: int) -> list[AnyArray]:
    return [part[begin:end] for begin, end in pairwise(_edges(part.size, count))]


def _among(others: AnyArray, own: AnyArray, mover: Mover) -> list[AnyArray]:
    """The places of all ranks' shares in rank order: this rank's own is where it is."""
    found = [others[number * own.size : (number + 1) * own.size] for number in range(mover.size - 1)]
    return [*found[: mover.place], own, *found[mover.place :]]


def _bytes(arrays: Sequence[AnyArray]) -> list[AnyArray]:
    return [array.view(np.uint8) for array in arrays]

"""Sums over ranks in a fixed order. Collectives only move bytes: what is added, and in which order, is said here.

Within a node every rank gets one shard of each vector from all ranks of the node, adds them in rank order, and, with
several nodes, exchanges the sum of its shard with the ranks of the same place on the other nodes, whose sums are added
in node order. Then the shards are gathered. That moves the bytes of a ring's all-reduce, and every rank ends with the
same bits.

Between nodes a sum may travel in bfloat16. What rounding takes off is carried: it is added to the same shard of the
next sum before that is rounded, so nothing is lost for good.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paren.ir.types import DType
from paren.parallel.tree import sum_as_tree

Floats = npt.NDArray[np.float32]
BFLOAT16 = DType.BFLOAT16.numpy
ALIGNED = 16  # elements between the beginnings of two shards: 64 bytes
BUCKET = 8 << 20  # elements that are exchanged at a time: what the buffers of an exchange hold


class Mover(Protocol):
    """Moves bytes among the ranks of one group. Arrays are C-contiguous, on the host, and of equal sizes everywhere."""

    @property
    def size(self) -> int:
        """How many ranks the group has."""

    def scatter(self, sent: npt.NDArray[np.uint8], received: npt.NDArray[np.uint8]) -> None:
        """Part i of `sent` goes to rank i, whose part comes to place i of `received`."""

    def gather(self, sent: npt.NDArray[np.uint8], received: npt.NDArray[np.uint8]) -> None:
        """`sent` of every rank, in rank order, comes to `received`."""


@dataclass
class Traffic:
    """Bytes that this rank sent to others so far, within its node and between nodes."""

    within: int = 0
    between: int = 0


class Exchange:
    """The sums of one rank. `within` are the ranks of its node, `between` those of the same place on all nodes.

    `carried` is what rounding took off this rank's shards so far, float32 in the order of `sum_vector`'s shards; None
    where sums travel exactly. With `tree`, sums are those of `paren.parallel.tree`.
    """

    def __init__(self, within: Mover, between: Mover, length: int, rounds: bool, tree: bool = False) -> None:
        self._sum: Callable[[Floats], Floats] = (lambda parts: sum_as_tree(parts, _add)) if tree else sum_in_order
        self.within = within
        self.between = between
        self.traffic = Traffic()
        self._buckets = buckets(length, within.size)
        self._received = np.empty((within.size, max(size for _, size in self._buckets)), np.float32)
        rounds = rounds and between.size > 1
        self.carried = np.zeros(sum(size for _, size in self._buckets), np.float32) if rounds else None

    def sum_vector(self, vector: Floats) -> None:
        """Replaces float32[length] by its sum over all ranks."""
        done = 0
        for begin, shard in self._buckets:
            whole = shard * self.within.size
            part = vector[begin : begin + whole]
            if part.size < whole:  # only the last bucket may be short
                padded = np.zeros(whole, np.float32)
                padded[: part.size] = part
                self._sum_bucket(padded, shard, done)
                part[...] = padded[: part.size]
            else:
                self._sum_bucket(part, shard, done)
            done += shard

    def _sum_bucket(self, part: Floats, shard: int, done: int) -> None:
        """The sum of one whole bucket, whose shard of this rank is `done` elements into what is carried."""
        own = self._sum_within(part, self._received[:, :shard])
        if self.between.size > 1:
            carried = None if self.carried is None else self.carried[done : done + shard]
            self._sum_between(own, carried)
        if self.within.size > 1:
            self.within.gather(_bytes(own), _bytes(part))
            self.traffic.within += own.nbytes * (self.within.size - 1)

    def _sum_within(self, part: Floats, received: Floats) -> Floats:
        """This rank's shard, summed over the node in rank order."""
        if self.within.size == 1:
            return part
        shards = received if received.flags.c_contiguous else np.empty_like(received)
        self.within.scatter(_bytes(part), _bytes(shards))
        self.traffic.within += shards[0].nbytes * (self.within.size - 1)
        return self._sum(shards)

    def _sum_between(self, own: Floats, carried: Floats | None) -> None:
        """Adds the other nodes' sums of the same shard, in node order."""
        if carried is None:
            every = np.empty((self.between.size, own.size), np.float32)
            self.between.gather(_bytes(own), _bytes(every))
            self.traffic.between += own.nbytes * (self.between.size - 1)
        else:
            own += carried
            rounded = own.astype(BFLOAT16)
            carried[...] = own - rounded.astype(np.float32)
            short = np.empty((self.between.size, own.size), BFLOAT16)
            self.between.gather(_bytes(rounded), _bytes(short))
            self.traffic.between += rounded.nbytes * (self.between.size - 1)
            every = short.astype(np.float32)
        own[...] = self._sum(every)


def sum_in_order(parts: npt.NDArray[np.float32]) -> Floats:
    """The sum of float32[parts n] over the parts, the first two first, in place of the first."""
    return functools.reduce(_add, parts)


def _add(left: Floats, right: Floats) -> Floats:
    left += right
    return left


def buckets(length: int, ranks: int, most: int = BUCKET) -> list[tuple[int, int]]:
    """Where a vector of `length` elements is cut: (begin, size of a shard) of each bucket of `ranks` shards."""
    shard = max(ALIGNED, most // ranks // ALIGNED * ALIGNED)
    found = []
    for begin in range(0, length, shard * ranks):
        left = -(-(length - begin) // ranks)
        found.append((begin, min(shard, -(-left // ALIGNED) * ALIGNED)))
    return found


def _bytes(array: npt.NDArray[np.generic]) -> npt.NDArray[np.uint8]:
    return array.reshape(-1).view(np.uint8)

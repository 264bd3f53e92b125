"""Sums whose order is a tree: neighbours first, then neighbours of those. It is the same tree however its leaves are
shared out, as long as each share is a power of two of them.

So with `:reproducible-over N` the sums over N groups of microbatches have the same bits on 1, 2, 4, ... ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np

from paren.ir.op import Array
from paren.ir.program import Program
from paren.text.errors import ParenError

T = TypeVar("T")


@dataclass(frozen=True)
class Leaf:
    """The sums of some microbatches."""

    gradients: Array
    loss: float
    weight: float

    def plus(self, other: Leaf) -> Leaf:
        """Both together; the gradients in the place of the first's."""
        np.add(self.gradients, other.gradients, out=self.gradients)
        return Leaf(self.gradients, self.loss + other.loss, self.weight + other.weight)


class Tree(Generic[T]):
    """Adds parts as they come. It holds one sum for each power of two in their number."""

    def __init__(self, add: Callable[[T, T], T]) -> None:
        self._add = add
        self._sums: list[tuple[int, T]] = []  # (leaves, sum), larger ones first

    def take(self, part: T) -> None:
        """Adds the next part."""
        leaves = 1
        while self._sums and self._sums[-1][0] == leaves:
            part = self._add(self._sums.pop()[1], part)
            leaves *= 2
        self._sums.append((leaves, part))

    def total(self) -> T:
        """The sum of all parts, of which there is at least one."""
        _, total = self._sums[-1]
        for _, part in reversed(self._sums[:-1]):
            total = self._add(part, total)
        return total


def sum_as_tree(parts: Iterable[T], add: Callable[[T, T], T]) -> T:
    """The sum of at least one part."""
    tree = Tree(add)
    for part in parts:
        tree.take(part)
    return tree.total()


def leaves_in(program: Program) -> int:
    """The leaves that each rank adds as a tree; 1 where it adds all in a row."""
    over = program.run.reproducible_over
    return 1 if over is None else over // program.ranks


def held_sums(program: Program) -> int:
    """The most sums that a rank's tree holds at once, the newest leaf included; none where there is no tree."""
    leaves = leaves_in(program)
    return leaves.bit_length() if leaves > 1 else 0


def place_of(leaf: int) -> int:
    """The place of a leaf, counted from 0, among those of the sums that a tree holds: the first that is free, as a sum
    of two lies where the first of them did."""
    return leaf.bit_count()


def leaves_of(reproducible_over: int, ranks: int) -> int:
    """The leaves of each rank. Raises E-DP-003 unless they are a power of two."""
    each, rest = divmod(reproducible_over, ranks)
    if rest == 0 and each & (each - 1) == 0:
        return each
    fitting = [reproducible_over >> power for power in range(reproducible_over.bit_length())]
    good = sorted({count for power, count in enumerate(fitting) if count and count << power == reproducible_over})
    raise ParenError(
        "E-DP-003",
        f":reproducible-over {reproducible_over} is not the same on {ranks} ranks",
        fix=f"take {' or '.join(map(str, good))} of them, or another :reproducible-over",
    )

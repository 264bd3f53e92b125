"""What rounding between nodes took off the sums of gradients, brought together for a checkpoint and shared out again.

Every rank holds it for the elements that it adds up. A checkpoint holds it by node and parameter, so that it fits any
number of ranks on a node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from paren.ir.op import Array
from paren.parallel.exchange import Exchange, Floats, owned_ranges
from paren.parallel.ranks import Ranks
from paren.runtime.array import AnyArray

ROLE = "carried"  # of its slots in a checkpoint
NOTHING = np.zeros(0, np.uint8)


def carried_slot(parameter: str, node: int) -> str:
    """The name of what a node carries for a parameter. No other slot has a space in its name."""
    return f"{parameter}/{ROLE} {node}"


class Carried:
    """What all ranks carry. `slots`: name -> live view of what a node carries for a parameter, on the rank that writes
    checkpoints; none on others. `views` gives the parameters' parts of a vector of gradients."""

    def __init__(
        self, ranks: Ranks, exchange: Exchange, length: int, views: Callable[[Floats], Mapping[str, Array]]
    ) -> None:
        self._ranks = ranks
        self._exchange = exchange
        self._length = length
        nodes = exchange.between.size
        self._vectors = np.zeros((nodes, length) if ranks.leads else (0, 0), np.float32)
        self.slots = {
            carried_slot(name, node): view
            for node, vector in enumerate(self._vectors)
            for name, view in views(vector).items()
        }

    def gather(self) -> None:
        """Fills `slots` with what all ranks carry now. All ranks call it."""
        for own, of_ranks in self._pieces():
            received: list[AnyArray] = [NOTHING] * self._ranks.count
            sent: list[AnyArray] = [NOTHING] * self._ranks.count
            if self._ranks.leads:
                of_ranks[0][...] = own
                received = [piece.view(np.uint8) for piece in of_ranks]
            else:
                sent[0] = np.asarray(own).view(np.uint8)
            self._ranks.groups.every.swap(sent, received)

    def spread(self) -> None:
        """Lets every rank carry its part of what is in `slots`. All ranks call it."""
        for own, of_ranks in self._pieces():
            received: list[AnyArray] = [NOTHING] * self._ranks.count
            sent: list[AnyArray] = [NOTHING] * self._ranks.count
            values = np.empty(own.shape, np.float32)
            if self._ranks.leads:
                values[...] = of_ranks[0]
                sent = [piece.view(np.uint8) for piece in of_ranks]
            else:
                received[0] = values.view(np.uint8)
            self._ranks.groups.every.swap(sent, received)
            own[...] = values

    def _pieces(self) -> Iterator[tuple[AnyArray, list[Floats]]]:
        """For each bucket what this rank carries, and on the rank that writes the places of what each rank does."""
        here = self._exchange.within.size
        ranges = [list(owned_ranges(self._length, here, place)) for place in range(here)]
        for number in range(len(ranges[0])):
            pieces = [vector[slice(*ranges[place][number])] for vector in self._vectors for place in range(here)]
            yield self._exchange.carried_in(number), pieces

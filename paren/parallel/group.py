"""The process groups of a run, over torch.distributed: Gloo for the CPU. Nothing is imported before a run has ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from paren.parallel.store import Store
from paren.parallel.topology import Topology
from paren.runtime.array import AnyArray, on_host
from paren.text.errors import first_line

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Bytes = npt.NDArray[np.uint8]
Meeting = Callable[[], AbstractContextManager[None]]  # a block in which a rank waits for others


class PeerLost(Exception):
    """Another rank left in the middle of an exchange: not the cause of anything, but its consequence."""


@contextmanager
def peers() -> Iterator[None]:
    """A block in which an error of torch's exchanges or stores means that another rank left. Raises PeerLost."""
    try:
        yield
    except RuntimeError as error:
        raise PeerLost(first_line(error)) from error


class Group:
    """Moves bytes among some ranks of a run: the `Mover` of an exchange. `place` is this rank's number among them.
    Every move is a `meeting`."""

    def __init__(self, ranks: Sequence[int], rank: int, group: ProcessGroup, meeting: Meeting) -> None:
        self.ranks = tuple(ranks)
        self.place = self.ranks.index(rank)
        self._group = group
        self._meeting = meeting

    @property
    def size(self) -> int:
        """How many ranks the group has."""
        return len(self.ranks)

    def swap(self, sent: Sequence[AnyArray], received: Sequence[AnyArray]) -> None:
        """`sent[i]` goes to rank i of the group, and what that sends to this rank fills `received[i]`, which is as
        long. What is at this rank's own place stays where it is.

        These are messages from one to another, which go straight from array to array: the library's collectives copy
        what they move, some of them into memory that they allocate at each call.
        """
        import torch  # only where a run has several ranks
        import torch.distributed as distributed

        others = [(place, rank) for place, rank in enumerate(self.ranks) if place != self.place]
        with peers(), self._meeting():
            under_way = [
                post(torch.from_numpy(on_host(arrays[place])), rank, self._group)
                for post, arrays in ((distributed.irecv, received), (distributed.isend, sent))
                for place, rank in others
                if arrays[place].size
            ]
            for message in under_way:
                assert message is not None  # None is for ranks outside the group
                message.wait()

    def gather(self, sent: Bytes, received: Bytes) -> None:
        """`sent` of every rank comes to `received`, in the order of the group."""
        places = received.reshape(self.size, sent.size)
        places[self.place] = sent
        self.swap([sent] * self.size, list(places))

    def broadcast(self, content: Bytes) -> None:
        """`content` of the group's first rank comes to all."""
        import torch  # only where a run has several ranks
        import torch.distributed as distributed

        with peers(), self._meeting():
            distributed.broadcast(torch.from_numpy(content), src=self.ranks[0], group=self._group)


class Groups:
    """The groups that a rank belongs to: `within` its node, `between` the ranks of its place on all nodes, and `every`
    rank. Close it when the run is over."""

    def __init__(self, topology: Topology, rank: int, store: Store, timeout: float, meeting: Meeting) -> None:
        import torch.distributed as distributed  # only where a run has several ranks

        here, limit = len(topology.devices), timedelta(seconds=timeout)
        with peers(), meeting():
            distributed.init_process_group(
                "gloo",
                store=store,  # type: ignore[arg-type]  # torch's own, by the part of it that is used
                rank=rank,
                world_size=topology.ranks,
                timeout=limit,
            )
        # Every rank makes every group, in one order, as torch demands.
        rows = [tuple(range(node * here, (node + 1) * here)) for node in range(topology.nodes)]
        columns = [tuple(range(place, topology.ranks, here)) for place in range(here)]
        with peers(), meeting():
            made = {ranks: distributed.new_group(ranks, timeout=limit) for ranks in dict.fromkeys([*rows, *columns])}
        self.within = Group(rows[rank // here], rank, made[rows[rank // here]], meeting)
        self.between = Group(columns[rank % here], rank, made[columns[rank % here]], meeting)
        everyone = tuple(range(topology.ranks))
        whole = distributed.group.WORLD
        assert whole is not None  # made two lines above
        self.every = Group(everyone, rank, whole, meeting)

    def close(self) -> None:
        """Leaves all groups."""
        import torch.distributed as distributed  # loaded already

        distributed.destroy_process_group()

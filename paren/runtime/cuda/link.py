"""Cards of several ranks that send each other arrays through NCCL and add them, beside what they compute."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paren.runtime.array import AnyArray, DeviceArray
from paren.runtime.cuda import sums
from paren.runtime.cuda.driver import Driver, Lane
from paren.runtime.cuda.nccl import Communicator, Nccl, new_identity
from paren.runtime.link import LinkLost
from paren.text.errors import InternalError

PAUSE = 5e-5  # seconds between two looks whether the work has ended
LOOKS = 2000  # between two at the connection
ENDED = "the connection of the cards has ended"
LEAVING = 5.0  # seconds for an end of the connection: the library may wait for what is no longer there


@dataclass(frozen=True)
class _Connection:
    """What a card has while it is connected: all of it is there before a run allocates."""

    communicator: Communicator
    lane: Lane
    functions: Mapping[str, object]


class CardLink:
    """The `Link` of a card. `load` makes functions of a text, by their names."""

    def __init__(
        self,
        driver: Driver,
        load: Callable[[str, Sequence[str]], Mapping[str, object]],
        allocate: Callable[[int], DeviceArray],
    ) -> None:
        self._driver = driver
        self._load = load
        self.allocate = allocate
        self.unused = ""
        self._connection: _Connection | None = None

    @cached_property
    def _found(self) -> Nccl | str:
        """The library, or why there is none."""
        try:
            return Nccl()
        except LinkLost as error:
            return str(error)

    @property
    def _library(self) -> Nccl:
        if isinstance(self._found, str):
            raise InternalError("cuda", self._found)
        return self._found

    @property
    def refusal(self) -> str:
        return self._found if isinstance(self._found, str) else ""

    @property
    def version(self) -> str:
        return self._library.version

    @property
    def identity(self) -> str:
        return self._driver.identity

    def invite(self) -> bytes:
        return new_identity(self._library)

    def connect(self, invitation: bytes, count: int, rank: int) -> None:
        self._driver.enter()
        lane, functions = self._driver.lane(), self._load(sums.SUMS, sums.NAMES)
        communicator = Communicator(self._library, invitation, count, rank)
        self._connection = _Connection(communicator, lane, functions)

    def close(self) -> None:
        self._leave(Communicator.destroy)

    def abort(self) -> None:
        self._leave(Communicator.abort)

    def _leave(self, how: Callable[[Communicator], None]) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return

        def leave() -> None:
            self._driver.enter()
            how(connection.communicator)

        thread = threading.Thread(target=leave, name="paren-leave", daemon=True)
        thread.start()
        thread.join(LEAVING)

    # Work -----------------------------------------------------------------------------------------------------------

    @property
    def _connected(self) -> _Connection:
        connection = self._connection
        if connection is None:
            raise LinkLost(ENDED)
        return connection

    def swap(self, sent: Sequence[tuple[int, AnyArray]], received: Sequence[tuple[int, AnyArray]]) -> None:
        self._driver.enter()
        given = [[(rank, _address(array), array.nbytes) for rank, array in moves] for moves in (sent, received)]
        connection = self._connected
        connection.communicator.swap(given[0], given[1], connection.lane.stream)

    def mark(self) -> object:
        return self._driver.mark()

    def point(self) -> object:
        return self._connected.lane.point()

    def follow(self, mark: object) -> None:
        self._connected.lane.follow(mark)

    def wait(self) -> None:
        connection, looks = self._connected, 0
        last = connection.lane.point()
        while not connection.lane.reached(last):
            looks += 1
            if looks % LOOKS == 0:
                self._connected.communicator.check()
            time.sleep(PAUSE)
        if self._connection is not connection:  # what an abort cuts off ends too, without its data
            raise LinkLost(ENDED)

    def seconds(self, first: object, second: object) -> float:
        return self._driver.seconds(first, second)

    def read(self, array: AnyArray) -> float:
        value = np.empty(1, array.dtype)
        self._connected.lane.download(_address(array), value)
        return float(value[0])

    # Sums -----------------------------------------------------------------------------------------------------------

    def add(self, own: AnyArray, others: AnyArray, place: int, tree: bool) -> None:
        self._start(
            sums.ADD_TREE if tree else sums.ADD, own, _address(own), _address(others), *_order(own, others, place)
        )

    def round(self, own: AnyArray, carried: AnyArray, rest: AnyArray, rounded: AnyArray, weight: float | None) -> None:
        addresses = [_address(each) for each in (own, carried, rest, rounded)]
        self._start(sums.ROUND, own, *addresses, *_words(weight))

    def add_rounded(self, own: AnyArray, others: AnyArray, place: int, rest: AnyArray, weight: float | None) -> None:
        order = _order(own, others, place)
        counts = int(weight is not None)
        self._start(sums.ADD_ROUNDED, own, _address(own), _address(others), _address(rest), *order, counts)

    def widen(self, rounded: AnyArray, own: AnyArray, rest: AnyArray, weight: float | None) -> None:
        self._start(sums.WIDEN, own, _address(rounded), _address(own), _address(rest), *_words(weight))

    def _start(self, name: str, of: AnyArray, *arguments: int) -> None:
        """Runs a kernel, a unit for each element of an array."""
        if of.size:
            blocks = min(sums.BLOCKS, -(-of.size // sums.THREADS))
            connection = self._connected
            connection.lane.launch(connection.functions[name], blocks, sums.THREADS, (0, 0, of.size, *arguments))


def _order(own: AnyArray, others: AnyArray, place: int) -> tuple[int, int]:
    """How many ranks there are, and the place of this one."""
    return others.size // max(1, own.size) + 1, place


def _words(weight: float | None) -> tuple[int, int]:
    """A weight as the bits of a float32, and whether there is one."""
    return int(np.float32(weight or 0.0).view(np.uint32)), int(weight is not None)


def _address(array: AnyArray) -> int:
    if not isinstance(array, DeviceArray):
        raise InternalError("cuda", f"an array of {array.dtype} lies in host memory")
    return array.address

"""What the CUDA device needs of a card: a handful of verbs, so that everything above them runs in tests without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from paren.ir.op import Array
from paren.plan.epilogue import Epilogue
from paren.plan.plan import Attention
from paren.runtime.array import Transfers
from paren.runtime.cuda.products import Gemm


class OutOfMemoryError(Exception):
    """The card refused memory; the text is what it said."""


class Lane(Protocol):
    """A second stream of a card, in whose order things happen beside those of the first. Any thread may call it, also
    while another makes a capture; nothing of it is captured."""

    stream: int  # as libraries take it

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        """As a driver's."""

    def follow(self, mark: object) -> None:
        """What is started here from now on waits for a mark of the first stream."""

    def point(self) -> object:
        """A mark of this stream."""

    def reached(self, point: object) -> bool:
        """Whether all before a point has ended. Raises `InternalError` for what failed."""

    def download(self, address: int, target: Array) -> None:
        """Fills `target`, after what was started here; waits for it."""


class Driver(Transfers, Protocol):
    """A card with one stream, on which everything happens in order. A call that fails is an `InternalError` with its
    name; what fails later is one at `synchronise` or at a transfer.

    `launch`, `copy`, `multiply`, `attend` and `join` return at once. Inside `capture` only these may be called: they
    are recorded and not run.
    """

    card: str  # its name, as "NVIDIA H200"
    architecture: str  # as "sm_90"
    identity: str  # of this very card, on any machine
    libraries: str  # that decide about bits and are not torch's: the package of cuDNN with its version, or nothing

    @property
    def notes(self) -> Sequence[str]:
        """What its libraries did less well than they could, in words."""

    def allocate(self, size: int) -> tuple[int, object]:
        """The address of `size` bytes (above 0) of zeros on 256 bytes, and what keeps them alive. Raises
        `OutOfMemoryError`."""

    def release(self) -> None:
        """Gives memory that nobody uses back to the card."""

    def load(self, image: bytes, name: str) -> object:
        """The function of a module by its name."""

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        """Runs a function on arguments of 8 bytes each."""

    def copy(self, source: int, target: int, size: int) -> None:
        """Copies `size` bytes between two addresses."""

    def multiply(self, gemm: Gemm, left: int, right: int, result: int) -> None:
        """One call of the library for products; the addresses are those of the first matrices."""

    def attend(self, step: Attention, addresses: Mapping[int, int]) -> None:
        """A step of attention whose buffers lie at these addresses, by their ids. Raises `OutOfMemoryError`."""

    def joins(self, epilogue: Epilogue) -> bool:
        """Whether a library computes a product with its epilogue; what it needs for that is made at the first of its
        form. Raises `OutOfMemoryError`."""

    def join(self, epilogue: Epilogue, addresses: Mapping[int, int]) -> None:
        """A product with its epilogue, of a form that it joins; the buffers lie at these addresses, by their ids."""

    def capture(self, issue: Callable[[], None]) -> Callable[[], None]:
        """What `issue` starts as one graph: each call of the result runs it all, and returns at once."""

    def elapsed(self, start: Callable[[], object]) -> float:
        """Seconds, by the card's own clock, of what `start` starts; waits for its end."""

    def synchronise(self) -> None:
        """Waits until everything that was started has ended."""

    def enter(self) -> None:
        """Makes the card the one that libraries take on this thread."""

    def lane(self) -> Lane:
        """A second stream."""

    def mark(self) -> object:
        """A point behind everything that was started up to now."""

    def seconds(self, first: object, second: object) -> float:
        """The time, by the card's own clock, between two marks that have been reached, of either stream."""

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the card; what this process holds and does not use is free."""

    def most_used(self) -> int:
        """The most bytes that were allocated at a time since the call before."""


class Compiler(Protocol):
    """Makes machine code of CUDA C."""

    version: str

    def compile(self, text: str, architecture: str) -> bytes:
        """The module of a text. Raises `InternalError` with the compiler's words. May be called on several threads."""

"""What the CUDA device needs of a card: a handful of verbs, so that everything above them runs in tests without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from paren.plan.plan import Attention
from paren.runtime.array import Transfers
from paren.runtime.cuda.products import Gemm


class OutOfMemoryError(Exception):
    """The card refused memory; the text is what it said."""


class Driver(Transfers, Protocol):
    """A card with one stream, on which everything happens in order. A call that fails is an `InternalError` with its
    name; what fails later is one at `synchronise` or at a transfer.

    `launch`, `copy`, `multiply` and `attend` return at once. Inside `capture` only these four may be called: they are
    recorded and not run.
    """

    card: str  # its name, as "NVIDIA H200"
    architecture: str  # as "sm_90"

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

    def capture(self, issue: Callable[[], None]) -> Callable[[], None]:
        """What `issue` starts as one graph: each call of the result runs it all, and returns at once."""

    def elapsed(self, start: Callable[[], object]) -> float:
        """Seconds, by the card's own clock, of what `start` starts; waits for its end."""

    def synchronise(self) -> None:
        """Waits until everything that was started has ended."""

    def memory(self) -> tuple[int, int]:
        """Free and total bytes of the card; what this process holds and does not use is free."""

    def most_used(self) -> int:
        """The most bytes that were allocated at a time since the call before."""


class Compiler(Protocol):
    """Makes machine code of CUDA C."""

    version: str

    def compile(self, text: str, architecture: str) -> bytes:
        """The module of a text. Raises `InternalError` with the compiler's words. May be called on several threads."""

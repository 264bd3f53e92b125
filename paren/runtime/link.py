"""The arithmetic of sums over ranks, and what moves and adds arrays among their devices, without the hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from paren.runtime.array import AnyArray, AnyBytes


class LinkLost(Exception):
    """The devices could not be connected, or another rank left in the middle of an exchange."""


class Sums(Protocol):
    """The arithmetic of an exchange, on arrays of one kind. `others` holds what the other ranks of a group of n sent,
    row after row in their order; `own` is this rank's, which has the number `place`. `weight`: what sums are divided
    by later; with None nothing is carried."""

    def allocate(self, size: int) -> AnyBytes:
        """Bytes, all 0."""

    def add(self, own: AnyArray, others: AnyArray, place: int, tree: bool) -> None:
        """Replaces float32 by the sum over the ranks, in their order or as a tree."""

    def round(self, own: AnyArray, carried: AnyArray, rest: AnyArray, rounded: AnyArray, weight: float | None) -> None:
        """Fills `rounded`, bfloat16, with a share and what is carried for it, both float32. What that takes off goes
        into `rest`, which may be `carried`."""

    def add_rounded(self, own: AnyArray, others: AnyArray, place: int, rest: AnyArray, weight: float | None) -> None:
        """Replaces bfloat16 by the sum over the ranks in their order; what rounding takes off it, `rest` gets too."""

    def widen(self, rounded: AnyArray, own: AnyArray, rest: AnyArray, weight: float | None) -> None:
        """Fills `own` with a rounded share, and divides the rest, which is to be carried for it. Of what is not finite,
        nothing is to be added to later sums."""


class Link(Sums, Protocol):
    """One rank's device among those of all ranks. Work is started and not waited for: it runs in order, beside what the
    device computes, and `follow` says after what of that."""

    unused: str  # why arrays go through the hosts although there is one, as a line of a report; empty if they do not

    @property
    def refusal(self) -> str:
        """Why this device has none, in words; empty where it has one."""

    @property
    def version(self) -> str:
        """What it is, which has to be the same on all ranks: `NCCL 2.28.9`."""

    @property
    def identity(self) -> str:
        """The device itself: no two ranks may be on one."""

    def invite(self) -> bytes:
        """What all ranks are to `connect` with: one of them makes it."""

    def connect(self, invitation: bytes, count: int, rank: int) -> None:
        """Returns when all ranks have called it, on any thread. Raises `LinkLost`."""

    def close(self) -> None:
        """Ends the connection, all of whose work has been awaited."""

    def abort(self) -> None:
        """Ends the connection and what is under way, from any thread, whatever others do."""

    def swap(self, sent: Sequence[tuple[int, AnyArray]], received: Sequence[tuple[int, AnyArray]]) -> None:
        """Each array goes to, or is filled from, the rank beside it, which does the same. Raises `LinkLost`."""

    def mark(self) -> object:
        """A point behind everything that the device was given to compute up to now."""

    def point(self) -> object:
        """A point behind everything that was started here."""

    def follow(self, mark: object) -> None:
        """What is started here from now on waits for a mark."""

    def wait(self) -> None:
        """Returns when everything that was started here has ended. Raises `LinkLost`."""

    def seconds(self, first: object, second: object) -> float:
        """The time between two marks or points that have been reached."""

    def read(self, array: AnyArray) -> float:
        """The value of an array of one element, after what was started here."""

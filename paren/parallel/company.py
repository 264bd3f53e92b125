"""What the training loop asks of the ranks of its run, and the answers where there is one rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from paren.data.loader import WHOLE, Share
from paren.runtime.array import AnyArray


class Company(Protocol):
    """What the training loop asks of the ranks of its run."""

    @property
    def share(self) -> Share:
        """This rank, and how many there are."""

    def at(self, step: int) -> None:
        """Notes how many positions are done, for whoever watches."""

    def doing(self, phase: str) -> None:
        """Notes what this rank does, for whoever watches."""

    def texts(self, own: str) -> list[str]:
        """The texts of all ranks, in their order."""

    def leave_to(self, rank: int) -> None:
        """Lets one rank say why all of them end: does not return on the others."""

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any rank; all ranks ask at the same place."""

    def merge(self, own: Sequence[Sequence[float]], *, turns: bool) -> list[list[float]]:
        """The rows of all ranks, which have equal numbers of columns: rank after rank, or in `turns`, the first of each
        and then the second."""

    def agree(self, slots: Mapping[str, AnyArray], step: int) -> None:
        """Raises E-DP-004 unless all ranks hold the same state."""

    def collect(self) -> None:
        """Brings what only other ranks hold of the state to the rank that writes it."""


class Alone:
    """The company of a run's only rank."""

    share = WHOLE

    def at(self, step: int) -> None:
        """There is nobody to tell."""

    def doing(self, phase: str) -> None:
        """As above."""

    def texts(self, own: str) -> list[str]:
        return [own]

    def leave_to(self, rank: int) -> None:
        """It is this one."""

    def any(self, flag: bool) -> bool:
        return flag

    def merge(self, own: Sequence[Sequence[float]], *, turns: bool) -> list[list[float]]:
        return [list(row) for row in own]

    def agree(self, slots: Mapping[str, AnyArray], step: int) -> None:
        """There is nobody to disagree."""

    def collect(self) -> None:
        """Nobody else holds anything."""


ALONE = Alone()

"""Ranks whose cards exchange gradients themselves. Whether they do is one decision of all ranks; else the hosts do.

The cards of all ranks have one connection, which their groups share.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations

from paren.environment import CARD_GRADIENTS
from paren.parallel.group import Group, Meeting, PeerLost, peers
from paren.parallel.ranks import PAUSE, Ranks
from paren.runtime.array import AnyArray, AnyBytes
from paren.runtime.cuda.requirements import UNCONNECTED
from paren.runtime.link import Link, LinkLost

REFUSED = "cards refused"  # the key under which a rank says that it did not connect


class CardGroup:
    """The `Mover` of the cards of a group."""

    def __init__(self, link: Link, group: Group, meeting: Meeting) -> None:
        self.place = group.place
        self._ranks = group.ranks
        self._link = link
        self._meeting = meeting

    @property
    def size(self) -> int:
        return len(self._ranks)

    def swap(self, sent: Sequence[AnyArray], received: Sequence[AnyArray]) -> None:
        """As a group's; it is started only. A first time the library connects cards here, and waits for the others."""

        def moves(arrays: Sequence[AnyArray]) -> list[tuple[int, AnyArray]]:
            places = range(self.size)
            return [(self._ranks[at], arrays[at]) for at in places if at != self.place and arrays[at].size]

        try:
            with self._meeting():
                self._link.swap(moves(sent), moves(received))
        except LinkLost as error:
            raise PeerLost(str(error)) from error


@dataclass(frozen=True)
class Cards:
    """The connected cards of a run's ranks."""

    link: Link
    within: CardGroup
    between: CardGroup
    meeting: Meeting

    def wait(self) -> None:
        """Returns when all sums that were started have been made."""
        try:
            with self.meeting():
                self.link.wait()
        except LinkLost as error:
            raise PeerLost(str(error)) from error


@contextmanager
def connected(ranks: Ranks, link: Link | None, by_hosts: bool) -> Iterator[tuple[Cards | None, str]]:
    """A block in which the cards of all ranks are connected, as far as they can be and are not to go `by_hosts`, and a
    line that says what is; empty where no rank has a card. If the block is left by an error, what is under way ends."""
    cards, said = _connect(ranks, link, by_hosts)
    if cards is None:
        if link is not None:
            link.unused = said
        yield None, said
        return
    ranks.heart.endings.append(lambda _: cards.link.abort())
    try:
        yield cards, said
    except BaseException:
        cards.link.abort()
        raise
    cards.link.close()


def _connect(ranks: Ranks, link: Link | None, by_hosts: bool) -> tuple[Cards | None, str]:
    facts = {} if link is None else {"refusal": refusal_of(link, by_hosts), "card": link.identity}
    if link is not None and not facts["refusal"]:
        facts["version"] = link.version
    every = [json.loads(text) for text in ranks.texts(json.dumps(facts))]
    if link is None and not any(every):
        return None, ""
    reason = _refusal(every)
    if link is None or reason:
        return None, through_hosts(reason)
    invitation, failure = ranks.texts(_invite(link) if ranks.leads else "")[0].split(" ", 1)
    reasons = [failure] if failure else ranks.texts(_join(ranks, link, bytes.fromhex(invitation)))
    reason = next((f"on rank {rank}: {each}" for rank, each in enumerate(reasons) if each), "")
    if reason:
        link.abort()
        return None, through_hosts(reason)
    meeting, groups = ranks.heart.meeting, ranks.groups
    cards = Cards(link, CardGroup(link, groups.within, meeting), CardGroup(link, groups.between, meeting), meeting)
    return cards, f"exchange   from card to card by {link.version}"


def refusal_of(link: Link, by_hosts: bool) -> str:
    """Why a card is not to be connected, as far as it alone knows; empty if nothing speaks against it."""
    return f"{CARD_GRADIENTS} is `hosts`" if by_hosts else link.refusal


def _refusal(every: Sequence[dict[str, str]]) -> str:
    """Why the cards of the ranks are not to be connected; empty if nothing speaks against it."""
    for rank, facts in enumerate(every):
        if not facts:
            return f"rank {rank} has no card"
        if facts["refusal"]:
            return f"on rank {rank}: {facts['refusal']}"
    for (one, first), (other, second) in combinations(enumerate(every), 2):
        if first["card"] == second["card"]:
            return f"ranks {one} and {other} are on the same card"
        if first["version"] != second["version"]:
            return f"{first['version']} on rank {one} and {second['version']} on rank {other}"
    return ""


def through_hosts(reason: str) -> str:
    """The line that says why cards do not send each other gradients."""
    return f"{UNCONNECTED}: gradients of the cards go through the hosts, which is slower: {reason}"


def _invite(link: Link) -> str:
    """What all ranks connect with, in hexadecimal, and behind a space why there is none."""
    try:
        return f"{link.invite().hex()} "
    except LinkLost as error:
        return f" {error}"


def _join(ranks: Ranks, link: Link, invitation: bytes) -> str:
    """Connects this rank's card; gives why it could not be. The library waits for all ranks, also for one that failed:
    so another thread waits there, and this one also for the word that one failed. What the library takes for itself it
    takes now."""
    failures: list[Exception] = []

    def connect() -> None:
        try:
            link.connect(invitation, ranks.count, ranks.rank)
            spares = [_greet(link, group) for group in (ranks.groups.within, ranks.groups.between)]
            link.wait()
            spares.clear()  # they were in use until now
        except Exception as error:  # whatever it is, this rank is not connected
            failures.append(error)

    thread = threading.Thread(target=connect, name="paren-connect", daemon=True)
    with peers(), ranks.heart.meeting():
        thread.start()
        while thread.is_alive() and not ranks.store.check([REFUSED]):
            thread.join(PAUSE)
        if failures:
            ranks.store.set(REFUSED, "")
    if failures and not isinstance(failures[0], LinkLost):
        raise failures[0]
    return str(failures[0]) if failures else ""


def _greet(link: Link, group: Group) -> AnyBytes:
    """A byte for every other rank of a group, and one from it. Gives where they lie."""
    spare, others = link.allocate(2 * group.size), [at for at in range(group.size) if at != group.place]
    sent, received = (
        [(group.ranks[at], spare[at + first : at + first + 1]) for at in others] for first in (0, group.size)
    )
    link.follow(link.mark())  # memory is cleared by what the device computes
    link.swap(sent, received)
    return spare

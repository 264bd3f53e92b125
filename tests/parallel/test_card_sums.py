"""What cards send each other and add has the bits of sums that go through the hosts. Ranks are threads here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import numpy as np
import pytest
from defined_kernels import defined_device
from emulation.checks import checked
from emulation.run import compile_text
from fake_nccl import fake_library

from paren.parallel import exchange
from paren.parallel.cards import CardGroup, connected
from paren.parallel.exchange import BFLOAT16, Exchange, Floats, HostSums, Needs
from paren.parallel.group import PeerLost
from paren.parallel.ranks import Ranks
from paren.runtime.array import AnyArray
from paren.runtime.cuda import link as links
from paren.runtime.cuda import nccl, sums
from paren.runtime.cuda.link import CardLink
from paren.runtime.link import LinkLost
from paren.text.errors import InternalError, ParenError

T = TypeVar("T")
LENGTH = 1003
LIMIT = 300.0  # seconds that a thread may take


@pytest.fixture(autouse=True)
def library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "find_nccl", fake_library)


def in_threads(count: int, function: Callable[[int], T]) -> list[T]:
    """`function(rank)` of all ranks at once."""
    pool = ThreadPoolExecutor(count)
    try:
        started = [pool.submit(function, rank) for rank in range(count)]
        done, _ = wait(started, LIMIT, FIRST_EXCEPTION)
        for each in done:
            each.result()
        return [each.result(0) for each in started]
    finally:
        pool.shutdown(wait=False)


@dataclass
class Box:
    """Where the threads of a group lay what they send; `whole` is reached by all of them."""

    whole: threading.Barrier
    sent: dict[int, Sequence[AnyArray]] = field(default_factory=dict)


@dataclass(frozen=True)
class Meeting:
    """A group of threads: the `Mover` of the hosts, and what a group of cards is made from."""

    ranks: tuple[int, ...]
    place: int
    box: Box

    @property
    def size(self) -> int:
        return len(self.ranks)

    def swap(self, sent: Sequence[AnyArray], received: Sequence[AnyArray]) -> None:
        self.box.sent[self.place] = sent
        self.box.whole.wait(LIMIT)
        copies = [np.array(self.box.sent[place][self.place]) for place in range(self.size)]
        self.box.whole.wait(LIMIT)
        for place, copy in enumerate(copies):
            if place != self.place:
                received[place][...] = copy


def groups_of(nodes: int, here: int) -> list[tuple[Meeting, Meeting]]:
    """The groups within and between of every rank."""
    rows = [tuple(range(node * here, (node + 1) * here)) for node in range(nodes)]
    columns = [tuple(range(place, nodes * here, here)) for place in range(here)]
    boxes = {ranks: Box(threading.Barrier(len(ranks))) for ranks in {*rows, *columns}}
    found = []
    for rank in range(nodes * here):
        within, between = rows[rank // here], columns[rank % here]
        found.append((Meeting(within, rank % here, boxes[within]), Meeting(between, rank // here, boxes[between])))
    return found


def linked(count: int) -> tuple[list[CardLink], bytes]:
    """The links of as many cards, and what they connect with."""
    made = [defined_device()[0].link for _ in range(count)]
    return made, made[0].invite()


def given_vector(rank: int, step: int) -> Floats:
    vector = np.random.default_rng([rank, step]).standard_normal(LENGTH).astype(np.float32)
    if step == 2:
        vector[::7] = np.sign(vector[::7]) * np.float32(3e38)
    return vector


def sum_steps(made: Exchange, rank: int, settle: Callable[[], None]) -> list[bytes]:
    """The sums of some steps, and what is carried after each."""
    found = []
    for step, weight in enumerate((3.0, 0.7, 1.0, 0.0, 2.0)):
        vector = made._sums.allocate(4 * LENGTH).view(np.float32)
        vector[...] = given_vector(rank, step)
        made.weight = weight
        for number, (begin, end) in enumerate(made.buckets):
            with np.errstate(all="ignore"):
                made.sum_bucket(number, vector[begin:end])
        settle()
        found += [np.asarray(vector).tobytes(), np.asarray(made.carried).tobytes()]
    return found


@pytest.mark.parametrize(
    ("nodes", "here", "rounds", "tree"),
    [
        (1, 2, False, False),
        (1, 3, False, False),
        (2, 2, False, False),
        (1, 8, False, True),
        (1, 3, False, True),
        (2, 1, True, False),
        (3, 2, True, False),
    ],
)
def test_cards_add_as_hosts_do(
    nodes: int, here: int, rounds: bool, tree: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also sums with weights, sums that are not finite, and one that is not used; and they send as many bytes."""
    monkeypatch.setattr(exchange, "BUCKET", 192)  # elements, so that there are several
    count, groups = nodes * here, groups_of(nodes, here)
    links_, invitation = linked(count)

    def by_hosts(rank: int) -> tuple[list[bytes], exchange.Traffic]:
        wide = Needs.of(LENGTH, here, nodes, rounds).wide
        made = Exchange(*groups[rank], HostSums(wide), LENGTH, rounds, tree)
        return sum_steps(made, rank, lambda: None), made.traffic

    def by_cards(rank: int) -> tuple[list[bytes], exchange.Traffic]:
        link = links_[rank]
        link.connect(invitation, count, rank)
        movers = [CardGroup(link, group, nullcontext) for group in groups[rank]]
        made = Exchange(movers[0], movers[1], link, LENGTH, rounds, tree)
        found = sum_steps(made, rank, link.wait)
        link.close()
        return found, made.traffic

    assert in_threads(count, by_cards) == in_threads(count, by_hosts)


# Kernels ------------------------------------------------------------------------------------------------------------


def launch(name: str, units: int, *arguments: int | np.ndarray) -> None:
    """Runs a kernel by its CUDA C on blocks that do not cover it at once."""
    words = [each.ctypes.data if isinstance(each, np.ndarray) else each for each in arguments]
    compile_text(sums.SUMS).launch(name, 2, 32, 0, 0, units, words)


@pytest.mark.parametrize("units", [1, 31, 200])
@pytest.mark.parametrize(("count", "place"), [(2, 0), (2, 1), (5, 2), (8, 7)])
def test_the_kernels_compute_their_definition(units: int, count: int, place: int) -> None:
    with np.errstate(all="ignore"):
        compare_kernels(units, count, place)


@pytest.mark.parametrize(("units", "count", "place"), [(200, 2, 1), (31, 5, 2)])
def test_the_kernels_hold_the_checks_of_the_emulation(units: int, count: int, place: int) -> None:
    with np.errstate(all="ignore"), checked():
        compare_kernels(units, count, place)


def compare_kernels(units: int, count: int, place: int) -> None:
    random = np.random.default_rng([units, count])
    own = (random.standard_normal(units) * 10.0 ** random.integers(-42, 38, units)).astype(np.float32)
    own[0] = np.inf if place else 1e-41
    others = random.standard_normal((count - 1) * units).astype(np.float32)
    for tree, name in ((False, sums.ADD), (True, sums.ADD_TREE)):
        wanted, found = own.copy(), own.copy()
        HostSums(0).add(wanted, others.copy(), place, tree)
        launch(name, units, found, others, count, place)
        assert found.tobytes() == wanted.tobytes()
    host = HostSums(4 * units)
    for weight in (None, 0.7):
        bits, counts = int(np.float32(weight or 0).view(np.uint32)), int(weight is not None)
        carried, values = random.standard_normal(units).astype(np.float32), own.copy()
        rounded, short, rest = np.zeros(units, BFLOAT16), np.zeros(units, BFLOAT16), np.zeros(units, np.float32)
        before, wanted = carried.copy(), np.zeros(units, np.float32)
        host.round(values.copy(), carried, wanted, rounded, weight)
        launch(sums.ROUND, units, values, carried, rest, short, bits, counts)
        assert carried.tobytes() == before.tobytes()
        assert (rest.tobytes(), short.tobytes()) == (wanted.tobytes(), rounded.tobytes())
        carried = wanted
        sent = others.astype(BFLOAT16)
        host.add_rounded(rounded, sent, place, carried, weight)
        launch(sums.ADD_ROUNDED, units, short, sent, rest, count, place, counts)
        assert short.tobytes() == rounded.tobytes()
        np.testing.assert_array_equal(rest, carried)
        wide, found = np.zeros(units, np.float32), np.zeros(units, np.float32)
        host.widen(rounded, wide, carried, weight)
        launch(sums.WIDEN, units, short, found, rest, bits, counts)
        assert found.tobytes() == wide.tobytes()
        np.testing.assert_array_equal(rest, carried)


# Connections --------------------------------------------------------------------------------------------------------


def test_an_abort_ends_what_waits_for_a_rank_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    links_, invitation = linked(2)
    in_threads(2, lambda rank: links_[rank].connect(invitation, 2, rank))
    array = defined_device()[0].allocate(64)
    communicator = links_[0]._connected.communicator
    swap = communicator.swap

    def swap_and_abort(*given: Any) -> None:
        threading.Timer(0.1, links_[0].abort).start()  # which ends it also if it comes before the library waits
        swap(*given)

    monkeypatch.setattr(communicator, "swap", swap_and_abort)
    with pytest.raises(LinkLost) as caught:
        links_[0].swap([(1, array)], [(1, array)])
    assert str(caught.value) == "ncclGroupEnd: remote process exited or there was a network error"
    with pytest.raises(LinkLost) as caught:
        links_[0].swap([(1, array)], [(1, array)])
    assert str(caught.value) == "the connection of the cards has ended"
    links_[0].abort()


def test_what_an_abort_cuts_off_is_not_taken_for_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a card what waits for another ends with the connection, as if it had been done."""
    links_, invitation = linked(2)
    in_threads(2, lambda rank: links_[rank].connect(invitation, 2, rank))
    monkeypatch.setattr(links_[0]._connected.lane, "reached", lambda point: links_[0].abort() is None)
    with pytest.raises(LinkLost) as caught:
        links_[0].wait()
    assert str(caught.value) == "the connection of the cards has ended"


def test_what_breaks_while_it_is_awaited_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(links, "LOOKS", 1)
    monkeypatch.setenv("FAKE_NCCL_LOSES", "0")
    links_, invitation = linked(2)
    in_threads(2, lambda rank: links_[rank].connect(invitation, 2, rank))
    array = defined_device()[0].allocate(64)
    with pytest.raises(LinkLost) as caught:
        links_[0].swap([(1, array)], [(1, array)])
    assert str(caught.value).startswith("ncclGroupEnd: remote process exited")
    lane = links_[0]._connected.lane
    monkeypatch.setattr(lane, "reached", lambda point: False)
    with pytest.raises(LinkLost) as caught:
        links_[0].wait()
    assert str(caught.value) == "remote process exited or there was a network error: the connection broke"


class Company:
    """Ranks that are threads: what `connected` asks of them. `keys` is their store."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._barrier = threading.Barrier(count)
        self._texts = [""] * count
        self.keys: dict[str, str] = {}

    def member(self, rank: int) -> Ranks:
        store = SimpleNamespace(check=lambda keys: keys[0] in self.keys, set=self.keys.__setitem__)
        group = Meeting(tuple(range(self.count)), rank, Box(self._barrier))
        alone = Meeting((rank,), 0, Box(self._barrier))
        made = SimpleNamespace(
            rank=rank,
            count=self.count,
            leads=rank == 0,
            store=store,
            groups=SimpleNamespace(within=group, between=alone),
            heart=SimpleNamespace(meeting=nullcontext, endings=[]),
            texts=partial(self.texts, rank),
        )
        return cast(Ranks, made)

    def texts(self, rank: int, own: str) -> list[str]:
        self._texts[rank] = own
        self._barrier.wait(LIMIT)
        found = list(self._texts)
        self._barrier.wait(LIMIT)
        return found


def connect(links_: Sequence[CardLink | None], by_hosts: bool = False) -> list[tuple[bool, str]]:
    """Whether each rank has cards, and the line that says so."""
    company = Company(len(links_))

    def enter(rank: int) -> tuple[bool, str]:
        with connected(company.member(rank), links_[rank], by_hosts and rank == 1) as (cards, said):
            return cards is not None, said

    return in_threads(len(links_), enter)


THROUGH_HOSTS = "E-DEV-034: gradients of the cards go through the hosts, which is slower: "


def cards_apart(count: int) -> list[CardLink]:
    """Links of different cards."""
    made = []
    for number in range(count):
        device, card = defined_device()
        card.identity = f"card {number}"
        made.append(device.link)
    return made


def test_cards_are_connected_or_none_of_them_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert connect(cards_apart(3)) == [(True, "exchange   from card to card by NCCL 2.28.9")] * 3
    assert connect([None, None]) == [(False, "")] * 2
    assert connect([*cards_apart(2), None]) == [(False, f"{THROUGH_HOSTS}rank 2 has no card")] * 3
    same = [defined_device()[0].link for _ in range(2)]
    assert connect(same) == [(False, f"{THROUGH_HOSTS}ranks 0 and 1 are on the same card")] * 2
    one, other = cards_apart(2)
    monkeypatch.setattr(
        type(one._library), "version", property(lambda library: f"NCCL {id(library) == id(one._library)}")
    )
    assert connect([one, other]) == [(False, f"{THROUGH_HOSTS}NCCL True on rank 0 and NCCL False on rank 1")] * 2


def refuse(library: nccl.Nccl) -> bytes:
    raise LinkLost("no network")


def test_a_rank_that_cannot_connect_keeps_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_NCCL_REFUSES", "1")
    reason = "on rank 1: ncclCommInitRank: invalid usage: no connection for rank 1"
    assert connect(cards_apart(3)) == [(False, THROUGH_HOSTS + reason)] * 3
    monkeypatch.delenv("FAKE_NCCL_REFUSES")
    with monkeypatch.context() as patch:
        patch.setattr(links, "new_identity", refuse)
        assert connect(cards_apart(2)) == [(False, f"{THROUGH_HOSTS}on rank 0: no network")] * 2
    links_ = cards_apart(2)
    monkeypatch.setattr(nccl, "find_nccl", lambda: "libnccl-of-nobody.so.2")
    reason = (
        "on rank 0: NCCL cannot be loaded: libnccl-of-nobody.so.2: cannot open shared object file: "
        "No such file or directory"
    )
    assert connect(links_) == [(False, THROUGH_HOSTS + reason)] * 2


def test_what_nobody_foresees_while_cards_connect_is_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that connects them tells of it."""

    def refuse(made: CardLink, invitation: bytes, count: int, rank: int) -> None:
        raise InternalError("cuda", "cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU")

    monkeypatch.setattr(CardLink, "connect", refuse)
    with pytest.raises(InternalError, match="cuModuleLoadData: CUDA_ERROR_NO_BINARY_FOR_GPU"):
        connect(cards_apart(1))


def test_a_block_that_fails_ends_what_is_under_way() -> None:
    links_, company = cards_apart(2), Company(2)
    aborted: list[int] = []

    def enter(rank: int) -> None:
        member = company.member(rank)
        array = defined_device()[0].allocate(64)
        with connected(member, links_[rank], False) as (cards, _):
            assert cards is not None
            assert len(member.heart.endings) == 1
            if rank == 0:
                raise ArithmeticError
            member.heart.endings[0](ParenError("E-DP-008", "another rank failed"))
            with pytest.raises(PeerLost):
                cards.within.swap([array, array], [array, array])
            aborted.append(rank)

    with pytest.raises(ArithmeticError):
        in_threads(2, enter)
    assert aborted in ([], [1])


def test_without_the_library_a_card_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl, "find_nccl", lambda: "libnccl-of-nobody.so.2")
    assert defined_device()[0].link.refusal == (
        "NCCL cannot be loaded: libnccl-of-nobody.so.2: cannot open shared object file: No such file or directory"
    )
    monkeypatch.setattr(nccl, "find_nccl", lambda: "libc.so.6")
    assert defined_device()[0].link.refusal.startswith("NCCL cannot be loaded: ")


def test_the_version_is_said() -> None:
    link = defined_device()[0].link
    assert (link.refusal, link.version) == ("", "NCCL 2.28.9")

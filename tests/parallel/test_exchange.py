"""Sums over ranks: the same bits on every rank, in the stated order, whatever the buckets; rounding is carried."""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import pytest
from rank_processes import run_ranks

from paren.parallel import exchange as exchanges
from paren.parallel.exchange import Exchange, Floats, HostSums, Needs, buckets, owned_ranges
from paren.parallel.group import Groups
from paren.parallel.store import open_store
from paren.parallel.topology import Address, Patience, Topology

LENGTH = 1003
BUCKET = 192  # elements, so that there are several


def layout(nodes: int, here: int) -> Topology:
    return Topology(nodes, 0, tuple(range(here)), None, Patience(60.0), "f32", None)


def given_vector(rank: int, step: int) -> Floats:
    return np.random.default_rng([rank, step]).standard_normal(LENGTH).astype(np.float32)


def sum_vector(exchange: Exchange, vector: Floats) -> None:
    """Replaces float32[length] by its sum over all ranks."""
    for number, (begin, end) in enumerate(exchange.buckets):
        exchange.sum_bucket(number, vector[begin:end])


def exchange_vectors(
    rank: int, port: int, nodes: int, here: int, rounds: bool, steps: int, bucket: int = BUCKET
) -> tuple[list[bytes], int]:
    """The sums of some steps on one rank, and the bytes it sent between nodes."""
    exchanges.BUCKET = bucket
    store = open_store(Address("127.0.0.1", port), nodes * here, rank == 0, 60.0)
    groups = Groups(layout(nodes, here), rank, store, 60.0, nullcontext)
    wide = Needs.of(LENGTH, here, nodes, rounds).wide
    exchange = Exchange(groups.within, groups.between, HostSums(wide), LENGTH, rounds)
    sums = []
    for step in range(steps):
        vector = given_vector(rank, step)
        sum_vector(exchange, vector)
        sums.append(vector.tobytes())
    groups.close()
    return sums, exchange.traffic.between


def in_order(nodes: int, here: int, step: int) -> Floats:
    total = np.zeros(0, np.float32)
    for node in range(nodes):
        own = given_vector(node * here, step)
        for place in range(1, here):
            own = own + given_vector(node * here + place, step)
        total = own if node == 0 else total + own
    return total


@pytest.mark.parametrize(("nodes", "here"), [(1, 2), (1, 3), (2, 1), (2, 2)])
def test_every_rank_gets_the_sum_in_rank_order_bit_for_bit(nodes: int, here: int) -> None:
    results = run_ranks(nodes * here, exchange_vectors, nodes, here, False, 2)
    for sums, _ in results:
        assert sums == [in_order(nodes, here, step).tobytes() for step in range(2)]


def test_two_nodes_of_one_rank_give_the_bits_of_one_node_of_two() -> None:
    apart = run_ranks(2, exchange_vectors, 2, 1, False, 2)
    together = run_ranks(2, exchange_vectors, 1, 2, False, 2)
    assert [sums for sums, _ in apart] == [sums for sums, _ in together]


def test_rounded_sums_take_half_the_bytes_and_what_rounding_took_off_comes_later() -> None:
    steps = 40
    rounded = run_ranks(2, exchange_vectors, 2, 1, True, steps)
    exact = run_ranks(2, exchange_vectors, 2, 1, False, 1)
    assert rounded[0][1] / steps * 2 == exact[0][1]
    assert rounded[0][0] == rounded[1][0]
    sums = np.array([np.frombuffer(each, np.float32) for each in rounded[0][0]], np.float64)
    wanted = np.array([in_order(2, 1, step) for step in range(steps)], np.float64)
    once = np.abs(sums - wanted).max()
    assert 0 < once < 0.1
    assert np.abs((sums - wanted).sum(axis=0)).max() < 2 * once  # without carrying it would grow with the steps


def test_where_a_vector_is_cut_does_not_show_in_the_bits_of_exact_sums() -> None:
    pieces = run_ranks(4, exchange_vectors, 2, 2, False, 2)
    whole = run_ranks(4, exchange_vectors, 2, 2, False, 2, 1 << 20)
    assert [sums for sums, _ in pieces] == [sums for sums, _ in whole]


def test_a_sum_that_is_not_finite_is_not_carried() -> None:
    results = run_ranks(2, exchange_infinity)
    assert results[0] == results[1]
    sums = np.frombuffer(results[0], np.float32)
    assert np.isfinite(sums).all()


def exchange_infinity(rank: int, port: int) -> bytes:
    """The sum of finite vectors after one of vectors that are not."""
    store = open_store(Address("127.0.0.1", port), 2, rank == 0, 60.0)
    groups = Groups(layout(2, 1), rank, store, 60.0, nullcontext)
    exchange = Exchange(groups.within, groups.between, HostSums(4 * 5), 5, True)
    sum_vector(exchange, np.array([np.inf, np.nan, 3e38, -3e38, 1], np.float32))
    vector = np.ones(5, np.float32)
    sum_vector(exchange, vector)
    groups.close()
    return vector.tobytes()


def test_a_sum_that_is_dropped_leaves_what_was_carried() -> None:
    results = run_ranks(2, exchange_and_drop)
    assert [with_drop == without for with_drop, without in results] == [True, True]


def exchange_and_drop(rank: int, port: int) -> tuple[list[bytes], list[bytes]]:
    """What is carried after two sums and the second sum, where a third one between them is dropped and where it is not
    made."""
    store = open_store(Address("127.0.0.1", port), 2, rank == 0, 60.0)
    groups = Groups(layout(2, 1), rank, store, 60.0, nullcontext)
    found = []
    for drops in (True, False):
        exchange = Exchange(groups.within, groups.between, HostSums(4 * LENGTH), LENGTH, True, may_be_dropped=True)
        sum_vector(exchange, given_vector(rank, 0))
        exchange.accept()
        first = np.array(exchange.carried)
        assert first.any()
        if drops:
            for value in (np.nan, 1.0):
                sum_vector(exchange, given_vector(rank, 1) * np.float32(value))
                assert first.tobytes() == exchange.carried.tobytes()
        vector = given_vector(rank, 2)
        sum_vector(exchange, vector)
        exchange.accept()
        found.append([vector.tobytes(), exchange.carried.tobytes()])
    groups.close()
    return found[0], found[1]


class Alone:
    """A group of one rank."""

    size = 1
    place = 0

    def swap(self, sent: object, received: object) -> None:
        raise AssertionError("nothing is to be moved")


def test_a_single_rank_moves_nothing() -> None:
    exchange = Exchange(Alone(), Alone(), HostSums(0), LENGTH, True)
    vector = given_vector(0, 0)
    before = vector.copy()
    sum_vector(exchange, vector)
    assert vector.tobytes() == before.tobytes()
    assert not exchange.carried.size


@pytest.mark.parametrize("length", [1, 15, 16, 17, 1000, 4096, 100_003])
@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ranks_own_the_elements_of_a_vector_once(length: int, ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchanges, "BUCKET", 4096)
    owned = [list(owned_ranges(length, ranks, place)) for place in range(ranks)]
    assert [len(each) for each in owned] == [len(buckets(length))] * ranks
    taken = [part for number in range(len(buckets(length))) for part in (each[number] for each in owned)]
    assert [begin for begin, _ in taken] == [0, *(end for _, end in taken[:-1])]
    assert taken[-1][1] == length
    largest = max(sum(end - begin for begin, end in each) for each in owned)
    assert Needs.of(length, ranks, 2, True).carried >= 4 * largest
    assert Needs.of(length, ranks, 2, True, True).carried == 2 * Needs.of(length, ranks, 2, True).carried

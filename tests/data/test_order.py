"""The order of samples is a permutation for every count, a function of seed and epoch, and well mixed."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paren.data.order import permuted


@settings(max_examples=80)
@given(st.integers(1, 5000), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_every_number_is_hit_once(count: int, seed: int, epoch: int) -> None:
    order = permuted(np.arange(count), count, seed, epoch)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(count))


def test_every_small_count_is_permuted() -> None:
    for count in range(1, 200):
        assert np.array_equal(np.sort(permuted(np.arange(count), count, 3, 1)), np.arange(count))


@settings(max_examples=40)
@given(st.integers(1, 2**40), st.data())
def test_entries_do_not_depend_on_which_others_are_asked_for(count: int, data: st.DataObject) -> None:
    asked = np.array(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=20, unique=True)))
    together = permuted(asked, count, 5, 2)
    assert [int(permuted(asked[i : i + 1], count, 5, 2)[0]) for i in range(len(asked))] == together.tolist()
    assert len(set(together.tolist())) == len(asked)
    assert together.min() >= 0
    assert together.max() < count


def test_seeds_and_epochs_give_different_orders() -> None:
    orders = {tuple(permuted(np.arange(50), 50, seed, epoch)) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_the_order_is_the_same_everywhere() -> None:
    assert permuted(np.arange(10), 10, 1, 0).tolist() == [8, 4, 0, 6, 9, 1, 3, 2, 7, 5]


def test_all_orders_of_four_are_about_equally_frequent() -> None:
    seen = Counter(tuple(permuted(np.arange(4), 4, seed, epoch)) for seed in range(24) for epoch in range(100))
    assert len(seen) == 24
    assert min(seen.values()) > 60
    assert max(seen.values()) < 140


def test_each_place_gets_each_sample_about_equally_often() -> None:
    count, epochs = 30, 3000
    hits = np.zeros((count, count))
    for epoch in range(epochs):
        hits[np.arange(count), permuted(np.arange(count), count, 0, epoch)] += 1
    expected = epochs / count
    assert abs(((hits - expected) ** 2 / expected).sum() / (count - 1) ** 2 - 1) < 0.15


@pytest.mark.parametrize("index", [-1, 7])
def test_an_index_outside_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match=r"^indices must be in 0 \.\. 6$"):
        permuted(np.array([index]), 7, 0, 0)


def test_no_count_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^a permutation of 0 numbers was asked for$"):
        permuted(np.array([], np.int64), 0, 0, 0)

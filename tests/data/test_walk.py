"""The order of samples as machine code is the one that numpy defines, bit for bit, wherever batches come from."""

from __future__ import annotations

import numpy as np
import pytest
from data_forms import run_form
from hypothesis import given, settings
from hypothesis import strategies as st

from paren.codegen.walk import LANES, PIECE
from paren.data.fields import ArraySplit
from paren.data.loader import Loader, Share
from paren.data.order import permuted
from paren.data.resident import ResidentBatches, block_steps
from paren.runtime.cpu import CpuDevice
from paren.runtime.walk import Walk

WALK = CpuDevice(1).walk


def split_of(count: int, walk: Walk | None) -> ArraySplit:
    return ArraySplit("train", (), {}, 3, count, count + 100, shuffled=True, digest="", walk=walk)


@settings(max_examples=150)
@given(st.integers(1, 5000), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_all_numbers_of_a_small_count(count: int, seed: int, epoch: int) -> None:
    places = np.arange(count)
    expected = permuted(places, count, seed, epoch)
    np.testing.assert_array_equal(permuted(places, count, seed, epoch, WALK), expected)
    np.testing.assert_array_equal(places, np.arange(count))


@settings(max_examples=80)
@given(st.integers(1, 2**40), st.data())
def test_some_numbers_of_a_large_count(count: int, data: st.DataObject) -> None:
    asked = np.array(data.draw(st.lists(st.integers(0, count - 1), max_size=80)), np.int64)
    np.testing.assert_array_equal(permuted(asked, count, 5, 2, WALK), permuted(asked, count, 5, 2))


@pytest.mark.parametrize("size", [0, 1, LANES - 1, LANES, LANES + 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 7])
@pytest.mark.parametrize("count", [1, 2, 3, 4097, 2**16, 2**16 + 1, 2**31, 2**31 + 1, 2**62 + 1, 2**63 - 1])
def test_numbers_around_the_sizes_of_vectors_and_pieces(size: int, count: int) -> None:
    asked = np.arange(size) * 7919 % count
    np.testing.assert_array_equal(permuted(asked, count, 9, 4, WALK), permuted(asked, count, 9, 4))


@pytest.mark.parametrize(("count", "batch"), [(3687, 128), (200, 7), (5_000, 1), (70_001, 300)])
def test_tables_and_single_batches_from_any_position(count: int, batch: int) -> None:
    stop = min(2 * block_steps(batch), 600)
    for start in (0, stop // 3):
        tables = []
        for walk in (None, WALK):
            with ResidentBatches(split_of(count, walk), run_form(batch), batch, stop, walk) as batches:
                indices, position = [batches.batch(start).indices], start
                while position < stop:
                    table = batches.table(position, stop - position)
                    indices += [table.places.copy(), table.counts.copy()]
                    position += len(table.counts)
            tables.append(indices)
        for found, expected in zip(*tables, strict=True):
            np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("ranks", [1, 3])
def test_batches_of_ranks_that_go_on_in_the_middle(ranks: int) -> None:
    for rank in range(ranks):
        loaded = []
        for walk in (None, WALK):
            share = Share(rank, ranks)
            with Loader(split_of(50, walk), run_form(9, 3), 3, 4, 30, seed=8, share=share, walk=walk) as loader:
                loaded.append(
                    [(b.epoch, b.indices.tolist(), [m.rows.tolist() for m in b.microbatches]) for b in loader]
                )
        assert loaded[0] == loaded[1]

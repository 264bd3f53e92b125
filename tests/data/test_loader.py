"""What each position trains on: every sample once an epoch, the same from any start, the same for any microbatches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import pytest
from data_forms import run_form
from hypothesis import given, settings
from hypothesis import strategies as st

from paren.data.dataset import Array, Chunk, Int64Array
from paren.data.loader import GlobalBatch, Loader, Schedule, evaluation_batches, microbatch_ranges
from paren.text.errors import InternalError, ParenError


@dataclass
class Counted:
    """A split whose sample `i` holds its own number; it may fail at one of them."""

    count: int
    broken: int | None = None
    reads: list[int] = field(default_factory=list)
    name: str = "train"
    digest: str = "counted"

    def read(self, indices: Int64Array) -> dict[str, Array]:
        if self.broken in indices:
            raise ParenError("E-DATA-021", f"sample {self.broken} is broken")
        self.reads.append(len(indices))
        return {"id": indices.astype(np.int32), "x": np.stack([indices, -indices], axis=1).astype(np.float32)}

    def chunks(self, field: str) -> Iterator[Chunk]:
        raise AssertionError("the loader reads examples, not chunks")


def load(count: int, batch: int, microbatches: int, start: int, stop: int, seed: int = 3) -> list[GlobalBatch]:
    run = run_form(batch, microbatches)
    with Loader(Counted(count), run, -(-batch // microbatches), start, stop, seed=seed) as loader:
        return list(loader)


def loader_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("paren-loader")]


sizes = st.integers(1, 60)


@settings(max_examples=40)
@given(sizes, st.integers(1, 20), st.integers(1, 8), st.integers(1, 3))
def test_each_epoch_holds_every_sample_once(count: int, batch: int, microbatches: int, epochs: int) -> None:
    steps = Schedule(count, batch, 3).steps_per_epoch
    loaded = load(count, batch, microbatches, 0, steps * epochs)
    assert [one.position for one in loaded] == list(range(steps * epochs))
    for epoch in range(epochs):
        seen = [
            int(number)
            for one in loaded
            if one.epoch == epoch
            for part in one.microbatches
            for number, valid in zip(part.fields["id"], part.valid, strict=True)
            if valid
        ]
        assert sorted(seen) == list(range(count))


@settings(max_examples=30)
@given(sizes, st.integers(1, 20), st.integers(1, 8), st.integers(0, 30))
def test_a_loader_from_a_position_goes_on_as_one_from_the_start(
    count: int, batch: int, microbatches: int, start: int
) -> None:
    whole = load(count, batch, microbatches, 0, start + 4)[start:]
    resumed = load(count, batch, microbatches, start, start + 4)
    for one, other in zip(whole, resumed, strict=True):
        assert (one.position, one.epoch, one.indices.tolist()) == (other.position, other.epoch, other.indices.tolist())
        for a, b in zip(one.microbatches, other.microbatches, strict=True):
            assert a.rows.tobytes() == b.rows.tobytes()
            assert a.valid.tobytes() == b.valid.tobytes()
            assert all(a.fields[name].tobytes() == b.fields[name].tobytes() for name in ("id", "x"))


@settings(max_examples=40)
@given(sizes, st.integers(1, 20), st.integers(1, 8), st.integers(0, 10))
def test_the_global_batch_does_not_depend_on_the_microbatches(
    count: int, batch: int, microbatches: int, position: int
) -> None:
    (undivided,) = load(count, batch, 1, position, position + 1)
    (divided,) = load(count, batch, microbatches, position, position + 1)
    (only,) = undivided.microbatches
    examples = len(undivided.indices)
    held = {
        int(row): int(number)
        for part in divided.microbatches
        for row, number, valid in zip(part.rows, part.fields["id"], part.valid, strict=True)
        if valid
    }
    assert held == dict(enumerate(undivided.indices.tolist()))
    assert only.fields["id"][:examples].tolist() == undivided.indices.tolist()
    assert sum(float(part.valid.sum()) for part in divided.microbatches) == examples


@given(st.integers(1, 100), st.integers(1, 20))
def test_microbatches_hold_fixed_positions_and_differ_by_at_most_one(batch: int, microbatches: int) -> None:
    ranges = microbatch_ranges(batch, microbatches)
    assert [place for start, stop in ranges for place in range(start, stop)] == list(range(batch))
    lengths = [stop - start for start, stop in ranges]
    assert max(lengths) - min(lengths) <= 1
    assert lengths == sorted(lengths, reverse=True)


def test_a_short_last_batch_fills_from_the_first_microbatch_and_leaves_out_empty_ones() -> None:
    first, last = load(13, 8, 4, 0, 2)
    assert [part.rows.tolist() for part in first.microbatches] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert len(last.indices) == 5
    assert [part.rows.tolist() for part in last.microbatches] == [[0, 1], [2, 3], [4, 4]]
    assert [part.valid.tolist() for part in last.microbatches] == [[1, 1], [1, 1], [1, 0]]


def test_padding_repeats_a_valid_row() -> None:
    (one,) = load(5, 5, 2, 0, 1)
    padded = one.microbatches[1]
    assert padded.valid.tolist() == [1, 1, 0]
    assert padded.fields["id"][2] == padded.fields["id"][1]
    assert padded.fields["x"][2].tolist() == padded.fields["x"][1].tolist()
    assert padded.rows.dtype == np.uint32
    assert padded.valid.dtype == np.float32


def test_epochs_differ_in_order() -> None:
    schedule = Schedule(40, 40, 9)
    (first, one), (second, other) = schedule.batch_at(0), schedule.batch_at(1)
    assert (first, second) == (0, 1)
    assert one.tolist() != other.tolist()


def test_ten_batches_in_windows_of_four_over_two_epochs() -> None:
    """Case B04: a window at the end of an epoch holds what is left, and its weight says so."""
    loaded = load(10, 4, 4, 0, 6)
    assert [(one.epoch, len(one.indices)) for one in loaded] == [(0, 4), (0, 4), (0, 2), (1, 4), (1, 4), (1, 2)]
    assert [sum(part.valid.sum() for part in one.microbatches) for one in loaded] == [4, 4, 2, 4, 4, 2]


def test_too_few_rows_is_a_fault_of_the_caller() -> None:
    message = "^internal error in loader: 8 examples in 3 microbatches need more than 2 rows$"
    with pytest.raises(InternalError, match=message):
        Loader(Counted(8), run_form(8, 3), 2, 0, 1, seed=0)


def test_an_error_while_reading_surfaces_at_its_batch() -> None:
    order = Schedule(12, 2, 3)
    broken = int(order.batch_at(3)[1][0])
    loader = Loader(Counted(12, broken), run_form(2), 2, 0, 6, seed=3)
    assert [next(loader).position for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ParenError, match=f"^E-DATA-021: sample {broken} is broken$"):
        next(loader)
    assert not loader_threads()
    with pytest.raises(StopIteration):
        next(loader)


def test_closing_early_leaves_no_thread_and_reads_no_further() -> None:
    split = Counted(1000)
    loader = Loader(split, run_form(2), 2, 0, 500, seed=0, prefetch=3)
    next(loader)
    loader.close()
    loader.close()
    assert not loader_threads()
    assert len(split.reads) <= 4
    with pytest.raises(StopIteration):
        next(loader)


def test_the_end_leaves_no_thread() -> None:
    loader = Loader(Counted(6), run_form(2), 2, 0, 3, seed=0)
    assert len(list(loader)) == 3
    assert not loader_threads()


def test_no_positions_give_no_batches() -> None:
    assert load(6, 2, 1, 3, 3) == []


@settings(max_examples=30)
@given(sizes, st.integers(1, 20), st.one_of(st.none(), st.integers(1, 80)))
def test_evaluation_covers_each_sample_once_in_order(count: int, rows: int, limit: int | None) -> None:
    """Case D01: count and sum of ids are those of the split, whatever the size of a batch."""
    parts = list(evaluation_batches(Counted(count), rows, limit))
    ids = [int(i) for part in parts for i, valid in zip(part.fields["id"], part.valid, strict=True) if valid]
    assert ids == list(range(min(count, limit or count)))
    assert all(len(part.valid) == rows for part in parts)
    assert all(part.valid[0] == 1 for part in parts)

"""The order of samples: a permutation that is a function of (count, seed, epoch), computed entry by entry.

No permutation is ever stored, so the order of a corpus of any size costs the memory of the batch that is asked for, and
a run can start at any position.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from paren.runtime.walk import Walk

Int64Array = npt.NDArray[np.int64]

ROUNDS = 10
PIECE = 1 << 13  # indices that are permuted at a time: what is computed on the way stays in the cache
LARGEST_TABLE = 1 << 12  # numbers of 16 bits that a round's table holds: those of a permutation take 80 KiB at most
_MASK = (1 << 64) - 1


def permuted(indices: Int64Array, count: int, seed: int, epoch: int, walk: Walk | None = None) -> Int64Array:
    """Where a permutation of `0 .. count-1` sends each of `indices`.

    A keyed Feistel network permutes the smallest range of a power of two that holds `count` numbers; a number that
    leaves `0 .. count-1` is sent on until it comes back (cycle walking), which keeps the map a bijection. Time and
    memory are proportional to `len(indices)`.

    `indices`: int64[n], each in `0 <= index < count`. Returns int64[n]. Another `seed` or `epoch` gives another
    permutation; the same ones give the same everywhere. `walk`: what computes it faster.

    Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (cycle walking).
    """
    if count < 1:
        raise ValueError(f"a permutation of {count} numbers was asked for")
    indices = np.asarray(indices, np.int64)
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= count):
        raise ValueError(f"indices must be in 0 .. {count - 1}")
    values = indices.copy()
    if walk is not None:
        walk(values, _keys(count, seed, epoch), count)
        return values
    bits = (count - 1).bit_length()
    rounds = _rounds(count, seed, epoch, tables=min(indices.size, LARGEST_TABLE) >= 1 << (bits - bits // 2))
    later = []
    for start in range(0, values.size, PIECE):
        piece = values[start : start + PIECE]
        piece[:] = _feistel(piece, bits, rounds)
        later.append(start + np.flatnonzero(piece >= count))
    while later:
        outside, later = np.concatenate(later), []
        for start in range(0, outside.size, PIECE):
            places = outside[start : start + PIECE]
            sent = _feistel(values[places], bits, rounds)
            values[places] = sent
            later.append(places[sent >= count])
    return values


def mix(value: int) -> int:
    """A bijection of the 64-bit integers that spreads every bit over all.

    Source: the finaliser of SplitMix64, G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014.
    """
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


@dataclass(frozen=True)
class _Round:
    """What a round changes one half by, a function of the other half: computed, or, where many numbers are asked for,
    read from a table of all halves."""

    key: np.uint64
    mask: np.int64
    table: npt.NDArray[np.uint16] | None

    def of(self, half: Int64Array) -> npt.NDArray[np.integer]:
        if self.table is not None:
            return self.table.take(half, mode="clip")  # they are all inside, which need not be checked
        return _mixed(half, self.key, self.mask)


@lru_cache(maxsize=8)
def _keys(count: int, seed: int, epoch: int) -> npt.NDArray[np.uint64]:
    """The keys of the rounds: even rounds change the high half, odd ones the low half, which may have one bit less."""
    state = 0
    for part in (count, seed, epoch):
        state = mix(state + 0x9E3779B97F4A7C15 + part)
    return np.array([mix(state + 0x9E3779B97F4A7C15 * (number + 1)) for number in range(ROUNDS)], np.uint64)


@lru_cache(maxsize=3)  # that of a split, and of the epochs at whose border a batch is
def _rounds(count: int, seed: int, epoch: int, *, tables: bool) -> tuple[_Round, ...]:
    low_bits = (count - 1).bit_length() // 2
    sizes = low_bits, (count - 1).bit_length() - low_bits
    rounds = []
    for number, key in enumerate(_keys(count, seed, epoch)):
        mask = np.int64((1 << sizes[(number + 1) % 2]) - 1)
        table = None
        if tables:
            table = _mixed(np.arange(1 << sizes[number % 2], dtype=np.int64), key, mask).astype(np.uint16)
        rounds.append(_Round(key, mask, table))
    return tuple(rounds)


def _feistel(values: Int64Array, bits: int, rounds: Sequence[_Round]) -> Int64Array:
    """Permutes the numbers of `bits` bits. The halves may differ by one bit: each round changes one half by a function
    of the other, which can be undone whatever the function is."""
    low_bits = bits // 2
    low, high = values & ((1 << low_bits) - 1), values >> low_bits
    for number, each in enumerate(rounds):
        if number % 2:
            low ^= each.of(high)
        else:
            high ^= each.of(low)
    return (high << low_bits) | low


def _mixed(half: Int64Array, key: np.uint64, mask: np.int64) -> Int64Array:
    """Numbers made of `half`, with the bits of `mask`."""
    value = half.view(np.uint64) + key
    shifted = np.empty_like(value)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.right_shift(value, np.uint64(shift), out=shifted)
        value ^= shifted
        if factor is not None:
            value *= np.uint64(factor)
    numbers = value.view(np.int64)
    numbers &= mask
    return numbers

"""The order of samples: a permutation that is a function of (count, seed, epoch), computed entry by entry.

No permutation is ever stored, so the order of a corpus of any size costs the memory of the batch that is asked for, and
a run can start at any position.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
UInt64Array = npt.NDArray[np.uint64]

ROUNDS = 10
PIECE = 1 << 13  # indices that are permuted at a time: what is computed on the way stays in the cache
_MASK = (1 << 64) - 1


def permuted(indices: Int64Array, count: int, seed: int, epoch: int) -> Int64Array:
    """Where a permutation of `0 .. count-1` sends each of `indices`.

    A keyed Feistel network permutes the smallest range of a power of two that holds `count` numbers; a number that
    leaves `0 .. count-1` is sent on until it comes back (cycle walking), which keeps the map a bijection. Time and
    memory are proportional to `len(indices)`.

    `indices`: int64[n], each in `0 <= index < count`. Returns int64[n]. Another `seed` or `epoch` gives another
    permutation; the same ones give the same everywhere.

    Source: J. Black, P. Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002 (cycle walking).
    """
    if count < 1:
        raise ValueError(f"a permutation of {count} numbers was asked for")
    indices = np.asarray(indices, np.int64)
    if indices.size and (int(indices.min()) < 0 or int(indices.max()) >= count):
        raise ValueError(f"indices must be in 0 .. {count - 1}")
    bits = (count - 1).bit_length()
    keys = _round_keys(count, seed, epoch)
    values = indices.astype(np.uint64)
    outside = np.arange(values.size)
    while outside.size:
        later = []
        for start in range(0, outside.size, PIECE):
            piece = outside[start : start + PIECE]
            sent = _feistel(values[piece], bits, keys)
            values[piece] = sent
            later.append(piece[sent >= np.uint64(count)])
        outside = np.concatenate(later)
    return values.view(np.int64)


def mix(value: int) -> int:
    """A bijection of the 64-bit integers that spreads every bit over all.

    Source: the finaliser of SplitMix64, G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators",
    OOPSLA 2014.
    """
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def _round_keys(count: int, seed: int, epoch: int) -> list[np.uint64]:
    state = 0
    for part in (count, seed, epoch):
        state = mix(state + 0x9E3779B97F4A7C15 + part)
    return [np.uint64(mix(state + 0x9E3779B97F4A7C15 * (number + 1))) for number in range(ROUNDS)]


def _feistel(values: UInt64Array, bits: int, keys: list[np.uint64]) -> UInt64Array:
    """Permutes the numbers of `bits` bits. The halves may differ by one bit: each round changes one half by a function
    of the other, which can be undone whatever the function is."""
    low_bits = bits // 2
    low_mask = np.uint64((1 << low_bits) - 1)
    high_mask = np.uint64((1 << (bits - low_bits)) - 1)
    low, high = values & low_mask, values >> np.uint64(low_bits)
    mixed, shifted = np.empty_like(values), np.empty_like(values)
    for number, key in enumerate(keys):
        changed, other, mask = (low, high, low_mask) if number % 2 else (high, low, high_mask)
        _mix_into(mixed, shifted, other, key)
        mixed &= mask
        changed ^= mixed
    return (high << np.uint64(low_bits)) | low


def _mix_into(value: UInt64Array, shifted: UInt64Array, half: UInt64Array, key: np.uint64) -> None:
    """Fills `value` with numbers made of `half`; `shifted` is overwritten."""
    np.add(half, key, out=value)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, None)):
        np.right_shift(value, np.uint64(shift), out=shifted)
        value ^= shifted
        if factor is not None:
            value *= np.uint64(factor)

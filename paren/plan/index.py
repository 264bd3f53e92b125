"""Affine index maps: which element of a tensor an element of another one is computed from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paren.plan.kernel import Index


class CannotIndex(Exception):
    """An index map is not affine in the axes: the tensor that is read has to be stored."""


class NeedsSplit(Exception):
    """A reshape can be indexed once `axis` is split in two, the inner one of size `inner`."""

    def __init__(self, axis: int, inner: int) -> None:
        super().__init__(axis, inner)
        self.axis = axis
        self.inner = inner


ZERO = Index()


@dataclass(frozen=True)
class Interval:
    """Smallest and largest value, both included."""

    low: int
    high: int


def interval(index: Index, sizes: Sequence[int]) -> Interval:
    """The values an index without `value` takes, before its division, when axis i runs over 0 .. sizes[i] - 1."""
    low = high = index.constant
    for axis, coefficient in index.terms:
        reach = coefficient * (sizes[axis] - 1)
        low, high = low + min(reach, 0), high + max(reach, 0)
    return Interval(low, high)


def affine(index: Index, factor: int, constant: int) -> Index:
    """factor x index + constant. Raises `CannotIndex` for a gathered or divided index unless nothing changes."""
    if factor == 1 and constant == 0:
        return index
    if index.value is not None or index.divisor != 1:
        raise CannotIndex
    if factor == 0:
        return Index(constant=constant)
    terms = tuple((axis, coefficient * factor) for axis, coefficient in index.terms)
    return Index(terms, index.constant * factor + constant)


def add(a: Index, b: Index) -> Index:
    """The sum of two indices. Raises `CannotIndex` where one is gathered or divided, unless the other is 0."""
    if b == ZERO:
        return a
    if a == ZERO:
        return b
    if a.value is not None or b.value is not None or a.divisor != 1 or b.divisor != 1:
        raise CannotIndex
    terms = dict(a.terms)
    for axis, coefficient in b.terms:
        terms[axis] = terms.get(axis, 0) + coefficient
    return Index(tuple(sorted((k, v) for k, v in terms.items() if v)), a.constant + b.constant)


def reshape(indices: Sequence[Index], shape: Sequence[int], target: Sequence[int], sizes: Sequence[int]) -> list[Index]:
    """The indices into `target` of the element at `indices` of `shape` (both hold the same elements in order).

    The shapes are cut into the smallest runs of equal products, so a change in one place leaves the others alone.
    Raises `NeedsSplit` or `CannotIndex`.
    """
    result: list[Index] = []
    for (i, i_end), (j, j_end) in matching_runs(shape, target):
        source = [k for k in range(i, i_end) if shape[k] != 1]
        wanted = [k for k in range(j, j_end) if target[k] != 1]
        if len(source) == 1 and len(wanted) == 1:
            inner = [indices[source[0]]]
        else:
            flat = ZERO
            for k in source:
                flat = add(affine(flat, shape[k], 0), indices[k])
            inner = _split(flat, [target[k] for k in wanted], sizes)
        found = iter(inner)
        result += [next(found) if target[k] != 1 else ZERO for k in range(j, j_end)]
    return result


def matching_runs(shape: Sequence[int], target: Sequence[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Pairs of runs of dimensions (begin, end) in both shapes whose products are equal, as short as possible."""
    runs = []
    i = j = 0
    while i < len(shape) or j < len(target):
        i_end, j_end = i + 1, j + 1
        left = shape[i] if i < len(shape) else 1
        right = target[j] if j < len(target) else 1
        while left != right:
            if left < right:
                left *= shape[i_end]
                i_end += 1
            else:
                right *= target[j_end]
                j_end += 1
        i_end, j_end = min(i_end, len(shape)), min(j_end, len(target))
        runs.append(((i, i_end), (j, j_end)))
        i, j = i_end, j_end
    return runs


def _split(flat: Index, shape: Sequence[int], sizes: Sequence[int]) -> list[Index]:
    """Mixed-radix digits of a flat index: `shape` gives the sizes of the digits, the last one changes fastest."""
    if not shape:
        return []
    if flat.value is not None or flat.divisor != 1:
        if len(shape) == 1:
            return [flat]
        raise CannotIndex
    digits: list[Index] = []
    for size in reversed(shape[1:]):
        low = tuple((axis, c) for axis, c in flat.terms if c % size)
        high = tuple((axis, c // size) for axis, c in flat.terms if c % size == 0)
        digit = Index(low, flat.constant % size)
        reach = interval(digit, sizes)
        if reach.low < 0 or reach.high >= size:
            _ask_for_split(low, size, sizes)
        digits.append(digit)
        flat = Index(high, flat.constant // size)
    return [flat, *reversed(digits)]


def _ask_for_split(terms: tuple[tuple[int, int], ...], size: int, sizes: Sequence[int]) -> None:
    """Raises `NeedsSplit` for an axis that crosses the digit's border at a divisor of its size, else `CannotIndex`."""
    for axis, coefficient in terms:
        if coefficient <= 0 or size % coefficient:
            continue
        inner = size // coefficient
        if sizes[axis] > inner > 1 and sizes[axis] % inner == 0:
            raise NeedsSplit(axis, inner)
    raise CannotIndex

"""Random kernels whose numbers are small integers, so that every order of adding gives the same bits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st
from kernel_samples import F32, Body, access, axis, gather, row_major

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.kernel import Access, Index, Kernel, Parameter

SIZES = [1, 2, 3, 7, 17, 33]
I32 = DType.INT32
HALF = DType.BFLOAT16


@dataclass
class _Draft:
    """A kernel that is being drawn: its axes, parameters, and the float and integer values that are visible."""

    draw: st.DrawFn
    axes: tuple[int, ...]
    rows: int
    body: Body = field(default_factory=Body)
    parameters: list[Parameter] = field(default_factory=list)
    stored: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)  # parameter, axes of its dimensions

    def parameter(self, size: int, dtype: DType = F32, *, written: bool = False) -> int:
        self.parameters.append(Parameter(dtype, size, not written, written))
        return len(self.parameters) - 1

    def reach(self, index: Index) -> tuple[int, int]:
        low = high = index.constant
        for number, coefficient in index.terms:
            step = coefficient * (self.axes[number] - 1)
            low, high = low + min(step, 0), high + max(step, 0)
        return low, high

    def affine(self, visible: list[int]) -> Index:
        """A sum of at most two axes, moved so that it starts at 0."""
        some = self.draw(st.lists(st.sampled_from(visible), unique=True, max_size=2)) if visible else []
        terms = [(number, self.draw(st.sampled_from([1, 1, 1, 2, -1]))) for number in some]
        low, _ = self.reach(axis(*terms))
        return axis(*terms, constant=-low)

    def load(self, visible: list[int], integers: list[int]) -> int:
        """A load of a new parameter: plain, guarded, with a divisor, or a gather."""
        indices, sizes, guarded = [], [], False
        for _ in range(self.draw(st.integers(1, 3))):
            kind = self.draw(st.sampled_from(["plain", "plain", "guarded", "divided", "gather"]))
            index = self.affine(visible)
            _, high = self.reach(index)
            size = high + 1 + self.draw(st.integers(0, 2))
            if kind == "gather" and integers:
                index, size = gather(self.draw(st.sampled_from(integers))), self.draw(st.integers(1, 4))
            elif kind == "guarded":
                index = Index(index.terms, index.constant - self.draw(st.integers(0, 3)))
                size, guarded = max(1, size - self.draw(st.integers(0, 3))), True
            elif kind == "divided":
                index = Index(index.terms, index.constant - self.draw(st.integers(0, 2)), 2)
                size, guarded = max(1, size // 2), True
            indices.append(index)
            sizes.append(size)
        offset = self.draw(st.integers(0, 2))
        dtype = self.draw(st.sampled_from([F32, F32, HALF]))
        place = self.parameter(int(np.prod(sizes)) + offset, dtype)
        fill = self.draw(st.integers(-2, 2))
        where = Access(place, tuple(indices), row_major(sizes), tuple(sizes), guarded, offset)
        return self.wide(self.body.load(where, dtype, fill=float(fill)))

    def wide(self, value: int) -> int:
        """A float as float32."""
        return value if self.body.types[value] == F32 else self.body.compute("cast", value, dtype=F32)

    def output(self, own: tuple[int, ...], dtype: DType = F32, *, kept: bool) -> Access:
        """A new parameter with one element for each index of the row axes and of `own`, in some order."""
        order = self.draw(st.permutations([*range(self.rows), *own]))
        sizes = [self.axes[number] for number in order] or [1]
        place = self.parameter(int(np.prod(sizes)), dtype, written=True)
        if kept:
            self.stored.append((place, tuple(order)))
        return access(place, sizes, *(order or [axis()]))

    def reload(self, own: tuple[int, ...]) -> int | None:
        """A load of what an earlier stage stored, at this row's elements."""
        fitting = [(place, order) for place, order in self.stored if set(order) <= {*range(self.rows), *own}]
        if not fitting:
            return None
        place, order = self.draw(st.sampled_from(fitting))
        dtype = self.parameters[place].dtype
        self.parameters[place] = Parameter(dtype, self.parameters[place].size, True, True)
        there = access(place, [self.axes[number] for number in order] or [1], *(order or [axis()]))
        return self.wide(self.body.load(there, dtype))

    def mix(self, floats: list[int]) -> int:
        """An operation on two floats, which keeps them small integers."""
        a, b = (self.draw(st.sampled_from(floats)) for _ in range(2))
        op = self.draw(st.sampled_from(["add", "sub", "maximum", "minimum", "neg", "abs", "where", "sign"]))
        if op == "where":
            return self.body.compute("where", self.body.compute("lt", a, b, dtype=DType.BOOL), a, b, dtype=F32)
        return self.body.compute(op, *((a,) if op in ("neg", "abs", "sign") else (a, b)))

    def stage(self, own: tuple[int, ...], floats: list[int], integers: list[int]) -> None:
        """Draws a stage; `floats` and `integers` are what all later stages see, and grow."""
        visible = [*range(self.rows), *own]
        self.body.stage(*own)
        local, local_integers = list(floats), list(integers)
        again = self.reload(own) if self.draw(st.booleans()) else None
        if again is not None:
            local.append(again)
        if self.draw(st.booleans()):
            local_integers.append(self.body.index(self.affine(visible), I32))
            local.append(self.body.compute("cast", local_integers[-1], dtype=F32))
        for _ in range(self.draw(st.integers(1, 2))):
            local.append(self.load(visible, local_integers))
        for _ in range(self.draw(st.integers(0, 3))):
            local.append(self.mix(local))
        results = []
        if own:
            for _ in range(self.draw(st.integers(0, 2))):
                kind = self.draw(st.sampled_from(["sum", "sum", "max", "min", "argmax", "argmin"]))
                results.append(self.body.reduce(kind, self.draw(st.sampled_from(local))))
        if self.draw(st.booleans()):
            dtype = self.draw(st.sampled_from([F32, HALF]))
            stored = local[-1] if dtype == F32 else self.body.compute("cast", local[-1], dtype=dtype)
            self.body.store(self.output(own, dtype, kept=True), stored)
        elif own and local_integers and self.draw(st.booleans()):
            self.scatter(own, local[-1], self.draw(st.sampled_from(local_integers)))
        if own:
            for result in results:
                (floats if self.body.types[result] == F32 else integers).append(result)
        else:
            floats[:], integers[:] = local, local_integers

    def scatter(self, own: tuple[int, ...], value: int, target: int) -> None:
        """Adds to an element of this row that an integer chooses."""
        sizes = [*(self.axes[number] for number in range(self.rows)), 3]
        place = self.parameter(int(np.prod(sizes)))
        self.parameters[place] = Parameter(F32, self.parameters[place].size, True, True)
        self.body.accumulate(access(place, sizes, *range(self.rows), gather(target)), value)

    def finish(self, floats: list[int], integers: list[int]) -> Kernel:
        self.body.stage()
        for value in integers:
            floats.append(self.body.compute("cast", value, dtype=F32))
        while len(floats) > 1:
            floats.append(self.body.compute("add", floats.pop(), floats.pop()))
        value = floats[0] if floats else self.body.constant(1.0)
        self.body.store(self.output((), kept=False), value)
        return self.body.kernel(self.axes, self.rows, self.parameters, "random")


@st.composite
def kernels(draw: st.DrawFn) -> Kernel:
    rows = draw(st.integers(0, 3))
    own = draw(st.integers(0, 2))
    axes = tuple(draw(st.sampled_from(SIZES if number else [1, 3, 17, 40])) for number in range(rows + own))
    draft = _Draft(draw, axes, rows)
    floats: list[int] = []
    integers: list[int] = []
    for _ in range(draw(st.integers(1, 4))):
        some = draw(st.lists(st.sampled_from(range(rows, rows + own)), unique=True, max_size=own)) if own else []
        draft.stage(tuple(sorted(some)), floats, integers)
    return draft.finish(floats, integers)


def buffers_for(kernel: Kernel, seed: int) -> list[Array]:
    """Small integers in every parameter, so that what a kernel must not touch shows."""
    generator = np.random.default_rng(seed)
    return [generator.integers(-3, 4, parameter.size).astype(parameter.dtype.numpy) for parameter in kernel.parameters]

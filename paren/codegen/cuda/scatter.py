"""Sums into rows that integers choose, in the order of the loop, on many blocks.

A block owns a range of the rows that may be chosen, and some lanes of them. Round after round its warps look through
the iterations for those whose row the block owns and list them in their order; then each warp adds up some of the rows,
one after another, in registers. So one thread alone adds to an element, in the order of the definition.
"""

from __future__ import annotations

from paren.codegen.cuda.mapping import LISTED, WARP, WARPS, Mapping, count, scattering
from paren.codegen.cuda.places import Value, address, decomposed, gathered, loaded, register, stored
from paren.codegen.cuda.statements import Lanes, Statements
from paren.codegen.operations import Operation
from paren.codegen.writer import Writer
from paren.ir.types import DType
from paren.plan.kernel import Accumulate, Stage, Statement, Store
from paren.plan.kernel_values import operands

AHEAD = 8  # rows whose loads are under way at once


class Scatter(Statements):
    """Writes `lines`, the inside of the function of a kernel that only adds to chosen rows."""

    def __init__(self, mapping: Mapping) -> None:
        super().__init__(mapping)
        found = scattering(self.kernel)
        assert found is not None
        self.scattered, self.sum, self.chosen = found

    def write(self) -> None:
        self.check_stop()
        self._unit()
        self.stage = self.scattered
        index, total = self.mapping.index, count(self.kernel, self.scattered)
        self.lines += [
            f"__shared__ unsigned short found[{WARPS}][{LISTED}], keys[{WARPS}][{LISTED}], same[{WARPS}][{WARP}];",
            f"__shared__ int counts[{WARPS}];",
            "const unsigned below = (1u << along) - 1;",
            f"for ({index} base = 0; base < {total}; base += {WARPS * LISTED}) {{",
        ]
        self._list(total)
        self._add()
        self.lines += ["__syncthreads();", "}"]

    def _unit(self) -> None:
        """The block's range of rows from `low` up to `low + owned`, the other indices and the lanes of a thread."""
        mapping, index = self.mapping, self.mapping.index
        lane, put = mapping.lane, self.lines.append
        assert lane is not None
        lanes = self.kernel.axes[lane] // mapping.width
        put(f"const int warp = threadIdx.x / {WARP}, along = threadIdx.x % {WARP};")
        put(f"const {index} row = ({index})(first + blockIdx.x);")
        outer = [(f"a{axis}", self.kernel.axes[axis]) for axis in range(self.kernel.rows) if axis != lane]
        parts = [("part", mapping.ranges), ("strip", -(-lanes // WARP)), *outer]
        self.lines += decomposed(index, "row", parts)
        put(f"const bool live = strip * {WARP} + along < {lanes};")
        put(f"const {index} b{lane} = (live ? strip * {WARP} + along : 0) * {mapping.width};")
        rows = self._rows()
        owned = -(-rows // mapping.ranges)
        put(f"const int low = (int)part * {owned}, owned = {rows} - low < {owned} ? {rows} - low : {owned};")
        self.lanes = Lanes(mapping.width, mapping.width, (f"const {index} a{lane} = b{lane} + i;",))

    def _rows(self) -> int:
        sizes = zip(self.sum.access.indices, self.sum.access.sizes, strict=True)
        return next(size for index, size in sizes if index == self.chosen)

    def _list(self, total: int) -> None:
        """Each warp lists the iterations of its part of the round."""
        index, value = self.mapping.index, self.chosen.value
        assert value is not None
        self.lines += [
            "int listed = 0;",
            f"for (int k = 0; k < {LISTED}; k += {WARP}) {{",
            f"const {index} j = base + warp * {LISTED} + k + along;",
            "int key = -1;",
            f"if (j < {total}) {{",
            *self._indices(),
        ]
        for statement in _needed(self.scattered, {value}):
            self.statement(statement)
        chosen = self.values[value]
        self.lines += [
            f"key = {gathered(chosen, self._rows())} - low;",
            "}",
            "const bool mine = key >= 0 && key < owned;",
            "const unsigned all = __ballot_sync(0xffffffffu, mine);",
            "if (mine) {",
            "const int at = listed + __popc(all & below);",
            "found[warp][at] = (unsigned short)(j - base);",
            "keys[warp][at] = (unsigned short)key;",
            "}",
            "listed += __popc(all);",
            "}",
            "if (along == 0) counts[warp] = listed;",
            "__syncthreads();",
        ]

    def _indices(self) -> list[str]:
        axes = [(f"a{axis}", self.kernel.axes[axis]) for axis in self.scattered.axes]
        return decomposed(self.mapping.index, "j", axes)

    def _add(self) -> None:
        """Each warp adds up the lists' iterations of one row after another."""
        index, value, access = self.mapping.index, self.chosen.value, self.sum.access
        assert value is not None
        dtype = self.kernel.parameters[access.parameter].dtype
        self.lines += [
            f"for (int key = warp; key < owned; key += {WARPS}) {{",
            "const int chosen = low + key;",
            "bool met = false;",
            f"{register(dtype)} total[{self.lanes.count}];",
            f"for (int list = 0; list < {WARPS}; list++) {{",
            f"for (int k = 0; k < counts[list]; k += {WARP}) {{",
            "const bool mine = k + along < counts[list] && keys[list][k + along] == key;",
            "const unsigned all = __ballot_sync(0xffffffffu, mine);",
            "if (all == 0) continue;",
            "if (mine) same[warp][__popc(all & below)] = found[list][k + along];",
            "__syncwarp();",
            "if (!met) {",
            "met = true;",
        ]
        where = address(access, {value: Value("%chosen", DType.INT32, False)})
        self.pending.append(f"total[i] = {loaded(access.parameter, where, dtype)};")
        self.flush()
        self.lines += [
            "}",
            "const int times = __popc(all);",
            f"#pragma unroll {AHEAD}",
            "for (int n = 0; n < times; n++) {",
            f"const {index} j = base + same[warp][n];",
            *self._indices(),
        ]
        for statement in self.scattered.body:
            if not isinstance(statement, Accumulate):
                self.statement(statement)
        added = self.values[self.sum.value]
        writer = Writer("n")
        names = ["%total[i]", added.operand]
        result = Operation(writer, set()).write("add", names, [dtype, dtype], dtype, {})
        self.pending += [*self.spelled(writer), f"total[i] = {Value(result, dtype, False).c};"]
        self.flush()
        self.lines += ["}", "__syncwarp();", "}", "}", "if (met && live) {"]
        self.pending.append(stored(access.parameter, where, "total[i]", dtype))
        self.flush()
        self.lines += ["}", "}"]


def _needed(stage: Stage, wanted: set[int]) -> list[Statement]:
    """The statements of a stage that some of its values need."""
    needed = set(wanted)
    found: list[Statement] = []
    for statement in reversed(stage.body):
        if isinstance(statement, Store | Accumulate) or statement.result not in needed:
            continue
        found.append(statement)
        needed.update(operands(statement))
    return found[::-1]

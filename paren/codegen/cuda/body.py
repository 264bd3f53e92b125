"""The inside of a kernel's function: who works on what, and its stages with the barriers between them."""

from __future__ import annotations

from collections.abc import Sequence

from paren.codegen.cuda.mapping import WARP, Strips, count, strips
from paren.codegen.cuda.places import Value, decomposed, register
from paren.codegen.cuda.reductions import POSITIONS, combine_lanes, combine_rows, identity, partial
from paren.codegen.cuda.statements import Lanes, Statements
from paren.ir.types import DType
from paren.plan.kernel import Accumulate, Load, Reduce, Stage, Statement, Store


class Body(Statements):
    """Writes `lines`, the inside of a kernel's function where `ended` says that it must not run."""

    def write(self) -> None:
        self._unit()
        for stage in self.kernel.stages:
            self.stage = stage
            if not stage.axes:
                for statement in stage.body:
                    self._row_statement(statement)
                self.flush()
            elif self.by_lane:
                self._turns(stage)
            else:
                self._strips(stage)

    # Who works on what -----------------------------------------------------------------------------------------------

    def _unit(self) -> None:
        """The unit of a group, and from it the indices of the row axes."""
        mapping, kernel, index = self.mapping, self.kernel, self.mapping.index
        across, put = mapping.per_block, self.lines.append
        if self.by_lane:
            put(f"const int place = threadIdx.x % {across}, turn = threadIdx.x / {across};")
        else:
            put(f"const int place = threadIdx.x / {mapping.group}, thread = threadIdx.x % {mapping.group};")
        put(f"const long long unit = (long long)blockIdx.x * {across} + place;")
        if mapping.group == 1:
            put("if (unit >= units) return;")
            put(f"const {index} row = ({index})(first + unit);")
        else:
            put("const bool live = unit < units;")
            put(f"const {index} row = ({index})(first + (live ? unit : 0));")
        lane = mapping.lane
        order = list(range(kernel.rows))
        sizes = {axis: kernel.axes[axis] for axis in order}
        if lane is not None and not mapping.in_order:
            order.remove(lane)
            order.append(lane)
            if mapping.across is not None:
                order.remove(mapping.across)
                order.append(mapping.across)
            sizes[lane] //= mapping.width
        names = {axis: f"c{axis}" if axis == lane else f"a{axis}" for axis in order}
        self.lines += decomposed(index, "row", [(names[axis], sizes[axis]) for axis in order])
        if lane is not None:
            put(f"const {index} b{lane} = c{lane} * {mapping.width};")
            self.lanes = self._row_lanes()

    def _row_lanes(self) -> Lanes:
        lane, width = self.mapping.lane, self.mapping.width
        return Lanes(width, width, (f"const {self.mapping.index} a{lane} = b{lane} + i;",))

    def _stage_axes(self, stage: Stage) -> list[tuple[str, int]]:
        return [(f"a{axis}", self.kernel.axes[axis]) for axis in stage.axes]

    # Stages ----------------------------------------------------------------------------------------------------------

    def _turns(self, stage: Stage) -> None:
        """The second skeleton: the threads of a group take turns with the iterations."""
        mapping, index = self.mapping, self.mapping.index
        self.check_stop()
        self._order(stage)
        reduces = [s for s in stage.body if isinstance(s, Reduce)]
        for reduce in reduces:
            self._start(reduce, mapping.width)
        first = "turn" if mapping.group > 1 else "0"
        self.lines.append(f"for ({index} j = {first}; j < {count(self.kernel, stage)}; j += {mapping.group}) {{")
        self.lines += decomposed(index, "j", self._stage_axes(stage))
        for statement in stage.body:
            self.statement(statement)
        self.flush()
        self.lines.append("}")
        self._finish([combine_lanes(mapping, r.result, r.kind, self.values[r.value].dtype) for r in reduces])
        for reduce in reduces:
            self._result(reduce, mapping.width)

    def _strips(self, stage: Stage) -> None:
        """The first skeleton: the lanes of a group's threads are the iterations."""
        mapping = self.mapping
        strip = strips(mapping, stage)
        if not strip.held:
            self.check_stop()
        self._order(stage)
        reduces = [s for s in stage.body if isinstance(s, Reduce)]
        for reduce in reduces:
            self._start(reduce, 0)
        held = strip.held > 0
        self.lanes = self._strip_lanes(stage, strip)
        if held:
            for statement in stage.body:
                self.statement(statement)
            self.flush()
        else:
            even = strip.count // strip.width * strip.width
            self._loop(stage, "0", even, strip.width)
            if even < strip.count:
                self.lanes = self._strip_lanes(stage, Strips(strip.count, 1, 0))
                self._loop(stage, str(even), strip.count, 1)
        self.lanes = Lanes(1, 1, ())
        self._finish([combine_rows(mapping, r.result, r.kind, self.values[r.value].dtype) for r in reduces])
        for reduce in reduces:
            self._result(reduce, 0)

    def _loop(self, stage: Stage, first: str, end: int, width: int) -> None:
        """A loop of the first skeleton over iterations up to `end`. What does not vary stands before it, once."""
        outside, self.lines = self.lines, []
        self.before = outside
        for statement in stage.body:
            if isinstance(statement, Store | Accumulate) or not self._is_there(statement.result):
                self.statement(statement)
        self.flush()
        start = f"{first} + thread * {width}" if first != "0" else f"thread * {width}"
        stride = self.mapping.group * width
        outside.append(f"for ({self.mapping.index} start = {start}; start < {end}; start += {stride}) {{")
        outside.extend(self.lines)
        outside.append("}")
        self.lines, self.before = outside, None

    def _is_there(self, value: int) -> bool:
        return value in self.values and not self.values[value].varying

    def _strip_lanes(self, stage: Stage, strip: Strips) -> Lanes:
        index, width, stride = self.mapping.index, strip.width, self.mapping.group * strip.width
        start = "start" if not strip.held else f"thread * {width}" if width > 1 else "thread"
        along = f" + i / {width} * {stride}" if strip.held > 1 else ""
        within = f" + i % {width}" if width > 1 else ""
        lines = [f"const {index} j = {start}{along}{within};", *decomposed(index, "j", self._stage_axes(stage))]
        masked = strip.held > 0 and strip.count % (stride * strip.held) != 0
        if masked:
            lines.append(f"const bool ok = j < {strip.count};")
        return Lanes(strip.lanes, width, tuple(lines), masked)

    def _start(self, reduce: Reduce, lanes: int) -> None:
        """Declares what a reduction is collected in."""
        dtype = self._type_of(reduce)
        type_, first = partial(reduce.kind, dtype), identity(reduce.kind, dtype)
        if lanes:
            self.lines.append(f"{type_} r{reduce.result}[{lanes}];")
            self.lines.append("#pragma unroll")
            self.lines.append(f"for (int i = 0; i < {lanes}; i++) {{ const {type_} none = {first}; "
                              f"r{reduce.result}[i] = none; }}")  # fmt: skip
        else:
            self.lines.append(f"{type_} r{reduce.result} = {first};")

    def _type_of(self, reduce: Reduce) -> DType:
        """The type of what a reduction combines, which may not be written yet."""
        if reduce.value in self.values:
            return self.values[reduce.value].dtype
        assert self.stage is not None
        return next(s.dtype for s in self.stage.body
                    if not isinstance(s, Store | Accumulate) and s.result == reduce.value)  # fmt: skip

    def _finish(self, combined: Sequence[tuple[list[str], list[str]]]) -> None:
        for before, _ in combined:
            self.lines.extend(before)
        if any(after for _, after in combined):
            self.lines.append("__syncthreads();")
            self._loaded, self._stored = False, set()
        for _, after in combined:
            self.lines.extend(after)

    def _result(self, reduce: Reduce, lanes: int) -> None:
        name = f"v{reduce.result}"
        part = ".position" if reduce.kind in POSITIONS else ""
        if lanes:
            self.array(name, reduce.dtype, lanes)
            self.lines.append("#pragma unroll")
            self.lines.append(f"for (int i = 0; i < {lanes}; i++) {name}[i] = r{reduce.result}[i]{part};")
        else:
            self.lines.append(f"const {register(reduce.dtype)} {name} = r{reduce.result}{part};")
        self.values[reduce.result] = Value(f"%{name}", reduce.dtype, bool(lanes))

    # Barriers --------------------------------------------------------------------------------------------------------

    def _barrier(self) -> None:
        if self.mapping.group > 1:
            one_warp = not self.by_lane and self.mapping.group <= WARP
            self.lines.append("__syncwarp();" if one_warp else "__syncthreads();")
        self._loaded, self._stored = False, set()

    def _order(self, stage: Stage) -> None:
        """A barrier before a stage with axes, if it touches what other threads store or load."""
        loads = {s.access.parameter for s in stage.body if isinstance(s, Load) and self.remembered(s) is None}
        stores = {s.access.parameter for s in stage.body if isinstance(s, Store | Accumulate)}
        if self._stored & (loads | stores) or (stores and self._loaded):
            self._barrier()
        self._loaded = self._loaded or bool(loads)
        self._stored |= stores

    def _row_statement(self, statement: Statement) -> None:
        """A statement of a stage without axes: all threads of a group execute it, one of them stores."""
        if isinstance(statement, Load) and self.remembered(statement) is None:
            if statement.access.parameter in self._stored:
                self.flush()
                self._barrier()
            self._loaded = True
        elif isinstance(statement, Store | Accumulate):
            if self._loaded or statement.access.parameter in self._stored:
                self.flush()
                self._barrier()
            self._loaded = self._loaded or isinstance(statement, Accumulate)
            self._stored.add(statement.access.parameter)
        self.statement(statement)

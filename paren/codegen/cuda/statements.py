"""One statement of a kernel after another as C, for all lanes of a thread at once.

Names: `a2` is the index of axis 2, `i` a lane, `thread` the number of a thread in its group, `place` that of the group
in the block, `live` whether it has a unit, `v7` value 7 and `r7` what is left of a reduction before it is one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from paren.codegen.cuda.functions import below_zero
from paren.codegen.cuda.mapping import Mapping, moves_side_by_side
from paren.codegen.cuda.places import Value, address, affine, constant, guard, loaded, register, stored
from paren.codegen.cuda.reductions import POSITIONS, combiner, identity, partial
from paren.codegen.cuda.spelling import spell
from paren.codegen.operations import Operation
from paren.codegen.writer import Writer, literal
from paren.ir.types import DType
from paren.plan.kernel import (
    Access,
    Accumulate,
    AxisIndex,
    Compute,
    Constant,
    Load,
    Reduce,
    Stage,
    Statement,
    Store,
)


@dataclass
class Lanes:
    """The lanes of the statements that are being written: how many, how many side by side, the lines that say what the
    indices of lane `i` are, and whether a lane may lie beyond the end (`ok` says that it does not)."""

    count: int
    width: int
    lines: tuple[str, ...]
    masked: bool = False


@dataclass
class Statements:
    """Writes `lines`. A value of the first skeleton's rows and of all lanes is written once, what differs from lane to
    lane in loops over the lanes, many statements in one where no wide access comes between."""

    mapping: Mapping
    lines: list[str] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    _writer: Writer = field(default_factory=Writer)
    _checked: bool = False
    pending: list[str] = field(default_factory=list)  # statements of one lane, not yet in a loop
    before: list[str] | None = None  # where statements of the row go while a loop is written
    _loaded: bool = False  # since the last barrier: whether anything was loaded, and what was stored
    _stored: set[int] = field(default_factory=set)
    known: dict[tuple[object, ...], Value] = field(default_factory=dict)  # what later stages need not repeat

    def __post_init__(self) -> None:
        self.kernel = self.mapping.kernel
        self.lanes = Lanes(1, 1, ())
        self.stage: Stage | None = None
        self.below_zero = below_zero(self.kernel)

    @property
    def by_lane(self) -> bool:
        """Whether lanes are rows (the second skeleton)."""
        return self.mapping.lane is not None

    # Statements ------------------------------------------------------------------------------------------------------

    def statement(self, statement: Statement) -> None:
        """Writes a statement."""
        match statement:
            case Constant(result, value, dtype):
                self.values[result] = Value(literal(value, dtype), dtype, False)
            case AxisIndex(result, index, dtype):
                varying = self._varies(axis for axis, _ in index.terms)
                key = ("index", index, dtype, self._axes(varying))
                if not self._recall(key, result):
                    self._define(result, dtype, varying, _from_index(affine(index), dtype))
                    self._keep(key, result)
            case Load():
                self._load(statement)
            case Compute():
                self._compute(statement)
            case Reduce(result, kind, value, dtype):
                if self.stage is not None and self.stage.axes:
                    self._collect(result, kind, self.values[value])
                else:
                    alone = Value("0", dtype, False) if kind in POSITIONS else self.values[value]
                    self.values[result] = alone
            case Store(access, value):
                self.check_stop()
                self._store(access, self.values[value])
                self._remember(statement)
            case Accumulate(access, value):
                self.check_stop()
                self._accumulate(access, self.values[value])

    def check_stop(self) -> None:
        """Ends the kernel if it must not run, before it first stores or begins a loop: by then its loads are under
        way, and the flag has not kept them waiting."""
        if not self._checked:
            self.flush()
            self.lines.append("if (ended) return;")
            self._checked = True

    def _varies(self, axes: Iterable[int]) -> bool:
        """Whether something differs from lane to lane that depends on some axes."""
        if self.mapping.lane is not None:
            return any(axis == self.mapping.lane for axis in axes)
        return any(axis >= self.kernel.rows for axis in axes)

    def _access_varies(self, access: Access) -> bool:
        gathered = any(self.values[index.value].varying for index in access.indices if index.value is not None)
        return gathered or self._varies(axis for index in access.indices for axis, _ in index.terms)

    def _define(self, result: int, dtype: DType, varying: bool, expression: str, source: Value | None = None) -> None:
        name = f"v{result}"
        if varying:
            self.array(name, dtype, self.lanes.count)
            self.pending.append(f"{name}[i] = {expression};")
        else:
            self._once([f"const {register(dtype)} {name} = {expression};"])
        self.values[result] = Value(f"%{name}", dtype, varying, source)

    def array(self, name: str, dtype: DType, lanes: int) -> None:
        self.lines.append(f"{register(dtype)} {name}[{lanes}];")

    def _once(self, lines: Iterable[str]) -> None:
        """Lines of what does not vary: before the loop of a stage of the first skeleton."""
        (self.lines if self.before is None else self.before).extend(lines)

    def _compute(self, statement: Compute) -> None:
        operands = [self.values[arg] for arg in statement.args]
        varying = any(operand.varying for operand in operands)
        names = tuple(operand.text for operand in operands)
        key = (statement.op, names, statement.dtype, statement.attrs, self._axes(varying))
        if self._recall(key, statement.result):
            return
        source = None
        if statement.op == "cast" and statement.dtype.is_short and operands[0].dtype is not statement.dtype:
            writer = self._fresh()
            wide = Operation(writer, set()).cast(operands[0].operand, operands[0].dtype, DType.FLOAT32)
            single = Value(wide, DType.FLOAT32, False)
            lines, expression = self.spelled(writer), f"paren_round_{statement.dtype}({single.c})"
            source = operands[0] if operands[0].dtype is DType.FLOAT32 else None
        else:
            writer = self._fresh()
            types = [operand.dtype for operand in operands]
            name = Operation(writer, set()).write(
                statement.op, [operand.operand for operand in operands], types, statement.dtype, dict(statement.attrs)
            )
            lines, expression = self.spelled(writer), Value(name, statement.dtype, False).c
            if statement.op == "exp" and statement.args[0] in self.below_zero:
                lines, expression = [], f"paren_exp_below({operands[0].c})"
        if varying:
            self.pending.extend(lines)
        else:
            self._once(lines)
        self._define(statement.result, statement.dtype, varying, expression, source)
        self._keep(key, statement.result)

    def _axes(self, varying: bool) -> tuple[int, ...]:
        """The axes over which lanes are the same lanes."""
        return self.stage.axes if self.stage is not None and varying and not self.by_lane else ()

    def _recall(self, key: tuple[object, ...], result: int) -> bool:
        """Whether a value is there already; it then has the name of the result too."""
        known = self.known.get(key)
        if known is not None:
            self.values[result] = known
        return known is not None

    def _keep(self, key: tuple[object, ...], result: int) -> None:
        value = self.values[result]
        if self._lasting() or (not value.varying and not self.by_lane):
            self.known[key] = value

    def _fresh(self) -> Writer:
        """The writer of names that no other statement has."""
        self._writer.lines = []
        return self._writer

    def spelled(self, writer: Writer) -> list[str]:
        return [spell(line).strip() for line in writer.lines]

    # Memory ----------------------------------------------------------------------------------------------------------

    def _key(self, access: Access, dtype: DType, fill: str) -> tuple[object, ...]:
        """What a load is remembered by: equal for loads of one element in every lane."""
        return (access, dtype, fill, self._axes(self._access_varies(access)))

    def remembered(self, load: Load) -> Value | None:
        if any(i.value is not None and i.value not in self.values for i in load.access.indices):
            return None
        return self.known.get(self._key(load.access, load.dtype, repr(load.fill)))

    def _remember(self, store: Store) -> None:
        """What is stored may be taken from its register in later stages of the same lanes."""
        parameter = store.access.parameter
        self.known = {key: value for key, value in self.known.items()
                       if not (isinstance(key[0], Access) and key[0].parameter == parameter)}  # fmt: skip
        value = self.values[store.value]
        if self._lasting() and value.varying == self._access_varies(store.access):
            self.known[self._key(store.access, value.dtype, repr(0))] = value

    def _lasting(self) -> bool:
        """Whether values that are defined now are visible to the end."""
        within = self.stage is not None and bool(self.stage.axes)
        return not within or (not self.by_lane and self.before is None)

    def _load(self, load: Load) -> None:
        known = self.remembered(load)
        if known is not None:
            self.values[load.result] = known
            return
        access, dtype = load.access, load.dtype
        varying = self._access_varies(access)
        if not varying:
            self._define(load.result, dtype, False, self._element(access, dtype, load.fill, masked=False))
        elif self._is_wide(access):
            self._load_wide(load)
        else:
            self._define(load.result, dtype, True, self._element(access, dtype, load.fill, self.lanes.masked))
        if not self.kernel.parameters[access.parameter].writes:
            self._keep(self._key(access, dtype, repr(load.fill)), load.result)

    def _element(self, access: Access, dtype: DType, fill: float | int | bool, masked: bool) -> str:
        element = loaded(access.parameter, address(access, self.values), dtype)
        checks = [check for check in ("ok" if masked else "", guard(self.kernel, access)) if check]
        return f"{' && '.join(checks)} ? {element} : {constant(fill, dtype)}" if checks else element

    def _is_wide(self, access: Access) -> bool:
        """Whether the lanes of an access move together."""
        lane = self.mapping.lane if self.by_lane else self.stage.axes[-1] if self.stage and self.stage.axes else None
        if lane is None or self.lanes.width == 1:
            return False
        if any(i.value is not None and self.values[i.value].varying for i in access.indices):
            return False
        return moves_side_by_side(self.kernel, access, lane, self.lanes.width)

    def _load_wide(self, load: Load) -> None:
        self.flush()
        access, dtype, width = load.access, load.dtype, self.lanes.width
        name, kind = f"v{load.result}", f"_{dtype}" if dtype.is_short else "_flags" if dtype is DType.BOOL else ""
        self.array(name, dtype, self.lanes.count)
        get = f"paren_get{kind}<{width}>({name} + i, p{access.parameter} + {address(access, self.values)});"
        checks = [check for check in ("ok" if self.lanes.masked else "", guard(self.kernel, access)) if check]
        if checks:
            fill = constant(load.fill, dtype)
            self._chunks([
                f"if ({' && '.join(checks)}) {get}",
                "else {",
                "#pragma unroll",
                f"for (int k = 0; k < {width}; k++) {name}[i + k] = {fill};",
                "}",
            ])  # fmt: skip
        else:
            self._chunks([get])
        self.values[load.result] = Value(f"%{name}", dtype, True)

    def _store(self, access: Access, value: Value) -> None:
        where = address(access, self.values)
        varying = self._access_varies(access) or value.varying
        condition = self._storing(varying)
        if varying and self._is_wide(access) and value.varying:
            self.flush()
            width, array, kind = self.lanes.width, value.array, "_flags" if value.dtype is DType.BOOL else ""
            if value.dtype.is_short:
                kind = f"_{value.dtype}"
                array = value.source.array if value.source is not None and value.source.varying else array
            self._chunks([f"{condition}paren_put{kind}<{width}>(p{access.parameter} + {where}, {array} + i);"])
            return
        line = condition + stored(access.parameter, where, value.c, value.dtype)
        if varying:
            self.pending.append(line)
            if not self.by_lane and not (self.stage and self.stage.axes):
                self.flush()
        else:
            self.lines.append(line)

    def _storing(self, varying: bool) -> str:
        """The condition under which a thread stores."""
        within = self.stage is not None and bool(self.stage.axes)
        checks = []
        if self.mapping.group > 1:
            checks.append("live")
            if not within:
                checks.append("turn == 0" if self.by_lane else "thread == 0")
        if self.lanes.masked and varying:
            checks.append("ok")
        return f"if ({' && '.join(checks)}) " if checks else ""

    def _accumulate(self, access: Access, value: Value) -> None:
        where = address(access, self.values)
        every = self.stage is not None and bool(self.stage.axes) and not self.by_lane  # lane adds, whatever it adds
        varying = every or self._access_varies(access) or value.varying
        element = loaded(access.parameter, where, value.dtype)
        writer = self._fresh()
        left = Value(f"%e{access.parameter}", value.dtype, False)
        total = Operation(writer, set()).write("add", [left.operand, value.operand], [value.dtype] * 2, value.dtype, {})
        result = Value(total, value.dtype, False).c
        lines = [
            f"{self._storing(varying)}{{",
            f"const {register(value.dtype)} e{access.parameter} = {element};",
            *self.spelled(writer),
            stored(access.parameter, where, result, value.dtype),
            "}",
        ]
        if varying:
            self.pending.extend(lines)
        else:
            self.lines.extend(lines)

    def _collect(self, result: int, kind: str, value: Value) -> None:
        """Combines what the lanes hold into what a thread has collected."""
        function, type_ = combiner(kind, value.dtype), partial(kind, value.dtype)
        whole = f"{{{value.c}, (int)j}}" if kind in POSITIONS else value.c
        if self.by_lane:
            self.pending.append(f"{{ const {type_} now = {whole}; r{result}[i] = {function}::of(r{result}[i], now); }}")
            return
        lanes = self.lanes.count
        self.lines.append(f"{type_} m{result}[{lanes}];")
        self.pending.append(f"{{ const {type_} now = {whole}; m{result}[i] = now; }}")
        if self.lanes.masked:
            none = identity(kind, value.dtype)
            self.pending.append(f"if (!ok) {{ const {type_} none = {none}; m{result}[i] = none; }}")
        self.flush()
        self.lines.append(f"r{result} = {function}::of(r{result}, paren_folded<{function}, {lanes}>(m{result}));")

    # Loops over lanes ------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        if not self.pending:
            return
        lines, self.pending = self.pending, []
        self.lines += [
            "#pragma unroll",
            f"for (int i = 0; i < {self.lanes.count}; i++) {{",
            *(f"  {line}" for line in [*self.lanes.lines, *lines]),
            "}",
        ]

    def _chunks(self, lines: list[str]) -> None:
        """A loop over the first lanes of what lies side by side."""
        self.lines += [
            "#pragma unroll",
            f"for (int i = 0; i < {self.lanes.count}; i += {self.lanes.width}) {{",
            *(f"  {line}" for line in [*self.lanes.lines, *lines]),
            "}",
        ]


def _from_index(whole: str, dtype: DType) -> str:
    """A sum of indices as a value of an element type."""
    if dtype is DType.BOOL:
        return f"({whole}) != 0"
    if dtype is DType.FLOAT32:
        return f"(float)(int)({whole})"
    return f"({register(dtype)})({whole})"

"""The graphs around a step of a call that makes many: one assembles its batch from arrays in memory, one keeps what it
gave."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from paren.data.resident import Source, as_bytes
from paren.ir.graph import Builder, Graph, Node
from paren.ir.program import Field, Program
from paren.ir.types import DType, TensorType
from paren.passes.assemble import LOSS, RATE, SQUARES, WEIGHT, WHOLE
from paren.pipeline import Planning, plan_graph
from paren.plan.plan import Place, Plan
from paren.text.source import Span

CURSOR, FIRST, PLACES, COUNTS, HISTORY = "$cursor", "$first", "$places", "$counts", "$history"
KEPT = (LOSS, WEIGHT, SQUARES, RATE)  # the columns of the history


@dataclass(frozen=True)
class FeedPlans:
    """`feed` fills what `accumulate` reads of a batch; `keep` writes a line of the history. `steps`: of a table.
    `types`: of what the two share, by name."""

    feed: Plan
    keep: Plan
    steps: int
    types: Mapping[str, TensorType]

    @property
    def arena_bytes(self) -> int:
        return max(self.feed.arena_bytes, self.keep.arena_bytes)


def plan_feed(
    program: Program, sources: Mapping[str, Source], accumulate: Plan, steps: int, planning: Planning
) -> FeedPlans:
    """Plans both graphs, for tables of `steps` steps and what `accumulate` reads of a batch."""
    read = {buffer.name for buffer in accumulate.buffers if buffer.place is Place.INPUT}
    types = table_types(program.rows, steps)
    feed = feed_graph(program.data.fields, sources, types, read, program.data.span)
    keep = keep_graph(types, program.data.span)
    planned = [plan_graph(graph, graph.outputs.keys(), planning) for graph in (feed, keep)]
    return FeedPlans(planned[0], planned[1], steps, types)


def table_types(rows: int, steps: int) -> dict[str, TensorType]:
    """What the two graphs share, for tables of so many steps of so many rows."""
    return {
        CURSOR: TensorType(DType.INT32, ()),
        FIRST: TensorType(DType.UINT32, ()),
        PLACES: TensorType(DType.INT64, (steps, rows)),
        COUNTS: TensorType(DType.INT32, (steps,)),
        HISTORY: TensorType(DType.FLOAT64, (steps, len(KEPT))),
        RATE: TensorType(DType.FLOAT32, ()),
    }


def source_input(field: str) -> str:
    """The name of the input that a field's values are gathered from."""
    return f"source:{field}"


def feed_graph(
    fields: Sequence[Field],
    sources: Mapping[str, Source],
    types: Mapping[str, TensorType],
    wanted: Collection[str],
    span: Span,
) -> Graph:
    """The batch of step `$cursor` (int32[]) of a table `$places` (int64[steps rows]), `$counts` (int32[steps]), which
    begins at position `$first` (uint32[]): those of its fields, `$rows`, `$valid` and `$step` that are `wanted`, as the
    loader makes them."""
    builder = Builder("feed")
    cursor = builder.input(CURSOR, types[CURSOR], "state", span)
    table, counts = (builder.input(name, types[name], "batch", span) for name in (PLACES, COUNTS))
    first = builder.input(FIRST, types[FIRST], "scalar", span)
    places = builder.emit("take", (table, cursor), {}, span)
    count = builder.emit("take", (counts, cursor), {}, span)
    row = builder.emit("iota", (), {"shape": places.shape, "axis": 0, "dtype": DType.INT32}, span)
    last = builder.apply("sub", count, 1, span=span)
    outputs = {
        "$rows": builder.cast(builder.apply("minimum", row, last, span=span), DType.UINT32),
        "$valid": builder.cast(builder.apply("lt", row, count, span=span), DType.FLOAT32),
        "$step": builder.apply("add", first, builder.cast(cursor, DType.UINT32), span=span),
    }
    for field in fields:
        value = _gather(builder, field, sources[field.name], places)
        outputs[field.name] = builder.cast(value, field.type.dtype)
    return builder.graph({name: node for name, node in outputs.items() if name in wanted})


def _gather(builder: Builder, field: Field, source: Source, places: Node) -> Node:
    array = as_bytes(source.array)
    type_ = TensorType(DType(array.dtype.name), array.shape)
    values = builder.input(source_input(field.name), type_, "batch", field.span)
    if source.length is not None:
        shape = (*places.shape, source.length)
        within = builder.emit("iota", (), {"shape": shape, "axis": 1, "dtype": DType.INT64}, field.span)
        begin = builder.apply("add", places, source.shift, span=field.span)
        places = builder.apply("add", builder.broadcast(begin, shape, (0,)), within, span=field.span)
    taken = builder.emit("take", (values, places), {}, field.span)
    if array is source.array:
        return taken
    parts = [builder.cast(_last(builder, taken, number), DType.INT32) for number in (0, 1)]
    return builder.apply("add", parts[0], builder.apply("mul", parts[1], 256))


def _last(builder: Builder, node: Node, number: int) -> Node:
    """The elements of a number along the last axis."""
    rank, shape = node.type.rank, node.shape[:-1]
    attrs = {"start": (0,) * (rank - 1) + (number,), "stop": (*shape, number + 1), "step": (1,) * rank}
    part = builder.emit("slice", (node,), attrs, node.span)
    return builder.emit("reshape", (part,), {"shape": shape}, node.span)


def keep_graph(types: Mapping[str, TensorType], span: Span) -> Graph:
    """Adds a step's sums to line `$cursor` of `$history` (float64[steps 4], 0 before) and moves the cursor on."""
    builder = Builder("keep")
    cursor, history = (builder.input(name, types[name], "state", span) for name in (CURSOR, HISTORY))
    values = [builder.input(name, WHOLE, "scalar", span) for name in (LOSS, WEIGHT, SQUARES)]
    values.append(builder.cast(builder.input(RATE, types[RATE], "scalar", span), DType.FLOAT64))
    line = [builder.emit("reshape", (value,), {"shape": (1,)}, span) for value in values]
    kept = builder.emit("concat", line, {"axis": 0}, span)
    return builder.graph(
        {
            HISTORY: builder.emit("scatter_add", (history, cursor, kept), {}, span),
            CURSOR: builder.apply("add", cursor, 1, span=span),
        }
    )

"""The graphs that a run calls, made from those that the program declares.

One step runs `accumulate` for every microbatch, then `finish`, then, unless that says `$stop`, the updates. Losses and
gradients are sums over examples; the division by the global weight is the factor `$scale` of the update, so how a batch
is split into microbatches cannot change the result by more than rounding.

The graphs that run the model, all but finish and update, come in the precision of the run. In float16, gradients are
those of the loss times a scale that is a state, since small ones would vanish: the update divides by it too. It halves
when a gradient leaves the range, a step that is then left out, and doubles after `GROWS_AFTER` updates. `attends`: for
a target that has a step for attention.
"""

from __future__ import annotations

from paren.ir.graph import Builder, Graph, Node
from paren.ir.program import Program, UpdateGroup
from paren.ir.rebuild import rebuild
from paren.ir.types import DType, TensorType
from paren.passes.alternatives import choose
from paren.passes.gradient import differentiate
from paren.passes.precision import set_precision
from paren.text.errors import InternalError
from paren.text.source import Span

LOSS, WEIGHT, SQUARES = "$loss", "$weight", "$squares"  # sums over a step: float64
LOSS_SCALE, STEADY = "$loss-scale", "$steady"  # float32[]; int32[], updates since it changed
FIRST_SCALE, LEAST_SCALE, MOST_SCALE, GROWS_AFTER = 1024.0, 1.0, 2.0**24, 2000
SCALE, STOP, UPDATES, UPDATE, RATE = "$scale", "$stop", "$updates", "update", "rate"
WHOLE = TensorType(DType.FLOAT64, ())
ROW = 1 << 16  # elements of the gradients that are squared and summed by one unit of work


def gradient_slot(parameter: str) -> str:
    """The name of a parameter's gradient as a state input."""
    return f"gradient:{parameter}"


def accumulation(program: Program, *, adding: bool, attends: bool = False) -> Graph:
    """The graph of one microbatch: forward, backward, and the step's sums: the gradient `gradient:NAME` of each trained
    parameter, `$loss` and `$weight`. With `adding` these states are added to, else filled (slots that a plan of the
    graph writes: `sums_of`)."""
    builder = Builder("accumulate")
    source = choose(program.loss, attends, program.run.precision)
    made = rebuild(source, builder)
    loss, weight = (made[source.outputs[name]] for name in ("loss", "weight"))
    total, total_weight = _weighted_sums(builder, loss, weight)
    trained = tuple(slot.name for slot in program.parameters if slot.group >= 0)
    parameters = {str(node.attrs["name"]): node for node in builder.inputs if node.attrs["role"] == "state"}
    used = [name for name in trained if name in parameters]
    scaled = total
    if program.scales_loss:
        scale = builder.input(LOSS_SCALE, total.type, "state", total.span)
        scaled = builder.emit("mul", (total, scale), {}, total.span)
    gradients = differentiate(builder, scaled, [parameters[name] for name in used])
    sums: dict[str, Node] = {
        LOSS: builder.cast(total, DType.FLOAT64),
        WEIGHT: builder.cast(total_weight, DType.FLOAT64),
    }
    sums |= {gradient_slot(name): gradient for name, gradient in zip(used, gradients, strict=True)}
    outputs = dict(sums)
    for name, part in sums.items() if adding else ():
        slot = builder.input(name, part.type, "state", part.span)
        outputs[name] = builder.emit("add", (slot, part), {}, part.span)
    return set_precision(builder.graph(outputs), program.run.precision, [gradient_slot(name) for name in used])


def finish_graph(size: int, clip: float | None, span: Span, scaled: bool = False) -> Graph:
    """What a step's sums say about its update.

    States: `gradients` (float32[size], of the sum of losses), `$loss`, `$weight`, `$updates` (int32[], how many were
    made). Outputs: `$squares`, the sum of squares of the gradients; `$stop` (int32[]), 1 if there is no update, because
    a sum is not finite or the weight is not above 0; `$scale` (float32[]), 1 / weight, and less where the norm of
    gradients / weight is above `clip`; `$updates`, one more unless `$stop`, and the same as float32, `update`. If they
    are `scaled`, the states `$loss-scale` and `$steady` are those of the next step unless `$stop`; `$squares` and
    `$scale` are then of the gradients divided by this step's.
    """
    builder = Builder("finish")
    loss, weight = (builder.input(name, WHOLE, "state", span) for name in (LOSS, WEIGHT))
    squares = _sum_of_squares(builder, size, span)

    def apply(operation: str, *operands: Node | float) -> Node:
        return builder.apply(operation, *operands, span=span)

    divisor = weight
    if scaled:
        wide = builder.cast(
            builder.input(LOSS_SCALE, TensorType(DType.FLOAT32, ()), "state", span), DType.FLOAT64, span
        )
        squares = apply("div", apply("div", squares, wide), wide)  # exact, as it is a power of two
        divisor = apply("mul", weight, wide)
    finite = [apply("is_finite", total) for total in (loss, weight, squares)]
    counts = apply("and", apply("and", finite[0], finite[1]), apply("and", finite[2], apply("gt", weight, 0.0)))
    scale = apply("div", 1.0, divisor)
    if clip is not None:
        norm = apply("div", apply("sqrt", squares), weight)
        scale = apply("where", apply("gt", norm, clip), apply("mul", scale, apply("div", clip, norm)), scale)
    made = builder.input(UPDATES, TensorType(DType.INT32, ()), "state", span)
    number = apply("add", made, builder.cast(counts, DType.INT32, span))
    outputs = {
        SQUARES: squares,
        SCALE: builder.cast(scale, DType.FLOAT32, span),
        STOP: builder.cast(apply("not", counts), DType.INT32, span),
        UPDATES: number,
        UPDATE: builder.cast(number, DType.FLOAT32, span),
    }
    return builder.graph(outputs | (_next_scale(builder, counts, span) if scaled else {}))


def _next_scale(builder: Builder, counts: Node, span: Span) -> dict[str, Node]:
    """The scale of the next step's loss, and how many updates were made with it; both as they are unless this step
    `counts`."""

    def apply(operation: str, *operands: Node | float) -> Node:
        return builder.apply(operation, *operands, span=span)

    scale = builder.input(LOSS_SCALE, TensorType(DType.FLOAT32, ()), "state", span)
    before = builder.input(STEADY, TensorType(DType.INT32, ()), "state", span)
    steady = apply("add", before, builder.cast(counts, DType.INT32, span))
    grows = apply("ge", steady, GROWS_AFTER)
    grown = apply("minimum", apply("mul", scale, 2.0), MOST_SCALE)
    return {LOSS_SCALE: apply("where", grows, grown, scale), STEADY: apply("where", grows, 0, steady)}


def _sum_of_squares(builder: Builder, size: int, span: Span) -> Node:
    """Of `gradients`, in float64: no square of a float32 leaves its range. Rows first, which threads share."""
    if size == 0:
        return builder.constant(0.0, DType.FLOAT64, span)
    node = builder.input("gradients", TensorType(DType.FLOAT32, (size,)), "state", span)
    if size > ROW and size % ROW == 0:
        node = builder.emit("reshape", (node,), {"shape": (size // ROW, ROW)}, span)
    wide = builder.cast(node, DType.FLOAT64, span)
    total = builder.emit("mul", (wide, wide), {}, span)
    while total.type.rank:
        total = builder.emit("sum", (total,), {"axes": (total.type.rank - 1,)}, span)
    return total


def update_graph(group: UpdateGroup, key: str, average: float | None) -> Graph:
    """An update rule on `gradient` x `$scale`; `gradient` is a state that it reads. `key` picks one of the group's
    graphs.

    With `average` d, the state `average` becomes d x average + (1 - d) x the new parameter.
    """
    source = group.graphs[key]
    builder = Builder("update")
    gradient_input = next(node for node in source.inputs if node.attrs["name"] == "gradient")
    span = gradient_input.span
    scale = builder.input(SCALE, TensorType(DType.FLOAT32, ()), "scalar", span)
    gradient = builder.input("gradient", gradient_input.type, "state", span)
    made = rebuild(source, builder, {"gradient": builder.apply("mul", gradient, scale, span=span)})
    outputs = {name: made[node] for name, node in source.outputs.items()}
    if average is not None:
        parameter = outputs["parameter"]
        old = builder.input("average", parameter.type, "state", span)
        kept = builder.apply("mul", old, average, span=span)
        new = builder.apply("mul", parameter, 1.0 - average, span=span)
        outputs["average"] = builder.emit("add", (kept, new), {}, span)
    return builder.graph(outputs)


def evaluation(program: Program, attends: bool = False) -> Graph:
    """Weighted sums of one evaluation microbatch: `sum:NAME` and `weight:NAME` for the loss and each metric."""
    builder = Builder("evaluate")
    source = choose(program.evaluate, attends, program.run.precision)
    made = rebuild(source, builder)
    found = {name: made[node] for name, node in source.outputs.items()}
    outputs: dict[str, Node] = {}
    names = [("loss", "loss", "weight")]
    names += [(name, f"metric:{name}", f"weight:{name}") for name in program.metrics]
    for name, value, weight in names:
        total, total_weight = _weighted_sums(builder, found[value], found[weight])
        outputs[f"sum:{name}"], outputs[f"weight:{name}"] = total, total_weight
    return set_precision(builder.graph(outputs), program.run.precision)


def diagnosis(program: Program, name: str, attends: bool) -> Graph:
    """A diagnostic reduced over one microbatch: outputs `value` and `weight`. Elements of weight 0 do not count."""
    diagnostic, declared = program.diagnostics[name]
    builder = Builder("diagnose")
    source = choose(declared, attends, program.run.precision)
    made = rebuild(source, builder)
    value, weight = made[source.outputs["value"]], made[source.outputs["weight"]]
    value = builder.cast(value, DType.FLOAT32)
    total, total_weight = _weighted_sums(builder, value, weight)
    axes = {"axes": tuple(range(value.type.rank))}
    if diagnostic.reduce in ("max", "min"):
        empty = float("-inf") if diagnostic.reduce == "max" else float("inf")
        counted = builder.apply("ne", weight, 0.0)
        kept = builder.emit("where", (counted, value, _filled(builder, empty, value)), {}, value.span)
        result = builder.emit(diagnostic.reduce, (kept,), axes, value.span)
    elif diagnostic.reduce == "sum":
        result = total
    elif diagnostic.reduce == "mean":
        result = builder.emit("div", (total, total_weight), {}, value.span)
    else:
        raise InternalError("assemble", f"diagnostic {name} has the unknown reducer {diagnostic.reduce}")
    return set_precision(builder.graph({"value": result, "weight": total_weight}), program.run.precision)


def _weighted_sums(builder: Builder, value: Node, weight: Node) -> tuple[Node, Node]:
    """The sum of value x weight, and of weight. Where the weight is 0 the value does not count, be it not finite."""
    value = builder.cast(value, DType.FLOAT32)
    axes = {"axes": tuple(range(value.type.rank))}
    counted = builder.apply("ne", weight, 0.0)
    product = builder.emit("mul", (value, weight), {}, value.span)
    kept = builder.emit("where", (counted, product, _filled(builder, 0.0, product)), {}, value.span)
    return builder.emit("sum", (kept,), axes, value.span), builder.emit("sum", (weight,), axes, weight.span)


def _filled(builder: Builder, value: float, like: Node) -> Node:
    return builder.broadcast(builder.constant(value, like.dtype, like.span), like.shape)


def resize_flat(graph: Graph, size: int) -> Graph:
    """The graph of a flat update for vectors of another size: all its vectors have one size, the rest are scalars."""
    builder = Builder(graph.name)
    made: dict[Node, Node] = {}
    for node in (*graph.inputs, *graph.nodes):
        if node in made:
            continue
        attrs = dict(node.attrs)
        if node.op.name == "input":
            shape = (size,) if node.shape else ()
            name, role = str(attrs["name"]), str(attrs["role"])
            made[node] = builder.input(name, TensorType(node.dtype, shape), role, node.span)
            continue
        if node.op.name not in ("broadcast", "constant") and node.op.kind != "elementwise":
            raise InternalError("assemble", f"{node!r} at {node.span} stands in a flat update")
        if "shape" in attrs:
            attrs["shape"] = (size,)
        made[node] = builder.emit(node.op.name, [made[arg] for arg in node.args], attrs, node.span)
    return builder.graph({name: made[node] for name, node in graph.outputs.items()})

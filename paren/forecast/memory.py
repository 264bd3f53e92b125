"""What a run holds in memory at once, by its plans: every part, and where most is alive."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from paren.codegen.division import touched_bytes
from paren.codegen.tile import LARGEST
from paren.data.loader import PREFETCH
from paren.data.resident import block_steps, making_bytes
from paren.forecast.feed import table_types
from paren.forecast.plans import Layout, Plans, adds, held_bytes, lay_out
from paren.ir.program import Program
from paren.parallel.exchange import BUCKET, Needs
from paren.parallel.tree import held_sums
from paren.plan.cost import library_bytes
from paren.plan.memory import ALIGNMENT, busiest_step
from paren.plan.plan import Attention
from paren.runtime.block import block_bytes, input_types
from paren.runtime.threads import default_threads
from paren.train.places.direct import BUFFER, LARGE
from paren.train.places.transfer import HELD
from paren.train.tensor_file import CHUNK, COPIES

HOST = 384 << 10  # bytes of Python's objects and of threads of its own while a run goes on: 200 to 450 KiB were seen
STACK = 9 << 10  # bytes that a thread of a team touches of its stack and of what is its own


@dataclass(frozen=True)
class MemoryPlan:
    """What a run holds at once: bytes of each part, and the graph with the largest arena and where that peaks.

    | part | holds |
    |---|---|
    | parameters, gradients, optimizer, averages | the flat state vectors, with the sums of a tree of gradients |
    | live | the arena that all graphs share: the largest of them, beside gradients that lie in it |
    | inputs | batches read ahead, the one that trains, and one of an evaluation |
    | products | packed operands of products, for each thread |
    | exchange | on several ranks, what gradients of others are received in, and are rounded in |
    | carried | what rounding between nodes took off: this rank's, and, to be saved, all nodes' |
    | saving | what a checkpoint's chunk and a large file need; the copy of the state, where one is; parts of uploads |
    | host | Python's own objects, what threads have of their own |

    `peak_gradients`: bytes of the gradients that the arena of the peak's graph begins with, and that `live` leaves out.

    On a device with memory of its own, `parts` are what lies there: the state, `live`, the batches that its graphs read
    as `inputs`, the training data where it has them, as `data`, what libraries take for `attention` while it runs, and
    where cards send each other gradients `exchange` and what this rank has `carried`. The batches that wait, sums of a
    tree of gradients, `saving`, `host` and the rest are `host_parts` then; what else libraries take is not the plan's.
    """

    parts: Mapping[str, int]
    peak_graph: str
    peak_place: str
    host_parts: Mapping[str, int] = field(default_factory=dict)
    peak_gradients: int = 0

    @property
    def planned(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    @property
    def on_host(self) -> int:
        """Bytes of all that lies in host memory."""
        return sum(self.host_parts.values()) if self.host_parts else self.planned


def memory_of(program: Program, plans: Plans) -> MemoryPlan:
    """The memory of a run by its plans; the engine and the loader allocate just this."""
    layout = lay_out(program)
    held = {"accumulate": held_bytes(program, layout)}
    needs = {name: plan.arena_bytes - held.get(name, 0) for name, plan in plans.all.items()}
    name = max(needs, key=lambda each: needs[each])
    plan = plans.all[name]
    state, carried = state_parts(program, layout), _carried_bytes(program, layout)
    copy = sum(size for part, size in state.items() if part != "gradients") + carried if plans.copies_state else 0
    parts = state | {"live": max(ALIGNMENT, needs[name])}
    place = str(plan.steps[busiest_step(plan)].spans[0]) if plan.steps else ""
    buffers, leaves = _exchange_needs(program, layout), 4 * layout.trained * held_sums(program)
    saving = _saving_bytes(layout, state) + copy
    inputs = _loader_bytes(program) + _table_bytes(program, walks=not plans.planning.traits.own_memory)
    if plans.planning.uploads:  # what fits into one part is held once more while it is sent
        saving += min(HELD, 2 * sum(size for part, size in state.items() if part != "gradients"))
    if plans.planning.traits.own_memory:
        attention = max(
            (library_bytes(s) for p in plans.all.values() for s in p.steps if isinstance(s, Attention)), default=0
        )
        parts |= {"inputs": _read_bytes(program, plans), "data": plans.data_bytes, "attention": attention}
        if program.linked:
            parts |= {"exchange": buffers.on_cards, "carried": buffers.carried}
            exchange = 0
        else:
            exchange = buffers.bytes + (4 * min(BUCKET, layout.trained) if program.ranks > 1 else 0)  # on their way
            carried += buffers.carried
        saving += COPIES * CHUNK
        host = {"gradients": leaves, "inputs": inputs, "exchange": exchange, "carried": carried, "saving": saving}
        host |= {"host": HOST}
        return MemoryPlan(parts, name, place, host, held.get(name, 0))
    threads = plans.planning.threads or default_threads()
    parts["gradients"] += leaves
    parts |= {"inputs": inputs, "products": threads * _product_bytes(plans)}
    parts |= {"exchange": buffers.bytes, "carried": buffers.carried + carried, "saving": saving}
    parts |= {"host": HOST + (threads - 1) * STACK}
    return MemoryPlan(parts, name, place, peak_gradients=held.get(name, 0))


def state_parts(program: Program, layout: Layout) -> dict[str, int]:
    """Bytes of the state vectors, which no choice of the planner changes."""
    moments = sum((end - begin) * len(g.moments) for g in program.updates for begin, end in [layout.groups[g.number]])
    return {
        "parameters": 4 * layout.total,
        "gradients": 4 * layout.trained,
        "optimizer": 4 * moments,
        "averages": 4 * layout.trained if program.run.average is not None else 0,
    }


def _exchange_needs(program: Program, layout: Layout) -> Needs:
    """What the sums of gradients over the ranks take on each."""
    here = program.ranks // program.nodes
    return Needs.of(layout.trained, here, program.nodes, program.rounds, program.drops_sums)


def _carried_bytes(program: Program, layout: Layout) -> int:
    """What rounding between nodes took off, of all of them, where one rank writes it."""
    return 4 * layout.trained * program.nodes if program.rounds else 0


def _read_bytes(program: Program, plans: Plans) -> int:
    """What graphs read of a batch, for each graph at a place of its own, and the tables that batches are gathered
    by."""
    read = [input_types(plan) for plan in (plans.accumulate, plans.evaluate, *plans.diagnostics.values())]
    if plans.data_bytes:
        read.append(table_types(program.rows, block_steps(program.rows)))
    return sum(block_bytes(types) for types in read)


def _loader_bytes(program: Program) -> int:
    """This rank's part of batches waiting, of the one in training, and of the examples that are being cut into another;
    two calls of an evaluation, the one that computes and the one that is read."""
    example = sum(field.type.bytes for field in program.data.fields)
    row = example + 8  # `rows` and `valid`
    batch = program.run.batch
    whole = program.calls * program.rows * row + 8 * batch
    cut = -(-batch // program.ranks) * example
    return (PREFETCH + 1) * whole + cut + 2 * program.evaluation_rows * row


def _table_bytes(program: Program, *, walks: bool) -> int:
    """For calls of many steps, which one rank alone makes: tables of places, one in use, its copy, the next one and
    what making it takes, with the number of examples and the four sums of each step."""
    if adds(program) or program.ranks > 1:
        return 0
    rows, total = program.rows, program.run.steps
    block = block_steps(rows)
    if total is not None and total <= block:  # no other is made while the first is in use
        return (2 * (8 * rows + 4) + 4 * 8) * total + making_bytes(rows, walks=walks)
    return (3 * (8 * rows + 4) + 4 * 8) * block + making_bytes(rows, walks=walks)


def _product_bytes(plans: Plans) -> int:
    """What the plans' products touch of the workspace of a thread."""
    found = [each for plan in plans.all.values() for each in plan.products()]
    return touched_bytes(found, LARGEST)


def _saving_bytes(layout: Layout, state: Mapping[str, int]) -> int:
    """One truth value for each float32 of the chunk that is being checked; chunks are views of the state. The buffer
    that a large file is written from."""
    checked = min(CHUNK // 4, max((prod(shape) for shape in layout.shapes.values()), default=0))
    largest = max(state["parameters"], state["optimizer"]) + state["averages"]
    return checked + (BUFFER if largest >= LARGE else 0)

"""`paren show STAGE FILE`: the text of every stage that a file goes through."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from paren.codegen.llvm import emit_kernel
from paren.forecast.plans import RunGraph, run_graphs
from paren.ir.program import Program
from paren.ir.show import show_graph
from paren.pipeline import plan_graph, prepare
from paren.plan.kernel import Kernel
from paren.plan.lower import fuse_and_lower
from paren.plan.memory import kernels_of
from paren.plan.plan import Attention, Buffer, Copy, Launch, Loop, Plan, Product, Step
from paren.text.reader import read, show_form
from paren.text.size import count_of
from paren.text.source import Source


def show_forms(program: Program) -> str:
    """The forms of the file and its imports, as read."""
    parts = []
    for path, text in program.sources.items():
        forms = read(Source(path, text))
        parts.append("\n".join([f"; {path}", *(show_form(form) for form in forms)]))
    return "\n\n".join(parts)


def show_program(program: Program) -> str:
    """What the file declares: settings, data, parameters, optimizer groups, and the graphs as evaluated."""
    lines = [f"program {program.path}" + (f" variant {program.variant}" if program.variant else "")]
    lines += [f"  setting {setting.name} = {setting.value!r}  ; {setting.span}" for setting in program.settings]
    lines.append(f"  data {program.data.name} {program.data.kind}  ; {program.data.span}")
    lines += [f"    field {field.name} {field.type}" for field in program.data.fields]
    lines += [f"  parameter {s.name} {s.type} group {s.group}  ; {s.span}" for s in program.parameters]
    for group in program.updates:
        kind = "one vector" if group.flat else "by parameter"
        lines.append(
            f"  update {group.number}: {count_of(len(group.parameters), 'parameter')}, {kind}, moments {group.moments}"
        )
    lines.append("")
    lines += [show_graph(graph) + "\n" for graph in (program.initialize, program.loss, program.evaluate)]
    return "\n".join(lines)


def _distinct(program: Program) -> dict[str, RunGraph]:
    """The graphs of a run at the sizes that they run with; of those that share one, the first."""
    first: dict[RunGraph, str] = {}
    return {name: each for name, each in run_graphs(program).items() if first.setdefault(each, name) == name}


def show_graphs(program: Program) -> str:
    """The simplified graphs of a run."""
    return "\n".join(show_graph(replace(prepare(each.graph), name=name)) for name, each in _distinct(program).items())


def show_fused(program: Program) -> str:
    """Which nodes share a kernel, what is stored, and which pairs were not fused, with the reason."""
    lines = []
    for name, each in _distinct(program).items():
        fusion, _ = fuse_and_lower(prepare(each.graph))
        lines.append(f"graph {name}: {count_of(len(fusion.groups), 'step')}")
        for group in fusion.groups:
            members = ", ".join(
                f"%{m.number} {m.op.name}{'' if m.number in fusion.kept else ' (not stored)'}" for m in group.members
            )
            lines.append(f"  {group.kind:8} rows {list(group.rows)}: {members}  ; {group.members[-1].span}")
        for refusal in fusion.refusals:
            lines.append(f"  not fused: {refusal.producer} with {refusal.consumer}: {refusal.reason}  ; {refusal.span}")
    return "\n".join(lines)


def show_plan(program: Program) -> str:
    """The steps of each plan with their buffers, and where the buffers lie."""
    plans = {name: plan_graph(each.graph, each.written, held=each.held) for name, each in _distinct(program).items()}
    return "\n".join(line for name, plan in plans.items() for line in _plan_lines(name, plan))


def _plan_lines(name: str, plan: Plan) -> Iterator[str]:
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    yield f"plan {name}: {count_of(len(plan.steps), 'step')}, arena {plan.arena_bytes} bytes"
    for number, step in enumerate(plan.steps):
        yield f"  {number:4} {_step_text(step, buffers)}  ; {step.spans[0]}"
    for buffer in plan.buffers:
        yield f"  {_buffer_text(buffer)} {buffer.type} steps {buffer.first} to {buffer.last}  ; {buffer.span}"
    for output, id_ in plan.outputs.items():
        yield f"  output {output} = {_buffer_text(buffers[id_])}"


def _buffer_text(buffer: Buffer) -> str:
    place = f"@{buffer.offset}" if buffer.place.value == "arena" else f"{buffer.place.value} {buffer.name}"
    return f"b{buffer.id} {place}"


def _step_text(step: Step, buffers: Mapping[int, Buffer]) -> str:
    match step:
        case Launch(kernel=kernel, buffers=used):
            names = " ".join(f"b{id_}" for id_ in used)
            return f"kernel {kernel.name} {kernel.digest[:8]} axes {list(kernel.axes)} rows {kernel.rows} ({names})"
        case Product(m=m, n=n, k=k, batch=batch, accumulate=accumulate, a=a, b=b, c=c):
            sign = "+=" if accumulate else "="
            shape = f"{m}x{k}x{n}" + (f" for {list(batch)}" if batch else "")
            return f"product {shape}: b{c.buffer} {sign} b{a.buffer} b{b.buffer}"
        case Attention(queries=queries, keys=keys, width=width, examples=examples, heads=heads, groups=groups):
            shape = f"{queries}x{keys}x{width} for {[examples, heads]}" + (
                f" in {groups} groups" if groups < heads else ""
            )
            written, read = (" ".join(f"b{id_}" for id_ in ids) for ids in (step.writes, step.reads))
            return f"attention {shape}: {written} = {read}"
        case Copy(source=source, target=target):
            return f"copy b{source} to b{target}: {buffers[source].type}"
        case Loop(name=name, sizes=sizes, lane=lane, body=body, steps=steps):
            inner = "\n".join(f"      {_step_text(inner, buffers)}" for inner in steps)
            return f"loop {name} over {list(sizes)}: {count_of(len(body), 'piece')}, {lane} bytes each, of\n{inner}"


def show_code(program: Program) -> str:
    """The LLVM text of every distinct kernel."""
    kernels: dict[str, Kernel] = {}
    for each in _distinct(program).values():
        kernels |= kernels_of(plan_graph(each.graph, each.written, held=each.held))
    return "\n".join(f"; {kernel.name}\n{emit_kernel(kernel, kernel.name)}" for kernel in kernels.values())


SHOWN: Mapping[str, Callable[[Program], str]] = {
    "forms": show_forms,
    "program": show_program,
    "graph": show_graphs,
    "fused": show_fused,
    "plan": show_plan,
    "code": show_code,
}

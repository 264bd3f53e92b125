"""Proof that a placed plan never reads bytes that something else has overwritten.

Independent of the lifetimes that `paren.plan.memory` finds. It replays the steps over the arena and keeps
track of whose content is intact. A step may write over something that it reads itself only where
`may_share` proves it; everything else is an `InternalError`.
"""

from __future__ import annotations

from paren.plan.check_attention import check_attention
from paren.plan.check_loop import check_loop, check_types
from paren.plan.plan import Attention, Buffer, Copy, Launch, Loop, Place, Plan, Product, Step
from paren.plan.sharing import may_share
from paren.text.errors import InternalError


def check_plan(plan: Plan) -> None:
    """Raises `InternalError` where a buffer's content would be lost or read before it is written, and where a buffer
    lies outside the arena or a step outside its buffers."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    for number, step in enumerate(plan.steps):
        for id in (*step.reads, *step.writes):
            if id not in buffers:
                raise InternalError("plan", f"step {number} names buffer {id}, which the plan does not have")
        _check_fit(number, step, buffers)
    for buffer in plan.buffers:
        if buffer.place is Place.ARENA and not 0 <= buffer.offset <= plan.arena_bytes - buffer.type.bytes:
            raise InternalError("plan", f"{_text(buffer)} lies outside the arena of {plan.arena_bytes} bytes")
        if buffer.place is Place.ARENA and buffer.offset % 64:
            raise InternalError("plan", f"{_text(buffer)} is not aligned to 64 bytes")
    intact: dict[Place, set[int]] = {place: set() for place in Place}  # buffers of two places share no bytes
    for buffer in plan.buffers:
        if buffer.place is not Place.ARENA:
            intact[buffer.place].add(buffer.id)
    written: set[int] = set()
    for number, step in enumerate(plan.steps):
        for read in step.reads:
            if read not in intact[buffers[read].place]:
                state = "overwritten" if read in written else "not yet written"
                raise InternalError("plan", f"step {number} reads {_text(buffers[read])}, which is {state}")
        for target in step.writes:
            if buffers[target].place is Place.INPUT:
                raise InternalError("plan", f"step {number} writes the input {_text(buffers[target])}")
            _check_overlap(number, step, target, buffers)
            alike = intact[buffers[target].place]
            alike -= {id for id in alike if id != target and _overlap(buffers[id], buffers[target])}
        for target in step.writes:
            intact[buffers[target].place].add(target)
            written.add(target)
        _check_two_writes(number, step, buffers)
    for number in plan.epilogues:
        _check_epilogue(number, plan, buffers)
    for name, id in plan.outputs.items():
        if id not in intact[buffers[id].place]:
            state = "overwritten" if id in written else "never written"
            raise InternalError("plan", f"the output {name} is lost: {_text(buffers[id])} was {state}")


def _check_fit(number: int, step: Step, buffers: dict[int, Buffer]) -> None:
    """What a step touches lies within its buffers."""
    match step:
        case Launch(kernel, ids):
            for id, parameter in zip(ids, kernel.parameters, strict=True):
                type_ = buffers[id].type
                if (type_.dtype, type_.size) != (parameter.dtype, parameter.size):
                    wanted = f"{parameter.dtype} x {parameter.size}"
                    raise InternalError("plan", f"step {number} takes {_text(buffers[id])} for {wanted}")
        case Product(a, b, c, m, n, k, batch):
            check_types(step, [buffers[matrix.buffer].type.dtype for matrix in (a, b, c)])
            for matrix, rows, columns in ((a, m, k), (b, k, n), (c, m, n)):
                if matrix.transposed:
                    rows, columns = columns, rows
                last = matrix.offset + (rows - 1) * matrix.leading + columns - 1
                last += sum((size - 1) * stride for size, stride in zip(batch, matrix.batch_strides, strict=True))
                if not 0 <= matrix.offset <= last < buffers[matrix.buffer].type.size:
                    raise InternalError(
                        "plan", f"step {number} touches element {last} of {_text(buffers[matrix.buffer])}"
                    )
        case Attention():
            check_attention(step, buffers)
        case Loop():
            check_loop(step, buffers)
        case Copy(source, target):
            if buffers[source].type.bytes != buffers[target].type.bytes:
                texts = f"{_text(buffers[source])} to {_text(buffers[target])}"
                raise InternalError("plan", f"step {number} copies {texts}, which has another size")


def _check_overlap(number: int, step: Step, target: int, buffers: dict[int, Buffer]) -> None:
    """Within one step, a written buffer may lie on a read one only exactly, and where the kernel allows it."""
    for read in step.reads:
        if not _overlap(buffers[read], buffers[target]):
            continue
        if read == target and not isinstance(step, Launch):
            continue  # a product that adds to its result
        exact = buffers[read].offset == buffers[target].offset and buffers[read].place is buffers[target].place
        if not (exact and isinstance(step, Launch) and _allowed(step, read, target)):
            raise InternalError(
                "plan", f"step {number} writes {_text(buffers[target])} over {_text(buffers[read])}, which it reads"
            )


def _allowed(step: Launch, read: int, target: int) -> bool:
    """Whether every parameter that only reads `read` may lie under every parameter that writes `target`. One parameter
    that does both is the kernel's own affair, which `verify_kernel` holds to its rules."""
    parameters = step.kernel.parameters
    reading = [i for i, id_ in enumerate(step.buffers) if id_ == read and parameters[i].reads]
    writing = [i for i, id_ in enumerate(step.buffers) if id_ == target and parameters[i].writes]
    return all(may_share(step.kernel, i, j) for i in reading for j in writing if i != j)


def _check_two_writes(number: int, step: Step, buffers: dict[int, Buffer]) -> None:
    targets = sorted(set(step.writes))
    for i, first in enumerate(targets):
        for second in targets[i + 1 :]:
            if _overlap(buffers[first], buffers[second]):
                raise InternalError(
                    "plan",
                    f"step {number} writes {_text(buffers[first])} and {_text(buffers[second])} to the same bytes",
                )


def _check_epilogue(number: int, plan: Plan, buffers: dict[int, Buffer]) -> None:
    """A product and the launch after it can be one step: what they write shares bytes with nothing else of theirs."""
    steps = plan.steps[number : number + 2]
    touched = {id for step in steps for id in (*step.reads, *step.writes)}
    for target in sorted({id for step in steps for id in step.writes}):
        for other in sorted(touched - {target}):
            if _overlap(buffers[target], buffers[other]):
                texts = f"{_text(buffers[target])} and {_text(buffers[other])}"
                raise InternalError("plan", f"steps {number} and {number + 1} are one, and {texts} share bytes")


def _overlap(a: Buffer, b: Buffer) -> bool:
    if a.place is not Place.ARENA or b.place is not Place.ARENA:
        return a.place is b.place and a.name == b.name
    return a.offset < b.offset + b.type.bytes and b.offset < a.offset + a.type.bytes


def _text(buffer: Buffer) -> str:
    return f"buffer {buffer.id} ({buffer.name} {buffer.type} at {buffer.span})"

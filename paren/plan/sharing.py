"""Which buffers of a launch may lie on the same bytes: an output over an input that ends with the launch."""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache

from paren.plan.kernel import Access, Accumulate, Kernel, Load, Stage, Store

Term = tuple[tuple[str, int, int], int]  # ((row or stage, axis, size), stride in elements)
Signature = tuple[int, tuple[Term, ...]]  # constant offset, terms


def access_signature(kernel: Kernel, stage: Stage, access: Access) -> Signature | None:
    """What an access touches, with the stage's axes named by their place and size, so that stages can be compared.

    None where that cannot be said before the run: gathers, guarded accesses and divisors.
    """
    if not access.is_affine:
        return None
    steps = {axis: step for axis, step in access.steps.items() if kernel.axes[axis] > 1}
    return access.start, tuple(sorted((_axis_name(kernel, stage, axis), step) for axis, step in steps.items()))


def _axis_name(kernel: Kernel, stage: Stage, axis: int) -> tuple[str, int, int]:
    if axis < kernel.rows:
        return ("row", axis, kernel.axes[axis])
    return ("stage", stage.axes.index(axis), kernel.axes[axis])


@lru_cache(maxsize=4096)
def may_share(kernel: Kernel, read: int, written: int) -> bool:
    """Whether parameter `written` may lie exactly on parameter `read`, which the kernel only reads.

    It may if every element is read at the place where it is written, never after it was written: all accesses of both
    have one signature, no later stage loads `read` once `written` is stored, and within a stage loads come first. Only
    how far a stage runs along its axes may differ from stage to stage.
    """
    if kernel.parameters[read].writes or kernel.parameters[written].reads:
        return False
    if kernel.parameters[read].dtype.bytes != kernel.parameters[written].dtype.bytes:
        return False
    signatures: set[Signature | None] = set()
    stored = False
    for stage in kernel.stages:
        for statement in stage.body:
            if isinstance(statement, Load) and statement.access.parameter == read:
                if stored:
                    return False
                signatures.add(access_signature(kernel, stage, statement.access))
            elif isinstance(statement, Store | Accumulate) and statement.access.parameter == written:
                if isinstance(statement, Accumulate):
                    return False
                stored = True
                signatures.add(access_signature(kernel, stage, statement.access))
    # One shared signature that touches an element once a row: rows and stage axes must not repeat elements.
    signature = _longest(signatures)
    return signature is not None and _is_injective(kernel, signature)


def _longest(signatures: Collection[Signature | None]) -> Signature | None:
    """The signature that covers all, which differ in the sizes of stage axes only; None where they differ otherwise."""
    starts: set[int] = set()
    steps: dict[tuple[str, int], set[int]] = {}
    sizes: dict[tuple[str, int], int] = {}
    for signature in signatures:
        if signature is None:
            return None
        starts.add(signature[0])
        for (kind, axis, size), step in signature[1]:
            steps.setdefault((kind, axis), set()).add(step)
            sizes[kind, axis] = max(sizes.get((kind, axis), 0), size)
    if len(starts) != 1 or any(len(signature[1]) != len(steps) for signature in signatures if signature is not None):
        return None
    if any(len(found) != 1 for found in steps.values()):
        return None
    return starts.pop(), tuple(((*name, size), min(steps[name])) for name, size in sizes.items())


def _is_injective(kernel: Kernel, signature: Signature) -> bool:
    """Whether different loop indices touch different elements: sorted by stride, each step exceeds the reach so far,
    and every row axis with more than one index takes part."""
    entries: list[tuple[int, int]] = []
    rows = set()
    for (kind, axis, size), stride in signature[1]:
        if kind == "row":
            rows.add(axis)
        entries.append((abs(stride), size))
    if any(size > 1 and axis not in rows for axis, size in enumerate(kernel.axes[: kernel.rows])):
        return False
    reach = 0
    for stride, size in sorted(entries):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True

"""Expensive values that two stages of a kernel compute alike are kept between them, where the result will lie.

A softmax sums exponentials in one stage and divides them in the next. The first stage stores them in the place of the
result, the second loads them: the same bits for half the work. Only where the second stage then reads nothing else
element by element, so that the result may still lie on what the kernel reads.
"""

from __future__ import annotations

from dataclasses import replace

from paren.plan.kernel import Access, Accumulate, Compute, Kernel, Load, Stage, Store
from paren.plan.kernel_values import equal_values, is_needed, needed_values
from paren.plan.plan import Launch, Plan
from paren.plan.storage import COSTS

EXPENSIVE = 10  # instructions from which a value is loaded rather than computed again


def reuse_values(plan: Plan) -> Plan:
    """The unplaced plan with kernels that keep such values."""
    kernels: dict[str, Kernel] = {}

    def rewritten(launch: Launch) -> Launch:
        digest = launch.kernel.digest
        if digest not in kernels:
            kernels[digest] = keep_between_stages(launch.kernel)
        return launch if kernels[digest] is launch.kernel else replace(launch, kernel=kernels[digest])

    return replace(plan, steps=tuple(rewritten(s) if isinstance(s, Launch) else s for s in plan.steps))


def keep_between_stages(kernel: Kernel) -> Kernel:
    """The kernel with an expensive value that its last stage with a store shares with an earlier stage kept there."""
    for number in range(len(kernel.stages) - 1, 0, -1):
        for store in (s for s in kernel.stages[number].body if isinstance(s, Store)):
            changed = _keep(kernel, number, store.access)
            if changed is not None:
                return changed
    return kernel


def _keep(kernel: Kernel, number: int, access: Access) -> Kernel | None:
    """The same for the stage `number` and the parameter that it stores to by `access`, if that is possible."""
    stage, parameter = kernel.stages[number], kernel.parameters[access.parameter]
    if not stage.axes or parameter.reads or _touches(kernel, access.parameter) != 1:
        return None
    classes = equal_values(kernel)
    earlier = {
        classes[s.result]: (place, s)
        for place, each in enumerate(kernel.stages[:number])
        if each.axes == stage.axes
        for s in each.body
        if isinstance(s, Compute) and COSTS.get(s.op, 1) >= EXPENSIVE and s.dtype is parameter.dtype
    }
    for again in reversed(stage.body):
        if not isinstance(again, Compute) or classes[again.result] not in earlier:
            continue
        first, value = earlier[classes[again.result]]
        load = Load(again.result, access, again.dtype)
        stages = list(kernel.stages)
        stages[number] = Stage(stage.axes, tuple(load if s is again else s for s in stage.body))
        place = stages[first].body.index(value) + 1
        before, after = stages[first].body[:place], stages[first].body[place:]
        stages[first] = Stage(stages[first].axes, (*before, Store(access, value.result), *after))
        changed = _without_unused(replace(kernel, stages=tuple(stages)))
        if changed is not None and not _reads_elements(changed.stages[number], load):
            return changed
    return None


def _touches(kernel: Kernel, parameter: int) -> int:
    statements = [s for stage in kernel.stages for s in stage.body]
    return sum(isinstance(s, Load | Store | Accumulate) and s.access.parameter == parameter for s in statements)


def _without_unused(kernel: Kernel) -> Kernel | None:
    """The kernel without statements that nothing needs; None if a stage or a parameter would go."""
    stored = {i for i, parameter in enumerate(kernel.parameters) if parameter.writes}
    needed = needed_values(kernel, stored)
    stages = tuple(
        Stage(stage.axes, tuple(s for s in stage.body if is_needed(s, stored, needed))) for stage in kernel.stages
    )
    changed = replace(kernel, stages=stages)
    whole = all(stage.body for stage in stages) and all(_touches(changed, i) for i in range(len(kernel.parameters)))
    return changed if whole else None


def _reads_elements(stage: Stage, kept: Load) -> bool:
    """Whether the stage loads anything but `kept` at places that depend on its axes."""
    return any(
        isinstance(s, Load)
        and s is not kept
        and any(axis in stage.axes for index in s.access.indices for axis, _ in index.terms)
        for s in stage.body
    )

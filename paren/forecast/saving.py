"""Whether checkpoints are written from a copy of the state while training goes on, or between two steps."""

from __future__ import annotations

from dataclasses import replace

from paren.forecast.memory import memory_of
from paren.forecast.stacking import Candidate
from paren.plan.decision import Decision, Pattern
from paren.text.size import show_bytes


def choose_saving(candidate: Candidate, most: int) -> Candidate:
    """The candidate whose plan has a copy of the state, if it then needs at most `most` bytes of the memory that the
    copy lies in, which is the host's.

    Without checkpoints on the way there is nothing to choose: what ends the training is written at once.
    """
    run, plans = candidate.program.run, candidate.plans
    every = run.checkpoint_every
    if every is None or (run.steps is not None and every >= run.steps):
        return candidate
    copying = replace(plans, copies_state=True)
    memory = memory_of(candidate.program, copying)
    size = show_bytes(memory.on_host - candidate.memory.on_host)
    fits = memory.on_host <= most
    reason = f"from a copy of the state, {size}" if fits else f"a copy of the state, {size}, is more than is free"
    decision = Decision(Pattern.SAVING, fits, reason, run.spans.get("checkpoint-every"))
    chosen = replace(copying if fits else plans, decisions=(*plans.decisions, decision))
    return replace(candidate, plans=chosen, memory=memory if fits else candidate.memory)

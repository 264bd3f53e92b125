"""Which products a run computes together with the kernel after them: those that a library computes so, where it is
faster. It shows in bits, as roundings differ, so it is a part of what a run is: checkpoints hold it, ranks agree."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from paren.forecast.choices import form_key, recall, remember
from paren.forecast.trial import time_epilogues
from paren.plan.decision import Decision, Pattern
from paren.plan.epilogue import Epilogue, epilogues_of
from paren.plan.plan import Plan
from paren.runtime.device import Device

ONE, TWO = 1, 2  # steps, as they are remembered
MISSING = "the package of cuDNN (extra cudnn) is not there, or does not compute it"
WORTH = 0.97  # of the time of two steps, from which one is taken


@dataclass(frozen=True)
class Joined:
    """`forms` that are joined, and a decision for each epilogue of the plan."""

    forms: tuple[str, ...]
    decisions: tuple[Decision, ...]


def choose_joined(device: Device, plan: Plan, cache: Path, notice: Callable[[str], None]) -> Joined:
    """Measures what is not remembered yet. Raises E-MEM-002 where a library has no memory for it."""
    epilogues = _forms(plan)
    able = {form: each for form, each in epilogues.items() if device.joins(each)}
    keys = {form: form_key(form, device.name, device.target) for form in able}
    known = {form: recall(cache, key, notice) for form, key in keys.items()}
    reasons = {form: "remembered" for form, number in known.items() if number in (ONE, TWO)}
    unknown = [each for form, each in able.items() if form not in reasons]
    timed = time_epilogues(device, plan, unknown) if unknown else {}
    for form, (two, one) in timed.items():
        known[form] = ONE if one < WORTH * two else TWO
        reasons[form] = f"{1e3 * one:.3g} ms as one step, {1e3 * two:.3g} ms as two"
        remember(cache, keys[form], known[form] or TWO)
    chosen = [form for form, number in known.items() if number == ONE]
    return _joined(plan, chosen, reasons)


def stored_joined(device: Device, plan: Plan, stored: Collection[str]) -> Joined:
    """As a checkpoint or the first rank has it, as far as the device can."""
    chosen = [form for form, each in _forms(plan).items() if form in stored and device.joins(each)]
    return _joined(plan, chosen, dict.fromkeys(chosen, "stored"))


def _forms(plan: Plan) -> dict[str, Epilogue]:
    return {epilogue.form: epilogue for epilogue in epilogues_of(plan).values()}


def _joined(plan: Plan, forms: Collection[str], reasons: Mapping[str, str]) -> Joined:
    decisions = []
    for epilogue in epilogues_of(plan).values():
        reason = reasons.get(epilogue.form, MISSING)
        decisions.append(Decision(Pattern.EPILOGUE, epilogue.form in forms, reason, epilogue.launch.spans[-1]))
    return Joined(tuple(sorted(forms)), tuple(decisions))

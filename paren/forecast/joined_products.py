"""Which products a run computes together with the kernel after them: those that a library computes so, where it is
faster. It shows in bits, as roundings differ, so it is a part of what a run is: checkpoints hold it, ranks agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from paren.forecast.choices import form_key, recall_all, remember
from paren.forecast.trial import time_epilogues
from paren.plan.decision import Decision, Pattern
from paren.plan.epilogue import Epilogue, epilogues_of
from paren.plan.plan import Plan
from paren.runtime.device import Device

ONE, TWO = 1, 2  # steps, as they are remembered
WORTH = 0.97  # of the time of two steps, below which one is taken: times of the same work differ by less
MISSING = "the package of cuDNN (extra cudnn) is not there, or does not compute it"
REMEMBERED = "as an earlier run measured"
CONTINUED = "as the run began"


@dataclass(frozen=True)
class JoinedProducts:
    """`forms` of epilogues that are one step with their products -> how many the plan has of each, and a decision for
    each epilogue of the plan."""

    forms: Mapping[str, int]
    decisions: tuple[Decision, ...]

    @property
    def text(self) -> str:
        """What decides about bits: the forms with their numbers, which may be lower where memory is short."""
        return " ".join(f"{form}x{count}" for form, count in self.forms.items())


def choose_joined(device: Device, plan: Plan, cache: Path, notice: Callable[[str], None]) -> JoinedProducts:
    """Measures what is not remembered yet. Raises E-MEM-002 where a library has no memory for it."""
    epilogues = _forms(plan)
    keys = {form: form_key(form, device.name, device.target) for form in epilogues}
    remembered = recall_all(cache, keys.values(), notice)
    chosen = {form: remembered[key] for form, key in keys.items() if remembered.get(key) in (ONE, TWO)}
    reasons = dict.fromkeys(chosen, REMEMBERED)
    for form, each in epilogues.items():  # a library takes its time to make what two steps do not need
        if chosen.get(form) != TWO and not device.joins(each):
            chosen.pop(form, None)
            reasons[form] = MISSING
    unknown = [each for form, each in epilogues.items() if form not in reasons]
    timed = time_epilogues(device, plan, unknown) if unknown else {}
    for form, (two, one) in timed.items():
        number = ONE if one < WORTH * two else TWO
        remember(cache, keys[form], number)
        chosen[form] = number
        reasons[form] = f"{1e3 * one:.3g} ms as one step, {1e3 * two:.3g} ms as two"
    return _joined(plan, [form for form, number in chosen.items() if number == ONE], reasons)


def restore_joined(device: Device, plan: Plan, stored: str) -> JoinedProducts:
    """The forms in the text of a checkpoint or of the first rank, as far as the device can. Nothing is measured."""
    forms = _forms(plan)
    wanted = {part.partition("x")[0] for part in stored.split()}
    lost = [form for form, each in forms.items() if form in wanted and not device.joins(each)]
    kept = [form for form in forms if form in wanted and form not in lost]
    return _joined(plan, kept, {form: CONTINUED for form in forms if form not in lost})


def _forms(plan: Plan) -> dict[str, Epilogue]:
    return {epilogue.form: epilogue for epilogue in epilogues_of(plan).values()}


def _joined(plan: Plan, forms: Collection[str], reasons: Mapping[str, str]) -> JoinedProducts:
    """`reasons` by form, where it is not that the device cannot."""
    epilogues = epilogues_of(plan).values()
    counts = Counter(epilogue.form for epilogue in epilogues if epilogue.form in forms)
    decisions = [
        Decision(Pattern.EPILOGUE, each.form in forms, reasons.get(each.form, MISSING), each.launch.spans[-1])
        for each in epilogues
    ]
    return JoinedProducts(dict(sorted(counts.items())), tuple(decisions))

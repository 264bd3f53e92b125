"""Which products a run computes together with the kernel after them: those that a library computes so, where it is
faster. It shows in bits, as roundings differ, so it is a part of what a run is: checkpoints hold it, ranks agree.

The training graph decides, by forms; what another graph has of a form that was chosen is joined, too.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from paren.forecast.choices import form_key, recall_all, remember
from paren.forecast.plans import Plans
from paren.forecast.trial import time_epilogues
from paren.plan.decision import Decision, Pattern
from paren.plan.epilogue import Epilogue, epilogues_of
from paren.plan.plan import Plan
from paren.runtime.device import Device
from paren.text.json import Json
from paren.text.source import Span

ONE, TWO = 1, 2  # steps, as they are remembered
WORTH = 0.97  # of the time of two steps, below which one is taken: times of the same work differ by less
MISSING = "the package of cuDNN (extra cudnn) is not there, or does not compute it"
REMEMBERED = "as an earlier run measured"
CONTINUED = "as the run began"


@dataclass(frozen=True)
class JoinedProducts:
    """`forms` of epilogues that are one step with their products, and a decision for each epilogue of the training
    graph. `counts` is what decides about bits: `gelu after [2048 256] x [256 1024] (ed5c99980529) in accumulate` -> how
    many are one step there, for all graphs; they may be fewer where memory is short. The form in brackets and the graph
    are what counts: the word is that of the user's text when the run began, which may call it otherwise now."""

    forms: frozenset[str]
    counts: Mapping[str, int]
    decisions: tuple[Decision, ...]


def choose_joined(device: Device, plans: Plans, cache: Path, notice: Callable[[str], None]) -> JoinedProducts:
    """Measures what is not remembered yet. Raises E-MEM-002 where a library has no memory for it."""
    plan = plans.accumulate
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
    return _joined(plans, {form for form, number in chosen.items() if number == ONE}, reasons)


def restore_joined(device: Device, plans: Plans, stored: Mapping[str, Json]) -> JoinedProducts:
    """The forms in the counts of a checkpoint or of the first rank, as far as the device can. Nothing is measured."""
    forms = _forms(plans.accumulate)
    wanted = {form for form in forms if any(f"({form})" in each for each in stored)}
    lost = {form for form in wanted if not device.joins(forms[form])}
    return _joined(plans, wanted - lost, {form: CONTINUED for form in forms if form not in lost}, stored)


def _forms(plan: Plan) -> dict[str, Epilogue]:
    return {epilogue.form: epilogue for epilogue in epilogues_of(plan).values()}


def _joined(
    plans: Plans, forms: Collection[str], reasons: Mapping[str, str], known: Collection[str] = ()
) -> JoinedProducts:
    """`reasons` by form, where it is not that the device cannot. `known`: what is counted has these names."""
    names = {name[name.rindex("(") :]: name for name in known}
    counts: Counter[str] = Counter()
    for graph, plan in plans.all.items():
        for each in epilogues_of(plan).values():
            if each.form in forms:
                place = f"({each.form}) in {graph}"
                counts[names.setdefault(place, f"{_described(each)} {place}")] += 1
    decisions = [
        Decision(Pattern.EPILOGUE, each.form in forms, reasons.get(each.form, MISSING), each.launch.spans[-1])
        for each in epilogues_of(plans.accumulate).values()
    ]
    return JoinedProducts(frozenset(forms), dict(sorted(counts.items())), tuple(decisions))


def _described(epilogue: Epilogue) -> str:
    product = epilogue.product
    return f"{_head(epilogue.launch.spans[-1])} after [{product.m} {product.k}] x [{product.k} {product.n}]"


def _head(span: Span) -> str:
    """The first word of a piece of text: what is called there."""
    found = re.search(r"[^\s()\[\]]+", span.source.text[span.start : span.end])
    return found[0] if found is not None else "a kernel"

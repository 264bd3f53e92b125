"""What a start trains with: the stacking is decided under the run's lock, then data and engine are made for it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paren.data.dataset import Dataset
from paren.data.loader import Share
from paren.data.splits import TRAIN, VALIDATION
from paren.engine import CompiledEngine
from paren.forecast.choices import choice_key, recall, remember
from paren.forecast.fit import name_the_plan, refuse_if_too_large
from paren.forecast.joined_products import JoinedProducts, choose_joined, restore_joined
from paren.forecast.plans import Plans
from paren.forecast.residence import choose_residence
from paren.forecast.saving import choose_saving
from paren.forecast.stacking import (
    FORCED,
    LOWERED,
    ONLY,
    REMEMBERED,
    STORED,
    Candidate,
    Choice,
    choose,
    degrees,
    forced_candidate,
    make_candidate,
    shrink,
)
from paren.forecast.target import present_target
from paren.forecast.trial import time_call
from paren.inspect.compiling import compiling_since
from paren.inspect.explain import explain
from paren.inspect.profiling import Profiling
from paren.parallel.combination import Combination
from paren.restored import TOKENIZER
from paren.runtime.device import Device
from paren.runtime.limits import limits_of, read_limits
from paren.runtime.memory import Available, available_memory, usable_memory
from paren.text.errors import ParenError
from paren.text.json import Json
from paren.text.size import show_beside
from paren.train.experiment import Prepared, RunOptions, SplitData
from paren.train.files import Files
from paren.train.progress import ProgressView
from paren.train.resume import tell_differences

JOINED = "joined products"  # of an identity: `JoinedProducts.counts`


@dataclass(frozen=True)
class Preparation:
    """Called by a start with the identity of what it goes on from, if there is one.

    `first`: the plans for one microbatch a call. `memory`: bytes that the run may take, which `memory_limit` sets;
    None: what is free. `stacking`: the degree that was asked for. `identity`: what decides about bits besides the
    stacking.
    """

    first: Candidate
    data: Dataset
    device: Device
    options: RunOptions
    view: ProgressView
    cache: Path
    memory: int | None
    memory_limit: str
    stacking: int | None
    identity: Mapping[str, Json]
    profiling: Profiling | None
    combine: Combination | None
    share: Share

    def __call__(self, stored: Mapping[str, Json] | None) -> Prepared:
        """Raises E-MEM-003 and E-MEM-001 for a stacking that cannot be."""
        before = len(self.device.retried)
        free = usable_memory(self.device.available(), self.memory)
        choice = self._choose(stored.get("stacking") if stored is not None else None, free)
        own = self.device.own_memory
        candidate = choose_residence(choice.candidate, self.splits(choice.candidate).sources, free.bytes)
        candidate = choose_saving(candidate, available_memory().bytes // 2 if own else self._most(free))
        joined = self._joined(candidate.plans, stored)
        decisions = (*candidate.plans.decisions, *joined.decisions)
        plans = replace(candidate.plans, decisions=decisions, joined=joined.forms)
        candidate = replace(candidate, plans=plans)
        identity: dict[str, Json] = {**self.identity, "stacking": candidate.stacking}
        if joined.counts:
            identity[JOINED] = dict(joined.counts)
        return Prepared(
            identity=identity,
            data=self.splits(candidate),
            make_engine=lambda: self._make_engine(candidate, choice.told),
            annotations={"stacking": choice.told} if choice.told else {},
            peak={"peak_graph": candidate.memory.peak_graph, "peak_place": candidate.memory.peak_place},
            retried=lambda: self.device.retried[before:],
        )

    def _choose(self, stored: Json, free: Available) -> Choice:
        first = shrink(self.first, free.bytes)
        refuse_if_too_large(first, free)
        if self.stacking is not None:
            candidate = shrink(forced_candidate(self.first, self.stacking), free.bytes)
            refuse_if_too_large(candidate, free)
            return Choice(candidate, FORCED)
        if first is not self.first:
            return Choice(first, ONLY if len(degrees(first.program)) == 1 else LOWERED)
        if isinstance(stored, int):
            return self._as_before(stored, free)
        return self._automatic(self._most(free))

    def _most(self, free: Available) -> int:
        """Bytes for what only makes a run faster: where nobody set a limit, half of the free host memory stays for
        others."""
        return free.bytes if self.memory is not None or self.device.own_memory else free.bytes // 2

    def _as_before(self, stored: int, free: Available) -> Choice:
        """The stored degree, or the highest below it that still fits."""
        for degree in reversed(degrees(self.first.program)):
            if degree > stored:
                continue
            candidate = self.first if degree == 1 else make_candidate(self.first, degree)
            if candidate.memory.planned <= free.bytes:
                return Choice(candidate, STORED if degree == stored else LOWERED)
            needed = candidate.memory.planned
            sizes = f"needs {show_beside(needed, free.bytes)}, and {show_beside(free.bytes, needed)} are free"
            self.view.notice(f"stacking {degree} {sizes}")
        return Choice(self.first, LOWERED)

    def _automatic(self, most: int) -> Choice:
        program = self.first.program
        known = degrees(program)
        if len(known) == 1:
            return Choice(self.first, ONLY)
        versions, patterns = sorted(self.options.versions.items()), self.first.plans.planning.patterns
        key = choice_key(program, self.device.name, self.device.target, self.device.threads, versions, patterns)
        degree = recall(self.cache, key, self.view.notice)
        if degree in known:
            candidate = self.first if degree == 1 else make_candidate(self.first, degree)
            if candidate.memory.planned <= most:
                return Choice(candidate, REMEMBERED)
        self.view.phase("choosing the stacking")
        choice = choose(self.first, most, limits_of(self.device, self.cache), self._measure)
        remember(self.cache, key, choice.candidate.stacking)
        return choice

    def _measure(self, candidate: Candidate) -> float:
        """Seconds that a step's calls of the training graph take, on the examples of the first one."""
        with self.splits(candidate).batches(0, 1) as batches:
            microbatch = batches.batch(0).microbatches[0]
        return candidate.program.calls * time_call(self.device, candidate.plans.accumulate, microbatch)

    def _joined(self, plans: Plans, stored: Mapping[str, Json] | None) -> JoinedProducts:
        """Which products are one step with the kernel after them. Raises E-DP-006 on a rank that cannot do as the first
        does: the run would have other bits, and nobody would know."""
        if stored is None:
            return choose_joined(self.device, plans, self.cache, self.view.notice)
        found = stored.get(JOINED)
        wanted = found if isinstance(found, dict) else {}
        joined = restore_joined(self.device, plans, wanted)
        if self.share.rank and joined.counts != wanted:
            here = f"on rank {self.share.rank}"
            raise ParenError(
                "E-DP-006",
                "; ".join(tell_differences({JOINED: wanted}, {JOINED: dict(joined.counts)}, "on rank 0", here)),
                fix="give all ranks equal cards and equal packages: the extra cudnn on all of them, or on none",
            )
        return joined

    def splits(self, candidate: Candidate) -> SplitData:
        """The data in the calls of a candidate."""
        splits = self.data.splits
        return SplitData.of(candidate.program, splits[TRAIN], splits.get(VALIDATION), self.share, self.device.walk)

    def _make_engine(self, candidate: Candidate, stacking: Mapping[str, Json]) -> CompiledEngine:
        """The engine; the short report says what a run of it takes, and `report/lowering.json` has all of it."""
        leads = self.share.rank == 0
        if self.data.tokenizer is not None and leads:
            self.data.tokenizer.save(self.options.out / TOKENIZER)
        device = self.device
        limits = None
        if device.target:
            measured = self.profiling is not None
            limits = limits_of(device, self.cache, again=True) if measured else read_limits(device, self.cache)
        compiled, reused, begin = device.compiled, device.reused, time.perf_counter()
        try:
            sources = self.splits(candidate).sources if candidate.plans.data_bytes or not device.own_memory else None
            engine = CompiledEngine(candidate.program, candidate.plans, device, sources, self.combine)
        except ParenError as error:
            if error.code == "E-MEM-002":
                raise name_the_plan(error, candidate.memory) from error
            raise
        if not leads:
            return engine
        target = present_target(device, limits, self.memory, self.memory_limit)
        compiling = compiling_since(device, compiled, reused, begin)
        report = explain(candidate.program, candidate.plans, target, compiling, device.notes, stacking)
        report.write(self.options.out, Files())
        for line in report.short:
            self.view.notice(line)
        if self.profiling is not None:
            self.profiling.attach(engine, report)
        return engine

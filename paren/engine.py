"""The compiled experiment: state in flat vectors, one executable per graph, and what the training loop asks of them."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise

import numpy as np

from paren.data.inputs import Inputs
from paren.data.loader import GlobalBatch, Microbatch
from paren.data.resident import Source, Table, as_bytes, block_steps, distinct_arrays
from paren.forecast.feed import COUNTS, CURSOR, FIRST, HISTORY, PLACES, plan_feed, source_input
from paren.forecast.memory import memory_of
from paren.forecast.plans import Plans, adds, diagnosis_name, lay_out, update_name
from paren.ir.op import Array
from paren.ir.program import Program
from paren.ir.types import DType, TensorType
from paren.parallel.combination import Combination
from paren.parallel.exchange import NO_STEPS
from paren.parallel.tree import Leaf, Tree, held_sums, leaves_in, place_of
from paren.passes.assemble import (
    FIRST_SCALE,
    LEAST_SCALE,
    LOSS,
    LOSS_SCALE,
    RATE,
    SCALE,
    SQUARES,
    STEADY,
    STOP,
    UPDATE,
    UPDATES,
    WEIGHT,
    WHOLE,
    accumulation,
    gradient_slot,
)
from paren.pipeline import Planning, prepare
from paren.runtime.array import PART, AnyArray, AnyBytes, fetch, parts
from paren.runtime.block import Block, allocate_array, place
from paren.runtime.device import Device
from paren.runtime.executor import Executable, load_plans
from paren.runtime.memory import ALIGNMENT, allocate
from paren.runtime.release import release_unused
from paren.runtime.task import Cell, Task
from paren.text.errors import InternalError
from paren.text.source import Span
from paren.train.engine import StepSeries, StepSums
from paren.train.profile import Profile

STAGES = 16  # of a step on a card, at most
# What the graphs of a step tell each other, next to the state.
REGISTERS = {
    LOSS: WHOLE,
    WEIGHT: WHOLE,
    SQUARES: WHOLE,
    SCALE: TensorType(DType.FLOAT32, ()),
    STOP: TensorType(DType.INT32, ()),
    UPDATES: TensorType(DType.INT32, ()),
    UPDATE: TensorType(DType.FLOAT32, ()),
    LOSS_SCALE: TensorType(DType.FLOAT32, ()),
    STEADY: TensorType(DType.INT32, ()),
}
SCALER = {"scaler/loss-scale": LOSS_SCALE, "scaler/steady": STEADY}  # state by slot name, where the loss is scaled


class _Chunk:
    """Many steps in one native call: each assembles its batch from arrays in memory, and leaves a line of history."""

    def __init__(self, program: Program, plans: Plans, device: Device, sources: Mapping[str, Source]) -> None:
        planning = Planning(traits=plans.planning.traits)
        self.plans = plan_feed(program, sources, plans.accumulate, block_steps(program.rows), planning)
        self._device = device
        self._sources = sources
        self._feed = Executable(device, self.plans.feed)
        self._keep = Executable(device, self.plans.keep)

    def bind(
        self,
        tasks: Sequence[Task],
        registers: dict[str, AnyArray],
        rates: Sequence[AnyArray],
        batch: dict[str, AnyArray],
        arena: AnyBytes,
    ) -> None:
        """Puts the tasks of one step, which read `batch`, between those of the two graphs."""
        self._block = Block(self._device, self.plans.types)
        state = self._block.arrays | dict(zip((RATE,), rates, strict=False))
        placed = {at: place(self._device, as_bytes(array)) for at, array in distinct_arrays(self._sources).items()}
        sources = {source_input(name): placed[each.array.ctypes.data] for name, each in self._sources.items()}
        self._feed.bind(state | batch, state | sources, arena)
        self._keep.bind(state, state | registers, arena)
        self._run = self._device.sequence([*self._feed.tasks, *tasks, *self._keep.tasks])

    def run(self, table: Table) -> Array:
        """The history of the steps that were made: float64[n 4]."""
        host, count = self._block.host, len(table.counts)
        host[PLACES][:count] = table.places
        host[COUNTS][:count] = table.counts
        host[FIRST][...] = table.position
        host[CURSOR][...] = 0
        host[HISTORY][:count] = 0
        self._block.send()
        done = self._run(count)
        self._device.synchronise()
        return np.array(self._block.arrays[HISTORY][:done])


class CompiledEngine:
    """Owns the state of a run and computes with it: the `Engine` of `paren.train`.

    All arrays are float32 vectors on 64 bytes: parameters, gradients, moments of each group, averages; slots are views.
    Everything is compiled before the first of them is allocated: what memory is used from then on is the
    plan's.
    """

    def __init__(
        self,
        program: Program,
        plans: Plans,
        device: Device,
        sources: Mapping[str, Source] | None = None,
        combine: Combination | None = None,
    ) -> None:
        self.program = program
        self.device = device
        self.plans = plans
        self.layout = lay_out(program)
        layout = self.layout
        loaded = device.compiled + device.reused
        load_plans(device, plans.all.values())
        executable = partial(Executable, device, joined=plans.joined)
        self._initialize = executable(plans.initialize)
        self._accumulate = executable(plans.accumulate)
        self._finish = executable(plans.finish)
        self._evaluate = executable(plans.evaluate)
        self._diagnostics = {name: executable(plan) for name, plan in plans.diagnostics.items()}
        # Parameters of equal shape share a plan, and so its code, but each is bound to its own state.
        self._updates = {key: executable(plan) for key, plan in plans.updates.items()}
        self._profile: Profile | None = None
        self._owed: AnyArray | None = None
        self._combine = combine
        self._leaves = leaves_in(program)
        self._chunk = _Chunk(program, plans, device, sources) if sources is not None else None
        self.longest = 1 if self._chunk is None else self._chunk.plans.steps
        if not device.own_memory and device.compiled + device.reused > loaded:
            release_unused()
        self.start_counting()
        self._parameters = self._vector(layout.total)
        self._averages = self._vector(layout.trained) if program.run.average is not None else None
        self._moments = self._allocate_moments()
        live = memory_of(program, plans).parts["live"]
        if self._chunk is not None:
            live = max(live, self._chunk.plans.arena_bytes)
        # The gradients are the beginning of the arena. If a step makes one call, that call has values in their place
        # before it writes them; what runs until the update has taken them keeps to the rest.
        self._adds = adds(program)
        begin = max(ALIGNMENT, 4 * layout.trained)
        whole = device.allocate(begin + live)
        self._gradients: AnyArray = whole[: 4 * layout.trained].view(np.float32)
        self._leaf_sums = [allocate(4 * layout.trained).view(np.float32) for _ in range(held_sums(program))]
        self._arena = whole[begin:]
        self._training_arena = self._arena if self._adds else whole
        rates = sum(RATE in plans.updates[key].outputs for key in self._updates)
        self._block = Block(device, REGISTERS | {f"{RATE} {number}": REGISTERS[SCALE] for number in range(rates)})
        self._registers = {name: self._block.arrays[name] for name in REGISTERS}
        self._rates = [self._block.arrays[f"{RATE} {number}"] for number in range(rates)]
        self._read = [self._block.host[name] for name in (LOSS, WEIGHT, SQUARES, *[f"{RATE} 0"][:rates])]
        trained = [name for group in program.updates for name in group.parameters]
        parameters = {name: layout.view(self._parameters, name) for name in layout.offsets}
        self._forward_state = dict(parameters)
        if self._averages is not None:
            self._forward_state |= {name: layout.view(self._averages, name) for name in trained}
        gradients = {gradient_slot(name): layout.view(self._gradients, name) for name in trained}
        self._training_state = {**parameters, **gradients, **self._registers}
        self._batch = Inputs(device, plans.accumulate, program.run.seed)
        self._evaluated = Inputs(device, plans.evaluate, program.run.seed)
        self._diagnosed = {n: Inputs(device, plan, program.run.seed) for n, plan in plans.diagnostics.items()}
        self._bind_step()

    def _bind_step(self) -> None:
        """Everything that a step computes, as one sequence if it makes one call, else as one for each microbatch and
        one that ends the step."""
        self._accumulate.bind(self._training_state, self._batch.arrays, self._training_arena)
        self._finish.bind({"gradients": self._gradients, **self._registers}, {}, self._arena)
        tasks: list[Task] = [*self._finish.tasks, self.device.stop_if(Cell(self._registers[STOP]))]
        for key, state in self._update_states().items():
            self._updates[key].bind(state, self._registers, self._arena)
            tasks += self._updates[key].tasks
        self._add = self.device.sequence(self._accumulate.tasks)
        self._finish_step = self.device.sequence(tasks)
        one = [*self._accumulate.tasks, *tasks]
        self._step = self.device.sequence(one)
        if self._combine is not None:
            self._bind_stages(self._combine)
        if self._chunk is not None:
            self._chunk.bind(one, self._registers, self._rates[:1], self._batch.arrays, self._arena)

    def _bind_stages(self, combine: Combination) -> None:
        """Cuts the last call of a step where a bucket of the gradients is complete, so that its sum over the ranks can
        begin; where nothing would be left to compute meanwhile, or the gradients lie elsewhere, it is one stage."""
        ends, tasks = [len(self._accumulate.tasks)] * len(combine.buckets), self._accumulate.tasks
        if self._leaves == 1 and (combine.on_cards or not self.device.own_memory):
            buckets = [self._gradients[begin:end] for begin, end in combine.buckets]
            *ends, weighed = self._accumulate.last_steps([*buckets, self._registers[WEIGHT]])
            if self.program.rounds:
                ends = [max(end, weighed) for end in ends]
        cuts = sorted({*ends, len(tasks)} - {0})
        if self.device.own_memory:  # each stage is a graph of its own there, which takes time to start and to capture
            cuts = cuts[:: -max(1, -(-len(cuts) // STAGES))][::-1]
        self._stages = [self.device.sequence(tasks[begin:end]) for begin, end in pairwise([0, *cuts])]
        combine.prepare(self._gradients, self._divisor, [bisect_left(cuts, end) + 1 if end else 0 for end in ends])

    # State ----------------------------------------------------------------------------------------------------------

    def _vector(self, size: int) -> AnyArray:
        """Zeros. Their pages are touched by whoever writes them first: the threads of a step, and not this one."""
        return allocate_array(self.device, np.float32, (size,))

    def _allocate_moments(self) -> dict[tuple[int, str], AnyArray]:
        found = {}
        for group in self.program.updates:
            begin, end = self.layout.groups[group.number]
            for moment in group.moments:
                found[group.number, moment] = self._vector(end - begin)
        return found

    def _update_states(self) -> dict[tuple[int, str], dict[str, AnyArray]]:
        """The state of each update, in the order in which they run."""
        states = {}
        rates = iter(self._rates)
        for group in self.program.updates:
            begin, end = self.layout.groups[group.number]
            moments = {moment: self._moments[group.number, moment] for moment in group.moments}
            for key in group.graphs:
                vectors = {"parameter": self._parameters[begin:end], "gradient": self._gradients[begin:end]} | moments
                if self._averages is not None:
                    vectors["average"] = self._averages[begin:end]
                if not group.flat:
                    vectors = {name: self.layout.view(vector, key, begin) for name, vector in vectors.items()}
                if RATE in self.plans.updates[group.number, key].outputs:
                    vectors[RATE] = next(rates)
                states[group.number, key] = vectors
        return states

    @cached_property
    def roles(self) -> Mapping[str, str]:
        """Slot name -> parameter, moment, average or scaler."""
        roles = {slot.name: "parameter" for slot in self.program.parameters}
        roles |= dict.fromkeys(SCALER, "scaler") if self.program.scales_loss else {}
        for group in self.program.updates:
            for name in group.parameters:
                roles |= {f"{name}/{moment}": "moment" for moment in group.moments}
                if self._averages is not None:
                    roles[f"{name}/average"] = "average"
        return roles

    @property
    def copies_state(self) -> bool:
        """Whether the plan has memory for a copy of the state."""
        return self.plans.copies_state

    def slots(self) -> dict[str, AnyArray]:
        """Live views of all persistent state by slot name."""
        layout = self.layout
        slots = {name: layout.view(self._parameters, name) for name in layout.offsets}
        if self.program.scales_loss:
            slots |= {name: self._registers[register] for name, register in SCALER.items()}
        for group in self.program.updates:
            begin = layout.groups[group.number][0]
            for name in group.parameters:
                for moment in group.moments:
                    slots[f"{name}/{moment}"] = layout.view(self._moments[group.number, moment], name, begin)
                if self._averages is not None:
                    slots[f"{name}/average"] = layout.view(self._averages, name)
        return slots

    def initialize(self, seed: int) -> None:
        """First values of a new engine: parameters from the program's initializers, averages equal to them; the moments
        are 0 already."""
        parameters = {name: self.layout.view(self._parameters, name) for name in self.layout.offsets}
        drawn = {"$seed": place(self.device, np.array(seed % 2**32, np.uint32))}
        self._initialize.run(parameters, drawn, self._arena)
        self._registers[LOSS_SCALE][...] = FIRST_SCALE
        if self._averages is not None:
            self._averages[...] = self._parameters[: self.layout.trained]

    @property
    def owes(self) -> bool:
        """Whether something is to be added to the next gradient."""
        return self._owed is not None

    def owe(self) -> dict[str, AnyArray]:
        """What is to be added to the next mean gradient, by trained parameter; zeros at first."""
        if self._owed is None:
            self._owed = self._vector(self.layout.trained)
        return {name: self.layout.view(self._owed, name) for name in self.layout.trained_names}

    # Steps ----------------------------------------------------------------------------------------------------------

    def step(self, batch: GlobalBatch, number: int) -> StepSums:
        """The gradients of a batch and, unless its sums forbid it, update `number`."""
        self._registers[UPDATES][...] = number - 1
        if self._profile is not None and self._profile.sampling:
            self._step_alone(batch)
        elif self._adds or self._combine is not None or self.owes:
            self._sum_microbatches(batch, self.accumulate, self._accumulate_last)
            self._sum_over_ranks()
            self.finish()
        else:
            self._batch.fill(batch.microbatches[0], batch.position)
            self._step()
        self.device.synchronise()
        sums = self._sums()
        if sums.weight and math.isfinite(sums.loss) and math.isfinite(sums.norm):
            self._owed = None
            if self._combine is not None:
                self._combine.accept()
        return sums

    def steps(self, table: Table, number: int) -> StepSeries:
        """The steps of a table in one call, the first update being `number`."""
        if self._chunk is None:
            raise InternalError("engine", "many steps were asked for, and the data do not lie in memory")
        self._registers[UPDATES][...] = number - 1
        history = self._chunk.run(table)
        norm = np.sqrt(history[:, 2]) / history[:, 1]
        return StepSeries(history[:, 0], history[:, 1], norm, history[:, 3] if self._rates else None)

    def watch(self, profile: Profile) -> None:
        """Lets a profile time, one by one, the regions of the steps and calls that it wants."""
        self._profile = profile
        self._initialize.observer = profile.observer("initialize", of_step=False)
        self._evaluate.observer = profile.observer("evaluate", of_step=False)
        for name, executable in self._diagnostics.items():
            executable.observer = profile.observer(diagnosis_name(name), of_step=False)
        self._accumulate.observer = profile.observer("accumulate", of_step=True)
        self._finish.observer = profile.observer("finish", of_step=True)
        for (number, key), executable in self._updates.items():
            executable.observer = profile.observer(update_name(number, key), of_step=True)

    def _step_alone(self, batch: GlobalBatch) -> None:
        """A step whose regions run one by one, for the profile."""

        def accumulate(microbatch: Microbatch, step: int) -> None:
            self._batch.fill(microbatch, step)
            self._run_alone(self._accumulate)

        self._sum_microbatches(batch, accumulate, accumulate)
        self._sum_over_ranks()
        self._run_alone(self._finish)
        if not self._registers[STOP]:
            for executable in self._updates.values():
                self._run_alone(executable)

    def _run_alone(self, executable: Executable) -> None:
        if executable.observer is not None:
            executable.run_alone(executable.observer)

    def _sum_microbatches(
        self,
        batch: GlobalBatch,
        accumulate: Callable[[Microbatch, int], None],
        accumulate_last: Callable[[Microbatch, int], None],
    ) -> None:
        """Gradients, loss and weight of this rank's part of a batch; as a tree if the run is to be reproducible.
        `accumulate(microbatch, step)` adds those of one, `accumulate_last` those of a step's last."""

        def sum_leaf(microbatches: Sequence[Microbatch]) -> None:
            if self._adds or not microbatches:  # a rank may have no part of a short batch
                self.clear_sums()
            for microbatch in microbatches[:-1]:
                accumulate(microbatch, batch.position)
            for microbatch in microbatches[-1:]:
                accumulate_last(microbatch, batch.position)
            self.device.synchronise()

        if self._leaves == 1:
            sum_leaf(batch.microbatches)
            return
        each = self.program.calls // self._leaves
        tree: Tree[Leaf] = Tree(Leaf.plus)
        for leaf in range(self._leaves):
            sum_leaf(batch.microbatches[leaf * each : (leaf + 1) * each])
            sums = self._leaf_sums[place_of(leaf)]
            fetch(self._gradients, sums)
            tree.take(Leaf(sums, float(self._registers[LOSS]), float(self._registers[WEIGHT])))
        total = tree.total()
        self._gradients[...] = total.gradients
        self._registers[LOSS][...], self._registers[WEIGHT][...] = total.loss, total.weight

    def _sum_over_ranks(self) -> None:
        """Gradients, loss and weight of this rank become those of the global batch, and the gradients get what they are
        owed."""
        if self._combine is not None:
            self.device.synchronise()
            loss, weight = self._registers[LOSS], self._registers[WEIGHT]
            loss[...], weight[...] = self._combine.end(float(loss), float(weight))
        if self._owed is not None and self._divisor():
            for part, owed in zip(parts(self._gradients, PART), parts(self._owed, PART), strict=True):
                part[...] = np.add(part, np.multiply(owed, np.float32(self._divisor())))

    def _divisor(self, read: Callable[[AnyArray], float] = float) -> float:
        """What the gradients are divided by at the end of a step, of registers that are read so."""
        weight = read(self._registers[WEIGHT])
        return weight * read(self._registers[LOSS_SCALE]) if self.program.scales_loss else weight

    def accumulate(self, microbatch: Microbatch, step: int) -> None:
        """Adds a microbatch to the sums of a step that makes several calls."""
        self._batch.fill(microbatch, step)
        self._add()

    def _accumulate_last(self, microbatch: Microbatch, step: int) -> None:
        """The same for the last microbatch of a step, while sums over ranks begin."""
        if self._combine is None or len(self._stages) == 1:
            self.accumulate(microbatch, step)
            return
        self._batch.fill(microbatch, step)
        self._combine.begin()
        for number, stage in enumerate(self._stages, 1):
            stage()
            self._combine.computed(number)

    def finish(self) -> None:
        """Ends a step that made several calls: the norm, the scale, the check and the updates."""
        self._finish_step()

    def clear_sums(self) -> None:
        """Sets the gradients and the sums of losses and weights to 0."""
        self._gradients[...] = 0
        self._registers[LOSS][...] = self._registers[WEIGHT][...] = 0

    def _sums(self) -> StepSums:
        self._block.fetch()
        loss, weight, squares, *rates = map(float, self._read)
        norm = math.sqrt(squares) / weight if weight else math.nan
        exchanged = self._combine.last if self._combine is not None else NO_STEPS
        lowered = None
        if self.program.scales_loss and weight and math.isfinite(loss) and not math.isfinite(norm):
            lowered = self._lower_scale()
        return StepSums(loss, weight, norm, rates[0] if rates else None, exchanged, lowered)

    def _lower_scale(self) -> float | None:
        """Halves the scale of the loss, as a gradient left the range of float16; None if it is the least already."""
        scale = float(self._registers[LOSS_SCALE])
        if scale <= LEAST_SCALE:
            return None
        self._registers[LOSS_SCALE][...] = scale / 2
        self._registers[STEADY][...] = 0
        return scale / 2

    @property
    def evaluated(self) -> tuple[str, ...]:
        """What an evaluation gives: `loss`, and each metric."""
        return ("loss", *self.program.metrics)

    def evaluate(self, microbatch: Microbatch) -> dict[str, tuple[float, float]]:
        """`loss` and each metric -> (weighted sum, weight), with dropout off and averages in place of parameters."""
        inputs = self._evaluated.fill(microbatch, 0)
        outputs = self._evaluate.run(self._forward_state, inputs, self._arena)
        return {name: (float(outputs[f"sum:{name}"]), float(outputs[f"weight:{name}"])) for name in self.evaluated}

    def diagnose(self, name: str, microbatch: Microbatch, step: int) -> tuple[float, float]:
        """(value, weight) of a diagnostic over the microbatch."""
        inputs = self._diagnosed[name].fill(microbatch, step)
        outputs = self._diagnostics[name].run(self._training_state, inputs, self._arena)
        return float(outputs["value"]), float(outputs["weight"])

    def locate_nonfinite(self, microbatch: Microbatch, step: int) -> tuple[str, Span] | None:
        """What first computed a value that is not finite in this microbatch, and its place in the program.

        Clears the gradients, which other microbatches may have made non-finite already.
        """
        self.clear_sums()
        inputs = self._batch.fill(microbatch, step)
        traits = self.plans.planning.traits
        graph = prepare(accumulation(self.program, adding=self._adds, attends=traits.attends), traits)
        found = self._accumulate.first_nonfinite(self._training_state, inputs, self._training_arena, graph)
        return None if found is None else (found.operation, found.span)

    def start_counting(self) -> None:
        """Counts what is used from now on as the plan's."""
        self.device.used_bytes()  # up to now, a trial's arena among it
        self._baseline = self.device.used_bytes()

    def used_bytes(self) -> int:
        """Bytes of the device's memory that the plan takes."""
        return self.device.used_bytes() - self._baseline

    def memory(self) -> Mapping[str, int]:
        """Bytes of each part of the plan, and their sum as `planned`."""
        memory = memory_of(self.program, self.plans)
        return {**memory.parts, "planned": memory.planned}

    def close(self) -> None:
        """Nothing outlives the arrays."""

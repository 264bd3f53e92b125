"""The compiled experiment: state in flat vectors, one executable per graph, and what the training loop asks of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from paren.data.loader import Microbatch
from paren.forecast.memory import memory_of
from paren.forecast.plans import Plans, lay_out
from paren.ir.op import Array
from paren.ir.program import Program
from paren.passes.assemble import LOSS, NORM_SQUARED, SCALE, WEIGHT, accumulation, gradient_slot
from paren.pipeline import prepare
from paren.runtime.device import Device
from paren.runtime.executor import Executable
from paren.runtime.memory import resident_bytes
from paren.text.source import Span

SMALLEST_SQUARE = 1e-30  # sums of squares below have lost digits to denormal float32
CHUNK = 1 << 20  # elements


@dataclass
class _Update:
    """One executable of an optimizer group and the state it works on."""

    executable: Executable
    state: dict[str, Array]


class CompiledEngine:
    """Owns the state of a run and computes with it: the `Engine` of `paren.train`.

    All arrays are float32 vectors on 64 bytes: parameters, gradients, moments of each group, averages; slots are views.
    Everything is compiled before the first of them is allocated: what memory is used beyond `baseline_bytes` is the
    plan's.
    """

    def __init__(self, program: Program, plans: Plans, device: Device) -> None:
        self.program = program
        self.device = device
        self.plans = plans
        self.layout = lay_out(program)
        layout = self.layout
        self._initialize = Executable(device, plans.initialize)
        self._accumulate = Executable(device, plans.accumulate)
        self._norm = Executable(device, plans.norm)
        self._evaluate = Executable(device, plans.evaluate)
        self._diagnostics = {name: Executable(device, plan) for name, plan in plans.diagnostics.items()}
        # Parameters of equal shape share a plan, and so its code.
        distinct = {id(plan): plan for plan in plans.updates.values()}
        updates = {number: Executable(device, plan) for number, plan in distinct.items()}
        self.baseline_bytes = resident_bytes()
        self._parameters = self._vector(layout.total)
        self._gradients = self._vector(layout.trained)
        self._averages = self._vector(layout.trained) if program.run.average is not None else None
        self._moments = self._allocate_moments()
        self._arena = device.allocate(memory_of(program, plans).parts["live"])
        self._seed = np.array(program.run.seed % 2**32, np.uint32)
        self._updates = self._bind_updates(updates)
        trained = [name for group in program.updates for name in group.parameters]
        parameters = {name: layout.view(self._parameters, name) for name in layout.offsets}
        self._forward_state = dict(parameters)
        if self._averages is not None:
            self._forward_state |= {name: layout.view(self._averages, name) for name in trained}
        self._training_state = parameters | {
            gradient_slot(name): layout.view(self._gradients, name) for name in trained
        }

    # State ----------------------------------------------------------------------------------------------------------

    def _vector(self, size: int) -> Array:
        vector = self.device.allocate(max(64, 4 * size))[: 4 * size].view(np.float32)
        vector[...] = 0
        return vector

    def _allocate_moments(self) -> dict[tuple[int, str], Array]:
        found = {}
        for group in self.program.updates:
            begin, end = self.layout.groups[group.number]
            for moment in group.moments:
                found[group.number, moment] = self._vector(end - begin)
        return found

    def _bind_updates(self, executables: Mapping[int, Executable]) -> list[_Update]:
        updates = []
        for group in self.program.updates:
            begin, end = self.layout.groups[group.number]
            moments = {moment: self._moments[group.number, moment] for moment in group.moments}
            for key in group.graphs:
                vectors = {"parameter": self._parameters[begin:end], "gradient": self._gradients[begin:end]} | moments
                if self._averages is not None:
                    vectors["average"] = self._averages[begin:end]
                if not group.flat:
                    vectors = {name: self.layout.view(vector, key, begin) for name, vector in vectors.items()}
                updates.append(_Update(executables[id(self.plans.updates[group.number, key])], vectors))
        return updates

    @cached_property
    def roles(self) -> Mapping[str, str]:
        """Slot name -> parameter, moment or average."""
        roles = {slot.name: "parameter" for slot in self.program.parameters}
        for group in self.program.updates:
            for name in group.parameters:
                roles |= {f"{name}/{moment}": "moment" for moment in group.moments}
                if self._averages is not None:
                    roles[f"{name}/average"] = "average"
        return roles

    def slots(self) -> dict[str, Array]:
        """Live views of all persistent state by slot name."""
        layout = self.layout
        slots = {name: layout.view(self._parameters, name) for name in layout.offsets}
        for group in self.program.updates:
            begin = layout.groups[group.number][0]
            for name in group.parameters:
                for moment in group.moments:
                    slots[f"{name}/{moment}"] = layout.view(self._moments[group.number, moment], name, begin)
                if self._averages is not None:
                    slots[f"{name}/average"] = layout.view(self._averages, name)
        return slots

    def initialize(self, seed: int) -> None:
        """First values: parameters from the program's initializers, moments 0, averages equal to the parameters."""
        parameters = {name: self.layout.view(self._parameters, name) for name in self.layout.offsets}
        self._initialize.run(parameters, {"$seed": np.array(seed % 2**32, np.uint32)}, self._arena)
        for vector in self._moments.values():
            vector[...] = 0
        if self._averages is not None:
            self._averages[...] = self._parameters[: self.layout.trained]

    # Steps ----------------------------------------------------------------------------------------------------------

    def _inputs(self, microbatch: Microbatch, step: int) -> dict[str, Array]:
        inputs: dict[str, Array] = dict(microbatch.fields)
        inputs |= {"$rows": microbatch.rows, "$valid": microbatch.valid}
        return inputs | {"$seed": self._seed, "$step": np.array(step, np.uint32)}

    def clear_gradients(self) -> None:
        """Sets the accumulated gradients to 0."""
        self._gradients[...] = 0

    def accumulate(self, microbatch: Microbatch, step: int) -> tuple[float, float]:
        """Adds gradients of the weighted sum of losses; gives the sum and the weight."""
        outputs = self._accumulate.run(self._training_state, self._inputs(microbatch, step), self._arena)
        return float(outputs[LOSS]), float(outputs[WEIGHT])

    def gradient_norm(self, weight: float) -> float:
        """Euclidean norm of (accumulated gradients / weight); nan or inf if one is not finite."""
        if not self.layout.trained:
            return 0.0
        outputs = self._norm.run({"gradients": self._gradients}, {}, self._arena)
        squared = float(outputs[NORM_SQUARED])
        if not SMALLEST_SQUARE < squared < np.inf:
            # The sum has left the range of float32, or is not finite: in float64 only the latter stays so.
            parts = (self._gradients[i : i + CHUNK].astype(np.float64) for i in range(0, self.layout.trained, CHUNK))
            squared = float(sum(np.dot(part, part) for part in parts))
        return float(np.sqrt(np.float64(squared))) / weight

    def update(self, scale: float, number: int) -> dict[str, float]:
        """Applies every group's rule to gradients x scale; gives the rate of the first group."""
        inputs: dict[str, Array] = {SCALE: np.array(scale, np.float32), "update": np.array(number, np.float32)}
        report: dict[str, float] = {}
        for update in self._updates:
            outputs = update.executable.run(update.state, inputs, self._arena)
            if "rate" in outputs and "rate" not in report:
                report["rate"] = float(outputs["rate"])
        return report

    def evaluate(self, microbatch: Microbatch) -> dict[str, tuple[float, float]]:
        """`loss` and each metric -> (weighted sum, weight), with dropout off and averages in place of parameters."""
        outputs = self._evaluate.run(self._forward_state, self._inputs(microbatch, 0), self._arena)
        names = ("loss", *self.program.metrics)
        return {name: (float(outputs[f"sum:{name}"]), float(outputs[f"weight:{name}"])) for name in names}

    def diagnose(self, name: str, microbatch: Microbatch, step: int) -> tuple[float, float]:
        """(value, weight) of a diagnostic over the microbatch."""
        outputs = self._diagnostics[name].run(self._training_state, self._inputs(microbatch, step), self._arena)
        return float(outputs["value"]), float(outputs["weight"])

    def locate_nonfinite(self, microbatch: Microbatch, step: int) -> tuple[str, Span] | None:
        """What first computed a value that is not finite in this microbatch, and its place in the program.

        Clears the gradients, which other microbatches may have made non-finite already.
        """
        self.clear_gradients()
        inputs = self._inputs(microbatch, step)
        graph = prepare(accumulation(self.program))
        found = self._accumulate.first_nonfinite(self._training_state, inputs, self._arena, graph)
        return None if found is None else (found.operation, found.span)

    def memory(self) -> Mapping[str, int]:
        """Bytes of each part of the plan, and their sum as `planned`."""
        memory = memory_of(self.program, self.plans)
        return {**memory.parts, "planned": memory.planned}

    def close(self) -> None:
        """Nothing outlives the arrays."""

"""What the training loop asks of whatever computes: the contract between the loop and the executor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from paren.data.loader import GlobalBatch, Microbatch
from paren.data.resident import Table
from paren.ir.op import Array
from paren.parallel.exchange import NO_STEPS, Exchanged
from paren.runtime.array import AnyArray
from paren.text.source import Span


@dataclass(frozen=True)
class StepSums:
    """What a step computed over its global batch.

    `loss`: sum of losses, each times its weight. `weight`: sum of the weights. `norm`: Euclidean norm of the gradient
    of loss / weight, before clipping; nan without weight. The optimizer was applied if all of them are finite and the
    weight is above 0. `rate`: of the update, if the optimizer has one. `exchanged`: what the sums over ranks took.
    `lowered`: what the scale of the loss was lowered to, because a gradient was not finite though the loss is.
    """

    loss: float
    weight: float
    norm: float
    rate: float | None
    exchanged: Exchanged = NO_STEPS
    lowered: float | None = None


@dataclass(frozen=True)
class StepSeries:
    """`StepSums` of many steps: float64[n] each; `rate` is None where the optimizer has none."""

    loss: Array
    weight: Array
    norm: Array
    rate: Array | None


class Engine(Protocol):
    """Owns the state of a run and computes with it. The loop decides what is computed, and when.

    `roles`: slot name -> `parameter`, `moment`, `average` or `scaler`, for every slot. `longest`: the most
    steps that one call makes, 1 if the engine makes them one by one. `copies_state`: whether the plan has memory for a
    copy of the state, from which checkpoints are written while training goes on.
    """

    longest: int

    @property
    def copies_state(self) -> bool: ...

    @property
    def roles(self) -> Mapping[str, str]: ...

    def initialize(self, seed: int) -> None:
        """Gives every slot of a new engine its first value, a function of `seed`; moments are 0 before."""
        ...

    def slots(self) -> Mapping[str, AnyArray]:
        """All persistent state by slot name: parameters, moments as `owner/moment`, averages as `owner/average`.

        The arrays are C-contiguous live views, where the device has them: reading them saves the state, writing into
        them restores it.
        """
        ...

    @property
    def owes(self) -> bool:
        """Whether something is to be added to the next gradient."""
        ...

    def owe(self) -> Mapping[str, AnyArray]:
        """What is to be added to the next step's gradient of each trained parameter, that of the mean loss: live views,
        zeros until they are filled. The next step is then to be made by `step`."""
        ...

    def step(self, batch: GlobalBatch, number: int) -> StepSums:
        """One training step: the gradient of the mean loss of all microbatches, clipped if the run says so, and update
        `number` (the first is 1), which is left out if the sums forbid it. `batch.position` is the step, from 0."""
        ...

    def steps(self, table: Table, number: int) -> StepSeries:
        """The steps of a table as `step` makes them, the first update being `number`, up to the first step whose sums
        forbid an update: what those before it gave. Called only for tables of up to `longest` steps, if that is above
        1."""
        ...

    @property
    def evaluated(self) -> tuple[str, ...]:
        """The names that `evaluate` gives, in their order."""
        ...

    def evaluate(self, microbatch: Microbatch) -> dict[str, tuple[float, float]]:
        """`loss` and each metric -> (weighted sum, weight sum) over the microbatch, with dropout off."""
        ...

    def diagnose(self, name: str, microbatch: Microbatch, step: int) -> tuple[float, float]:
        """(value, weight) of a diagnostic, reduced over the microbatch; the weight is for `mean`."""
        ...

    def locate_nonfinite(self, microbatch: Microbatch, step: int) -> tuple[str, Span] | None:
        """The first node that made a non-finite value (its operation's name and its place), if one did."""
        ...

    def used_bytes(self) -> int:
        """Bytes of the device's memory that are in use, or were since the call before, beyond what was in use when all
        was compiled and nothing of the plan was allocated yet. Costs microseconds."""
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by part; `planned` is the plan's peak."""
        ...

    def close(self) -> None:
        """Gives back memory and threads."""
        ...

"""What the training loop asks of whatever computes: the contract between the loop and the executor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from paren.data.loader import Microbatch
from paren.ir.op import Array
from paren.text.source import Span


class Engine(Protocol):
    """Owns the state of a run and computes with it. The loop decides what is computed, and when.

    `roles`: slot name -> `parameter`, `moment` or `average`, for every slot. `baseline_bytes`: anonymous
    resident memory of the process when all was compiled and nothing of the plan was allocated yet.
    """

    baseline_bytes: int

    @property
    def roles(self) -> Mapping[str, str]: ...

    def initialize(self, seed: int) -> None:
        """Sets every slot to its first value, a function of `seed`."""
        ...

    def slots(self) -> dict[str, Array]:
        """All persistent state by slot name: parameters, moments as `owner/moment`, averages as `owner/average`.

        The arrays are C-contiguous live views: reading them saves the state, writing into them restores it.
        """
        ...

    def clear_gradients(self) -> None:
        """Sets the accumulated gradients to 0."""
        ...

    def accumulate(self, microbatch: Microbatch, step: int) -> tuple[float, float]:
        """Adds the gradients of the weighted sum of the microbatch's losses; returns (loss sum, weight sum).

        `step` is the position of the training step, from 0.
        """
        ...

    def gradient_norm(self, weight: float) -> float:
        """Euclidean norm of (accumulated gradients / weight) over all parameters; nan or inf if one is not finite."""
        ...

    def update(self, scale: float, number: int) -> dict[str, float]:
        """Applies the optimizer to (accumulated gradients * scale) as update `number` (the first is 1).

        Returns what the optimizer reports, such as `{"rate": 6e-4}`.
        """
        ...

    def evaluate(self, microbatch: Microbatch) -> dict[str, tuple[float, float]]:
        """`loss` and each metric -> (weighted sum, weight sum) over the microbatch, with dropout off."""
        ...

    def diagnose(self, name: str, microbatch: Microbatch, step: int) -> tuple[float, float]:
        """(value, weight) of a diagnostic, reduced over the microbatch; the weight is for `mean`."""
        ...

    def locate_nonfinite(self, microbatch: Microbatch, step: int) -> tuple[str, Span] | None:
        """The first node that made a non-finite value (its operation's name and its place), if one did.

        Clears the accumulated gradients.
        """
        ...

    def memory(self) -> Mapping[str, int]:
        """Bytes by part; `planned` is the plan's peak."""
        ...

    def close(self) -> None:
        """Gives back memory and threads."""
        ...

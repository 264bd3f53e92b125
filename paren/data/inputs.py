"""Where a plan reads a batch: a microbatch is copied there before each call."""

from __future__ import annotations

import numpy as np

from paren.data.loader import Microbatch
from paren.plan.plan import Plan
from paren.runtime.array import AnyArray
from paren.runtime.block import Block, input_types
from paren.runtime.device import Device
from paren.text.errors import InternalError


class Inputs:
    """What a plan reads of a batch, at one place for the whole run: its steps stay bound, and lie on 64 bytes."""

    def __init__(self, device: Device, plan: Plan, seed: int) -> None:
        self._block = Block(device, input_types(plan))
        self.arrays = self._block.arrays
        self._seed = np.array(seed % 2**32, np.uint32)

    def fill(self, microbatch: Microbatch, step: int) -> dict[str, AnyArray]:
        """Copies a microbatch in; gives the arrays."""
        given = microbatch.fields | {
            "$rows": microbatch.rows,
            "$valid": microbatch.valid,
            "$seed": self._seed,
            "$step": np.array(step, np.uint32),
        }
        for name, array in self._block.host.items():
            value = given[name]
            if (value.dtype, value.shape) != (array.dtype, array.shape):
                given_type, wanted = (f"{each.dtype}{list(each.shape)}" for each in (value, array))
                raise InternalError("engine", f"{name} of a batch is {given_type}, the plan needs {wanted}")
            np.copyto(array, value)
        self._block.send()
        return self.arrays

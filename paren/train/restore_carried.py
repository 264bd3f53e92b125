"""What rounding gradients between nodes had taken off when a checkpoint was written: carried on by as many nodes, else
added to the next gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from paren.ir.op import Array
from paren.parallel.carried import ROLE, carried_slot
from paren.runtime.array import AnyArray
from paren.train.checkpoint import Checkpoint, restore


def restore_carried(
    checkpoint: Checkpoint, slots: Mapping[str, Array], owe: Callable[[], Mapping[str, AnyArray]]
) -> None:
    """Fills the `slots` of what nodes carry; if the checkpoint is of other nodes, what the next gradient is owed, by
    parameter, instead. Raises `Damaged`, and E-CKPT-006 for other types and shapes."""
    stored = {name: slot for name, slot in checkpoint.manifest.slots.items() if slot.role == ROLE}
    if stored.keys() == slots.keys():
        restore(checkpoint, slots)
        return
    for carried in slots.values():
        carried[...] = 0
    owed = owe() if stored else {}
    for node in sorted({int(name.rpartition(" ")[2]) for name in stored}):
        part = {name: np.empty(array.shape, np.float32) for name, array in owed.items()}
        restore(checkpoint, {carried_slot(name, node): array for name, array in part.items()})
        for name, array in owed.items():
            array[...] = np.add(array, part[name])

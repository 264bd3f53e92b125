"""The devices of this node that ranks may be put on."""

from __future__ import annotations

import os
import re

from paren.parallel.topology import Visible
from paren.runtime.cuda.probes import MachineProbes, Probes
from paren.runtime.cuda.visible import describe_mask


def visible_devices(name: str, probes: Probes | None = None) -> Visible:
    """What the device of a name, such as `cuda` or `cpu`, has here. Nothing but `cuda` looks for cards."""
    if not name.startswith("cuda"):
        return Visible("cpu", os.cpu_count() or 1, "")
    probes = probes if probes is not None else MachineProbes()
    mask = probes.mask
    limit = "" if mask is None else describe_mask(mask, probes.machine)
    return Visible("cuda", len(probes.cards), limit)


def ordinal_of(name: str) -> int | None:
    """The ordinal that the name of a device asks for: 1 of `cuda:1`, None of `cuda`."""
    found = re.fullmatch(r"cuda:([0-9]+)", name)
    return int(found[1]) if found is not None else None

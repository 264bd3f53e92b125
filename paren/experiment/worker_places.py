"""Where the workers of a study compute: which device each takes, and how many share it. A pure function."""

from __future__ import annotations

from dataclasses import dataclass

from paren.parallel.topology import Topology


@dataclass(frozen=True)
class WorkerPlace:
    """The device of a worker, by its name, and the number of workers on it."""

    device: str
    share: int


def place_workers(device: str, topology: Topology, workers: int | None) -> tuple[WorkerPlace, ...]:
    """A place for each of `workers` on this node, by default one for each of its devices, in turn. `device` is the
    kind, or one card, `cuda:1`. On a CPU all workers share the one that there is."""
    devices = topology.devices
    count = workers if workers is not None else len(devices)
    if not device.startswith("cuda"):
        return (WorkerPlace(device, count),) * count
    taken = [devices[number % len(devices)] for number in range(count)]
    return tuple(WorkerPlace(f"cuda:{ordinal}", taken.count(ordinal)) for ordinal in taken)


def own_place(device: str, topology: Topology) -> WorkerPlace:
    """The place of a worker that torchrun started as one of the topology's ranks."""
    places = place_workers(device, topology, None)
    member = topology.member
    return places[member.local_rank if member is not None else 0]

"""What a caller asks of a study."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from paren.environment import read_environment
from paren.parallel.topology import Topology, find_topology
from paren.parallel.visible import ordinal_of, visible_devices
from paren.run import How
from paren.text.errors import ParenError

DDP, JOBS = "ddp", "jobs"


@dataclass(frozen=True)
class Launch:
    """What a caller asks of a study. `parallel`: `jobs` puts a worker on each device, `ddp` (or None) trains each model
    on all of them. `workers`: so many processes on this machine, as `jobs` does."""

    out: Path
    how: How
    trains: bool = True
    analyzes: bool = True
    workers: int | None = None
    parallel: str | None = None
    tensorboard: bool = False

    @property
    def topology(self) -> Topology:
        """The ranks or workers that the environment asks for. Where torchrun's processes are to train each model
        together, they are none of its members: the first starts ranks for each training. Raises E-JOB-003 and E-JOB-005
        for what torchrun's processes cannot do, E-JOB-006 for options that contradict each other."""
        device = self.how.device
        topology = find_topology(read_environment().ranks, visible_devices(device), ordinal_of(device))
        if self.workers is not None and self.parallel == DDP:
            raise ParenError(
                "E-JOB-006",
                "--workers takes jobs side by side, and --parallel ddp one after another",
                fix="give one of them",
            )
        if topology.member is None:
            return topology
        if self.workers is not None:
            raise ParenError(
                "E-JOB-003",
                "--workers starts processes, and torchrun has started them already",
                fix="leave out --workers, and give --parallel jobs",
            )
        if self.parallel == JOBS:
            return topology
        if topology.nodes > 1:
            raise ParenError(
                "E-JOB-005",
                f"torchrun's processes on {topology.nodes} nodes cannot share each training of a study",
                fix="give --parallel jobs, or start torchrun on one node",
            )
        return replace(topology, member=None)

    @property
    def apart(self) -> bool:
        """Whether jobs are taken side by side."""
        return self.workers is not None or self.parallel == JOBS

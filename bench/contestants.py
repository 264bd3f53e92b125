"""Who takes part in a comparison: the command of each contestant and the environment it runs in."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.watch import ROOT
from bench.workloads.sizes import Network, Workload

PEERS = ROOT / ".venv-peers"

# glibc keeps memory that was freed, so that no page is touched for the first time twice.
KEEPING = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": "100000000000",
    "MALLOC_TOP_PAD_": "268435456",
}


def own_path() -> str:
    """Where the modules of a process are looked for: this project, then what was given."""
    return os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))


@dataclass(frozen=True)
class Contestant:
    """`peer`: the environment under `.venv-peers`, None for paren's own. `module`: what is run, with the workload and
    `variant`. `keeping`: freed memory is kept."""

    name: str
    peer: str | None
    module: str
    variant: str | None = None
    keeping: bool = False

    @property
    def own_python(self) -> Path:
        """The interpreter of the contestant's environment."""
        return PEERS / self.peer / "bin" / "python" if self.peer is not None else Path(sys.executable)

    def is_installed(self, device: str) -> bool:
        """Whether the contestant can take part. On a card torch is the one that paren runs on."""
        return self.peer != "jax" if device == "cuda" else self.own_python.exists()

    def command(self, workload: str, timed: int, threads: int, weights: Path, device: str) -> list[str]:
        """The command line of one process."""
        python = sys.executable if device == "cuda" else str(self.own_python)
        command = [python, "-m", self.module, workload]
        if self.variant is not None:
            command.append(self.variant)
        command += ["--timed", str(timed)]
        if self.peer is None:
            command += ["--weights", str(weights)]
        if self.peer == "jax":  # XLA has no option for the number of its threads
            cores = sorted(os.sched_getaffinity(0))[:threads]
            return ["taskset", "-c", ",".join(map(str, cores)), *command]
        return [*command, "--threads", str(threads), "--device", device]

    def environment(self, threads: int, caches: Path) -> dict[str, str]:
        """The variables of the process; what it compiles is cached below `caches` and nowhere else."""
        given = {name: value for name, value in os.environ.items() if not name.startswith(("PAREN_", "MALLOC_"))}
        given.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has its bytecode, and so has each contestant
        given |= {
            "PYTHONPATH": own_path(),
            "OMP_NUM_THREADS": str(threads),
            "PAREN_CACHE": str(caches / "paren"),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / self.name),
        }
        return given | (KEEPING if self.keeping else {})


PAREN = Contestant("paren", None, "bench.paren_contestant")
TORCH, JAX = "bench.peers.torch_peer", "bench.peers.jax_peer"

LANGUAGE_MODEL = (
    PAREN,
    Contestant("torch-eager", "torch", TORCH, "eager"),
    Contestant("torch-compile", "torch", TORCH, "compile"),
    Contestant("torch-compile-all", "torch", TORCH, "compile-all"),
    Contestant("torch-eager-keeping", "torch", TORCH, "eager", keeping=True),
    Contestant("torch-compile-keeping", "torch", TORCH, "compile", keeping=True),
    Contestant("jax", "jax", JAX, "step"),
)
NETWORK = (
    PAREN,
    Contestant("torch-slice", "torch", TORCH, "slice"),
    Contestant("torch-loader", "torch", TORCH, "loader"),
    Contestant("torch-compile", "torch", TORCH, "compile"),
    Contestant("torch-compile-all", "torch", TORCH, "compile-all"),
    Contestant("jax-scan", "jax", JAX, "scan"),
    Contestant("jax-step", "jax", JAX, "step"),
)


def contestants_of(workload: Workload) -> tuple[Contestant, ...]:
    """Everyone who can train the workload, paren first."""
    return NETWORK if isinstance(workload, Network) else LANGUAGE_MODEL

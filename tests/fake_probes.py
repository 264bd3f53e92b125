"""A machine for CUDA as tests want it: by default one H200 on which everything holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from paren.runtime.cuda.driver_libraries import Visible
from paren.runtime.cuda.probes import Compiler, Connector, Driver, Occupancy, Torch

GIB = 1 << 30
H200 = Visible(0, "NVIDIA H200", "GPU-1111", (9, 0))
TORCH = Torch("2.11.0", "13.0", "")
DRIVER = Driver("580.65.06", (13, 0))
COMPILER = Compiler("13.2")
CONNECTOR = Connector("NCCL 2.28.9")
FREE = Occupancy(138 * GIB, 140 * GIB)


@dataclass(frozen=True)
class FakeProbes:
    """What each probe answers; `compiled` is what NVRTC says for any architecture."""

    torch: Torch | None = TORCH
    driver: Driver | None = DRIVER
    mask: str | None = None
    machine: Sequence[tuple[str, str]] = (("NVIDIA H200", "GPU-1111"),)
    cards: Sequence[Visible] = (H200,)
    compiled: Compiler = COMPILER
    cublas: str = ""
    cudnn: tuple[int, int, int] | None = (9, 19, 0)
    nccl: Connector = CONNECTOR
    occupied: Occupancy | None = FREE

    def compiler(self, arch: str) -> Compiler:
        assert arch.startswith("sm_")
        return self.compiled

    def occupancy(self, card: Visible) -> Occupancy | None:
        assert card in self.cards
        return self.occupied


def several(count: int, mask: str | None = None, visible: int | None = None) -> FakeProbes:
    """A machine of several A100s, of which the first `visible` are seen."""
    cards = tuple(replace(H200, ordinal=n, name="NVIDIA A100", uuid=f"GPU-{n}{n}") for n in range(count))
    machine = tuple((card.name, card.uuid) for card in cards)
    return FakeProbes(mask=mask, machine=machine, cards=cards[: count if visible is None else visible])

"""Graphics cards that may not be there: what a plan is compared with by `paren explain FILE --card NAME`.

`memory` is what the driver reports as total (`nvidia-smi`), a little below the nominal size. Rates are the vendor's
dense peaks, without sparsity, at boost clocks: bandwidth in GB/s, the others in TFLOP/s; `bfloat16` and `tf32` are the
tensor cores' with accumulation in float32. Sources: NVIDIA's data sheets of the A100, H100 SXM, H200 SXM, HGX B200, L4,
L40S, A10 and A40, and the white papers of the architectures GA102, AD102 and GB202 for the others; the B200's bandwidth
is that of its 7,680-bit bus at the clock which the driver reports. Where a name stands for several forms of a card, it
is the SXM one.

Nothing reaches its peaks: a prediction counts on `PRODUCT_SHARE` and `TRAFFIC_SHARE` of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from paren.plan.limits import Limits
from paren.runtime.cuda.requirements import too_old
from paren.text.errors import ParenError, did_you_mean

MIB = 1 << 20
PRODUCT_SHARE = 0.7
TRAFFIC_SHARE = 0.85
START = 2e-6  # seconds of a kernel in a captured graph


@dataclass(frozen=True)
class Card:
    """One card; `memory` in MiB, `bandwidth` in GB/s, peak rates in TFLOP/s, `capability` (major, minor)."""

    name: str
    memory: int
    bandwidth: float
    float32: float
    tf32: float
    bfloat16: float
    capability: tuple[int, int]

    @property
    def arch(self) -> str:
        """The name of its instruction set, such as `sm_90`."""
        return f"sm_{self.capability[0]}{self.capability[1]}"

    def limits(self, tf32: bool = False) -> Limits:
        """What a prediction counts on: float32 products without TF32, as a run computes them unless it is asked to."""
        return Limits(
            traffic=1e9 * self.bandwidth * TRAFFIC_SHARE,
            products={
                "float32": 1e12 * (self.tf32 if tf32 else self.float32) * PRODUCT_SHARE,
                "bfloat16": 1e12 * self.bfloat16 * PRODUCT_SHARE,
            },
            instructions=1e12 * self.float32 / 2 * PRODUCT_SHARE,  # the peak counts a multiplication with its addition
            start=START,
        )


CARDS = {
    card.name: card
    for card in (
        Card("a100-40g", 40960, 1555, 19.5, 156, 312, (8, 0)),
        Card("a100-80g", 81920, 2039, 19.5, 156, 312, (8, 0)),
        Card("h100-80g", 81559, 3350, 67, 494.5, 989, (9, 0)),
        Card("h200", 143771, 4800, 67, 494.5, 989, (9, 0)),
        Card("b200", 183359, 7672, 80, 1100, 2250, (10, 0)),
        Card("l4", 23034, 300, 30.3, 60, 121, (8, 9)),
        Card("l40s", 46068, 864, 91.6, 183, 362, (8, 9)),
        Card("a10", 23028, 600, 31.2, 62.5, 125, (8, 6)),
        Card("a40", 46068, 696, 37.4, 74.8, 149.7, (8, 6)),
        Card("rtx-3090", 24576, 936, 35.6, 35.6, 71, (8, 6)),
        Card("rtx-4090", 24564, 1008, 82.6, 82.6, 165.2, (8, 9)),
        Card("rtx-5090", 32607, 1792, 104.8, 104.8, 209.5, (12, 0)),
    )
}

# What drivers write beside the name, as in `NVIDIA A100-SXM4-80GB`, `NVIDIA H100 80GB HBM3`, `Tesla T4`.
_DRIVERS_WORDS = re.compile(r"\b(nvidia|tesla|geforce)\s+|-sxm[0-9]*|[- ]pcie|\s+hbm[0-9a-z]*$")

# Known, and too old: name -> compute capability.
TOO_OLD = {
    "t4": (7, 5),
    "rtx-2080": (7, 5),
    "v100-16g": (7, 0),
    "v100-32g": (7, 0),
    "p100": (6, 0),
    "gtx-1080": (6, 1),
}

ARCHES = ("sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "sm_121")


def find_card(name: str) -> Card:
    """The card of a name, in any case, or as a driver writes it. Raises E-DEV-010 if it is unknown, E-DEV-011 if it is
    too old."""
    wanted = _DRIVERS_WORDS.sub("", name.lower()).strip().replace(" ", "-")
    wanted = re.sub(r"(?<=[0-9])gb$", "g", wanted)
    old = next((known for known in TOO_OLD if _begins_like(wanted, known)), None)
    if old is not None:
        raise _too_old(name.strip().lower(), TOO_OLD[old])
    if wanted not in CARDS:
        begun = next((f" (did you mean {known}?)" for known in CARDS if wanted and known.startswith(wanted)), "")
        raise ParenError(
            "E-DEV-010",
            f"unknown card {name}{begun or did_you_mean(wanted, [*CARDS, *TOO_OLD])}",
            fix=f"use one of {', '.join(CARDS)}, or give --memory SIZE",
        )
    return CARDS[wanted]


def _begins_like(wanted: str, known: str) -> bool:
    """Whether one name is the other, or the other without its end: `v100` of `v100-16g`, and `p100-16g` of `p100`;
    `rtx` is that of many."""
    one, other = f"{wanted}-", f"{known}-"
    return (one.startswith(other) or other.startswith(one)) and any(map(str.isdecimal, wanted))


def check_arch(name: str) -> str:
    """The name of an instruction set. Raises E-DEV-013 if it is unknown, E-DEV-011 if it is too old."""
    if name in ARCHES:
        return name
    digits = name.removeprefix("sm_")
    if name.startswith("sm_") and digits.isdecimal() and len(digits) == 2 and int(digits) < 80:
        raise _too_old(name, (int(digits[0]), int(digits[1])))
    raise ParenError(
        "E-DEV-013", f"unknown architecture {name}{did_you_mean(name, ARCHES)}", fix=f"use one of {', '.join(ARCHES)}"
    )


def _too_old(name: str, capability: tuple[int, int]) -> ParenError:
    message, fix = too_old(name, capability)
    return ParenError("E-DEV-011", message, fix=fix)

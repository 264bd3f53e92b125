"""What the device that a plan is for can do, as far as plans of one graph differ by it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TileSizes:
    """`smallest`: bytes of a value from which it is cut. `parallel`: bytes of one value's tile where iterations run
    side by side (it stays in a core's cache), `sequential` where they run one after another on all threads.
    `least_rows` of a tile: fewer make products slow. `lanes`: iterations that may run at once, with at most
    `lane_bytes` of scratch together; 0 where a device has no use for small iterations: then only rows are cut."""

    smallest: int = 4 << 20
    parallel: int = 512 << 10
    sequential: int = 64 << 20
    least_rows: int = 64
    lanes: int = 64
    lane_bytes: int = 64 << 20


@dataclass(frozen=True)
class Prices:
    """What making a value again is reckoned to cost: operations of products, scalar instructions and bytes, each a
    second. They are nominal, so that a plan depends on its graph, its budget and the kind of its device alone."""

    flops: float = 200e9
    instructions: float = 50e9
    traffic: float = 20e9


@dataclass(frozen=True)
class Traits:
    """`rounds_operands`: whether products read operands in float32 and round them to bfloat16 as they do; without it,
    what they round is rounded by a kernel before, once for all products. `makes_again`: whether values that one kernel
    makes from kept ones, and large ones that could then be cut, are made again although there is memory for them.
    `joins_late`: whether small values share kernels that wait for more than they do: it saves launches, and may keep
    large kernels apart that need them. `multiplies_float16`: whether it has products of that type; else their operands
    are widened. `aligns`: whether products of short floats need rows that begin on 16 bytes to be fast. `attends`:
    whether the operation `attention` is a step of its own; else it is lowered to products. `fill`: neighbouring columns
    that have to be summed at once to keep the device busy; 0 where it is busy with any. `own_memory`: whether buffers
    lie in a memory that is not the host's. `epilogues`: whether a product may be one step with the kernel after it, if
    that works element by element. `tiles`: how large values are cut. `prices`: by which values are chosen that
    are made again to fit. `portions`: whether small graphs sum over examples in portions, which threads make apart."""

    rounds_operands: bool = True
    makes_again: bool = True
    joins_late: bool = True
    multiplies_float16: bool = False
    aligns: bool = False
    attends: bool = False
    fill: int = 0
    own_memory: bool = False
    epilogues: bool = False
    tiles: TileSizes = TileSizes()
    prices: Prices = Prices()
    portions: bool = True


CPU = Traits()
# Products of fewer rows than some thousands leave a card idle, and each chunk of the logits reads and writes the
# gradient of their table once more; what the arena holds costs no time, and each byte that is moved does.
CUDA = Traits(
    rounds_operands=False,
    makes_again=False,
    joins_late=False,
    multiplies_float16=True,
    aligns=True,
    attends=True,
    fill=1 << 16,
    own_memory=True,
    epilogues=True,
    tiles=TileSizes(smallest=512 << 20, sequential=1 << 30, least_rows=256, lanes=0),
    prices=Prices(flops=400e12, instructions=15e12, traffic=3e12),
    portions=False,
)


def traits_of(device: str) -> Traits:
    """The traits of a device by its name, such as `cuda:1`."""
    return CUDA if device.partition(":")[0] == "cuda" else CPU

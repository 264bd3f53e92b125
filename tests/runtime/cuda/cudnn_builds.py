"""Run as a program: cuDNN itself builds graphs of attention and of products, for cards that are not there.

It compiles for a card by its properties alone; only what it then asks of a driver is answered by stubs, which load
nothing. What was compiled is kept in a folder, the argument, and restored from there. Prints a JSON object: the
name of each graph -> null, or why it could not be built.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import cudnn
import test_cuda_attention
from activated import gelu, network, on_cards, relu, silu, tanh

from paren.plan.epilogue import epilogues_of
from paren.runtime.cache import GraphCache
from paren.runtime.cuda.attention_graphs import AttentionGraphs
from paren.runtime.cuda.cudnn import Cudnn
from paren.runtime.cuda.epilogue_graphs import EpilogueGraphs

COMMON = {
    "cudaDeviceId": 0,
    "driverVer": 13000,
    "isTccDriver": 0,
    "maxBlockSize": [1024, 1024, 64],
    "maxGridSize": [2147483647, 65535, 65535],
    "maxRegistersPerSM": 65536,
    "maxSharedMemoryPerBlock": 49152,
    "maxThreadsPerBlock": 1024,
    "memClockRateKHz": 2600000,
    "oversizedSharedMemoryPerBlock": 0,
    "pciDeviceId": 0,
    "regsPerBlock": 65536,
    "reservedSharedMemoryPerBlock": 1024,
    "smClockRateKHz": 1700000,
    "supportCoopLaunch": 1,
    "warpSize": 32,
}
# Name, capability, processors, shared memory of a block, L2 cache and memory in MiB, bits of the memory's bus, threads
# and blocks of a processor.
CARDS = (
    ("NVIDIA A100-SXM4-80GB", 800, 108, 166912, 40, 81920, 5120, 2048, 32),
    ("NVIDIA L4", 890, 58, 101376, 48, 23034, 192, 1536, 24),
    ("NVIDIA H200", 900, 132, 232448, 60, 143771, 6144, 2048, 32),
    ("NVIDIA B200", 1000, 148, 232448, 126, 183359, 8192, 2048, 32),
)
ATTENTIONS = ((1024, 12, 12, True), (1024, 12, 4, True), (512, 8, 8, False))


def package_for(card: tuple[Any, ...]) -> ModuleType:
    """The package, whose graphs are for that card."""
    name, capability, processors, shared, cache, memory, bits, threads, blocks = card
    properties = COMMON | {
        "deviceName": name,
        "deviceVer": capability,
        "multiProcessorCount": processors,
        "maxSharedMemoryPerBlockOptin": shared,
        "l2CacheSize": cache << 20,
        "totalGlobalMem": memory << 20,
        "memoryBusWidth": bits,
        "maxThreadsPerSM": threads,
        "maxCtasPerSM": blocks,
    }
    described = cudnn.create_device_properties(json.dumps(properties))

    def pygraph(handle: object, **given: object) -> object:
        graph = cudnn.pygraph(device_property=described, sm_version=capability // 10, **given)
        read = graph.deserialize  # without a card there is no handle to give
        graph.deserialize = lambda handle, data: read(data)
        return graph

    known = vars(cudnn) | {"create_handle": lambda: None, "set_stream": lambda **_: None, "pygraph": pygraph}
    return cast(ModuleType, SimpleNamespace(**known))


def graphs(library: Cudnn) -> Iterator[tuple[str, object]]:
    """Graphs by names, not built yet."""
    attentions, epilogues = AttentionGraphs(library), EpilogueGraphs(library)
    test_cuda_attention.EXAMPLES, test_cuda_attention.WIDTH = 8, 64
    for case in ATTENTIONS:
        for step in test_cuda_attention.steps(*case):
            yield f"attention {case} {'backward' if step.backward else 'forward'}", attentions.graph(step)
    for rows, hidden in ((512, 3072), (24, 32), (7, 8)):
        for activation in (gelu, relu, silu, tanh):
            for precision in ("bfloat16", "float16"):
                plan = on_cards(network(activation, rows, hidden, precision))
                for number, epilogue in epilogues_of(plan).items():
                    name = f"{precision} {activation.__name__} {rows}x{hidden} step {number}"
                    yield name, epilogues.graph(epilogue)


def not_to_be_drawn() -> object:
    raise AssertionError("it is not restored")


def main() -> None:
    found: dict[str, str | None] = {}
    for card in CARDS:
        cache = GraphCache(Path(sys.argv[1]))
        library, later = (Cudnn(package_for(card), 0, lambda size: 4096, cache, card[0]) for _ in range(2))
        for name, graph in graphs(library):
            try:
                built = library.prepare(name, lambda graph=graph: graph)  # type: ignore[misc]
                restored = later.prepare(name, not_to_be_drawn)
                assert restored.graph.get_workspace_size() == built.graph.get_workspace_size()
                found[f"{card[0]}: {name}"] = None
            except Exception as refusal:  # the package has exceptions of its own
                found[f"{card[0]}: {name}"] = str(refusal)[:400]
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()

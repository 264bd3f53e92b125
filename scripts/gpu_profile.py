"""Where the time of a training step goes on a card: python -m scripts.gpu_profile [SETTING=VALUE ...] [--top N].

GPT-2 124M of `examples/gpt.paren` in bfloat16, 32 sequences of 1,024 random tokens, unless settings say otherwise. It
tells the time to the first step and of a step, then each region by the card's clock: what is alike is timed once, eight
times in one graph, and multiplied. Regions that find their operands in a cache then seem faster than in a step.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from paren.data.loader import GlobalBatch, Microbatch
from paren.engine import CompiledEngine
from paren.environment import read_environment
from paren.forecast.plans import make_plans
from paren.inspect.regions import Region, region_of
from paren.ir.types import DType
from paren.lang.elaborate import elaborate
from paren.pipeline import Planning
from paren.plan.plan import Attention, Launch, Loop, Plan, Product, Step
from paren.plan.traits import CUDA
from paren.runtime.cuda.device import CudaDevice, open_cuda
from paren.runtime.cuda.sequence import Work
from paren.runtime.task import Task

EXAMPLE = Path(__file__).parent.parent / "examples" / "gpt.paren"
DEFAULTS = ("batch=32", "microbatches=1", 'precision="bfloat16"')
REPEATS = 8
STEPS = 20


@dataclass(frozen=True)
class Timed:
    """Alike regions: one of them, how many there are, and the seconds of one."""

    region: Region
    count: int
    seconds: float

    @property
    def line(self) -> str:
        cost, whole = self.region.cost, self.count * self.seconds
        rates = f"{cost.bytes / self.seconds / 1e9:6.0f} GB/s {cost.flops / self.seconds / 1e12:5.0f} TFLOP/s"
        name = f"{self.region.kind} {self.region.name}"[:52]
        each = f"{self.count:4} x {self.seconds * 1e6:8.1f} us = {whole * 1e3:7.3f} ms"
        return f"{each} {rates}  {name:52} {self.region.result:28} {self.region.place}"


def likeness(step: Step) -> Hashable:
    """Equal for steps that take the same time."""
    match step:
        case Launch(kernel):
            return kernel.digest
        case Product():
            bare = (replace(matrix, buffer=0, offset=0) for matrix in (step.a, step.b, step.c))
            return (*bare, step.m, step.n, step.k, step.batch, step.accumulate)
        case Attention():
            return replace(step, operands=(), results=(), statistics=None, spans=(), nodes=()), len(step.results)
        case Loop():
            return step.name, step.iterations, step.nodes
    return type(step).__name__, step.source, step.target


def time_regions(device: CudaDevice, plan: Plan, tasks: list[Task]) -> list[Timed]:
    """The regions of a plan, alike ones as one. What they compute is spoiled: they run more than once."""
    buffers = {buffer.id: buffer for buffer in plan.buffers}
    found: dict[Hashable, tuple[Step, Work, int]] = {}
    for step, task in zip(plan.steps, tasks, strict=True):
        assert isinstance(task, Work)
        key = likeness(step)
        first, work, count = found.get(key, (step, task, 0))
        found[key] = first, work, count + 1
    timed = []
    for step, work, count in found.values():

        def repeat(work: Work = work) -> None:
            for _ in range(REPEATS):
                work.issue(0)

        replay = device.driver.capture(repeat)
        replay()
        seconds = min(device.driver.elapsed(replay) for _ in range(3)) / REPEATS
        timed.append(Timed(region_of(step, buffers, None), count, seconds))
    return timed


def random_batch(engine: CompiledEngine) -> GlobalBatch:
    """One microbatch of random tokens."""
    generator = np.random.default_rng(0)
    rows = engine.program.rows
    fields = {}
    for field in engine.program.data.fields:
        high = min((bound.high for bound in engine.program.bounds if bound.field == field.name), default=2)
        values = generator.integers(0, high, (rows, *field.type.shape))
        fields[field.name] = values.astype(field.type.dtype.numpy)
    microbatch = Microbatch(fields, np.arange(rows, dtype=np.uint32), np.ones(rows, DType.FLOAT32.numpy))
    return GlobalBatch(0, 0, np.arange(rows), (microbatch,))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("settings", nargs="*", default=[], help="settings of the example")
    parser.add_argument("--variant", default="gpt2")
    parser.add_argument("--top", type=int, default=60, help="how many regions are shown")
    given = parser.parse_args()
    begin = time.perf_counter()
    named = {setting.partition("=")[0] for setting in given.settings}
    settings = [setting for setting in DEFAULTS if setting.partition("=")[0] not in named]
    program = elaborate(EXAMPLE, variant=given.variant, overrides=[*settings, *given.settings])
    plans = make_plans(program, Planning(traits=CUDA))
    planned = time.perf_counter()
    device = open_cuda(0, read_environment().cache)
    engine = CompiledEngine(program, plans, device)
    compiled = time.perf_counter()
    engine.initialize(1)
    batch = random_batch(engine)
    sums = engine.step(batch, 1)
    loss = sums.loss / sums.weight
    first = time.perf_counter()
    print(device.target)
    print(
        f"plans {planned - begin:.1f} s, card and kernels {compiled - planned:.1f} s ({device.compiled} new), "
        f"first step {first - compiled:.1f} s, loss {loss:.4f}",
        flush=True,
    )
    times = []
    for number in range(STEPS):
        begin = time.perf_counter()
        sums = engine.step(batch, number + 2)
        times.append(time.perf_counter() - begin)
    tokens = int(np.prod(next(iter(batch.microbatches[0].fields.values())).shape))
    best, middle = min(times[2:]), sorted(times[2:])[len(times[2:]) // 2]
    print(
        f"step {middle * 1e3:.2f} ms, least {best * 1e3:.2f} ms, {tokens / middle:,.0f} tokens/s; the second (capture) "
        f"{times[0] * 1e3:.0f} ms; loss {sums.loss / sums.weight:.4f}, norm {sums.norm:.4g}",
        flush=True,
    )
    print(
        f"memory: planned {engine.memory()['planned'] >> 20} MiB, most used {device.used_bytes() >> 20} MiB", flush=True
    )
    whole = 1e3 * device.driver.elapsed(engine._step)
    timed = time_regions(device, plans.accumulate, list(engine._accumulate.tasks))
    timed += time_regions(device, plans.finish, list(engine._finish.tasks))
    for executable in engine._updates.values():
        timed += time_regions(device, executable.plan, list(executable.tasks))
    timed.sort(key=lambda each: -each.count * each.seconds)
    total = 1e3 * sum(each.count * each.seconds for each in timed)
    kinds: dict[str, float] = {}
    for each in timed:
        kinds[each.region.kind] = kinds.get(each.region.kind, 0.0) + 1e3 * each.count * each.seconds
    shares = ", ".join(f"{kind} {value:.2f} ms" for kind, value in kinds.items())
    print(f"the step's graph {whole:.2f} ms by the card's clock; regions {total:.2f} ms: {shares}")
    print(*(each.line for each in timed[: given.top]), sep="\n")


if __name__ == "__main__":
    main()

"""Compiling what a run would, without its memory: how long the kernels take, and what the device falls back to."""

from __future__ import annotations

import time
from dataclasses import dataclass

from paren.forecast.plans import Plans
from paren.runtime.device import Device
from paren.runtime.executor import Executable, load_plans


@dataclass(frozen=True)
class Compiling:
    """What making the kernels took: modules compiled, modules taken from the cache, seconds of both."""

    compiled: int
    reused: int
    seconds: float


def compile_plans(plans: Plans, device: Device) -> Compiling | None:
    """Makes every plan ready to run on the device, which then also knows its fall-backs; None where nothing is
    compiled."""
    compiled, reused, begin = device.compiled, device.reused, time.perf_counter()
    load_plans(device, plans.all.values())
    for plan in {id(plan): plan for plan in plans.all.values()}.values():
        Executable(device, plan)
    return compiling_since(device, compiled, reused, begin)


def compiling_since(device: Device, compiled: int, reused: int, begin: float) -> Compiling | None:
    """What was compiled and reused beyond these counts of the device, since `begin` on the clock `perf_counter`."""
    if not device.target:
        return None
    return Compiling(device.compiled - compiled, device.reused - reused, time.perf_counter() - begin)

"""What is asked of NVIDIA's libraries, against stand-ins that answer as cuda.h and nvml.h say."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from paren.runtime.cuda import driver_libraries, probes
from paren.runtime.cuda.driver_libraries import Usage, Visible
from paren.runtime.cuda.probes import MachineProbes, Occupancy

IDENTIFIER = "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
GIB = 1 << 30


class Cuda:
    """libcuda with one card, or one that does not start."""

    def __init__(self, status: int = 0, count: int = 1) -> None:
        self.status, self.count = status, count

    def cuInit(self, flags: int) -> int:
        assert flags == 0
        return self.status

    def cuGetErrorName(self, status: int, name: Any) -> int:
        assert status == self.status
        name._obj.value = b"CUDA_ERROR_UNKNOWN"
        return 0

    def cuDriverGetVersion(self, number: Any) -> int:
        number._obj.value = 13020
        return 0

    def cuDeviceGetCount(self, number: Any) -> int:
        number._obj.value = self.count
        return 3 if self.status else 0

    def cuDeviceGet(self, device: Any, ordinal: int) -> int:
        device._obj.value = 40 + ordinal
        return 0

    def cuDeviceGetName(self, text: Any, size: int, device: Any) -> int:
        assert (size, device.value) == (96, 40)
        text.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetUuid_v2(self, identifier: Any, device: Any) -> int:
        identifier[:] = bytes(range(16))
        return 0

    def cuDeviceGetAttribute(self, number: Any, attribute: int, device: Any) -> int:
        number._obj.value = {75: 9, 76: 0}[attribute]
        return 0


class Management:
    """NVML with one card, on which two processes compute; `told`: whether it tells so."""

    def __init__(self, told: bool = True) -> None:
        self.told = told

    def nvmlSystemGetDriverVersion(self, text: Any, size: int) -> int:
        text.value = b"580.65.06"
        return 0

    def nvmlDeviceGetCount_v2(self, number: Any) -> int:
        number._obj.value = 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 7 + index
        return 0

    def nvmlDeviceGetHandleByUUID(self, identifier: bytes, handle: Any) -> int:
        handle._obj.value = 7
        return 0 if identifier == IDENTIFIER.encode() else 6

    def nvmlDeviceGetName(self, handle: Any, text: Any, size: int) -> int:
        text.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, size: int) -> int:
        text.value = IDENTIFIER.encode()
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:
        assert memory._obj.version == 0x2000028
        memory._obj.total, memory._obj.free, memory._obj.used = 140 * GIB, 90 * GIB, 49 * GIB
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, entries: Any) -> int:
        if not self.told:
            return 3
        entries[0].pid, entries[0].used = os.getpid(), 9 * GIB
        entries[1].pid, entries[1].used = 1, 40 * GIB
        entries[2].pid, entries[2].used = 2**31, 2**64 - 1
        count._obj.value = 3
        return 0


def manage(monkeypatch: pytest.MonkeyPatch, library: Management | None) -> None:
    @contextmanager
    def management() -> Iterator[Management | None]:
        yield library

    monkeypatch.setattr(driver_libraries, "management", management)


def test_what_a_process_sees() -> None:
    cuda: Any = Cuda()
    assert driver_libraries.start_cuda(cuda) == (0, "")
    assert driver_libraries.cuda_version(cuda) == (13, 2)
    card = Visible(0, "NVIDIA H200", IDENTIFIER, (9, 0))
    assert driver_libraries.visible_cards(cuda) == (card,)


def test_no_card_is_no_failure_and_other_failures_have_a_name() -> None:
    none: Any = Cuda(100, 0)
    assert driver_libraries.start_cuda(none) == (0, "")
    assert driver_libraries.visible_cards(none) == ()
    broken: Any = Cuda(999)
    assert driver_libraries.start_cuda(broken) == (999, "CUDA_ERROR_UNKNOWN")


def test_what_the_machine_has(monkeypatch: pytest.MonkeyPatch) -> None:
    manage(monkeypatch, Management())
    assert driver_libraries.driver_version() == "580.65.06"
    assert driver_libraries.cards_of_machine() == (("NVIDIA H200", IDENTIFIER),)
    processes = ((os.getpid(), 9 * GIB), (1, 40 * GIB), (2**31, 0))
    assert driver_libraries.usage_of(IDENTIFIER) == Usage(90 * GIB, 140 * GIB, 49 * GIB, processes)
    assert driver_libraries.usage_of("GPU-another") is None


def test_without_the_management_library(monkeypatch: pytest.MonkeyPatch) -> None:
    manage(monkeypatch, None)
    assert driver_libraries.driver_version() == ""
    assert driver_libraries.cards_of_machine() == ()
    assert driver_libraries.usage_of(IDENTIFIER) is None


def test_others_are_all_but_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    card = Visible(0, "NVIDIA H200", IDENTIFIER, (9, 0))
    monkeypatch.setattr(probes, "read_lines", lambda path: ["python"] if str(path) == "/proc/1/comm" else [])
    manage(monkeypatch, Management())
    assert MachineProbes().occupancy(card) == Occupancy(90 * GIB, 140 * GIB, 40 * GIB, ("1 (python)", "2147483648"))
    manage(monkeypatch, Management(told=False))
    monkeypatch.setattr(probes, "_computes", lambda: False)
    assert MachineProbes().occupancy(card) == Occupancy(90 * GIB, 140 * GIB, 49 * GIB)
    monkeypatch.setattr(probes, "_computes", lambda: True)
    assert MachineProbes().occupancy(card) == Occupancy(90 * GIB, 140 * GIB)

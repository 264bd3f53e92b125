"""The two libraries of NVIDIA's driver, by ctypes: libcuda for what a process sees, NVML for the whole machine.

Neither makes a context on a card, so looking costs no memory there and no time worth naming. Names, structures and
constants are those of cuda.h and nvml.h.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LIBCUDA = "libcuda.so.1"
_SUCCESS, _NO_DEVICE = 0, 100
_CAPABILITY_MAJOR, _CAPABILITY_MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_*
_TEXT = 96  # bytes of a name, a version or an identifier, at most


@dataclass(frozen=True)
class Visible:
    """A card that this process sees, by its ordinal there. `uuid`: `GPU-...`, as CUDA_VISIBLE_DEVICES takes it."""

    ordinal: int
    name: str
    uuid: str
    capability: tuple[int, int]


@dataclass(frozen=True)
class Usage:
    """Memory of a card in bytes, and the processes that compute on it with what each holds (0 where it is not told)."""

    free: int
    total: int
    used: int
    processes: tuple[tuple[int, int], ...]


class _Memory(ctypes.Structure):
    """nvmlMemory_v2_t; `used` leaves out what the driver reserves for itself."""

    _fields_ = (
        ("version", ctypes.c_uint),
        ("total", ctypes.c_ulonglong),
        ("reserved", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


class _Process(ctypes.Structure):
    """nvmlProcessInfo_t."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


def load_library(name: str) -> ctypes.CDLL | None:
    """A shared library by its name, None if the system has none."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def cuda_version(cuda: ctypes.CDLL) -> tuple[int, int]:
    """The newest CUDA that the driver supports."""
    number = ctypes.c_int()
    cuda.cuDriverGetVersion(ctypes.byref(number))
    return number.value // 1000, number.value % 1000 // 10


def start_cuda(cuda: ctypes.CDLL) -> tuple[int, str]:
    """Starts CUDA in this process: 0, or the number and name of what it failed with. No card is no failure."""
    status = int(cuda.cuInit(0))
    if status in (_SUCCESS, _NO_DEVICE):
        return 0, ""
    name = ctypes.c_char_p()
    cuda.cuGetErrorName(status, ctypes.byref(name))
    return status, (name.value or b"an unknown error").decode()


def visible_cards(cuda: ctypes.CDLL) -> tuple[Visible, ...]:
    """The cards that a started CUDA sees, in its order."""
    count = ctypes.c_int()
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return ()
    return tuple(_card(cuda, ordinal) for ordinal in range(count.value))


def _card(cuda: ctypes.CDLL, ordinal: int) -> Visible:
    device = ctypes.c_int()
    cuda.cuDeviceGet(ctypes.byref(device), ordinal)
    name = ctypes.create_string_buffer(_TEXT)
    cuda.cuDeviceGetName(name, _TEXT, device)
    identifier = (ctypes.c_ubyte * 16)()
    cuda.cuDeviceGetUuid_v2(identifier, device)
    numbers = []
    for attribute in (_CAPABILITY_MAJOR, _CAPABILITY_MINOR):
        number = ctypes.c_int()
        cuda.cuDeviceGetAttribute(ctypes.byref(number), attribute, device)
        numbers.append(number.value)
    digits = bytes(identifier).hex()
    parts = "-".join(digits[begin:end] for begin, end in ((0, 8), (8, 12), (12, 16), (16, 20), (20, 32)))
    return Visible(ordinal, name.value.decode(), f"GPU-{parts}", (numbers[0], numbers[1]))


@contextmanager
def management() -> Iterator[ctypes.CDLL | None]:
    """NVML, started; None where it is missing or does not start."""
    library = load_library("libnvidia-ml.so.1")
    if library is None or library.nvmlInit_v2() != _SUCCESS:
        yield None
        return
    try:
        yield library
    finally:
        library.nvmlShutdown()


def driver_version() -> str:
    """The driver's own version, such as `580.65.06`; empty where NVML does not tell."""
    text = ctypes.create_string_buffer(_TEXT)
    with management() as library:
        if library is not None:
            library.nvmlSystemGetDriverVersion(text, _TEXT)
    return text.value.decode()


def cards_of_machine() -> tuple[tuple[str, str], ...]:
    """Name and UUID of every card of the machine, seen by this process or not; nothing where NVML is missing."""
    with management() as library:
        count = ctypes.c_uint()
        if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != _SUCCESS:
            return ()
        found = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == _SUCCESS:
                name, identifier = ctypes.create_string_buffer(_TEXT), ctypes.create_string_buffer(_TEXT)
                library.nvmlDeviceGetName(handle, name, _TEXT)
                library.nvmlDeviceGetUUID(handle, identifier, _TEXT)
                found.append((name.value.decode(), identifier.value.decode()))
        return tuple(found)


def usage_of(identifier: str) -> Usage | None:
    """Memory and processes of the card with this UUID; None where NVML does not tell."""
    with management() as library:
        handle = ctypes.c_void_p()
        found = library is not None and any(
            library.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle)) == _SUCCESS
            for name in (identifier, identifier.replace("GPU-", "MIG-", 1))  # a part of a card has a UUID of its own
        )
        memory = _Memory(version=ctypes.sizeof(_Memory) | 2 << 24)
        if library is None or not found or library.nvmlDeviceGetMemoryInfo_v2(handle, ctypes.byref(memory)) != _SUCCESS:
            return None
        return Usage(memory.free, memory.total, memory.used, _processes(library, handle))


def _processes(library: ctypes.CDLL, handle: ctypes.c_void_p) -> tuple[tuple[int, int], ...]:
    """The processes that compute on a card; none where the system does not tell, as in many containers."""
    most = 128
    count, entries = ctypes.c_uint(most), (_Process * most)()
    if library.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), entries) != _SUCCESS:
        return ()
    unknown = ctypes.c_ulonglong(-1).value
    return tuple((entry.pid, 0 if entry.used == unknown else entry.used) for entry in entries[: count.value])

"""What `checks.h` looks for while emulated kernels run, as `compute-sanitizer` does on a card.

Between `checked()` and its end every launch of the emulation is checked, and raises `Violation` for the first thing
that is wrong. `PARTS` knows the parameters of the kernels that no plan has.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Table
from contextlib import contextmanager
from pathlib import Path

from paren.codegen.cuda.emit import CudaKernel
from paren.codegen.cuda.mapping import WARP, Mapping
from paren.ir.types import DType
from paren.plan.kernel import Parameter
from paren.runtime.cuda import builtin, sums

HEADER = (Path(__file__).parent / "checks.h").read_text()
UNDEFINED = "bounds,shift,integer-divide-by-zero,signed-integer-overflow,float-cast-overflow"
OPTIONS = [
    "-std=c++17", "-O1", "-g1", "-march=native", "-ffp-contract=off", "-fno-strict-aliasing", "-fPIC",
    "-DEMULATED_CHECKS", "-fsanitize=thread", f"-fsanitize={UNDEFINED}", "-fno-sanitize-recover=all",
    "--param=tsan-instrument-func-entry-exit=0",
]  # fmt: skip

_checking = False


class Violation(AssertionError):
    """A kernel did what is wrong on a card, even where its result is right here."""


class Part(ctypes.Structure):
    _fields_ = (
        ("begin", ctypes.c_ulonglong),
        ("bytes", ctypes.c_ulonglong),
        ("item", ctypes.c_int),
        ("reads", ctypes.c_int),
        ("writes", ctypes.c_int),
    )


class Work(ctypes.Structure):
    _fields_ = (
        ("units", ctypes.c_longlong),
        ("group", ctypes.c_int),
        ("per_block", ctypes.c_int),
        ("by_lane", ctypes.c_int),
        ("ranges", ctypes.c_int),
        ("strips", ctypes.c_int),
        ("lanes", ctypes.c_int),
    )


@contextmanager
def checked() -> Iterator[None]:
    """Every launch is checked until the end of the block."""
    global _checking
    before, _checking = _checking, True
    try:
        yield
    finally:
        _checking = before


def checking() -> bool:
    return _checking


def _reads(size: int, dtype: DType = DType.FLOAT32) -> Parameter:
    return Parameter(dtype, size, True, False)


def _writes(size: int, dtype: DType = DType.FLOAT32) -> Parameter:
    return Parameter(dtype, size, False, True)


def _changes(size: int, dtype: DType = DType.FLOAT32) -> Parameter:
    return Parameter(dtype, size, True, True)


SHORT, WHOLE, LARGE, BYTE = DType.BFLOAT16, DType.INT32, DType.INT64, DType.UINT8

# The parameters of kernels that no plan has, from their units and the words behind these.
PARTS: Table[str, Callable[[int, Sequence[int]], Sequence[Parameter]]] = {
    builtin.BEGIN: lambda units, words: (_writes(1, WHOLE), _writes(1, LARGE)),
    builtin.END: lambda units, words: (_writes(1, WHOLE), _reads(1, WHOLE)),
    builtin.COUNT: lambda units, words: (_changes(1, LARGE),),
    builtin.COPY: lambda units, words: (_reads(units, BYTE), _writes(units, BYTE)),
    sums.ADD: lambda units, words: (_changes(units), _reads(units * (words[2] - 1))),
    sums.ADD_TREE: lambda units, words: (_changes(units), _reads(units * (words[2] - 1))),
    sums.ROUND: lambda units, words: (_reads(units), _reads(units), _writes(units), _writes(units, SHORT)),
    sums.ADD_ROUNDED: lambda units, words: (
        _changes(units, SHORT), _reads(units * (words[3] - 1), SHORT), _changes(units),
    ),
    sums.WIDEN: lambda units, words: (_reads(units, SHORT), _writes(units), _changes(units)),
}  # fmt: skip


def run_checked(
    library: ctypes.CDLL, source: str, name: str, code: CudaKernel | None, stop: int, units: int, words: Sequence[int],
    launch: Callable[[], None], apart: int,
) -> None:  # fmt: skip
    """Runs a launch whose parameters lie where the first words say; `code` is there unless `PARTS` knows the kernel. Of
    its blocks those run that lie `apart`, and the last. Raises `Violation`."""
    parameters = PARTS[name](units, words) if code is None else code.mapping.kernel.parameters
    parts = [
        Part(word, each.size * each.dtype.bytes, each.dtype.bytes, each.reads, each.writes)
        for word, each in zip(words, parameters, strict=code is not None)
    ]
    if stop:
        parts.append(Part(stop, 4, 4, 1, 0))
    work = Work() if code is None else _work(code.mapping, units)
    library.emulated_watch((Part * len(parts))(*parts), len(parts), ctypes.byref(work), ctypes.c_longlong(apart))
    launch()
    verdict, place = library.emulated_verdict, ctypes.c_ulonglong()
    verdict.restype = ctypes.c_char_p
    said = verdict(ctypes.byref(place)).decode()
    if said:
        raise Violation(f"{name}: {said}{_line(str(library._name), source, place.value)}")


def _work(mapping: Mapping, units: int) -> Work:
    if not mapping.ranges:
        by_lane = mapping.lane is not None
        return Work(units, mapping.group, mapping.per_block, by_lane)
    assert mapping.lane is not None
    lanes = mapping.kernel.axes[mapping.lane] // mapping.width
    return Work(units, 0, 0, 0, mapping.ranges, -(-lanes // WARP), lanes)


def _line(path: str, source: str, place: int) -> str:
    """The line of a text that an instruction comes from."""
    if not place:
        return ""
    found = subprocess.run(["addr2line", "-i", "-e", path, hex(place - 1)], capture_output=True, text=True, check=False)
    numbers = [int(number) for number in re.findall(r":(\d+)", found.stdout)]
    lines = source.splitlines()
    return "".join(f"\n  {lines[number - 1].strip()}" for number in numbers if 0 < number <= len(lines))

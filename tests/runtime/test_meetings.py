"""Threads of a team meet where one touches what another one touched, keep their parts apart elsewhere, and the bits are
those of one thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from kernel_samples import F32, gelu, reduction

from paren.codegen.driver import Pace
from paren.codegen.touches import Touch
from paren.ir.op import Array
from paren.plan.plan import Matrix, Product
from paren.runtime import native_call
from paren.runtime.cpu import CpuDevice
from paren.runtime.meetings import Reach, find_meetings
from paren.runtime.memory import allocate
from paren.runtime.native_call import NativeCall
from paren.runtime.task import Cell, Task

MEETS = native_call.MEETS


def array(*shape: int) -> Array:
    size = 4 * int(np.prod(shape))
    return allocate(size).view(np.float32).reshape(shape)


def reach(*touches: tuple[int, int, bool], parts: int = 2, everywhere: bool = False) -> Reach:
    """Unit i touches bytes i x first up to i x first + size of one buffer."""

    def touched(begin: int, end: int) -> list[Touch]:
        return [Touch(0, begin * step, (end - 1) * step + size, writes) for step, size, writes in touches]

    return Reach(np.zeros(1, np.uint64), touched, 4, parts, 1, everywhere)


ROWS = reach((8, 8, True))  # each unit its own bytes
NEIGHBOURS = reach((8, 9, False))
ALONE = reach((8, 8, True), parts=1)
READS = reach((0, 32, False))
QUESTION = reach((0, 4, False), parts=1, everywhere=True)


@pytest.mark.parametrize(
    ("reaches", "meetings"),
    [
        ([ROWS, ROWS, ROWS], [False, False, False]),
        ([ROWS, NEIGHBOURS, NEIGHBOURS, ROWS], [False, True, False, True]),
        ([READS, READS, ROWS, READS], [False, False, True, True]),
        ([ALONE, ALONE, ROWS, ROWS, ALONE, ALONE], [False, False, True, False, True, False]),
        ([ALONE, QUESTION, QUESTION, ALONE], [False, True, False, True]),
        ([ROWS, READS, QUESTION, ROWS], [False, True, False, True]),
    ],
)
def test_where_threads_meet(reaches: list[Reach], meetings: list[bool]) -> None:
    assert find_meetings(reaches, 2) == meetings


def layers(device: CpuDevice, x: Array, w: Array, results: Sequence[Array]) -> list[Task]:
    """Products and maps of rows, then sums of columns."""
    kernel, columns = gelu(128, 64), reduction("sum", 128, 64, "column")
    device.load([kernel, columns])
    a, b = (Matrix(i, 0, 64, False, ()) for i in (0, 1))
    product = Product(a, b, Matrix(2, 0, 64, False, ()), 128, 64, 64, (), False, (), ())
    cells = [Cell(result) for result in results]
    return [
        device.library(product, (F32,) * 3, Cell(x), Cell(w), cells[0]),
        device.launch(kernel, [cells[0], cells[1]]),
        device.library(product, (F32,) * 3, cells[1], Cell(w), cells[2]),
        device.launch(columns, [cells[2], cells[3]]),
        device.copy(cells[2], cells[4], results[4].nbytes),
    ]


def buffers(seed: int) -> tuple[Array, Array, list[Array]]:
    generator = np.random.default_rng(seed)
    x, w = array(128, 64), array(64, 64)
    x[...], w[...] = generator.normal(size=x.shape), generator.normal(size=w.shape)
    return x, w, [array(128, 64), array(128, 64), array(128, 64), array(64), array(128, 64)]


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sequence has its team, at once."""
    monkeypatch.setattr(native_call, "TEAM_WORK", 0)
    monkeypatch.setattr(native_call, "SHORT_WORK", 0)


def sequence(device: CpuDevice, tasks: Sequence[Task]) -> NativeCall:
    call = device.sequence(tasks)
    assert isinstance(call, NativeCall)
    return call


def meetings(call: NativeCall) -> list[int]:
    return [int(word) for word in call._records[:, MEETS]]


@pytest.mark.usefixtures("eager")
def test_rows_stay_with_their_thread() -> None:
    """Until the first thread alone sums columns, and copies."""
    x, w, results = buffers(0)
    call = sequence(CpuDevice(2), layers(CpuDevice(2), x, w, results))
    assert meetings(call) == [0, 1, 1, 1, 0]
    call()
    assert meetings(call) == [0, 0, 0, 1, 0]


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize("threads", [2, 3, 4, 7])
def test_the_bits_are_those_of_one_thread(threads: int) -> None:
    """More threads than cores too, and when the sequence is run many times."""
    x, w, wanted = buffers(1)
    CpuDevice(1).sequence(layers(CpuDevice(1), x, w, wanted))()
    _, _, got = buffers(1)
    device = CpuDevice(threads)
    call = device.sequence(layers(device, x, w, got))
    for _ in range(20):
        for result in got:
            result[...] = 0
        assert call(10) == 10
        for one, other in zip(got, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("eager")
def test_threads_meet_everywhere_once_a_buffer_lies_elsewhere() -> None:
    x, _, results = buffers(2)
    device = CpuDevice(2)
    kernel = gelu(128, 64)
    device.load([kernel])
    source, middle, last = Cell(x), Cell(results[0]), Cell(results[1])
    call = sequence(device, [device.launch(kernel, [source, middle]), device.launch(kernel, [middle, last])])
    call()
    assert meetings(call) == [0, 0]
    wanted = results[1].copy()
    other = Cell(array(4))
    other.array = array(8)  # of another sequence: nothing changes here
    call()
    assert meetings(call) == [0, 0]
    # Now the second kernel reads its rows half a matrix further on: those of the other thread.
    both = array(256, 64)
    both[64:192] = x
    source.array, middle.array = both[64:192], results[2]
    call()
    assert meetings(call) == [0, 1]
    np.testing.assert_array_equal(results[1], wanted)


@pytest.mark.usefixtures("eager")
def test_threads_ask_a_flag_after_the_first_thread_has_set_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where meetings are not looked for: else one thread ends the sequence, and the others wait for it."""
    monkeypatch.setattr(native_call, "LONG_RECORD", 0)
    x, _, results = buffers(4)
    device = CpuDevice(2)
    kernel = gelu(128, 64)
    device.load([kernel])
    launch = device.launch(kernel, [Cell(x), Cell(results[0])])
    flag = Cell(array(1).view(np.int32))
    copy = device.copy(Cell(array(1)), flag, 4)
    call = sequence(device, [launch, copy, device.stop_if(flag), copy, launch])
    assert meetings(call) == [0, 1, 1, 1, 1]


@pytest.mark.usefixtures("eager")
def test_python_threads_have_teams_of_their_own() -> None:
    _, w, _ = buffers(3)
    device = CpuDevice(2)
    made = []
    for seed in range(8):
        x, _, results = buffers(seed)
        made.append((device.sequence(layers(device, x, w, results)), results))

    def repeats(number: int) -> bool:
        call, results = made[number]
        call()
        wanted = [result.copy() for result in results]
        for _ in range(30):
            call(5)
            if any((result != one).any() for result, one in zip(results, wanted, strict=True)):
                return False
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(repeats, range(len(made))))


def test_a_short_sequence_runs_on_one_thread_and_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever it is: the same bits, as often as was asked for."""
    monkeypatch.setattr(native_call, "TEAM_WORK", 0)
    x, w, results = buffers(4)
    device = CpuDevice(2)
    call = sequence(device, layers(device, x, w, results))
    call()
    wanted = [result.copy() for result in results]
    pace = call._pace
    assert pace is not None
    assert pace[Pace.LEFT] == 15
    for left, alone, wins in ((0, 1e9, [True]), (3, 1e9, [True, False]), (0, 1e-9, [False]), (5, 1e-9, [False])):
        pace[Pace.LEFT], pace[Pace.PROBE] = left, 4096
        pace.view(np.float64)[Pace.ALONE] = alone
        for result in results:
            result[...] = 0
        assert call(100) == 100
        assert (pace[Pace.WON] > 0) in wins
        for one, other in zip(results, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        pace[Pace.WON] = 0


def test_an_attempt_that_fails_makes_the_next_one_wait_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_call, "TEAM_WORK", 0)
    x, w, results = buffers(5)
    device = CpuDevice(2)
    call = sequence(device, layers(device, x, w, results))
    pace = call._pace
    assert pace is not None
    seen = []
    for _ in range(12):
        pace[Pace.LEFT] = 0
        pace.view(np.float64)[Pace.ALONE] = 1e-12
        call(2)
        seen.append(int(pace[Pace.LEFT]))
    assert seen == [16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 4096, 4096, 4096]


@pytest.mark.parametrize("left", [0, 100])
def test_a_flag_ends_a_short_sequence(monkeypatch: pytest.MonkeyPatch, left: int) -> None:
    monkeypatch.setattr(native_call, "TEAM_WORK", 0)
    x, w, results = buffers(6)
    device = CpuDevice(2)
    flag = np.zeros((), np.int32)
    tasks = layers(device, x, w, results)
    call = sequence(device, [*tasks, device.stop_if(Cell(flag)), *tasks])
    assert call._pace is not None
    call._pace[Pace.LEFT] = left
    assert call(20) == 20
    flag[...] = 1
    assert call(20) == 0

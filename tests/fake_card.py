"""A card that is host memory: launches run a Python function, products run by the library's own rules, graphs are lists
of calls. What a real card refuses inside a capture fails here. A lazy card does what it was given as late as it may."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np
from attended import attend
from joined import join

from paren.ir.op import Array
from paren.ir.types import DType
from paren.plan.epilogue import Epilogue
from paren.plan.plan import Attention
from paren.runtime.cuda.driver import OutOfMemoryError
from paren.runtime.cuda.products import Gemm, Operand
from paren.runtime.memory import allocate

Launchable = Callable[[int, int, Sequence[int]], None]  # blocks, threads, arguments
FUSED = {DType.BFLOAT16: DType.FLOAT32, DType.FLOAT16: DType.FLOAT32}


class FakeCard:
    """`functions(image, name)` gives what a launch runs. `size`: bytes of its memory."""

    card = "Fake"
    architecture = "sm_90"
    libraries = ""
    notes: Sequence[str] = ()

    def __init__(self, functions: Callable[[bytes, str], Launchable], size: int = 1 << 40, lazy: bool = False) -> None:
        self._functions = functions
        self._lazy = lazy
        self.able: Collection[str] | None = ()  # forms of epilogues that it joins; None: all
        self.made: set[str] = set()  # forms whose programs the library has made
        self._lock = threading.RLock()
        self._waiting: list[Callable[[], object]] = []
        self._given = 0
        self.identity = f"card of {os.getpid()}"
        self._size = size
        self.idle = 0  # bytes that `release` gives back
        self.used = 0
        self._most = 0
        self._recording: list[Callable[[], None]] | None = None
        self.captures = 0
        self.replays = 0
        self.started: list[str] = []  # the verbs that started work, outside of replays

    def allocate(self, size: int) -> tuple[int, object]:
        self._outside()
        assert size > 0
        if self.used + self.idle + size > self._size:
            raise OutOfMemoryError(f"CUDA out of memory. Tried to allocate {size} bytes.")
        block = allocate(size + 256)
        address = int(block.__array_interface__["data"][0])
        self.used += size
        self._most = max(self._most, self.used)
        return -(-address // 256) * 256, block

    def release(self) -> None:
        self._outside()
        self.idle = 0

    def memory(self) -> tuple[int, int]:
        return self._size - self.used, self._size

    def most_used(self) -> int:
        most, self._most = self._most, self.used
        return most

    def upload(self, source: Array, address: int) -> None:
        self._outside()
        assert source.flags.c_contiguous
        ctypes.memmove(address, source.ctypes.data, source.nbytes)

    def download(self, address: int, target: Array) -> None:
        self._outside()
        assert target.flags.c_contiguous
        ctypes.memmove(target.ctypes.data, address, target.nbytes)

    def fill(self, address: int, size: int, byte: int) -> None:
        self._outside()
        ctypes.memset(address, byte, size)

    def load(self, image: bytes, name: str) -> object:
        self._outside()
        return self._functions(image, name)

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        assert 0 < blocks < 1 << 31
        assert 0 < threads <= 1024
        assert callable(function)
        given = tuple(arguments)
        self._start("launch", lambda: function(blocks, threads, given))

    def copy(self, source: int, target: int, size: int) -> None:
        assert size > 0
        self._start("copy", lambda: ctypes.memmove(target, source, size))

    def multiply(self, gemm: Gemm, left: int, right: int, result: int) -> None:
        self._start("multiply", lambda: run_gemm(gemm, left, right, result))

    def attend(self, step: Attention, addresses: Mapping[int, int]) -> None:
        assert all(addresses[id] % 16 == 0 for id in (*step.reads, *step.writes))
        self._start("attend", lambda: attend(step, lambda id: _flat(step, id, addresses[id])))

    def joins(self, epilogue: Epilogue) -> bool:
        able = self.able is None or epilogue.form in self.able
        if epilogue.form not in self.made:
            self._outside()
            self.made |= {epilogue.form} if able else set()
        return able

    def join(self, epilogue: Epilogue, addresses: Mapping[int, int]) -> None:
        assert epilogue.form in self.made
        assert all(addresses[id] % 16 == 0 for id in epilogue.buffers)
        self._start("join", lambda: join(epilogue, lambda id, size, dtype: _memory(addresses[id], size, dtype)))

    def capture(self, issue: Callable[[], None]) -> Callable[[], None]:
        self._outside()
        recorded = self._recording = []
        try:
            issue()
        finally:
            self._recording = None
        assert recorded, "an empty graph"
        self.captures += 1

        def replay() -> None:
            assert self._recording is None, "this cannot be captured"
            self.replays += 1
            for call in recorded:
                self._do(call)

        return replay

    def elapsed(self, start: Callable[[], object]) -> float:
        self._outside()
        begin = time.perf_counter()
        start()
        self._run()
        return time.perf_counter() - begin

    def synchronise(self) -> None:
        self._outside()

    def enter(self) -> None:
        """There is one."""

    def lane(self) -> FakeLane:
        return FakeLane(self)

    def mark(self) -> object:
        assert self._recording is None, "this cannot be captured"
        given = self._given
        return Mark(lambda: self._run(given))

    def seconds(self, first: object, second: object) -> float:
        assert isinstance(first, Mark)
        assert isinstance(second, Mark)
        return second.time - first.time

    def _run(self, given: int | None = None) -> None:
        """Does what waits; of so many calls that were given, those that are left."""
        with self._lock:
            while self._waiting and (given is None or given > self._given - len(self._waiting)):
                self._waiting.pop(0)()

    def _outside(self) -> None:
        assert self._recording is None, "this cannot be captured"
        self._run()

    def _start(self, verb: str, call: Callable[[], object]) -> None:
        if self._recording is not None:
            self._recording.append(lambda: call() and None)
            return
        self.started.append(verb)
        self._do(call)

    def _do(self, call: Callable[[], object]) -> None:
        with self._lock:
            self._waiting.append(call)
            self._given += 1
        if not self._lazy:
            self._run()


class Mark:
    """A point of a stream, and when it was reached. `reach` does what lies before it."""

    def __init__(self, reach: Callable[[], None] = lambda: None) -> None:
        self.clock: Array = np.zeros(0, np.int64)  # of a card that keeps account
        self._reach = reach
        self._time: float | None = None

    @property
    def time(self) -> float:
        if self._time is None:
            self._reach()
            self._time = time.perf_counter()
        return self._time


class FakeLane:
    """A second stream, which does at once what it is given. `followed`: how often it waited for the first."""

    stream = 0

    def __init__(self, card: FakeCard) -> None:
        self._card = card
        self.followed = 0

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        assert 0 < blocks < 1 << 31
        assert callable(function)
        function(blocks, threads, tuple(arguments))

    def follow(self, mark: object) -> None:
        assert isinstance(mark, Mark)
        self.followed += 1
        assert mark.time

    def point(self) -> object:
        mark = Mark()
        assert mark.time
        return mark

    def reached(self, point: object) -> bool:
        assert isinstance(point, Mark)
        return True

    def download(self, address: int, target: Array) -> None:
        ctypes.memmove(target.ctypes.data, address, target.nbytes)


def extent_of(step: Attention, id: int) -> int:
    """The bytes of a buffer up to the last that the step touches."""
    if id == step.statistics:
        return DType.FLOAT32.bytes * step.examples * step.heads * step.queries
    parts = [(heads, step.size_of(number)) for number, heads in enumerate(step.operands)]
    parts += [(heads, step.size_of(number)) for number, heads in enumerate(step.results) if heads is not None]
    return step.dtype.bytes * max(
        1 + heads.offset + sum((count - 1) * by for count, by in zip(size, (*heads.strides, 1), strict=True))
        for heads, size in parts
        if heads.buffer == id
    )


def _flat(step: Attention, id: int, address: int) -> Array:
    """As many elements of a buffer as the step touches."""
    dtype = DType.FLOAT32 if id == step.statistics else step.dtype
    return _memory(address, extent_of(step, id) // dtype.bytes, dtype)


def _memory(address: int, size: int, dtype: DType) -> Array:
    memory = (ctypes.c_char * (size * dtype.bytes)).from_address(address)
    return np.frombuffer(memory, np.uint8).view(dtype.numpy)


def run_gemm(gemm: Gemm, left: int, right: int, result: int) -> None:
    """What `cublasGemmStridedBatchedEx_64` does with these parameters, and refuses to do."""
    a = _matrices(gemm.left, gemm.m, gemm.k, left, gemm.count)
    b = _matrices(gemm.right, gemm.k, gemm.n, right, gemm.count)
    c = _matrices(gemm.result, gemm.m, gemm.n, result, gemm.count)
    assert not gemm.result.transposed
    assert gemm.count == 1 or gemm.result.stride, "matrices of a batch lie in one another"
    sums = FUSED.get(gemm.left.dtype, gemm.left.dtype).numpy
    with np.errstate(all="ignore"):
        value = np.matmul(a.astype(sums), b.astype(sums))
        c[...] = (c.astype(sums) + value if gemm.accumulates else value).astype(c.dtype)


def _matrices(operand: Operand, rows: int, columns: int, address: int, count: int) -> Array:
    """Column-major matrices at an address, after their transposition: [count rows columns]."""
    if operand.transposed:
        return _matrices(replace(operand, transposed=False), columns, rows, address, count).transpose(0, 2, 1)
    assert operand.leading >= max(1, rows), "the library refuses this leading dimension"
    assert address % operand.dtype.bytes == 0
    item = operand.dtype.bytes
    strides = (operand.stride, 1, operand.leading)
    if not rows * columns:  # nothing lies there
        return np.empty((count, rows, columns), operand.dtype.numpy)
    begin, end = span_of(operand, rows, columns, address, count)
    memory = (ctypes.c_char * (end - begin)).from_address(begin)
    flat = np.frombuffer(memory, np.uint8).view(operand.dtype.numpy)[(address - begin) // item :]
    bytes_ = tuple(stride * item for stride in strides)
    return np.lib.stride_tricks.as_strided(flat, (count, rows, columns), bytes_)


def span_of(operand: Operand, rows: int, columns: int, address: int, count: int) -> tuple[int, int]:
    """The addresses from the first to behind the last that column-major matrices touch, before a transposition."""
    if operand.transposed:
        rows, columns = columns, rows
    strides = (operand.stride, 1, operand.leading)
    extents = [(size - 1) * stride for size, stride in zip((count, rows, columns), strides, strict=True)]
    low, high = sum(min(0, extent) for extent in extents), sum(max(0, extent) for extent in extents) + 1
    return address + low * operand.dtype.bytes, address + high * operand.dtype.bytes

"""The real driver: torch gives context, memory, stream and graphs; kernels are loaded and launched through libcuda.

Everything runs on one stream of torch, never the default one, which cannot be captured. Names and constants of libcuda
are those of cuda.h.
"""

from __future__ import annotations

import ctypes
import gc
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from paren.ir.op import Array
from paren.plan.epilogue import Epilogue
from paren.plan.plan import Attention
from paren.runtime.cache import GraphCache
from paren.runtime.cuda.attention import Attentions, CardMemory
from paren.runtime.cuda.attention_graphs import AttentionGraphs
from paren.runtime.cuda.cublas import WORKSPACE, Products
from paren.runtime.cuda.cudnn import Cudnn, cudnn_version, open_cudnn
from paren.runtime.cuda.driver import OutOfMemoryError
from paren.runtime.cuda.driver_libraries import LIBCUDA
from paren.runtime.cuda.epilogue_graphs import EpilogueGraphs
from paren.runtime.cuda.native import Library
from paren.runtime.cuda.products import Gemm
from paren.text.errors import InternalError, first_line

_FUNCTIONS = {
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxSetCurrent": (c_void_p,),
    "cuModuleLoadData": (POINTER(c_void_p), c_void_p),
    "cuModuleGetFunction": (POINTER(c_void_p), c_void_p, c_char_p),
    "cuLaunchKernel": (c_void_p, *(c_uint,) * 7, c_void_p, POINTER(c_void_p), c_void_p),
    "cuMemcpyHtoDAsync_v2": (c_uint64, c_void_p, c_size_t, c_void_p),
    "cuMemcpyDtoHAsync_v2": (c_void_p, c_uint64, c_size_t, c_void_p),
    "cuMemcpyDtoDAsync_v2": (c_uint64, c_uint64, c_size_t, c_void_p),
    "cuMemsetD8Async": (c_uint64, c_ubyte, c_size_t, c_void_p),
    "cuStreamSynchronize": (c_void_p,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
}


class _Cuda(Library):
    def describe(self, result: int) -> str:
        name = c_char_p()
        self._functions["cuGetErrorName"](result, ctypes.byref(name))
        return name.value.decode() if name.value else f"error {result}"


@dataclass(frozen=True)
class _Function:
    """A function, and the module that it lives in."""

    name: str
    handle: c_void_p
    module: c_void_p


class _Lane:
    """A second stream, whose calls take no lock: they touch nothing that a capture is of. It comes before the first
    where the card has to choose, since others wait for what it does."""

    def __init__(self, card: Card, index: int) -> None:
        self._card = card
        self._stream = torch.cuda.Stream(index, priority=-1)  # type: ignore[no-untyped-call]
        self.stream = int(self._stream.cuda_stream)

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        self._card.start(function, blocks, threads, arguments, self.stream)

    def follow(self, mark: object) -> None:
        assert isinstance(mark, torch.cuda.Event)
        self._card.enter()
        self._stream.wait_event(mark)

    def point(self) -> object:
        self._card.enter()
        return _record(self._stream)

    def reached(self, point: object) -> bool:
        assert isinstance(point, torch.cuda.Event)
        try:
            return bool(point.query())  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            raise InternalError("cuda", f"an exchange failed: {first_line(error)}") from error

    def download(self, address: int, target: Array) -> None:
        self._card.enter()
        self._card.library.call("cuMemcpyDtoHAsync_v2", target.ctypes.data, address, target.nbytes, self.stream)
        self._card.library.call("cuStreamSynchronize", self.stream)


def _record(stream: torch.cuda.Stream) -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record(stream)
    return event


class Card:
    """The card of that ordinal among those that this process sees. Any thread may move bytes; what a thread does waits
    for a capture that another is making."""

    def __init__(self, index: int, tf32: bool = False, cache: Path | None = None) -> None:
        self._index = index
        self._lock = threading.RLock()
        self._ready = threading.local()
        torch.cuda.init()  # type: ignore[no-untyped-call]
        properties = torch.cuda.get_device_properties(index)
        self.card = str(properties.name)
        self.architecture = f"sm_{properties.major}{properties.minor}"
        self.identity = str(properties.uuid)
        self.libraries = cudnn_version(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        self.library = _Cuda(LIBCUDA, _FUNCTIONS)
        self._context = c_void_p()
        self.library.call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), index)
        torch.cuda.set_device(index)
        self._stream = torch.cuda.Stream(index)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._kept: list[object] = []
        self._notes: list[str] = []
        self._graph_cache = GraphCache(cache)
        self._refused: set[str] = set()  # forms of epilogues that cuDNN does not compute
        self._workspace = self._keep(WORKSPACE)
        device = torch.device("cuda", index)
        self._attentions = Attentions(device, CardMemory(device), lambda: self._attention_graphs)
        self._products = Products(self._stream.cuda_stream, self._workspace, tf32)

    # Memory ---------------------------------------------------------------------------------------------------------

    def allocate(self, size: int) -> tuple[int, object]:
        with self._by_torch():
            try:
                memory = torch.zeros(size, dtype=torch.uint8, device=torch.device("cuda", self._index))
            except torch.OutOfMemoryError as refusal:
                raise OutOfMemoryError(first_line(refusal)) from refusal
        return memory.data_ptr(), memory

    def release(self) -> None:
        gc.collect()
        torch.cuda.empty_cache()

    def memory(self) -> tuple[int, int]:
        free, total = torch.cuda.mem_get_info(self._index)
        unused = torch.cuda.memory_reserved(self._index) - torch.cuda.memory_allocated(self._index)
        return free + unused, total

    def most_used(self) -> int:
        most = int(torch.cuda.max_memory_allocated(self._index))
        torch.cuda.reset_peak_memory_stats(self._index)
        return most

    def upload(self, source: Array, address: int) -> None:
        self._call("cuMemcpyHtoDAsync_v2", address, source.ctypes.data, source.nbytes, self._stream.cuda_stream)
        self.synchronise()

    def download(self, address: int, target: Array) -> None:
        self._call("cuMemcpyDtoHAsync_v2", target.ctypes.data, address, target.nbytes, self._stream.cuda_stream)
        self.synchronise()

    def fill(self, address: int, size: int, byte: int) -> None:
        self._call("cuMemsetD8Async", address, byte, size, self._stream.cuda_stream)
        self.synchronise()

    # Work -----------------------------------------------------------------------------------------------------------

    def load(self, image: bytes, name: str) -> _Function:
        module, function = c_void_p(), c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name.encode())
        return _Function(name, function, module)

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        with self._lock:
            self.start(function, blocks, threads, arguments, self._stream.cuda_stream)

    def start(self, function: object, blocks: int, threads: int, arguments: Sequence[int], stream: int) -> None:
        """A launch on a stream."""
        assert isinstance(function, _Function)
        values = (c_uint64 * len(arguments))(*arguments)
        first = ctypes.addressof(values)
        pointers = (c_void_p * len(arguments))(*range(first, first + 8 * len(arguments), 8))
        self.enter()
        try:
            self.library.call("cuLaunchKernel", function.handle, blocks, 1, 1, threads, 1, 1, 0, stream, pointers, None)
        except InternalError as error:
            error.add_note(f"{function.name} on {blocks} blocks of {threads}")
            raise

    def copy(self, source: int, target: int, size: int) -> None:
        self._call("cuMemcpyDtoDAsync_v2", target, source, size, self._stream.cuda_stream)

    def multiply(self, gemm: Gemm, left: int, right: int, result: int) -> None:
        with self._lock:
            self.enter()
            self._products.multiply(gemm, left, right, result)

    def attend(self, step: Attention, addresses: Mapping[int, int]) -> None:
        with self._by_torch():
            try:
                self._attentions.attend(step, addresses)
            except torch.OutOfMemoryError as refusal:
                raise OutOfMemoryError(first_line(refusal)) from refusal
            except RuntimeError as error:
                raise InternalError("cuda", f"{step.nodes[0]}: {error}") from error

    def joins(self, epilogue: Epilogue) -> bool:
        graphs = self._epilogue_graphs
        if graphs is None or epilogue.form in self._refused:
            return False
        with self._by_torch():
            try:
                graphs.prepare(epilogue)
            except torch.OutOfMemoryError as refusal:
                raise OutOfMemoryError(first_line(refusal)) from refusal
            except Exception as refusal:  # the package has exceptions of its own
                self._refused.add(epilogue.form)
                what = f"the product at {epilogue.product.spans[-1]} with the kernel after it"
                self._notes.append(f"cuDNN does not compute {what}: {first_line(refusal)}")
                return False
        return True

    def join(self, epilogue: Epilogue, addresses: Mapping[int, int]) -> None:
        graphs = self._epilogue_graphs
        assert graphs is not None
        with self._by_torch():
            try:
                graphs.run(epilogue, addresses)
            except RuntimeError as error:
                raise InternalError("cuda", f"{epilogue.product.nodes[0]}: {error}") from error

    @cached_property
    def _cudnn(self) -> Cudnn | None:
        def load() -> Cudnn:
            import cudnn  # optional

            target = f"{self.card} {self.architecture} {self.libraries}"
            return Cudnn(cudnn, self._stream.cuda_stream, self._keep, self._graph_cache, target)

        return open_cudnn(load, self._notes.append)

    @cached_property
    def _attention_graphs(self) -> AttentionGraphs | None:
        return None if self._cudnn is None else AttentionGraphs(self._cudnn)

    @cached_property
    def _epilogue_graphs(self) -> EpilogueGraphs | None:
        return None if self._cudnn is None else EpilogueGraphs(self._cudnn)

    def _keep(self, size: int) -> int:
        """The address of memory that stays as long as the card."""
        address, owner = self.allocate(size)
        self._kept.append(owner)
        return address

    @property
    def notes(self) -> Sequence[str]:
        return (*self._notes, *self._attentions.notes, *self._graph_cache.notes)

    def capture(self, issue: Callable[[], None]) -> Callable[[], None]:
        gc.collect()  # objects of torch that vanish meanwhile would call what a capture does not allow
        graph = torch.cuda.CUDAGraph()
        with self._by_torch():
            self.synchronise()
            try:
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    issue()
                except BaseException:
                    with suppress(RuntimeError):  # the first failure says what happened
                        graph.capture_end()
                    raise
                graph.capture_end()
            except RuntimeError as error:
                raise InternalError("cuda", f"capture of a sequence: {error}") from error

        def replay() -> None:
            with self._by_torch():
                graph.replay()

        return replay

    def elapsed(self, start: Callable[[], object]) -> float:
        # What fills some memory keeps the card busy until the work is in the stream too: its start then costs no time.
        for _ in range(4):
            self._call("cuMemsetD8Async", self._workspace, 0, WORKSPACE, self._stream.cuda_stream)
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        begin.record(self._stream)
        start()
        end.record(self._stream)
        self.synchronise()
        return float(begin.elapsed_time(end)) / 1e3

    def lane(self) -> _Lane:
        return _Lane(self, self._index)

    def mark(self) -> object:
        with self._lock:
            self.enter()
            return _record(self._stream)

    def seconds(self, first: object, second: object) -> float:
        assert isinstance(first, torch.cuda.Event)
        assert isinstance(second, torch.cuda.Event)
        return float(first.elapsed_time(second)) / 1e3

    def synchronise(self) -> None:
        self._call("cuStreamSynchronize", self._stream.cuda_stream)

    def _call(self, name: str, *arguments: object) -> None:
        with self._lock:
            self.enter()
            self.library.call(name, *arguments)

    @contextmanager
    def _by_torch(self) -> Iterator[None]:
        """What torch does goes into the stream. The card comes first: a thread that has none would be given card 0's
        context, with all the memory that it takes, when torch goes back to where the thread was."""
        with self._lock:
            self.enter()
            with torch.cuda.stream(self._stream):
                yield

    def enter(self) -> None:
        """Makes the card's context the calling thread's."""
        if not getattr(self._ready, "entered", False):
            self.library.call("cuCtxSetCurrent", self._context)
            self._ready.entered = True

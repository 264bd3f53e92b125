"""The real driver over libraries that keep their arguments: each of libcuda and cuBLAS is where it belongs."""

from __future__ import annotations

import ctypes
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from paren.ir.types import DType
from paren.runtime.cuda import card, cublas, native
from paren.runtime.cuda.card import Card
from paren.runtime.cuda.driver import OutOfMemoryError
from paren.runtime.cuda.products import Gemm, Operand
from paren.text.errors import InternalError

STREAM, CONTEXT, FUNCTION, HANDLE = 0x7300000000, 0x7000000000, 0x7200000000, 0x7400000000
F32, F64, BF16 = DType.FLOAT32, DType.FLOAT64, DType.BFLOAT16


class Event:
    """An event of torch's that notes where it was recorded; it is reached at the second look."""

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing
        self.looks = 0

    def record(self, stream: object) -> None:
        self.stream = stream

    def query(self) -> bool:
        self.looks += 1
        if self.looks > 2:
            raise RuntimeError("CUDA error: an illegal memory access was encountered\nmore")
        return self.looks > 1

    def elapsed_time(self, other: Event) -> float:
        assert isinstance(other, Event)
        return 250.0


class SecondStream:
    cuda_stream = STREAM + 1

    def __init__(self) -> None:
        self.awaited: list[object] = []

    def wait_event(self, event: object) -> None:
        self.awaited.append(event)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stub") / "stub.so"
    source = Path(__file__).parent / "stub_libraries.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", str(source), "-o", str(path)], check=True)
    return path


@pytest.fixture
def stub(library: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """torch.cuda and the libraries replaced; `words()` are the arguments since it was asked last, `stream` torch's."""
    stream = SimpleNamespace(cuda_stream=STREAM)
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda size, dtype, device: zeros(size, dtype=dtype))
    for name, replacement in (
        ("init", lambda: None),
        ("get_device_properties", lambda index: SimpleNamespace(name="Stub", major=9, minor=0, uuid="11-22")),
        ("set_device", lambda index: None),
        ("Stream", lambda index, priority=0: SecondStream() if priority else stream),
        ("Event", Event),
        ("graph_pool_handle", lambda: (0, 0)),
        ("stream", lambda stream: nullcontext()),
    ):
        monkeypatch.setattr(torch.cuda, name, replacement)
    monkeypatch.setattr(card, "LIBCUDA", str(library))
    monkeypatch.setattr(cublas, "loaded_library", lambda prefix: str(library))
    monkeypatch.setattr(card, "Attentions", lambda *given: SimpleNamespace(notes=[]))
    calls = ctypes.CDLL(str(library))
    calls.recorded_text.restype = ctypes.c_char_p

    def words() -> list[int]:
        target = (ctypes.c_int64 * 64)()
        return list(target[: calls.recorded(target)])

    words()
    return SimpleNamespace(words=words, text=calls.recorded_text, stream=stream)


def test_a_card_is_set_up(stub: SimpleNamespace) -> None:
    opened = Card(0)
    assert (opened.card, opened.architecture) == ("Stub", "sm_90")
    # The workspace comes after the stream, which would take it away.
    assert stub.words() == [CONTEXT, 1, STREAM, 2, 1, 32 << 20, 3, 16]


def test_kernels(stub: SimpleNamespace) -> None:
    opened = Card(0)
    stub.words()
    function = opened.load(b"\x7fELF...", "k_1")
    assert stub.text() == b"k_1"
    assert stub.words() == []
    opened.launch(function, 2**31 - 1, 256, (0, 2**40, 3, 2**47 - 1, 5))
    assert stub.words() == [FUNCTION, 2**31 - 1, 1, 1, 256, 1, 1, 0, STREAM, 0, 0, 2**40, 3, 2**47 - 1, 5]
    with pytest.raises(InternalError) as caught:
        opened.launch(function, 13, 64, (0, 0, 0, 0, 0))
    assert str(caught.value) == "internal error in cuda: cuLaunchKernel: CUDA_ERROR_ILLEGAL_ADDRESS"
    assert caught.value.__notes__ == ["k_1 on 13 blocks of 64"]


def test_bytes_are_moved(stub: SimpleNamespace) -> None:
    opened = Card(0)
    (first, kept), (second, also) = opened.allocate(40), opened.allocate(40)
    values, found = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    opened.upload(values, first)
    opened.copy(first, second, 40)
    opened.download(second, found)
    np.testing.assert_array_equal(found, values)
    opened.fill(second + 4, 36, 0)
    opened.download(second, found)
    assert not found.any()
    assert kept is not also


def test_a_thread_is_on_the_card_before_torch_is(stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch goes back to where a thread was, which must not be another card."""
    opened = Card(0)
    stub.words()
    before: list[list[int]] = []

    @contextmanager
    def stream(_: object) -> Iterator[None]:
        before.append(stub.words())
        yield

    monkeypatch.setattr(torch.cuda, "stream", stream)
    thread = threading.Thread(target=opened.allocate, args=(40,))
    thread.start()
    thread.join()
    assert before == [[CONTEXT]]


def test_a_failure_has_the_name_of_its_call(stub: SimpleNamespace) -> None:
    opened = Card(0)
    stub.stream.cuda_stream = 1
    with pytest.raises(InternalError) as caught:
        opened.synchronise()
    assert str(caught.value) == "internal error in cuda: cuStreamSynchronize: CUDA_ERROR_ILLEGAL_ADDRESS"
    wrong = Gemm(9, 1, 1, *(Operand(F32, 1, 0, 0, False),) * 3, 1, False)
    with pytest.raises(InternalError) as caught:
        opened.multiply(wrong, 0, 0, 0)
    assert str(caught.value) == "internal error in cuda: cublasGemmEx_64: CUBLAS_STATUS_INVALID_VALUE"


def test_a_second_stream(stub: SimpleNamespace) -> None:
    """Its work is in it and waits for marks of the first; no call of it waits for the lock of a capture."""
    opened = Card(0)
    lane = opened.lane()
    function = opened.load(b"\x7fELF...", "k_1")
    (first, _), found = opened.allocate(4), np.zeros(1, np.float32)
    opened.upload(np.array([5], np.float32), first)
    stub.words()
    mark = opened.mark()
    assert isinstance(mark, Event)
    assert mark.stream is stub.stream
    done: list[object] = []

    def work() -> None:
        lane.follow(mark)
        lane.launch(function, 3, 256, (0, 0, 7, first, first))
        point = lane.point()
        done.extend([point, lane.reached(point), lane.reached(point)])
        with pytest.raises(InternalError) as caught:
            lane.reached(point)
        done.append(str(caught.value))

    with opened._lock:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    point, *rest = done
    assert rest == [
        False,
        True,
        "internal error in cuda: an exchange failed: CUDA error: an illegal memory access was encountered",
    ]
    assert isinstance(point, Event)
    stream = point.stream
    assert isinstance(stream, SecondStream)
    assert stream.awaited == [mark]
    assert stub.words() == [CONTEXT, FUNCTION, 3, 1, 1, 256, 1, 1, 0, STREAM + 1, 0, 0, 0, 7, first, first]
    lane.download(first, found)
    assert found[0] == 5
    assert opened.seconds(mark, point) == 0.25
    assert opened.identity == "11-22"


def test_every_thread_enters_the_context_once(stub: SimpleNamespace) -> None:
    opened = Card(0)
    opened.synchronise()
    stub.words()
    found: list[list[int]] = []

    def enter() -> None:
        opened.synchronise()
        opened.synchronise()
        found.append(stub.words())

    for work in (enter, lambda: found.append([])):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    opened.synchronise()
    assert (found, stub.words()) == ([[CONTEXT], []], [])


@pytest.mark.parametrize(
    ("dtypes", "tf32", "types", "compute"),
    [
        ((F32, F32), False, (0, 0), 68),
        ((F32, F32), True, (0, 0), 77),
        ((F64, F64), True, (1, 1), 70),
        ((BF16, F32), True, (14, 0), 68),
        ((BF16, BF16), False, (14, 14), 68),
    ],
)
@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("accumulates", [False, True])
def test_products(
    dtypes: tuple[DType, DType],
    tf32: bool,
    types: tuple[int, int],
    compute: int,
    count: int,
    accumulates: bool,
    stub: SimpleNamespace,
) -> None:
    opened = Card(0, tf32)
    opened.synchronise()
    stub.words()
    left, right = Operand(dtypes[0], 50, 11, 0, True), Operand(dtypes[0], 60, 12, 0, False)
    opened.multiply(Gemm(7, 8, 9, left, right, Operand(dtypes[1], 70, 13, 0, False), count, accumulates), 100, 200, 300)
    kind, result = types
    batch = (11,), (12,), (13, count)
    a, b, c = ((100, kind, 50), (200, kind, 60), (300, result, 70))
    if count > 1:
        a, b, c = ((*matrix, *more) for matrix, more in zip((a, b, c), batch, strict=True))
    assert stub.words() == [HANDLE, 1, 0, 7, 8, 9, 1, *a, *b, int(accumulates), *c, compute, -1]


def _refuse(*given: object, **named: object) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB.\nMore words.")


@pytest.mark.parametrize("verb", ["allocate", "attend", "joins"])
def test_memory_that_is_refused(verb: str, stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Card(0)
    monkeypatch.setattr(torch, "zeros", _refuse)
    monkeypatch.setattr(opened, "_attentions", SimpleNamespace(attend=_refuse))
    monkeypatch.setitem(vars(opened), "_epilogue_graphs", SimpleNamespace(prepare=_refuse))
    calls: dict[str, Callable[[], object]] = {
        "allocate": lambda: opened.allocate(2 << 30),
        "attend": lambda: opened.attend(None, {}),  # type: ignore[arg-type]
        "joins": lambda: opened.joins(SimpleNamespace(form="x")),  # type: ignore[arg-type]
    }
    with pytest.raises(OutOfMemoryError) as caught:
        calls[verb]()
    assert str(caught.value) == "CUDA out of memory. Tried to allocate 2 GiB."


def test_a_product_that_cudnn_does_not_join_is_told_once(
    stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def refuse(epilogue: object, *addresses: object) -> None:
        asked.append(epilogue)
        raise RuntimeError("no engine\nMore words.")

    opened = Card(0)
    monkeypatch.setitem(vars(opened), "_epilogue_graphs", SimpleNamespace(prepare=refuse, run=refuse))
    epilogue = SimpleNamespace(form="x", product=SimpleNamespace(nodes=("%3 contract",), spans=("net.paren:3:5",)))
    assert not any(opened.joins(epilogue) for _ in range(2))  # type: ignore[arg-type]
    assert asked == [epilogue]
    said = "cuDNN does not compute the product at net.paren:3:5 with the kernel after it: no engine"
    assert opened.notes == (said,)
    with pytest.raises(InternalError) as caught:
        opened.join(epilogue, {})  # type: ignore[arg-type]
    assert str(caught.value) == "internal error in cuda: %3 contract: no engine\nMore words."


def test_libraries_that_are_not_there() -> None:
    with pytest.raises(InternalError, match=r"cuda: libnothing\.so: .*cannot open shared object file"):
        native.Library("libnothing.so", {})
    with pytest.raises(InternalError) as caught:
        native.loaded_library("libnothing.so")
    assert str(caught.value) == "internal error in cuda: torch has not loaded libnothing.so"
    assert Path(native.loaded_library("libtorch_cpu.so")).exists()


def test_time_is_the_cards(stub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[object] = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: object) -> None:
            assert stream is stub.stream
            marks.append(self)

        def elapsed_time(self, end: Event) -> float:
            assert marks == [self, "work", end]
            return 2.5

    monkeypatch.setattr(torch.cuda, "Event", Event)
    assert Card(0).elapsed(lambda: marks.append("work")) == 0.0025

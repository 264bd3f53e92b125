"""A fake card that keeps account of what its streams touch: two accesses of one byte, one of them a write, on different
streams, must be ordered by a mark that was followed or by a host that waited. What a missing mark would spoil on a real
card, sometimes, fails here always."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from defined_kernels import DefinedKernels
from emulation.checks import PARTS
from fake_card import FakeCard, FakeLane, Launchable, Mark, extent_of, span_of

from paren.ir.op import Array
from paren.plan.epilogue import Epilogue
from paren.plan.kernel import Parameter
from paren.plan.plan import Attention
from paren.runtime.cuda.device import CudaDevice
from paren.runtime.cuda.kernels import Emitter
from paren.runtime.cuda.products import Gemm

HOST, FIRST, SECOND = range(3)  # who does something: the processor, the card's stream, the lane beside it
NAMES = ("the processor", "the first stream", "the second stream")
Clock = Array  # int64[3]: how many of what each did came before
Range = tuple[int, int]  # addresses: begin, end


class NotOrderedError(AssertionError):
    """Two streams touch the same memory, and nothing says which of them comes first."""


@dataclass(frozen=True)
class Access:
    """What something touches."""

    what: str
    reads: Sequence[Range] = ()
    writes: Sequence[Range] = ()


@dataclass(frozen=True)
class _Block:
    """When each byte of a block of memory was last read and written by each, counted by what that one did."""

    begin: int
    read: Array
    written: Array


class Account:
    """Who touched what when, and what each has before it."""

    def __init__(self) -> None:
        self._clocks = np.zeros((3, 3), np.int64)
        self._blocks: dict[int, _Block] = {}
        self._begins: list[int] = []
        self._said: dict[tuple[int, int], str] = {}

    def allocated(self, begin: int, size: int) -> None:
        """New memory: what it lies on was given back."""
        for block in list(self._blocks.values()):
            if block.begin < begin + size and begin < block.begin + block.read.shape[1]:
                del self._blocks[block.begin]
        shape = (3, size)
        self._blocks[begin] = _Block(begin, np.zeros(shape, np.int64), np.zeros(shape, np.int64))
        self._begins = sorted(self._blocks)

    def give(self, who: int, access: Access) -> None:
        """The processor gives a stream something to do."""
        self.join(who, self.clock(HOST))
        clock = self._clocks[who]
        clock[who] += 1
        self._said[who, int(clock[who])] = access.what
        for ranges, writes in ((access.reads, False), (access.writes, True)):
            for begin, end in ranges:
                block = self._blocks[self._begins[bisect_right(self._begins, begin) - 1]]
                part = slice(begin - block.begin, end - block.begin)
                assert part.stop <= block.read.shape[1], f"{access.what} leaves its memory"
                self._look(who, access, block.written[:, part])
                if writes:
                    self._look(who, access, block.read[:, part])
                (block.written if writes else block.read)[who, part] = clock[who]

    def _look(self, who: int, access: Access, times: Array) -> None:
        for other in (FIRST, SECOND):
            last = int(times[other].max(initial=0)) if other != who else 0
            if last > self._clocks[who][other]:
                before = self._said[other, last]
                raise NotOrderedError(f"{access.what} on {NAMES[who]} and {before} on {NAMES[other]} are not ordered")

    def clock(self, who: int) -> Clock:
        return self._clocks[who].copy()

    def join(self, who: int, clock: Clock) -> None:
        """What comes before a clock comes before what one does from now on."""
        np.maximum(self._clocks[who], clock, out=self._clocks[who])


class OrderedCard(FakeCard):
    """`parameters` are those of a kernel, by its name."""

    def __init__(
        self,
        functions: Callable[[bytes, str], Launchable],
        parameters: Callable[[str], Sequence[Parameter]],
        size: int = 1 << 40,
        lazy: bool = False,
    ) -> None:
        super().__init__(functions, size, lazy)
        self.account = Account()
        self._parameters = parameters
        self._names: dict[object, str] = {}
        self._captured: list[Access] = []

    def allocate(self, size: int) -> tuple[int, object]:
        address, owner = super().allocate(size)
        self.account.allocated(address, size)
        self._given_first(Access("zeros of new memory", writes=[(address, address + size)]))
        return address, owner

    def upload(self, source: Array, address: int) -> None:
        super().upload(source, address)
        self._awaited(Access("an upload", writes=[(address, address + source.nbytes)]))

    def download(self, address: int, target: Array) -> None:
        super().download(address, target)
        self._awaited(Access("a download", reads=[(address, address + target.nbytes)]))

    def fill(self, address: int, size: int, byte: int) -> None:
        super().fill(address, size, byte)
        self._awaited(Access("a fill", writes=[(address, address + size)]))

    def load(self, image: bytes, name: str) -> object:
        function = super().load(image, name)
        self._names[function] = name
        return function

    def touched(self, function: object, arguments: Sequence[int]) -> Access:
        """What a launch touches."""
        name = self._names[function]
        stop, _, units, *words = arguments
        known = PARTS.get(name)
        parameters = self._parameters(name) if known is None else known(units, words)
        ranges = [
            (each, (word, word + each.size * each.dtype.bytes)) for word, each in zip(words, parameters, strict=False)
        ]
        reads = [where for each, where in ranges if each.reads] + ([(stop, stop + 4)] if stop else [])
        return Access(name, reads, [where for each, where in ranges if each.writes])

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        self._given_first(self.touched(function, arguments))
        super().launch(function, blocks, threads, arguments)

    def copy(self, source: int, target: int, size: int) -> None:
        self._given_first(Access("a copy", [(source, source + size)], [(target, target + size)]))
        super().copy(source, target, size)

    def multiply(self, gemm: Gemm, left: int, right: int, result: int) -> None:
        sides = ((gemm.left, gemm.m, gemm.k, left), (gemm.right, gemm.k, gemm.n, right))
        reads = [span_of(operand, rows, columns, at, gemm.count) for operand, rows, columns, at in sides]
        written = span_of(gemm.result, gemm.m, gemm.n, result, gemm.count)
        self._given_first(Access("a product", [*reads, *([written] if gemm.accumulates else [])], [written]))
        super().multiply(gemm, left, right, result)

    def attend(self, step: Attention, addresses: Mapping[int, int]) -> None:
        def ranges(ids: Iterable[int]) -> list[Range]:
            return [(addresses[id], addresses[id] + extent_of(step, id)) for id in ids]

        self._given_first(Access("attention", ranges(step.reads), ranges(step.writes)))
        super().attend(step, addresses)

    def join(self, epilogue: Epilogue, addresses: Mapping[int, int]) -> None:
        product, launch = epilogue.product, epilogue.launch
        reads, writes = [], []
        for matrix, rows, columns, dtype in zip(
            (product.a, product.b), (product.m, product.k), (product.k, product.n), epilogue.dtypes, strict=False
        ):
            count, length = (columns, rows) if matrix.transposed else (rows, columns)
            begin = addresses[matrix.buffer] + matrix.offset * dtype.bytes
            reads.append((begin, begin + ((count - 1) * matrix.leading + length) * dtype.bytes))
        for number, (id, parameter) in enumerate(zip(launch.buffers, launch.kernel.parameters, strict=True)):
            if number != epilogue.result:
                where = addresses[id], addresses[id] + parameter.size * parameter.dtype.bytes
                (writes if parameter.writes else reads).append(where)
        if epilogue.keeps:
            at = addresses[product.c.buffer]
            writes.append((at, at + epilogue.result_bytes))
        self._given_first(Access("a joined product", reads, writes))
        super().join(epilogue, addresses)

    def capture(self, issue: Callable[[], None]) -> Callable[[], None]:
        self._captured = captured = []
        replay = super().capture(issue)

        def again() -> None:
            for access in captured:
                self.account.give(FIRST, access)
            replay()

        return again

    def synchronise(self) -> None:
        super().synchronise()
        self.account.join(HOST, self.account.clock(FIRST))

    def mark(self) -> object:
        made = super().mark()
        assert isinstance(made, Mark)
        made.clock = self.account.clock(FIRST)
        return made

    def lane(self) -> FakeLane:
        self.second = OrderedLane(self)
        return self.second

    def _given_first(self, access: Access) -> None:
        if self._recording is not None:
            self._captured.append(access)
        else:
            self.account.give(FIRST, access)

    def _awaited(self, access: Access) -> None:
        self.account.give(FIRST, access)
        self.account.join(HOST, self.account.clock(FIRST))


class OrderedLane(FakeLane):
    def __init__(self, card: OrderedCard) -> None:
        super().__init__(card)
        self._ordered = card

    def launch(self, function: object, blocks: int, threads: int, arguments: Sequence[int]) -> None:
        self._ordered.account.give(SECOND, self._ordered.touched(function, arguments))
        super().launch(function, blocks, threads, arguments)

    def follow(self, mark: object) -> None:
        super().follow(mark)
        assert isinstance(mark, Mark)
        self._ordered.account.join(SECOND, mark.clock)

    def point(self) -> object:
        made = super().point()
        assert isinstance(made, Mark)
        made.clock = self._ordered.account.clock(SECOND)
        return made

    def reached(self, point: object) -> bool:
        assert isinstance(point, Mark)
        self._ordered.account.join(HOST, point.clock)
        return super().reached(point)

    def download(self, address: int, target: Array) -> None:
        self._ordered.account.give(SECOND, Access("a download", [(address, address + target.nbytes)]))
        self._ordered.account.join(HOST, self._ordered.account.clock(SECOND))
        super().download(address, target)

    def swapped(self, sent: Iterable[Range], received: Iterable[Range]) -> None:
        """What a library moves in this stream."""
        self._ordered.account.give(SECOND, Access("a swap", list(sent), list(received)))


def ordered_device(
    size: int = 1 << 40, cache: Path | None = None, lazy: bool = False
) -> tuple[CudaDevice, OrderedCard]:
    """A CUDA device whose kernels run by their definition."""
    kernels = DefinedKernels()
    card = OrderedCard(kernels.functions, lambda name: kernels.kernel(name).parameters, size, lazy)
    return CudaDevice(card, kernels, Emitter(kernels.emit, "// prelude\n"), cache), card

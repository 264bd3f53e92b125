"""The plan of one graph: buffers with places and offsets, and the steps that run over them. Plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from math import prod

from paren.ir.types import DType, TensorType
from paren.plan.decision import Decision
from paren.plan.kernel import Kernel
from paren.text.source import Span


class Place(Enum):
    """Where a buffer lives: in the graph's arena (offset planned), in a state slot, or in the caller's input."""

    ARENA = "arena"
    STATE = "state"
    INPUT = "input"


@dataclass(frozen=True)
class Buffer:
    """`name` is the slot's or input's for those places. `first` and `last` are the steps between which its content
    matters (inclusive; an arena output lives to the end). `offset` is in bytes from the arena's start, a multiple of
    64; 0 elsewhere."""

    id: int
    name: str
    type: TensorType
    place: Place
    first: int
    last: int
    offset: int
    span: Span


@dataclass(frozen=True)
class Launch:
    """Runs a kernel; `buffers[i]` is the id of the buffer for its parameter i."""

    kernel: Kernel
    buffers: tuple[int, ...]
    spans: tuple[Span, ...]
    nodes: tuple[str, ...]  # what it computes, for reports: "%12 exp", ...

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Ids of the buffers whose content it needs."""
        return tuple(b for b, p in zip(self.buffers, self.kernel.parameters, strict=True) if p.reads)

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """Ids of the buffers that it changes."""
        return tuple(b for b, p in zip(self.buffers, self.kernel.parameters, strict=True) if p.writes)


@dataclass(frozen=True)
class Matrix:
    """One operand of a product: rows x columns elements of a buffer, column stride 1, `leading` elements from row to
    row.

    `transposed` says that the product uses the transpose. `batch_strides` has one entry per batch loop of the product.
    """

    buffer: int
    offset: int
    leading: int
    transposed: bool
    batch_strides: tuple[int, ...]


@dataclass(frozen=True)
class Product:
    """C = A B (or C += A B) for each index of the batch loops: A is m x k, B is k x n after their transposition, C is
    m x n.

    The buffers say the element types. They are all one of float64 and float32; with `rounded`, A and B are each in
    float32 or bfloat16, and what is in float32 is rounded to bfloat16 as it is read; C is then in float32, or in
    bfloat16 without `accumulate`: the sum in float32 is rounded once, when it is stored.
    """

    a: Matrix
    b: Matrix
    c: Matrix
    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    accumulate: bool
    spans: tuple[Span, ...]
    nodes: tuple[str, ...]
    rounded: bool = False

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Ids of the buffers whose content it needs."""
        operands = (self.a.buffer, self.b.buffer)
        return (*operands, self.c.buffer) if self.accumulate else operands

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """The id of the buffer that it changes."""
        return (self.c.buffer,)


@dataclass(frozen=True)
class Heads:
    """An operand or result of attention: examples x positions x heads x width elements of a buffer, from element
    `offset` on. The elements of a head lie side by side; `strides` count elements from example to example, from
    position to position, from head to head."""

    buffer: int
    offset: int
    strides: tuple[int, int, int]


@dataclass(frozen=True)
class Attention:
    """softmax(scale q k') v for each example and head, with sums in float32, or the gradients of q, k, v. `dtype` is
    a short type, that of all but the statistics.

    Forward, `operands` are q, k and v, and `results` is the result alone. Backward, `operands` are q, k, v, the result
    and its gradient, and `results` the gradients of q, k and v, None where one is not wanted. q and what is of its
    shape have `queries` positions and `heads` heads, k and v `keys` and `groups`, which divide the heads: head h sees
    group h * groups // heads. With `causal`, for which there are as many keys as queries, query i sees keys 0 to i.

    `statistics` is the buffer float32[examples heads queries] of the logarithm of the sum of exp(scale q k') over the
    keys that a query sees: written by the forward (None: nobody reads it), read by the backward.
    """

    operands: tuple[Heads, ...]
    results: tuple[Heads | None, ...]
    statistics: int | None
    examples: int
    queries: int
    keys: int
    heads: int
    groups: int
    width: int
    causal: bool
    scale: float
    dtype: DType
    spans: tuple[Span, ...]
    nodes: tuple[str, ...]

    @property
    def backward(self) -> bool:
        """Whether it computes gradients."""
        return len(self.results) > 1

    @property
    def reads(self) -> tuple[int, ...]:
        """Ids of the buffers whose content it needs, each once."""
        statistics = (self.statistics,) if self.backward and self.statistics is not None else ()
        return tuple(dict.fromkeys((*(heads.buffer for heads in self.operands), *statistics)))

    @property
    def writes(self) -> tuple[int, ...]:
        """Ids of the buffers that it changes, each once."""
        statistics = (self.statistics,) if not self.backward and self.statistics is not None else ()
        return tuple(dict.fromkeys((*(heads.buffer for heads in self.results if heads is not None), *statistics)))

    def size_of(self, operand: int) -> tuple[int, int, int, int]:
        """Examples, positions, heads and width of an operand, by its number; a result has those of the operand whose
        gradient it is, the result of the forward those of q."""
        if operand in (1, 2):
            return self.examples, self.keys, self.groups, self.width
        return self.examples, self.queries, self.heads, self.width


@dataclass(frozen=True)
class Copy:
    """Copies bytes of one buffer to another of the same size (a state update whose value already lies elsewhere)."""

    source: int
    target: int
    spans: tuple[Span, ...]
    nodes: tuple[str, ...]

    @property
    def reads(self) -> tuple[int, ...]:
        """The id of the buffer that it copies from."""
        return (self.source,)

    @property
    def writes(self) -> tuple[int, ...]:
        """The id of the buffer that it copies to."""
        return (self.target,)


@dataclass(frozen=True)
class Piece:
    """A part of a launch or a product: what one iteration of a loop does of it, at index 0 of all loop axes.

    A launch runs the kernel's rows `first` up to `first + rows` only (row axes counted as one); of a product `first`
    and `rows` are 0, and its sizes are the part's. Parameter i (A, B and C of a product) has elements of `dtypes[i]`;
    `offsets[i]` elements are added to its address, `moves[i][j]` more for each index of loop axis j, `row_moves[j]` to
    `first`.
    """

    step: Launch | Product
    dtypes: tuple[DType, ...]
    offsets: tuple[int, ...]
    moves: tuple[tuple[int, ...], ...]
    first: int = 0
    rows: int = 0
    row_moves: tuple[int, ...] = ()

    @property
    def buffers(self) -> tuple[int, ...]:
        """Ids of the buffers of its parameters."""
        step = self.step
        return step.buffers if isinstance(step, Launch) else (step.a.buffer, step.b.buffer, step.c.buffer)


@dataclass(frozen=True)
class Loop:
    """Runs `body` in order for each index of the loop axes; `sizes` () is a single iteration.

    Iterations are independent, and each of them has `lane` bytes of the buffer `scratch` for itself: up to `lanes` may
    run at once, each on one thread. With one lane every piece may use all threads. What the pieces leave in the scratch
    means nothing outside. `steps` are the whole steps that the pieces are parts of; `whole_bytes` is what the values
    that now live in the scratch would take.
    """

    name: str
    sizes: tuple[int, ...]
    lanes: int
    lane: int
    scratch: int
    body: tuple[Piece, ...]
    steps: tuple[Launch | Product, ...]
    whole_bytes: int

    @property
    def iterations(self) -> int:
        """How often the body runs."""
        return prod(self.sizes)

    @cached_property
    def reads(self) -> tuple[int, ...]:
        """Ids of the buffers whose content from before the loop it needs."""
        written = {self.scratch}
        found: list[int] = []
        for piece in self.body:
            found += [id for id in piece.step.reads if id not in written]
            written.update(piece.step.writes)
        return tuple(dict.fromkeys(found))

    @cached_property
    def writes(self) -> tuple[int, ...]:
        """Ids of the buffers that it changes, the scratch among them."""
        return tuple(dict.fromkeys([self.scratch, *(id for piece in self.body for id in piece.step.writes)]))

    @property
    def spans(self) -> tuple[Span, ...]:
        return tuple(dict.fromkeys(span for step in self.steps for span in step.spans))

    @property
    def nodes(self) -> tuple[str, ...]:
        return tuple(node for step in self.steps for node in step.nodes)


Step = Launch | Product | Attention | Copy | Loop


@dataclass(frozen=True)
class Refusal:
    """Why two nodes were not put into one kernel, in words, for `paren show fused` and `explain`."""

    producer: str
    consumer: str
    reason: str
    span: Span


@dataclass(frozen=True)
class Plan:
    """`outputs` maps the names of the graph's outputs to buffers; those whose name is a state input's replace that
    slot. `epilogues`: the numbers of products that a device may compute together with the launch after them (see
    `paren.plan.epilogue`). `refusals` and `decisions` are for reports (see `paren.plan.decision`)."""

    name: str
    buffers: tuple[Buffer, ...]
    steps: tuple[Step, ...]
    outputs: dict[str, int]
    arena_bytes: int
    refusals: tuple[Refusal, ...]
    decisions: tuple[Decision, ...] = ()
    epilogues: tuple[int, ...] = ()

    def products(self) -> Iterator[tuple[Product, tuple[DType, ...]]]:
        """The products, those in loops as their pieces, with the types of A, B and C."""
        dtypes = {buffer.id: buffer.type.dtype for buffer in self.buffers}
        for step in self.steps:
            if isinstance(step, Product):
                yield step, tuple(dtypes[matrix.buffer] for matrix in (step.a, step.b, step.c))
            elif isinstance(step, Loop):
                yield from ((piece.step, piece.dtypes) for piece in step.body if isinstance(piece.step, Product))

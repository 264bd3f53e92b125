"""Steps of attention by libraries: cuDNN's own graphs where its package is installed, else what torch has inside, cuDNN
and FlashAttention, on the stream that is torch's current one.

What torch computes is taken from where it put it to where the plan wants it. All of this may be captured in a graph,
once it ran outside of one: the libraries load and choose their kernels at the first call of each shape.

In torch the backward is FlashAttention's, whose sums can be asked to come in a fixed order; cuDNN's as torch calls it
adds gradients of queries in whatever order blocks end, so that two runs would differ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from paren.ir.types import DType
from paren.plan.plan import Attention, Heads
from paren.runtime.cuda.attention_graphs import AttentionGraphs, form_of
from paren.text.errors import first_line

_TYPES = {DType.BFLOAT16: torch.bfloat16, DType.FLOAT16: torch.float16}
_WIDEST = 128  # elements of a head that cuDNN takes on every card

Size = tuple[int, int, int, int]


class Memory(Protocol):
    """The tensor on memory at an address: of a short float or float32, with strides in elements."""

    def __call__(
        self, address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Tensor: ...


class Attentions:
    """Attention on the device whose memory `memory` gives. `open_graphs` gives cuDNN's own, or None; it is asked at
    each step. `notes`: what went less well than it could, in words."""

    def __init__(
        self, device: torch.device, memory: Memory, open_graphs: Callable[[], AttentionGraphs | None] = lambda: None
    ) -> None:
        self.notes: list[str] = []
        self._memory = memory
        self._open_graphs = open_graphs
        self._random = torch.zeros(2, dtype=torch.uint64, device=device)  # read by nothing without dropout
        self._refused: set[object] = set()  # forms and shapes that cuDNN does not compute

    def attend(self, step: Attention, addresses: Mapping[int, int]) -> None:
        """Starts a step whose buffers lie at these addresses."""
        graphs = self._open_graphs()
        if graphs is not None and self._takes(graphs, step):
            graphs.run(step, addresses)
            return
        operands = [
            self._heads(step, heads, step.size_of(number), addresses) for number, heads in enumerate(step.operands)
        ]
        with torch.no_grad():
            made = self._backward(step, operands, addresses) if step.backward else self._forward(step, operands)
            for number, (value, heads) in enumerate(zip(made, step.results, strict=False)):
                if heads is not None:
                    self._heads(step, heads, step.size_of(number), addresses).copy_(value)
            if step.statistics is not None and not step.backward:
                self._statistics(step, addresses).copy_(made[1].reshape(step.examples, step.heads, step.queries))

    def _takes(self, graphs: AttentionGraphs, step: Attention) -> bool:
        """Whether cuDNN's graphs compute the step, which is found out at the first of its form."""
        form = form_of(step)
        if form in self._refused:
            return False
        try:
            graphs.prepare(step)
        except torch.OutOfMemoryError:
            raise
        except Exception as refusal:  # the package has exceptions of its own
            self._refuse(form, step, refusal)
            return False
        return True

    def _refuse(self, form: object, step: Attention, refusal: Exception) -> None:
        self._refused.add(form)
        self.notes.append(f"cuDNN does not compute the attention at {step.spans[-1]}: {first_line(refusal)}")

    def _forward(self, step: Attention, operands: list[Tensor]) -> tuple[Tensor, Tensor]:
        """The result and the statistics."""
        q, k, v = operands
        shape = tuple((each.shape, each.stride()) for each in operands)
        if step.width <= _WIDEST and step.keys > 1 and shape not in self._refused:
            try:
                found = torch.ops.aten._scaled_dot_product_cudnn_attention(
                    q, k, v, None, step.statistics is not None, 0.0, step.causal, False, scale=step.scale
                )
                return found[0], found[1]
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as refusal:
                self._refuse(shape, step, refusal)
        found = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, step.causal, False, scale=step.scale)
        return found[0], found[1]

    def _backward(self, step: Attention, operands: list[Tensor], addresses: Mapping[int, int]) -> tuple[Tensor, ...]:
        """The gradients of q, k and v."""
        q, k, v, result, g = operands
        with _in_fixed_order():
            gradients = torch.ops.aten._scaled_dot_product_flash_attention_backward(
                g, q, k, v, result, self._statistics(step, addresses), None, None, step.queries, step.keys,
                0.0, step.causal, self._random, self._random, scale=step.scale,
            )  # fmt: skip
        return tuple(gradients)

    def _heads(self, step: Attention, heads: Heads, size: Size, addresses: Mapping[int, int]) -> Tensor:
        """[examples heads positions width], as these functions take it."""
        examples, positions, count, width = size
        example, position, head = heads.strides
        dtype = _TYPES[step.dtype]
        place = addresses[heads.buffer] + dtype.itemsize * heads.offset
        shape, strides = (examples, count, positions, width), (example, head, position, 1)
        return self._memory(place, dtype, shape, strides)

    def _statistics(self, step: Attention, addresses: Mapping[int, int]) -> Tensor:
        assert step.statistics is not None
        shape = (step.examples, step.heads, step.queries)
        return self._memory(
            addresses[step.statistics], torch.float32, shape, (step.heads * step.queries, step.queries, 1)
        )


class CardMemory:
    """Memory of a card, which torch takes by an object that says where it lies. Tensors are kept: to make one asks the
    driver about the address, which is better not done inside of a capture."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._known: dict[tuple[int, torch.dtype, tuple[int, ...], tuple[int, ...]], Tensor] = {}

    def __call__(self, address: int, dtype: torch.dtype, shape: tuple[int, ...], strides: tuple[int, ...]) -> Tensor:
        key = (address, dtype, shape, strides)
        if key not in self._known:
            size = dtype.itemsize
            # There is no code for bfloat16: all are taken as integers of their size.
            place = _Place(address, f"<i{size}", shape, tuple(size * stride for stride in strides))
            self._known[key] = torch.as_tensor(place, device=self._device).view(dtype)
        return self._known[key]


class _Place:
    def __init__(self, address: int, kind: str, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "typestr": kind,
            "shape": shape,
            "strides": strides,
            "version": 2,
        }


@contextmanager
def _in_fixed_order() -> Iterator[None]:
    """Functions of torch take their deterministic variants, without filling memory that they will write anyway."""
    settings = torch.utils.deterministic
    mode, fills = torch.get_deterministic_debug_mode(), settings.fill_uninitialized_memory  # type: ignore[attr-defined]
    settings.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_deterministic_debug_mode("error")
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(mode)
        settings.fill_uninitialized_memory = fills  # type: ignore[attr-defined]

"""Windows of images: `patches` lays them out for a convolution or pooling, `fold` adds them back (its transpose).

Attributes of both: `kernel` (height, width), `stride`, `padding` ((low high) (low high)), `dilation`. What lies outside
the image counts as zero. An image is [N C H W], its patches are [N C KH KW OH OW]: element (n, c, i, j, y, x) is
image[n, c, y * stride + i * dilation - low, x * stride + j * dilation - low].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from paren.ir.graph import Builder, Node
from paren.ir.op import Array, Attrs, Op, Sample, register
from paren.ir.ops import operands as need
from paren.ir.types import TensorType, TypeMismatch


@dataclass(frozen=True)
class Windows:
    """The geometry of `patches` on an image of `height` x `width`."""

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[tuple[int, int], tuple[int, int]]
    dilation: tuple[int, int]

    @property
    def places(self) -> tuple[int, int]:
        """How many windows fit, vertically and horizontally."""
        reach = (self.size[i] + sum(self.padding[i]) - self.dilation[i] * (self.kernel[i] - 1) - 1 for i in (0, 1))
        vertical, horizontal = reach
        return vertical // self.stride[0] + 1, horizontal // self.stride[1] + 1

    def taps(self) -> Iterator[tuple[int, int, tuple[slice, slice]]]:
        """For each kernel position (i, j): the part of the padded image that it meets over all windows."""
        rows, columns = self.places
        for i in range(self.kernel[0]):
            for j in range(self.kernel[1]):
                top, left = i * self.dilation[0], j * self.dilation[1]
                bottom, right = top + (rows - 1) * self.stride[0] + 1, left + (columns - 1) * self.stride[1] + 1
                yield i, j, (slice(top, bottom, self.stride[0]), slice(left, right, self.stride[1]))


def windows_of(attrs: Attrs, height: int, width: int) -> Windows:
    """The geometry that the attributes describe. Raises `TypeMismatch` when they make no window."""
    kernel, stride, dilation = (_pair(attrs, name, least=1) for name in ("kernel", "stride", "dilation"))
    padding = attrs.get("padding")
    if not isinstance(padding, tuple) or len(padding) != 2:
        raise TypeMismatch(f"padding is {padding!r}, ((low high) (low high)) is needed")
    vertical, horizontal = (_pair({"padding": side}, "padding", least=0) for side in padding)
    windows = Windows((height, width), kernel, stride, (vertical, horizontal), dilation)
    if min(windows.places) < 1:
        raise TypeMismatch(f"a kernel of {need.words(kernel)} does not fit an image of {need.words((height, width))}")
    return windows


def _pair(attrs: Attrs, name: str, least: int) -> tuple[int, int]:
    values = need.integers(attrs, name)
    if len(values) != 2 or min(values) < least:
        raise TypeMismatch(f"{name} is {need.words(values)}, two integers of at least {least} are needed")
    return values[0], values[1]


def _infer_patches(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    need.member(types[0], need.MOVED)
    need.rank(types[0], 4)
    batch, channels, height, width = types[0].shape
    windows = windows_of(attrs, height, width)
    return TensorType(types[0].dtype, (batch, channels, *windows.kernel, *windows.places))


def _evaluate_patches(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (image,) = arrays
    windows = windows_of(attrs, image.shape[2], image.shape[3])
    padded = np.pad(image, ((0, 0), (0, 0), *windows.padding))
    result = np.empty((*image.shape[:2], *windows.kernel, *windows.places), image.dtype)
    for i, j, (rows, columns) in windows.taps():
        result[:, :, i, j] = padded[:, :, rows, columns]
    return result


def _patches_vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    height, width = node.args[0].shape[2:]
    return [builder.emit("fold", (g,), {**node.attrs, "height": height, "width": width}, node.span)]


def _infer_fold(types: Sequence[TensorType], attrs: Attrs) -> TensorType:
    need.count(types, 1)
    need.member(types[0], need.NUMBERS)
    need.rank(types[0], 6)
    height, width = need.integer(attrs, "height"), need.integer(attrs, "width")
    need.sizes((height, width))
    windows = windows_of(attrs, height, width)
    batch, channels, *rest = types[0].shape
    if tuple(rest) != (*windows.kernel, *windows.places):
        wanted = TensorType(types[0].dtype, (batch, channels, *windows.kernel, *windows.places))
        raise TypeMismatch(f"the shapes {types[0]} and {wanted} differ")
    return TensorType(types[0].dtype, (batch, channels, height, width))


def _evaluate_fold(arrays: Sequence[Array], attrs: Attrs) -> Array:
    (patches,) = arrays
    height, width = need.integer(attrs, "height"), need.integer(attrs, "width")
    windows = windows_of(attrs, height, width)
    (top, bottom), (left, right) = windows.padding
    padded = np.zeros((*patches.shape[:2], top + height + bottom, left + width + right), patches.dtype)
    for i, j, (rows, columns) in windows.taps():
        padded[:, :, rows, columns] += patches[:, :, i, j]
    return padded[:, :, top : top + height, left : left + width]


def _fold_vjp(builder: Builder, node: Node, g: Node) -> Sequence[Node | None]:
    attrs = {name: value for name, value in node.attrs.items() if name not in ("height", "width")}
    return [builder.emit("patches", (g,), attrs, node.span)]


_GEOMETRIES: tuple[tuple[tuple[int, int], Attrs], ...] = (
    ((5, 4), {"kernel": (3, 2), "stride": (1, 1), "padding": ((1, 1), (0, 1)), "dilation": (1, 1)}),
    ((6, 5), {"kernel": (2, 2), "stride": (2, 2), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}),
    ((7, 7), {"kernel": (3, 2), "stride": (2, 3), "padding": ((2, 0), (1, 1)), "dilation": (2, 1)}),
    ((1, 1), {"kernel": (1, 1), "stride": (1, 1), "padding": ((0, 0), (0, 0)), "dilation": (1, 1)}),
)


def _patches_samples(generator: np.random.Generator) -> list[Sample]:
    return [Sample((generator.normal(size=(2, 3, *size)),), attrs) for size, attrs in _GEOMETRIES]


def _fold_samples(generator: np.random.Generator) -> list[Sample]:
    samples = []
    for (height, width), attrs in _GEOMETRIES:
        windows = windows_of(attrs, height, width)
        patches = generator.normal(size=(2, 3, *windows.kernel, *windows.places))
        samples.append(Sample((patches,), {**attrs, "height": height, "width": width}))
    return samples


PATCHES = register(Op("patches", "shape", _infer_patches, _evaluate_patches, _patches_vjp, _patches_samples))
FOLD = register(Op("fold", "reduce", _infer_fold, _evaluate_fold, _fold_vjp, _fold_samples))

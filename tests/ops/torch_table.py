"""What each operation is in torch: the independent statement that `paren.ir.ops` is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from paren.ir.op import Array
from paren.ir.types import DType

Table = Mapping[str, Callable[[tuple[Tensor, ...], Mapping[str, Any]], Tensor]]
TYPES = {
    DType.FLOAT64: torch.float64,
    DType.FLOAT32: torch.float32,
    DType.BFLOAT16: torch.bfloat16,
    DType.FLOAT16: torch.float16,
    DType.INT64: torch.int64,
    DType.INT32: torch.int32,
    DType.UINT32: torch.uint32,
    DType.UINT8: torch.uint8,
    DType.BOOL: torch.bool,
}


def tensor_of(array: Array) -> Tensor:
    """The array as torch's; NumPy's bfloat16 goes by its bits."""
    copy = np.array(array)
    if copy.dtype == DType.BFLOAT16.numpy:
        return torch.from_numpy(copy.view(np.uint16)).view(torch.bfloat16)
    return torch.from_numpy(copy)


def array_of(tensor: Tensor) -> Array:
    """A tensor without gradient as NumPy's."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(DType.BFLOAT16.numpy)
    return tensor.numpy()


def _wide(function: Callable[..., Tensor]) -> Callable[[tuple[Tensor, ...], Mapping[str, Any]], Tensor]:
    """For torch's missing arithmetic on uint32: computes in int64 and keeps the low 32 bits."""

    def run(tensors: tuple[Tensor, ...], _attrs: Mapping[str, Any]) -> Tensor:
        if tensors[0].dtype != torch.uint32:
            return function(*tensors)
        result = function(*(tensor.to(torch.int64) for tensor in tensors))
        return result if result.dtype == torch.bool else (result & 0xFFFFFFFF).to(torch.uint32)

    return run


def _cast(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    (x,) = tensors
    dtype = attrs["dtype"]
    if x.dtype.is_floating_point and dtype.is_integer:
        limits = torch.iinfo(TYPES[dtype])
        x = torch.nan_to_num(x.to(torch.float64), nan=0.0, posinf=float(limits.max), neginf=float(limits.min))
        x = x.clamp(float(limits.min), float(limits.max)).to(torch.int64)
    return x.to(TYPES[dtype])


def _slice(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    (x,) = tensors
    for axis, (start, stop, step) in enumerate(zip(attrs["start"], attrs["stop"], attrs["step"], strict=True)):
        x = x.index_select(axis, torch.arange(start, stop, step))
    return x


def _pad(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    sides = [side for pair in zip(attrs["low"], attrs["high"], strict=True) for side in reversed(pair)]
    return F.pad(tensors[0], tuple(reversed(sides)), value=attrs["value"])


def _broadcast(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    shape, axes = attrs["shape"], attrs["axes"]
    letters = "abcdefgh"[: len(shape)]
    ones = torch.ones(shape, dtype=tensors[0].dtype)
    return torch.einsum(f"{''.join(letters[axis] for axis in axes)},{letters}->{letters}", tensors[0], ones)


def _unfold_columns(x: Tensor, attrs: Mapping[str, Any]) -> Tensor:
    (top, bottom), (left, right) = attrs["padding"]
    padded = F.pad(x, (left, right, top, bottom))
    return F.unfold(padded, attrs["kernel"], dilation=attrs["dilation"], stride=attrs["stride"])


def _patches(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    (x,) = tensors
    (top, bottom), (left, right) = attrs["padding"]
    sizes = (x.shape[2] + top + bottom, x.shape[3] + left + right)
    places = [
        (size - dilation * (kernel - 1) - 1) // stride + 1
        for size, kernel, dilation, stride in zip(
            sizes, attrs["kernel"], attrs["dilation"], attrs["stride"], strict=True
        )
    ]
    return _unfold_columns(x, attrs).reshape(*x.shape[:2], *attrs["kernel"], *places)


def _fold(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    (x,) = tensors
    (top, bottom), (left, right) = attrs["padding"]
    height, width = attrs["height"], attrs["width"]
    batch, channels, kernel_height, kernel_width, rows, columns = x.shape
    flat = x.reshape(batch, channels * kernel_height * kernel_width, rows * columns)
    whole = (height + top + bottom, width + left + right)
    image = F.fold(flat, whole, attrs["kernel"], dilation=attrs["dilation"], stride=attrs["stride"])
    return image[:, :, top : top + height, left : left + width]


def _over(function: Callable[..., Tensor]) -> Callable[[tuple[Tensor, ...], Mapping[str, Any]], Tensor]:
    def run(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
        (x,) = tensors
        return function(x, dim=attrs["axes"]) if attrs["axes"] else x

    return run


def _sum(x: Tensor, dim: tuple[int, ...]) -> Tensor:
    return torch.sum(x, dim=dim, dtype=x.dtype)


def _position(name: str) -> Callable[[tuple[Tensor, ...], Mapping[str, Any]], Tensor]:
    """The first extreme; torch promises no order among equal elements, so it is found by comparison."""

    def run(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
        (x,) = tensors
        axis = attrs["axis"]
        x = x.to(torch.float64)
        extreme = torch.amax(x, axis, keepdim=True) if name == "max" else torch.amin(x, axis, keepdim=True)
        hit = (x == extreme) | torch.isnan(x)
        return (hit.cumsum(axis) == 0).sum(axis).to(torch.int32)

    return run


def _take(tensors: tuple[Tensor, ...], _attrs: Mapping[str, Any]) -> Tensor:
    table, ids = tensors
    return table[ids.to(torch.int64)]


def _scatter_add(tensors: tuple[Tensor, ...], _attrs: Mapping[str, Any]) -> Tensor:
    base, ids, updates = tensors
    return base.index_put((ids.to(torch.int64),), updates, accumulate=True)


def _contract(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    a, b = tensors
    letters = iter("abcdefghijklmnop")
    names_a = [next(letters) for _ in a.shape]
    names_b = [next(letters) for _ in b.shape]
    for pairs in (attrs["batch"], attrs["contracting"]):
        for i, j in zip(*pairs, strict=True):
            names_b[j] = names_a[i]
    batch = [names_a[i] for i in attrs["batch"][0]]
    summed = [names_a[i] for i in attrs["contracting"][0]]
    free = [name for name in names_a + names_b if name not in batch + summed]
    if a.dtype in (torch.bfloat16, torch.float16):
        a, b = a.float(), b.float()
    return torch.einsum(f"{''.join(names_a)},{''.join(names_b)}->{''.join(batch + free)}", a, b)


def _attention(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    """Positions lie before heads; keys and values are repeated for the heads that share them."""
    q = tensors[0].movedim(-4, -2)
    k, v = (x.transpose(-3, -2)[..., None, :, :].expand(*q.shape[:-2], *x.shape[-3::2]) for x in tensors[1:3])
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    seen = seen.tril(k.shape[-2] - q.shape[-2]) if attrs["causal"] else seen
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=attrs["scale"]).movedim(-2, -4)


def _attention_statistics(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    q, k = tensors
    scores = attrs["scale"] * torch.einsum("...tgrd,...sgd->...grts", q, k)
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1 + k.shape[-3] - q.shape[-4])
    return torch.logsumexp(scores.masked_fill(hidden, -torch.inf) if attrs["causal"] else scores, -1)


def _attention_gradient(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    """By automatic differentiation, so that the result and the statistics are not needed."""
    operands = [tensor.detach().requires_grad_() for tensor in tensors[:3]]
    return torch.autograd.grad(_attention(tuple(operands), attrs), operands, tensors[5])[attrs["of"]]


def _threefry(tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    """Threefry-2x32-20 written out in int64, as in Random123's reference."""
    mask = 0xFFFFFFFF
    k0, k1, x0, x1 = (tensor.to(torch.int64) for tensor in tensors)
    schedule = [k0, k1, k0 ^ k1 ^ 0x1BD11BDA]
    x0, x1 = (x0 + k0) & mask, (x1 + k1) & mask
    rotations = [13, 15, 26, 6, 17, 29, 16, 24]
    for number in range(20):
        x0 = (x0 + x1) & mask
        turn = rotations[number % 8]
        x1 = (((x1 << turn) & mask) | (x1 >> (32 - turn))) ^ x0
        if number % 4 == 3:
            block = number // 4 + 1
            x0 = (x0 + schedule[block % 3]) & mask
            x1 = (x1 + schedule[(block + 1) % 3] + block) & mask
    return (x0, x1)[attrs["word"]].to(torch.uint32)


def _constant(_tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    return torch.tensor(attrs["value"], dtype=TYPES[attrs["dtype"]])


def _iota(_tensors: tuple[Tensor, ...], attrs: Mapping[str, Any]) -> Tensor:
    shape, axis = attrs["shape"], attrs["axis"]
    line = torch.arange(shape[axis]).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    return line.expand(shape).to(TYPES[attrs["dtype"]])


def _power_of_two(n: Tensor) -> Tensor:
    """2^n as int64, 0 for n >= 32."""
    return torch.where(n < 32, torch.ones_like(n) << n.clamp(max=31), torch.zeros_like(n))


def _shift_right(a: Tensor, n: Tensor) -> Tensor:
    return torch.where(n < 32, a >> n.clamp(max=31), torch.zeros_like(a))


def _floor_divide(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.is_floating_point:
        return torch.floor_divide(a, b)
    return torch.where(b == 0, 0, torch.floor_divide(a, torch.where(b == 0, 1, b)))


def _remainder(a: Tensor, b: Tensor) -> Tensor:
    if a.dtype.is_floating_point:
        return torch.remainder(a, b)
    return torch.where(b == 0, 0, torch.remainder(a, torch.where(b == 0, 1, b)))


UNARY = {
    "neg": torch.neg,
    "abs": torch.abs,
    "sign": torch.sign,
    "exp": torch.exp,
    "log": torch.log,
    "log1p": torch.log1p,
    "expm1": torch.expm1,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "erf": torch.erf,
    "sin": torch.sin,
    "cos": torch.cos,
    "floor": torch.floor,
    "ceil": torch.ceil,
    "not": torch.logical_not,
    "is_finite": torch.isfinite,
    "stop_gradient": torch.Tensor.detach,
}
BINARY = {
    "add": torch.add,
    "sub": torch.sub,
    "mul": torch.mul,
    "div": torch.div,
    "pow": torch.pow,
    "maximum": torch.maximum,
    "minimum": torch.minimum,
    "remainder": _remainder,
    "floor_divide": _floor_divide,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
    "eq": torch.eq,
    "ne": torch.ne,
    "and": torch.bitwise_and,
    "or": torch.bitwise_or,
    "xor": torch.bitwise_xor,
    "shift_left": lambda a, n: a * _power_of_two(n),
    "shift_right": _shift_right,
}
TORCH: Table = {
    **{name: _wide(function) for name, function in {**UNARY, **BINARY}.items()},
    "cast": _cast,
    "where": lambda tensors, _attrs: torch.where(*tensors),
    "threefry": _threefry,
    "constant": _constant,
    "iota": _iota,
    "reshape": lambda tensors, attrs: tensors[0].reshape(attrs["shape"]),
    "transpose": lambda tensors, attrs: tensors[0].permute(attrs["axes"]),
    "broadcast": _broadcast,
    "slice": _slice,
    "pad": _pad,
    "concat": lambda tensors, attrs: torch.cat(tensors, attrs["axis"]),
    "patches": _patches,
    "fold": _fold,
    "sum": _over(_sum),
    "max": _over(torch.amax),
    "min": _over(torch.amin),
    "argmax": _position("max"),
    "argmin": _position("min"),
    "take": _take,
    "scatter_add": _scatter_add,
    "contract": _contract,
    "attention": _attention,
    "attention_statistics": _attention_statistics,
    "attention_gradient": _attention_gradient,
    "either": lambda tensors, _attrs: tensors[1],
}
WITHOUT_VALUE = ("input",)

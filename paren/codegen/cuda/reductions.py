"""Reductions: what is combined, from what it starts, and how the partial results of a group become one."""

from __future__ import annotations

from paren.codegen.cuda.mapping import WARP, Mapping
from paren.codegen.cuda.places import constant, register
from paren.codegen.cuda.spelling import TYPES, UNSIGNED
from paren.codegen.writer import VALUE
from paren.ir.types import DType

NAMES = {"sum": "add", "max": "most", "min": "least", "argmax": "first_most", "argmin": "first_least"}
POSITIONS = ("argmax", "argmin")
LAST = 2**31 - 1  # the position of what is no iteration


def combiner(kind: str, dtype: DType) -> str:
    """The C type that combines two values."""
    unsigned = kind == "sum" or dtype in (DType.UINT32, DType.UINT8, DType.BOOL)
    order = UNSIGNED[VALUE[dtype]] if unsigned and not dtype.is_float else TYPES[VALUE[dtype]]
    return f"paren_{NAMES[kind]}<{order}>"


def partial(kind: str, dtype: DType) -> str:
    """The C type of a partial result."""
    return f"paren_place<{register(dtype)}>" if kind in POSITIONS else register(dtype)


def identity(kind: str, dtype: DType) -> str:
    """What a reduction starts from."""
    if kind == "sum":
        return constant(0, dtype)
    first = _extreme(kind in ("max", "argmax"), dtype)
    return f"{{{first}, {LAST}}}" if kind in POSITIONS else first


def _extreme(greatest: bool, dtype: DType) -> str:
    if dtype.is_float:
        return constant(float("-inf") if greatest else float("inf"), dtype)
    if dtype is DType.BOOL:
        return "false" if greatest else "true"
    limits = {DType.INT64: (-(2**63), 2**63 - 1), DType.INT32: (-(2**31), 2**31 - 1)}
    low, high = limits.get(dtype, (0, 2 ** (8 * dtype.bytes) - 1))
    return constant(low if greatest else high, dtype)


def combine_rows(mapping: Mapping, number: int, kind: str, dtype: DType) -> tuple[list[str], list[str]]:
    """The lines that combine `r{number}` over a group of the first skeleton, before and after a barrier of the block;
    the second are empty where none is needed."""
    function, type_, name = combiner(kind, dtype), partial(kind, dtype), f"r{number}"
    if mapping.group <= WARP:
        return ([f"{name} = paren_group<{function}, {mapping.group}>({name});"] if mapping.group > 1 else []), []
    warps = mapping.group // WARP
    before = [
        f"__shared__ {type_} s{number}[{warps}];",
        f"{name} = paren_group<{function}, {WARP}>({name});",
        f"if (thread % {WARP} == 0) s{number}[thread / {WARP}] = {name};",
    ]
    spread = 1 << (warps - 1).bit_length()
    after = [f"{name} = s{number}[thread % {spread}];"]
    if spread != warps:
        rest = identity(kind, dtype)
        after = [f"{{ const {type_} rest = {rest};", f"{name} = rest;",
                 f"if (thread % {spread} < {warps}) {name} = s{number}[thread % {spread}]; }}"]  # fmt: skip
    return before, [*after, f"{name} = paren_group<{function}, {spread}>({name});"]


def combine_lanes(mapping: Mapping, number: int, kind: str, dtype: DType) -> tuple[list[str], list[str]]:
    """The same for the lanes `r{number}[i]` of the second skeleton."""
    if mapping.group == 1:
        return [], []
    function, type_, across, width = combiner(kind, dtype), partial(kind, dtype), mapping.per_block, mapping.width
    mine = f"s{number}[(turn * {width} + i) * {across} + place]"
    other = f"s{number}[((turn + by) * {width} + i) * {across} + place]"
    each = ["#pragma unroll", f"for (int i = 0; i < {width}; i++)"]
    before = [f"__shared__ {type_} s{number}[{mapping.group * width * across}];", *each, f"{mine} = r{number}[i];"]
    after = [
        "#pragma unroll 1",
        f"for (int by = {mapping.group // 2}; by > 0; by /= 2) {{",
        "if (turn < by) {",
        *each,
        f"{mine} = r{number}[i] = {function}::of(r{number}[i], {other});",
        "}",
        "__syncthreads();",
        "}",
        *each,
        f"r{number}[i] = s{number}[i * {across} + place];",
    ]
    return before, after

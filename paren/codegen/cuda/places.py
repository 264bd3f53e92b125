"""Values by name, and the C of what a kernel touches: indices, guards, elements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paren.codegen.cuda.spelling import TYPES, operand
from paren.codegen.loops import may_miss
from paren.codegen.writer import MEMORY, VALUE, literal
from paren.ir.types import DType
from paren.plan.kernel import Access, Index, Kernel


@dataclass(frozen=True)
class Value:
    """A value of a kernel: an operand as LLVM writes it, its type, and whether it differs from lane to lane (an array
    then). `source` is the float32 value that it is rounded from, if it is."""

    text: str
    dtype: DType
    varying: bool
    source: Value | None = None

    @property
    def operand(self) -> str:
        """The operand in a loop over lanes, or of a value that does not vary."""
        return f"{self.text}[i]" if self.varying else self.text

    @property
    def c(self) -> str:
        return operand(self.operand, VALUE[self.dtype])

    @property
    def array(self) -> str:
        return self.text[1:]


def register(dtype: DType) -> str:
    """The C type of a value in registers."""
    return TYPES[VALUE[dtype]]


def memory(dtype: DType) -> str:
    """The C type of an element in memory."""
    return TYPES[MEMORY[dtype]]


def constant(value: float | int | bool, dtype: DType) -> str:
    return operand(literal(value, dtype), VALUE[dtype])


def affine(index: Index, scale: int = 1) -> str:
    """The sum of an index times a scale, over the names of the axes; "0" where nothing is left."""
    terms = [_times(f"a{axis}", coefficient * scale) for axis, coefficient in index.terms if coefficient * scale]
    if index.constant * scale or not terms:
        terms.append(str(index.constant * scale))
    return " + ".join(f"({term})" if term.startswith("-") else term for term in terms)


def _times(name: str, factor: int) -> str:
    return name if factor == 1 else f"{name} * {factor}"


def decomposed(index: str, number: str, parts: Sequence[tuple[str, int]]) -> list[str]:
    """The named parts (names, sizes) of a number that counts all their combinations, the last fastest."""
    lines, below = [], 1
    for position, (name, size) in reversed(list(enumerate(parts))):
        whole = f"(unsigned {index}){number}" + (f" / {below}" if below > 1 else "")
        lines.append(f"const {index} {name} = ({index})({f'({whole}) % {size}' if position else whole});")
        below *= size
    return lines


def address(access: Access, values: dict[int, Value]) -> str:
    """The element that is touched, as an expression of axes and gathered values."""
    terms = [str(access.offset)] if access.offset else []
    for index, stride, size in zip(access.indices, access.strides, access.sizes, strict=True):
        if index.value is not None:
            terms.append(_times(gathered(values[index.value], size), stride))
        elif index.divisor != 1:
            terms.append(_times(f"(({affine(index)}) / {index.divisor})", stride))
        elif index.terms or index.constant:
            terms.append(affine(index, stride))
    return " + ".join(terms) or "0"


def gathered(value: Value, size: int) -> str:
    """An integer value as an index, clamped into its dimension."""
    wide = "long long" if value.dtype in (DType.INT64, DType.UINT32) else "int"
    whole = f"(unsigned){value.c}" if value.dtype is DType.UINT32 else value.c
    return f"paren_clamped<{wide}>({whole}, {size - 1})"


def guard(kernel: Kernel, access: Access) -> str:
    """The condition that no index misses its dimension; "" where none can."""
    checks = []
    for index, size in zip(access.indices, access.sizes, strict=True):
        if not access.guarded or not may_miss(index, size, kernel.axes):
            continue
        total = f"({affine(index)})"
        checks.append(f"{total} >= 0 && {total} < {size * index.divisor}")
        if index.divisor != 1:
            checks.append(f"{total} % {index.divisor} == 0")
    return " && ".join(checks)


def loaded(parameter: int, where: str, dtype: DType) -> str:
    """An element as a value."""
    element = f"p{parameter}[{where}]"
    if dtype.is_short:
        return f"paren_widen_{dtype}({element})"
    return f"{element} != 0" if dtype is DType.BOOL else element


def stored(parameter: int, where: str, value: str, dtype: DType) -> str:
    """The statement that stores a value; a short float is rounded already."""
    moved = f"paren_short_{dtype}({value})" if dtype.is_short else value
    return f"p{parameter}[{where}] = {moved};"

"""Lines of LLVM IR: fresh names, literals, and the spelling of element types."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import numpy as np

from paren.ir.types import DType

# The type of a value in a register; a bool is stored as one byte, 0 or 1. A bfloat16 is a float whose low half is 0,
# and is stored as its upper half; a float16 is a float that is one's value.
VALUE = {
    DType.FLOAT64: "double",
    DType.FLOAT32: "float",
    DType.BFLOAT16: "float",
    DType.FLOAT16: "float",
    DType.INT64: "i64",
    DType.INT32: "i32",
    DType.UINT32: "i32",
    DType.UINT8: "i8",
    DType.BOOL: "i1",
}
MEMORY = {**VALUE, DType.BFLOAT16: "i16", DType.FLOAT16: "i16", DType.BOOL: "i8"}
BITS = {"double": 64, "float": 32, "i64": 64, "i32": 32, "i16": 16, "i8": 8, "i1": 1}


def literal(value: float | int | bool, dtype: DType) -> str:
    """A constant as LLVM spells it: floats by the bits of their value as a double, integers wrapped into range."""
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return real(float(dtype.numpy.type(value)))
    if dtype == DType.BOOL:
        return "true" if value else "false"
    bits = BITS[VALUE[dtype]]
    wrapped = int(value) & ((1 << bits) - 1)
    return str(wrapped - (1 << bits) if wrapped >> (bits - 1) else wrapped)


def real(value: float) -> str:
    """A floating constant by its bits as a double; for a `float` the value must be representable in 32 bits."""
    return "0x" + struct.pack(">d", value).hex().upper()


@dataclass
class Writer:
    """Collects instructions; `value` names a result, `put` does not. Names are unique by `prefix` and a counter."""

    prefix: str = "t"
    lines: list[str] = field(default_factory=list)
    block: str = "entry"  # label of the block that is being written
    _count: int = 0

    def fresh(self) -> str:
        self._count += 1
        return f"{self.prefix}{self._count}"

    def value(self, instruction: str) -> str:
        name = "%" + self.fresh()
        self.lines.append(f"  {name} = {instruction}")
        return name

    def put(self, instruction: str) -> None:
        self.lines.append(f"  {instruction}")

    def begin(self, label: str) -> None:
        """Starts a block. The block before must have ended with a branch."""
        self.lines.append(f"{label}:")
        self.block = label

    def select(self, condition: str, type_: str, yes: str, no: str) -> str:
        return self.value(f"select i1 {condition}, {type_} {yes}, {type_} {no}")

    def call(self, type_: str, function: str, *operands: str) -> str:
        """A call whose operands all have the result's type."""
        return self.value(f"call {type_} @{function}({', '.join(f'{type_} {operand}' for operand in operands)})")

"""One scalar operation of a kernel as instructions of LLVM IR, for every element type."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from paren.codegen.scalar import UNARY
from paren.codegen.short import write_rounded
from paren.codegen.writer import BITS, VALUE, Writer, literal, real
from paren.ir.types import DType
from paren.text.errors import InternalError

LLVM_FLOAT = {"sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "abs": "fabs"}
INTRINSIC64 = ("exp", "log", "sin", "cos")
FLOAT_ORDER = {"lt": "olt", "le": "ole", "gt": "ogt", "ge": "oge", "eq": "oeq", "ne": "une"}
INTEGER_ORDER = {"lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


class Operation:
    """Writes one operation; `used` collects the names of `paren.codegen.scalar` functions that the text calls."""

    def __init__(self, writer: Writer, used: set[str]) -> None:
        self.writer = writer
        self.used = used

    def write(
        self, op: str, operands: Sequence[str], types: Sequence[DType], result: DType, attrs: Mapping[str, int]
    ) -> str:
        """The name of the result of `op` on `operands` of the element types `types`."""
        if op == "cast":
            return self.cast(operands[0], types[0], result)
        if op == "where":
            return self.writer.select(operands[0], VALUE[result], operands[1], operands[2])
        if op == "threefry":
            self.used.add("threefry")
            words = ", ".join(f"i32 {operand}" for operand in operands)
            second = "true" if attrs["word"] else "false"
            return self.writer.value(f"call i32 @paren.threefry({words}, i1 {second})")
        if op == "stop_gradient":
            return operands[0]
        family = self._float if types[0].is_float else self._bool if types[0] == DType.BOOL else self._integer
        written = family(op, list(operands), types[0])
        if written is None:
            raise InternalError("codegen", f"operation {op} on {types[0]} has no instructions")
        return written

    def cast(self, a: str, source: DType, target: DType) -> str:
        """Conversion as numpy's, except that a float outside an integer type's range becomes its nearest bound."""
        w = self.writer
        if source == target:
            return a
        if source.is_short:
            return self.cast(a, DType.FLOAT32, target)
        if target.is_short:
            return write_rounded(w, self.cast(a, source, DType.FLOAT32), target)
        from_, to = VALUE[source], VALUE[target]
        if target == DType.BOOL:
            if source.is_float:
                return w.value(f"fcmp une {from_} {a}, {real(0.0)}")
            return w.value(f"icmp ne {from_} {a}, 0")
        unsigned = source in (DType.UINT32, DType.UINT8, DType.BOOL)
        if source.is_float and target.is_float:
            return w.value(f"{'fptrunc' if BITS[from_] > BITS[to] else 'fpext'} {from_} {a} to {to}")
        if source.is_float:
            sign = "u" if target in (DType.UINT32, DType.UINT8) else "s"
            kind = "f64" if source == DType.FLOAT64 else "f32"
            return w.value(f"call {to} @llvm.fpto{sign}i.sat.{to}.{kind}({from_} {a})")
        if target.is_float:
            return w.value(f"{'uitofp' if unsigned else 'sitofp'} {from_} {a} to {to}")
        if BITS[from_] == BITS[to]:
            return a
        narrower = BITS[from_] > BITS[to]
        return w.value(f"{'trunc' if narrower else 'zext' if unsigned else 'sext'} {from_} {a} to {to}")

    def maximum(self, a: str, b: str, dtype: DType, least: bool = False) -> str:
        """The larger (or smaller) value; not a number if either is."""
        w, type_ = self.writer, VALUE[dtype]
        if dtype.is_float:
            beyond = w.value(f"fcmp {'olt' if least else 'ogt'} {type_} {a}, {b}")
            missing = w.value(f"fcmp uno {type_} {a}, {real(0.0)}")
            return w.select(w.value(f"or i1 {beyond}, {missing}"), type_, a, b)
        if dtype == DType.BOOL:
            return w.value(f"{'and' if least else 'or'} i1 {a}, {b}")
        sign = "u" if dtype in (DType.UINT32, DType.UINT8) else "s"
        return w.call(type_, f"llvm.{sign}{'min' if least else 'max'}.{type_}", a, b)

    def _float(self, op: str, operands: list[str], dtype: DType) -> str | None:
        w, type_ = self.writer, VALUE[dtype]
        kind = "f64" if dtype == DType.FLOAT64 else "f32"
        a = operands[0]
        b = operands[1] if len(operands) > 1 else ""
        if op in ("add", "sub", "mul", "div"):
            return w.value(f"f{op} {type_} {a}, {b}")
        if op in FLOAT_ORDER:
            return w.value(f"fcmp {FLOAT_ORDER[op]} {type_} {a}, {b}")
        if op in LLVM_FLOAT:
            return w.call(type_, f"llvm.{LLVM_FLOAT[op]}.{kind}", a)
        if op in ("maximum", "minimum"):
            return self.maximum(a, b, dtype, least=op == "minimum")
        if op == "neg":
            return w.value(f"fneg {type_} {a}")
        if op == "rsqrt":
            return w.value(f"fdiv {type_} {real(1.0)}, {w.call(type_, f'llvm.sqrt.{kind}', a)}")
        if op == "is_finite":
            magnitude = w.call(type_, f"llvm.fabs.{kind}", a)
            return w.value(f"fcmp olt {type_} {magnitude}, {literal(float('inf'), dtype)}")
        if op == "sign":
            one = w.call(type_, f"llvm.copysign.{kind}", real(1.0), a)
            apart = w.value(f"fcmp one {type_} {a}, {real(0.0)}")
            zero = w.value(f"fadd {type_} {a}, {real(0.0)}")  # of either sign becomes the positive one
            return w.select(apart, type_, one, zero)
        if op in ("remainder", "floor_divide"):
            return self._float_division(op, a, b, dtype)
        if op in UNARY or op == "pow":
            if dtype == DType.FLOAT32:
                self.used.add(op)
                return w.call(type_, f"paren.{op}", *operands)
            intrinsic = op in INTRINSIC64 or op == "pow"
            return w.call(type_, f"llvm.{op}.f64" if intrinsic else op, *operands)
        return None

    def _float_division(self, op: str, a: str, b: str, dtype: DType) -> str:
        """numpy's `remainder` (sign of the divisor, exact) and `floor_divide` (from the exact remainder)."""
        w, type_ = self.writer, VALUE[dtype]
        kind = "f64" if dtype == DType.FLOAT64 else "f32"
        zero = real(0.0)
        remainder = w.value(f"frem {type_} {a}, {b}")
        apart = w.value(f"fcmp one {type_} {remainder}, {zero}")
        b_negative = w.value(f"fcmp olt {type_} {b}, {zero}")
        r_negative = w.value(f"fcmp olt {type_} {remainder}, {zero}")
        differ = w.value(f"and i1 {apart}, {w.value(f'xor i1 {b_negative}, {r_negative}')}")
        if op == "remainder":
            moved = w.select(differ, type_, w.value(f"fadd {type_} {remainder}, {b}"), remainder)
            signed_zero = w.call(type_, f"llvm.copysign.{kind}", zero, b)
            return w.select(w.value(f"fcmp oeq {type_} {remainder}, {zero}"), type_, signed_zero, moved)
        quotient = w.value(f"fdiv {type_} {w.value(f'fsub {type_} {a}, {remainder}')}, {b}")
        quotient = w.select(differ, type_, w.value(f"fsub {type_} {quotient}, {real(1.0)}"), quotient)
        floor = w.call(type_, f"llvm.floor.{kind}", quotient)
        over = w.value(f"fcmp ogt {type_} {w.value(f'fsub {type_} {quotient}, {floor}')}, {real(0.5)}")
        whole = w.select(over, type_, w.value(f"fadd {type_} {floor}, {real(1.0)}"), floor)
        plain = w.value(f"fdiv {type_} {a}, {b}")
        signed_zero = w.call(type_, f"llvm.copysign.{kind}", zero, plain)
        whole = w.select(w.value(f"fcmp oeq {type_} {quotient}, {zero}"), type_, signed_zero, whole)
        return w.select(w.value(f"fcmp oeq {type_} {b}, {zero}"), type_, plain, whole)

    def _integer(self, op: str, operands: list[str], dtype: DType) -> str | None:
        w, type_ = self.writer, VALUE[dtype]
        unsigned = dtype in (DType.UINT32, DType.UINT8)
        a = operands[0]
        b = operands[1] if len(operands) > 1 else ""
        if op in ("add", "sub", "mul", "and", "or", "xor"):
            return w.value(f"{op} {type_} {a}, {b}")
        if op in INTEGER_ORDER:
            return w.value(f"icmp {'u' if unsigned else 's'}{INTEGER_ORDER[op]} {type_} {a}, {b}")
        if op in ("eq", "ne"):
            return w.value(f"icmp {op} {type_} {a}, {b}")
        if op in ("maximum", "minimum"):
            return self.maximum(a, b, dtype, least=op == "minimum")
        if op in ("shift_left", "shift_right"):
            inside = w.value(f"icmp ult {type_} {b}, {BITS[type_]}")
            bounded = w.select(inside, type_, b, "0")
            shifted = w.value(f"{'shl' if op == 'shift_left' else 'lshr'} {type_} {a}, {bounded}")
            return w.select(inside, type_, shifted, "0")
        if op == "neg":
            return w.value(f"sub {type_} 0, {a}")
        if op == "abs":
            return a if unsigned else w.value(f"call {type_} @llvm.abs.{type_}({type_} {a}, i1 false)")
        if op == "sign":
            positive = w.value(f"zext i1 {w.value(f'icmp ne {type_} {a}, 0')} to {type_}")
            if unsigned:
                return positive
            return w.value(f"or {type_} {w.value(f'ashr {type_} {a}, {BITS[type_] - 1}')}, {positive}")
        if op in ("floor_divide", "remainder"):
            return self._integer_division(op, a, b, dtype)
        return None

    def _integer_division(self, op: str, a: str, b: str, dtype: DType) -> str:
        """Floor division and remainder; by zero both give 0, and the least integer by -1 wraps around, as in numpy."""
        w, type_ = self.writer, VALUE[dtype]
        zero = w.value(f"icmp eq {type_} {b}, 0")
        if dtype in (DType.UINT32, DType.UINT8):
            safe = w.select(zero, type_, "1", b)
            result = w.value(f"{'urem' if op == 'remainder' else 'udiv'} {type_} {a}, {safe}")
            return w.select(zero, type_, "0", result)
        minus = w.value(f"icmp eq {type_} {b}, -1")
        safe = w.select(w.value(f"or i1 {zero}, {minus}"), type_, "1", b)
        quotient = w.value(f"sdiv {type_} {a}, {safe}")
        rest = w.value(f"sub {type_} {a}, {w.value(f'mul {type_} {quotient}, {safe}')}")
        apart = w.value(f"icmp ne {type_} {rest}, 0")
        differ = w.value(f"icmp slt {type_} {w.value(f'xor {type_} {rest}, {safe}')}, 0")
        moved = w.value(f"and i1 {apart}, {differ}")
        if op == "remainder":
            result = w.select(moved, type_, w.value(f"add {type_} {rest}, {safe}"), rest)
            return w.select(w.value(f"or i1 {zero}, {minus}"), type_, "0", result)
        result = w.value(f"sub {type_} {quotient}, {w.value(f'zext i1 {moved} to {type_}')}")
        result = w.select(minus, type_, w.value(f"sub {type_} 0, {a}"), result)
        return w.select(zero, type_, "0", result)

    def _bool(self, op: str, operands: list[str], dtype: DType) -> str | None:
        w = self.writer
        if op == "not":
            return w.value(f"xor i1 {operands[0]}, true")
        instructions = {"and": "and", "or": "or", "xor": "xor", "eq": "icmp eq", "ne": "icmp ne"}
        if op in instructions:
            return w.value(f"{instructions[op]} i1 {operands[0]}, {operands[1]}")
        return None

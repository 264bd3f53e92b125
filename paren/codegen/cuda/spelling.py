"""Straight-line LLVM IR spelled in CUDA C, instruction by instruction.

What a scalar operation means is written once, by `paren.codegen.operations` and `paren.codegen.scalar`; a device gets
the same instructions in its own language, so its results are the same bits. Values in registers: i32 is `int` whatever
its sign, as in LLVM, i8 is `unsigned char`, i1 is `bool`.
"""

from __future__ import annotations

import re
import struct
from math import inf, isnan

from paren.text.errors import InternalError

TYPES = {
    "double": "double",
    "float": "float",
    "i64": "long long",
    "i32": "int",
    "i16": "unsigned short",
    "i8": "unsigned char",
    "i1": "bool",
}
UNSIGNED = {"i64": "unsigned long long", "i32": "unsigned", "i8": "unsigned char", "i1": "bool"}
SIGNED = {"i64": "long long", "i32": "int", "i8": "signed char"}
ARITHMETIC = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/"}
WRAPPING = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^", "shl": "<<"}
UNSIGNED_ONLY = {"lshr": ">>", "udiv": "/", "urem": "%"}
SIGNED_ONLY = {"ashr": ">>", "sdiv": "/", "srem": "%"}
ORDERED = {"oeq": "==", "olt": "<", "ole": "<=", "ogt": ">", "oge": ">=", "une": "!="}
UNORDERED = {"ult": ">=", "ule": ">", "ugt": "<=", "uge": "<"}  # true where the opposite is false
ORDERS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
MATHEMATICS = {"fabs", "fma", "copysign", "sqrt", "floor", "ceil", "exp", "log", "sin", "cos", "pow"}
CONVERSIONS = "bitcast|trunc|zext|sext|sitofp|uitofp|fptrunc|fpext"


def operand(text: str, type_: str) -> str:
    """A name or a literal of LLVM as C writes it."""
    if text.startswith("%"):
        return text[1:].replace(".", "_")
    if text in ("true", "false"):
        return text
    if text.startswith("0x"):
        return _real(struct.unpack(">d", bytes.fromhex(text[2:]))[0], type_)
    number = int(text)
    suffix = "ll" if type_ == "i64" else ""
    if number == -(2**63) or (number == -(2**31) and type_ == "i32"):
        return f"({number + 1}{suffix} - 1)"
    return f"({number}{suffix})" if number < 0 else f"{number}{suffix}"


def _real(value: float, type_: str) -> str:
    single = type_ == "float"
    if isnan(value) or value in (inf, -inf):
        bits = struct.pack(">f" if single else ">d", value).hex()
        return f"__int_as_float(0x{bits})" if single else f"__longlong_as_double(0x{bits}ull)"
    text = value.hex() + ("f" if single else "")
    return f"({text})" if text.startswith("-") else text


def spell(line: str) -> str:
    """One line of a function or of a table as C. Raises `InternalError` for an instruction that has no spelling."""
    text = line.strip()
    if text == "}":
        return "}"
    if found := re.fullmatch(r"ret (\w+) (\S+)", text):
        return f"  return {operand(found[2], found[1])};"
    if found := re.fullmatch(r"define internal (\w+) @(\S+)\((.*)\) alwaysinline \{", text):
        parameters = [f"{TYPES[type_]} {name[1:]}" for type_, name in _typed(found[3])]
        return f"static __device__ __forceinline__ {TYPES[found[1]]} {_function(found[2])}({', '.join(parameters)}) {{"
    if found := re.fullmatch(r"@(\S+) = internal constant \[(\d+) x (\w+)\] \[(.*)\], align \d+", text):
        entries = ", ".join(operand(entry, type_) for type_, entry in _typed(found[4]))
        return f"static __device__ const {TYPES[found[3]]} {_function(found[1])}[{found[2]}] = {{{entries}}};"
    if found := re.fullmatch(r"%(\S+) = (.*)", text):
        type_, value = _value(found[2])
        return f"  const {type_} {found[1].replace('.', '_')} = {value};"
    raise InternalError("codegen", f"no C for: {text}")


def _typed(text: str) -> list[tuple[str, str]]:
    """The types and names of a list of operands."""
    pairs = [pair.split(" ") for pair in text.split(", ")]
    return [(type_, name) for type_, name in pairs]


def _function(name: str) -> str:
    return name.replace(".", "_")


def _value(text: str) -> tuple[str, str]:
    """The C type and expression of an instruction."""
    if found := re.fullmatch(rf"({CONVERSIONS}) (\w+) (\S+) to (\w+)", text):
        return TYPES[found[4]], _converted(found[1], operand(found[3], found[2]), found[2], found[4])
    if found := re.fullmatch(r"select i1 (\S+), (\w+) (\S+), \w+ (\S+)", text):
        yes, no = operand(found[3], found[2]), operand(found[4], found[2])
        return TYPES[found[2]], f"{operand(found[1], 'i1')} ? {yes} : {no}"
    if found := re.fullmatch(r"call (\w+) @(\S+?)\((.*)\)", text):
        return TYPES[found[1]], _call(found[2], found[1], _typed(found[3]))
    if found := re.fullmatch(r"fneg (\w+) (\S+)", text):
        return TYPES[found[1]], f"-{operand(found[2], found[1])}"
    if found := re.fullmatch(r"(fcmp|icmp) (\w+) (\w+) (\S+), (\S+)", text):
        compare = _compared if found[1] == "fcmp" else _ordered
        return "bool", compare(found[2], found[3], operand(found[4], found[3]), operand(found[5], found[3]))
    if found := re.fullmatch(r"getelementptr inbounds \[\d+ x (\w+)\], ptr @(\S+), i64 0, i64 (\S+)", text):
        return f"{TYPES[found[1]]} *", f"&{_function(found[2])}[{operand(found[3], 'i64')}]"
    if found := re.fullmatch(r"load (\w+), ptr (\S+), align \d+", text):
        return TYPES[found[1]], f"*{operand(found[2], 'ptr')}"
    if found := re.fullmatch(r"(\w+) (\w+) (\S+), (\S+)", text):
        a, b = operand(found[3], found[2]), operand(found[4], found[2])
        return TYPES[found[2]], _binary(found[1], found[2], a, b)
    raise InternalError("codegen", f"no C for: {text}")


def _binary(name: str, type_: str, a: str, b: str) -> str:
    if name in ARITHMETIC:
        return f"{a} {ARITHMETIC[name]} {b}"
    if name == "frem":
        return f"{'fmodf' if type_ == 'float' else 'fmod'}({a}, {b})"
    if name in WRAPPING and type_ == "i1":
        return f"{a} {WRAPPING[name]} {b}"
    for operators, types in ((WRAPPING, UNSIGNED), (UNSIGNED_ONLY, UNSIGNED), (SIGNED_ONLY, SIGNED)):
        if name in operators:
            inner = types[type_]
            return f"({TYPES[type_]})(({inner}){a} {operators[name]} ({inner}){b})"
    raise InternalError("codegen", f"no C for the instruction {name} of {type_}")


def _converted(name: str, a: str, source: str, target: str) -> str:
    if name == "bitcast":
        between = {"float": "__float_as_int", "double": "__double_as_longlong"}
        back = {"float": "__int_as_float", "double": "__longlong_as_double"}
        return f"{between[source]}({a})" if source in between else f"{back[target]}({a})"
    if target == "i1":
        return f"(bool)({a} & 1)"
    if name in ("zext", "uitofp"):
        return f"({TYPES[target]})({UNSIGNED[source]}){a}"
    return f"({TYPES[target]}){a}"


def _compared(order: str, type_: str, a: str, b: str) -> str:
    if order in ORDERED:
        return f"{a} {ORDERED[order]} {b}"
    if order in UNORDERED:
        return f"!({a} {UNORDERED[order]} {b})"
    if order == "one":
        return f"({a} < {b}) | ({a} > {b})"
    if order in ("uno", "ord"):
        return f"({a} != {a}) | ({b} != {b})" if order == "uno" else f"({a} == {a}) & ({b} == {b})"
    raise InternalError("codegen", f"no C for the comparison {order} of {type_}")


def _ordered(order: str, type_: str, a: str, b: str) -> str:
    if order in ("eq", "ne"):
        return f"{a} {'==' if order == 'eq' else '!='} {b}"
    inner = (UNSIGNED if order[0] == "u" else SIGNED)[type_]
    return f"({inner}){a} {ORDERS[order[1:]]} ({inner}){b}"


def _call(name: str, type_: str, operands: list[tuple[str, str]]) -> str:
    arguments = [operand(text, each) for each, text in operands]
    if not name.startswith("llvm."):
        return f"{_function(name)}({', '.join(arguments)})"
    intrinsic = name.split(".")[1]
    if intrinsic in MATHEMATICS:
        return f"{intrinsic}{'f' if type_ == 'float' else ''}({', '.join(arguments)})"
    if intrinsic in ("fptosi", "fptoui"):
        return f"paren_saturated<{TYPES[type_] if intrinsic == 'fptosi' else UNSIGNED[type_]}>({arguments[0]})"
    if intrinsic == "fshl" and arguments[0] == arguments[1]:
        return f"paren_turned({arguments[0]}, {arguments[2]})"
    if intrinsic == "abs":
        return f"{arguments[0]} < 0 ? ({TYPES[type_]})(0 - ({UNSIGNED[type_]}){arguments[0]}) : {arguments[0]}"
    if intrinsic in ("smin", "smax", "umin", "umax"):
        a, b = arguments
        inner = (UNSIGNED if intrinsic[0] == "u" else SIGNED)[type_]
        return f"({inner}){a} {'<' if intrinsic[1:] == 'min' else '>'} ({inner}){b} ? {a} : {b}"
    raise InternalError("codegen", f"no C for the intrinsic {name}")

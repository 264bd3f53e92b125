"""One atom or string literal becomes one form: numbers, keywords, booleans, symbols, escapes."""

from __future__ import annotations

import math
import re
import unicodedata

from paren.text.brevity import shorten
from paren.text.errors import ParenError, Report
from paren.text.forms import Boolean, Form, Keyword, Number, String, Symbol
from paren.text.source import Source, Span
from paren.text.tokens import Token, describe_character, space_error

_INTEGER = re.compile(r"[+-]?[0-9]+")
_HEXADECIMAL = re.compile(r"[+-]?0[xX][0-9a-fA-F]+")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.[0-9]*|\.[0-9]+|[0-9]+)(?:[eE][+-]?[0-9]+)?")
_LIKE_A_NUMBER = re.compile(r"[+-]?\.?[0-9]")
_SYMBOL = re.compile(r"[\w+\-*/<>=!?.&%^~@$]+")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}(?:[,_'][0-9]{3})+(?:\.[0-9]+)?")
_RATIO = re.compile(r"([+-]?[0-9.]+)/([0-9.]+)")
_ESCAPE = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[^\n])")
_SIMPLE_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "0": "\0", "\\": "\\", '"': '"'}
_DIGITS_OF_ESCAPE = {"x": 2, "u": 4, "U": 8}
_INTEGER_LIMITS = (-(2**63), 2**64 - 1)
# `int` refuses very long texts; 2**64 has 20 decimal digits.
_LONGEST_INTEGER = 100
_SHOWN = 40  # characters of a number in a message

_FIXES = {
    "'": 'there is no quoting; a string is written "text", a literal list [1 2 3]',
    "`": 'there is no quoting; a string is written "text", a literal list [1 2 3]',
    "’": 'there is no quoting; a string is written "text", a literal list [1 2 3]',
    "‘": 'there is no quoting; a string is written "text", a literal list [1 2 3]',
    ",": "elements are separated by spaces, without commas",
    "{": "only ( ) and [ ] are brackets",
    "}": "only ( ) and [ ] are brackets",
    ":": "a colon only begins a keyword; write a space before it",
    "\\": "a backslash only stands in strings",
    "−": "the minus sign is the hyphen `-`",
    "–": "the minus sign is the hyphen `-`",
    "×": "the product is `*`",
    "÷": "the quotient is `/`",
}
_INVISIBLE = "\u200b\u200c\u200d\u2060\ufeff\u00ad"


def read_atom(source: Source, token: Token) -> Form:
    """The number, keyword, boolean or symbol that stands there. Raises E-TXT-009, E-TXT-010, E-TXT-011."""
    text = source.text[token.start : token.end]
    span = Span(source, token.start, token.end)
    if _LIKE_A_NUMBER.match(text):
        return _read_number(text, span)
    if text[0] == ":":
        return _read_keyword(text, span)
    if text in ("true", "false"):
        return Boolean(text == "true", span)
    return Symbol(_read_name(text, span), span)


def read_string(source: Source, token: Token) -> String:
    """The string literal that stands there, its escapes resolved. Raises E-TXT-008, one for each wrong escape."""
    text = source.text[token.start + 1 : token.end - 1]
    span = Span(source, token.start, token.end)
    if "\\" not in text:
        return String(text, span)
    report = Report()
    pieces: list[str] = []
    position = 0
    for match in _ESCAPE.finditer(text):
        pieces.append(text[position : match.start()])
        position = match.end()
        start = token.start + 1 + match.start()
        with report.collect():
            pieces.append(_read_escape(match[0], Span(source, start, start + len(match[0]))))
    report.finish()
    pieces.append(text[position:])
    return String("".join(pieces), span)


def _read_escape(escape: str, span: Span) -> str:
    letter, digits = escape[1], escape[2:]
    if digits:
        number = int(digits, 16)
        if 0xD800 <= number < 0xE000:
            raise ParenError(
                "E-TXT-008",
                f"the escape `{escape}` is half of a surrogate pair, not a character",
                span,
                fix="write the character itself, or its number as \\U with 8 digits",
            )
        if number > 0x10FFFF:
            raise ParenError("E-TXT-008", f"the escape `{escape}` is beyond the last character \\U0010ffff", span)
        return chr(number)
    if letter in _SIMPLE_ESCAPES:
        return _SIMPLE_ESCAPES[letter]
    if letter in _DIGITS_OF_ESCAPE:
        count = _DIGITS_OF_ESCAPE[letter]
        raise ParenError(
            "E-TXT-008",
            f"the escape `\\{letter}` needs {count} hexadecimal digits",
            span,
            fix=r"a path on Windows is written with / or with \\ for each backslash" if letter != "x" else None,
        )
    raise ParenError(
        "E-TXT-008",
        f"unknown escape `\\{letter}` in a string",
        span,
        fix=r"the escapes are \n \t \r \0 \\ \" \xHH \uHHHH \UHHHHHHHH; a backslash is written \\",
    )


def _read_number(text: str, span: Span) -> Number:
    if _INTEGER.fullmatch(text) or _HEXADECIMAL.fullmatch(text):
        return Number(_read_integer(text, span), text, span)
    if _FLOAT.fullmatch(text):
        return Number(_read_float(text, span), text, span)
    raise ParenError("E-TXT-009", f"`{shorten(text, _SHOWN)}` is not a number", span, fix=_number_fix(text))


def _read_integer(text: str, span: Span) -> int:
    low, high = _INTEGER_LIMITS
    value = int(text, 16 if "x" in text.lower() else 10) if len(text) <= _LONGEST_INTEGER else high + 1
    if not low <= value <= high:
        raise ParenError(
            "E-TXT-009",
            f"the integer {shorten(text, _SHOWN)} does not fit in 64 bits",
            span,
            fix=f"integers go from {low} to {high}; a float is written with a point or an exponent",
        )
    return value


def _read_float(text: str, span: Span) -> float:
    value = float(text)
    if math.isinf(value):
        raise ParenError("E-TXT-009", f"{shorten(text, _SHOWN)} is beyond the largest float64, about 1.8e308", span)
    if value == 0 and re.search("[1-9]", re.split("[eE]", text)[0]):
        raise ParenError("E-TXT-009", f"{shorten(text, _SHOWN)} is below the smallest float64, about 4.9e-324", span)
    return value


def _number_fix(text: str) -> str:
    if _GROUPED.fullmatch(text):
        return "write " + re.sub("[,_']", "", text)
    ratio = _RATIO.fullmatch(text)
    if ratio:
        return f"write (/ {ratio[1]} {ratio[2]})"
    if text.lower().lstrip("+-").startswith("0x"):
        return "after 0x stand the digits 0-9 and a-f"
    if text.endswith("%"):
        return "write the fraction, 0.05 for 5%"
    return "numbers are written 12, -3, 0.5, 6e-4 or 0x10; a name does not begin with a digit"


def _read_keyword(text: str, span: Span) -> Keyword:
    name = text[1:]
    if not name:
        raise ParenError(
            "E-TXT-011", "a lone `:` is not a keyword", span, fix="write the name right after it, as in :rate"
        )
    if name[0] == ":":
        shown = shorten(text, _SHOWN)
        raise ParenError("E-TXT-011", f"`{shown}` begins with more than one colon", span, fix="write one")
    unified = _read_name(name, Span(span.source, span.start + 1, span.end))
    if _LIKE_A_NUMBER.match(name):
        raise ParenError("E-TXT-011", f"the keyword `{shorten(text, _SHOWN)}` is not a name but a number", span)
    return Keyword(unified, span)


def _read_name(text: str, span: Span) -> str:
    """The name in one spelling for names that look the same: a letter and its combining accent become one character."""
    name = text if text.isascii() else unicodedata.normalize("NFC", text)
    if _SYMBOL.fullmatch(name) is None:
        raise _character_error(text, span)
    return name


def _character_error(text: str, span: Span) -> ParenError:
    """The error for the first character of an atom that may not stand in a name."""
    offset = next(index for index, character in enumerate(text) if _SYMBOL.fullmatch(character) is None)
    character = text[offset]
    place = Span(span.source, span.start + offset, span.start + offset + 1)
    if character in _INVISIBLE:
        return space_error(character, place)
    fix = _FIXES.get(character, "names hold letters, digits and + - * / < > = ! ? . & % ^ ~ @ $ _")
    return ParenError("E-TXT-010", f"{describe_character(character)} may not stand in a name", place, fix=fix)

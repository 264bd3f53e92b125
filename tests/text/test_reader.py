"""Reading what is right: literals, comments, nesting, spans, line ends; and printing forms back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import plain, plain_forms, texts

from paren.text.forms import Boolean, Form, Keyword, List, Number, String, Symbol
from paren.text.reader import decode, load_source, read, show_form
from paren.text.source import Source, Span

NOWHERE = Span(Source("nowhere", ""), 0, 0)


def read_one(text: str) -> Form:
    (form,) = read(Source("text.paren", text))
    return form


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("+7", 7),
        ("0x10", 16),
        ("-0XfF", -255),
        ("18446744073709551615", 2**64 - 1),
        ("-9223372036854775808", -(2**63)),
        ("0.5", 0.5),
        (".5", 0.5),
        ("-.5", -0.5),
        ("5.", 5.0),
        ("6e-4", 6e-4),
        ("1E3", 1000.0),
        ("+1.5e+2", 150.0),
        ("0e-999", 0.0),
    ],
)
def test_numbers(text: str, value: float) -> None:
    form = read_one(text)
    assert isinstance(form, Number)
    assert (type(form.value), form.value, form.text) == (type(value), value, text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('""', ""),
        ('"a b"', "a b"),
        (r'"\n\t\r\0\\\""', '\n\t\r\0\\"'),
        (r'"\x41\u00e9\U0001F600"', "Aé😀"),
        ('"; #| ( ]"', "; #| ( ]"),
        ('"“curly” and\u00a0wide"', "“curly” and\u00a0wide"),
    ],
)
def test_strings(text: str, value: str) -> None:
    form = read_one(text)
    assert isinstance(form, String)
    assert form.value == value


@pytest.mark.parametrize(
    "name", ["x", "layer-norm", "+", "-", "*", "/", "->", "evaluation/loss", "block.3", "a?", "θ", "<="]
)
def test_symbols(name: str) -> None:
    form = read_one(name)
    assert isinstance(form, Symbol)
    assert form.name == name


def test_a_letter_with_its_accent_is_one_name_however_it_is_written() -> None:
    assert plain_forms("e\u0301") == plain_forms("\u00e9")


def test_keywords_and_booleans() -> None:
    assert plain_forms(":rate :weight-decay true false True") == [
        ("Keyword", "rate"),
        ("Keyword", "weight-decay"),
        ("Boolean", True),
        ("Boolean", False),
        ("symbol", "True"),
    ]


def test_comments_are_no_forms() -> None:
    text = "; line (\n(a #| block #| nested ) |# ] |# b) ; end without a line end"
    assert plain_forms(text) == [("(", ("symbol", "a"), ("symbol", "b"))]


@pytest.mark.parametrize("text", ["", "  \n\t\n", "; only\n", "#| only |#"])
def test_a_text_without_forms(text: str) -> None:
    assert read(Source("text.paren", text)) == ()


def test_spans_are_the_characters_of_each_form() -> None:
    source = Source("text.paren", '(def x\n  [1 "two" :three])')
    (form,) = read(source)
    assert isinstance(form, List)
    literal = form.items[2]
    assert isinstance(literal, List)
    written = [source.text[item.span.start : item.span.end] for item in (*form.items, *literal.items)]
    assert written == ["def", "x", '[1 "two" :three]', "1", '"two"', ":three"]
    assert str(literal.span) == "text.paren:2:3"


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_a_byte_order_mark_change_nothing(line_end: str, mark: bytes) -> None:
    source = decode(mark + f"(a){line_end};c{line_end}\tb".encode(), "text.paren")
    assert source.text == "(a)\n;c\n\tb"
    assert str(read(source)[1].span) == "text.paren:3:2"


def test_a_file_is_named_as_the_user_gave_it(tmp_path: Path) -> None:
    path = tmp_path / "small.paren"
    path.write_bytes("(def θ 1)".encode())
    assert load_source(path).name == str(path)
    assert load_source(path, "small.paren").name == "small.paren"
    assert load_source(path).text == "(def θ 1)"


def test_two_hundred_levels_are_read_and_shown() -> None:
    text = "(" * 200 + ")" * 200
    assert show_form(read_one(text)) == text


_characters = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
_names = st.from_regex(r"\A[a-zA-Zθé+*/<>=!?_%^~@$-][a-zA-Z0-9/_.!?-]{0,8}\Z").filter(
    lambda name: (
        name not in ("true", "false")
        and not (name[0] in "+-" and (name[1:2].isdigit() or (name[1:2] == "." and name[2:3].isdigit())))
    )
)
_forms = st.recursive(
    st.one_of(
        _names.map(lambda name: Symbol(name, NOWHERE)),
        _names.map(lambda name: Keyword(name, NOWHERE)),
        st.integers(-(2**63), 2**64 - 1).map(lambda value: Number(value, str(value), NOWHERE)),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda value: Number(value, repr(value), NOWHERE)),
        _characters.map(lambda value: String(value, NOWHERE)),
        st.booleans().map(lambda value: Boolean(value, NOWHERE)),
    ),
    lambda inner: st.tuples(st.lists(inner, max_size=5), st.sampled_from("([")).map(
        lambda parts: List(tuple(parts[0]), parts[1], NOWHERE)
    ),
    max_leaves=20,
)


@settings(max_examples=200)
@given(_forms)
def test_reading_what_is_shown_gives_the_form(form: Form) -> None:
    assert plain(read_one(show_form(form))) == plain(form)


@settings(max_examples=100)
@given(texts)
def test_showing_what_is_read_gives_the_forms(text: str) -> None:
    forms = read(Source("text.paren", text))
    assert plain_forms(" ".join(show_form(form) for form in forms)) == [plain(form) for form in forms]

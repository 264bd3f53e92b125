"""Wrong texts: each mistake with its exact message and place, several in one run, and no crash on any input."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paren.text.errors import ParenError
from paren.text.reader import decode, load_source, read
from paren.text.source import Source

SPACES = "replace it with an ordinary space; it is often pasted from a web page"
QUOTES = 'write strings with the straight quote `"`; word processors and web pages change it'
NUMBERS = "numbers are written 12, -3, 0.5, 6e-4 or 0x10; a name does not begin with a digit"
NO_QUOTING = 'there is no quoting; a string is written "text", a literal list [1 2 3]'
CHARACTERS = "names hold letters, digits and + - * / < > = ! ? . & % ^ ~ @ $ _"
ESCAPES = r"the escapes are \n \t \r \0 \\ \" \xHH \uHHHH \UHHHHHHHH; a backslash is written \\"
WINDOWS = r"a path on Windows is written with / or with \\ for each backslash"
COMMENTS = "a comment stands between `#|` and `|#`, and each `#|` inside it needs its own `|#`"
HASH = "a comment begins with `;` or stands between `#|` and `|#`; a literal list is written [1 2 3]"
CONTROL = 'delete it; in a string, write it as an escape such as "\\u0007"'


def mistakes(text: str | bytes) -> list[tuple[str, str, str, str | None]]:
    """Place, code, message and fix of each mistake in the text."""
    content = text if isinstance(text, bytes) else text.encode()
    with pytest.raises(ParenError) as caught:
        read(decode(content, "f"))
    return [(str(error.span)[2:], error.code, error.message, error.fix) for error in caught.value.errors]


SINGLE = [
    ("1.2.3", "1:1", "E-TXT-009", "`1.2.3` is not a number", NUMBERS),
    ("(a 12px)", "1:4", "E-TXT-009", "`12px` is not a number", NUMBERS),
    ("+.5.", "1:1", "E-TXT-009", "`+.5.` is not a number", NUMBERS),
    ("1e", "1:1", "E-TXT-009", "`1e` is not a number", NUMBERS),
    ("0b101", "1:1", "E-TXT-009", "`0b101` is not a number", NUMBERS),
    ("0xZZ", "1:1", "E-TXT-009", "`0xZZ` is not a number", "after 0x stand the digits 0-9 and a-f"),
    ("0x", "1:1", "E-TXT-009", "`0x` is not a number", "after 0x stand the digits 0-9 and a-f"),
    ("1/2", "1:1", "E-TXT-009", "`1/2` is not a number", "write (/ 1 2)"),
    ("5%", "1:1", "E-TXT-009", "`5%` is not a number", "write the fraction, 0.05 for 5%"),
    ("1,000,000", "1:1", "E-TXT-009", "`1,000,000` is not a number", "write 1000000"),
    ("50_257", "1:1", "E-TXT-009", "`50_257` is not a number", "write 50257"),
    (
        "18446744073709551616",
        "1:1",
        "E-TXT-009",
        "the integer 18446744073709551616 does not fit in 64 bits",
        "integers go from -9223372036854775808 to 18446744073709551615; a float is written with a point or an exponent",
    ),
    (
        "9" * 6000,
        "1:1",
        "E-TXT-009",
        "the integer 9999999999999999999999999999999999999... does not fit in 64 bits",
        "integers go from -9223372036854775808 to 18446744073709551615; a float is written with a point or an exponent",
    ),
    ("1e999", "1:1", "E-TXT-009", "1e999 is beyond the largest float64, about 1.8e308", None),
    ("-1e-999", "1:1", "E-TXT-009", "-1e-999 is below the smallest float64, about 4.9e-324", None),
    (r'"a\q"', "1:3", "E-TXT-008", r"unknown escape `\q` in a string", ESCAPES),
    (r'"\u12"', "1:2", "E-TXT-008", r"the escape `\u` needs 4 hexadecimal digits", WINDOWS),
    (r'"C:\Users"', "1:4", "E-TXT-008", r"the escape `\U` needs 8 hexadecimal digits", WINDOWS),
    (r'"\xg0"', "1:2", "E-TXT-008", r"the escape `\x` needs 2 hexadecimal digits", None),
    (
        r'"\ud83d"',
        "1:2",
        "E-TXT-008",
        r"the escape `\ud83d` is half of a surrogate pair, not a character",
        "write the character itself, or its number as \\U with 8 digits",
    ),
    (
        r'"\U00110000"',
        "1:2",
        "E-TXT-008",
        r"the escape `\U00110000` is beyond the last character \U0010ffff",
        None,
    ),
    (
        '(f "abc\n  x)',
        "1:4",
        "E-TXT-006",
        "the string is not closed on its line",
        'close it with `"`; a line break in a string is written \\n',
    ),
    (
        '(f) "abc\\"',
        "1:5",
        "E-TXT-006",
        "the string is not closed on its line",
        'close it with `"`; a line break in a string is written \\n',
    ),
    (
        "a\n #| b #| c |#",
        "2:2",
        "E-TXT-007",
        "the comment `#|` is not closed",
        "close it with `|#`; comments nest, so each `#|` needs its own",
    ),
    ("a : b", "1:3", "E-TXT-011", "a lone `:` is not a keyword", "write the name right after it, as in :rate"),
    ("::rate", "1:1", "E-TXT-011", "`::rate` begins with more than one colon", "write one"),
    (":3", "1:1", "E-TXT-011", "the keyword `:3` is not a name but a number", None),
    (
        "a:b",
        "1:2",
        "E-TXT-010",
        "`:` may not stand in a name",
        "a colon only begins a keyword; write a space before it",
    ),
    ("#t", "1:1", "E-TXT-010", "`#t` is not part of the language", "write true"),
    ("#F", "1:1", "E-TXT-010", "`#F` is not part of the language", "write false"),
    ("#;", "1:1", "E-TXT-010", "`#` is not part of the language", HASH),
    (
        "#foo",
        "1:1",
        "E-TXT-010",
        "`#foo` is not part of the language",
        "`#` only stands in comments, `#| like this |#`",
    ),
    ("x |#", "1:3", "E-TXT-010", "`|#` closes no comment", COMMENTS),
    ("a|b", "1:2", "E-TXT-010", "`|` is not part of the language", COMMENTS),
    ("'x", "1:1", "E-TXT-010", "`'` may not stand in a name", NO_QUOTING),
    ("(a, b)", "1:3", "E-TXT-010", "`,` may not stand in a name", "elements are separated by spaces, without commas"),
    ("{a}", "1:1", "E-TXT-010", "`{` may not stand in a name", "only ( ) and [ ] are brackets"),
    ("a\\b", "1:2", "E-TXT-010", "`\\` may not stand in a name", "a backslash only stands in strings"),
    (
        "−3",
        "1:1",
        "E-TXT-010",
        "`−` (U+2212, minus sign) may not stand in a name",
        "the minus sign is the hyphen `-`",
    ),
    ("a€", "1:2", "E-TXT-010", "`€` (U+20AC, euro sign) may not stand in a name", CHARACTERS),
    ("a\u00a0b", "1:2", "E-TXT-010", "U+00A0 (no-break space) looks like a space but is not one", SPACES),
    ("a \u3000b", "1:3", "E-TXT-010", "U+3000 (ideographic space) looks like a space but is not one", SPACES),
    ("a\u200bb", "1:2", "E-TXT-010", "U+200B (zero width space) looks like a space but is not one", SPACES),
    (
        "“text.txt”",
        "1:1",
        "E-TXT-010",
        "`“` (U+201C, left double quotation mark) does not quote a string",
        QUOTES,
    ),
    ("‘a’", "1:1", "E-TXT-010", "`‘` (U+2018, left single quotation mark) may not stand in a name", NO_QUOTING),
    ("a\x00b", "1:2", "E-TXT-010", "U+0000 (control character) may not stand in a paren file", CONTROL),
    ('"a\x07"', "1:3", "E-TXT-010", "U+0007 (control character) may not stand in a paren file", CONTROL),
    (
        "; \u202e hidden",
        "1:3",
        "E-TXT-010",
        "U+202E (right-to-left override) may not stand in a paren file",
        CONTROL,
    ),
    ("(a (b)", "1:1", "E-TXT-003", "`(` is not closed", "write `)` at its end"),
    ("(a [b (c", "1:1", "E-TXT-003", "`(` is not closed", "write `)])` at its end"),
    ("[" * 9, "1:1", "E-TXT-003", "`[` is not closed", "close its 9 brackets"),
    (
        "(def a (+ 1 2)\n\n(def b 1)\n",
        "1:1",
        "E-TXT-003",
        "`(` is not closed",
        "write `)` before line 3, where the next form begins",
    ),
    ("a)", "1:2", "E-TXT-004", "`)` closes nothing", "delete it, or write the bracket that opens the form"),
    ("(a)]", "1:4", "E-TXT-004", "`]` closes nothing", "delete it, or write the bracket that opens the form"),
    ("(a [b)", "1:6", "E-TXT-005", "`)` does not close `[`", "close it with `]`"),
    (
        "(" * 201 + ")" * 201,
        "1:201",
        "E-TXT-012",
        "brackets nest 201 deep here, more than 200",
        "name inner parts with `def`, `let` or a function",
    ),
]


@pytest.mark.parametrize(("text", "place", "code", "message", "fix"), SINGLE)
def test_one_mistake(text: str, place: str, code: str, message: str, fix: str | None) -> None:
    assert mistakes(text) == [(place, code, message, fix)]


def test_a_file_shows_all_its_mistakes_in_order() -> None:
    text = '(def a (+ 1 2)\n(def b [1 2)\n(def c 1)))\n(def d 1.2.3)\n(def e “x”)\n(def f "\\q \\w")\n'
    assert [mistake[:3] for mistake in mistakes(text)] == [
        ("1:1", "E-TXT-003", "`(` is not closed"),
        ("2:12", "E-TXT-005", "`)` does not close `[`"),
        ("3:10", "E-TXT-004", "`)` closes nothing"),
        ("4:8", "E-TXT-009", "`1.2.3` is not a number"),
        ("5:8", "E-TXT-010", "`“` (U+201C, left double quotation mark) does not quote a string"),
        ("6:9", "E-TXT-008", r"unknown escape `\q` in a string"),
        ("6:12", "E-TXT-008", r"unknown escape `\w` in a string"),
    ]


def rendered(text: str) -> str:
    with pytest.raises(ParenError) as caught:
        read(Source("gpt.paren", text))
    return str(caught.value)


def test_brackets_show_where_the_open_ones_stand() -> None:
    assert rendered("(def x\n  (f [1 2)") == (
        "gpt.paren:2:10: E-TXT-005: `)` does not close `[`\n"
        "    (f [1 2)\n"
        "           ^\n"
        "  note: `[` stands here (gpt.paren:2:6)\n"
        "  fix: close it with `]`"
    )
    assert rendered("(def x\n  (f [1 2\n") == (
        "gpt.paren:1:1: E-TXT-003: `(` is not closed\n"
        "  (def x\n"
        "  ^\n"
        "  note: `(` inside it is open too (gpt.paren:2:3)\n"
        "  note: `[` inside it is open too (gpt.paren:2:6)\n"
        "  fix: write `]))` at its end"
    )
    assert rendered("(def x\n  1))") == (
        "gpt.paren:2:5: E-TXT-004: `)` closes nothing\n"
        "    1))\n"
        "      ^\n"
        "  note: the form before it, which begins on line 1, is already closed (gpt.paren:2:4)\n"
        "  fix: delete it, or write the bracket that opens the form"
    )


def test_a_nested_form_in_the_first_column_is_no_mistake_by_itself() -> None:
    assert len(read(Source("f", "(let\n(def x 1)\n)"))) == 1


def test_very_many_mistakes_are_counted_not_shown() -> None:
    text = rendered("# " * 30)
    assert text.count("E-TXT-010") == 20
    assert text.endswith("a literal list is written [1 2 3]")
    assert text.count("note: 10 further mistakes in this text are not shown") == 1


@pytest.mark.parametrize(
    "text", ["(" * 100_000, "(" * 100_000 + ")" * 100_000, ")" * 100_000, "[(" * 50_000, "(\n" * 100_000]
)
def test_deep_nesting_is_an_error_and_no_crash(text: str) -> None:
    message = rendered(text)
    assert message.count("E-TXT-") == 1
    assert len(message) < 1000


def test_a_long_line_is_shown_around_the_mistake() -> None:
    assert rendered("x" * 500 + " 1.2.3 " + "y" * 500).split("\n")[1:3] == [
        "  " + "x" * 26 + " 1.2.3 " + "y" * 77,
        "  " + " " * 27 + "^" * 5,
    ]


def test_carets_stand_under_wide_characters() -> None:
    assert rendered("漢字 1.2.3\t2.3.4").split("\n")[1:3] == ["  漢字 1.2.3\t2.3.4", "       ^^^^^"]


@pytest.mark.parametrize(
    ("content", "place", "message"),
    [
        (b"\xff\xfe(\x00)\x00", "1:1", "the file is UTF-16, not UTF-8"),
        (b"\xfe\xff\x00(\x00)", "1:1", "the file is UTF-16, not UTF-8"),
        (b"\xff\xfe\x00\x00", "1:1", "the file is UTF-32, not UTF-8"),
        ("(def x 1)".encode("utf-16-le"), "1:1", "the file looks like UTF-16 without a byte-order mark, not UTF-8"),
        ("(def x 1)".encode("utf-16-be"), "1:1", "the file looks like UTF-16 without a byte-order mark, not UTF-8"),
        (b"(a)\r\n; caf\xe9", "2:6", "byte 0xe9 is not valid UTF-8 (in Windows-1252 it is `é`)"),
        ("θ ".encode() + b"\x81\x81", "1:3", "byte 0x81 is not valid UTF-8"),
        (b"abc\xe2\x82", "1:4", "byte 0xe2 is not valid UTF-8 (in Windows-1252 it is `â`)"),
    ],
)
def test_other_encodings(content: bytes, place: str, message: str) -> None:
    assert mistakes(content) == [(place, "E-TXT-002", message, "save the file as UTF-8")]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    def failure(path: Path) -> tuple[str, str, str | None]:
        with pytest.raises(ParenError) as caught:
            load_source(path)
        return caught.value.code, caught.value.message, caught.value.fix

    (tmp_path / "small.paren").write_text("")
    hint = "check the path; a relative one starts at the current folder"
    missing, folder = tmp_path / "none" / "x.paren", tmp_path
    assert failure(missing) == ("E-TXT-001", f"{missing} does not exist", hint)
    assert failure(tmp_path / "smal.paren")[2] == f"did you mean {tmp_path / 'small.paren'}?"
    assert failure(tmp_path / "small")[2] == f"did you mean {tmp_path / 'small.paren'}?"
    assert failure(Path("/dev/zero")) == ("E-TXT-001", "/dev/zero cannot be read: it has more than 16 MiB", None)
    assert failure(folder) == ("E-TXT-001", f"{folder} is a folder, not a file", "name a .paren file in it")
    assert failure(Path("a\0b")) == ("E-TXT-001", "'a\\x00b' cannot be read: embedded null byte", None)
    long = Path("x" * 5000)
    assert failure(long) == ("E-TXT-001", f"{long} cannot be read: file name too long", None)
    below_file = tmp_path / "small.paren" / "x"
    assert failure(below_file) == ("E-TXT-001", f"{below_file} cannot be read: not a directory", None)


_BRACKETS = st.lists(st.sampled_from(["(", ")", "[", "]", "\n(def x ", "\n(import ", "\n", "a "]), max_size=30)


@settings(max_examples=300)
@given(_BRACKETS.map("".join))
def test_brackets_match_or_are_refused(text: str) -> None:
    rest = re.sub(r"[^()\[\]]", "", text)
    while "()" in rest or "[]" in rest:
        rest = rest.replace("()", "").replace("[]", "")
    refused: tuple[str, ...] = ()
    try:
        read(Source("f", text))
    except ParenError as caught:
        refused = tuple(error.code for error in caught.errors)
    assert bool(refused) == bool(rest)
    assert set(refused) <= {"E-TXT-003", "E-TXT-004", "E-TXT-005"}


@settings(max_examples=300)
@given(st.one_of(st.binary(max_size=60), st.text("()[]\"';:#|\\ \n\t1.ex+-a\u00a0“”", max_size=60).map(str.encode)))
def test_any_bytes_are_read_or_refused_with_a_place(content: bytes) -> None:
    try:
        read(decode(content, "f"))
    except ParenError as caught:
        for error in caught.errors:
            assert error.code.startswith("E-TXT-")
            assert error.span is not None
            assert str(error)

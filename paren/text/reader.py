"""Text becomes forms, each with its span; all mistakes of a text are reported in one run."""

from __future__ import annotations

from pathlib import Path

from paren.text.atoms import read_atom, read_string
from paren.text.brackets import bracket_errors
from paren.text.errors import Note, ParenError, Report, nearest
from paren.text.forms import Boolean, Form, Keyword, List, Number, String, Symbol
from paren.text.size import count_of
from paren.text.source import Source, Span
from paren.text.tokens import ATOM, CLOSE, OPEN, STRING, Token, scan

MAXIMUM_DEPTH = 200
MAXIMUM_ERRORS = 20
LARGEST = 16 << 20  # bytes of a file; a device that gives bytes for ever is none

_MARKS = (
    (b"\x00\x00\xfe\xff", "UTF-32"),
    (b"\xff\xfe\x00\x00", "UTF-32"),
    (b"\xfe\xff", "UTF-16"),
    (b"\xff\xfe", "UTF-16"),
)
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_CLOSING = {"(": ")", "[": "]"}
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", '"': '\\"'}


def load_source(path: Path, name: str | None = None) -> Source:
    """Reads a paren file. Messages call it `name`, by default the path as given. Raises E-TXT-001 and E-TXT-002."""
    shown = name if name is not None else str(path)
    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ValueError(f"it has more than {LARGEST >> 20} MiB")
    except FileNotFoundError:
        near = _similar_file(path)
        fix = f"did you mean {near}?" if near else "check the path; a relative one starts at the current folder"
        raise ParenError("E-TXT-001", f"{shown} does not exist", fix=fix) from None
    except IsADirectoryError:
        raise ParenError("E-TXT-001", f"{shown} is a folder, not a file", fix="name a .paren file in it") from None
    except (OSError, ValueError) as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else str(error)
        quoted = shown if shown.isprintable() else repr(shown)
        raise ParenError("E-TXT-001", f"{quoted} cannot be read: {reason}") from error
    return decode(content, shown)


def decode(content: bytes, name: str) -> Source:
    """UTF-8 bytes become a source: a byte-order mark goes, CRLF and a lone CR become LF. Raises E-TXT-002."""
    for mark, encoding in _MARKS:
        if content.startswith(mark):
            raise _encoding_error(name, f"the file is {encoding}, not UTF-8")
    content = content.removeprefix(_BYTE_ORDER_MARK)
    if _looks_like_utf_16(content[:200]):
        raise _encoding_error(name, "the file looks like UTF-16 without a byte-order mark, not UTF-8")
    try:
        return Source(name, _unify_line_ends(content.decode()))
    except UnicodeDecodeError as error:
        source = Source(name, _unify_line_ends(content.decode(errors="replace")))
        start = len(_unify_line_ends(content[: error.start].decode()))
        byte = content[error.start]
        guess = bytes([byte]).decode("cp1252", errors="ignore")
        meaning = f" (in Windows-1252 it is `{guess}`)" if guess and guess.isprintable() else ""
        raise ParenError(
            "E-TXT-002",
            f"byte 0x{byte:02x} is not valid UTF-8{meaning}",
            Span(source, start, start + 1),
            fix="save the file as UTF-8",
        ) from None


def read(source: Source) -> tuple[Form, ...]:
    """The forms of a text, in order.

    Raises one `ParenError` (or `ParenErrors`, in the order of the text) with a code E-TXT-003 to E-TXT-012.
    """
    errors: list[ParenError] = []
    tokens = [token for token in scan(source, errors) if token.kind in (OPEN, CLOSE, STRING, ATOM)]
    leaves: list[Form | None] = [None] * len(tokens)
    for index, token in enumerate(tokens):
        if token.kind in (STRING, ATOM):
            leaves[index] = _read_leaf(source, token, errors)
    wrong_brackets = bracket_errors(source, tokens, MAXIMUM_DEPTH)
    errors += wrong_brackets
    if errors:
        raise_errors(errors)
    return _build(source, tokens, leaves)


def raise_errors(errors: list[ParenError]) -> None:
    """Raises the errors in the order of the text, the first ones if there are very many."""
    errors.sort(key=lambda error: error.span.start if error.span else 0)
    shown = errors[:MAXIMUM_ERRORS]
    if len(errors) > len(shown):
        last = shown[-1]
        left_out = count_of(
            len(errors) - len(shown), "further mistake in this text is", "further mistakes in this text are"
        )
        more = Note(f"{left_out} not shown")
        shown[-1] = ParenError(last.code, last.message, last.span, notes=(*last.notes, more), fix=last.fix)
    Report(shown).finish()


def show_form(form: Form) -> str:
    """The form as text on one line; reading it gives the same form up to spans."""
    parts: list[str] = []
    pending: list[Form | str] = [form]
    while pending:
        item = pending.pop()
        if isinstance(item, List):
            parts.append(item.bracket)
            pending.append(_CLOSING[item.bracket])
            for position, element in enumerate(reversed(item.items)):
                if position:
                    pending.append(" ")
                pending.append(element)
        else:
            parts.append(item if isinstance(item, str) else _show_leaf(item))
    return "".join(parts)


def _show_leaf(form: Symbol | Keyword | Number | String | Boolean) -> str:
    match form:
        case Symbol():
            return form.name
        case Keyword():
            return f":{form.name}"
        case Number():
            return form.text
        case Boolean():
            return "true" if form.value else "false"
        case String():
            return f'"{"".join(_show_character(character) for character in form.value)}"'


def _show_character(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _read_leaf(source: Source, token: Token, errors: list[ParenError]) -> Form | None:
    try:
        if token.kind == STRING:
            return read_string(source, token)
        return read_atom(source, token)
    except ParenError as error:
        errors.extend(error.errors)
        return None


def _build(source: Source, tokens: list[Token], leaves: list[Form | None]) -> tuple[Form, ...]:
    """Nests the forms; the brackets are known to match."""
    stack: list[tuple[int, list[Form]]] = []
    items: list[Form] = []
    for token, leaf in zip(tokens, leaves, strict=True):
        if leaf is not None:
            items.append(leaf)
        elif token.kind == OPEN:
            stack.append((token.start, items))
            items = []
        else:
            start, outer = stack.pop()
            outer.append(List(tuple(items), source.text[start], Span(source, start, token.end)))
            items = outer
    return tuple(items)


def _encoding_error(name: str, message: str) -> ParenError:
    return ParenError("E-TXT-002", message, Span(Source(name, ""), 0, 0), fix="save the file as UTF-8")


def _looks_like_utf_16(beginning: bytes) -> bool:
    """Whether every second byte of mostly Latin text is zero, as in UTF-16."""
    halves = (beginning[0::2], beginning[1::2])
    return len(beginning) >= 4 and any(half.count(0) * 2 > len(half) for half in halves)


def _unify_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _similar_file(path: Path) -> str | None:
    """A .paren file of the same folder whose name is near, or the path with the suffix that was left out."""
    if not path.parent.is_dir():
        return None
    if path.suffix != ".paren" and path.with_name(f"{path.name}.paren").is_file():
        return str(path.with_name(f"{path.name}.paren"))
    near = nearest(path.name, (entry.name for entry in path.parent.glob("*.paren")))
    return str(path.with_name(near)) if near else None

"""`defdata`: the kinds of data, their options, and the fields that they give. Nothing is opened here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from paren.ir.program import DataForm, Field
from paren.ir.program import Value as Plain
from paren.ir.types import DType, TensorType
from paren.lang.core import Compiler
from paren.lang.grammar import Options, head_of, pairs, parse_options, plain
from paren.lang.value import POISON, kind
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Form, List, String, Symbol

_COMMON = ("split", "evaluation-batch", "evaluation-count")
_TOKENS = ("tokenizer", "length", "stride", "boundary")
_TOKEN_TYPES = ("uint8", "uint16", "uint32", "int32", "int64")


@dataclass(frozen=True)
class _Kind:
    """Options of a kind of data, those it must have, and the positional arguments it takes (least, most)."""

    options: tuple[str, ...]
    required: tuple[str, ...]
    least: int
    most: int | None
    form: str


KINDS: Mapping[str, _Kind] = {
    "text-files": _Kind(
        _TOKENS, ("tokenizer", "length"), 1, None, '(text-files "pattern" ... :tokenizer bytes :length n)'
    ),
    "python-docs": _Kind(_TOKENS, ("tokenizer", "length"), 0, 0, "(python-docs :tokenizer bytes :length n)"),
    "python-stdlib": _Kind(_TOKENS, ("tokenizer", "length"), 0, 0, "(python-stdlib :tokenizer bytes :length n)"),
    "token-file": _Kind(
        ("dtype", "length", "stride", "validation"), ("length",), 1, 1, '(token-file "path" :dtype uint16 :length n)'
    ),
    "arrays": _Kind(
        ("fields", "columns"), ("fields",), 1, None, '(arrays "path" ... :fields ((name float32 [4]) ...))'
    ),
    "digits": _Kind((), (), 0, 0, "(digits)"),
    "python": _Kind(
        ("fields", "files"),
        ("fields",),
        2,
        2,
        '(python "file.py" function :fields ((name float32 [4]) ...) :key value ...)',
    ),
}


def parse_data(compiler: Compiler, form: List) -> DataForm | None:
    """The data of `(defdata name (kind ...))`. Raises or records E-FORM errors; None if its fields are not known."""
    if len(form.items) != 3 or not isinstance(form.items[1], Symbol):
        raise ParenError("E-FORM-001", "the form is (defdata name (kind ...))", form.span)
    body = form.items[2]
    name = head_of(body)
    if name is None or not isinstance(body, List):
        raise ParenError("E-FORM-001", "the form is (defdata name (kind ...))", body.span)
    known = KINDS.get(name)
    if known is None:
        raise ParenError(
            "E-FORM-009",
            f"unknown kind of data {name}{did_you_mean(name, KINDS)}",
            body.items[0].span,
            fix=f"the kinds are {', '.join(KINDS)}",
        )
    options = parse_options(
        compiler,
        name,
        body.span,
        body.items[1:],
        (*known.options, *_COMMON),
        open_ended=name == "python",
        required=known.required,
    )
    count = len(options.positional)
    if count < known.least or (known.most is not None and count > known.most):
        raise ParenError("E-FORM-001", f"the form is {known.form}", body.span)
    session = compiler.session
    stored: dict[str, Plain] = {}
    spans = options.spans()
    arguments: list[Plain] = []
    for index, item in enumerate(options.positional):
        if name == "python" and index == 1:
            arguments.append(_function_name(item))
            continue
        value = options.evaluate(item)
        if isinstance(value, str) and value:
            arguments.append(value)
        elif value is not POISON:
            session.record(ParenError("E-FORM-006", f"{name} takes paths as strings, not {kind(value)}", item.span))
    fields: tuple[Field, ...] | None = None
    with session.collect():
        fields = _fields(options, name, form.items[1])
    for key in ("length", "stride", "evaluation-batch", "evaluation-count"):
        if key in options and key in (*known.options, *_COMMON):
            stored[key] = options.integer(key, 1)
    if "split" in options:
        with session.collect():
            stored["split"] = _split(options)
    if "tokenizer" in options and "tokenizer" in known.options:
        with session.collect():
            stored["tokenizer"] = _tokenizer(options)
    if "boundary" in options and "boundary" in known.options:
        stored["boundary"] = _boundary(options)
    if name == "token-file":
        if "dtype" in options:
            stored["dtype"] = options.choice("dtype", _TOKEN_TYPES, "uint16")
        if "validation" in options:
            stored["validation"] = options.string("validation") or ""
            if "split" in options:
                session.record(
                    ParenError("E-FORM-010", ":split and :validation exclude each other", options.place("validation"))
                )
    if name == "arrays" and "columns" in options:
        with session.collect():
            stored["columns"] = _columns(options, fields or ())
    if name == "python":
        if "files" in options:
            stored["files"] = options.paths("files")
        keywords: list[Plain] = []
        for key in options.keywords:
            if key not in (*known.options, *_COMMON):
                value = options.value(key)
                with session.collect():
                    if value is not POISON:
                        keywords.append((key, plain(value, options.place(key))))
        stored["keywords"] = tuple(keywords)
    if fields is None:
        return None
    return DataForm(form.items[1].name, name, tuple(arguments), stored, spans, form.span, fields)


def _function_name(form: Form) -> str:
    if isinstance(form, Symbol):
        return form.name
    raise ParenError("E-FORM-006", "the Python function is named by a symbol", form.span)


def parse_fields(compiler: Compiler, form: Form, names_what: str) -> tuple[Field, ...]:
    """The fields of `((name type [shape]) ...)`. Raises E-FORM-006, and E-NAME-002 for a name twice."""
    what = f"{names_what} is ((name float32 [4]) (name int32 []) ...)"
    if not isinstance(form, List) or form.bracket != "(" or not form.items:
        raise ParenError("E-FORM-006", what, form.span)
    found: dict[str, Field] = {}
    for item in form.items:
        if not isinstance(item, List) or len(item.items) != 3 or item.bracket != "(":
            raise ParenError("E-FORM-006", what, item.span)
        label, type_form, shape_form = item.items
        if not isinstance(label, Symbol) or not isinstance(type_form, Symbol):
            raise ParenError("E-FORM-006", what, item.span)
        known = {dtype.value: dtype for dtype in DType if not dtype.is_short}
        dtype = known.get(type_form.name)
        if dtype is None:
            hint = did_you_mean(type_form.name, known)
            raise ParenError(
                "E-FORM-006",
                f"unknown type {type_form.name}{hint}",
                type_form.span,
                fix=f"the types are {', '.join(known)}",
            )
        if label.name in found:
            first = Note("the first one", found[label.name].span)
            raise ParenError("E-NAME-002", f"the field {label.name} is declared twice", label.span, notes=[first])
        shape = compiler.compile(shape_form, frozenset())({})
        if shape is POISON:
            shape = ()
        if not isinstance(shape, tuple):
            raise ParenError("E-TYPE-008", f"a shape is a list of integers, not {kind(shape)}", shape_form.span)
        sizes = [size for size in shape if isinstance(size, int) and not isinstance(size, bool) and size > 0]
        if len(sizes) != len(shape):
            raise ParenError("E-TYPE-008", f"a shape has positive integers, not {kind(shape)}", shape_form.span)
        found[label.name] = Field(label.name, TensorType(dtype, tuple(sizes)), item.span)
    return tuple(found.values())


def _fields(options: Options, name: str, label: Form) -> tuple[Field, ...] | None:
    """The fields; None if the options that give them have mistakes."""
    if name in ("arrays", "python"):
        if "fields" not in options:
            return None
        return parse_fields(options.compiler, options.form("fields"), ":fields")
    if name == "digits":
        return (
            Field("image", TensorType(DType.FLOAT32, (1, 8, 8)), label.span),
            Field("label", TensorType(DType.INT32, ()), label.span),
        )
    count = len(options.session.errors)
    size = options.integer("length", 0)
    if not size or len(options.session.errors) > count:
        return None
    length = TensorType(DType.INT32, (size,))
    return Field("tokens", length, label.span), Field("targets", length, label.span)


def _split(options: Options) -> Plain:
    """`((train 0.95) (validation 0.05))`: fractions above 0 that sum to at most 1, `train` among them."""
    what = ":split is ((train 0.95) (validation 0.05)) or the like"
    parts: dict[str, float] = {}
    for label, form in pairs(options.form("split"), what):
        value = options.evaluate(form)
        if value is POISON:
            return ()
        if not isinstance(label, Symbol) or isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ParenError("E-FORM-006", what, form.span)
        if not 0 < value <= 1:
            raise ParenError("E-FORM-006", f"the part of a split is above 0 and at most 1, not {value}", form.span)
        if label.name not in ("train", "validation", "test"):
            hint = did_you_mean(label.name, ("train", "validation", "test"))
            raise ParenError(
                "E-FORM-006", f"the parts of a split are train, validation and test, not {label.name}{hint}", label.span
            )
        if label.name in parts:
            raise ParenError("E-FORM-006", f"the part {label.name} is given twice", label.span)
        parts[label.name] = float(value)
    if "train" not in parts:
        raise ParenError("E-FORM-006", ":split has no part train", options.place("split"))
    if sum(parts.values()) > 1 + 1e-9:
        total = round(sum(parts.values()), 9)
        raise ParenError("E-FORM-006", f"the parts of a split sum to {total}, more than 1", options.place("split"))
    return tuple(parts.items())


def _tokenizer(options: Options) -> Plain:
    what = ':tokenizer is bytes, (byte-pair :vocab n) or "tokenizer.json"'
    form = options.form("tokenizer")
    if isinstance(form, Symbol) and form.name == "bytes":
        return ("bytes",)
    if head_of(form) == "byte-pair" and isinstance(form, List):
        inner = parse_options(options.compiler, "byte-pair", form.span, form.items[1:], ("vocab",), required=("vocab",))
        if inner.positional:
            raise ParenError("E-FORM-006", what, form.span)
        return ("byte-pair", inner.integer("vocab", 256, 256))
    if isinstance(form, String) or (isinstance(form, Symbol) and options.compiler.namespace.find(form.name)):
        value = options.value("tokenizer")
        if value is POISON:
            return ()
        if isinstance(value, str) and value.endswith(".json"):
            return ("file", value)
        if value == "bytes":
            return ("bytes",)
    raise ParenError("E-FORM-006", what, form.span)


def _boundary(options: Options) -> Plain:
    form = options.form("boundary")
    if isinstance(form, String) and form.value:
        return ("token", form.value)
    return (options.choice("boundary", ("join", "separate"), "join"),)


def _columns(options: Options, fields: tuple[Field, ...]) -> Plain:
    """`((x "a" "b") (y "label"))`: which columns of a table make a field."""
    what = ':columns is ((field "column" ...) ...)'
    form = options.form("columns")
    known = {field.name: field for field in fields}
    found: dict[str, tuple[str, ...]] = {}
    if not isinstance(form, List) or form.bracket != "(":
        raise ParenError("E-FORM-006", what, form.span)
    for item in form.items:
        if not isinstance(item, List) or len(item.items) < 2 or not isinstance(item.items[0], Symbol):
            raise ParenError("E-FORM-006", what, item.span)
        label = item.items[0]
        columns = tuple(column.value for column in item.items[1:] if isinstance(column, String))
        if len(columns) != len(item.items) - 1:
            raise ParenError("E-FORM-006", what, item.span)
        field = known.get(label.name)
        if field is None:
            hint = did_you_mean(label.name, known)
            raise ParenError("E-FORM-006", f"{label.name} is not among :fields{hint}", label.span)
        if field.type.size % len(columns):
            raise ParenError(
                "E-FORM-006", f"{label.name} is {field.type}, which {len(columns)} columns do not fill", item.span
            )
        found[label.name] = columns
    return tuple(found.items())

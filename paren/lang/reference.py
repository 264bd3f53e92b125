"""What functions there are: names, parameters and one sentence each, for the documentation and for `paren help`."""

from __future__ import annotations

from dataclasses import dataclass

from paren.lang.builtins import BUILTINS
from paren.lang.prelude_files import prelude_forms
from paren.lang.signature import Signature, parse_signature
from paren.lang.value import Builtin, show
from paren.text.forms import List, String
from paren.text.reader import show_form

_INTERNAL = ("elementwise-and", "elementwise-or", "split-by-rank")


@dataclass(frozen=True)
class Entry:
    """A function as a user sees it. `group` is the file it stands in: `arithmetic`, `layers` ..."""

    group: str
    name: str
    call: str
    documentation: str


def describe_functions() -> tuple[Entry, ...]:
    """All functions, builtins first, by group and in the order of their files; those without a text are internal."""
    found: list[Entry] = []
    for name, value in BUILTINS.items():
        if isinstance(value, Builtin) and name not in _INTERNAL:
            group = value.apply.__module__.rpartition(".")[2]
            found.append(Entry(group, name, _call(name, value.signature), " ".join(value.documentation.split())))
    for name, form in prelude_forms():
        head = form.items[1]
        if not isinstance(head, List) or not isinstance(form.items[2], String):
            continue
        group = form.span.source.name.rpartition("/")[2].removesuffix(".paren")
        found.append(
            Entry(group, name, _call(name, parse_signature(head.items[1:])), " ".join(form.items[2].value.split()))
        )
    return tuple(found)


def _call(name: str, signature: Signature) -> str:
    words = [name, *signature.positional]
    if signature.rest is not None:
        words.append(f"{signature.rest}...")
    for keyword, form in signature.keywords.items():
        if form is not None:
            words.append(f":{keyword} {show_form(form)}")
        elif keyword in signature.values:
            words.append(f":{keyword} {show(signature.values[keyword])}")
        else:
            words.append(f":{keyword} ...")
    return f"({' '.join(words)})"

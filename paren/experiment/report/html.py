"""HTML by construction: whatever is not `Html` is text, and is escaped when it becomes part of an element."""

from __future__ import annotations

import html
import re

# What HTML does not allow, and halves of surrogate pairs, which paths may have and UTF-8 cannot write.
_FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_VOID = frozenset({"img", "input", "meta", "br", "line", "circle", "rect", "path"})


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


Content = str | Html | None
Attribute = str | int | float | bool | None


def escape(text: str) -> Html:
    """The text as HTML, fit for the inside of elements and for attributes in double quotes."""
    return text if isinstance(text, Html) else Html(html.escape(_FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)))


def join(*contents: Content) -> Html:
    """The contents one after the other; None is nothing."""
    return Html("".join(escape(each) for each in contents if each is not None))


def element(tag: str, *contents: Content, **attributes: Attribute) -> Html:
    """`<tag attributes>contents</tag>`. An attribute that is None or False, or an empty class, is left out, one
    that is True has no value; `class_` is `class`, and `_` in a name is `-`."""
    parts = [tag]
    for name, value in attributes.items():
        if value is None or value is False or (name == "class_" and not value):
            continue
        spelt = name.rstrip("_").replace("_", "-")
        parts.append(spelt if value is True else f'{spelt}="{escape(str(value))}"')
    head = f"<{' '.join(parts)}"
    if tag in _VOID:
        return Html(f"{head}>" if tag in ("img", "input", "meta", "br") else f"{head}/>")
    return Html(f"{head}>{join(*contents)}</{tag}>")

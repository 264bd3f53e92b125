"""Random paren texts for the tests of this folder, and forms as plain values, without spans."""

from __future__ import annotations

from hypothesis import strategies as st

from paren.text.forms import Form, List, Number, Symbol
from paren.text.reader import read
from paren.text.source import Source

_NAMES = ["def", "defrun", "defmodel", "defvariant", "let", "fn", "fold", "scope", "x", "layer-norm", "+", "a.b/c", "θ"]
_LEAVES = st.one_of(
    st.sampled_from(_NAMES),
    st.sampled_from([":rate", ":weight-decay", ":n", "true", "false"]),
    st.sampled_from(["1", "-3", "0.5", "6e-4", "0x10", "+.5", "12.", "1234567890123"]),
    st.sampled_from(['""', '"a b"', '"a\\n\\"; (x"', '"|# #|"', '"' + "long " * 15 + '"']),
)
_LINE_COMMENTS = st.sampled_from(["; note\n", ";\n", ';; (unclosed " #|  \n', "; " + "long " * 12 + "\n"])
_BLOCK_COMMENTS = st.sampled_from(["#| block |#", "#|a\n   b|#", "#| x #| ) |# ; |#", "#||#"])
_GAPS = st.one_of(
    st.sampled_from([" ", " ", "  ", "\n", "\n\n", "\n\n\n\n", "\t", "\n  "]),
    st.tuples(
        st.sampled_from([" ", "\n", "\n\n", ""]),
        st.one_of(_LINE_COMMENTS, _BLOCK_COMMENTS),
        st.sampled_from(["", " ", "\n"]),
    ).map("".join),
)


def _enclose(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    elements = st.lists(st.tuples(inner, _GAPS), max_size=5).map(lambda pairs: "".join(a + b for a, b in pairs))
    return st.tuples(st.sampled_from(["()", "()", "[]"]), st.one_of(st.just(""), _GAPS), elements).map(
        lambda parts: parts[0][0] + parts[1] + parts[2] + parts[0][1]
    )


_FORMS = st.recursive(_LEAVES, _enclose, max_leaves=25)

texts = st.tuples(
    st.one_of(st.just(""), _GAPS),
    st.lists(st.tuples(_FORMS, _GAPS), max_size=6).map(lambda pairs: "".join(a + b for a, b in pairs)),
).map("".join)


def plain(form: Form) -> object:
    """The form without spans; numbers with their spelling, so that `1` and `1.0` differ."""
    if isinstance(form, List):
        return (form.bracket, *(plain(item) for item in form.items))
    if isinstance(form, Number):
        return (type(form.value), form.value, form.text)
    if isinstance(form, Symbol):
        return ("symbol", form.name)
    return (type(form).__name__, form.value if not hasattr(form, "name") else form.name)


def plain_forms(text: str) -> list[object]:
    return [plain(form) for form in read(Source("text.paren", text))]

"""The prelude: paren files beside this one, read once a process, compiled as far as a program uses them."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from paren.lang.builtins import BUILTINS
from paren.lang.core import Compiler
from paren.lang.session import PRELUDE, Session
from paren.lang.value import Global, Namespace, Value
from paren.text.errors import InternalError
from paren.text.forms import Form, List, Symbol
from paren.text.reader import load_source, read
from paren.text.source import Source, Span

FOLDER = Path(__file__).parent / "prelude"


@cache
def prelude_forms() -> tuple[tuple[str, List], ...]:
    """The definitions of all prelude files, by name."""
    found: list[tuple[str, List]] = []
    for path in sorted(FOLDER.glob("*.paren")):
        for form in read(load_source(path, f"{PRELUDE}{path.name}")):
            found.append((_name(form), _list(form)))
    return tuple(found)


def _list(form: Form) -> List:
    if not isinstance(form, List) or not isinstance(form.items[0], Symbol) or form.items[0].name != "def":
        raise InternalError("lang", f"the prelude holds only definitions ({form.span})")
    return form


def _name(form: Form) -> str:
    target = _list(form).items[1]
    head = target.items[0] if isinstance(target, List) else target
    if not isinstance(head, Symbol):
        raise InternalError("lang", f"a definition of the prelude has no name ({form.span})")
    return head.name


def builtin_namespace() -> Namespace:
    span = Span(Source("<builtin>", ""), 0, 0)
    return Namespace({name: Global(name, span, None, value) for name, value in BUILTINS.items()})


def prelude_namespace(session: Session) -> Namespace:
    """The names of the prelude over the builtins, for one session."""
    namespace = Namespace({}, builtin_namespace())
    compiler = Compiler(session, namespace, internal=True)
    for name, form in prelude_forms():
        if name in namespace.names:
            raise InternalError("lang", f"the prelude defines {name} twice")
        namespace.names[name] = Global(name, form.span, partial(_evaluate, compiler, form), form=form)
    return namespace


def _evaluate(compiler: Compiler, form: List) -> Value:
    target = form.items[1]
    if isinstance(target, List):
        return compiler.function(_name(form), target.items[1:], form.items[2:], form.span, frozenset()).close({})
    return compiler.compile(form.items[2], frozenset())({})

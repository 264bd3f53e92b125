"""`defproduct`, `defmetric`, `defplot`: checked and kept as data. Their Python files are not opened here."""

from __future__ import annotations

import keyword
from collections.abc import Mapping

from paren.ir.program import Analysis
from paren.ir.program import Value as Plain
from paren.lang.grammar import Options, head_of, parse_options, plain
from paren.lang.toplevel import FORMS, TopLevel
from paren.lang.value import POISON
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Form, List, String, Symbol
from paren.text.source import Span

_HEADS = ("defproduct", "defmetric", "defplot")

# What can be needed beside products, and what functions get by other names; no product and no keyword has such a name.
NEEDED = {"model": "the trained model", "data": "the data of the run"}
GIVEN = {
    "rng": "the random numbers of an analysis",
    "settings": "the settings of the run",
    "writer": "what writes large arrays",
    "jobs": "the jobs of a plot",
}
_TAKEN = {**NEEDED, **GIVEN, "seed": "the seed of the run"}


def python_name(name: str) -> str:
    """The name of a parameter or function in Python."""
    return name.replace("-", "_")


def build_analyses(top: TopLevel) -> tuple[Analysis, ...]:
    """The products, metrics and plots of the file, needs first; mistakes are recorded."""
    found: dict[str, Analysis] = {}
    session = top.session
    for head in _HEADS:
        for name, form in top.named(head).items():
            with session.collect():
                _check_name(name, head, found, form.items[1].span)
                found[name] = _analysis(top, head, name, form)
    with session.collect():
        _check_needs(top, found)
        return _ordered(found)
    return ()


def _check_name(name: str, head: str, found: Mapping[str, Analysis], span: Span) -> None:
    """Raises E-STUDY-002 unless it can be a folder and, of a product, a parameter of a Python function."""
    if name in _TAKEN:
        raise ParenError("E-STUDY-002", f"the name {name} is {_TAKEN[name]}", span)
    if name in found:
        raise ParenError("E-STUDY-002", f"the name {name} is taken", span, notes=[Note("there", found[name].span)])
    if any(not (character.isalnum() or character in "-_") for character in name):
        raise ParenError("E-STUDY-002", f"{name} cannot be the name of a folder: letters, digits, - and _ only", span)
    parameter = python_name(name)
    if head == "defproduct" and (not parameter.isidentifier() or keyword.iskeyword(parameter)):
        raise ParenError("E-STUDY-002", f"{name} cannot be the name of a parameter in Python", span)
    products = [other for other, analysis in found.items() if analysis.kind == "product"]
    same = next((other for other in products if python_name(other) == parameter), None)
    if same is not None and head == "defproduct":
        raise ParenError("E-STUDY-002", f"{name} and {same} are one name in Python", span)


def _analysis(top: TopLevel, head: str, name: str, form: List) -> Analysis:
    keys = ("needs", "cost", "over") if head == "defplot" else ("needs", "cost")
    options = parse_options(top.compiler, f"{head} {name}", form.span, form.items[2:], keys)
    body = options.positional[0] if len(options.positional) == 1 else None
    if body is None or not isinstance(body, List) or head_of(body) != "python" or len(body.items) < 3:
        raise ParenError("E-FORM-001", f"the form is {FORMS[head]}", form.span)
    file, function = body.items[1], body.items[2]
    if not isinstance(file, String) or not isinstance(function, Symbol):
        raise ParenError("E-FORM-001", 'the form is (python "file.py" function :key value ...)', body.span)
    inner = parse_options(top.compiler, "python", body.span, body.items[3:], ("files",), open_ended=True)
    if inner.positional:
        raise ParenError("E-FORM-001", "arguments of a Python function are keywords", inner.positional[0].span)
    needs = tuple(symbol.name for symbol in _needs(options.form("needs"))) if "needs" in options else ()
    keywords = _keywords(inner, needs)
    over = options.choice("over", ("cohort", "sweep"), "cohort") if "over" in options else None
    cost = options.form("cost") if "cost" in options else None
    if cost is not None and not isinstance(cost, Symbol):
        raise ParenError("E-FORM-006", ":cost is the name of a function of the Python file", cost.span)
    spans = {"file": file.span, "function": function.span} | {key: inner.place(key) for key, _ in keywords}
    return Analysis(
        head[3:],
        name,
        file.value,
        function.name,
        keywords,
        needs,
        over,
        inner.paths("files"),
        cost.name if cost is not None else None,
        _settings_behind(top, [inner.form(key) for key, _ in keywords]),
        spans | ({"cost": cost.span} if cost is not None else {}),
        form.span,
    )


def _keywords(options: Options, needs: tuple[str, ...]) -> tuple[tuple[str, Plain], ...]:
    """The keywords for the function. Raises E-STUDY-005 for one whose parameter paren fills."""
    given = {python_name(need): f"the product {need}" for need in needs} | NEEDED | GIVEN
    found: dict[str, tuple[str, Plain]] = {}
    for key in options.keywords:
        if key == "files":
            continue
        parameter, place = python_name(key), options.keywords[key][0].span
        if parameter in given:
            raise ParenError("E-STUDY-005", f":{key} cannot be given: {parameter} is {given[parameter]}", place)
        if parameter in found:
            raise ParenError("E-STUDY-005", f":{key} and :{found[parameter][0]} are one name in Python", place)
        value = options.value(key)
        if value is not POISON:
            found[parameter] = key, plain(value, options.place(key))
    return tuple(found.values())


def _settings_behind(top: TopLevel, forms: list[Form]) -> tuple[str, ...]:
    """The settings that the forms read, themselves or through other definitions, in the order of the file."""
    seen: set[str] = set()
    waiting = list(forms)
    while waiting:
        form = waiting.pop()
        if isinstance(form, List):
            waiting += form.items
        elif isinstance(form, Symbol) and form.name not in seen:
            seen.add(form.name)
            known = top.namespace.names.get(form.name)
            if known is not None and known.form is not None and form.name not in top.settings.values:
                waiting.append(known.form)
    return tuple(name for name in top.settings.values if name in seen)


def _needs(form: Form) -> list[Symbol]:
    if isinstance(form, List) and form.bracket == "(":
        found = [item for item in form.items if isinstance(item, Symbol)]
        if len(found) == len(form.items):
            return found
    raise ParenError("E-FORM-006", ":needs is a list of names: (model observations)", form.span)


def _check_needs(top: TopLevel, found: Mapping[str, Analysis]) -> None:
    products = {name for name, analysis in found.items() if analysis.kind == "product"}
    for head in _HEADS:
        for name, form in top.named(head).items():
            if name not in found or found[name].kind != head.removeprefix("def") or not found[name].needs:
                continue  # a second form of that name is a mistake already
            position = next(i for i, item in enumerate(form.items) if getattr(item, "name", "") == "needs")
            for symbol in _needs(form.items[position + 1]):
                if symbol.name in NEEDED or symbol.name in products:
                    continue
                hint = did_you_mean(symbol.name, products | set(NEEDED))
                what = "is not a product" if symbol.name in found else "is unknown"
                top.session.record(
                    ParenError(
                        "E-STUDY-003",
                        f"{name} needs {symbol.name}, which {what}{hint}",
                        symbol.span,
                        fix=f"what can be needed: {', '.join([*NEEDED, *sorted(products)])}",
                    )
                )


def _ordered(found: Mapping[str, Analysis]) -> tuple[Analysis, ...]:
    """The analyses with needs first. Raises E-STUDY-004 that shows a cycle."""
    order: list[Analysis] = []
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        if name in path:
            cycle = " -> ".join((*path[path.index(name) :], name))
            raise ParenError("E-STUDY-004", f"the needs go in a circle: {cycle}", found[name].span)
        if name in done or name not in found:
            return
        for need in found[name].needs:
            visit(need, (*path, name))
        done.add(name)
        order.append(found[name])

    for name in found:
        visit(name, ())
    return tuple(order)

"""Random programs give a sound program or a `ParenError` that can be shown, never another exception."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from small_programs import example, load

from paren.ir.program import Program
from paren.ir.verify import verify
from paren.lang.builtins import BUILTINS
from paren.lang.prelude_files import prelude_forms
from paren.lang.signature import Signature, parse_signature
from paren.lang.value import Builtin
from paren.text.codes import CODES
from paren.text.errors import ParenError
from paren.text.forms import Boolean, Form, Keyword, List, Number, String, Symbol
from paren.text.reader import read, show_form
from paren.text.source import Source, Span

PLACE = Span(Source("test", "x"), 0, 1)
ODD_FORMS: list[Form] = [
    Number(0, "0", PLACE),
    Number(-1, "-1", PLACE),
    Number(2.5, "2.5", PLACE),
    Number(10**30, "1" + 30 * "0", PLACE),
    Symbol("none", PLACE),
    Symbol("x", PLACE),
    Symbol("linear", PLACE),
    Symbol("int32", PLACE),
    List((), "[", PLACE),
    List((), "(", PLACE),
    Keyword("axis", PLACE),
    Boolean(True, PLACE),
    String("a", PLACE),
]
EXAMPLES = [read(Source(path.name, path.read_text())) for path in sorted(example("").glob("*.paren"))]


def elaborated(text: str, variant: str | None = None) -> Program | None:
    """The program, verified; None for a mistake, whose text is shown."""
    try:
        made = load(text, variant=variant)
    except ParenError as error:
        shown = str(error)
        codes = {single.code for single in error.errors}
    else:
        for graph in (made.loss, made.evaluate, made.initialize, *(m.forward(1) for m in made.models)):
            verify(graph, "lang")
        return made
    assert shown
    assert codes <= set(CODES)
    return None


def places(form: Form, path: tuple[int, ...] = ()) -> list[tuple[tuple[int, ...], Form]]:
    found = [(path, form)]
    if isinstance(form, List):
        for index, item in enumerate(form.items):
            found += places(item, (*path, index))
    return found


def replaced(form: Form, path: tuple[int, ...], new: Form | None) -> Form | None:
    """The form with another one, or none, at a place."""
    if not path:
        return new
    assert isinstance(form, List)
    changed = replaced(form.items[path[0]], path[1:], new)
    items = [*form.items[: path[0]], *([changed] if changed is not None else []), *form.items[path[0] + 1 :]]
    return List(tuple(items), form.bracket, form.span)


def mutated(draw: random.Random) -> str:
    """An example with some forms left out, replaced by odd ones, or by forms from elsewhere."""
    forms = list(draw.choice(EXAMPLES))
    everything = [form for program in EXAMPLES for top in program for _, form in places(top)]
    for _ in range(draw.choice([1, 1, 2, 3])):
        number = draw.randrange(len(forms))
        path, _ = draw.choice(places(forms[number]))
        new = draw.choice(
            [None, draw.choice(ODD_FORMS), draw.choice(everything), draw.choice(places(forms[number]))[1]]
        )
        changed = replaced(forms[number], path, new) if path else None
        if changed is not None:
            forms[number] = changed
    return "\n".join(show_form(form) for form in forms)


@settings(max_examples=120)
@given(st.randoms(use_true_random=False), st.sampled_from([None, "smoke"]))
def test_changed_examples(draw: random.Random, variant: str | None) -> None:
    elaborated(mutated(draw), variant)


def signatures() -> dict[str, Signature]:
    found = {name: value.signature for name, value in BUILTINS.items() if isinstance(value, Builtin)}
    for name, form in prelude_forms():
        head = form.items[1]
        if isinstance(head, List):
            found[name] = parse_signature(head.items[1:])
    return found


SIGNATURES = signatures()
ATOMS = """x i b s 0 1 2 -1 3.5 -2.0 1e30 true "ab" [] [2] [1 2] [[1 2] [0 1]] none float32 int32 bool all infinity relu
[2 3] [x x] 1000000 (iota 4) "ab,bc->ac" (zeros [4]) (fn (u) u) (param p [4] :init 0) (param q [4 4] :init 1)"""
ATOM_TEXTS = [show_form(form) for form in read(Source("atoms", ATOMS))]


def expression(draw: random.Random, depth: int) -> str:
    """A call with arguments of any kind, mostly as many as the function takes."""
    if depth == 0 or draw.random() < 0.35:
        return draw.choice(ATOM_TEXTS)
    name = draw.choice(sorted(SIGNATURES))
    signature = SIGNATURES[name]
    count = max(0, len(signature.positional) + draw.choice([0, 0, 0, 0, 1, -1]))
    words = [name, *(expression(draw, depth - 1) for _ in range(count))]
    if signature.rest:
        words += [expression(draw, depth - 1) for _ in range(draw.randrange(3))]
    for keyword in signature.keywords:
        if draw.random() < 0.3:
            words += [f":{keyword}", expression(draw, depth - 1)]
    return f"({' '.join(words)})"


@settings(max_examples=400)
@given(st.randoms(use_true_random=False))
def test_calls_of_every_function_with_any_arguments(draw: random.Random) -> None:
    fields = "((x float32 [4]) (i int32 [4]) (b bool [2 3]) (s float32 [2 5 4]))"
    elaborated(
        f"""
        (defdata d (python "f.py" g :fields {fields}))
        (defmodel m {fields} (let ((w (param w [4] :init 0))) {expression(draw, 3)}))
        (defrun :data d :loss (sum (reshape (cast (m x i b s) float32) [-1])) :optimizer (adam) :batch 2 :steps 1)
        """
    )


def test_every_function_of_the_prelude_compiles() -> None:
    """Names inside prelude functions are resolved when one is first used; here all of them are."""
    for name, signature in SIGNATURES.items():
        missing = ["x"] * len(signature.positional)
        try:
            load(
                f"""
                (defdata d (python "f.py" g :fields ((x float32 [4]))))
                (defmodel m ((x float32 [4])) ({" ".join([name, *missing])}))
                (defrun :data d :loss (sum (m x)) :optimizer (adam) :batch 2 :steps 1)
                """
            )
        except ParenError as error:
            wrong = [e for e in error.errors if e.span is not None and e.span.source.name.startswith("<prelude>")]
        else:
            wrong = []
        assert wrong == [], name

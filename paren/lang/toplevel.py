"""Sorts the top-level forms of a program: definitions become names, the rest is kept for the pages that read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from paren.ir.program import Setting
from paren.lang.core import Compiler, check_name, value_of
from paren.lang.session import Session
from paren.lang.settings import Settings, is_literal, literal_value
from paren.lang.value import POISON, Global, Namespace, Tensor, Value
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.forms import Form, List, Symbol

FORMS = {
    "def": "(def name value) or (def (name parameters) body)",
    "import": '(import "file.paren")',
    "defvariant": "(defvariant name (setting value) ...)",
    "defdata": "(defdata name (kind ...))",
    "defmodel": "(defmodel name ((input type [shape]) ...) body)",
    "defrun": "(defrun :data name :loss expression ...)",
    "defdiagnostic": "(defdiagnostic name expression :every n :reduce mean)",
    "defsweep": "(defsweep (setting value ...) ...)",
    "defcohort": "(defcohort (setting value ...) ...)",
    "defgrid": "(defgrid (setting value ...) ...)",
    "deflimits": "(deflimits (cost number) ...)",
    "defproduct": '(defproduct name (python "file.py" function) :needs (name ...))',
    "defmetric": '(defmetric name (python "file.py" function) :needs (name ...))',
    "defplot": '(defplot name (python "file.py" function) :needs (name ...))',
}
_NAMED = ("defvariant", "defdata", "defmodel", "defdiagnostic", "defproduct", "defmetric", "defplot")
_SINGLE = ("defrun", "defsweep", "defcohort", "defgrid", "deflimits")


@dataclass(eq=False)
class TopLevel:
    """The forms by head and name, in the order of the text. Forms without a name are under the empty name."""

    session: Session
    compiler: Compiler
    settings: Settings
    forms: dict[str, dict[str, List]] = field(default_factory=lambda: {head: {} for head in FORMS})

    @property
    def namespace(self) -> Namespace:
        return self.compiler.namespace

    def sort(self, forms: list[Form]) -> None:
        """Takes up all forms; mistakes are recorded."""
        for form in forms:
            with self.session.collect():
                self._take(form)
                continue
            self._poison(form)

    def _take(self, form: Form) -> None:
        head = form.items[0] if isinstance(form, List) and form.bracket == "(" and form.items else None
        if not isinstance(form, List) or not isinstance(head, Symbol):
            raise ParenError("E-FORM-007", "a top-level form is (def ...), (defmodel ...) and the like", form.span)
        if head.name not in FORMS:
            raise ParenError(
                "E-FORM-007",
                f"{head.name} is not a top-level form{did_you_mean(head.name, FORMS)}",
                head.span,
                fix=f"the top-level forms are {', '.join(FORMS)}",
            )
        if head.name == "def":
            self._define(form)
            return
        name = ""
        if head.name in _NAMED:
            label = form.items[1] if len(form.items) > 1 else None
            if not isinstance(label, Symbol):
                raise ParenError("E-FORM-001", f"the form is {FORMS[head.name]}", form.span)
            name = label.name
            if head.name == "defmodel":
                check_name(name, label.span)
        before = self.forms[head.name].get(name)
        if before is not None:
            what = f"{head.name} {name}".strip()
            fix = "a file has one" if head.name in _SINGLE else None
            raise ParenError(
                "E-NAME-002",
                f"({what} ...) stands twice",
                form.span,
                notes=[Note("the first one", before.span)],
                fix=fix,
            )
        self.forms[head.name][name] = form

    def _poison(self, form: Form) -> None:
        """A definition with a mistake still has its name, so that its uses are no further mistakes."""
        if not isinstance(form, List) or len(form.items) < 2:
            return
        head, target = form.items[:2]
        if isinstance(target, List) and target.items:
            target = target.items[0]
        if not isinstance(head, Symbol) or not isinstance(target, Symbol):
            return
        if head.name == "def" or (head.name == "defmodel" and target.name not in self.forms["defmodel"]):
            self.namespace.names.setdefault(target.name, Global(target.name, target.span, None, POISON))

    def _define(self, form: List) -> None:
        items = form.items
        target = items[1] if len(items) > 1 else None
        if isinstance(target, List) and target.bracket == "(" and target.items and isinstance(target.items[0], Symbol):
            name, span = target.items[0].name, target.items[0].span
            self._declare(Global(name, span, lambda: None, form=form))
            parameters, body = target.items[1:], items[2:]
            known = self.namespace.names[name]

            def make() -> Value:
                return self.compiler.function(name, parameters, body, form.span, frozenset()).close({})

            known.evaluate = make
            self.settings.others.add(name)
            return
        if not isinstance(target, Symbol) or len(items) != 3:
            raise ParenError("E-FORM-001", f"the form is {FORMS['def']}", form.span)
        name, value = target.name, items[2]
        known = Global(name, target.span, None, form=form)
        if is_literal(value):
            self._declare(known)
            self.settings.values[name] = Setting(name, literal_value(value), value.span)
        else:
            known.evaluate = lambda: self._value(name, value)
            self._declare(known)
            self.settings.others.add(name)

    def _value(self, name: str, form: Form) -> Value:
        value = self.compiler.compile(form, frozenset())({})
        if isinstance(value, Tensor):
            raise ParenError(
                "E-MODEL-002",
                f"the def {name} is a tensor, which belongs to one graph",
                form.span,
                fix=f"make it a function: (def ({name}) ...)",
            )
        return value

    def _declare(self, known: Global) -> None:
        check_name(known.name, known.span)
        before = self.namespace.names.get(known.name)
        if before is not None:
            raise ParenError(
                "E-NAME-002",
                f"{known.name} is defined twice",
                known.span,
                notes=[Note("the first definition", before.span)],
            )
        self.namespace.names[known.name] = known

    def add_model(self, known: Global) -> None:
        """Declares the name of a model. Raises E-NAME-002 or E-NAME-003."""
        self._declare(known)

    def set_literals(self) -> None:
        """Gives the names of literal defs the values that are in force."""
        for name, setting in self.settings.values.items():
            self.namespace.names[name].value = setting.value

    def force(self) -> None:
        """Evaluates every definition, so that mistakes in unused ones are found too."""
        for known in list(self.namespace.names.values()):
            if known.evaluate is not None:
                with self.session.collect():
                    value_of(known, known.span)

    def named(self, head: str) -> Mapping[str, List]:
        return self.forms[head]

"""What an analysis function is called with, and whether its signature takes that, as it is written or as it is."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Sequence
from dataclasses import dataclass

from paren.ir.program import Analysis
from paren.lang.analysis import GIVEN, NEEDED, python_name
from paren.text.errors import Note, ParenError, did_you_mean
from paren.text.source import Span

_OF_PRODUCTS, _OF_PLOTS_OVER_JOBS = "writer", "jobs"
_STARS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class _Written:
    """A default value as it is written."""

    text: str

    def __repr__(self) -> str:
        return self.text


def written_signature(node: ast.FunctionDef) -> inspect.Signature:
    """The signature of a function that is not run."""
    found, arguments = [], node.args
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    for number, each in enumerate(positional):
        only = number < len(arguments.posonlyargs)
        kind = inspect.Parameter.POSITIONAL_ONLY if only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        found.append(_parameter(each, kind, arguments.defaults[number - without] if number >= without else None))
    if arguments.vararg is not None:
        found.append(_parameter(arguments.vararg, inspect.Parameter.VAR_POSITIONAL, None))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(_parameter(each, inspect.Parameter.KEYWORD_ONLY, default))
    if arguments.kwarg is not None:
        found.append(_parameter(arguments.kwarg, inspect.Parameter.VAR_KEYWORD, None))
    return inspect.Signature(found)


def _parameter(argument: ast.arg, kind: inspect._ParameterKind, default: ast.expr | None) -> inspect.Parameter:
    value = inspect.Parameter.empty if default is None else _Written(ast.unparse(default))
    return inspect.Parameter(argument.arg, kind, default=value)


def names_given(analysis: Analysis, signature: inspect.Signature | None) -> list[str]:
    """The names that the function is called with: the form's keywords, its needs, and of what paren gives besides, what
    the signature has parameters for. A seed in the form is for `rng` where the function takes only that."""
    taken = signature.parameters if signature is not None else {}
    names = [python_name(key) for key, _ in analysis.keywords if key != "seed" or "seed" in taken or "rng" not in taken]
    names += [python_name(need) for need in analysis.needs]
    offered = ["seed", *(name for name in GIVEN if _is_offered(name, analysis))]
    return names + [name for name in offered if name in taken and name not in names]


def _is_offered(name: str, analysis: Analysis) -> bool:
    if name == _OF_PRODUCTS:
        return analysis.kind == "product"
    return name != _OF_PLOTS_OVER_JOBS or analysis.over is not None


def names_for_cost(analysis: Analysis, signature: inspect.Signature | None) -> list[str]:
    """The names that the function of `:cost` is called with: the keywords that it takes, and `settings`."""
    taken = signature.parameters if signature is not None else {}
    everything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in taken.values())
    names = [python_name(key) for key, _ in analysis.keywords]
    return [name for name in names if name in taken or everything] + ["settings"] * ("settings" in taken)


def check_call(
    analysis: Analysis, signature: inspect.Signature, names: Sequence[str], function: str, span: Span
) -> None:
    """Raises E-STUDY-006 if the function does not take these keywords, or asks for others."""
    try:
        signature.bind(**dict.fromkeys(names))
    except TypeError as error:
        raise ParenError(
            "E-STUDY-006",
            f"{function} cannot be called with what {analysis.name} gives: {error}{_meant(signature, names)}",
            span,
            notes=[Note(f"it is called with {', '.join(names) or 'nothing'}; its signature is {signature}")],
            fix=_fix(analysis, signature, names),
        ) from None


def _meant(signature: inspect.Signature, names: Sequence[str]) -> str:
    """The parameter that a name which the function does not take may stand for."""
    free = [name for name in signature.parameters if name not in names]
    suggestions = [did_you_mean(name, free) for name in names if name not in signature.parameters]
    return next(filter(None, suggestions), "")


def _fix(analysis: Analysis, signature: inspect.Signature, names: Sequence[str]) -> str:
    taken = signature.parameters
    absent = [
        name
        for name, each in taken.items()
        if name not in names and each.default is inspect.Parameter.empty and each.kind not in _STARS
    ]
    if any(name in NEEDED for name in absent):
        return f"name it among the needs: :needs ({' '.join([*analysis.needs, *(n for n in absent if n in NEEDED)])})"
    if _OF_PRODUCTS in absent:
        return "only a defproduct has a writer"
    if _OF_PLOTS_OVER_JOBS in absent:
        return "only a defplot with :over has jobs"
    if absent:
        return "give it as a keyword of the form, or name the product that it is under :needs"
    return "give the function a parameter for each keyword and each need"

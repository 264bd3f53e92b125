"""What analyses will cost, foretold by the user's functions, and the limits that refuse a study beforehand."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from paren.experiment.analysis.values import kind_of
from paren.experiment.python.functions import Functions
from paren.ir.program import Analysis, Limit, Program, Value
from paren.lang.analysis import python_name
from paren.lang.value import show
from paren.text.errors import Note, ParenError, Report, did_you_mean


class _Watched(Mapping[str, Value]):
    """The settings, with a record of which were read."""

    def __init__(self, program: Program) -> None:
        self._values = {setting.name: setting.value for setting in program.settings}
        self.read: frozenset[str] = frozenset()

    def __getitem__(self, name: str) -> Value:
        self.read |= {name}
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True)
class _Foretold:
    """The costs of an analysis, by name, and the settings that they follow from."""

    analysis: Analysis
    costs: Mapping[str, float]
    settings: frozenset[str]


def costs(program: Program, functions: Functions) -> dict[str, dict[str, float]]:
    """What the analyses of a job that have a `:cost` will cost: analysis -> cost -> number. Their files are imported.

    Raises E-STUDY-006 to E-STUDY-008 for a function that cannot foretell it.
    """
    return {each.analysis.name: dict(each.costs) for each in _foretell_all(program, functions)}


def check_limits(program: Program, functions: Functions) -> frozenset[str]:
    """The names of the costs of a job, if it has limits. Raises E-STUDY-009 for every limit that its analyses exceed
    together, naming the settings to reduce."""
    foretold = _foretell_all(program, functions) if program.study.limits else []
    report = Report()
    for limit in program.study.limits:
        parts = [each for each in foretold if each.costs.get(limit.name)]
        total = math.fsum(each.costs[limit.name] for each in parts)
        if total > limit.most:
            report.errors.append(_over(program, limit, total, parts))
    report.finish()
    return frozenset().union(*(each.costs for each in foretold))


def check_limited(program: Program, foretold: Collection[str]) -> None:
    """Raises E-STUDY-010 for every limit of a study whose cost is not among those that are foretold for its jobs."""
    report = Report()
    for limit in program.study.limits:
        if limit.name not in foretold:
            fix = f"the costs that are foretold: {', '.join(sorted(foretold))}" if foretold else "add a :cost to a form"
            message = f"no function under :cost foretells {limit.name}{did_you_mean(limit.name, foretold)}"
            report.errors.append(ParenError("E-STUDY-010", message, limit.span, fix=fix))
    report.finish()


def _over(program: Program, limit: Limit, total: float, parts: list[_Foretold]) -> ParenError:
    behind = frozenset().union(*(each.settings for each in parts))
    settings = [f"{each.name} (now {show(each.value)})" for each in program.settings if each.name in behind]
    what = " or ".join([", ".join(settings[:-1]), settings[-1]]) if len(settings) > 1 else "".join(settings)
    parts = sorted(parts, key=lambda each: -each.costs[limit.name])
    return ParenError(
        "E-STUDY-009",
        f"the analysis of one model costs {total:.6g} {limit.name}, the limit is {limit.most:.6g}",
        limit.span,
        notes=[
            Note(f"{each.analysis.name}: {each.costs[limit.name]:.6g} {limit.name}", each.analysis.span)
            for each in parts
        ],
        fix=f"reduce {what or 'what the functions compute'}, or raise the limit",
    )


def _foretell_all(program: Program, functions: Functions) -> list[_Foretold]:
    return [_foretell(each, program, functions) for each in program.study.analyses if each.cost is not None]


def _foretell(analysis: Analysis, program: Program, functions: Functions) -> _Foretold:
    settings = _Watched(program)
    keywords = {python_name(key): value for key, value in analysis.keywords}
    result = functions.call_cost(analysis, {**keywords, "settings": settings})
    origin = f"{python_name(analysis.cost or '')} in {analysis.file}"
    fix = 'return a dict from names of costs to numbers: {"evaluations": 2e8, "bytes": 1.6e6}'
    if not isinstance(result, Mapping):
        raise ParenError("E-STUDY-008", f"{origin} returns {kind_of(result)}", analysis.spans["cost"], fix=fix)
    found: dict[str, float] = {}
    for name, cost in result.items():
        number = _number(cost)
        if not isinstance(name, str) or number is None:
            raise ParenError(
                "E-STUDY-008",
                f"the cost {name} from {origin} is {cost!r}, a number of at least 0 is needed",
                analysis.spans["cost"],
                fix=fix,
            )
        found[name] = number
    return _Foretold(analysis, found, settings.read.union(analysis.settings))


def _number(cost: object) -> float | None:
    """A finite number that is not negative."""
    try:
        number = float(cost)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf and not isinstance(cost, str) else None

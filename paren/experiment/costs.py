"""What analyses will cost, foretold by the user's functions, and the limits that refuse a study beforehand."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from paren.experiment.functions import Functions
from paren.experiment.values import kind_of
from paren.ir.program import Analysis, Limit, Program, Value
from paren.lang.analysis import python_name
from paren.lang.value import show
from paren.text.errors import Note, ParenError, Report

Costs = Mapping[str, float]


class _Watched(Mapping[str, Value]):
    """The settings, with a record of which were read."""

    def __init__(self, program: Program) -> None:
        self._values = {setting.name: setting.value for setting in program.settings}
        self.read: set[str] = set()

    def __getitem__(self, name: str) -> Value:
        self.read.add(name)
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def costs(program: Program, functions: Functions) -> dict[str, Costs]:
    """What the analyses of a job that have a `:cost` will cost: analysis -> cost -> number. Their files are imported.

    Raises E-STUDY-006 to E-STUDY-008 for a function that cannot foretell it.
    """
    return {
        analysis.name: _foretell(analysis, functions, _Watched(program))
        for analysis in program.study.analyses
        if analysis.cost is not None
    }


def check_limits(program: Program, functions: Functions) -> None:
    """Raises E-STUDY-009 for every limit that the analyses of a job exceed together, naming the settings to reduce."""
    study = program.study
    watched = {analysis.name: _Watched(program) for analysis in study.analyses if analysis.cost is not None}
    if not study.limits:
        return
    found = {
        analysis: _foretell(analysis, functions, watched[analysis.name])
        for analysis in study.analyses
        if analysis.cost is not None
    }
    report = Report()
    for limit in study.limits:
        parts = {analysis: each[limit.name] for analysis, each in found.items() if each.get(limit.name)}
        total = math.fsum(parts.values())
        if total > limit.most:
            read = set().union(*(watched[analysis.name].read for analysis in parts))
            report.errors.append(_over(program, limit, total, parts, read))
    report.finish()


def _over(program: Program, limit: Limit, total: float, parts: Mapping[Analysis, float], read: set[str]) -> ParenError:
    behind = read.union(*(analysis.settings for analysis in parts))
    settings = [f"{each.name} (now {show(each.value)})" for each in program.settings if each.name in behind]
    what = " or ".join([", ".join(settings[:-1]), settings[-1]]) if len(settings) > 1 else "".join(settings)
    largest = sorted(parts.items(), key=lambda pair: -pair[1])
    return ParenError(
        "E-STUDY-009",
        f"the analysis of one model costs {total:.6g} {limit.name}, the limit is {limit.most:.6g}",
        limit.span,
        notes=[Note(f"{analysis.name}: {cost:.6g} {limit.name}", analysis.span) for analysis, cost in largest],
        fix=f"reduce {what or 'what the functions compute'}, or raise the limit",
    )


def _foretell(analysis: Analysis, functions: Functions, settings: _Watched) -> Costs:
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
    return found


def _number(cost: object) -> float | None:
    """A finite number that is not negative."""
    try:
        number = float(cost)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):
        return None
    return number if 0 <= number < math.inf and not isinstance(cost, str) else None

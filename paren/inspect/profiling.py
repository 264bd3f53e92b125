"""A run with `--profile`: what is timed, and what is said and written of it at the end."""

from __future__ import annotations

from pathlib import Path

from paren.engine import CompiledEngine
from paren.forecast.plans import Plans
from paren.inspect.explain import Explanation
from paren.inspect.profile_table import describe_regions, draw_profile, profile_rows
from paren.text.json import Json
from paren.train.files import Files
from paren.train.profile import Profile


class Profiling:
    """The profile of one start of a run, and the report that its regions belong to, once there is one."""

    def __init__(self) -> None:
        self.profile = Profile()
        self._report: Explanation | None = None
        self._names: dict[str, str] = {}

    def attach(self, engine: CompiledEngine, report: Explanation) -> None:
        """Begins to time an engine, whose plans the report describes."""
        self._report = report
        self._names = _names(engine.plans)
        self.profile.describe = describe_regions(report, self._names)
        engine.watch(self.profile)

    def finish(self, out: Path) -> list[str]:
        """Writes `report/trace.json`, which also holds the rows of the table as `regions`; gives the table's lines.
        Nothing where no engine was made."""
        if self._report is None:
            return []
        rows = profile_rows(self._report, self._names, self.profile)
        regions: list[Json] = [row.data for row in rows]
        self.profile.write(out, Files(), regions=regions)
        return draw_profile(self._report, rows, self.profile)


def _names(plans: Plans) -> dict[str, str]:
    """Every graph -> the first one with its plan, by which the report knows it."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(plan), name) for name, plan in plans.all.items()}

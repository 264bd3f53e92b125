"""paren: neural networks described in one text file, planned before the first step, the same on every device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

import paren.own_files  # noqa: F401 notes when this process began to load paren's files

if TYPE_CHECKING:
    from paren.api import Experiment, load
    from paren.experiment.analysis.over_jobs import JobView
    from paren.experiment.analysis.products import Product
    from paren.experiment.report.page import report
    from paren.experiment.restored_job import RestoredJob, restore
    from paren.experiment.results.table import Results, results
    from paren.experiment.store.artifact import Writer
    from paren.restored import RestoredModel, sample
    from paren.run import Run
    from paren.text.errors import ParenError

__all__ = [
    "Experiment",
    "JobView",
    "ParenError",
    "Product",
    "RestoredJob",
    "RestoredModel",
    "Results",
    "Run",
    "Writer",
    "load",
    "report",
    "restore",
    "results",
    "sample",
]

# Where each public name lives: loaded when it is first asked for, so that `paren format` and `paren help` start without
# the compiler.
_PLACES = {
    "Experiment": "paren.api",
    "JobView": "paren.experiment.analysis.over_jobs",
    "ParenError": "paren.text.errors",
    "Product": "paren.experiment.analysis.products",
    "RestoredJob": "paren.experiment.restored_job",
    "RestoredModel": "paren.restored",
    "Results": "paren.experiment.results.table",
    "Run": "paren.run",
    "Writer": "paren.experiment.store.artifact",
    "load": "paren.api",
    "report": "paren.experiment.report.page",
    "restore": "paren.experiment.restored_job",
    "results": "paren.experiment.results.table",
    "sample": "paren.restored",
}


def __getattr__(name: str) -> object:
    """The public name, from its module. Raises AttributeError for any other."""
    if name not in _PLACES:
        raise AttributeError(f"module 'paren' has no attribute {name!r}")
    value: object = getattr(import_module(_PLACES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__

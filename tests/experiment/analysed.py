"""A small study on disk whose jobs are taken for trained, so that its analysis can be tested without training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from paren.experiment.analysis.analyze import Subject, analyze_job, missing, plan_analysis
from paren.experiment.python.functions import Functions
from paren.experiment.store.artifact import Artifact
from paren.experiment.store.store import Store
from paren.ir.program import Program, Value
from paren.lang.elaborate import elaborate
from paren.restored import RestoredModel
from paren.text.errors import ParenError

HEAD = """
(def cases 4) (def rate 0.5)
(defdata d (python "data.py" make :fields ((x float32 [4]))))
(defmodel m ((x float32 [4])) (linear x 1))
(defrun :data d :loss (sum (m x)) :optimizer (adam :rate rate) :batch 2 :steps 1 :seed 7)
"""


@dataclass
class Study:
    """The file `study.paren` of these analyses beside `f.py`; `told` are the names of what was computed, in order, and
    `brought` whether the model and the data were asked for."""

    folder: Path
    told: list[str] = field(default_factory=list)
    brought: list[str] = field(default_factory=list)

    def write(self, analyses: str, python: str) -> None:
        (self.folder / "study.paren").write_text(HEAD + analyses)
        (self.folder / "f.py").write_text("import numpy as np\n" + python)

    def program(self, **settings: object) -> Program:
        overrides = [f"{name}={value}" for name, value in settings.items()]
        return elaborate(self.folder / "study.paren", overrides=overrides)

    @property
    def functions(self) -> Functions:
        """As a new launch sees them."""
        return Functions.of(self.folder)

    @property
    def store(self) -> Store:
        return Store(self.folder / "out")

    def job(self, name: str = "all") -> Path:
        return self.folder / "out" / "runs" / "baseline" / name

    def subject(
        self,
        name: str = "all",
        member: Mapping[str, Value] | None = None,
        model_key: str = "a" * 24,
        **settings: object,
    ) -> Subject:
        def model() -> RestoredModel:
            self.brought.append("model")
            return cast(RestoredModel, lambda x: x.sum(axis=1, keepdims=True))

        def data() -> dict[str, dict[str, np.ndarray]]:
            self.brought.append("data")
            return {"train": {"x": np.ones((3, 4), np.float32)}}

        program = self.program(**settings)
        history = {"step": np.array([1.0]), "loss": np.array([0.5])}
        return Subject(program, self.job(name), {}, member or {}, model_key, "d" * 24, model, data, lambda: history)

    def analyze(self, **settings: object) -> dict[str, Artifact]:
        """Analyses a job as a new launch would; `told` begins anew."""
        self.told, self.brought = [], []
        return analyze_job(self.subject(**settings), self.functions, self.store, self.told.append)

    def missing(self, **settings: object) -> list[str]:
        planned = plan_analysis(self.program(**settings), self.functions, "a" * 24, "d" * 24)
        return missing(planned, self.job(), self.store)


def refusal(act: Callable[[], object]) -> list[str]:
    """The codes and messages of the mistakes that an act raises."""
    try:
        act()
    except ParenError as error:
        return [f"{each.code}: {each.message}" for each in error.errors]
    return []

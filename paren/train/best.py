"""The parameters of the best evaluation, under `best/`: tensor files, and a manifest that names the one in force."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from paren.ir.program import Best
from paren.runtime.array import AnyArray
from paren.text.errors import ParenError
from paren.train.files import TEMPORARY, Files, temporary_sibling, write_atomically
from paren.train.manifest import FILE
from paren.train.state import BestRecord, LoopState
from paren.train.tensor_file import write_tensors

KEPT_ROLES = ("parameter", "average")


@dataclass
class BestStore:
    """A file is deleted only when neither the state nor a checkpoint that stands refers to it, so that a resume from
    any checkpoint finds the best of its own past."""

    folder: Path
    files: Files = field(default_factory=Files)

    def save(
        self, slots: Mapping[str, AnyArray], roles: Mapping[str, str], step: int, metric: str, value: float
    ) -> BestRecord:
        """Copies parameters and averages. Raises E-CKPT-008 if the disk refuses; the best before is then untouched."""
        path = self.folder / f"parameters-{step:06d}.safetensors"
        part = {name: slots[name] for name in slots if roles[name] in KEPT_ROLES}
        metadata = {"format": "paren", "step": str(step), "metric": metric, "value": repr(value)}
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = temporary_sibling(path)
            try:
                written = write_tensors(self.files, temporary, part, metadata)
                self.files.rename(temporary, path)
            except OSError:
                temporary.unlink(missing_ok=True)
                raise
            record = BestRecord(step, metric, value, path.name, written.size, written.digest)
            self.point(record)
        except OSError as error:
            raise self._refused(path, error) from error
        return record

    def point(self, record: BestRecord) -> None:
        """Makes the manifest name a record. Raises OSError."""
        content = json.dumps(asdict(record), indent=1).encode() + b"\n"
        write_atomically(self.files, self.folder / FILE, content)

    def follow(self, record: BestRecord | None, notice: Callable[[str], None]) -> None:
        """Goes back to the best of a checkpoint that training resumes from. Raises E-CKPT-008."""
        if not self.folder.is_dir():
            return
        try:
            for left in self.folder.glob(f"{TEMPORARY}*"):
                left.unlink()
            if record is None:
                (self.folder / FILE).unlink(missing_ok=True)
            elif (self.folder / record.file).is_file():
                self.point(record)
            else:
                notice(f"the best parameters of step {record.step} are gone; the next better ones will be kept")
        except OSError as error:
            raise self._refused(self.folder / FILE, error) from error

    def retire(self, needed: Collection[str]) -> None:
        """Deletes the files that are not `needed`. Raises E-CKPT-008."""
        for path in self.folder.glob("parameters-*.safetensors"):
            if path.name not in needed:
                try:
                    path.unlink()
                except OSError as error:
                    raise self._refused(path, error) from error

    @staticmethod
    def _refused(path: Path, error: OSError) -> ParenError:
        return ParenError(
            "E-CKPT-008",
            f"the best parameters {path} could not be written ({(error.strerror or str(error)).lower()})",
            fix="make room or make the folder writable, then continue with --resume latest",
        )


def is_better(value: float, than: float | None, mode: str) -> bool:
    """Whether an evaluation improves on the best before it. A value that is not a number never does."""
    if value != value:
        return False
    if than is None:
        return True
    return value < than if mode == "min" else value > than


def count_early(state: LoopState, rule: Best, value: float) -> None:
    """Notes an evaluation for early stopping: `patience` evaluations in a row without a better value end the run."""
    if is_better(value, state.early_value, rule.mode):
        state.early_value, state.early_misses = value, 0
    else:
        state.early_misses += 1
    state.stopped_early = state.early_misses >= (rule.patience or 1)

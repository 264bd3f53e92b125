"""The parameters of the best evaluation, under `best/`: tensor files, and a manifest that names the one in force."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass

from paren.ir.program import Best
from paren.runtime.array import AnyArray
from paren.text.errors import ParenError, system_reason
from paren.train.manifest import FILE
from paren.train.places.place import Place
from paren.train.state import BestRecord, LoopState
from paren.train.tensor_file import write_tensors

KEPT_ROLES = ("parameter", "average")


@dataclass
class BestStore:
    """A file is deleted only when neither the state nor a checkpoint that stands refers to it, so that a resume from
    any checkpoint finds the best of its own past."""

    folder: Place

    def save(
        self, slots: Mapping[str, AnyArray], roles: Mapping[str, str], step: int, metric: str, value: float
    ) -> BestRecord:
        """Copies parameters and averages. Raises E-CKPT-008 if the disk refuses; the best before is then untouched."""
        name = f"parameters-{step:06d}.safetensors"
        part = {slot: slots[slot] for slot in slots if roles[slot] in KEPT_ROLES}
        metadata = {"format": "paren", "step": str(step), "metric": metric, "value": repr(value)}
        try:
            with self.folder.create(name, sum(array.nbytes for array in part.values())) as sink:
                written = write_tensors(sink, part, metadata)
            record = BestRecord(step, metric, value, name, written.size, written.digest)
            self.point(record)
        except OSError as error:
            raise self._refused(name, error) from error
        return record

    def point(self, record: BestRecord) -> None:
        """Makes the manifest name a record. Raises OSError."""
        self.folder.write(FILE, json.dumps(asdict(record), indent=1).encode() + b"\n")

    def follow(self, record: BestRecord | None, notice: Callable[[str], None]) -> None:
        """Goes back to the best of a checkpoint that training resumes from. Raises E-CKPT-008."""
        try:
            self.folder.clean()
            if record is None:
                self.folder.delete(FILE)
            elif record.file in self.folder.files():
                self.point(record)
            else:
                notice(f"the best parameters of step {record.step} are gone; the next better ones will be kept")
        except OSError as error:
            raise self._refused(FILE, error) from error

    def retire(self, needed: Collection[str]) -> None:
        """Deletes the files that are not `needed`. Raises E-CKPT-008."""
        for name in self.folder.files():
            if name.startswith("parameters-") and name not in needed:
                try:
                    self.folder.delete(name)
                except OSError as error:
                    raise self._refused(name, error) from error

    def _refused(self, name: str, error: OSError) -> ParenError:
        return ParenError(
            "E-CKPT-008",
            f"the best parameters {self.folder.child(name)} could not be written ({system_reason(error)})",
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

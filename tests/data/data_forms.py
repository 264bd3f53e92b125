"""Data forms as `paren.lang` makes them, built by hand for the tests of data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import pytest

from paren.data.dataset import Dataset
from paren.data.open import open_data
from paren.ir.program import Bound, DataForm, Field, RunForm, Value
from paren.ir.types import DType, TensorType
from paren.text.errors import ParenError
from paren.text.source import Source, Span

SOURCE = Source("test.paren", "(defdata d ...)\n")
SPAN = Span(SOURCE, 0, 8)


def field(name: str, dtype: str, *shape: int) -> Field:
    return Field(name, TensorType(DType(dtype), shape), SPAN)


def data_form(kind: str, *arguments: Value, fields: Iterable[Field] = (), **options: Value) -> DataForm:
    length = options.get("length", 1)
    assert isinstance(length, int)
    declared = tuple(fields) or (field("tokens", "int32", length), field("targets", "int32", length))
    return DataForm("d", kind, arguments, options, {}, SPAN, declared)


def bound(name: str, low: int, high: int, ignore: int | None = None) -> Bound:
    return Bound(name, low, high, ignore, SPAN)


def run_form(batch: int = 2, microbatches: int = 1, evaluate_every: int | None = None) -> RunForm:
    return RunForm(
        batch=batch,
        microbatches=microbatches,
        steps=10,
        epochs=None,
        seed=1,
        precision="off",
        clip=None,
        evaluate_every=evaluate_every,
        checkpoint_every=None,
        log_every=1,
        keep_checkpoints=1,
        keep_best=None,
        stop_early=None,
        on_nonfinite="stop",
        skip_limit=1,
        average=None,
        start_from=None,
        start_names=(),
        reproducible_over=None,
        spans={},
    )


class Opener:
    """Opens forms with paths relative to a folder, and a cache beside it."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self.cache = folder / "cache"
        self.root.mkdir()

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    def __call__(self, form: DataForm, seed: int = 0) -> Dataset:
        return open_data(form, root=self.root, cache=self.cache, seed=seed)


def read_all(dataset: Dataset, split: str = "train") -> Mapping[str, np.ndarray]:
    part = dataset.splits[split]
    return part.read(np.arange(part.count, dtype=np.int64))


def refusal(work: Callable[[], object]) -> tuple[str, str]:
    """Code and message of the one mistake that `work` is refused for."""
    with pytest.raises(ParenError) as caught:
        work()
    (error,) = caught.value.errors
    return error.code, error.message

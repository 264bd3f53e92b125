"""What must hold of the data before the first step: enough samples, values in range, nothing that is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from paren.data.dataset import Chunk, Dataset, Split
from paren.data.digest import digest_of, reporting_cache_errors, write_atomically
from paren.data.splits import TRAIN, VALIDATION
from paren.ir.program import Bound, Field, RunForm
from paren.text.errors import Note, ParenError, Report
from paren.text.size import count_of
from paren.text.source import Span


def check_data(dataset: Dataset, bounds: Sequence[Bound], run: RunForm, *, cache: Path | None = None) -> None:
    """Raises every mistake in the data that a run would meet, before its first step.

    E-DATA-018: the split `train` has fewer samples than a batch. E-DATA-019: a split that the run needs is not there
    (`train`; `validation`, if the run evaluates). E-DATA-016: a value outside a bound of the program, or outside its
    field's dtype. E-DATA-017: a value that is not finite. All splits are scanned, in bounded pieces; with `cache`, what
    passed is remembered by the digest of the split's contents, so it is scanned once.
    """
    report = Report()
    report.errors.extend(_check_sizes(dataset, run))
    for split in dataset.splits.values():
        report.errors.extend(_check_values(split, dataset.fields, bounds, cache))
    report.finish()


def _check_sizes(dataset: Dataset, run: RunForm) -> Iterator[ParenError]:
    listed = ", ".join(dataset.splits)
    if run.evaluate_every is not None and VALIDATION not in dataset.splits:
        yield ParenError(
            "E-DATA-019",
            f"the data have no split {VALIDATION}, which :evaluate-every reads: they have {listed}",
            run.spans.get("evaluate-every"),
            fix="give the data form :split ((train 0.95) (validation 0.05)), or remove :evaluate-every",
        )
    if TRAIN not in dataset.splits:
        yield ParenError(
            "E-DATA-019",
            f"the data have no split {TRAIN}, which training reads: they have {listed}",
            run.spans.get("data"),
        )
    elif (count := dataset.splits[TRAIN].count) < run.batch:
        yield ParenError(
            "E-DATA-018",
            f"split {TRAIN} has {count_of(count, 'sample')}, fewer than one batch of {run.batch}",
            run.spans.get("batch"),
            fix=f"set :batch to {count} or less, or supply more data",
        )


def _check_values(
    split: Split, fields: Sequence[Field], bounds: Sequence[Bound], cache: Path | None
) -> Iterator[ParenError]:
    """One error for each place with a wrong value; a field that breaks two bounds there has a note for the second."""
    found: dict[str, list[tuple[str, str, Span]]] = {}
    for field in fields:
        own = [bound for bound in bounds if bound.field == field.name]
        rules = [(bound.low, bound.high, bound.ignore) for bound in own]
        record = None
        if cache is not None:
            record = cache / "checks" / digest_of(split.digest, field.name, str(field.type), rules)
            with reporting_cache_errors(cache):
                known = record.exists()
            if known:
                continue
        mistakes = list(_scan(split, field, own))
        for place, code, message, span in mistakes:
            found.setdefault(place, []).append((code, message, span))
        if record is not None and not mistakes:
            with reporting_cache_errors(record.parent.parent):
                write_atomically(record, b"")
    for (code, message, span), *further in found.values():
        notes = [Note(f"also, {other}", at) for _, other, at in further]
        yield ParenError(code, message, span, notes=notes, fix=_fix(code))


def _fix(code: str) -> str:
    if code == "E-DATA-017":
        return "correct the data: one such value makes the loss and every parameter not finite"
    return "correct the data, or change what the program allows"


def _scan(split: Split, field: Field, bounds: Sequence[Bound]) -> Iterator[tuple[str, str, str, Span]]:
    """(place, code, message, span) of the first wrong value for each rule that is broken."""
    dtype = field.type.dtype
    if dtype.is_float:
        yield from _scan_finite(split, field)
        return
    open_bounds = list(bounds)
    if dtype.is_integer:
        limits = np.iinfo(dtype.value)
        open_bounds.append(Bound(field.name, int(limits.min), int(limits.max) + 1, None, field.span))
    for chunk in split.chunks(field.name):
        for bound in list(open_bounds):
            if (place := _first_outside(chunk, bound)) is None:
                continue
            index, value = place
            where = _place(chunk, index)
            allowed = f"{bound.low} .. {bound.high - 1}"
            if bound.ignore is not None:
                allowed += f", or {bound.ignore}"
            yield where, "E-DATA-016", f"{where} is {value}, but {field.name} must be in {allowed}", bound.span
            open_bounds.remove(bound)


def _first_outside(chunk: Chunk, bound: Bound) -> tuple[int, int] | None:
    values = chunk.values
    if not values.size or (bound.low <= int(values.min()) and int(values.max()) < bound.high):
        return None
    outside = np.less(values, bound.low) | np.greater_equal(values, bound.high)
    if bound.ignore is not None:
        outside &= np.not_equal(values, bound.ignore)
    index = int(np.argmax(outside))
    return (index, int(values.flat[index])) if outside.flat[index] else None


def _scan_finite(split: Split, field: Field) -> Iterator[tuple[str, str, str, Span]]:
    for chunk in split.chunks(field.name):
        with np.errstate(over="ignore"):  # a value that overflows the field's dtype is found as infinite
            finite = np.isfinite(chunk.values.astype(field.type.dtype.numpy))
        if not finite.all():
            index = int(np.argmin(finite))
            where, value = _place(chunk, index), chunk.values.flat[index]
            what = f"not finite as {field.type.dtype}" if np.isfinite(value) else "not finite"
            message = f"{where} is {value:g}, which is {what}: {field.name} must be finite"
            yield where, "E-DATA-017", message, field.span
            return


def _place(chunk: Chunk, index: int) -> str:
    """Words for entry `index` of a chunk, counted row by row."""
    row, *inner = (int(i) for i in np.unravel_index(index, chunk.values.shape))
    return chunk.place(row) + (f" at [{' '.join(map(str, inner))}]" if inner else "")

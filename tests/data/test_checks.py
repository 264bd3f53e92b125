"""What is checked before the first step: ids and labels, non-finite values, and enough samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from data_forms import Opener, bound, data_form, field, refusal, run_form
from hypothesis import given, settings
from hypothesis import strategies as st

import paren.data.checks as checks
import paren.data.fields as fields_module
import paren.data.stream as stream_module
from paren.data.checks import check_data
from paren.data.dataset import Dataset
from paren.data.fields import ArraySplit, Column
from paren.ir.program import Bound, Field
from paren.text.errors import ParenError, ParenErrors


def arrays(split: str = "train", **columns: np.ndarray) -> ArraySplit:
    kinds = {"x": field("x", "float32"), "y": field("y", "int32"), "m": field("m", "int32", 2, 2)}
    count = len(next(iter(columns.values())))
    held = {name: Column(values, f"array {name} in d.npz", str(values.tolist())) for name, values in columns.items()}
    digest = "".join(column.digest for column in held.values())
    return ArraySplit(split, tuple(kinds[name] for name in columns), held, 0, count, count, False, digest)


def dataset(*splits: ArraySplit, fields: tuple[Field, ...] = ()) -> Dataset:
    return Dataset(fields or splits[0].fields, {split.name: split for split in splits}, None, None, "", ())


def mistakes(data: Dataset, *bounds: Bound, batch: int = 1, evaluate_every: int | None = None) -> list[tuple[str, str]]:
    try:
        check_data(data, bounds, run_form(batch, evaluate_every=evaluate_every))
    except ParenError as error:
        return [(one.code, one.message) for one in error.errors]
    return []


LABEL_BOUND = bound("y", 0, 10)


@pytest.mark.parametrize("value", [10, -1, -100, 2**40])
def test_a_label_out_of_range_is_named(value: int) -> None:
    """Case D08, also for the value that other tools ignore without being told to."""
    labels = np.array([3, 9, value, 0], np.int64)
    (first, *others) = mistakes(dataset(arrays(y=labels)), LABEL_BOUND)
    assert first == ("E-DATA-016", f"sample 2 of array y in d.npz is {value}, but y must be in 0 .. 9")
    assert others == []


def test_labels_in_range_pass() -> None:
    assert mistakes(dataset(arrays(y=np.arange(10))), LABEL_BOUND) == []


def test_a_declared_value_is_ignored() -> None:
    labels = np.array([-100, 3, -100])
    assert mistakes(dataset(arrays(y=labels)), bound("y", 0, 10, -100)) == []
    labels[0] = -1
    assert mistakes(dataset(arrays(y=labels)), bound("y", 0, 10, -100)) == [
        ("E-DATA-016", "sample 0 of array y in d.npz is -1, but y must be in 0 .. 9, or -100")
    ]


def test_values_must_fit_the_declared_type_without_any_bound() -> None:
    assert mistakes(dataset(arrays(y=np.array([0, 2**31])))) == [
        ("E-DATA-016", "sample 1 of array y in d.npz is 2147483648, but y must be in -2147483648 .. 2147483647")
    ]
    assert mistakes(dataset(arrays(y=np.array([0, 2**63], np.uint64)))) == [
        (
            "E-DATA-016",
            "sample 1 of array y in d.npz is 9223372036854775808, but y must be in -2147483648 .. 2147483647",
        )
    ]


def test_the_place_within_a_sample_is_named() -> None:
    values = np.zeros((3, 2, 2), np.int64)
    values[1, 1, 0] = 7
    assert mistakes(dataset(arrays(m=values)), bound("m", 0, 7)) == [
        ("E-DATA-016", "sample 1 of array m in d.npz at [1 0] is 7, but m must be in 0 .. 6")
    ]


def test_every_split_and_field_is_scanned() -> None:
    train = arrays("train", x=np.array([1.0, np.nan]), y=np.array([0, 11]))
    validation = arrays("validation", x=np.array([1.0, np.inf]), y=np.array([0, -3]))
    assert mistakes(dataset(train, validation), LABEL_BOUND) == [
        ("E-DATA-017", "sample 1 of array x in d.npz is nan, which is not finite: x must be finite"),
        ("E-DATA-016", "sample 1 of array y in d.npz is 11, but y must be in 0 .. 9"),
        ("E-DATA-017", "sample 1 of array x in d.npz is inf, which is not finite: x must be finite"),
        ("E-DATA-016", "sample 1 of array y in d.npz is -3, but y must be in 0 .. 9"),
    ]


def test_a_value_too_large_for_the_declared_type_is_not_finite() -> None:
    assert mistakes(dataset(arrays(x=np.array([0.0, -1e300])))) == [
        ("E-DATA-017", "sample 1 of array x in d.npz is -1e+300, which is not finite as float32: x must be finite")
    ]


@settings(max_examples=60)
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=12), st.integers(-5, 5), st.integers(-5, 6), st.integers(1, 4))
def test_the_first_wrong_value_is_found_in_pieces_of_any_size(
    values: list[int], low: int, high: int, size: int
) -> None:
    wrong = [i for i, value in enumerate(values) if not low <= value < high and value != 4]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields_module, "CHUNK_VALUES", size)
        found = mistakes(dataset(arrays(y=np.array(values))), bound("y", low, high, 4))
    assert [message.split(" of ")[0] for _, message in found] == [f"sample {i}" for i in wrong[:1]]


def tokens(opened: Opener, values: np.ndarray, **options: object) -> Dataset:
    opened.write("t.bin", values.astype(np.uint16).tobytes())
    return opened(data_form("token-file", "t.bin", dtype="uint16", length=4, **options))  # type: ignore[arg-type]


def test_the_last_token_of_a_file_is_scanned(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case D07: the last token is the size of the vocabulary, and no window of the split holds it."""
    monkeypatch.setattr(stream_module, "CHUNK", 7)
    values = np.arange(100) % 50
    values[-1] = 50
    data = tokens(opened, values)
    with pytest.raises(ParenError) as caught:
        check_data(data, [bound("tokens", 0, 50), bound("targets", 0, 50)], run_form(1))
    (error,) = caught.value.errors
    assert (error.code, error.message) == ("E-DATA-016", "token 99 of t.bin is 50, but tokens must be in 0 .. 49")
    assert [note.message for note in error.notes] == ["also, token 99 of t.bin is 50, but targets must be in 0 .. 49"]


def test_a_wrong_token_in_the_evaluation_split_has_its_place_in_the_file(opened: Opener) -> None:
    values = np.zeros(100)
    values[97] = 60
    data = tokens(opened, values, split=(("train", 0.8), ("validation", 0.2)))
    assert mistakes(data, bound("tokens", 0, 50)) == [
        ("E-DATA-016", "token 97 of t.bin is 60, but tokens must be in 0 .. 49")
    ]


@pytest.mark.parametrize(("samples", "counted"), [(3, "3 samples"), (1, "1 sample")])
def test_fewer_samples_than_a_batch(samples: int, counted: str) -> None:
    """Case D05."""
    assert mistakes(dataset(arrays(y=np.zeros(samples, int))), batch=8) == [
        ("E-DATA-018", f"split train has {counted}, fewer than one batch of 8")
    ]


def test_a_small_evaluation_split_is_padded_but_must_be_there() -> None:
    train, validation = arrays(y=np.zeros(8, int)), arrays("validation", y=np.zeros(1, int))
    assert mistakes(dataset(train, validation), batch=8, evaluate_every=1) == []
    assert mistakes(dataset(train), batch=8) == []
    assert mistakes(dataset(train), batch=8, evaluate_every=1) == [
        ("E-DATA-019", "the data have no split validation, which :evaluate-every reads: they have train")
    ]
    assert [code for code, _ in mistakes(dataset(train), batch=9, evaluate_every=1)] == ["E-DATA-019", "E-DATA-018"]
    assert mistakes(dataset(validation)) == [
        ("E-DATA-019", "the data have no split train, which training reads: they have validation")
    ]


def test_all_mistakes_are_raised_together() -> None:
    with pytest.raises(ParenErrors) as caught:
        check_data(dataset(arrays(y=np.array([99]))), [LABEL_BOUND], run_form(2))
    assert [error.code for error in caught.value.errors] == ["E-DATA-018", "E-DATA-016"]


def test_what_passed_is_scanned_once_and_what_did_not_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scanned: list[tuple[str, str]] = []
    scan = checks._scan
    monkeypatch.setattr(checks, "_scan", lambda s, f, b: scanned.append((s.name, f.name)) or scan(s, f, b))

    def check(values: list[int], high: int) -> None:
        check_data(dataset(arrays(y=np.array(values))), [bound("y", 0, high)], run_form(1), cache=tmp_path)

    check([1, 2], 3)
    check([1, 2], 3)
    assert len(scanned) == 1
    check([1, 2], 4)
    check([2, 1], 3)
    assert len(scanned) == 3
    for _ in range(2):
        assert refusal(lambda: check([1, 2], 2))[0] == "E-DATA-016"
    assert len(scanned) == 5


def test_an_unwritable_cache_is_named(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.write_text("")
    data = dataset(arrays(y=np.array([1])))
    assert refusal(lambda: check_data(data, [], run_form(1), cache=cache)) == (
        "E-DATA-021",
        f"the cache folder {cache} cannot be used: Not a directory",
    )

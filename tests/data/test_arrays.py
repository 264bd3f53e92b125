"""Array files and tables give the declared fields, and what does not fit is named with its place."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from data_forms import Opener, data_form, field, read_all, refusal

from paren.text.errors import ParenError

X = field("x", "float32", 2)
Y = field("y", "int32")
VALUES = np.arange(12, dtype=np.float64).reshape(6, 2)
LABELS = np.arange(6, dtype=np.int64)


def save(opened: Opener, name: str, values: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.save(buffer, values)
    opened.write(name, buffer.getvalue())


def save_archive(opened: Opener, name: str, **arrays: np.ndarray) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    opened.write(name, buffer.getvalue())


def test_numpy_files_are_fields_of_their_name_in_the_declared_types(opened: Opener) -> None:
    save(opened, "x.npy", VALUES)
    save(opened, "y.npy", LABELS.astype(np.uint8))
    read = read_all(opened(data_form("arrays", "x.npy", "y.npy", fields=(X, Y))))
    assert read["x"].dtype == np.float32
    assert read["y"].dtype == np.int32
    assert read["x"].tolist() == VALUES.tolist()
    assert read["y"].tolist() == LABELS.tolist()


def test_numpy_files_are_memory_mapped(opened: Opener) -> None:
    save(opened, "x.npy", VALUES)
    split = opened(data_form("arrays", "x.npy", fields=(X,))).splits["train"]
    assert isinstance(split.columns["x"].values, np.memmap)


def test_archives_csv_and_parquet_give_the_same(opened: Opener) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    save_archive(opened, "data.npz", x=VALUES, y=LABELS, more=LABELS)
    rows = "".join(f"{a},{label},{b}\r\n" for (a, b), label in zip(VALUES, LABELS, strict=True))
    opened.write("data.csv", b"\xef\xbb\xbfleft,y,right\r\n" + rows.encode())
    table = pyarrow.table({"x": VALUES.tolist(), "y": LABELS, "name": ["a"] * 6})
    parquet.write_table(table, opened.root / "data.parquet")
    flat = pyarrow.table({"left": VALUES[:, 0], "right": VALUES[:, 1], "y": LABELS})
    parquet.write_table(flat, opened.root / "flat.parquet")
    columns = (("x", ("left", "right")),)
    forms = [
        data_form("arrays", "data.npz", fields=(X, Y)),
        data_form("arrays", "data.csv", fields=(X, Y), columns=columns),
        data_form("arrays", "data.parquet", fields=(X, Y)),
        data_form("arrays", "flat.parquet", fields=(X, Y), columns=columns),
    ]
    datasets = [opened(form) for form in forms]
    for dataset in datasets:
        read = read_all(dataset)
        assert read["x"].tolist() == VALUES.tolist()
        assert read["y"].tolist() == LABELS.tolist()
    assert len({dataset.identity for dataset in datasets}) == 1


def test_columns_fill_a_field_of_any_shape_of_their_number(opened: Opener) -> None:
    opened.write("t.csv", "a,b,c,d,e\n1,2,3,4,true\n5,6,7,8,0\n")
    fields = (field("m", "float32", 2, 2), field("one", "int32", 1), field("yes", "bool"))
    columns = (("m", ("a", "b", "c", "d")), ("one", ("a",)), ("yes", ("e",)))
    read = read_all(opened(data_form("arrays", "t.csv", fields=fields, columns=columns)))
    assert read["m"].tolist() == [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]
    assert read["one"].tolist() == [[1], [5]]
    assert read["yes"].tolist() == [True, False]


def test_quoted_cells_and_empty_lines(opened: Opener) -> None:
    opened.write("t.csv", 'y,"a, text"\n1,"x ""y"""\n\n2,"two\nlines"\n')
    read = read_all(opened(data_form("arrays", "t.csv", fields=(Y,))))
    assert read["y"].tolist() == [1, 2]


def test_splits_share_no_sample_and_lose_none(opened: Opener) -> None:
    count = 103
    save(opened, "y.npy", np.arange(count))
    parts = (("train", 0.7), ("validation", 0.2), ("test", 0.1))
    dataset = opened(data_form("arrays", "y.npy", fields=(Y,), split=parts))
    held = {name: read_all(dataset, name)["y"].tolist() for name in dataset.splits}
    assert [len(part) for part in held.values()] == [72, 20, 11]
    assert sorted(number for part in held.values() for number in part) == list(range(count))
    again = opened(data_form("arrays", "y.npy", fields=(Y,), split=parts))
    assert read_all(again)["y"].tolist() == held["train"]
    assert held["train"] != sorted(held["train"])


def test_without_split_all_is_train_in_the_order_of_the_file(opened: Opener) -> None:
    save(opened, "y.npy", np.arange(9))
    dataset = opened(data_form("arrays", "y.npy", fields=(Y,)))
    assert list(dataset.splits) == ["train"]
    assert read_all(dataset)["y"].tolist() == list(range(9))


def test_identity_follows_values_and_splits_but_not_paths(opened: Opener) -> None:
    save(opened, "y.npy", LABELS)
    save(opened, "folder/y.npy", LABELS)
    first = opened(data_form("arrays", "y.npy", fields=(Y,))).identity
    assert opened(data_form("arrays", "folder/y.npy", fields=(Y,))).identity == first
    cut = (("train", 0.5), ("validation", 0.5))
    assert opened(data_form("arrays", "y.npy", fields=(Y,), split=cut)).identity != first
    save(opened, "y.npy", LABELS + 1)
    assert opened(data_form("arrays", "y.npy", fields=(Y,))).identity != first


def test_wrong_files_are_named(opened: Opener) -> None:
    opened.write("y.npy", b"not an array")
    opened.write("y.npz", b"PK\x03\x04 cut off")
    opened.write("y.txt", "1")
    opened.write("y.parquet", b"PAR1 no")
    opened.write("sub/y.npy", b"")
    np.save(opened.root / "o.npy", np.array([None, {}], object))

    def of(name: str) -> tuple[str, str]:
        return refusal(lambda: opened(data_form("arrays", name, fields=(Y,))))

    assert of("absent.npy") == ("E-DATA-001", "the file 'absent.npy' does not exist")
    assert of("sub") == ("E-DATA-001", "the file 'sub' is a folder")
    assert of("y.txt") == ("E-DATA-006", "y.txt is of no known kind of array file")
    code, message = of("y.npy")
    assert (code, message.split(":")[0]) == ("E-DATA-006", "y.npy is not a NumPy array file")
    code, message = of("sub/y.npy")
    assert (code, message.split(":")[0]) == ("E-DATA-006", "sub/y.npy is not a NumPy array file")
    assert of("o.npy") == (
        "E-DATA-006",
        "o.npy is not a NumPy array file: Array can't be memory-mapped: Python objects in dtype",
    )
    whole = io.BytesIO()
    np.save(whole, np.zeros(3, np.float32))
    opened.write("header.npy", whole.getvalue().replace(b"}", b"{"))  # of which NumPy's reader says nothing of its own
    code, message = of("header.npy")
    assert (code, message.split(":")[0]) == ("E-DATA-006", "header.npy is not a NumPy array file")
    packed = io.BytesIO()
    np.savez_compressed(packed, y=np.arange(1000))
    content = packed.getvalue()
    opened.write("packed.npz", content[:300] + bytes(20) + content[320:])
    code, message = of("packed.npz")
    assert (code, message.split(":")[0]) == ("E-DATA-006", "packed.npz is not a NumPy archive")
    assert of("y.npz") == ("E-DATA-006", "y.npz is not a NumPy archive: File is not a zip file")
    code, message = of("y.parquet")
    assert (code, message.split(":")[0]) == ("E-DATA-006", "y.parquet is not a Parquet file")


def test_a_file_that_may_not_be_read(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    save(opened, "y.npy", np.zeros(3))
    monkeypatch.setattr("paren.data.paths.os.access", lambda *_: False)  # as for another user's file; root may all
    found = refusal(lambda: opened(data_form("arrays", "y.npy", fields=(Y,))))
    assert found == ("E-DATA-021", "y.npy cannot be read: permission denied")


def test_fields_that_do_not_fit_are_all_named_at_once(opened: Opener) -> None:
    save_archive(opened, "d.npz", x=np.zeros((3, 4)), y=np.zeros(3), flag=np.zeros(3, np.int8), s=np.array(["a"] * 3))
    fields = (X, Y, field("flag", "bool"), field("s", "int32"))
    with pytest.raises(ParenError) as caught:
        opened(data_form("arrays", "d.npz", fields=fields))
    assert [(error.code, error.message) for error in caught.value.errors] == [
        ("E-DATA-009", "field x is float32[2] for each sample, but array x in d.npz has shape [3 4]"),
        ("E-DATA-008", "field y is int32, but array y in d.npz holds float64"),
        ("E-DATA-008", "field flag is bool, but array flag in d.npz holds int8"),
        ("E-DATA-008", "field s is int32, but array s in d.npz holds <U1"),
    ]


def test_simpler_types_fit(opened: Opener) -> None:
    save_archive(opened, "d.npz", a=np.array([True, False]), b=np.array([1, 200], np.uint8), c=np.array([1, 2]))
    fields = (field("a", "float32"), field("b", "float32"), field("c", "uint8"))
    read = read_all(opened(data_form("arrays", "d.npz", fields=fields)))
    assert [read[name].tolist() for name in "abc"] == [[1, 0], [1, 200], [1, 2]]


def test_missing_and_ambiguous_columns(opened: Opener) -> None:
    opened.write("t.csv", "label,left\n1,2\n")
    save(opened, "label.npy", LABELS)
    labels = field("labels", "int32")
    assert refusal(lambda: opened(data_form("arrays", "t.csv", fields=(labels,)))) == (
        "E-DATA-007",
        "field labels needs column labels, which is in no file: there is nothing",
    )
    assert refusal(lambda: opened(data_form("arrays", "label.npy", fields=(labels,)))) == (
        "E-DATA-007",
        "field labels needs column labels, which is in no file (did you mean label?): there is label",
    )
    label = field("label", "int32")
    assert refusal(lambda: opened(data_form("arrays", "t.csv", "label.npy", fields=(label,)))) == (
        "E-DATA-007",
        "column label is in two files: column label in t.csv, array label in label.npy",
    )


def test_lengths_that_differ(opened: Opener) -> None:
    save_archive(opened, "d.npz", x=VALUES, y=LABELS[:5])
    assert refusal(lambda: opened(data_form("arrays", "d.npz", fields=(X, Y)))) == (
        "E-DATA-010",
        "the fields differ in their number of samples: array x in d.npz has 6, array y in d.npz has 5",
    )
    opened.write("a.csv", "left\n1\n")
    opened.write("b.csv", "right\n1\n2\n")
    form = data_form("arrays", "a.csv", "b.csv", fields=(X,), columns=(("x", ("left", "right")),))
    assert refusal(lambda: opened(form)) == (
        "E-DATA-009",
        "the columns of field x must each have one number a sample: column left in a.csv has [1], "
        "column right in b.csv has [2]",
    )


def test_no_samples(opened: Opener) -> None:
    save(opened, "y.npy", np.zeros(0, np.int64))
    opened.write("t.csv", "y\n")
    assert refusal(lambda: opened(data_form("arrays", "y.npy", fields=(Y,)))) == (
        "E-DATA-019",
        "there are no samples in array y in y.npy",
    )
    assert refusal(lambda: opened(data_form("arrays", "t.csv", fields=(Y,)))) == (
        "E-DATA-019",
        "there are no samples in column y in t.csv",
    )


def test_a_split_that_gets_nothing(opened: Opener) -> None:
    save(opened, "y.npy", LABELS)
    form = data_form("arrays", "y.npy", fields=(Y,), split=(("train", 0.1), ("validation", 0.9)))
    assert refusal(lambda: opened(form)) == (
        "E-DATA-005",
        "split train gets nothing: a fraction of 0.1 of 6 samples",
    )


CSV_FAULTS = [
    ("", "E-DATA-006", "t.csv is empty"),
    ("y,y\n1,2\n", "E-DATA-006", "t.csv has two columns named y"),
    ("y,z\n1,2\n1\n", "E-DATA-006", "t.csv:3: this row has 1 cell, but the header has 2"),
    ('y\n"1\n', "E-DATA-006", "t.csv is not a CSV file: unexpected end of data"),
    ("y\n1\n\n2.5\n", "E-DATA-020", "t.csv:4: y: '2.5' is no integer"),
    ("y,z\n1,2\n,2\n", "E-DATA-020", "t.csv:3: y: the cell is empty"),
    (f"y\n{2**70}\n", "E-DATA-020", f"t.csv:2: y: {2**70} does not fit 64 bits"),
    ("y\nnan\n", "E-DATA-020", "t.csv:2: y: 'nan' is no integer"),
]


def test_a_wrong_cell_can_be_mended(opened: Opener) -> None:
    for text in ("y\n2.5\n", f"y\n{2**70}\n"):
        opened.write("t.csv", text)
        with pytest.raises(ParenError) as caught:
            opened(data_form("arrays", "t.csv", fields=(Y,)))
        assert caught.value.fix == "correct the cell, leave its row out, or declare the field with another type"


@pytest.mark.parametrize(("text", "code", "message"), CSV_FAULTS)
def test_wrong_tables(opened: Opener, text: str, code: str, message: str) -> None:
    opened.write("t.csv", text)
    assert refusal(lambda: opened(data_form("arrays", "t.csv", fields=(Y,)))) == (code, message)


def test_wrong_cells_of_other_kinds(opened: Opener) -> None:
    opened.write("t.csv", "x,b\n1.5,maybe\nhalf,true\n")
    assert refusal(lambda: opened(data_form("arrays", "t.csv", fields=(field("x", "float32"),)))) == (
        "E-DATA-020",
        "t.csv:3: x: 'half' is no number",
    )
    assert refusal(lambda: opened(data_form("arrays", "t.csv", fields=(field("b", "bool"),)))) == (
        "E-DATA-020",
        "t.csv:2: b: 'maybe' is no boolean",
    )


def test_a_table_that_is_not_utf8(opened: Opener) -> None:
    opened.write("t.csv", b"y,n\n1,a\n2,\xe9t\xe9\n")
    assert refusal(lambda: opened(data_form("arrays", "t.csv", fields=(Y,)))) == (
        "E-DATA-002",
        "t.csv:3:3: the byte 0xe9 is not UTF-8 (invalid continuation byte)",
    )


def test_long_tables_keep_their_line_numbers(opened: Opener) -> None:
    lines = [f"{i}\n" for i in range(40_000)]
    opened.write("t.csv", "y\n" + "".join(lines))
    assert read_all(opened(data_form("arrays", "t.csv", fields=(Y,))))["y"].tolist() == list(range(40_000))
    lines[35_000] = "x\n"
    opened.write("t.csv", "y\n" + "".join(lines))
    assert refusal(lambda: opened(data_form("arrays", "t.csv", fields=(Y,)))) == (
        "E-DATA-020",
        "t.csv:35002: y: 'x' is no integer",
    )


def test_parquet_with_missing_values_or_ragged_lists(opened: Opener) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(pyarrow.table({"y": [1, None, 3], "x": [[1.0], [1.0, 2.0], [3.0]]}), opened.root / "t.parquet")
    assert refusal(lambda: opened(data_form("arrays", "t.parquet", fields=(Y,)))) == (
        "E-DATA-006",
        "column y of t.parquet has 1 missing values",
    )
    assert refusal(lambda: opened(data_form("arrays", "t.parquet", fields=(X,)))) == (
        "E-DATA-009",
        "the lists in column x of t.parquet differ in length",
    )


def test_parquet_without_its_library_names_the_extra(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.write("t.parquet", b"PAR1")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ParenError) as caught:
        opened(data_form("arrays", "t.parquet", fields=(Y,)))
    error = caught.value.errors[0]
    assert (error.code, error.message, error.fix) == (
        "E-DATA-014",
        "t.parquet needs the library pyarrow, which is not installed",
        "pip install 'paren[parquet]'",
    )


def test_digits(opened: Opener) -> None:
    pytest.importorskip("sklearn")
    fields = (field("image", "float32", 1, 8, 8), field("label", "int32"))
    dataset = opened(data_form("digits", fields=fields, split=(("train", 0.8), ("validation", 0.2))))
    read = read_all(dataset, "validation")
    assert {name: split.count for name, split in dataset.splits.items()} == {"train": 1437, "validation": 360}
    assert read["image"].shape == (360, 1, 8, 8)
    assert (read["image"].min(), read["image"].max()) == (0, 1)
    assert np.bincount(read["label"]).min() > 20
    assert opened(data_form("digits", fields=fields)).splits["train"].count == 1797


def test_digits_without_their_library_name_the_extra(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ParenError) as caught:
        opened(data_form("digits", fields=(field("image", "float32", 1, 8, 8), field("label", "int32"))))
    error = caught.value.errors[0]
    assert (error.code, error.message, error.fix) == (
        "E-DATA-014",
        "the digits need the library scikit-learn, which is not installed",
        "pip install 'paren[digits]'",
    )

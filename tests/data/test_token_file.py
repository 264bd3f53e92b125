"""Token files: windows over a memory-mapped stream, cut into splits, and what is wrong with a file."""

from __future__ import annotations

import io

import numpy as np
import pytest
from data_forms import Opener, data_form, read_all, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from paren.data.stream import TokenSplit


def windows(tokens: list[int], length: int, stride: int) -> list[list[int]]:
    return [tokens[i : i + length + 1] for i in range(0, len(tokens) - length, stride)]


def numpy_file(values: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, values)
    return buffer.getvalue()


@settings(max_examples=60)
@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(1, 5), st.integers(1, 7))
def test_windows_are_those_of_each_stretch(sizes: list[int], length: int, stride: int) -> None:
    borders = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    tokens = np.arange(borders[-1], dtype=np.uint16)
    split = TokenSplit("train", tokens, borders, length, stride, "t", 0, "")
    expected = [
        window
        for start, stop in zip(borders[:-1].tolist(), borders[1:].tolist(), strict=True)
        for window in windows(list(range(start, stop)), length, stride)
    ]
    assert split.count == len(expected)
    assert split.skipped == sum(size < length + 1 for size in sizes)
    if expected:
        order = np.random.default_rng(0).permutation(len(expected))
        read = split.read(order)
        assert read["tokens"].tolist() == [expected[i][:-1] for i in order]
        assert read["targets"].tolist() == [expected[i][1:] for i in order]
        assert read["tokens"].dtype == read["targets"].dtype == np.int32


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int32", "int64"])
def test_bare_and_numpy_files_give_the_same(opened: Opener, dtype: str) -> None:
    values = np.arange(41).astype(dtype)
    opened.write("t.bin", values.tobytes())
    opened.write("t.npy", numpy_file(values))
    bare = opened(data_form("token-file", "t.bin", dtype=dtype, length=4))
    own = opened(data_form("token-file", "t.npy", length=4))
    assert bare.splits["train"].count == own.splits["train"].count == 10
    assert read_all(bare)["targets"].tolist() == read_all(own)["targets"].tolist()
    assert isinstance(bare.splits["train"].stream, np.memmap)
    assert isinstance(own.splits["train"].stream, np.memmap)
    assert (bare.vocabulary, bare.tokenizer) == (None, None)


def test_splits_are_ranges_that_no_window_crosses(opened: Opener) -> None:
    opened.write("t.bin", np.arange(100, dtype=np.uint16).tobytes())
    split = (("train", 0.5), ("validation", 0.3))
    dataset = opened(data_form("token-file", "t.bin", dtype="uint16", length=4, stride=1, split=split))
    train, validation = read_all(dataset), read_all(dataset, "validation")
    assert (train["tokens"].min(), train["targets"].max()) == (0, 49)
    assert (validation["tokens"].min(), validation["targets"].max()) == (50, 79)
    assert len(train["tokens"]) == 46


def test_validation_may_be_a_file_of_its_own(opened: Opener) -> None:
    opened.write("t.bin", np.arange(20, dtype=np.uint16).tobytes())
    opened.write("v.bin", np.arange(100, 110, dtype=np.uint16).tobytes())
    dataset = opened(data_form("token-file", "t.bin", dtype="uint16", length=4, validation="v.bin"))
    assert dataset.splits["train"].count == 4
    assert read_all(dataset, "validation")["tokens"].tolist() == [[100, 101, 102, 103], [104, 105, 106, 107]]


def test_identity_follows_bytes_and_windows(opened: Opener) -> None:
    def identity(values: list[int], **options: int) -> str:
        opened.write("t.bin", np.array(values, np.uint16).tobytes())
        return opened(data_form("token-file", "t.bin", dtype="uint16", **options)).identity

    values = list(range(20))
    identities = [
        identity(values, length=4),
        identity(values, length=5),
        identity(values, length=4, stride=2),
        identity([*values[:-1], 7], length=4),
    ]
    assert len(set(identities)) == 4
    assert identity(values, length=4) == identities[0]


def test_wrong_files(opened: Opener) -> None:
    def of(name: str, content: bytes, **options: str) -> tuple[str, str]:
        opened.write(name, content)
        return refusal(lambda: opened(data_form("token-file", name, length=4, **options)))

    assert of("t.bin", b"", dtype="uint16") == ("E-DATA-003", "t.bin is empty")
    assert of("t.bin", b"abc", dtype="uint16") == (
        "E-DATA-003",
        "t.bin has 3 bytes, which is no whole number of uint16 tokens of 2 bytes",
    )
    assert of("t.bin", b"abcd") == ("E-DATA-022", "t.bin is a file of bare integers, so it needs the option :dtype")
    assert of("t.npy", numpy_file(np.zeros((2, 3), np.int32))) == (
        "E-DATA-003",
        "t.npy holds int32[2 3], but tokens are integers along one axis",
    )
    assert of("t.npy", numpy_file(np.zeros(9))) == (
        "E-DATA-003",
        "t.npy holds float64[9], but tokens are integers along one axis",
    )
    assert of("t.npy", numpy_file(np.zeros(9, np.int32)), dtype="uint16") == (
        "E-DATA-003",
        "t.npy holds int32, but :dtype says uint16",
    )
    assert of("t.npy", numpy_file(np.zeros(0, np.int32))) == ("E-DATA-003", "t.npy is empty")
    for damaged in (b"nonsense", numpy_file(np.zeros(9, np.int32)).replace(b"}", b"{")):
        code, message = of("t.npy", damaged)
        assert (code, message.split(":")[0]) == ("E-DATA-003", "t.npy is not a NumPy array file")
    assert of("t.bin", bytes(8), dtype="uint16") == (
        "E-DATA-004",
        "split train has 4 tokens, but one example of length 4 needs 5",
    )


def test_a_split_too_short_for_a_window(opened: Opener) -> None:
    opened.write("t.bin", bytes(100))
    split = (("train", 0.96), ("validation", 0.04))
    assert refusal(lambda: opened(data_form("token-file", "t.bin", dtype="uint8", length=4, split=split))) == (
        "E-DATA-004",
        "split validation has 4 tokens, but one example of length 4 needs 5",
    )
    split = (("train", 0.99), ("validation", 0.005))
    assert refusal(lambda: opened(data_form("token-file", "t.bin", dtype="uint8", length=4, split=split))) == (
        "E-DATA-005",
        "split validation gets nothing: a fraction of 0.005 of 100 tokens",
    )

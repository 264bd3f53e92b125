"""Text corpora: split without leaks, encoded once, kept in a cache that cannot be fooled or half there."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest
from data_forms import Opener, data_form, read_all, refusal
from hypothesis import given, settings
from hypothesis import strategies as st

import paren.data.corpus as corpus
from paren.data.documents import Document, document_sizes, pieces_between
from paren.data.open import open_data
from paren.ir.program import DataForm, Value
from paren.text.errors import ParenError

HALVES = (("train", 0.5), ("validation", 0.5))


def text_form(*patterns: str, **options: Value) -> DataForm:
    return data_form("text-files", *(patterns or ("*.txt",)), **{"length": 4, **options})


def text_of(opened: Opener, form: DataForm, split: str = "train") -> str:
    dataset = opened(form)
    assert dataset.tokenizer is not None
    return dataset.tokenizer.decode(dataset.splits[split].stream.tolist())


def test_bytes_of_all_documents_in_the_order_of_their_names(opened: Opener) -> None:
    opened.write("b.txt", "two")
    opened.write("a.txt", "one ")
    opened.write("c/d/e.txt", " three")
    opened.write("c/other.md", "no")
    assert text_of(opened, text_form("**/*.txt")) == "one two three"
    assert text_of(opened, text_form("c/d/*.txt", "a.txt", "*.txt")) == "one two three"
    dataset = opened(text_form("**/*.txt"))
    assert dataset.vocabulary == 256
    assert read_all(dataset)["tokens"][0].tolist() == list(b"one ")
    assert read_all(dataset)["targets"][0].tolist() == list(b"ne t")


def test_line_ends_and_mark_change_neither_tokens_nor_identity(opened: Opener) -> None:
    opened.write("a.txt", "één\ntwee\n")
    first = opened(text_form())
    for content in (b"\xef\xbb\xbf" + "één\ntwee\n".encode(), "één\r\ntwee\r\n".encode(), "één\rtwee\r".encode()):
        opened.write("a.txt", content)
        other = opened(text_form())
        assert other.identity == first.identity
    opened.write("a.txt", "één\ntwee!\n")
    assert opened(text_form()).identity != first.identity


@settings(max_examples=60)
@given(st.lists(st.text(st.sampled_from("aé☃𝄞\n"), max_size=8), min_size=1, max_size=5), st.data())
def test_ranges_share_nothing_and_lose_nothing(texts: list[str], data: st.DataObject) -> None:
    documents = [Document(str(i), "", lambda text=text: iter([text[:3], text[3:]])) for i, text in enumerate(texts)]
    sizes = document_sizes(documents)
    cut = data.draw(st.integers(0, sum(sizes)))
    first = list(pieces_between(documents, sizes, 0, cut))
    second = list(pieces_between(documents, sizes, cut, sum(sizes)))
    assert "".join(piece for _, piece in [*first, *second]) == "".join(texts)
    assert [number for number, _ in first] == sorted(number for number, _ in first)
    assert cut <= sum(len(piece.encode()) for _, piece in first) < cut + 4


def test_splits_hold_the_text_in_order(opened: Opener) -> None:
    opened.write("a.txt", "abcdefghij")
    opened.write("b.txt", "klmnopqrst")
    form = text_form(split=(("train", 0.6), ("validation", 0.3)))
    assert text_of(opened, form) == "abcdefghijkl"
    assert text_of(opened, form, "validation") == "mnopqr"


def test_a_border_in_a_character_is_moved_to_its_end(opened: Opener) -> None:
    opened.write("a.txt", "☃☃☃☃☃")
    assert text_of(opened, text_form(split=HALVES)) == "☃☃☃"
    assert text_of(opened, text_form(split=HALVES), "validation") == "☃☃"


def test_boundaries(opened: Opener) -> None:
    for name, text in (("a", "abcdef"), ("b", ""), ("c", "gh"), ("d", "ijklmnopqr")):
        opened.write(f"{name}.txt", text)
    joined = opened(text_form())
    assert [bytes(row.tolist()) for row in read_all(joined)["tokens"]] == [b"abcd", b"efgh", b"ijkl", b"mnop"]
    separate = opened(text_form(boundary=("separate",)))
    assert [bytes(row.tolist()) for row in read_all(separate)["tokens"]] == [b"abcd", b"ijkl", b"mnop"]
    assert separate.notes == ("1 of 3 documents in split train have fewer than 5 tokens, and are left out",)
    special = opened(text_form(boundary=("token", "<|end|>")))
    assert special.vocabulary == 257
    assert special.splits["train"].stream.tolist() == [*b"abcdef", 256, *b"gh", 256, *b"ijklmnopqr"]
    assert len({joined.identity, separate.identity, special.identity}) == 3


def test_separate_documents_that_are_all_too_short(opened: Opener) -> None:
    opened.write("a.txt", "abc")
    opened.write("b.txt", "abcd")
    assert refusal(lambda: opened(text_form(boundary=("separate",)))) == (
        "E-DATA-004",
        "the longest of the 2 documents in split train has 4 tokens, but one example of length 4 needs 5",
    )


def test_chunks_do_not_depend_on_pieces(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "CHUNK", 4)
    text = "ab\ncdefgh\n\ni"
    whole = list(corpus._chunks(iter([(0, text), (1, "x")])))
    pieces = list(corpus._chunks(iter([*((0, character) for character in text), (1, "x")])))
    assert whole == pieces == [(0, "ab\n"), (0, "cdef"), (0, "gh\n\n"), (0, "i"), (1, "x")]


def test_byte_pairs_are_learnt_from_train_alone(opened: Opener) -> None:
    opened.write("a.txt", "abab " * 40 + "xyxy " * 40)
    form = text_form(tokenizer=("byte-pair", 300), split=HALVES)
    dataset = opened(form)
    tokenizer = dataset.tokenizer
    assert tokenizer is not None
    assert len(tokenizer.encode("abab")) < 4
    assert len(tokenizer.encode("xyxy")) == 4
    assert text_of(opened, form, "validation") == "xyxy " * 40
    assert dataset.vocabulary == 300
    assert dataset.notes == (
        f"the byte-pair tokenizer has {tokenizer.vocabulary} tokens of the 300 asked for, since the text has no more "
        f"pairs to merge: ids {tokenizer.vocabulary} .. 299 stand for nothing",
    )


def test_a_tokenizer_of_a_file(opened: Opener) -> None:
    opened.write("a.txt", "the cat sat on the mat\n" * 30)
    trained = opened(text_form(tokenizer=("byte-pair", 265), boundary=("token", "<s>")))
    assert trained.tokenizer is not None
    trained.tokenizer.save(opened.root / "t.json")
    loaded = opened(text_form(tokenizer=("file", "t.json")))
    assert (loaded.vocabulary, loaded.notes) == (265, ())
    assert loaded.splits["train"].stream.tolist() == trained.splits["train"].stream.tolist()
    assert refusal(lambda: opened(text_form(tokenizer=("file", "t.json"), boundary=("token", "</s>")))) == (
        "E-DATA-015",
        "the tokenizer t.json has no token '</s>'",
    )
    assert refusal(lambda: opened(text_form(tokenizer=("file", "u.json")))) == (
        "E-DATA-001",
        "the file 'u.json' does not exist",
    )


def test_forms_that_cannot_be_met(opened: Opener) -> None:
    opened.write("empty.txt", "")
    opened.write("bad.text", b"ab\n\xff")
    assert refusal(lambda: opened(text_form("*.md"))) == ("E-DATA-001", "no file matches '*.md'")
    assert refusal(lambda: opened(text_form())) == ("E-DATA-019", "there is no text in the documents")
    assert refusal(lambda: opened(text_form("*.text"))) == (
        "E-DATA-002",
        "bad.text:2:1: the byte 0xff is not UTF-8 (invalid start byte)",
    )
    assert refusal(lambda: opened(text_form(tokenizer=("byte-pair", 256), boundary=("token", "x")))) == (
        "E-DATA-015",
        "a byte-pair tokenizer has at least 257 tokens, and :vocab is 256",
    )
    opened.write("empty.txt", "abcd")
    assert refusal(lambda: opened(text_form())) == (
        "E-DATA-004",
        "split train has 4 tokens, but one example of length 4 needs 5",
    )


def only_entry(opened: Opener) -> Path:
    (entry,) = (opened.cache / "tokens").iterdir()
    return entry


def test_the_second_opening_encodes_nothing(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.write("a.txt", "abcdef" * 10)
    first = opened(text_form(split=HALVES))
    monkeypatch.setattr(corpus, "_encode_splits", None)
    second = opened(text_form(split=HALVES, length=3))
    assert read_all(second)["tokens"].shape == (9, 3)
    assert opened(text_form(split=HALVES)).identity == first.identity
    assert sorted(file.name for file in only_entry(opened).iterdir()) == [
        "manifest.json",
        "tokenizer.json",
        "train.npy",
        "train.stretches.npy",
        "validation.npy",
        "validation.stretches.npy",
    ]


@pytest.mark.parametrize("name", ["train.npy", "train.stretches.npy", "tokenizer.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["flip", "cut", "delete"])
def test_a_damaged_entry_is_made_again(opened: Opener, name: str, damage: str) -> None:
    opened.write("a.txt", "abcdef" * 10)
    first = opened(text_form())
    file = only_entry(opened) / name
    data = bytearray(file.read_bytes())
    if damage == "delete":
        file.unlink()
    else:
        data[-2] ^= 1
        file.write_bytes(data if damage == "flip" else data[:-2])
    again = opened(text_form())
    assert again.notes == (f"the cached tokens in {only_entry(opened)} were damaged, and have been made again",)
    assert again.identity == first.identity
    assert opened(text_form()).notes == ()


def test_a_failure_while_encoding_leaves_no_entry(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.write("a.txt", "abcdef" * 10)

    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(corpus, "_encode_split", fails)
        assert refusal(lambda: opened(text_form())) == (
            "E-DATA-021",
            f"the cache folder {opened.cache} cannot be used: No space left on device",
        )
    assert list((opened.cache / "tokens").iterdir()) == []
    assert opened(text_form()).notes == ()


def test_leftovers_of_killed_processes_are_removed_after_a_day(opened: Opener) -> None:
    old, new = opened.cache / "tokens" / ".old.1.2", opened.cache / "tokens" / ".new.1.2"
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "train.npy").write_bytes(b"x")
    os.utime(old, (time.time() - 90_000, time.time() - 90_000))
    opened.write("a.txt", "abcdef")
    opened(text_form())
    assert (old.exists(), new.exists()) == (False, True)


def test_another_process_may_publish_first(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    opened.write("a.txt", "abcdef" * 10)
    encode = corpus._encode_splits

    def encode_twice(*arguments: object) -> None:
        monkeypatch.setattr(corpus, "_encode_splits", encode)
        opened(text_form())
        encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(corpus, "_encode_splits", encode_twice)
    assert opened(text_form()).splits["train"].count == 14
    assert only_entry(opened).is_dir()


def test_long_work_is_announced(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "ANNOUNCED_FROM", 10)
    opened.write("a.txt", "x" * 600_000)
    said: list[str] = []
    for _ in range(2):
        open_data(text_form(), root=opened.root, cache=opened.cache, announce=said.append)
    assert said == ["encoding 1 MB of text, which is kept in the cache"]


def test_a_cache_that_is_a_file_is_refused(opened: Opener) -> None:
    opened.write("a.txt", "abcdef")
    opened.cache.write_text("")
    assert refusal(lambda: opened(text_form())) == (
        "E-DATA-021",
        f"the cache folder {opened.cache} cannot be used: Not a directory",
    )


@pytest.mark.parametrize("vocabulary", [256, 257, 65_536, 65_537])
def test_tokens_are_stored_in_the_smallest_type_that_holds_them(tmp_path: Path, vocabulary: int) -> None:
    class Highest:
        def __init__(self) -> None:
            self.vocabulary = vocabulary

        def encode_many(self, texts: list[str]) -> list[np.ndarray]:
            return [np.full(len(text), vocabulary - 1, np.int32) for text in texts]

    corpus._encode_split(tmp_path, "train", Highest(), iter([(0, "abc")]), None, False)  # type: ignore[arg-type]
    stored = np.load(tmp_path / "train.npy")
    assert stored.tolist() == [vocabulary - 1] * 3
    assert stored.dtype.itemsize == {256: 1, 257: 2, 65_536: 2, 65_537: 4}[vocabulary]


def test_the_text_that_cpython_ships(opened: Opener) -> None:
    form = data_form("python-docs", length=64, split=(("train", 0.9), ("validation", 0.1)))
    dataset = opened(form)
    assert dataset.splits["train"].count > 5000
    assert text_of(opened, form).startswith('The "assert" statement')
    assert opened(form).identity == dataset.identity


def test_the_sources_of_the_standard_library(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    library = opened.root / "library"
    for name in ("z.py", "a/b.py", "a/__pycache__/b.py", "site-packages/c.py", "_sysconfigdata_x.py", "note.txt"):
        opened.write(f"library/{name}", f"# {name}\n")
    opened.write("library/latin.py", b"# \xe9\n")
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(library))
    assert text_of(opened, data_form("python-stdlib", length=4)) == "# a/b.py\n# z.py\n"
    monkeypatch.setattr("sysconfig.get_path", lambda _: str(library / "absent"))
    with pytest.raises(ParenError) as caught:
        opened(data_form("python-stdlib", length=4))
    assert (caught.value.code, caught.value.message) == (
        "E-DATA-014",
        f"there are no sources of the standard library in {library / 'absent'}",
    )

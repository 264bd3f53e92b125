"""Tokenizers decode what they encode, are the same when trained or loaded again, and refuse what is none."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tokenizers
from data_forms import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from paren.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer, train_byte_pair

TEXT = "the cat sat on the mat, the dog sat on the log\n" * 20


def trained(boundary: str | None = None) -> Tokenizer:
    return train_byte_pair(iter([TEXT]), 265, boundary)


@settings(max_examples=60)
@given(st.text(max_size=40))
def test_every_text_decodes_to_itself(text: str) -> None:
    for tokenizer in (ByteTokenizer(), ByteTokenizer("<|end|>"), BYTE_PAIR, BYTE_PAIR_WITH_END):
        ids = tokenizer.encode(text)
        assert ids.dtype == np.int32
        assert tokenizer.decode(ids) == text
        assert not ids.size or 0 <= ids.min() <= ids.max() < tokenizer.vocabulary


BYTE_PAIR = trained()
BYTE_PAIR_WITH_END = trained("<|end|>")


def test_training_twice_gives_the_same() -> None:
    assert trained().digest == BYTE_PAIR.digest
    assert BYTE_PAIR_WITH_END.digest != BYTE_PAIR.digest


def test_byte_pairs_shorten_text() -> None:
    assert BYTE_PAIR.vocabulary == 265
    assert len(BYTE_PAIR.encode(TEXT)) < len(TEXT) * 0.7


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), ByteTokenizer("<|end|>"), BYTE_PAIR, BYTE_PAIR_WITH_END])
def test_a_saved_tokenizer_is_loaded_as_it_was(tmp_path: Path, tokenizer: Tokenizer) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = load_tokenizer(tmp_path / "tokenizer.json")
    assert (loaded.digest, loaded.vocabulary) == (tokenizer.digest, tokenizer.vocabulary)
    assert loaded.encode("the cat ☃").tolist() == tokenizer.encode("the cat ☃").tolist()
    assert loaded.special("<|end|>") == tokenizer.special("<|end|>")


@pytest.mark.parametrize("tokenizer", [ByteTokenizer("<|end|>"), BYTE_PAIR_WITH_END])
def test_a_text_that_spells_the_special_token_does_not_make_one(tokenizer: Tokenizer) -> None:
    number = tokenizer.special("<|end|>")
    assert number is not None
    assert number not in tokenizer.encode("a<|end|>b")
    assert tokenizer.decode([number]) == "<|end|>"


def test_ids_that_stand_for_nothing_are_left_out() -> None:
    for tokenizer in (ByteTokenizer(), BYTE_PAIR):
        ids = [*tokenizer.encode("cat").tolist(), tokenizer.vocabulary, 5000]
        assert tokenizer.decode(ids) == "cat"


def test_broken_bytes_are_replaced() -> None:
    assert ByteTokenizer().decode([0xC3, 0x28]) == "\ufffd("


def test_many_are_encoded_as_each(tmp_path: Path) -> None:
    texts = ["the cat", "", "☃"]
    for tokenizer in (ByteTokenizer(), BYTE_PAIR):
        together = tokenizer.encode_many(texts)
        assert [ids.tolist() for ids in together] == [tokenizer.encode(text).tolist() for text in texts]


def test_truncation_and_padding_of_a_file_are_switched_off(tmp_path: Path) -> None:
    BYTE_PAIR.save(tmp_path / "t.json")
    other = tokenizers.Tokenizer.from_file(str(tmp_path / "t.json"))
    other.enable_truncation(3)
    other.enable_padding(length=100)
    other.save(str(tmp_path / "t.json"))
    loaded = load_tokenizer(tmp_path / "t.json")
    assert [ids.tolist() for ids in loaded.encode_many([TEXT, "cat"])] == [
        ids.tolist() for ids in BYTE_PAIR.encode_many([TEXT, "cat"])
    ]


def test_files_that_are_no_tokenizer(tmp_path: Path) -> None:
    path = tmp_path / "t.json"

    def of(text: str) -> tuple[str, str]:
        path.write_text(text)
        return refusal(lambda: load_tokenizer(path, "t.json"))

    assert of("{") == (
        "E-DATA-015",
        "t.json is not a tokenizer file: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    )
    code, message = of('{"a": 1}')
    assert (code, message.split(": ")[0]) == ("E-DATA-015", "t.json is not a tokenizer file")
    path.write_text(tokenizers.Tokenizer(tokenizers.models.BPE()).to_str())
    assert refusal(lambda: load_tokenizer(path, "t.json")) == ("E-DATA-015", "t.json holds a tokenizer without tokens")

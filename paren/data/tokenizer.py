"""From text to token ids and back: bytes, byte-pair encoding, and tokenizer files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paren.data.digest import digest_of
from paren.text.errors import ParenError
from paren.text.json import parse_json
from paren.text.source import Span

Int32Array = npt.NDArray[np.int32]
BYTES = 256


class Tokenizer(Protocol):
    """`vocabulary`: ids are in `0 <= id < vocabulary`. `digest` identifies what the tokenizer does."""

    @property
    def vocabulary(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def encode(self, text: str) -> Int32Array:
        """Token ids (int32[n]) of a text; special tokens are neither added nor recognised in it."""
        ...

    def encode_many(self, texts: Sequence[str]) -> list[Int32Array]:
        """`encode` of each text."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids. Ids that stand for nothing are left out; broken UTF-8 becomes U+FFFD."""
        ...

    def save(self, path: Path) -> None:
        """Writes what `load_tokenizer` reads."""
        ...

    def special(self, text: str) -> int | None:
        """The id of the special token written `text`, if there is one."""
        ...


@dataclass(frozen=True)
class ByteTokenizer:
    """Each byte of UTF-8 is a token; `boundary`, if there is one, is the special token 256."""

    boundary: str | None = None

    @property
    def vocabulary(self) -> int:
        return BYTES + (self.boundary is not None)

    @property
    def digest(self) -> str:
        return digest_of("bytes", self.boundary)

    def encode(self, text: str) -> Int32Array:
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int32)

    def encode_many(self, texts: Sequence[str]) -> list[Int32Array]:
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[int]) -> str:
        boundary = (self.boundary or "").encode()
        parts = [bytes([number]) if number < BYTES else boundary * (number == BYTES) for number in map(int, ids)]
        return b"".join(parts).decode("utf-8", errors="replace")

    def save(self, path: Path) -> None:
        path.write_text(json.dumps({"model": {"type": "bytes"}, "boundary": self.boundary}), encoding="utf-8")

    def special(self, text: str) -> int | None:
        return BYTES if text == self.boundary else None


class FileTokenizer:
    """A tokenizer of the library `tokenizers`, from the JSON text of its file (`tokenizer.json`)."""

    def __init__(self, text: str) -> None:
        import tokenizers  # 4 MiB that bytes as tokens, token files and arrays do without

        self._text = text
        self._tokenizer = tokenizers.Tokenizer.from_str(text)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizer.encode_special_tokens = True
        self.vocabulary = max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1
        self.digest = digest_of("tokenizer", text)

    def encode(self, text: str) -> Int32Array:
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[Int32Array]:
        encoded = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return [np.array(one.ids, np.int32) for one in encoded]

    def decode(self, ids: Iterable[int]) -> str:
        known = [number for number in map(int, ids) if number < self.vocabulary]
        return str(self._tokenizer.decode(known, skip_special_tokens=False))

    def save(self, path: Path) -> None:
        path.write_text(self._text, encoding="utf-8")

    def special(self, text: str) -> int | None:
        number = self._tokenizer.token_to_id(text)
        return None if number is None else int(number)


def load_tokenizer(path: Path, place: str | None = None, span: Span | None = None) -> Tokenizer:
    """Reads a tokenizer file: what `save` wrote, or a `tokenizer.json` from elsewhere.

    Raises E-DATA-015 where it is none.
    """
    place = place or str(path)
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = parse_json(text)
        if isinstance(content, dict) and content.get("model") == {"type": "bytes"}:
            return ByteTokenizer(content["boundary"])
        tokenizer = FileTokenizer(text)
    except ImportError:
        raise  # the file is not to blame for a library that is missing
    except Exception as error:  # the library raises bare `Exception` for a file that it does not understand
        raise ParenError("E-DATA-015", f"{place} is not a tokenizer file: {error}", span) from None
    if tokenizer.vocabulary == 0:
        raise ParenError("E-DATA-015", f"{place} holds a tokenizer without tokens", span)
    return tokenizer


def train_byte_pair(pieces: Iterator[str], vocabulary: int, boundary: str | None) -> FileTokenizer:
    """Byte-level byte-pair encoding with up to `vocabulary` tokens: `boundary` as a special token if given, the 256
    bytes, and merges in order of frequency. Every text can be encoded, and decodes to itself.

    Source: R. Sennrich, B. Haddow, A. Birch, "Neural Machine Translation of Rare Words with Subword Units", ACL 2016;
    on bytes with the pre-tokenizer of GPT-2.
    """
    import tokenizers  # see FileTokenizer

    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=vocabulary,
        min_frequency=2,
        show_progress=False,
        special_tokens=[] if boundary is None else [boundary],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
    )
    tokenizer.train_from_iterator(pieces, trainer)
    return FileTokenizer(tokenizer.to_str())

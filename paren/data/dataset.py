"""What an opened `defdata` is: fields, splits to read from, and a digest of the contents."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from paren.data.tokenizer import Tokenizer
from paren.ir.op import Array
from paren.ir.program import Field

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Chunk:
    """Consecutive stored values of one field, for the checks before step 1.

    `values`: array (n, ...) in the stored dtype, which may differ from the field's. `place` says in words where entry
    `i` of axis 0 stands (`token 17 of train.bin`).
    """

    values: Array
    place: Callable[[int], str]


class Split(Protocol):
    """One part of a data set: `count` examples, read by index.

    `name` is the split's own (`train`). `digest` identifies the stored bytes this split reads and the options that
    choose them.
    """

    @property
    def name(self) -> str: ...

    @property
    def count(self) -> int: ...

    @property
    def digest(self) -> str: ...

    def read(self, indices: Int64Array) -> dict[str, Array]:
        """Examples `indices` (int64[n], each in `0 <= index < count`): field name -> array `(n, *field shape)` in the
        field's dtype. The arrays belong to the caller."""
        ...

    def chunks(self, field: str) -> Iterator[Chunk]:
        """Every stored value that the field's examples are made of, once, in bounded pieces."""
        ...


@dataclass(frozen=True)
class Dataset:
    """An opened `defdata`.

    `fields` are the declared ones. `vocabulary` is the number of token ids (ids are in `0 <= id < vocabulary`), and
    `tokenizer` what made them, where the data are text. `identity` is a digest of the data's bytes and of the options
    that choose and shape them; paths, and times of files, are not in it. `notes` are sentences for the user.
    """

    fields: tuple[Field, ...]
    splits: Mapping[str, Split]
    vocabulary: int | None
    tokenizer: Tokenizer | None
    identity: str
    notes: tuple[str, ...]

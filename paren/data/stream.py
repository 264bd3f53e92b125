"""Windows over streams of tokens, and token files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from paren.data.dataset import Chunk, Int64Array
from paren.data.digest import digest_of, file_digest
from paren.data.numpy_file import UNREADABLE
from paren.data.paths import find_file, shown
from paren.data.splits import split_ranges
from paren.ir.op import Array
from paren.ir.program import DataForm
from paren.text.errors import InternalError, ParenError, first_line
from paren.text.size import count_of
from paren.text.source import Span

CHUNK = 1 << 20


@dataclass(frozen=True)
class TokenSplit:
    """Windows of `length + 1` tokens that begin every `stride` tokens of each stretch; `tokens` are the first `length`
    of a window, `targets` the last.

    `stream`: (tokens,), memory-mapped, in its stored dtype. `stretches`: int64[n + 1], ascending borders within the
    stream; no window spans one. A stretch ends without a window for its rest. `origin` names the stream in messages, in
    which token `i` of the stream is `first + i`.
    """

    name: str
    stream: Array = field(repr=False)
    stretches: Int64Array = field(repr=False)
    length: int
    stride: int
    origin: str
    first: int
    digest: str

    @cached_property
    def _windows(self) -> Int64Array:
        """int64[n + 1]: number of windows before each stretch, and in all."""
        sizes = np.diff(self.stretches)
        counts = np.maximum(0, (sizes - self.length - 1) // self.stride + 1)
        return np.concatenate(([0], np.cumsum(counts))).astype(np.int64)

    @property
    def count(self) -> int:
        return int(self._windows[-1])

    @property
    def skipped(self) -> int:
        """How many stretches are too short for a window."""
        return int(np.sum(np.diff(self._windows) == 0))

    def places(self, indices: Int64Array) -> Int64Array:
        """Where in the stream windows begin."""
        stretch = np.searchsorted(self._windows, indices, side="right") - 1
        return self.stretches[stretch] + (indices - self._windows[stretch]) * self.stride

    def read(self, indices: Int64Array) -> dict[str, Array]:
        starts = self.places(indices)
        windows = self.stream[starts[:, None] + np.arange(self.length + 1)].astype(np.int32)
        return {"tokens": windows[:, :-1].copy(), "targets": windows[:, 1:].copy()}

    def chunks(self, field: str) -> Iterator[Chunk]:
        """All tokens, those included that no window holds: a wrong one among them is a fault of the file all the
        same."""
        for start in range(0, len(self.stream), CHUNK):
            yield Chunk(np.asarray(self.stream[start : start + CHUNK]), self._place(start))

    def _place(self, start: int) -> _Place:
        return _Place(self.origin, self.first + start)


@dataclass(frozen=True)
class _Place:
    origin: str
    first: int

    def __call__(self, index: int) -> str:
        return f"token {self.first + index} of {self.origin}"


def integer_option(form: DataForm, name: str, default: int = 1) -> int:
    """An option that the form's reader has made sure is an integer of at least 1."""
    value = form.options.get(name, default)
    if not isinstance(value, int):
        raise InternalError("data", f"the option :{name} of {form.kind} is {value!r}")
    return value


def token_split(
    form: DataForm, name: str, stream: Array, stretches: Int64Array, origin: str, first: int, digest: str
) -> TokenSplit:
    """The windows of one split. Raises E-DATA-004 where not even one fits."""
    length = integer_option(form, "length")
    stride = integer_option(form, "stride", length)
    split = TokenSplit(name, stream, stretches, length, stride, origin, first, digest_of(digest, length, stride))
    if split.count == 0:
        longest = int(np.diff(stretches).max(initial=0))
        if len(stretches) > 2:
            message = (
                f"the longest of the {len(stretches) - 1} documents in split {name} has {count_of(longest, 'token')}"
            )
        else:
            message = f"split {name} has {count_of(longest, 'token')}"
        raise ParenError(
            "E-DATA-004",
            f"{message}, but one example of length {length} needs {length + 1}",
            form.spans.get("split", form.span),
            fix="supply more text, a smaller :length, or a larger fraction for this split",
        )
    return split


def open_token_file(form: DataForm, root: Path, cache: Path) -> dict[str, TokenSplit]:
    """Opens a `.npy` file of one axis, or a file of bare little-endian integers of the dtype `:dtype`.

    It is memory-mapped. `:split` cuts it into contiguous ranges; `:validation` names another file for that split.
    Raises E-DATA-001 (no file), E-DATA-003 (no tokens in it), E-DATA-004 (too short), E-DATA-005 (a split gets
    nothing), E-DATA-022 (no `:dtype`).
    """
    files = {"0": str(form.arguments[0])}
    if "validation" in form.options:
        files["validation"] = str(form.options["validation"])
    splits: dict[str, TokenSplit] = {}
    for key, written in files.items():
        path = find_file(form, key, written, root)
        place = shown(path, root)
        stream = _map_tokens(form, key, path, place)
        digest = digest_of(file_digest(path, cache), stream.dtype.str)
        ranges = split_ranges(form, len(stream), "tokens") if key == "0" else {"validation": (0, len(stream))}
        for name, (start, stop) in ranges.items():
            part = stream[start:stop]
            stretches = np.array([0, len(part)], np.int64)
            splits[name] = token_split(form, name, part, stretches, place, start, digest_of(digest, start, stop))
    return splits


def _map_tokens(form: DataForm, key: str, path: Path, place: str) -> Array:
    span = form.spans.get(key, form.span)
    if path.suffix.lower() == ".npy":
        return _map_numpy(form, path, place, span)
    if "dtype" not in form.options:
        raise ParenError(
            "E-DATA-022",
            f"{place} is a file of bare integers, so it needs the option :dtype",
            form.span,
            fix="write :dtype uint16",
        )
    name = str(form.options["dtype"])
    dtype = np.dtype(name).newbyteorder("<")
    size = path.stat().st_size
    if size == 0:
        raise ParenError("E-DATA-003", f"{place} is empty", span)
    if size % dtype.itemsize:
        told = count_of(size, "byte")
        raise ParenError(
            "E-DATA-003",
            f"{place} has {told}, which is no whole number of {name} tokens of {dtype.itemsize} bytes",
            span,
            fix="the file is cut off, or :dtype is not the one that it was written with",
        )
    return np.memmap(path, dtype, mode="r")


def _map_numpy(form: DataForm, path: Path, place: str, span: Span) -> Array:
    try:
        stream: Array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UNREADABLE as error:
        reason = first_line(error).rstrip(".")
        raise ParenError("E-DATA-003", f"{place} is not a NumPy array file: {reason}", span) from None
    if stream.ndim != 1 or stream.dtype.kind not in "iu":
        shape = " ".join(map(str, stream.shape))
        message = f"{place} holds {stream.dtype}[{shape}], but tokens are integers along one axis"
        raise ParenError("E-DATA-003", message, span)
    if "dtype" in form.options and stream.dtype.name != form.options["dtype"]:
        raise ParenError(
            "E-DATA-003",
            f"{place} holds {stream.dtype}, but :dtype says {form.options['dtype']}",
            form.spans.get("dtype", form.span),
            fix="remove :dtype, a .npy file knows its own",
        )
    if not len(stream):
        raise ParenError("E-DATA-003", f"{place} is empty", span)
    return stream

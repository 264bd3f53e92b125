"""The safetensors format, written and read tensor by tensor, so that no second copy of the state exists.

A file is: the length of the header (8 bytes, little endian), a JSON header (name -> dtype, shape, and begin and end of
the bytes after the header; `__metadata__` for strings), the raw bytes of the tensors, little endian, without gaps.

Every byte is hashed once, on other threads than the one that writes: hashing takes about as long as the disk. So the
digest of a file is not that of its bytes, but of its header and of the digests of its tensors. Another thread lets the
place keep what is written while more is written.
"""

from __future__ import annotations

import hashlib
import json
import os
import struct
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from operator import methodcaller
from types import TracebackType
from typing import BinaryIO, TypeVar

import numpy as np

from paren.ir.op import Array
from paren.runtime.array import AnyArray, DeviceArray, parts
from paren.text.errors import InternalError
from paren.text.json import parse_json
from paren.train.places.place import Readable, Sink

T = TypeVar("T")
Check = Callable[[str, Array], None]

CHUNK = 1 << 23  # bytes that are checked and written at a time
HASHING = 2  # threads that hash while a file is written or read
READING = 2  # threads that read first weights
PUSHED = 1 << 26  # bytes after which the disk is asked to take them, while more are written
COPIES = 2  # chunks of arrays on a device that each hashing thread leaves in host memory
HEADER_LIMIT = 100_000_000  # bytes; the limit of the safetensors library

FORMAT_NAMES = {
    "float64": "F64",
    "float32": "F32",
    "int64": "I64",
    "int32": "I32",
    "uint32": "U32",
    "uint8": "U8",
    "bool": "BOOL",
}
DTYPES = {name: np.dtype(dtype) for dtype, name in FORMAT_NAMES.items()}


@dataclass(frozen=True)
class Written:
    """What a write put on the disk: the file's bytes and digest, the SHA-256 of each tensor's bytes."""

    size: int
    digest: str
    tensors: Mapping[str, str]


@dataclass(frozen=True)
class Entry:
    """One tensor of a file: the format's dtype name, its shape, its bytes `begin` up to `end` of the file."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class MalformedFile(Exception):
    """The bytes are no safetensors file. Whoever knows what the file is for turns it into an error with a code."""


def write_tensors(
    sink: Sink, arrays: Mapping[str, AnyArray], metadata: Mapping[str, str], check: Check | None = None
) -> Written:
    """Writes the whole content of a new file.

    `arrays`: name -> C-contiguous array; those on a device cross to host memory chunk by chunk. `check(name, chunk)` is
    called on every chunk before it is written, and may raise. Nothing may change the arrays meanwhile. Raises what the
    sink does.
    """
    names = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    head = _header({name: arrays[name] for name in names}, metadata)
    start = struct.pack("<Q", len(head)) + head
    written = 0
    digests = {name: hashlib.sha256() for name in names}
    threads = [_Thread("hashing") for _ in range(HASHING)]
    with _Thread("pushing") as pushing, ExitStack() as stack:
        for thread in threads:
            stack.enter_context(thread)
        sink.write(start)
        for name in names:
            thread = min(threads, key=lambda each: each.bytes)
            for part in chunks(name, arrays[name]):
                chunk = np.asarray(part)
                if check is not None:
                    check(name, chunk)
                thread.give(chunk.nbytes, digests[name].update, _bytes(chunk))
                sink.write(_bytes(chunk))
                written += chunk.nbytes
                if written - pushing.bytes >= PUSHED:
                    pushing.give(written - pushing.bytes, methodcaller("push"), sink)
                if chunk is not part:
                    thread.catch_up(COPIES)
        for thread in (pushing, *threads):
            thread.catch_up(0)
    tensors = {name: digest.hexdigest() for name, digest in digests.items()}
    size = len(start) + sum(array.nbytes for array in arrays.values())
    return Written(size, file_digest(start, tensors.values()), tensors)


def file_digest(head: bytes, tensors: Iterable[str]) -> str:
    """The digest of a file: the SHA-256 of all its bytes up to the first tensor, followed by the SHA-256 (32 bytes
    each, given in hexadecimal) of its tensors in the order in which they lie in the file."""
    return hashlib.sha256(head + b"".join(map(bytes.fromhex, tensors))).hexdigest()


def read_header(file: Readable, size: int) -> tuple[dict[str, Entry], dict[str, str], bytes]:
    """Entries, metadata, and the raw bytes up to the first tensor, of an open file of `size` bytes.

    Raises `MalformedFile` unless every tensor lies inside the file with as many bytes as its type needs.
    """
    prefix = file.read(8)
    if len(prefix) < 8:
        raise MalformedFile("the header is missing")
    (length,) = struct.unpack("<Q", prefix)
    if length > min(size - 8, HEADER_LIMIT):
        raise MalformedFile(f"the header's length of {length} bytes is more than the file holds")
    raw = file.read(length)
    try:
        header = parse_json(raw)
        metadata = {str(key): str(value) for key, value in header.pop("__metadata__", {}).items()}
        entries = {name: _entry(entry, 8 + length) for name, entry in header.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise MalformedFile("the header is not readable") from error
    for name, entry in entries.items():
        if not 8 + length <= entry.begin <= entry.end <= size:
            raise MalformedFile(f"tensor '{name}' lies outside of the file")
        dtype = DTYPES.get(entry.dtype)
        if dtype is not None and entry.end - entry.begin != int(np.prod(entry.shape, dtype=np.int64)) * dtype.itemsize:
            raise MalformedFile(f"tensor '{name}' has the wrong number of bytes")
    return entries, metadata, prefix + raw


def read_tensors(file: Readable, arrays: Iterable[AnyArray]) -> list[str]:
    """Fills C-contiguous arrays, one after another, from the file's position on; gives the SHA-256 of each one's bytes,
    which other threads make meanwhile. Raises `MalformedFile` if the file ends."""
    digests = []
    with ExitStack() as stack:
        threads = [stack.enter_context(_Thread("hashing")) for _ in range(HASHING)]
        for array in arrays:
            digests.append(hashlib.sha256())
            thread = min(threads, key=lambda each: each.bytes)
            for part in chunks("array", array):
                chunk = _read(part, lambda data, _: file.readinto(data))
                thread.give(chunk.nbytes, digests[-1].update, _bytes(chunk))
                thread.catch_up(COPIES)
        for thread in threads:
            thread.catch_up(0)
    return [digest.hexdigest() for digest in digests]


def read_places(file: BinaryIO, places: Iterable[tuple[int, AnyArray]]) -> None:
    """Fills C-contiguous arrays, each from its place in an open file; several threads read, and are the first to touch
    the memory. Raises `MalformedFile` if the file ends."""

    def read(place: int, part: AnyArray) -> None:
        _read(part, lambda data, done: os.preadv(file.fileno(), [data], place + done))

    shared: list[tuple[int, AnyArray]] = []
    for place, array in places:
        for part in chunks("array", array):
            if isinstance(part, DeviceArray):  # a device is for this thread only
                read(place, part)
            else:
                shared.append((place, part))
            place += part.nbytes
    with ThreadPoolExecutor(READING, thread_name_prefix="paren-reading") as threads:
        deque(threads.map(lambda each: read(*each), shared), 0)


def _read(part: AnyArray, read: Callable[[memoryview, int], int]) -> Array:
    """Fills a part and gives its values in host memory. `read(data, done)` fills the beginning of `data`, after `done`
    bytes of the part, and gives its length; 0 at the end of the file."""
    chunk = np.empty(part.shape, part.dtype) if isinstance(part, DeviceArray) else part
    data = _bytes(chunk)
    done = 0
    while done < data.nbytes:
        count = read(data[done:], done)
        if not count:
            raise MalformedFile("the file ends inside a tensor")
        done += count
    if isinstance(part, DeviceArray):
        part[...] = chunk
    return chunk


def chunks(name: str, array: AnyArray) -> Iterator[AnyArray]:
    """The parts of a slot's array, at most `CHUNK` bytes each."""
    if not isinstance(array, DeviceArray) and not array.flags.c_contiguous:
        raise InternalError("checkpoint", f"slot '{name}' is not contiguous")
    return parts(array, CHUNK)


class _Thread:
    """A thread that does in order what it is given, `bytes` in all. Leaving the block waits for what it is doing."""

    def __init__(self, name: str) -> None:
        self.bytes = 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"paren-{name}")
        self._given: deque[Future[None]] = deque()

    def give(self, size: int, function: Callable[[T], None], argument: T) -> None:
        """Lets it call a function that handles so many bytes."""
        self.bytes += size
        self._given.append(self._thread.submit(function, argument))

    def catch_up(self, most: int) -> None:
        """Waits until it has at most so much left to do. Raises what a function raised."""
        while len(self._given) > most:
            self._given.popleft().result()

    def __enter__(self) -> _Thread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)


def _bytes(chunk: Array) -> memoryview:
    if sys.byteorder == "big" and chunk.dtype.itemsize > 1:
        raise InternalError("checkpoint", "checkpoints are little endian and this machine is not")
    return chunk.view(np.uint8).data


def _header(arrays: Mapping[str, AnyArray], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, array in arrays.items():
        end = begin + array.nbytes
        header[name] = {
            "dtype": FORMAT_NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    raw = json.dumps(header, separators=(",", ":")).encode()
    return raw + b" " * (-len(raw) % 8)


def _entry(entry: Mapping[str, object], start: int) -> Entry:
    shape, offsets = entry["shape"], entry["data_offsets"]
    if not isinstance(shape, list) or not isinstance(offsets, list) or not all(_is_count(n) for n in shape + offsets):
        raise TypeError("shape and offsets are lists of counts")
    begin, end = offsets
    return Entry(str(entry["dtype"]), tuple(shape), start + begin, start + end)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0

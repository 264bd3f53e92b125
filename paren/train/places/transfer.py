"""Large objects, sent and fetched in parts by several threads; a bounded number of parts is in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress

from paren.text.errors import ParenError
from paren.text.size import count_of
from paren.train.files import Bytes
from paren.train.places.object_store import AFTERWARDS, Bucket, Conflict

PART = 8 << 20  # bytes; stores want at least 5 MiB
MOST_PARTS = 9_000  # of the 10,000 that stores allow
THREADS = 4
HELD = (THREADS + 1) * PART  # bytes in memory while a file of at most `PART * MOST_PARTS` bytes crosses


class Upload:
    """An object that is being written. What fits into one part is sent as a whole."""

    def __init__(self, bucket: Bucket, key: str, size: int) -> None:
        self._bucket = bucket
        self._key = key
        self._part = bytearray(max(PART, -(-size // MOST_PARTS)))
        self._filled = 0
        self._id: str | None = None
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="paren-upload")
        self._sending: deque[Future[str]] = deque()
        self._tags: list[str] = []
        self._number = 0
        self._size = 0

    def write(self, data: Bytes) -> None:
        view = memoryview(data).cast("B")
        self._size += len(view)
        while view:
            if self._filled == len(self._part):
                size = len(self._part)
                self._send()
                self._part, self._filled = bytearray(size), 0
            count = min(len(view), len(self._part) - self._filled)
            self._part[self._filled : self._filled + count] = view[:count]
            self._filled += count
            view = view[count:]

    def push(self) -> None:
        """Parts are sent as they fill."""

    def finish(self) -> None:
        """Returns when the object stands with all its bytes."""
        del self._part[self._filled :]
        if self._id is None:
            self._bucket.put(self._key, bytes(self._part))
        else:
            self._send()
            self._wait(0)
            self._bucket.complete(self._key, self._id, self._tags)
        self._threads.shutdown()
        kept = self._bucket.stat(self._key).size
        if kept != self._size:
            raise ParenError(
                "E-S3-007",
                f"s3://{self._bucket.name}/{self._key} has {count_of(kept, 'byte')} instead of the {self._size} that "
                "were sent",
                fix="see that nothing else writes there, then go on with --resume auto",
            )

    def give_up(self) -> None:
        """Leaves nothing behind, as far as the store answers now; the next start does the rest."""
        self._threads.shutdown(cancel_futures=True)
        if self._id is not None:
            with afterwards(self._bucket), suppress(ParenError):
                self._bucket.abort(self._key, self._id)

    def _send(self) -> None:
        if self._id is None:
            self._id = self._bucket.begin(self._key)
        self._wait(THREADS - 1)
        self._number += 1
        self._sending.append(self._threads.submit(self._bucket.upload, self._key, self._id, self._number, self._part))

    def _wait(self, most: int) -> None:
        while len(self._sending) > most:
            self._tags.append(self._sending.popleft().result())


@contextmanager
def upload(bucket: Bucket, key: str, size: int) -> Iterator[Upload]:
    """Writes an object of about `size` bytes. It stands when the block ends, or there is nothing of it."""
    sink = Upload(bucket, key, size)
    try:
        yield sink
        sink.finish()
    except Exception:
        sink.give_up()
        raise


class Download:
    """An object that is read from its beginning to its end, some parts ahead."""

    def __init__(self, bucket: Bucket, key: str) -> None:
        found = bucket.stat(key)
        self.size = found.size
        self._bucket, self._key, self._tag = bucket, key, found.tag
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="paren-download")
        self._fetching: deque[Future[bytes]] = deque()
        self._asked = 0
        self._part = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        """At most so many bytes, fewer only at the end."""
        content = bytearray(min(size, self.size))
        view, done = memoryview(content), 0
        while done < len(content) and (count := self.readinto(view[done:])):
            done += count
        return bytes(content[:done])

    def readinto(self, buffer: memoryview, /) -> int:
        """Fills the buffer as far as there are bytes at hand; 0 at the end. Raises OSError if the object changed."""
        if not len(self._part):
            self._part = memoryview(b"")
            self._ask()
            if not self._fetching:
                return 0
            try:
                self._part = memoryview(self._fetching.popleft().result())
            except Conflict:
                raise OSError(f"s3://{self._bucket.name}/{self._key} changed while it was read") from None
            self._ask()
        count = min(len(buffer), len(self._part))
        buffer[:count] = self._part[:count]
        self._part = self._part[count:]
        return count

    def close(self) -> None:
        """Ends the reading ahead."""
        self._threads.shutdown(cancel_futures=True)

    def _ask(self) -> None:
        while len(self._fetching) < THREADS and self._asked < self.size:
            end = min(self._asked + PART, self.size)
            self._fetching.append(self._threads.submit(self._fetch, self._asked, end))
            self._asked = end

    def _fetch(self, begin: int, end: int) -> bytes:
        content = self._bucket.part(self._key, self._tag, begin, end)
        if len(content) != end - begin:
            raise ParenError(
                "E-S3-007",
                f"GetObject of s3://{self._bucket.name}/{self._key} gave {count_of(len(content), 'byte')} instead of "
                f"{end - begin}",
                fix="see docs/object-storage.md for what paren asks of a store",
            )
        return content


@contextmanager
def download(bucket: Bucket, key: str) -> Iterator[Download]:
    """Reads an object."""
    content = Download(bucket, key)
    try:
        yield content
    finally:
        content.close()


@contextmanager
def afterwards(bucket: Bucket) -> Iterator[None]:
    """A block that cleans up after what has failed already, and so waits for nothing long."""
    patience, bucket.patience = bucket.patience, AFTERWARDS
    try:
        yield
    finally:
        bucket.patience = patience

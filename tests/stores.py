"""A store that speaks as S3 does, as a process of its own on the loopback, and a proxy before it that does harm."""

from __future__ import annotations

import http.client
import os
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from rank_processes import free_port

KEY, SECRET = "AKIDNOTFORANYEYE0001", "verySecretThatNobodySees+/abc"
BUCKET = "paren-test"

PASS, BUSY, CUT, LOST, STALL = "pass", "busy", "cut", "lost", "stall"
_BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Reduce your rate</Message></Error>"


@contextmanager
def serving(**variables: str) -> Iterator[int]:
    """A store; gives its port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **variables},
    )
    try:
        deadline = time.monotonic() + 120
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/", timeout=10).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                assert process.poll() is None
                time.sleep(0.1)
        yield port
    finally:
        process.kill()
        process.wait()


def variables(port: int) -> dict[str, str]:
    """What a process needs to find the store, and nothing else."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }


def call(port: int, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    """A request without credentials, which the store asks of nobody unless it is told to."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request(method, path, body)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    return answer.status, content


@dataclass(frozen=True)
class Seen:
    """A request that came to the proxy: its number from 0."""

    number: int
    method: str
    path: str

    @property
    def name(self) -> str:
        """The verb of S3."""
        query = self.path.partition("?")[2]
        if "uploadId" in query:
            return {"PUT": "UploadPart", "POST": "CompleteMultipartUpload", "DELETE": "AbortMultipartUpload"}[
                self.method
            ]
        if "uploads" in query:
            return "CreateMultipartUpload" if self.method == "POST" else "ListMultipartUploads"
        if "list-type" in query:
            return "ListObjectsV2"
        return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}[self.method]


@dataclass
class Proxy:
    """Hands requests on to a store, and does with each what `harm` says: `pass`; `busy`: 503; `cut`: the connection
    ends within the body, or within the answer's; `lost`: the store does it, and the answer is lost; `stall`: nothing is
    said until the proxy closes. Bytes are an answer of status 403."""

    store: int
    harm: Callable[[Seen], str | bytes] = lambda seen: PASS
    seen: list[Seen] = field(default_factory=list)
    harmed: list[Seen] = field(default_factory=list)
    port: int = 0
    _closed: threading.Event = field(default_factory=threading.Event)
    _counting: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Proxy:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                with suppress(OSError):
                    super().handle_one_request()

            def log_message(self, *arguments: Any) -> None: ...

            def do(self) -> None:
                proxy._handle(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._server.shutdown()
        self._server.server_close()

    def _handle(self, request: BaseHTTPRequestHandler) -> None:
        with self._counting:
            seen = Seen(len(self.seen), request.command, request.path)
            self.seen.append(seen)
            harm = self.harm(seen)
            if harm != PASS:
                self.harmed.append(seen)
        size = int(request.headers.get("Content-Length", 0))
        request.close_connection = True
        if harm == STALL:
            self._closed.wait(60)
            return
        if harm == CUT and size > 1:
            request.rfile.read(size // 2)
            return
        body = request.rfile.read(size)
        if harm == BUSY or isinstance(harm, bytes):
            answer = _BUSY if harm == BUSY else harm
            request.send_response(503 if harm == BUSY else 403)
            request.send_header("Content-Length", str(len(answer)))
            request.end_headers()
            if request.command != "HEAD":
                request.wfile.write(answer)
            return
        onward = http.client.HTTPConnection("127.0.0.1", self.store, timeout=60)
        kept = {name: value for name, value in request.headers.items() if name.lower() not in ("expect", "connection")}
        onward.request(request.command, request.path, body, kept)
        answered = onward.getresponse()
        content = answered.read()
        if harm == LOST:
            return
        request.send_response_only(answered.status)
        for name, value in answered.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                request.send_header(name, value)
        length = answered.getheader("Content-Length") if request.command == "HEAD" else str(len(content))
        request.send_header("Content-Length", length or "0")
        request.end_headers()
        request.wfile.write(content[: len(content) // 2] if harm == CUT else content)
        onward.close()

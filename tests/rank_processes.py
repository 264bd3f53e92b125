"""Several ranks as real processes on the loopback, for tests: each runs a function of a test module."""

from __future__ import annotations

import secrets
import socket
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from warm import LIMIT, warm_context


def free_port() -> int:
    """A port that nobody listens at, and none of those that a system gives to whoever asks for any: another process
    would get it before the one that it is meant for."""
    while True:
        port = 10_000 + secrets.randbelow(22_000)
        with socket.socket() as listener, suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


def run_ranks(count: int, function: Callable[..., Any], *given: object) -> list[Any]:
    """`function(rank, port, *given)` in `count` processes; gives their results by rank."""
    context = warm_context()
    answers, port = context.Queue(), free_port()
    processes = [
        context.Process(target=_run, args=(answers, function, rank, port, given), daemon=True) for rank in range(count)
    ]
    for process in processes:
        process.start()
    try:
        results = dict(answers.get(timeout=LIMIT) for _ in processes)
    finally:
        for process in processes:
            process.join(10)
            process.kill()
    failures = [text for failed, text in results.values() if failed]
    assert not failures, failures[0]
    return [results[rank][1] for rank in range(count)]


def _run(answers: Any, function: Callable[..., Any], rank: int, port: int, given: tuple[object, ...]) -> None:
    try:
        answers.put((rank, (False, function(rank, port, *given))))
    except BaseException:
        answers.put((rank, (True, traceback.format_exc())))
        raise

"""The store of a run: keys and values that all its ranks and launchers see, over TCP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, cast

from paren.collection import uncollected
from paren.environment import quieten_stores
from paren.parallel.topology import Address

PAUSE, LATER = 0.1, 10.0  # seconds between two looks, and in which the library keeps to its limit


class Store(Protocol):
    """What is used of torch's store. A call fails with RuntimeError if its server is gone."""

    @property
    def port(self) -> int: ...

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes: ...

    def add(self, key: str, amount: int, /) -> int: ...


def open_store(address: Address, ranks: int, serves: bool, timeout: float) -> Store:
    """The store at an address, which the process that `serves` holds for all; port 0 takes a free one.

    Raises RuntimeError if it is not reached within `timeout` seconds.
    """
    quieten_stores()
    with uncollected():
        import torch.distributed as distributed  # only where a run has several ranks

    limit = timedelta(seconds=timeout)
    store = distributed.TCPStore(  # type: ignore[attr-defined]  # public, and not in the list of its module
        address.host, address.port, ranks, is_master=serves, timeout=limit, wait_for_workers=False
    )
    return cast(Store, store)


def reach_store(address: Address, ranks: int, timeout: float, look: Callable[[], None], attempt: int = 0) -> Store:
    """The store at an address, which another process holds. `look` is called now and then until it is reached, and may
    end the process, or raise. At another `attempt` the store holds other values.

    Raises RuntimeError if it is not reached within `timeout` seconds.
    """
    quieten_stores()
    import torch.distributed as distributed  # only where a run has several ranks; not in a thread that may be left

    ends: list[Store | RuntimeError] = []

    def reach() -> None:
        try:
            ends.append(open_store(address, ranks, False, timeout))
        except RuntimeError as error:
            ends.append(error)

    # A thread, as the library waits without an end for whoever takes the connection, and is no store.
    thread = threading.Thread(target=reach, name="paren-reaching", daemon=True)
    thread.start()
    deadline = time.monotonic() + timeout + LATER
    while thread.is_alive():
        look()
        if time.monotonic() > deadline:
            raise RuntimeError(f"what listens at {address} does not answer as a store does")
        thread.join(PAUSE)
    found = ends[0]
    if isinstance(found, RuntimeError):
        raise found
    wrapped = distributed.PrefixStore  # type: ignore[attr-defined]  # public, and not in the list of its module
    return cast(Store, wrapped(f"attempt {attempt}", found)) if attempt else found  # type: ignore[arg-type]

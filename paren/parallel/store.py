"""The store of a run: keys and values that all its ranks and launchers see, over TCP."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Protocol, cast

from paren.collection import uncollected
from paren.environment import quieten_stores
from paren.parallel.topology import Address

TRY, PAUSE = 2.0, 0.1  # seconds of a try to reach a store, and between two


class Store(Protocol):
    """What is used of torch's store. A call fails with RuntimeError if its server is gone."""

    @property
    def port(self) -> int: ...

    def set_timeout(self, timeout: timedelta, /) -> None: ...

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
    deadline = time.monotonic() + timeout
    while True:
        look()
        try:
            store = open_store(address, ranks, False, max(PAUSE, min(TRY, deadline - time.monotonic())))
            break
        except RuntimeError:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE)
    import torch.distributed as distributed  # loaded already

    store.set_timeout(timedelta(seconds=timeout))
    prefixed = distributed.PrefixStore(f"attempt {attempt}", store) if attempt else store  # type: ignore
    return cast(Store, prefixed)

"""The store of a run: keys and values that all its ranks and launchers see, over TCP."""

from __future__ import annotations

from datetime import timedelta
from typing import Protocol, cast

from paren.collection import uncollected
from paren.environment import quieten_stores
from paren.parallel.topology import Address


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

"""The network interface on which the other ranks of a run reach this one.

Left alone, Gloo listens where the machine's own name leads, which on many machines is the loopback interface: ranks of
several nodes then look for each other each on its own machine.
"""

from __future__ import annotations

import ctypes
import ipaddress
import socket
import sys
import time
from collections.abc import Iterator

from paren.environment import GLOO_INTERFACE, chosen_interfaces, use_interface
from paren.parallel.route import LOOPBACK, is_loopback, own_address
from paren.parallel.store import Store
from paren.parallel.topology import Address, Topology
from paren.text.errors import ParenError

PAUSE = 0.05  # seconds between two looks at a key
NEIGHBOUR = "address of node 1"  # key


class _Interface(ctypes.Structure):
    """`struct ifaddrs` of the C library, as far as it is read."""


_Interface._fields_ = [
    ("next", ctypes.POINTER(_Interface)),
    ("name", ctypes.c_char_p),
    ("flags", ctypes.c_uint),
    ("address", ctypes.c_void_p),
]


def choose_interface(topology: Topology, meeting: Address, store: Store) -> str:
    """Lets this rank listen on the interface that leads to the other nodes, or on the loopback interface if there are
    none, unless GLOO_SOCKET_IFNAME names one; gives what it is called in messages. All ranks of all nodes come to it.

    Raises E-DP-007 if no such interface as named is there.
    """
    given, names = chosen_interfaces(), [name for _, name in socket.if_nameindex()]
    for name in given:
        if name not in names:
            raise ParenError(
                "E-DP-007",
                f"{GLOO_INTERFACE} names {name}, which is no interface of {socket.gethostname()}",
                fix=f"name one of {', '.join(names)}, or leave the variable out",
            )
    own = LOOPBACK if topology.nodes == 1 else _address_between_nodes(topology, meeting, store)
    if given:
        return ", ".join(given)
    found = interface_of(own)
    if found is not None:
        use_interface(found)
    return f"{found}, {own}" if found is not None else "of this machine's name"


def interface_of(address: str) -> str | None:
    """The name of the interface that has an address, given as a number; None if none has it, or the system does not
    tell."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for name, found in _addresses() if found == wanted), None)


def _address_between_nodes(topology: Topology, meeting: Address, store: Store) -> str:
    """The address of this node on the way to the others. To node 0, where all meet, the meeting may have a name that
    leads back to itself; it takes the way to node 1."""
    own = _address_towards(meeting.host)
    if topology.node == 1:
        store.set(NEIGHBOUR, own)
    if topology.node or not is_loopback(own):
        return own
    while not store.check([NEIGHBOUR]):
        time.sleep(PAUSE)
    return _address_towards(store.get(NEIGHBOUR).decode())


def _address_towards(host: str) -> str:
    """The own address from which a host is reached; that of the loopback interface if it is not."""
    try:
        family, _, _, _, target = socket.getaddrinfo(host, 1, type=socket.SOCK_DGRAM)[0]
    except OSError:
        return LOOPBACK
    return own_address(family, (str(target[0]), 1)) or LOOPBACK


def _addresses() -> Iterator[tuple[str, ipaddress.IPv4Address | ipaddress.IPv6Address]]:
    """All interfaces of this machine that have an address, each with one."""
    library = ctypes.CDLL(None)
    first = ctypes.POINTER(_Interface)()
    if not hasattr(library, "getifaddrs") or library.getifaddrs(ctypes.byref(first)):
        return
    try:
        at = first
        while at:
            each = at.contents
            if each.address:
                # Where the BSDs keep a length and a family, a byte each, Linux keeps the family in both.
                family = ctypes.string_at(each.address, 2)
                number = int.from_bytes(family, "little") if sys.platform == "linux" else family[1]
                if number == socket.AF_INET:
                    yield each.name.decode(), ipaddress.IPv4Address(ctypes.string_at(each.address + 4, 4))
                elif number == socket.AF_INET6:
                    yield each.name.decode(), ipaddress.IPv6Address(ctypes.string_at(each.address + 8, 16))
            at = each.next
    finally:
        library.freeifaddrs(first)

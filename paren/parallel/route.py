"""How this machine would reach an address: what a failed meeting of nodes says beside the address itself."""

from __future__ import annotations

import ipaddress
import socket

from paren.parallel.topology import Address
from paren.text.errors import system_reason

LOOPBACK = "127.0.0.1"


def describe_route(address: Address) -> list[str]:
    """What the host is resolved to, and from which own address it would be reached, in sentences."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_DGRAM)
    except OSError as error:
        return [f"this machine does not know the host {address.host} ({system_reason(error)})"]
    family, _, _, _, target = found[0]
    number = str(target[0])
    lines = []
    if number != address.host:
        lines.append(f"{address.host} is {number} here")
    own = own_address(family, (number, address.port))
    lines.append(f"{number} is reached from {own}" if own else f"no interface of this machine leads to {number}")
    if is_loopback(number):
        lines.append("that is the loopback interface, which leads to this machine only")
    return lines


def own_address(family: int, target: tuple[str, int]) -> str:
    """The address of the interface that leads to a target; empty if none does. Nothing is sent."""
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(target)
        except OSError:
            return ""
        return str(probe.getsockname()[0])


def is_loopback(number: str) -> bool:
    """Whether a numeric address never leaves its machine."""
    return ipaddress.ip_address(number.partition("%")[0]).is_loopback

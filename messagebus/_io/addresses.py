"""The addresses of a host's name, tried side by side until one of them answers (RFC 8305).

A try ends with what the caller asks of the other side, its handshake included, not with a TCP connection:
a balancer or broker that hangs accepts connections, too. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from itertools import chain, zip_longest
from typing import TypeVar

# Time for one address before the next one is tried beside it: RFC 8305's recommendation.
NEXT_AFTER_MS = 250

T = TypeVar("T")


def is_number(host: str) -> bool:
    """Return whether the host is an IP address, without brackets, and needs no resolver."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


async def addresses_of(host: str, port: int) -> list[str]:
    """Return the IP addresses of a name, as the resolver orders them, IPv6 and IPv4 by turns.

    Raises OSError. Takes as long as the system's resolver.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    families: dict[int, list[str]] = {}
    for family, _type, _protocol, _name, at in found:
        numbers = families.setdefault(family, [])
        scope = f"%{at[3]}" if len(at) == 4 and at[3] else ""
        numbers.append(f"{at[0]}{scope}")
    by_turns = chain.from_iterable(zip_longest(*families.values()))
    return list(dict.fromkeys(each for each in by_turns if each))


async def first_answer(
    addresses: Sequence[str],
    ask: Callable[[str], Awaitable[T]],
    *,
    next_after_ms: int = NEXT_AFTER_MS,
    drop: Callable[[T], Awaitable[object]],
    ends_all: Callable[[Exception], bool] = lambda _fault: False,
) -> T:
    """Ask one address after the other, without waiting for those before; return the first answer.

    ask: raises where an address does not answer; then the next is asked at once. drop: closes an answer that
    came too late. ends_all: True for a fault after which no other address is asked. Raises that fault, or an
    ExceptionGroup of the faults of all addresses, in the order in which they came.
    """
    left, running = deque(addresses), set[asyncio.Future[T]]()
    faults: list[Exception] = []
    try:
        while left or running:
            if left:
                running.add(asyncio.ensure_future(ask(left.popleft())))
            patience_s = next_after_ms / 1000 if left else None
            done, running = await asyncio.wait(
                running, timeout=patience_s, return_when=asyncio.FIRST_COMPLETED
            )
            for each in done:
                fault = each.exception()
                if fault is None:
                    running |= done - {each}
                    return each.result()
                if not isinstance(fault, Exception) or ends_all(fault):
                    running |= done - {each}
                    raise fault
                faults.append(fault)
    finally:
        for each in running:
            each.cancel()
        for late in await asyncio.gather(*running, return_exceptions=True):
            if not isinstance(late, BaseException):
                await drop(late)
    raise ExceptionGroup("no address answers", faults)

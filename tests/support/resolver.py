"""Names of a test's own, with the addresses that it gives them, in its order."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from messagebus._io import loop


def resolve(monkeypatch: pytest.MonkeyPatch, names: Mapping[str, Sequence[str]]) -> list[str]:
    """Have these names resolved to these addresses, others as before. Returns a list of what is asked."""
    before, asked = socket.getaddrinfo, list[str]()

    def getaddrinfo(host: Any, port: Any, *args: Any, **options: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else host
        if name not in names:
            return before(host, port, *args, **options)
        asked.append(name)
        if not names[name]:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [_found(address, port) for address in names[name]]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    # uvloop has a resolver of its own.
    monkeypatch.setattr(loop, "_new_loop", loop._Loop)
    return asked


def _found(address: str, port: int) -> Any:
    is_new = ipaddress.ip_address(address).version == 6
    family, at = (
        (socket.AF_INET6, (address, port, 0, 0)) if is_new else (socket.AF_INET, (address, port))
    )
    return family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", at

"""Edits the text of an inventory, keeping what a person wrote around the edit. Pure."""

from __future__ import annotations

import re
import tomllib

from ops.errors import OpsError

__all__ = ["with_host", "without_broker"]

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_BROKER = re.compile(r"^\s*\[\[\s*brokers\s*\]\]", re.MULTILINE)
_HOST = re.compile(r"^\s*host\s*=.*$", re.MULTILINE)


def without_broker(text: str, name: str) -> str:
    """The same text without the ``[[brokers]]`` table of this name.

    Unchanged when there is none. Raises OpsError when the rest would not say the same as before.
    """
    before = tomllib.loads(text)
    wanted = [broker for broker in before.get("brokers", []) if broker.get("name") != name]
    if wanted == before.get("brokers", []):
        return text
    for table in _BROKER.finditer(text):
        follows = _TABLE.search(text, table.end())
        end = follows.start() if follows else len(text)
        edited = text[: table.start()] + text[end:]
        if tomllib.loads(edited) == {**before, "brokers": wanted}:
            return edited
        if not wanted and tomllib.loads(edited).get("brokers") is None:
            return edited
    raise OpsError(f"cannot take {name} out of the inventory by itself; edit the file")


def with_host(text: str, name: str, host: str) -> str:
    """The same text, with the broker of this name on this host.

    Raises OpsError when the rest would not say the same as before.
    """
    before = tomllib.loads(text)
    wanted = [
        {**broker, "host": host} if broker.get("name") == name else broker
        for broker in before.get("brokers", [])
    ]
    if wanted == before.get("brokers", []):
        return text
    for table in _BROKER.finditer(text):
        follows = _TABLE.search(text, table.end())
        end = follows.start() if follows else len(text)
        inside, line = text[table.end() : end], f'host = "{host}"'
        inside = _HOST.sub(line, inside, count=1) if _HOST.search(inside) else f"\n{line}{inside}"
        edited = text[: table.end()] + inside + text[end:]
        if tomllib.loads(edited) == {**before, "brokers": wanted}:
            return edited
    raise OpsError(f"cannot write down that {name} is on {host} by itself; edit the file")

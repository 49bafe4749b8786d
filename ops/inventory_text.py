"""Edits the text of an inventory, keeping what a person wrote around the edit. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator

from ops.errors import OpsError

__all__ = ["broker_table", "with_broker", "without_broker"]

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_BROKER = re.compile(r"^\s*\[\[\s*brokers\s*\]\]", re.MULTILINE)


def broker_table(text: str, name: str) -> str:
    """The text of the ``[[brokers]]`` table of this name, "" when there is none."""
    for begin, end in _tables(text):
        table = text[begin:end]
        if tomllib.loads(table)["brokers"][0].get("name") == name:
            return table
    return ""


def with_broker(text: str, table: str) -> str:
    """The same text with that table at its end; unchanged when there is one of that name.

    Raises OpsError when it is not one table of a broker.
    """
    try:
        (broker,) = tomllib.loads(table)["brokers"]
        name = broker["name"]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as fault:
        raise OpsError("not one [[brokers]] table with a name") from fault
    known = [each.get("name") for each in tomllib.loads(text).get("brokers", [])]
    return text if name in known else f"{text.rstrip()}\n\n{table.strip()}\n"


def without_broker(text: str, name: str) -> str:
    """The same text without the ``[[brokers]]`` table of this name.

    Unchanged when there is none. Raises OpsError when the rest would not say the same as before.
    """
    before = tomllib.loads(text)
    wanted = [broker for broker in before.get("brokers", []) if broker.get("name") != name]
    if wanted == before.get("brokers", []):
        return text
    for begin, end in _tables(text):
        edited = text[:begin] + text[end:]
        if tomllib.loads(edited) == {**before, "brokers": wanted}:
            return edited
        if not wanted and tomllib.loads(edited).get("brokers") is None:
            return edited
    raise OpsError(f"cannot take {name} out of the inventory by itself; edit the file")


def _tables(text: str) -> Iterator[tuple[int, int]]:
    """Where each table of a broker begins and ends."""
    for table in _BROKER.finditer(text):
        follows = _TABLE.search(text, table.end())
        yield table.start(), follows.start() if follows else len(text)

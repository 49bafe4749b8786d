"""Edits of an inventory's text that keep everything a person wrote around the edit. Pure."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from typing import Any

from ops.errors import OpsError

_TABLE = re.compile(r"^\s*\[", re.MULTILINE)
_KINDS = ("mirrors", "brokers")


def broker_table(text: str, name: str) -> str:
    """Return the text of the ``[[brokers]]`` table of this name, "" when there is none."""
    for begin, end in _tables(text, "brokers"):
        table = text[begin:end]
        parsed = _parsed(table)
        if parsed and parsed["brokers"][0].get("name") == name:
            return table
    return ""


def with_broker(text: str, table: str) -> str:
    """Return the text with that table at its end; unchanged when it has one of that name.

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
    """Return the text without the ``[[brokers]]`` table of this name, and without its mirror's.

    Unchanged when there is none. Raises OpsError when the rest would change its meaning.
    """
    for kind in _KINDS:
        text = _without(text, kind, name)
    return text


def _without(text: str, kind: str, name: str) -> str:
    before = tomllib.loads(text)
    wanted = [each for each in before.get(kind, []) if each.get("name") != name]
    if wanted == before.get(kind, []):
        return text
    rest = {key: value for key, value in before.items() if key != kind}
    good = [{**rest, kind: wanted}] if wanted else [rest, {**rest, kind: []}]
    for begin, end in _tables(text, kind):
        edited = text[:begin] + text[end:]
        if _parsed(edited) in good:
            return edited
    raise OpsError(f"cannot take {name} out of the inventory by itself; edit the file")


def with_value(text: str, name: str, key: str, value: str) -> str:
    """Return the text in which the broker of this name has this value: its host, or its version.

    Raises OpsError when the rest would change its meaning.
    """
    before = tomllib.loads(text)
    wanted = [
        {**broker, key: value} if broker.get("name") == name else broker
        for broker in before.get("brokers", [])
    ]
    if wanted == before.get("brokers", []):
        return text
    line = f'{key} = "{value}"'
    there = re.compile(rf"^\s*{key}\s*=.*$", re.MULTILINE)
    for begin, end in _tables(text, "brokers"):
        table = text[begin:end]
        if there.search(table):
            table = there.sub(line, table, count=1)
        else:
            table = table.replace("]]", f"]]\n{line}", 1)
        edited = text[:begin] + table + text[end:]
        if _parsed(edited) == {**before, "brokers": wanted}:
            return edited
    raise OpsError(f"cannot write {line} for {name} by itself; edit the file")


def _parsed(text: str) -> dict[str, Any] | None:
    """Parse a text. Returns None where it is no TOML."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def _tables(text: str, kind: str) -> Iterator[tuple[int, int]]:
    """Yield the beginning of each table of this kind, and the end of its last line with content."""
    for table in re.finditer(rf"^\s*\[\[\s*{kind}\s*\]\]", text, re.MULTILINE):
        follows = _TABLE.search(text, table.end())
        lines = text[table.end() : follows.start() if follows else len(text)].splitlines(
            keepends=True
        )
        # Comments and blank lines at its end belong to the next table.
        while len(lines) > 1 and lines[-1].lstrip()[:1] in ("", "#"):
            lines.pop()
        yield table.start(), table.end() + len("".join(lines))

"""Strict reader of one table of a TOML file: unknown, missing and wrong keys are faults; all are reported."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from messagebus.broker import Broker
from messagebus.terminal import did_you_mean

__all__ = ["NAME", "Address", "Table"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,62}")
"""Form of names of brokers, hosts and balancers."""


class Address(NamedTuple):
    """Host and port of one TCP service."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class Table:
    """One table of the file. Collects faults; returns a placeholder for a wrong value."""

    def __init__(
        self, values: Mapping[str, Any], where: str, base: Path, faults: list[str]
    ) -> None:
        self._values = values
        self._where = where
        self._base = base
        self._faults = faults
        self._known: set[str] = set()

    def text(self, key: str, allowed: re.Pattern[str], *, required: bool = True) -> str:
        if not required and key not in self._values:
            self._known.add(key)
            return ""
        value = self._take(key, str)
        if value is not None and not allowed.fullmatch(value):
            self._fault(key, f"{value!r} is not of the form {allowed.pattern}")
        return value or ""

    def choice(self, key: str, *allowed: str, required: bool = True) -> int:
        """Return the index of the value in allowed; 0 where it is missing and not required."""
        if not required and key not in self._values:
            self._known.add(key)
            return 0
        value = self._take(key, str)
        if value is not None and value not in allowed:
            self._fault(key, f"{value!r}; allowed: {', '.join(allowed)}")
        return allowed.index(value) if value in allowed else 0

    def path(self, key: str, *, absolute: bool = False) -> Path:
        value = self._take(key, str)
        if value is not None and (not value or any(ord(sign) < 32 for sign in value)):
            self._fault(key, f"{value!r} is not a path")
        elif value is not None and absolute and not value.startswith("/"):
            self._fault(key, f"{value!r} is on another host: an absolute path wanted")
        return self._base / (value or ".")

    def address(self, key: str) -> Address:
        value = self._take(key, str)
        try:
            if value is not None and ":" not in value.rpartition("]")[2]:
                raise ValueError(f"no port in {value!r}")
            broker = Broker.parse(value or "none:1")
        except ValueError as fault:
            self._fault(key, str(fault))
            return Address("none", 1)
        return Address(broker.host, broker.port)

    def texts(self, key: str, allowed: re.Pattern[str], *, count: int) -> tuple[str, ...]:
        """Return an array of `count` different texts."""
        values = self._take(key, list)
        if values is None:
            return ("",) * count
        if len(values) != count or len(set(map(str, values))) != count:
            self._fault(key, f"{values!r}; {count} different ones wanted")
            return ("",) * count
        for value in values:
            if not isinstance(value, str) or not allowed.fullmatch(value):
                self._fault(key, f"{value!r} is not of the form {allowed.pattern}")
        return tuple(map(str, values))

    def number(self, key: str, default: int | None) -> int:
        """Return a whole number above 0. default None: the key is required."""
        self._known.add(key)
        if default is None and key not in self._values:
            self._fault(key, "missing")
        value = self._values.get(key, default or 1)
        if type(value) is not int or not 1 <= value <= 10_000_000:
            self._fault(key, f"{value!r} is not a whole number from 1 to 10,000,000")
            return default or 1
        return value

    def flag(self, key: str) -> bool:
        """Return true or false; false when the key is missing."""
        self._known.add(key)
        return key in self._values and bool(self._take(key, bool))

    def table(self, key: str, *, required: bool = True) -> Table:
        if not required and key not in self._values:
            self._known.add(key)
            return self._sub({}, key)
        return self._sub(self._take(key, dict) or {}, key)

    def tables(self, key: str, *, common: str = "") -> list[Table]:
        """Return an array of tables; none when the key is missing.

        common: key of a table with the values that they have in common; the values of each table win.
        """
        self._known.add(key)
        values = self._values.get(key, [])
        if not isinstance(values, list) or not all(isinstance(value, dict) for value in values):
            self._fault(key, "tables wanted")
            return []
        shared: dict[str, Any] = {}
        if values and common in self._values:
            shared = self._take(common, dict) or {}
        return [self._sub(shared | value, f"{key}[{index}]") for index, value in enumerate(values)]

    def nothing_else(self) -> None:
        for key in self._values:
            if key not in self._known:
                self._fault(key, f"unknown key{did_you_mean(key, self._known)}")

    def _sub(self, values: Mapping[str, Any], key: str) -> Table:
        return Table(values, f"{self._where}{key}.", self._base, self._faults)

    def _take(self, key: str, kind: type[Any]) -> Any:
        self._known.add(key)
        if key not in self._values:
            return self._fault(key, "missing")
        value = self._values[key]
        if not isinstance(value, kind):
            return self._fault(key, f"{kind.__name__} wanted, not {type(value).__name__}")
        return value

    def _fault(self, key: str, what: str) -> None:
        self._faults.append(f"{self._where}{key}: {what}")

"""Conversion of a file's table into a dataclass, by its annotations; a line names each invalid value.

It knows texts, numbers, truth values and arrays of them. A number must be finite and fit into a float. The
meaning of a field is not checked here, except for the bounds of a number.
"""

from __future__ import annotations

import dataclasses
import math
import reprlib
import typing
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

from messagebus.terminal import did_you_mean

__all__ = ["ANY", "Bounds", "beyond", "known", "made"]

T = TypeVar("T")
WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}
ANY = math.inf
"""The upper bound of a field without one."""
Bounds = Mapping[str, tuple[float, float]]
"""Field -> its lower and upper bound."""


def made(kind: type[T], table: object, prefix: str, faults: list[str]) -> T | None:
    """Make a dataclass of a table; add a line to `faults` for each unknown or missing name and invalid value.

    An invalid field gets its default, so that the other fields can still be checked. Returns None if a field
    without a default is invalid. Fields that are neither numbers, texts nor arrays of these are not checked.
    """
    if not isinstance(table, Mapping):
        faults.append(f"{prefix.rstrip('.')}: a table wanted")
        return None
    hints = typing.get_type_hints(kind)
    needed = {
        each.name
        for each in dataclasses.fields(kind)  # type: ignore[arg-type]
        if each.default is dataclasses.MISSING and each.default_factory is dataclasses.MISSING
    }
    known(table, hints, prefix, faults)
    faults += [f"{prefix}{name}: is missing" for name in hints if name in needed - table.keys()]
    values = {}
    for name, value in table.items():
        if name not in hints:
            continue
        try:
            values[name] = _fitted(value, hints[name])
        except ValueError:
            faults.append(f"{prefix}{name}: {_word(hints[name])} wanted, not {reprlib.repr(value)}")
    return kind(**values) if needed <= values.keys() else None


def known(given: Mapping[str, Any], names: Collection[str], prefix: str, faults: list[str]) -> None:
    """Add a line for each name that is not one of these, with the most similar one."""
    for name in given:
        if name not in names:
            hint = did_you_mean(f"{prefix}{name}", [f"{prefix}{each}" for each in names])
            faults.append(f"{prefix}{name} is not known{hint}")


def beyond(part: object, prefix: str, bounds: Bounds) -> list[str]:
    """Return a line for each field of a part that is not within its bounds."""
    found = []
    for name, (least, most) in bounds.items():
        value = getattr(part, name)
        if not least <= value <= most:
            words = f"{least:,} or more" if most == ANY else f"{least:,} to {most:,}"
            found.append(f"{prefix}{name}: {words} wanted, not {value!r}")
    return found


def _fitted(value: Any, hint: Any) -> Any:
    """Convert a value to its field's type: arrays become tuples. Raises ValueError for an invalid value."""
    if typing.get_origin(hint) is tuple:
        return _array(value, typing.get_args(hint))
    if hint is float:
        if type(value) not in (int, float) or not _is_finite(value):
            raise ValueError
    elif hint in WORDS and type(value) is not hint:
        raise ValueError
    return value


def _array(value: Any, hints: tuple[Any, ...]) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        raise ValueError
    if hints[-1] is Ellipsis:
        return tuple(_fitted(each, hints[0]) for each in value)
    return tuple(_fitted(each, hint) for each, hint in zip(value, hints, strict=True))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _word(hint: Any) -> str:
    if typing.get_origin(hint) is not tuple:
        return WORDS[hint]
    inner = typing.get_args(hint)
    if inner[-1] is Ellipsis:
        return f"an array, each {_word(inner[0])},"
    return f"[{', '.join(map(_word, inner))}]"

"""Checks of settings: all faults of a value are collected, and one `ConfigError` lists them."""

from __future__ import annotations

from collections.abc import Iterable

from messagebus.errors import ConfigError

__all__ = ["flag_faults", "number_text", "raise_faults", "range_faults"]


def range_faults(settings: object, **allowed: tuple[float, float]) -> list[str]:
    """Return a line for each attribute that is no number of its range.

    allowed: attribute -> lowest and highest value; a whole number is wanted where both are of type int.
    """
    faults = []
    for key, (low, high) in allowed.items():
        value: object = getattr(settings, key)
        is_whole = type(low) is int and type(high) is int
        is_number = type(value) is int or (type(value) is float and not is_whole)
        if not (is_number and low <= value <= high):  # type: ignore[operator]
            faults.append(f"{key} {value!r}: {number_text(low)} to {number_text(high)}")
    return faults


def flag_faults(settings: object, *names: str) -> list[str]:
    """Return a line for each attribute that is no flag: the text "false" would be true."""
    given = {name: getattr(settings, name) for name in names}
    return [
        f"{name} {value!r}: True or False"
        for name, value in given.items()
        if type(value) is not bool
    ]


def number_text(number: float) -> str:
    """Return a bound as people read it: ``86,400``, ``0.001``."""
    return f"{int(number):,}" if number == int(number) else f"{number:g}"


def raise_faults(faults: Iterable[str]) -> None:
    """Raise ConfigError with all faults, if there are any."""
    if text := "; ".join(faults):
        raise ConfigError(text)

"""Numbers that come from outside, of a JSON value or of a text, read within a range. Pure."""

from __future__ import annotations

import math

__all__ = ["read_number", "read_whole"]

# A longer text is of no range here; for one of thousands of digits Python has an error of its own.
CHARS_MAX = 40


def read_whole(value: object, low: int, high: int) -> int:
    """Return a whole number from low to high, of an int or a text of its digits. Raises ValueError."""
    found = value
    if isinstance(value, str):
        digits = value.removeprefix("-")
        is_one = digits.isascii() and digits.isdigit() and len(digits) <= CHARS_MAX
        found = int(value) if is_one else None
    if type(found) is int and low <= found <= high:
        return found
    raise ValueError(f"a whole number from {low:,} to {high:,} wanted")


def read_number(value: object, low: float, high: float) -> float:
    """Return a number from low to high, of an int, a float or a text of one. Raises ValueError."""
    found = math.nan
    if isinstance(value, str):
        found = _number_of(value)
    elif isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
        found = float(value)
    if low <= found <= high:
        return found
    raise ValueError(f"a number from {low:,g} to {high:,g} wanted")


def _number_of(text: str) -> float:
    if not (text.isascii() and len(text) <= CHARS_MAX) or "_" in text or text.strip() != text:
        return math.nan
    try:
        return float(text)
    except ValueError:
        return math.nan

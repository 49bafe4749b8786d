"""Forms of a profile's values, for pydantic, and the line that names an invalid one."""

from __future__ import annotations

import math
import re
import reprlib
from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Field
from pydantic_core import ErrorDetails

from messagebus.terminal import closest

Whole = Annotated[int, Field(strict=True)]
Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
UNIT = re.compile(r"(_per)?_n?s$")
# pydantic's kinds of faults -> the wanted value.
WORDS = {
    "int_type": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "string_type": "a text",
    "dataclass_type": "a table",
    "model_attributes_type": "a table",
    "too_long": "fewer values",
    "tuple_type": "an array",
}


def wanted(words: str, holds: Callable[[Any], object]) -> AfterValidator:
    """Return a rule of a value. words: what is wanted."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise ValueError(words)
        return value

    return AfterValidator(check)


def within(least: float, most: float = math.inf) -> AfterValidator:
    """Return the bounds of a number."""
    words = f"{least:,} or more" if most == math.inf else f"{least:,} to {most:,}"
    return wanted(words, lambda value: least <= value <= most)


def one_of(names: Collection[str]) -> AfterValidator:
    return wanted(f"one of {', '.join(names)}", names.__contains__)


def fault_line(fault: ErrorDetails, place: Sequence[str | int], names: Collection[str]) -> str:
    """Return a fault in one line. place: of its value. names: of the table in which the value is."""
    where = "".join(f"[{each}]" if isinstance(each, int) else f".{each}" for each in place)[1:]
    kind = fault["type"]
    if kind == "missing":
        return f"{where}: is missing"
    if kind == "unexpected_keyword_argument":
        meant = _meant(str(place[-1]), names)
        prefix = where.removesuffix(str(place[-1]))
        return f"{where} is not known" + (f"; did you mean {prefix + meant!r}?" if meant else "")
    words = str(fault["ctx"]["error"]) if kind == "value_error" else WORDS.get(kind, fault["msg"])
    return f"{where}: {words} wanted, not {reprlib.repr(fault['input'])}".lstrip(": ")


def _meant(word: str, names: Collection[str]) -> str:
    """Return the setting that may have been meant, with or without its unit; "" where none is like it.

    Names alone are compared: that of their table would make any two settings alike.
    """
    known = {UNIT.sub("", name): name for name in names} | {name: name for name in names}
    return known.get(closest(word, known), "")

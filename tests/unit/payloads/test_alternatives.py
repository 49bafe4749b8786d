"""The alternative of a union that a value belongs to, and unions that cannot be told apart."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Literal, TypedDict
from uuid import UUID

import pytest

from messagebus.payloads.alternatives import Unfit, Unusable
from messagebus.payloads.fitting import fitter


class Size(enum.Enum):
    SMALL = "s"


class OtherSize(enum.Enum):
    SHORT = "s"


class Tone(enum.StrEnum):
    LOUD = "loud"


class Level(enum.IntEnum):
    ONE = 1


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


@dataclass
class Created:
    id: int


@dataclass
class Cancelled:
    id: int
    reason: str


@dataclass
class Paid:
    id: int
    kind: Literal["paid"] = "paid"


@dataclass
class Repaid:
    id: int
    kind: Literal["paid", "repaid"] = "repaid"


@dataclass
class Refunded:
    id: int
    reason: str = ""
    kind: Literal["refunded", "returned"] = "refunded"


@dataclass
class Numbered:
    id: int


@dataclass
class Named:
    id: str


@dataclass
class Left:
    left: int


@dataclass
class Right:
    right: int


@dataclass
class Chain:
    next: Chain | None


@dataclass
class OtherChain:
    next: OtherChain | None


@dataclass
class CountedChain:
    next: CountedChain | int


@dataclass
class NamedChain:
    next: NamedChain | str


class CreatedDict(TypedDict):
    id: int


@pytest.mark.parametrize(
    ("annotation", "value", "read"),
    [
        (Paid | Refunded, {"kind": "paid", "id": 1, "reason": "x"}, Paid(1)),
        (Paid | Refunded, {"kind": "returned", "id": 1}, Refunded(1, kind="returned")),
        (Paid | Refunded | None, None, None),
        (Numbered | Named, {"id": "a"}, Named("a")),
        (Left | Right, {"right": 1, "new": 2}, Right(1)),
        (list[Paid | Refunded], [{"kind": "paid", "id": 1}], [Paid(1)]),
        (int | float, 1, 1),
        (float | int, 1, 1),
        (int | float, 1.0, 1.0),
        (Decimal | int, 1, 1),
        (Decimal | int, "1", Decimal(1)),
        (datetime | date, "2024-01-02", date(2024, 1, 2)),
        (datetime | date, "2024-01-02T00:00:00", datetime(2024, 1, 2)),
        (date | datetime, "2024-01-02T00:00:00", datetime(2024, 1, 2)),
        (UUID | datetime, "2024-01-02T00:00:00", datetime(2024, 1, 2)),
        (datetime | UUID | date, "2024-01-02", date(2024, 1, 2)),
        (datetime | timedelta | UUID | date, "2024-01-02", date(2024, 1, 2)),
        (Tone | str, "loud", Tone.LOUD),
        (str | Tone, "soft", "soft"),
        (str | Tone, "loud", Tone.LOUD),
        (Level | int, 1, Level.ONE),
        (Literal["all"] | date, "all", "all"),
        (Literal["all"] | date, "2024-01-02", date(2024, 1, 2)),
        (Literal["a"] | Literal["b"], "b", "b"),
        (list[int] | list[str], ["a"], ["a"]),
        (list[int] | list[str], [], []),
        (list[int] | dict[str, int] | str, {"a": 1}, {"a": 1}),
        (dict[str, int] | dict[str, str], {"a": "b"}, {"a": "b"}),
        (dict[str, int] | dict[str, str] | dict[str, bool], {}, {}),
        (tuple[int, int] | tuple[int, int, int], [1, 2, 3], (1, 2, 3)),
        (tuple[int, int] | tuple[int, str], [1, "a"], (1, "a")),
        (bool | int | None, True, True),
        (Any | int, 1, 1),
    ],
)
def test_a_value_is_for_the_alternative_whose_it_is(
    annotation: Any, value: object, read: object
) -> None:
    found = fitter(annotation)(value)
    assert (type(found), found) == (type(read), read)


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Created | Cancelled, "Created | Cancelled: nothing tells them apart in JSON; give each"),
        (Cancelled | Created, "nothing tells them apart"),
        (Created | Numbered, "nothing tells them apart"),
        (Created | CreatedDict, "nothing tells them apart"),
        (Created | dict, "nothing tells them apart"),
        (Created | Mapping[str, int], "nothing tells them apart"),
        (Chain | OtherChain, "nothing tells them apart"),
        (CountedChain | NamedChain, "nothing tells them apart"),
        (str | datetime, "put it into a dataclass"),
        (str | UUID, "nothing tells them apart"),
        (Size | str, "nothing tells them apart"),
        (Decimal | str, "nothing tells them apart"),
        (Decimal | float, "nothing tells them apart"),
        (date | time, "nothing tells them apart"),
        (Decimal | date, "nothing tells them apart"),
        (Literal["2024-01-02"] | date, "nothing tells them apart"),
        (Rights | int, "nothing tells them apart"),
        (Rights | Level, "nothing tells them apart"),
        (Paid | Repaid, "nothing tells them apart"),
        (Size | OtherSize, "nothing tells them apart"),
        (list[int] | set[int], "say one of them"),
        (list[int] | set[str], "say one of them"),
        (list[int] | Sequence[float], "nothing tells them apart"),
        (list[int] | tuple[int, int], "nothing tells them apart"),
        (dict[str, int] | dict[str, float], "nothing tells them apart"),
        (list[Created | Cancelled], "nothing tells them apart"),
    ],
)
def test_what_nothing_tells_apart_is_refused_when_it_is_declared(
    annotation: Any, words: str
) -> None:
    with pytest.raises(Unusable) as caught:
        fitter(annotation)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (Paid | Refunded, {"id": 1}, "kind: missing"),
        (
            Paid | Refunded,
            {"id": 1, "kind": []},
            "kind: one of 'paid', 'refunded', 'returned' wanted",
        ),
        (Paid | Refunded, {"id": "x", "kind": "paid"}, "id: a whole number wanted, not a text"),
        (Left | Right, {"left": 1, "right": 2}, "fits Left and Right: one of them wanted"),
        (Left | Right, {}, "left: missing; or: right: missing"),
        (datetime | date, "x", "not a date (ISO 8601); or: not a date and time (ISO 8601)"),
        (
            int | list[int],
            {},
            "a whole number wanted, not an object; or: a list wanted, not an object",
        ),
    ],
)
def test_what_is_for_none_of_them_or_for_two_says_so(
    annotation: Any, value: object, words: str
) -> None:
    with pytest.raises(Unfit) as caught:
        fitter(annotation)(value)
    assert str(caught.value) == words

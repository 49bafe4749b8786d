"""What fits a type and what does not, and where it says so."""

from __future__ import annotations

import enum
import typing
from dataclasses import dataclass, field
from datetime import date, datetime, time
from decimal import Decimal
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest

from messagebus.core.fitting import Unfit, Unusable, fitter


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


class Level(enum.IntEnum):
    ONE = 1


class Odd(enum.Enum):
    PAIR = (1, 2)


@dataclass(frozen=True)
class Line:
    article: str
    price: Decimal
    count: int = 1


@dataclass(frozen=True)
class Order:
    number: UUID
    lines: tuple[Line, ...]
    at: datetime
    size: Size = Size.SMALL
    note: str | None = None
    tags: dict[str, str] = field(default_factory=dict)
    total: Decimal = field(init=False, default=Decimal(0))


@dataclass
class Tree:
    name: str
    below: list[Tree] = field(default_factory=list)


@dataclass
class Positive:
    number: int

    def __post_init__(self) -> None:
        if self.number < 0:
            raise ValueError("number below zero")


@dataclass
class Blob:
    content: bytes


NUMBER = "12345678-1234-5678-1234-567812345678"
ORDER = {
    "number": NUMBER,
    "lines": [{"article": "nut", "price": "1.10"}, {"article": "bolt", "price": 2, "count": 3}],
    "at": "2024-05-06T07:08:09+00:00",
    "size": "l",
    "unknown": "of a newer publisher",
}


def test_a_dataclass_is_read_with_all_that_is_in_it() -> None:
    assert fitter(Order)(ORDER) == Order(
        number=UUID(NUMBER),
        lines=(Line("nut", Decimal("1.10")), Line("bolt", Decimal(2), 3)),
        at=datetime.fromisoformat("2024-05-06T07:08:09+00:00"),
        size=Size.LARGE,
    )


def test_a_dataclass_may_hold_itself() -> None:
    found = fitter(Tree)({"name": "a", "below": [{"name": "b"}]})
    assert found == Tree("a", [Tree("b")])


@pytest.mark.parametrize(
    ("annotation", "value", "read"),
    [
        (int, 1, 1),
        (float, 1, 1.0),
        (float, 1.5, 1.5),
        (bool, True, True),
        (str, "a", "a"),
        (None, None, None),
        (Any, {"a": [1]}, {"a": [1]}),
        (object, 1, 1),
        (dict, {"a": 1}, {"a": 1}),
        (list, [1, "a"], [1, "a"]),
        (tuple, [1], (1,)),
        (list[int], [1, 2], [1, 2]),
        (typing.Sequence[int], [1], [1]),
        (set[str], ["a", "a"], {"a"}),
        (tuple[int, str], [1, "a"], (1, "a")),
        (tuple[int, ...], [], ()),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (typing.Mapping[str, float], {"a": 1}, {"a": 1.0}),
        (int | None, None, None),
        (typing.Optional[int], 3, 3),  # noqa: UP045 - as people write it
        (int | str | None, None, None),
        (int | str, "a", "a"),
        (Decimal, 0.1, Decimal("0.1")),
        (date, "2024-02-29", date(2024, 2, 29)),
        (time, "07:08", time(7, 8)),
        (datetime, "2024-02-29T00:00:00Z", datetime.fromisoformat("2024-02-29T00:00:00+00:00")),
        (Level, 1, Level.ONE),
        (Literal["a", 1], 1, 1),
        (Annotated[int, ["any words"]], 1, 1),
    ],
)
def test_what_fits(annotation: Any, value: object, read: object) -> None:
    found = fitter(annotation)(value)
    assert (type(found), found) == (type(read), read)


@pytest.mark.parametrize(
    ("annotation", "value", "words"),
    [
        (int, True, "a whole number wanted, not true or false"),
        (int, "1", "a whole number wanted, not a text"),
        (int, 1.0, "a whole number wanted, not a number"),
        (str, 1, "a text wanted, not a whole number"),
        (float, "1", "a number wanted, not a text"),
        (float, 10**400, "a number too large"),
        (bool, 1, "true or false wanted, not a whole number"),
        (None, 0, "null wanted, not a whole number"),
        (int | str, None, "a whole number wanted, not null; or: a text wanted, not null"),
        (dict, [], "an object wanted, not a list"),
        (list[int], [1, "secret"], "[1]: a whole number wanted, not a text"),
        (list[list[int]], [[1], [2, None]], "[1][1]: a whole number wanted, not null"),
        (tuple[int, str], [1], "2 elements wanted, not 1"),
        (tuple[int, str], [1, "a", 2], "2 elements wanted, not 3"),
        (tuple[int, str], {}, "a list wanted, not an object"),
        (set[Any], [[1]], "elements that cannot be told apart"),
        (dict[str, int], {"a": "b"}, "a: a whole number wanted, not a text"),
        (
            int | bool,
            "x",
            "a whole number wanted, not a text; or: true or false wanted, not a text",
        ),
        (Decimal, "secret", "not a decimal number"),
        (Decimal, "NaN", "not a finite number"),
        (Decimal, None, "a decimal number as text wanted, not null"),
        (UUID, "secret", "not a UUID"),
        (UUID, 5, "a UUID as text wanted, not a whole number"),
        (datetime, "yesterday", "not a date and time (ISO 8601)"),
        (Size, "xl", "one of 's', 'l' wanted"),
        (Size, [], "one of 's', 'l' wanted"),
        (Level, True, "one of 1 wanted"),
        (Literal["a"], "b", "one of 'a' wanted"),
        (Order, [], "an object wanted, not a list"),
        (Order, {"lines": []}, "number: missing"),
        (Order, {**ORDER, "lines": [{"article": "nut"}]}, "lines[0].price: missing"),
        (Order, {**ORDER, "note": 5}, "note: a text wanted, not a whole number"),
        (Positive, {"number": -1}, "Positive: number below zero"),
    ],
)
def test_what_does_not_fit_says_where_and_what_was_wanted(
    annotation: Any, value: object, words: str
) -> None:
    with pytest.raises(Unfit) as caught:
        fitter(annotation)(value)
    assert str(caught.value) == words


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (Blob, "Blob.content: bytes within JSON"),
        (dict[int, str], "keys of a JSON object are texts"),
        (complex, "complex is no type that a payload can have: make it a dataclass"),
        (Odd, "Odd.PAIR: only texts and whole numbers"),
        (Literal[b"a"], "only texts, whole numbers"),
        (typing.TypeVar("T"), "is no type that a payload can have"),
        (type[int], "is no type that a payload can have"),
        ("Order", "is no type that a payload can have"),
    ],
)
def test_what_no_payload_can_be_is_told_at_once(annotation: Any, words: str) -> None:
    with pytest.raises(Unusable, match=words.replace("[", r"\[")):
        fitter(annotation)


def test_annotations_that_cannot_be_read_are_told() -> None:
    @dataclass
    class Lost:
        there: Nowhere  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(Unusable, match="Nowhere"):
        fitter(Lost)


def test_somebody_else_may_read_a_type() -> None:
    fit = fitter(
        list[Blob], lambda cls: (lambda value: Blob(bytes(value))) if cls is Blob else None
    )
    assert fit([[65]]) == [Blob(b"A")]

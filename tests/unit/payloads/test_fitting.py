"""Values that fit a type and values that do not, and the place of the fault."""

from __future__ import annotations

import enum
import typing
from collections.abc import Collection, Iterable, MutableMapping, MutableSequence, MutableSet
from collections.abc import Set as AbstractSet
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    NewType,
    NotRequired,
    TypedDict,
    TypeVar,
)
from uuid import UUID

import annotated_types
import pytest

from messagebus.payloads.fitting import Fitters, Unfit, Unusable, fitter


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


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    LOW = 1
    HIGH = 8


@dataclass
class Salted:
    word: str
    salt: InitVar[str]
    pepper: InitVar[str] = "!"

    def __post_init__(self, salt: str, pepper: str) -> None:
        self.word += salt + pepper


@dataclass
class Failing:
    number: int

    def __post_init__(self) -> None:
        match self.number:
            case 0:
                {"secret": 0}["hunter2"]
            case 1:
                raise SystemExit(3)
            case 2:
                raise ValueError(Wordless())
            case 3:
                raise KeyboardInterrupt


class Wordless:
    def __str__(self) -> str:
        raise RuntimeError


T = TypeVar("T")
U = TypeVar("U")


@dataclass
class Page(Generic[T]):
    of: list[T]
    next: Page[T] | None = None


@dataclass
class Pair(Page[U], Generic[T, U]):
    first: T | None = None


@dataclass
class Numbers(Pair[str, list[int]]):
    pass


class Part(TypedDict):
    number: int
    note: NotRequired[str]


class Point(NamedTuple):
    x: int
    y: float = 0.0


class Counted(NamedTuple):
    number: Annotated[int, "any words"]


OrderNumber = NewType("OrderNumber", int)
OrderName = NewType("OrderName", str)


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
        (OrderNumber, 1, 1),
        (dict[OrderName, int], {"a": 1}, {"a": 1}),
        (set, [1], {1}),
        (frozenset, [1], frozenset({1})),
        (AbstractSet[int], [1], {1}),
        (MutableSet[int], [1], {1}),
        (MutableSequence[int], [1], [1]),
        (Collection[int], [1], [1]),
        (Iterable[int], [1], [1]),
        (typing.Sequence, [1, "a"], [1, "a"]),
        (typing.Mapping, {"a": [1]}, {"a": [1]}),
        (MutableMapping[str, int], {"a": 1}, {"a": 1}),
        (Part, {"number": 1, "new": 2}, {"number": 1}),
        (Part, {"number": 1, "note": "a"}, {"number": 1, "note": "a"}),
        (Point, [1, 2], Point(1, 2.0)),
        (Salted, {"word": "a", "salt": "b"}, Salted("a", "b")),
        (Page[Line], {"of": [{"article": "a", "price": 1}]}, Page([Line("a", Decimal(1))])),
        (Page[int], {"of": [1], "next": {"of": []}}, Page([1], Page([]))),
        (Pair[int, str], {"of": ["a"], "first": 1}, Pair(["a"], None, 1)),
        (Numbers, {"of": [[1]], "first": "a"}, Numbers([[1]], None, "a")),
        (Literal[Size.LARGE, None], "l", Size.LARGE),
        (Rights, 3, Rights.READ | Rights.WRITE),
        (Rights, 0, Rights(0)),
        (Bits, 9, Bits.LOW | Bits.HIGH),
        (timedelta, "PT1.5S", timedelta(seconds=1.5)),
        (timedelta, "-P1DT2H3M4.000005S", -timedelta(1, 4, 5, 0, 3, 2)),
        (timedelta, "P2W", timedelta(weeks=2)),
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
        (Failing, {"number": 0}, "Failing: its own checks raised KeyError"),
        (Failing, {"number": 1}, "Failing: its own checks raised SystemExit"),
        (Failing, {"number": 2}, "Failing: (its text fails: RuntimeError)"),
        (float, float("inf"), "a number too large"),
        (float, Decimal("1e999"), "a number too large"),
        (Salted, {"word": "a"}, "salt: missing"),
        (
            Page[int],
            {"of": [1], "next": {"of": ["a"]}},
            "next.of[0]: a whole number wanted, not a text",
        ),
        (Part, {}, "number: missing"),
        (Point, [1], "2 elements wanted, not 1"),
        (Point, {"x": 1}, "a list wanted, not an object"),
        (Rights, 4, "flags out of 3 wanted"),
        (Rights, -1, "flags out of 3 wanted"),
        (Bits, 2, "flags out of 9 wanted"),
        (Bits, True, "flags as a whole number wanted, not true or false"),
        (timedelta, "P1Y", "not a duration (ISO 8601, as PT1.5S)"),
        (timedelta, "P", "not a duration (ISO 8601, as PT1.5S)"),
        (timedelta, "P1DT", "not a duration (ISO 8601, as PT1.5S)"),
        (timedelta, "P999999999W", "not a duration (ISO 8601, as PT1.5S)"),
        (timedelta, 5, "a duration (ISO 8601, as PT1.5S) as text wanted, not a whole number"),
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
        (Page, "Page.of: ~T is no type that a payload can have: say what it stands for"),
        (Annotated[int, annotated_types.Gt(0)], "nothing here checks that constraint"),
        (MutableMapping[int, str], "keys of a JSON object are texts"),
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


def test_a_key_that_is_pressed_while_a_check_runs_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        fitter(Failing)({"number": 3})


@dataclass
class Sum:
    amount: Decimal
    rate: float
    more: Any
    rest: dict[str, float]


def test_where_decimals_are_wanted_numbers_come_as_they_were_written_and_leave_as_said() -> None:
    fitters = Fitters(lambda _: None)
    fit = fitters.of(Sum)
    assert fitters.exact
    amount = Decimal("12345678901234567.89")
    found = fit({"amount": amount, "rate": Decimal("0.5"), "more": [{"a": amount}], "rest": {}})
    assert found == Sum(amount, 0.5, [{"a": float(amount)}], {})
    assert type(found.rate) is type(found.more[0]["a"]) is float


def test_where_none_are_wanted_numbers_are_floats() -> None:
    fitters = Fitters(lambda _: None)
    fitters.of(dict[str, list[Any]])
    assert not fitters.exact


def test_a_type_that_holds_nothing_but_itself_is_told_at_once() -> None:
    make: Any = NewType
    endless = make("endless", int)
    endless.__supertype__ = list.__class_getitem__(endless)
    with pytest.raises(Unusable, match="holds itself without end"):
        Fitters(lambda _: None).of(endless)

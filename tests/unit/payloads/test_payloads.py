"""From deliveries to payloads and back."""

from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass, field
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, TypedDict, TypeVar
from uuid import UUID

import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus import (
    Delivery,
    Message,
    MessageInvalid,
    Queue,
    Receipt,
    WrongPayload,
)
from messagebus.message import as_message
from messagebus.payloads import reader


class Amount(pydantic.BaseModel):
    of: Decimal = Decimal(0)
    rate: float = 0.0
    any: Any = None


class Made(pydantic.BaseModel):
    id: int


class Undone(pydantic.BaseModel):
    id: int
    reason: str


class Cat(pydantic.BaseModel):
    kind: Literal["cat"]


class Dog(pydantic.BaseModel):
    kind: Literal["dog"]


class Picky(pydantic.BaseModel):
    number: int

    @pydantic.field_validator("number")
    @classmethod
    def look_up(cls, number: int) -> int:
        if number == 9:
            raise KeyboardInterrupt
        errors: list[BaseException] = [KeyError("secret"), SystemExit(3), Exception()]
        raise errors[number]


Pet = Annotated[Cat | Dog, pydantic.Field(discriminator="kind")]


@dataclass
class Priced:
    amount: Decimal
    model: Amount
    rate: float = 0.5


@dataclass
class Limited:
    count: Annotated[int, pydantic.Field(gt=0)]
    words: list[Annotated[str, pydantic.Field(max_length=3)]] = field(default_factory=list)


@dataclass
class Salted:
    word: str
    salt: InitVar[str]


@dataclass
class MaybeSalted:
    word: str
    salt: InitVar[str] = ""


class Rights(enum.Flag):
    READ = 1
    WRITE = 2


class Bits(enum.IntFlag):
    LOW = 1
    HIGH = 2


class Point(NamedTuple):
    x: int
    y: int


T = TypeVar("T")


@dataclass
class Page(Generic[T]):
    of: list[T]


class Part(TypedDict):
    number: int


class Blob:
    pass


class Kind(enum.Enum):
    NEW = "new"


class Tone(enum.StrEnum):
    LOUD = "loud"


@dataclass
class Line:
    price: Decimal
    count: int


@dataclass
class Order:
    number: UUID
    at: datetime
    kind: Kind
    tone: Tone
    lines: list[Line]
    tags: frozenset[str] = frozenset()
    note: str | None = None


class Model(pydantic.BaseModel):
    number: int
    of: datetime = pydantic.Field(alias="from")


class Strict(pydantic.BaseModel, strict=True):
    at: datetime


@pydantic.dataclasses.dataclass
class Checked:
    number: int = pydantic.Field(gt=0)


@dataclass
class Mixed:
    model: Strict
    checked: list[Checked] = field(default_factory=list)


ORDER = Order(
    UUID(int=5),
    datetime(2024, 1, 2, tzinfo=timezone.utc),  # noqa: UP017 - as people write it
    Kind.NEW,
    Tone.LOUD,
    [Line(Decimal("1.10"), 2)],
    frozenset({"a"}),
)


def delivery(message: Message) -> Delivery:
    return Delivery(message, Receipt("b:5672", 1, 1), Queue("q"))


def read(annotation: Any, body: bytes, content_type: str = "application/json") -> Any:
    return reader(annotation)(delivery(Message(body=body, content_type=content_type)))


def back_and_forth(value: Any, annotation: Any) -> Any:
    payload = as_message(value)
    assert payload.content_type == "application/json"
    return reader(annotation)(delivery(payload))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (ORDER, Order),
        ([ORDER, ORDER], list[Order]),
        ({"a": [1, None]}, dict),
        ([1, 2], list[int]),
        (5, int),
        (Kind.NEW, Kind),
        (Tone.LOUD, Tone),
        (Decimal("1.50"), Decimal),
        (UUID(int=7), UUID),
        (None, None),
        (Model.model_validate({"number": 1, "from": "2024-01-01T00:00:00"}), Model),
        (Checked(3), Checked),
        (Mixed(Strict(at=datetime(2024, 1, 1)), [Checked(1)]), Mixed),
        ([Checked(1)], list[Checked]),
        (Rights.READ | Rights.WRITE, Rights),
        (Bits.LOW | Bits.HIGH, Bits),
        (timedelta(days=1, microseconds=5), timedelta),
        (-timedelta(days=1, seconds=70), timedelta),
        (timedelta(0), timedelta),
        (timedelta.max, timedelta),
        (timedelta.min, timedelta),
        (date(2024, 1, 2), datetime | date),
        (datetime(2024, 1, 2), datetime | date),
        (Point(1, 2), Point),
        (Page([Point(1, 2)]), Page[Point]),
        ({"number": 1}, Part),
        ({1, 2}, set),
        (Undone(id=1, reason="x"), Made | Undone),
        ([Made(id=1), None], list[Made | Undone | None]),
        (Cat(kind="cat"), Pet),
        (Dog(kind="dog"), Pet | None),
        ([Dog(kind="dog")], list[Pet]),
        (Limited(1, ["abc"]), Limited),
        (5, str | int),
        (None, str | None),
        (1, Literal["a", 1]),
        (date(2024, 1, 2), Literal["all"] | date | None),
        (Decimal("12345678901234567.89"), Decimal),
    ],
)
def test_what_is_published_is_read_as_it_was(value: Any, annotation: Any) -> None:
    assert back_and_forth(value, annotation) == value


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.text(), json_values))
def test_any_json_comes_back(value: dict[str, Any]) -> None:
    assert back_and_forth(value, dict[str, Any]) == value


def test_money_is_read_from_the_text_of_the_number() -> None:
    body = b'{"amount":12345678901234567.89,"model":{"of":0.10,"rate":1e3},"rate":0.25}'
    found = read(Priced, body)
    assert found == Priced(
        Decimal("12345678901234567.89"), Amount(of=Decimal("0.10"), rate=1000.0), 0.25
    )
    assert type(found.rate) is float
    assert read(Decimal, b"0.10000000000000000123") == Decimal("0.10000000000000000123")
    assert read(list[Decimal], b"[1e999, 2]") == [Decimal("1e999"), Decimal(2)]
    assert read(Amount, b'{"of":"12345678901234567.89"}').of == Decimal("12345678901234567.89")
    assert read(Amount, b'{"rate":12345678901234567.89}').rate == 12345678901234567.89


@pytest.mark.parametrize(
    ("annotation", "body"),
    [
        (annotation, body)
        for annotation in (Any, dict, dict[str, float], dict[str, Decimal | None], Amount)
        for body in (b'{"rate":NaN}', b'{"rate":Infinity}', b'{"rate":-Infinity}')
    ]
    + [
        (annotation, body)
        for annotation in (Any, dict, dict[str, float], Amount, dict[str, Amount | Any])
        for body in (b'{"rate":1e999}', b'{"rate":-1e999}', b'{"rate":' + b"9" * 400 + b".0}")
    ]
    + [
        (Amount, b'{"rate":"nan"}'),
        (Amount, b'{"any":1e999}'),
        (Amount, b'{"of":12345678901234567.89}'),
        (Priced, b'{"amount":1,"model":{"of":12345678901234567.89}}'),
        (Priced, b'{"amount":1,"model":{"rate":1e999}}'),
        (Priced, b'{"amount":"Infinity","model":{}}'),
        (Decimal, b"1e9999999999999999999"),
        (Any, b'{"a":1,"a":1}'),
        (Line, b'{"price":"1","price":"2","count":1}'),
        (Made, b'{"id":1,"id":2}'),
    ],
)
def test_no_number_comes_otherwise_than_it_was_said(annotation: Any, body: bytes) -> None:
    with pytest.raises(WrongPayload) as caught:
        read(annotation, body)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "value",
    [
        Amount(rate=float("nan")),
        Amount(any=float("inf")),
        [Amount(any=[float("-inf")])],
        Priced(Decimal("nan"), Amount()),
        Priced(Decimal(1), Amount(rate=float("inf"))),
        Decimal("Infinity"),
        {"a": [float("inf")]},
        {1: "a", "1": "b"},
        [{"a": {None: 1, "null": 2}}],
        Page([{1: "a", "1": "b"}]),
        Salted("a", "b"),
        *(object(), {"a": b"x"}, {(1, 2): 3}, float("nan"), ["\ud800"]),
    ],
)
def test_what_no_reader_would_take_is_not_published(value: Any) -> None:
    with pytest.raises(MessageInvalid, match="is not JSON"):
        as_message(value)


def test_names_of_one_object_may_be_numbers_that_differ() -> None:
    assert back_and_forth({1: "a", "2": "b"}, dict[str, str]) == {"1": "a", "2": "b"}
    assert back_and_forth(MaybeSalted("a", "b"), MaybeSalted) == MaybeSalted("a")


def test_messages_bytes_and_texts_are_published_as_they_are() -> None:
    message = Message(body=b"x")
    assert as_message(message) is message
    assert as_message(b"x") == Message(body=b"x")
    assert as_message("x") == Message.text("x")


def test_what_holds_itself_is_not_published() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(MessageInvalid, match="is not JSON"):
        as_message(endless)


def test_bytes_take_any_content() -> None:
    assert read(bytes, b"\xff", "image/png") == b"\xff"


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "text/csv", ""])
def test_a_text_is_read(content_type: str) -> None:
    assert read(str, "ä".encode(), content_type) == "ä"


@pytest.mark.parametrize(
    ("content_type", "charset"),
    [
        ("text/plain; charset=utf-16le", "utf-16-le"),
        ('text/plain; format=flowed; Charset="ISO-8859-1"', "latin-1"),
        ("text/plain;charset=UTF-8", "utf-8"),
        ("text/plain;charset=", "utf-8"),
    ],
)
def test_a_text_is_read_in_the_charset_that_it_says(content_type: str, charset: str) -> None:
    assert read(str, "äb".encode(charset), content_type) == "äb"
    assert Message(body="äb".encode(charset), content_type=content_type).as_text() == "äb"


@pytest.mark.parametrize("annotation", [str, Annotated[str, "any words"], NewType("Name", str)])
def test_a_text_by_any_name_is_read_from_a_text(annotation: Any) -> None:
    assert read(annotation, b"ab", "text/plain") == "ab"


def test_what_constrains_a_text_is_asked() -> None:
    short = Annotated[str, pydantic.Field(max_length=3)]
    assert read(short, b"abc", "text/plain") == "abc"
    assert read(short | None, b"abc", "text/plain") == "abc"
    for annotation in (short, short | None):
        with pytest.raises(WrongPayload, match="at most 3 characters"):
            read(annotation, b"abcd", "text/plain")


def test_a_union_with_a_text_goes_by_the_content_type() -> None:
    assert read(str | None, b"null", "text/plain") == "null"
    assert read(str | None, b"null", "") == "null"
    assert read(str | None, b"null") is None
    assert read(str | Line, b'{"price": "1", "count": 2}') == Line(Decimal(1), 2)
    with pytest.raises(WrongPayload, match="a text wanted"):
        read(str | None, b"a", "image/png")


def test_a_literal_is_read_from_a_text_as_from_json_and_strictly_from_both() -> None:
    assert read(Literal["a"] | None, b'"a"') == "a"
    assert read(Literal["a"] | None, b'"a"', "text/json") == "a"
    assert read(Literal["a", 1], b"a", "text/plain") == "a"
    assert read(Literal["all"] | date | None, b"all", "text/plain; charset=utf-8") == "all"
    for body, content_type in ((b"c", "text/plain"), (b'"a"', "text/plain"), (b'"c"', "")):
        with pytest.raises(WrongPayload, match=r"one of 'a' wanted"):
            read(Literal["a"], body, content_type)
    with pytest.raises(WrongPayload, match="application/json wanted"):
        read(Literal[1, 2], b"1", "text/plain")


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("annotation", [Picky, list[Picky]])
def test_whatever_a_validator_raises_the_payload_does_not_fit(annotation: Any, number: int) -> None:
    body = b'{"number": %d}' % number
    with pytest.raises(WrongPayload, match="its own checks raised") as caught:
        read(annotation, body if annotation is Picky else b"[%s]" % body)
    assert "secret" not in str(caught.value)


def test_a_key_that_is_pressed_while_a_validator_runs_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        read(Picky, b'{"number": 9}')


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "application/vnd.shop+json",
        "text/json",
        "",
    ],
)
def test_json_goes_by_several_names(content_type: str) -> None:
    assert read(dict, b"{}", content_type) == {}


@pytest.mark.parametrize(
    ("annotation", "body", "content_type", "words"),
    [
        (
            dict,
            b"{}",
            "application/octet-stream",
            "'application/octet-stream': application/json wanted",
        ),
        (Order, b"<a/>", "text/xml", "content type 'text/xml': application/json wanted"),
        (Model, b"{}", "text/xml", "content type 'text/xml': application/json wanted"),
        (str, b"a", "application/json", "a text wanted"),
        (str, b"a\xff", "text/plain", "not UTF-8: invalid start byte at byte 1"),
        (str, b"a\xff", "text/plain; charset=ascii", "not ascii: ordinal not in range"),
        (str, b"a", "text/plain; charset=klingon", "no such charset"),
        (str, b"a", "text/plain; charset=hex", "no such charset"),
        (str, b"a", "text/plain; charset=undefined", "not undefined"),
        (Limited, b'{"count": 0}', "application/json", "count: Input should be greater than 0"),
        (Limited, b'{"count": "1"}', "application/json", "count: Input should be a valid integer"),
        (Limited, b'{"count": true}', "application/json", "count: Input should be a valid integer"),
        (Pet, b'{"kind": "cow"}', "application/json", "found using 'kind' does not match"),
        (dict, b"\xff", "application/json", "not UTF-8"),
        (dict, b"{", "application/json", "not JSON: Expecting property name"),
        (dict, b"[NaN]", "application/json", "not JSON: NaN is no number"),
        (dict, b"[" * 100_000, "application/json", "not JSON: nested too deep"),
        (dict, b"[" + b"1" * 5_000 + b"]", "application/json", "not JSON: Exceeds the limit"),
        (list[Order], b"[{}]", "application/json", r"^\[0\].number: missing$"),
        (Model, b'{"number": "x"}', "application/json", "^number: Input .*; from: Field required$"),
        (Model, b"{", "application/json", "Invalid JSON"),
        (Mixed, b'{"model": {"at": 1}}', "application/json", "^model: at: "),
        (Checked, b'{"number": 0}', "application/json", "number: Input should be greater than 0"),
    ],
)
def test_what_does_not_fit_says_why(
    annotation: Any, body: bytes, content_type: str, words: str
) -> None:
    with pytest.raises(WrongPayload, match=f"(?m){words}"):
        read(annotation, body, content_type)


def test_a_validators_words_are_bounded_and_show_no_value() -> None:
    fields: dict[str, Any] = {f"field_{n}": (int, ...) for n in range(100)}
    many = pydantic.create_model("Many", **fields)
    body = str({f"field_{n}": "hunter2" for n in range(100)}).replace("'", '"').encode()
    with pytest.raises(WrongPayload) as caught:
        read(many, body)
    assert "hunter2" not in str(caught.value)
    assert str(caught.value).endswith("and 95 more")
    with pytest.raises(WrongPayload) as caught:
        read(dict[str, int], b'{"%s": "x"}' % (b"k" * 10_000))
    assert len(str(caught.value)) == 500


def test_what_no_payload_can_be_is_told_at_once() -> None:
    with pytest.raises(TypeError, match="keys of a JSON object"):
        reader(dict[int, int])


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (bytes | None, "any body is bytes"),
        (Line | Made, "nothing tells them apart"),
        (Annotated[Blob, pydantic.Field()], "pydantic cannot read"),
    ],
)
def test_what_nothing_could_read_is_told_at_once(annotation: Any, words: str) -> None:
    with pytest.raises(TypeError, match=words):
        reader(annotation)

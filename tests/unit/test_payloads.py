"""From deliveries to payloads and back."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any
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
from messagebus.payloads import as_payload, reader


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
    payload = as_payload(value)
    assert isinstance(payload, Message)
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


def test_messages_bytes_and_texts_are_published_as_they_are() -> None:
    message = Message(body=b"x")
    assert as_payload(message) is message
    assert as_payload(b"x") == b"x"
    assert as_payload("x") == "x"


@pytest.mark.parametrize("value", [object(), {"a": b"x"}, {(1, 2): 3}, float("nan"), ["\ud800"]])
def test_what_json_cannot_say_is_not_published(value: Any) -> None:
    with pytest.raises(MessageInvalid, match="is not JSON"):
        as_payload(value)


def test_what_holds_itself_is_not_published() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(MessageInvalid, match="is not JSON"):
        as_payload(endless)


def test_bytes_take_any_content() -> None:
    assert read(bytes, b"\xff", "image/png") == b"\xff"


@pytest.mark.parametrize("content_type", ["text/plain; charset=utf-8", "text/csv", ""])
def test_a_text_is_read(content_type: str) -> None:
    assert read(str, "ä".encode(), content_type) == "ä"


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
    with pytest.raises(WrongPayload, match=words):
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

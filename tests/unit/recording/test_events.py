"""messagebus.recording.events: the columns of recorded publishes and deliveries."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.recording.events import (
    ACKS,
    DELIVERED,
    EVENTS,
    OUTCOMES,
    PUBLISHED,
    Column,
    body_hash,
)


@pytest.mark.parametrize("columns", EVENTS.values(), ids=EVENTS)
def test_no_column_is_there_twice(columns: tuple[Column, ...]) -> None:
    names = [column.name for column in columns]
    assert len(set(names)) == len(names)


def test_what_joins_the_two_has_one_kind() -> None:
    published = {column.name: column.kind for column in PUBLISHED}
    delivered = {column.name: column.kind for column in DELIVERED}
    assert all(published[name] == delivered[name] for name in published.keys() & delivered.keys())
    assert {"run_id", "message_id", "topic", "broker", "body_hash"} <= published.keys()
    assert {"run_id", "message_id", "topic", "broker", "body_hash"} <= delivered.keys()


@pytest.mark.parametrize("columns", EVENTS.values(), ids=EVENTS)
def test_times_are_nanoseconds_and_ids_are_16_bytes(columns: tuple[Column, ...]) -> None:
    for column in columns:
        assert not column.name.endswith("_ns") or column.kind == "long"
        assert column.name not in ("message_id", "body_hash") or column.kind == "id16"


def test_the_words_differ() -> None:
    assert len(set(OUTCOMES)) == 5
    assert len(set(ACKS)) == 3


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_body_is_known_by_its_hash(one: bytes, other: bytes) -> None:
    assert len(bytes.fromhex(body_hash(one))) == 16
    assert (body_hash(one) == body_hash(other)) == (one == other)

"""_io.amqp.transport: the choice of a process's path, and one log line for the slow one."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from pika.adapters.asyncio_connection import AsyncioConnection

from messagebus._io.amqp import transport as transport
from messagebus._io.amqp.connection import FrameConnection, GuardedConnection


@pytest.fixture(autouse=True)
def _asked_anew(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(transport.HOT_PATH, raising=False)
    transport._seam_holds.cache_clear()
    yield
    transport._seam_holds.cache_clear()


def test_the_hot_path_is_the_usual_one() -> None:
    assert transport.connection_class() is FrameConnection


def test_it_can_be_turned_off_without_a_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(transport.HOT_PATH, "0")
    assert transport.connection_class() is GuardedConnection
    assert caplog.records == []


def test_where_pika_is_not_as_expected_plain_pika_is_used_and_one_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transport, "seam_problem", lambda: "it writes otherwise")
    with caplog.at_level(logging.WARNING):
        assert transport.connection_class() is GuardedConnection
        assert transport.connection_class() is GuardedConnection
    (record,) = caplog.records
    assert "it writes otherwise" in record.getMessage()


def test_where_pika_reads_otherwise_it_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(transport.HOT_PATH, "0")
    monkeypatch.setattr(transport, "guard_problem", lambda: "it reads headers otherwise")
    assert transport.connection_class() is AsyncioConnection

"""A relay's connection: a database that is frozen under a statement keeps nobody."""

from __future__ import annotations

import asyncio
import socket
import threading
from typing import Any

import pytest

from messagebus.dialects import dialect_named
from messagebus.outbox import session
from messagebus.outbox.session import Address, Session

WITHIN_S = 60


class Frozen:
    """Connection to a server that never answers."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ended = threading.Event()

    def fileno(self) -> int:
        return self.ours.fileno()

    def cursor(self) -> Any:
        return self

    def execute(self, *_: object) -> None:
        self.ours.recv(1)
        raise OSError("the connection was ended")

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()
        self.ended.set()


async def frozen_session(connection: Frozen) -> Session:
    made = Session(Address(dialect_named("postgresql"), "db", lambda: connection, "%s"))
    await made.call(lambda _connection: None)
    return made


async def test_a_statement_without_an_answer_ends_with_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "ANSWER_TIMEOUT_S", 0.05)
    connection = Frozen()
    made = await frozen_session(connection)
    with pytest.raises(TimeoutError):
        await made.run([("SELECT 1", ())])
    assert await asyncio.to_thread(connection.ended.wait, WITHIN_S)
    await made.close()


async def test_the_close_of_a_connection_ends_the_statement_that_it_waits_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session, "CONNECT_TIMEOUT_S", 0.05)
    connection = Frozen()
    made = await frozen_session(connection)
    asked = asyncio.ensure_future(made.run([("SELECT 1", ())]))
    await asyncio.sleep(0)
    await made.close()
    assert await asyncio.to_thread(connection.ended.wait, WITHIN_S)
    with pytest.raises(OSError, match="ended"):
        await asked

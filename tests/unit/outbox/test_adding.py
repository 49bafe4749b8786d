"""Ids of messages that are added: by any thread, and by processes that were forked from one."""

from __future__ import annotations

import os
import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

from messagebus.outbox import Outbox

THREADS, ROUNDS, ADDED = 8, 20, 20


def add(outbox: Outbox, count: int, begin: threading.Barrier | None = None) -> list[str]:
    """Add messages through a connection of the caller's own; return their ids."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for statement in outbox.ddl("sqlite"):
            connection.execute(statement)
        if begin:
            begin.wait(timeout=30)
        return [outbox.add(connection, "orders", b"17") for _ in range(count)]


def test_threads_add_to_one_outbox_at_once_and_no_two_ids_are_equal() -> None:
    with ThreadPoolExecutor(THREADS) as threads:
        for _ in range(ROUNDS):
            outbox, begin = Outbox(), threading.Barrier(THREADS)
            adding = [threads.submit(add, outbox, ADDED, begin) for _ in range(THREADS)]
            ids = [message_id for each in adding for message_id in each.result()]
            assert len(set(ids)) == THREADS * ADDED


def test_processes_that_were_forked_with_an_outbox_make_ids_of_their_own() -> None:
    """As a web server does that loads the application before it forks."""
    outbox = Outbox()
    add(outbox, 1)
    told, tells = os.pipe()
    child = os.fork()
    if not child:
        os.write(tells, "".join(add(outbox, 3)).encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(tells)
    with os.fdopen(told) as pipe:
        of_child = pipe.read()
    assert len(of_child) == 3 * 32
    assert not any(message_id in of_child for message_id in add(outbox, 3))

"""The application of `once`: orders in PostgreSQL, and the handlers that write their effects.

An order and its row of the outbox are one transaction. Two handlers note the message in the transaction of
their effect, one has deduplication in Redis alone. State that survives the death of a process is in the
database, or written to a file at once.

    python -m tests.support.trials.once_app          # makes orders
    python -m messagebus worker tests.support.trials.once_app:app
"""

from __future__ import annotations

import itertools
import logging
import os
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import psycopg

from messagebus import App, Dedup, Delivery, Once, Outbox, RetryPolicy
from messagebus.inbox import inbox_ddl
from messagebus.stores import Answer, Rule, Store, Turn, key_of, open_store

DATABASE, STORE, PROCESS = "ONCE_TRIAL_DATABASE", "ONCE_TRIAL_STORE", "ONCE_TRIAL_PROCESS"
FOLDER, TOTAL, SECONDS, BEGAN_NS = (
    f"ONCE_TRIAL_{name}" for name in ("FOLDER", "TOTAL", "SECONDS", "BEGAN_NS")
)
# A planted fault, by which the judge is judged: acked before the commit; copies are not looked for.
DEFECT = "ONCE_TRIAL_DEFECT"
ACKS_EARLY, RUNS_COPIES = "acks-early", "runs-copies"
DEFECTS = (ACKS_EARLY, RUNS_COPIES)
EARLY_S, EARLY_THREADS = 0.2, 4
ORDERS, BILLED = "orders", "billed"
# Table -> the subscription whose handler writes it.
TABLES = {"bills": f"{ORDERS}/billing", "points": f"{ORDERS}/points", "ledger": f"{BILLED}/ledger"}
ROLLED_BACK = 0.05
CUSTOMERS = 500
LEASE_S = 6
# A pause of the whole process as long as this is noted.
STOOD_S, PULSE_S = 1.0, 0.1
CONNECT_S = 2
AGAIN_S = 0.2
# Servers are away for some seconds, many times: no run may be given up because of that.
POLICY = RetryPolicy(attempts_max=500, first_delay_s=1, delay_max_s=2)

DDL = (
    "CREATE SEQUENCE order_numbers",
    "CREATE TABLE orders (number BIGINT PRIMARY KEY)",
    *(
        f"""CREATE TABLE {table} (id BIGSERIAL, number BIGINT NOT NULL, run TEXT NOT NULL,
        process TEXT NOT NULL, ended_ns BIGINT NOT NULL, received_ns BIGINT NOT NULL,
        message_id TEXT NOT NULL)"""
        for table in TABLES
    ),
    inbox_ddl("postgresql"),
    *Outbox().ddl("postgresql"),
)

outbox = Outbox()
app = App()
_process, _defect = os.environ.get(PROCESS, ""), os.environ.get(DEFECT, "")
_runs = itertools.count(1)
_own = threading.local()
_later = ThreadPoolExecutor(EARLY_THREADS)
_lock = threading.Lock()
_files: dict[str, int] = {}
# Key of deduplication -> message id.
_to_note: dict[bytes, str] = {}


def note(what: str, line: str) -> None:
    """Write a line that a kill of this process in the next moment cannot take away."""
    with _lock:
        if (file := _files.get(what)) is None:
            path = Path(os.environ[FOLDER]) / f"{what}.{_process}"
            file = _files[what] = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(file, f"{line}\n".encode())


@contextmanager
def transaction() -> Iterator[psycopg.Connection]:
    """Commit at the end, on this thread's connection. It is made anew after any error."""
    connection = getattr(_own, "connection", None)
    if connection is None or connection.closed:
        connection = _own.connection = psycopg.connect(
            os.environ[DATABASE], connect_timeout=CONNECT_S
        )
    try:
        yield connection
        connection.commit()
    except BaseException:
        connection.close()
        raise


def write_effect(
    connection: psycopg.Connection, table: str, number: int, delivery: Delivery
) -> str:
    """Insert a row of an effect. Returns the name of its run."""
    run = f"{_process}:{next(_runs)}"
    connection.execute(
        f"INSERT INTO {table} (number, run, process, ended_ns, received_ns, message_id)"
        " VALUES (%s, %s, %s, %s, %s, %s)".encode(),
        (
            *(number, run, _process, time.monotonic_ns()),
            *(delivery.received_ns, delivery.message_id),
        ),
    )
    return run


def _once(
    table: str, order: dict[str, int], delivery: Delivery, once: Once, next_topic: str = ""
) -> None:
    """Write an effect, and perhaps the next message, in the transaction that notes the message as done."""
    number = order["number"]
    with transaction() as connection:
        if not once.begin(connection):
            note("copies", table)
            if _defect != RUNS_COPIES:
                return
        if next_topic:
            outbox.add(connection, next_topic, {"number": number}, key=delivery.key)
        write_effect(connection, table, number, delivery)


@app.subscriber(ORDERS, subscription="billing", concurrency=4, retry=POLICY)
def bill(order: dict[str, int], delivery: Delivery, once: Once) -> None:
    if _defect == ACKS_EARLY:
        _later.submit(_bill_later, order, delivery, once)  # acked when this returns
    else:
        _once("bills", order, delivery, once, BILLED)


def _bill_later(order: dict[str, int], delivery: Delivery, once: Once) -> None:
    time.sleep(EARLY_S)
    _once("bills", order, delivery, once, BILLED)


@app.subscriber(BILLED, subscription="ledger", concurrency=4, retry=POLICY)
def book(order: dict[str, int], delivery: Delivery, once: Once) -> None:
    _once("ledger", order, delivery, once)


class NotedStore:
    """A store that notes, for each message that this process has given points for, that `done` was stored."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.forget, self.show, self.count = store.forget, store.show, store.count
        self.close = store.close

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        answer = await self._store.turn(turn, rule)
        with _lock:
            ended = [found for key in turn.done if (found := _to_note.pop(key, ""))]
        for message_id in ended:
            note("done", f"{message_id} {time.monotonic_ns()}")
        return answer


@app.subscriber(
    ORDERS,
    subscription="points",
    concurrency=4,
    retry=POLICY,
    dedup=Dedup(NotedStore(open_store(os.environ.get(STORE, "memory:"))), lease_s=LEASE_S),
)
def give_points(order: dict[str, int], delivery: Delivery) -> None:
    """Write an effect that no inbox protects."""
    run = ""
    try:
        with transaction() as connection:
            run = write_effect(connection, "points", order["number"], delivery)
    except BaseException:
        note("failed", run)  # whether the server has carried the commit out is unknown
        raise
    with _lock:
        _to_note[key_of(f"{ORDERS}/points", delivery.message_id)] = delivery.message_id


def order_forever() -> None:
    """Make orders at their times until the process is ended; some transactions are rolled back."""
    total, seconds = int(os.environ[TOTAL]), float(os.environ[SECONDS])
    began_ns = int(os.environ[BEGAN_NS])
    chance = random.Random()
    while True:
        try:
            with transaction() as connection:
                row = connection.execute("SELECT nextval('order_numbers')").fetchone()
                assert row is not None
                number = int(row[0])
                connection.commit()
                due_s = (began_ns + int(number * seconds / total * 1e9)) / 1e9
                time.sleep(max(0.0, due_s - time.monotonic()))
                connection.execute("INSERT INTO orders VALUES (%s)", (number,))
                key = f"customer-{number % CUSTOMERS}"
                outbox.add(connection, ORDERS, {"number": number}, key=key)
                if chance.random() < ROLLED_BACK:
                    connection.rollback()
        except psycopg.Error:
            time.sleep(AGAIN_S)


def _watch_pulse() -> None:
    """Note when this process stood still, as its store sees it."""
    before_ns = time.monotonic_ns()
    while True:
        time.sleep(PULSE_S)
        now_ns = time.monotonic_ns()
        if now_ns - before_ns > STOOD_S * 1e9:
            note("stood", f"{before_ns} {now_ns}")
        before_ns = now_ns


class _StoreWatch(logging.Handler):
    """A handler of the library's log that notes when this process could not reach the store."""

    def emit(self, record: logging.LogRecord) -> None:
        for word in ("away", "back"):
            if record.getMessage().startswith(f"store is {word}"):
                note("store", f"{word} {time.monotonic_ns()}")


if FOLDER in os.environ:
    threading.Thread(target=_watch_pulse, daemon=True).start()
    logging.getLogger("messagebus.consumer").addHandler(_StoreWatch())
if __name__ == "__main__":
    order_forever()

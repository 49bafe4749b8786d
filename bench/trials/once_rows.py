"""The rows of `bench.trials.once` in its database, as effects for its judge and as events for the audits.

An order that was committed is a confirmed publish, and each row of an effect is a delivery. So what a killed
process had not yet recorded is not missing, and Spark counts the same promise by its own rules.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psycopg

from bench.trials.once_app import BILLED, ORDERS, TABLES
from bench.trials.once_judge import S_NS, STOOD, STORE_AWAY, Effect, Happening
from messagebus.recording.events import body_hash
from messagebus.recording.files import EventFile, anchor_now, message_id_hex
from messagebus.recording.manifest import ConsumerEntry, Incident, Manifest

RUN_ID = "once"
# Redundant publishing makes two of each message.
COPIES = 2
JUDGED = ("bills", "points", "ledger")

Row = dict[str, Any]


def read_rows(connection: psycopg.Connection) -> dict[str, list[Row]]:
    """Read the orders and all effects. Takes 1 KB of memory a row."""
    found = {}
    for table in ("orders", *TABLES):
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}".encode())
            names = [column.name for column in cursor.description or ()]
            found[table] = [dict(zip(names, row, strict=True)) for row in cursor]
    return found


def effects_of(
    rows: Iterable[Row], done: Mapping[tuple[str, str], int] = MappingProxyType({})
) -> list[Effect]:
    """Return the effects of a table. done: of its handler's store, as `noted_done`."""
    return [
        Effect(
            *(row["number"], row["run"], row["process"], row["began_ns"], row["ended_ns"]),
            received_ns=row["received_ns"],
            done_ns=done.get((row["process"], row["message_id"])),
        )
        for row in rows
    ]


def noted_done(folder: Path) -> dict[tuple[str, str], int]:
    """Return (process, message id) -> when its store had answered to the first `done`."""
    found: dict[tuple[str, str], int] = {}
    for file in sorted(folder.glob("done.*")):
        for line in file.read_text().splitlines():
            message_id, at_ns = line.split()
            found.setdefault((_process(file), message_id), int(at_ns))
    return found


def noted(folder: Path, what: str) -> list[str]:
    """Return the lines that all processes have noted in a run's folder."""
    files = sorted(folder.glob(f"{what}.*"))
    return [line for file in files for line in file.read_text().splitlines()]


def noted_happenings(folder: Path) -> list[Happening]:
    """Return the pauses of processes, and the times without the store, that they have noted themselves."""
    found = []
    for file in sorted(folder.glob("stood.*")):
        for line in file.read_text().splitlines():
            began_ns, ended_ns = map(int, line.split())
            found.append(Happening(STOOD, _process(file), began_ns, ended_ns))
    for file in sorted(folder.glob("store.*")):
        since_ns = 0
        for line in file.read_text().splitlines():
            word, at_ns = line.split()
            if word == "away":
                # It is told when a call has failed.
                since_ns = since_ns or int(at_ns) - S_NS
            elif since_ns:
                found.append(Happening(STORE_AWAY, _process(file), since_ns, int(at_ns)))
                since_ns = 0
        if since_ns:
            found.append(Happening(STORE_AWAY, _process(file), since_ns, time.monotonic_ns()))
    return found


def _process(file: Path) -> str:
    return file.name.partition(".")[2]


def write_events(
    folder: Path,
    rows: Mapping[str, list[Row]],
    *,
    brokers: Collection[str],
    incidents: Iterable[Incident],
    began_ns: int,
) -> Manifest:
    """Write the events and the manifest of a run into a new folder."""
    folder.mkdir(parents=True)
    published, delivered = list(_published(rows, brokers)), list(_delivered(rows))
    anchor = anchor_now("coordinator")
    for kind, lines in (("published", published), ("delivered", delivered)):
        path = folder / f"{kind}-coordinator.ndjson"
        with EventFile(path, anchor, clock_ns=time.monotonic_ns) as file:
            for line in lines:
                file.write(json.dumps(line, separators=(",", ":")))
    topics: dict[str, tuple[str, ...]] = {}
    for table in JUDGED:
        topic, subscription = TABLES[table]
        topics[topic] = (*topics.get(topic, ()), subscription)
    consumers = {(each["consumer"], each["subscription"]) for each in delivered}
    manifest = Manifest(
        run_id=RUN_ID,
        topics=topics,
        brokers=tuple(brokers),
        anchor=anchor,
        start_ns=began_ns,
        end_ns=time.monotonic_ns(),
        publishers=tuple(sorted({each["publisher"] for each in published})),
        consumers=tuple(ConsumerEntry(*each) for each in sorted(consumers)),
        incidents=tuple(incidents),
        complete=True,
        loop="closed",
    )
    manifest.save(folder)
    return manifest


def _published(rows: Mapping[str, list[Row]], brokers: Collection[str]) -> Iterator[Row]:
    """Yield a publish for each committed message: an order's, and a bill's to the ledger."""
    first: dict[str, Row] = {}
    for table in JUDGED:
        for row in rows[table]:
            first.setdefault(row["message_id"], row)
    sent = [(ORDERS, row["message_id"], row) for row in rows["orders"]]
    sent += [(BILLED, row["next_id"], row) for row in rows["bills"]]
    for number, (topic, message_id, row) in enumerate(
        sorted(sent, key=lambda one: one[2]["ended_ns"])
    ):
        came = first.get(message_id, {})
        yield {
            **{"run_id": RUN_ID, "topic": topic, "publisher": row["process"]},
            "message_id": message_id_hex(message_id),
            # One of those that had it: who confirmed it is known to a relay that may be dead.
            "broker": came.get("broker", next(iter(brokers))),
            **{"sequence": number, "key": "", "size": len(row["body"])},
            "body_hash": body_hash(bytes(row["body"])),
            **{"outcome": "confirmed", "attempts": COPIES, "intended_ns": row["began_ns"]},
            "sent_ns": row["began_ns"],
            "confirmed_ns": row["ended_ns"],
        }


def _delivered(rows: Mapping[str, list[Row]]) -> Iterator[Row]:
    for table in JUDGED:
        topic, subscription = TABLES[table]
        for row in rows[table]:
            yield {
                **{"run_id": RUN_ID, "topic": topic, "subscription": subscription},
                "consumer": row["process"],
                "message_id": message_id_hex(row["message_id"]),
                **{"broker": row["broker"], "key": "", "size": len(row["body"])},
                "body_hash": body_hash(bytes(row["body"])),
                **{"redelivered": int(row["redelivered"]), "ack": "acked"},
                # A copy is received long before its run, while another one runs.
                "received_ns": row["began_ns"],
                "acknowledged_ns": row["ended_ns"],
            }

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from reports.page import render_text
from spark.jobs import failover
from spark.lake.ingest import ingest, plan
from spark.lake.tables import Lake
from spark.measures import gaps
from spark.measures.run import Run
from tests.support.events import (
    BROKERS,
    KILLED,
    MILLISECOND,
    MONOTONIC_START_NS,
    PUBLISHERS,
    SECOND,
    TOPIC,
    Row,
    anchor,
    write_rows,
)
from tests.unit.spark.conftest import Planted

FROZEN, HEALTHY = BROKERS[:2]
FROZEN_AT_NS = MONOTONIC_START_NS + 4 * SECOND
THAWED_AT_NS = FROZEN_AT_NS + 3 * SECOND


def test_the_silence_around_a_kill_is_found_per_publisher_and_broker(planted_run: Planted) -> None:
    answer = failover.measure(planted_run.run)
    kinds = [one["kind"] for one in answer.found["incidents"]]
    assert kinds == ["add", "remove", "kill", "start", "reload"]
    killed = kinds.index("kill")
    held_back = {
        row["publisher"]: row["gap_ms"]
        for row in answer.found["publishers"]
        if row["number"] == killed
    }
    assert set(held_back) == set(PUBLISHERS)
    # All were held back for 300 ms.
    assert all(250 < gap < 400 for gap in held_back.values())
    down = [
        row["gap_ms"]
        for row in answer.found["brokers"]
        if row["number"] == killed and row["broker"] == KILLED
    ]
    assert down
    assert all(2_900 < gap < 3_500 for gap in down)
    assert f"kill {KILLED}" in render_text(answer.page)


def test_a_freeze_of_three_seconds_is_three_seconds_whatever_is_delivered_again_in_it(
    session: SparkSession, tmp_path: Path
) -> None:
    write_frozen_run(tmp_path / "run")
    lake = Lake(tmp_path / "lake")
    run = Run(session, lake, ingest(session, lake, plan(tmp_path / "run", lake)))
    found = failover.measure(run).found
    publishers = {row["publisher"]: row["gap_ms"] for row in found["publishers"]}
    brokers = {row["broker"]: row["gap_ms"] for row in found["brokers"]}
    assert publishers[PUBLISHERS[0]] == pytest.approx(3000, abs=100)
    assert brokers[FROZEN] == pytest.approx(3000, abs=100)
    assert publishers[PUBLISHERS[1]] < 50
    assert brokers[HEALTHY] < 50
    # Counted with what came again, there would be no such silence.
    every = run.events("delivered").withColumn("since", F.lit(run.manifest.start_ns))
    filled = gaps.longest(every, ["broker"], start="since", end="received_ns").collect()
    assert max(row["gap_ns"] for row in filled) < SECOND


def write_frozen_run(folder: Path) -> None:
    """Write a run of ten seconds with one publisher to each broker.

    Deliveries before one broker froze that had no answer come again while it is silent, and trail behind the
    end.
    """
    folder.mkdir()
    published: list[Row] = []
    delivered: list[Row] = []
    for number in range(1_000):
        message = _message(number)
        published.append(message)
        delivered.append(_delivery(message, message["confirmed_ns"] + MILLISECOND))
    held = [row for row in published if row["broker"] == FROZEN and row["sent_ns"] < FROZEN_AT_NS]
    # Confirmed just before, delivered after.
    delivered[held[-1]["sequence"] * 2]["received_ns"] = THAWED_AT_NS
    for number, message in enumerate(held[:150]):
        delivered[message["sequence"] * 2] |= {"ack": "stale", "acknowledged_ns": None}
        again_ns = FROZEN_AT_NS + number * 60 * MILLISECOND
        delivered.append(_delivery(message, again_ns) | {"redelivered": 1})
    write_rows(folder, "published", published, "publisher")
    write_rows(folder, "delivered", delivered, "consumer")
    (folder / "manifest.json").write_text(json.dumps(_manifest()))


def _message(number: int) -> dict[str, Any]:
    broker, publisher = (FROZEN, HEALTHY)[number % 2], PUBLISHERS[number % 2]
    sent_ns = MONOTONIC_START_NS + number * 10 * MILLISECOND
    answered_ns = sent_ns + 2 * MILLISECOND
    if broker == FROZEN and FROZEN_AT_NS <= sent_ns < THAWED_AT_NS:
        answered_ns = THAWED_AT_NS + number * 1_000
    return {
        **{"run_id": "run-1", "message_id": f"{number:032x}", "topic": TOPIC, "broker": broker},
        **{"publisher": publisher, "sequence": number // 2, "key": None, "size": 9},
        **{"body_hash": "0" * 32, "outcome": "confirmed", "attempts": 1},
        **{"intended_ns": sent_ns, "sent_ns": sent_ns, "confirmed_ns": answered_ns},
    }


def _delivery(message: Row, received_ns: int) -> Row:
    same = ("run_id", "message_id", "topic", "broker", "publisher", "sequence", "size", "body_hash")
    return {name: message[name] for name in same} | {
        **{"subscription": "billing", "consumer": "billing-1", "redelivered": 0, "ack": "acked"},
        **{"received_ns": received_ns, "acknowledged_ns": received_ns + MILLISECOND},
    }


def _manifest() -> dict[str, Any]:
    cut = {"kind": "cut", "broker": FROZEN, "at_ns": FROZEN_AT_NS, "done_ns": THAWED_AT_NS}
    return {
        **{"run_id": "run-1", "topics": {TOPIC: ["billing"]}, "brokers": [FROZEN, HEALTHY]},
        **{"anchor": anchor("coordinator"), "start_ns": MONOTONIC_START_NS},
        **{"end_ns": MONOTONIC_START_NS + 15 * SECOND, "publishers": list(PUBLISHERS[:2])},
        **{"consumers": [{"name": "billing-1", "subscription": "billing"}], "incidents": [cut]},
        "complete": True,
    }

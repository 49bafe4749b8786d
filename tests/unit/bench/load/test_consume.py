"""The loop of a consuming process, on a fake consumer."""

from __future__ import annotations

import json
from pathlib import Path

from bench.load.consume import ConsumeLoad
from bench.load.control import read_progress
from messagebus.core.receipts import Receipt
from messagebus.destination import Subscription, Topic
from messagebus.message import Delivery, Message
from messagebus.recording.events import body_hash
from messagebus.recording.files import Anchor, DeliveredFile, EventFile
from messagebus.stats import BrokerStats, ConsumerStats

NO_COUNTS = (
    *("delivered", "acked", "nacked", "acks_stale", "batches_damaged"),
    *("buffered", "handed_out", "list_generation", "list_faults"),
)


class FakeConsumer:
    """Consumer that hands out its deliveries, then stops the load; acks of odd tags are stale."""

    def __init__(self, count: int) -> None:
        self.waiting = [
            Delivery(
                message=Message(body=b"body %d" % tag, message_id=f"{tag:032x}"),
                receipt=Receipt("b1:1", 1, tag),
                source=Subscription(Topic("t"), "s"),
                received_ns=tag,
            )
            for tag in range(count)
        ]
        self.acked: list[int] = []
        self.stopped = False
        self.looks = 0
        self.load: ConsumeLoad | None = None

    def receive(self, timeout_s: float) -> Delivery | None:
        if self.waiting:
            return self.waiting.pop(0)
        assert self.load is not None
        self.load.stop()
        return None

    def ack(self, delivery: Delivery) -> bool:
        self.acked.append(delivery.receipt.tag)
        return delivery.receipt.tag % 2 == 0

    def stats(self) -> ConsumerStats:
        """Return statistics with a link to the second broker from the second look on; none to the third."""
        self.looks += 1
        states = {
            "b1:1": "open",
            "b2:1": "open" if self.looks > 1 else "dialing",
            "b3:1": "dialing",
        }
        brokers = {name: BrokerStats(state=it, delivered=0, owed=0) for name, it in states.items()}
        counts = dict.fromkeys(NO_COUNTS, 0)
        return ConsumerStats(brokers=brokers, list_age_ms=None, **counts)

    def stop(self) -> int:
        self.stopped = True
        return 0


def test_every_delivery_is_answered_and_recorded(tmp_path: Path) -> None:
    (tmp_path / "progress").mkdir()
    consumer = FakeConsumer(3)
    recorder = EventFile(
        tmp_path / "delivered-c1.ndjson", Anchor("h", "c1", 0), clock_ns=lambda: 50
    )
    load = consumer.load = ConsumeLoad(
        consumer,
        folder=tmp_path,
        name="c1",
        recorder=recorder,
        rows=DeliveredFile(recorder, run_id="r", topic="t", subscription="s", consumer="c1"),
        clock_ns=lambda: 50,
    )
    progress = load.run()
    rows = [json.loads(line) for line in recorder.path.read_text().splitlines()[1:]]
    assert consumer.acked == [0, 1, 2]
    assert consumer.stopped
    assert [row["ack"] for row in rows] == ["acked", "stale", "acked"]
    assert [row["received_ns"] for row in rows] == [0, 1, 2]
    assert [row["acknowledged_ns"] for row in rows] == [50, 50, 50]
    assert rows[1]["body_hash"] == body_hash(b"body 1")
    assert (progress.state, progress.done, progress.bad) == ("ended", 3, 1)
    assert read_progress(tmp_path)["c1"].brokers == {"b1:1": 3}


def test_since_when_there_is_a_link_is_told_and_kept(tmp_path: Path) -> None:
    (tmp_path / "progress").mkdir()
    now_ns = iter(range(0, 10**12, 10**8))
    recorder = EventFile(
        tmp_path / "delivered-c1.ndjson", Anchor("h", "c1", 0), clock_ns=lambda: 50
    )
    consumer = FakeConsumer(0)
    consumer.waiting = FakeConsumer(3).waiting
    load = consumer.load = ConsumeLoad(
        consumer,
        folder=tmp_path,
        name="c1",
        recorder=recorder,
        rows=DeliveredFile(recorder, run_id="r", topic="t", subscription="s", consumer="c1"),
        clock_ns=lambda: next(now_ns),
    )
    attached = load.run().attached
    assert list(attached) == ["b1:1", "b2:1"]
    assert 0 < attached["b1:1"] < attached["b2:1"]

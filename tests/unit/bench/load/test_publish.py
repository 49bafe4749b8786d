"""The loop of a publishing process, on a fake publisher and a clock of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from bench.load.control import RateFile, read_progress, set_rate
from bench.load.publish import PublishLoad
from messagebus.errors import BacklogFull
from messagebus.message import Message
from messagebus.recording.events import body_hash
from messagebus.recording.files import Anchor, EventFile, PublishedFile
from messagebus.stats import Durability, Outcome, Published

MS = 1_000_000


class Clock:
    """Clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.on_sleep: Callable[[], None] = lambda: None

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += max(1, round(seconds * 1e9))
        self.on_sleep()


class FakePublisher:
    """Publisher that keeps its publishes; `settle` ends them. stop() ends the rest as unknown."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.sent: list[tuple[int, Message]] = []
        self.open: list[Future[Published]] = []
        self.full = 0
        self.answers = True

    def submit(self, destination: str, payload: Message) -> Future[Published]:
        assert destination == "t"
        if self.full:
            self.full -= 1
            self.clock.sleep(0.01)
            raise BacklogFull("full")
        self.sent.append((self.clock.now_ns, payload))
        future: Future[Published] = Future()
        self.open.append(future)
        return future

    def settle(self, outcome: Outcome) -> None:
        settled, self.open = self.open, []
        first = len(self.sent) - len(settled)
        for number, future in enumerate(settled, start=first):
            future.set_result(
                Published(
                    message_id=f"{number:032x}",
                    outcome=outcome,
                    durability=Durability.FSYNC,
                    broker="b1:1",
                    sent_ns=1,
                    settled_ns=self.clock.now_ns,
                )
            )

    def flush(self, timeout_s: float) -> int:
        self.clock.sleep(timeout_s)
        if self.answers:
            self.settle(Outcome.CONFIRMED)
        return len(self.open)

    def stop(self) -> int:
        left = len(self.open)
        self.settle(Outcome.UNKNOWN)
        return left


def load_of(folder: Path, publisher: FakePublisher, clock: Clock, rate_per_s: float) -> PublishLoad:
    (folder / "progress").mkdir()
    recorder = EventFile(folder / "published-p1.ndjson", Anchor("h", "p1", 0), clock_ns=clock)
    return PublishLoad(
        publisher,
        folder=folder,
        name="p1",
        topic="t",
        rate=RateFile(folder, share=2),
        recorder=recorder,
        rows=PublishedFile(recorder, run_id="r", topic="t", publisher="p1"),
        rate_per_s=rate_per_s,
        clock_ns=clock,
        sleep_s=clock.sleep,
    )


def rows_of(folder: Path) -> list[dict[str, object]]:
    lines = (folder / "published-p1.ndjson").read_text().splitlines()
    return [json.loads(line) for line in lines[1:]]


def test_every_record_becomes_one_message_and_one_row(tmp_path: Path) -> None:
    clock = Clock()
    publisher = FakePublisher(clock)
    progress = load_of(tmp_path, publisher, clock, 100).run([b"Package: zlib\nx", b"y"])
    assert [message.body for _, message in publisher.sent] == [b"Package: zlib\nx", b"y"]
    assert [message.key for _, message in publisher.sent] == ["zlib", ""]
    assert [dict(message.headers) for _, message in publisher.sent] == [
        {"publisher": "p1", "sequence": 0},
        {"publisher": "p1", "sequence": 1},
    ]
    rows = rows_of(tmp_path)
    assert [row["sequence"] for row in rows] == [0, 1]
    assert [row["outcome"] for row in rows] == ["confirmed", "confirmed"]
    assert [row["body_hash"] for row in rows] == [body_hash(b"Package: zlib\nx"), body_hash(b"y")]
    assert (progress.state, progress.done, progress.bad, progress.held) == ("ended", 2, 0, 0)
    assert read_progress(tmp_path)["p1"].brokers == {"b1:1": 2}


def test_the_loop_is_open_answers_do_not_hold_it_back(tmp_path: Path) -> None:
    clock = Clock()
    publisher = FakePublisher(clock)
    load_of(tmp_path, publisher, clock, 100).run([b"x"] * 50)
    sent_ns = [at for at, _ in publisher.sent]
    assert sent_ns == [number * 10 * MS for number in range(50)]


def test_a_stall_is_seen_in_the_intended_times_of_all_that_it_delayed(tmp_path: Path) -> None:
    clock = Clock()
    publisher = FakePublisher(clock)
    publisher.full = 10
    load_of(tmp_path, publisher, clock, 100).run([b"x"] * 20)
    assert publisher.sent[0][0] == 100 * MS
    assert [row["intended_ns"] for row in rows_of(tmp_path)] == [n * 10 * MS for n in range(20)]


def test_the_rate_follows_the_file_and_is_shared(tmp_path: Path) -> None:
    clock = Clock()
    publisher = FakePublisher(clock)
    load = load_of(tmp_path, publisher, clock, 0)

    def after_a_second() -> None:
        if clock.now_ns > 1000 * MS and not (tmp_path / "rate.json").exists():
            set_rate(tmp_path, 200)

    clock.on_sleep = after_a_second
    load.run([b"x"] * 11)
    assert publisher.sent[0][0] >= 1000 * MS
    assert publisher.sent[-1][0] - publisher.sent[0][0] == 100 * MS


def test_stop_submits_no_more_and_waits_for_what_is_open(tmp_path: Path) -> None:
    clock = Clock()
    publisher = FakePublisher(clock)
    load = load_of(tmp_path, publisher, clock, 100)
    clock.on_sleep = lambda: load.stop() if clock.now_ns > 95 * MS else None
    progress = load.run([b"x"] * 1000)
    assert (progress.done, progress.bad, progress.held) == (10, 0, 0)
    assert len(rows_of(tmp_path)) == 10


def test_what_never_ends_is_recorded_as_unknown(tmp_path: Path) -> None:
    clock = Clock()
    publisher = FakePublisher(clock)
    publisher.answers = False
    progress = load_of(tmp_path, publisher, clock, 100).run([b"x"] * 3)
    assert (progress.done, progress.bad, progress.held) == (0, 3, 0)
    assert [row["outcome"] for row in rows_of(tmp_path)] == ["unknown"] * 3
    assert "confirmed_ns" not in rows_of(tmp_path)[0]

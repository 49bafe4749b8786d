"""Replay, streams beside confirms, the live Spark source, audits on two workers, and the recorder's cost.

Streams are on three brokers behind HAProxy; the client is this process. Spark runs as its commands: the rate
of the live job is that between its first and its last batch, so its start does not count.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from bench.environment import CHECKOUT
from bench.errors import BenchError
from bench.figures.form import Figure, Maker, at_least, at_most
from bench.figures.measure.audit import MILLION, millions, submit
from bench.figures.measure.made import RUN_ID, lay
from bench.figures.measure.watched import Cost, watched
from bench.figures.scene import BEHIND_HAPROXY, Group, Scene, repeat_command
from messagebus import (
    BusConfig,
    Delivery,
    Durability,
    Message,
    Outcome,
    Published,
    Publisher,
    Receipt,
    Replay,
    Stream,
    Subscription,
    Topic,
    declare,
)
from messagebus.recording.recorder import Recorder

REPLAY, LIVE, AUDIT, RECORD = "again.replay", "again.live", "again.audit", "again.record"
BODY = b"x" * 1024
BROKERS, STORED, BLOCK, CONFIRMS, PREFETCH = 3, 200_000, 2_000, 1_500, 4_000
LIVE_ROWS, LIVE_BATCH, LAG_RATE_PER_S, LAG_S = 800_000, 100_000, 2_000, 30.0
RECORDED, BROKER = 50_000, "mb1:5672"
LAG_BATCHES = 3
WITHIN_S = 600.0
GOAL_REPLAY, GOAL_CONFIRM, GOAL_ROWS, GOAL_LAG_S = 60_000.0, 1.1, 50_000.0, 5.0
GOAL_AUDIT, GOAL_RECORD_US = 1.25, 2.0


def store(bus: BusConfig, topic: str, count: int) -> None:
    """Publish this many messages to a topic, by one publisher for each broker."""
    with ExitStack() as stack:
        publishers = [stack.enter_context(Publisher(bus)) for _ in range(BROKERS)]
        for begun in range(0, count, BLOCK):
            some = [BODY] * min(BLOCK, count - begun)
            publishers[begun // BLOCK % BROKERS].send_many(topic, some)


def _replay_figures(scene: Scene) -> Iterator[Figure]:
    bus = BusConfig.from_env(scene.cluster.client_env())
    declare(bus, [Stream("streamed"), "streamed/sink", "plain/sink"])
    make, count = Maker("again", repeat_command(REPLAY, scene.repeat)), scene.part(STORED)
    with Publisher(bus) as publisher:
        pairs = [
            [
                _confirm_us(publisher, topic, scene.part(CONFIRMS, 100))
                for topic in ("plain", "streamed")
            ]
            for _ in range(scene.repeat + 1)
        ][1:]  # the first one warms up
    yield make(
        "stream_confirm_ratio",
        "`send_safe`, 1 KB to one subscription: p50 with a stream beside it, over that without",
        [streamed / plain for plain, streamed in pairs],
        "times",
        (at_most, GOAL_CONFIRM),
    )
    what = "`send_safe`, 1 KB to one subscription, no stream: p50"
    yield make("stream_confirm_plain_us", what, [plain for plain, _ in pairs], "us")
    scene.say(f"{count:,} messages are stored")
    store(bus, "streamed", count)
    turns = [_replayed(bus) for _ in range(scene.repeat)]
    yield make(
        "replay_rate",
        f"Replayed in one process, 1 KB, {BROKERS} brokers",
        [rate for rate, _ in turns],
        "messages/s",
        (at_least, GOAL_REPLAY),
    )
    yield make("replay_cpu_us", "The same: CPU time of the process", [us for _, us in turns], "us")


def _confirm_us(publisher: Publisher, topic: str, count: int) -> float:
    took = []
    for _ in range(count):
        began_ns = time.perf_counter_ns()
        publisher.send_safe(topic, BODY)
        took.append(time.perf_counter_ns() - began_ns)
    return statistics.median(took) / 1e3


def _replayed(bus: BusConfig) -> tuple[float, float]:
    """Return messages a second, and CPU time of a message in us."""
    began_s, cpu_s, count = time.perf_counter(), time.process_time(), 0
    for _ in Replay(bus, "streamed", prefetch=PREFETCH):
        count += 1
    return count / (time.perf_counter() - began_s), (time.process_time() - cpu_s) / count * 1e6


def _live_figures(scene: Scene) -> Iterator[Figure]:
    environment = scene.cluster.client_env()
    bus = BusConfig.from_env(environment)
    declare(bus, [Stream("live")])
    make, count = Maker("again", repeat_command(LIVE)), scene.part(LIVE_ROWS)
    scene.say(f"{count:,} messages are stored")
    store(bus, "live", count)
    of = f"{BROKERS} brokers, two cores for all"
    what = f"Stored messages of 1 KB that the live Spark job reads, without their bodies, {of}"
    yield make("live_rows", what, _read_once(scene), "rows/s", (at_least, GOAL_ROWS))
    what = "The same with --keep: bodies and headers too, into Parquet"
    yield make("live_rows_kept", what, _read_once(scene, "--keep"), "rows/s")
    out, stopping = scene.folder / "lag", threading.Event()
    publishing = threading.Thread(target=_steadily, args=(bus, stopping))
    with _live(environment, out, "--starting", "latest", "--every", "1s"):
        publishing.start()
        try:
            until_s = time.monotonic() + WITHIN_S
            while len(_batches(out)) <= LAG_BATCHES and time.monotonic() < until_s:
                time.sleep(0.5)
            time.sleep(scene.part(round(LAG_S)))
        finally:
            stopping.set()
            publishing.join()
    lags = [at - newest for at, each, newest in _batches(out)[LAG_BATCHES:] if each]
    if not lags:
        raise BenchError(f"{LIVE}: no batch under load")
    what = f"Behind the newest publish at {LAG_RATE_PER_S:,}/s, a batch each second: p50 of batches"
    yield make("live_lag_s", what, statistics.median(lags), "s", (at_most, GOAL_LAG_S))


def _read_once(scene: Scene, *words: str) -> float:
    """Read all that is stored; return rows a second between the first and the last batch."""
    out = scene.folder / f"once{len(words)}"
    words = ("--once", "--rows-max", str(scene.part(LIVE_BATCH)), *words)
    with _live(scene.cluster.client_env(), out, *words) as process:
        if process.wait(WITHIN_S):
            raise BenchError(f"{LIVE}: the job ended with {process.returncode}")
    batches = _batches(out)
    return sum(each for _, each, _ in batches[1:]) / (batches[-1][0] - batches[0][0])


def _steadily(bus: BusConfig, stopping: threading.Event) -> None:
    with Publisher(bus) as publisher:
        while not stopping.wait(0.1):
            publisher.send_many("live", [BODY] * (LAG_RATE_PER_S // 10))


@contextmanager
def _live(environment: dict[str, str], out: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-m", "spark", "live", "--topic", "live", "--out", str(out), *words]
    with subprocess.Popen(
        argv, cwd=CHECKOUT, env={**os.environ, **environment}, stdout=subprocess.DEVNULL
    ) as process:
        try:
            yield process
        finally:
            process.terminate()


def _batches(out: Path) -> list[tuple[float, int, float]]:
    """Return of each finished batch when it was written, its rows, its newest publish; times since 1970."""
    found = []
    for done in (out / "tables" / "minutes").glob("batch=*/*.parquet"):
        rows = pq.read_table(done).to_pylist()
        newest_ms = max((row["last_ms"] for row in rows), default=0)
        messages = sum(row["messages"] for row in rows)
        found.append((done.stat().st_mtime, messages, newest_ms / 1000))
    return sorted(found)


def _audit_figures(scene: Scene) -> Iterator[Figure]:
    make, messages = Maker("again", repeat_command(AUDIT)), scene.part(10 * MILLION, 100_000)
    lake = scene.folder / "lake"
    lay(lake, messages)
    costs: list[Cost] = []
    answers = []
    for master in ("local[2]", "local-cluster[2,1,3072]"):
        scene.say(f"audit of {messages:,} messages on {master}")
        argv = [*submit("3g"), "--run", RUN_ID, "--lake", str(lake), "--out", str(lake / "out")]
        argv[argv.index("local[2]")] = master
        at = argv.index("--driver-memory")
        argv[at:at] = [
            "--executor-memory",
            "3g",
            "--conf",
            f"spark.executorEnv.PYTHONPATH={CHECKOUT}",
        ]
        costs.append(watched(argv, may_fail=True))
        answers.append(json.loads((lake / "out" / "audit.json").read_text()))
    if answers[0] != answers[1]:
        raise BenchError(f"{AUDIT}: two workers give another answer")
    one, two = (cost.cpu_s for cost in costs)
    what = f"Audit, {millions(messages)} rows: CPU of two workers over that of one process"
    yield make("audit_two_workers", what, two / one, "times", (at_most, GOAL_AUDIT))
    yield make("audit_one_cpu_s", f"Audit, {millions(messages)} rows, one process: CPU", one, "s")


def _record_figures(scene: Scene) -> Iterator[Figure]:
    make, count = Maker("again", repeat_command(RECORD, scene.repeat)), scene.part(RECORDED, BLOCK)
    _recorded_us(BLOCK)
    turns = [_recorded_us(count) for _ in range(scene.repeat)]
    for number, (id, words) in enumerate(
        (("record_publish_us", "publish"), ("record_handle_us", "handled delivery"))
    ):
        what = f"Recorder: CPU time of each {words} of 1 KB, its thread and its file included"
        values = [turn[number] for turn in turns]
        yield make(id, what, values, "us", (at_most, GOAL_RECORD_US))


def _recorded_us(count: int) -> tuple[float, float]:
    """Return the CPU time of the recorder for a publish and a handled delivery, in us."""
    messages = [Message(body=BODY, message_id=f"{number:032x}") for number in range(count)]
    done = [
        Published(each.message_id, Outcome.CONFIRMED, Durability.FSYNC, BROKER, 1, 5, 7)
        for each in messages
    ]
    billing = Subscription(Topic("orders"), "billing")
    came = [Delivery(each, Receipt(BROKER, 1, 1), billing, False, 8) for each in messages]
    with (
        tempfile.TemporaryDirectory() as folder,
        Recorder(folder, run_id="r", rows_max=count) as recorder,
    ):
        began_s = time.process_time()
        for message, published in zip(messages, done, strict=True):
            recorder.published("orders", recorder.publishing("orders", message), published)
        _written(recorder, count)
        published_s = time.process_time() - began_s
        began_s = time.process_time()
        for delivery in came:
            recorder.handled(delivery, "ack", None)
        _written(recorder, 2 * count)
        handled_s = time.process_time() - began_s
    return published_s / count * 1e6, handled_s / count * 1e6


def _written(recorder: Recorder, rows: int) -> None:
    """Wait for the rows to be on the disk, so that their cost is in the time."""
    until_s = time.monotonic() + WITHIN_S
    while recorder.stats().written < rows:
        if recorder.stats().dropped or time.monotonic() > until_s:
            raise BenchError(f"{RECORD}: {recorder.stats()}")
        time.sleep(0.05)


GROUPS = (
    Group(REPLAY, BROKERS, BEHIND_HAPROXY, _replay_figures),
    Group(LIVE, BROKERS, BEHIND_HAPROXY, _live_figures),
    Group(AUDIT, 0, "no broker", _audit_figures),
    Group(RECORD, 0, "no broker: in memory", _record_figures),
)

"""The source of Spark over brokers in memory: no row is left out or changes when a batch is read again."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from pyspark.sql.types import LongType, StringType, StructField, StructType

import messagebus._io.replay as replaying
import spark.source as source
from messagebus import (
    Batching,
    BusConfig,
    ConfigError,
    Message,
    NotReady,
    PublisherConfig,
    Replay,
    ReplayGap,
    Stream,
)
from messagebus.replay import behind, stream_ends
from messagebus.testing import MemoryBus
from messagebus.testing.queues import MemoryStream

WITHIN_S = 60.0
BATCHES = PublisherConfig(batch={"orders": Batching(count_max=3)})


@pytest.fixture
def bus(monkeypatch: pytest.MonkeyPatch) -> Iterator[MemoryBus]:
    made = MemoryBus(3)
    made.declare(Stream("orders"))
    monkeypatch.setattr(source, "Replay", partial(Replay, _wire=made._wire))
    monkeypatch.setattr(source, "stream_ends", partial(stream_ends, _wire=made._wire))
    monkeypatch.setattr(source.Settings, "bus", lambda _settings: BusConfig())
    yield made
    made.close()


def reader(**options: str) -> source.StreamReader:
    return source.StreamReader(
        source.Settings.of({"topic": "orders", "lookTimeoutS": "0.3", **options})
    )


def streams(bus: MemoryBus) -> dict[str, MemoryStream]:
    found = {name: each.queues["mb.stream/orders"] for name, each in bus._brokers.all.items()}
    return {name: each for name, each in found.items() if isinstance(each, MemoryStream)}


def publish(bus: MemoryBus, count: int, config: PublisherConfig | None = None) -> list[str]:
    with contextlib.ExitStack() as stack:
        publishers = [stack.enter_context(bus.publisher(config)) for _ in bus.brokers]
        sent = [publishers[n % 3].submit("orders", b"%d" % n) for n in range(count)]
        return [each.result(WITHIN_S).message_id for each in sent]


def rows(read: source.StreamReader, start: Any, end: Any) -> list[dict[str, Any]]:
    return [
        row
        for part in read.partitions(start, end)
        for batch in read.read(part)
        for row in batch.to_pylist()
    ]


class Query:
    """A query with a sink that replaces a batch by its number, as Spark runs one."""

    def __init__(self, **options: str) -> None:
        self.options = options
        self.read = reader(**options)
        self.log = [self.read.initialOffset()]
        self.sink: dict[int, list[dict[str, Any]]] = {}

    def step(self) -> None:
        end = self.read.latestOffset(self.log[-1], self.read.getDefaultReadLimit())
        if end != self.log[-1]:
            self.log.append(end)
            self.write()

    def write(self) -> None:
        number = len(self.log) - 1
        self.sink[number] = rows(self.read, self.log[number - 1], self.log[number])

    def restart(self) -> None:
        """Begin anew with what was planned and written: the last batch is done again."""
        self.read = reader(**self.options)
        if len(self.log) > 1:
            self.write()

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [row for batch in self.sink.values() for row in batch]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.guarantee("spark-live-once")
def test_each_stored_message_is_a_row_once_through_restarts_and_brokers_that_are_away(
    bus: MemoryBus, seed: int
) -> None:
    chance = random.Random(seed)
    options = {"maxRowsPerTrigger": "7", "rowsPerPartition": "3"} if seed % 2 else {}
    sent = publish(bus, 5)
    query = Query(**options)
    away: list[str] = []
    for _ in range(12):
        match chance.choice(["publish", "publish", "step", "step", "restart", "away", "back"]):
            case "publish":
                sent += publish(bus, chance.randrange(20), BATCHES if seed % 3 else None)
            case "step":
                query.step()
            case "restart" if not away:
                query.restart()
            case "away" if not away:
                away = [chance.choice(bus.brokers)]
                bus.stop_brokers(*away)
            case "back":
                bus.start_brokers()
                away = []
    bus.start_brokers()
    for _ in range(60):
        query.step()
    assert Counter(row["message_id"] for row in query.rows) == Counter(sent)
    assert not [row for row in query.rows if row["gap"]]
    for row in query.rows:
        assert row["published_ms"] > 0


def test_a_broker_that_joins_is_read_from_its_first_message_and_one_that_left_keeps_its_place(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query()
    sent = publish(bus, 9)
    hidden = max(streams(bus), key=lambda name: len(streams(bus)[name].kept))
    query.log = [{name: entry for name, entry in query.log[0].items() if name != hidden}]
    query.step()
    assert hidden not in {row["broker"] for row in query.rows}  # its place alone
    query.step()
    assert sorted(row["message_id"] for row in query.rows) == sorted(sent)
    bus.stop_brokers(hidden)
    query.step()
    assert hidden in query.log[-1]


def test_a_bound_is_shared_fairly_and_met_exactly(bus: MemoryBus) -> None:
    sent = publish(bus, 30)
    query = Query()
    start = query.log[0]
    end = query.read.latestOffset(start, ReadMaxRows(11))
    found = rows(query.read, start, end)
    assert len(found) == 11
    assert query.read.latestOffset(start, ReadAllAvailable()) != end
    for broker, entry in end.items():
        last = [row for row in found if row["broker"] == broker][-1:]
        assert not last or entry["id"] == last[0]["message_id"]
    assert {row["message_id"] for row in found} <= set(sent)


@pytest.mark.parametrize("is_once", [False, True])
@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_stream_that_lost_its_end_fails_the_query_or_is_a_row(
    bus: MemoryBus, fails: str, is_once: bool
) -> None:
    """Whatever the trigger is: one that reads on, or a run each night until all available is read."""
    sent = publish(bus, 12)
    query = Query(failOnDataLoss=fails)
    query.step()
    stream = max(streams(bus).values(), key=lambda each: len(each.kept))
    lost = len(stream.kept)
    del stream.kept[2:]
    if is_once:
        query.read.prepareForTriggerAvailableNow()
    if fails == "true":
        with pytest.raises(ReplayGap, match="lost its end"):
            query.step()
        return
    query.step()
    query.step()
    told = [row for row in query.rows if row["gap"]]
    assert len(told) == 1
    assert f"before {lost}" in told[0]["gap"]
    assert {row["message_id"] for row in query.rows if not row["gap"]} == set(sent)
    more = publish(bus, 6)
    if is_once:
        query.read.prepareForTriggerAvailableNow()
    query.step()
    assert {row["message_id"] for row in query.rows if not row["gap"]} == {*sent, *more}


def test_an_end_that_is_lost_is_not_passed_over_while_its_broker_is_silent(bus: MemoryBus) -> None:
    publish(bus, 12)
    query = Query(timeoutS="0.1")
    query.step()
    for stream in streams(bus).values():
        del stream.kept[2:]
    query.read.prepareForTriggerAvailableNow()
    bus.stop_brokers(*bus.brokers)
    with pytest.raises(NotReady):
        query.step()


@pytest.mark.parametrize("silent", [1, 3])
def test_the_latest_of_a_broker_that_is_slow_at_the_start_is_asked_until_it_is_known(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch, silent: int
) -> None:
    publish(bus, 30)
    bus.stop_brokers(*bus.brokers[:silent])
    monkeypatch.setattr(time, "sleep", lambda _: bus.start_brokers())
    query = Query(startingOffsets="latest")
    more = publish(bus, 6)
    query.step()
    query.step()
    assert sorted(row["message_id"] for row in query.rows) == sorted(more)


def test_a_query_of_the_latest_begins_behind_what_was_noted_for_one_run(bus: MemoryBus) -> None:
    publish(bus, 6)
    read = reader(startingOffsets="latest")
    read.prepareForTriggerAvailableNow()
    publish(bus, 6)
    start = read.initialOffset()
    assert read.latestOffset(start, ReadAllAvailable()) == start


@pytest.mark.parametrize("begin", ["latest", "batch", "availableNow"])
def test_a_query_fails_where_a_broker_never_says_what_it_has(bus: MemoryBus, begin: str) -> None:
    publish(bus, 6)
    bus.stop_brokers(bus.brokers[0])
    read = reader(startingOffsets="latest", timeoutS="0.1")
    started = {
        "latest": read.initialOffset,
        "batch": source.BatchReader(read.settings).partitions,
        "availableNow": read.prepareForTriggerAvailableNow,
    }
    with pytest.raises(NotReady, match=bus.brokers[0]):
        started[begin]()


@pytest.mark.parametrize("fails", ["true", "false"])
def test_a_run_until_all_available_is_read_never_ends_well_without_a_broker(
    bus: MemoryBus, fails: str
) -> None:
    """Unless gaps are put up with: such a query reads the others, and this one the next time."""
    publish(bus, 6)
    read = reader(failOnDataLoss=fails, timeoutS="0.1")
    bus.stop_brokers(bus.brokers[0])
    start = read.initialOffset()
    bus.start_brokers()
    read.prepareForTriggerAvailableNow()
    bus.stop_brokers(bus.brokers[0])
    if fails == "true":
        with pytest.raises(NotReady, match=bus.brokers[0]):
            read.latestOffset(start, ReadAllAvailable())
        return
    end = read.latestOffset(start, ReadAllAvailable())
    assert {row["broker"] for row in rows(read, start, end)} == {*bus.brokers[1:]}


@pytest.mark.parametrize("fails", ["true", "false"])
def test_another_message_at_the_place_of_the_last_one_is_noticed(
    bus: MemoryBus, fails: str
) -> None:
    publish(bus, 12)
    query = Query(failOnDataLoss=fails)
    query.step()
    stream = max(streams(bus).values(), key=lambda each: len(each.kept))
    stream.kept[-1] = stream.kept[0]
    stream.kept.append(stream.kept[1])
    if fails == "true":
        with pytest.raises(ReplayGap, match="another message"):
            query.step()
        return
    query.step()
    assert [row["gap"] for row in query.rows if row["gap"]]


def test_what_a_task_finds_gone_fails_it_or_is_a_row_with_what_is_left(bus: MemoryBus) -> None:
    publish(bus, 12)
    stream = max(streams(bus), key=lambda name: len(streams(bus)[name].kept))
    kept = streams(bus)[stream].kept
    wanted = source.Range(stream, behind(-1), len(kept) + 2)
    with pytest.raises(ReplayGap):
        list(reader().read(wanted))
    found = [
        row for each in reader(failOnDataLoss="false").read(wanted) for row in each.to_pylist()
    ]
    assert [bool(row["gap"]) for row in found] == [True] + [False] * len(kept)


def test_all_that_is_there_is_read_for_a_batch_query_and_until_available_now(
    bus: MemoryBus,
) -> None:
    sent = publish(bus, 25)
    batch = source.BatchReader(source.Settings.of({"topic": "orders", "rowsPerPartition": "4"}))
    found = [
        row for part in batch.partitions() for each in batch.read(part) for row in each.to_pylist()
    ]
    assert sorted(row["message_id"] for row in found) == sorted(sent)
    query = Query(maxRowsPerTrigger="10")
    query.read.prepareForTriggerAvailableNow()
    publish(bus, 5)
    for _ in range(9):
        query.step()
    assert sorted(row["message_id"] for row in query.rows) == sorted(sent)


def test_a_range_is_read_whole_when_a_busy_broker_answers_before_it_delivers(
    bus: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, waits = publish(bus, 12), replaying._round_trip

    async def early(link: Any, stream: Stream) -> None:
        arrive = link.transport.on_contents
        if isinstance(getattr(arrive, "__self__", None), replaying._Reader):
            loop = asyncio.get_running_loop()
            link.transport.on_contents = lambda some: loop.call_later(0.05, arrive, some)
        await waits(link, stream)

    async def consume(link: Any, *settings: Any) -> None:
        arrive, came = link.transport.on_contents, list[Any]()
        link.transport.on_contents = came.extend
        await consumes(link, *settings)
        await asyncio.sleep(0)
        link.transport.on_contents = arrive
        if isinstance(getattr(arrive, "__self__", None), replaying._Reader):
            asyncio.get_running_loop().call_later(0.05, arrive, came)
        else:
            arrive(came)

    consumes = replaying._consume
    monkeypatch.setattr(replaying, "_consume", consume)
    monkeypatch.setattr(replaying, "_round_trip", early)
    query = Query()
    query.log = [{name: source.entry_behind(behind(-1)) for name in query.log[0]}]
    query.step()
    assert sorted(row["message_id"] for row in query.rows) == sorted(sent)


def test_a_range_ends_behind_a_damaged_batch_which_has_an_offset_and_no_rows(
    bus: MemoryBus,
) -> None:
    sent = publish(bus, 12, BATCHES)
    query = Query()
    query.log = [{name: source.entry_behind(behind(-1)) for name in query.log[0]}]
    for each in streams(bus).values():
        each.kept[-1].body = b"damaged"
    query.step()
    assert 0 < len(query.rows) < len(sent)
    later = publish(bus, 3)
    query.step()
    assert {row["message_id"] for row in query.rows} < {*sent, *later}
    assert {row["message_id"] for row in query.rows} > {*later}


def test_a_schema_of_some_columns_has_these_alone_and_the_same_rows(bus: MemoryBus) -> None:
    publish(bus, 12)
    whole = source.BatchReader(source.Settings.of({"topic": "orders"}))
    some = StructType([StructField("bytes", LongType()), StructField("message_id", StringType())])
    part = source.BatchReader(whole.settings, source.columns_of(some))
    found, wanted = (
        [row for part in read.partitions() for each in read.read(part) for row in each.to_pylist()]
        for read in (part, whole)
    )
    assert found == [{"bytes": len(row["body"]), "message_id": row["message_id"]} for row in wanted]
    with pytest.raises(ConfigError, match=r"column 'body' \(string\) is none of"):
        source.columns_of(StructType([StructField("body", StringType())]))


@pytest.mark.parametrize("batched", [False, True])
def test_a_row_has_all_that_was_published_with_its_message(bus: MemoryBus, batched: bool) -> None:
    fields: list[dict[str, Any]] = [
        {"body": b"bare"},
        {"body": b"typed", "content_type": "text/plain"},
        {"body": b"keyed", "key": "k"},
        {"body": b"with", "headers": {"a": True}},
        {"body": b"all", "headers": {"x-a": "text", "n": 7}, "key": "k", "content_type": "a/b"},
        {"body": b"answer", "correlation_id": "c", "reply_to": "r", "priority": 3, "type": "t"},
    ]
    messages = [Message(**each) for each in fields]
    with bus.publisher(BATCHES if batched else None) as publisher:
        for each in [publisher.submit("orders", each) for each in messages]:
            each.result(WITHIN_S)
    query = Query()
    query.log = [{name: source.entry_behind(behind(-1)) for name in query.log[0]}]
    query.step()
    assert any(row["part"] for row in query.rows) == batched
    found = {row["body"]: (row["content_type"], row["key"], row["headers"]) for row in query.rows}
    assert found == {
        each.body: (
            each.content_type,
            each.key,
            [
                (name, text if isinstance(text, str) else json.dumps(text))
                for name, text in each.headers.items()
            ],
        )
        for each in messages
    }


@given(
    st.dictionaries(st.sampled_from("abcde"), st.integers(1, 50)),
    st.one_of(st.none(), st.integers(1, 120)),
)
def test_shares_use_the_room_and_no_broker_gets_less_than_its_fair_part(
    waiting: Mapping[str, int], room: int | None
) -> None:
    taken = source.shares(waiting, room)
    if room is None:
        assert taken == dict(waiting)
        return
    assert sum(taken.values()) == min(room, sum(waiting.values()))
    for broker, count in waiting.items():
        assert taken[broker] <= count
        assert taken[broker] >= min(count, room // len(waiting))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, '"topic" is missing'),
        ({"topic": "orders", "startingOffset": "x"}, "'startingoffset' is unknown"),
        ({"topic": "orders", "startingOffsets": "then"}, "startingOffsets 'then'"),
        ({"topic": "orders", "maxRowsPerTrigger": "many"}, "'many': a int is wanted"),
        ({"topic": "orders", "maxRowsPerTrigger": "-1"}, "numbers of messages"),
    ],
)
def test_bad_options_are_named(options: dict[str, str], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        source.Settings.of(options)

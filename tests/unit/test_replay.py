"""messagebus.replay over brokers in memory: what is returned, where it begins, ends and goes on."""

from __future__ import annotations

import asyncio
import gc
import itertools
import threading
import time
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import messagebus._io.replay as replaying
from messagebus import (
    AsyncReplay,
    Batching,
    BusConfig,
    Checkpoint,
    ConfigError,
    Message,
    NameInvalid,
    NotReady,
    PublisherConfig,
    ReplayGap,
    Stopped,
    Stream,
    Topic,
)
from messagebus._io.amqp.copy_headers import numbered
from messagebus.core.checkpoint import Position, gap_at, gap_behind
from messagebus.core.homes import partition_of
from messagebus.replay import behind, stream_ends
from messagebus.testing import MemoryBus, queues
from messagebus.testing.queues import MemoryStream
from tests.support.eventually import eventually, eventually_async
from tests.support.together import links_left

WITHIN_S = 60.0
POSITION = Position(7, 0, "seven", 1_000)


def publish(bus: MemoryBus, count: int, config: PublisherConfig | None = None) -> list[str]:
    with bus.publisher(config) as publisher:
        return [publisher.send_safe("orders", b"%d" % number).message_id for number in range(count)]


@pytest.fixture
def streamed() -> MemoryBus:
    bus = MemoryBus()
    bus.declare(Stream("orders"))
    return bus


@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("taken", [0, 1, 7, 19, 20])
def test_each_message_comes_once_also_behind_a_checkpoint(
    streamed: MemoryBus, batched: bool, taken: int
) -> None:
    config = PublisherConfig(batch={"orders": Batching(count_max=7)} if batched else {})
    with streamed.publisher(config) as publisher:
        sent = [publisher.submit("orders", b"%d" % n) for n in range(20)]
        ids = [each.result().message_id for each in sent]
    replay = streamed.replay("orders", prefetch=3)
    found = list(itertools.islice(replay, taken))
    kept = Checkpoint.parse(str(replay.checkpoint()))
    replay.stop()
    found += streamed.replay("orders", since=kept)
    assert sorted(each.message_id for each in found) == sorted(ids)


async def test_the_asyncio_replay_goes_on_with_what_comes_later(streamed: MemoryBus) -> None:
    first = await asyncio.to_thread(publish, streamed, 3)
    async with streamed.async_replay("orders", until=None) as replay:
        found = [(await anext(replay)).message_id for _ in first]
        later = await asyncio.to_thread(publish, streamed, 2)
        found += [(await anext(replay)).message_id for _ in later]
    assert sorted(found) == sorted(first + later)
    with pytest.raises(StopAsyncIteration):
        await anext(replay)


async def test_a_stop_ends_the_wait_of_another_task_for_the_next_message(
    streamed: MemoryBus,
) -> None:
    replay = streamed.async_replay("orders", until=None)
    waiting = asyncio.create_task(anext(replay, None))
    await asyncio.sleep(0)
    await replay.stop()
    assert await asyncio.wait_for(waiting, WITHIN_S) is None


def test_a_stop_ends_the_wait_of_another_thread_for_the_next_message(streamed: MemoryBus) -> None:
    with streamed.publisher() as publisher:
        publisher.send_safe("orders", b"0")
    replay, found = streamed.replay("orders", until=None), list[bytes]()
    reading = threading.Thread(target=lambda: found.extend(each.body for each in replay))
    reading.start()
    eventually(lambda: found == [b"0"], within_s=WITHIN_S)
    replay.stop()
    reading.join(WITHIN_S)
    assert not reading.is_alive()


async def test_a_replay_goes_on_behind_a_wait_for_its_next_message_that_was_cancelled(
    streamed: MemoryBus,
) -> None:
    async with (
        streamed.async_publisher() as publisher,
        streamed.async_replay("orders", until=None) as replay,
    ):
        for body in (b"0", b"1"):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(replay), 0.01)
            await publisher.send_safe("orders", body)
            assert (await anext(replay)).body == body


async def test_a_replay_that_is_dropped_hangs_up(streamed: MemoryBus) -> None:
    async def look() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(streamed.async_replay("orders", until=None)), 0.01)

    await look()
    gc.collect()
    await eventually_async(lambda: not links_left(streamed), within_s=WITHIN_S)


@pytest.mark.guarantee("replay-gap-is-told")
def test_a_replay_that_an_error_ended_does_not_look_complete(streamed: MemoryBus) -> None:
    streamed.stop_brokers()
    with streamed.replay("orders", away_s=0.01) as away:
        with pytest.raises(NotReady):
            next(away)
        with pytest.raises(Stopped, match="ended by NotReady: go on with its checkpoint"):
            next(away)


def test_a_replay_takes_nothing_from_a_subscription(streamed: MemoryBus) -> None:
    streamed.declare("orders/billing")
    ids = publish(streamed, 5)
    assert len(list(streamed.replay("orders"))) == 5
    with streamed.consumer("orders", subscription="billing") as consumer:
        deliveries = [consumer.receive(5) for _ in ids]
    assert sorted(each.message_id for each in deliveries if each) == sorted(ids)


def test_an_empty_stream_and_one_behind_the_time_asked_for_have_nothing(
    streamed: MemoryBus,
) -> None:
    assert list(streamed.replay("orders")) == []
    publish(streamed, 3)
    assert list(streamed.replay("orders", since=datetime.now(UTC) + timedelta(hours=1))) == []
    assert len(list(streamed.replay("orders", since=timedelta(minutes=1)))) == 3


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("away_s", [60.0, None])
def test_a_replay_that_cannot_pass_a_message_ends_with_its_place(
    monkeypatch: pytest.MonkeyPatch, at: int, away_s: float | None
) -> None:
    bus, consumes = MemoryBus(1), replaying._consume
    bus.declare(Stream("orders"))
    ids = publish(bus, 8)

    async def consume(link: Any, *settings: Any) -> None:
        arrive = link.transport.on_contents

        def until_it_ends(some: list[Any]) -> None:
            for each in some:
                if replaying.read_offset(each[2]) == at:
                    link.abort()
                    return
                arrive([each])

        link.transport.on_contents = until_it_ends
        await consumes(link, *settings)

    monkeypatch.setattr(replaying, "_consume", consume)
    monkeypatch.setattr(replaying, "REDIAL_MAX_MS", 1)
    found = list[str]()
    place = f"behind offset {at - 1}" if at else "at its first message"
    with pytest.raises(NotReady, match=f"memory-1:5672: 10 links ended .*{place}"):
        found.extend(each.message_id for each in bus.replay("orders", away_s=away_s))
    assert found == ids[:at]


SERVED_S = 0.03


@pytest.fixture
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make brokers answer before they deliver: readers are served later, in the order in which they asked."""
    consumes, slowed = replaying._consume, list[Any]()

    async def consume(link: Any, *settings: Any) -> None:
        arrive, later = link.transport.on_contents, asyncio.get_running_loop().call_later
        if link not in slowed:
            slowed.append(link)
            link.transport.on_contents = lambda some: later(SERVED_S, arrive, some)
        await consumes(link, *settings)

    monkeypatch.setattr(replaying, "_consume", consume)


@pytest.mark.parametrize("ahead_s", [-40, 0, 40])
def test_a_time_is_that_of_the_publishers_whose_clocks_differ_from_the_brokers(
    streamed: MemoryBus, ahead_s: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Brokers look for a time by their own clocks."""
    real = time.time
    moved = SimpleNamespace(**{**vars(time), "time": lambda: real() + ahead_s})
    with streamed.publisher() as publisher:
        publisher.send_safe("orders", Message(body=b"before"))
        for part in ("door", "sender"):
            monkeypatch.setattr(f"messagebus._io.publish.{part}.time", moved)
        publisher.send_safe("orders", Message(body=b"theirs"))
    stamp = datetime.now(UTC) + timedelta(seconds=ahead_s)
    near, behind_it = stamp - timedelta(seconds=10), stamp + timedelta(seconds=10)
    assert b"theirs" in [each.body for each in streamed.replay("orders", since=near)]
    assert b"theirs" not in [each.body for each in streamed.replay("orders", since=behind_it)]


def test_what_is_left_out_before_a_time_holds_up_nothing(streamed: MemoryBus) -> None:
    publish(streamed, 200)
    later = datetime.now(UTC) + timedelta(seconds=30)
    assert list(streamed.replay("orders", since=later, prefetch=10)) == []


@pytest.mark.parametrize("since", ["first", timedelta(minutes=1), timedelta(0)])
def test_a_replay_ends_behind_the_last_message_also_where_a_broker_is_busy(
    streamed: MemoryBus, busy: None, since: Any
) -> None:
    ids = publish(streamed, 30)
    if since == timedelta(0):
        since, ids = datetime.now(UTC) + timedelta(hours=1), []
    found = list(streamed.replay("orders", since=since))
    assert sorted(each.message_id for each in found) == sorted(ids)


def test_a_link_that_ends_after_a_long_time_is_no_broker_that_was_away_for_long(
    streamed: MemoryBus,
) -> None:
    ids, away_s = publish(streamed, 3), 0.2
    with streamed.replay("orders", until=None, away_s=away_s) as replay:
        found = [next(replay).message_id for _ in ids]
        until_s = time.monotonic() + 2 * away_s
        eventually(lambda: time.monotonic() > until_s, within_s=WITHIN_S)
        streamed.lose_connection()
        ids += publish(streamed, 3)
        found += [next(replay).message_id for _ in range(3)]
    assert sorted(found) == sorted(ids)


def test_what_retention_drops_under_a_replay_to_the_end_is_told(
    streamed: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(streamed, 30)
    consumes = replaying._consume

    async def consume(link: Any, stream: Stream, start: Any, prefetch: int) -> None:
        if start == "first":
            for each in streams(streamed).values():
                each.kept.clear()
        await consumes(link, stream, start, prefetch)

    monkeypatch.setattr(replaying, "_consume", consume)
    monkeypatch.setattr(replaying, "SILENT_S", 0.1)
    with pytest.raises(ReplayGap, match="it lost its end"):
        list(streamed.replay("orders"))


@pytest.mark.parametrize("topic", [Topic("orders"), Topic("orders", partitions=6)])
@pytest.mark.parametrize("taken", [0, 1, 5, 9])
def test_a_replay_by_key_has_its_messages_alone_and_goes_on_behind_what_was_passed_over(
    topic: Topic, taken: int
) -> None:
    bus = MemoryBus()
    for each in (topic, Stream("orders")):
        bus.declare(each)
    with bus.publisher() as publisher:
        for number in range(60):
            publisher.send_safe("orders", Message(body=b"%d" % number, key=f"k{number % 6}"))
    assert len(list(bus.replay("orders"))) == 60
    wanted = [b"%d" % number for number in range(2, 60, 6)]
    replay = bus.replay("orders", key="k2", prefetch=7)
    found = [each.body for each in itertools.islice(replay, taken)]
    kept = Checkpoint.parse(str(replay.checkpoint()))
    replay.stop()
    rest = bus.replay("orders", key="k2", since=kept)
    found += [each.body for each in rest]
    assert sorted(found) == sorted(wanted)
    if topic.partitions:
        assert found == wanted
    # What is of other keys was read as well.
    assert len(list(bus.replay("orders", since=rest.checkpoint()))) < 50
    assert list(bus.replay("orders", key="k7")) == []


def test_a_stream_of_a_partitioned_topic_has_each_partition_from_its_home_alone() -> None:
    bus = MemoryBus()
    bus.declare(Topic("orders", partitions=6))
    bus.declare(Stream("orders"))
    with bus.publisher() as publisher:
        for number in range(90):
            publisher.send_safe("orders", Message(body=b"%d" % number, key=f"k{number % 9}"))
    homes: dict[int, set[str]] = {}
    for each in bus.replay("orders"):
        homes.setdefault(partition_of(each.key, 6), set()).add(each.broker)
    assert homes == {number: {bus.brokers[number % len(bus.brokers)]} for number in homes}


def test_messages_that_are_gone_are_told_with_their_number(streamed: MemoryBus) -> None:
    publish(streamed, 12)
    replay = streamed.replay("orders")
    list(replay)
    kept = replay.checkpoint()
    for broker in streamed._brokers.all.values():
        stream = broker.queues["mb.stream/orders"]
        assert isinstance(stream, MemoryStream)
        if stream.kept:
            del stream.kept[-1]
    with pytest.raises(ReplayGap, match="ends at offset"):
        list(streamed.replay("orders", since=kept))
    assert list(streamed.replay("orders", since=kept, on_gap="time"))


def test_an_offset_that_a_stream_gave_to_none_of_its_messages_is_no_gap(
    streamed: MemoryBus, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = publish(streamed, 30)
    monkeypatch.setattr(queues, "numbered", lambda raw, at: numbered(raw, at + (at >= 5)))
    found = list(streamed.replay("orders", prefetch=2))
    assert sorted(each.message_id for each in found) == sorted(ids)
    assert 5 not in {each.offset for each in found}


def streams(bus: MemoryBus) -> dict[str, MemoryStream]:
    found = {name: each.queues["mb.stream/orders"] for name, each in bus._brokers.all.items()}
    return {name: each for name, each in found.items() if isinstance(each, MemoryStream)}


@pytest.mark.parametrize("is_empty", [True, False])
async def test_next_leaves_out_nothing_of_a_time_in_which_its_link_was_cut(
    streamed: MemoryBus, is_empty: bool
) -> None:
    await asyncio.to_thread(publish, streamed, 12)
    stream = max(streams(streamed).values(), key=lambda each: len(each.kept))
    meanwhile = stream.kept[-3:]
    if is_empty:
        stream.kept.clear()
    async with streamed.async_replay("orders", since="next", until=None) as replay:
        found = asyncio.ensure_future(anext(replay))
        await eventually_async(lambda: is_attached(replay), within_s=WITHIN_S)
        streamed.stop_brokers()
        await eventually_async(lambda: not stream.takers, within_s=WITHIN_S)
        stream.kept += meanwhile
        streamed.start_brokers()
        async with asyncio.timeout(WITHIN_S):
            bodies = [each.body for each in (await found, await anext(replay), await anext(replay))]
    assert bodies == [each.body for each in meanwhile]


def is_attached(replay: AsyncReplay) -> bool:
    """Return whether every broker's stream is being read, after its end was looked at."""
    readers = replay._driver._readers.values() if replay._driver is not None else ()
    return bool(readers) and all(each._link is not None for each in readers)


def test_a_replay_between_two_checkpoints_reads_each_message_once(streamed: MemoryBus) -> None:
    with streamed.publisher(PublisherConfig(batch={"orders": Batching(count_max=3)})) as publisher:
        sent = [publisher.submit("orders", b"%d" % n) for n in range(40)]
        ids = [each.result().message_id for each in sent]
    ends = stream_ends(BusConfig(), "orders", _wire=streamed._wire)
    assert set(ends) == set(streamed.brokers)
    found: list[str] = []
    for broker, last in ends.items():
        for offset in range(last.offset + 1 if last else 0):
            since, until = (
                Checkpoint("orders", {broker: behind(each)}) for each in (offset - 1, offset)
            )
            part = list(streamed.replay("orders", since=since, until=until))
            assert {(each.broker, each.offset) for each in part} == {(broker, offset)}
            found += [each.message_id for each in part]
    assert sorted(found) == sorted(ids)


def test_an_end_that_a_stream_no_longer_has_is_told(streamed: MemoryBus) -> None:
    publish(streamed, 6)
    ends = stream_ends(BusConfig(), "orders", _wire=streamed._wire)
    broker, last = next((name, each) for name, each in ends.items() if each)
    assert last is not None
    until = Checkpoint("orders", {broker: behind(last.offset + 1)})
    for since in ("first", Checkpoint("orders", {broker: behind(-1)})):
        with pytest.raises(ReplayGap, match="it lost its end"):
            list(streamed.replay("orders", since=since, until=until))
    found = list(streamed.replay("orders", since="first", until=until, on_gap="time"))
    assert [each.offset for each in found] == [*range(last.offset + 1)]


def test_looking_at_streams_leaves_out_the_brokers_that_do_not_answer(streamed: MemoryBus) -> None:
    publish(streamed, 12)
    streamed.stop_brokers(streamed.brokers[0])
    ends = stream_ends(BusConfig(), "orders", within_s=0.5, _wire=streamed._wire)
    assert set(ends) == set(streamed.brokers[1:])
    at = stream_ends(
        BusConfig(), "orders", since=dict.fromkeys(ends, 1), within_s=0.5, _wire=streamed._wire
    )
    assert {name: each and each.offset for name, each in at.items()} == {
        name: 1 if last and last.offset else None for name, last in ends.items()
    }


def test_another_message_at_the_same_offset_is_told(streamed: MemoryBus) -> None:
    publish(streamed, 12)
    replay = streamed.replay("orders")
    list(replay)
    kept = replay.checkpoint()
    for broker in streamed._brokers.all.values():
        stream = broker.queues["mb.stream/orders"]
        assert isinstance(stream, MemoryStream)
        stream.kept.reverse()
    with pytest.raises(ReplayGap, match="another message") as told:
        list(streamed.replay("orders", since=kept))
    assert told.value.broker in kept.positions


@pytest.mark.guarantee("replay-gap-is-told")
def test_a_broker_of_a_checkpoint_that_is_not_on_the_list_is_a_gap_and_told_once(
    streamed: MemoryBus, caplog: pytest.LogCaptureFixture
) -> None:
    publish(streamed, 4)
    replay = streamed.replay("orders")
    before = list(replay)
    known = dict(replay.checkpoint().positions)
    moved = min(known)
    renamed = {"renamed:5672": known.pop(moved), **known}
    with pytest.raises(ReplayGap, match="not on the list: removed, renamed, or of another bus"):
        list(streamed.replay("orders", since=Checkpoint("orders", renamed)))
    goes_on = streamed.replay("orders", since=Checkpoint("orders", renamed), on_gap="time")
    found = [each.message_id for each in goes_on]
    assert found == [each.message_id for each in before if each.broker == moved]
    assert len([each for each in caplog.records if "renamed:5672" in each.getMessage()]) == 1
    # What it had is repeated under its new name, and the next checkpoint is one of this bus.
    assert list(streamed.replay("orders", since=goes_on.checkpoint())) == []


@pytest.mark.guarantee("replay-gap-is-told")
def test_a_checkpoint_of_another_bus_is_a_gap_where_its_brokers_have_the_same_names(
    streamed: MemoryBus,
) -> None:
    publish(streamed, 12)
    replay = streamed.replay("orders")
    list(replay)
    other = MemoryBus()
    other.declare(Stream("orders"))
    publish(other, 24)
    with pytest.raises(ReplayGap, match="is another one"):
        list(other.replay("orders", since=replay.checkpoint()))


def test_a_topic_without_a_stream_is_named(streamed: MemoryBus) -> None:
    with pytest.raises(NotReady, match=r"no queue 'mb\.stream/clicks'"):
        list(streamed.replay("clicks", away_s=0.2))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"since": "yesterday"}, "since 'yesterday'"),
        ({"since": datetime(2026, 1, 1)}, "with a time zone"),
        ({"since": timedelta(seconds=-1)}, "before now"),
        ({"since": "next"}, "until=None goes on"),
        ({"since": Checkpoint("clicks")}, "of 'clicks', not of 'orders'"),
        ({"until": "then"}, "until 'then'"),
        ({"on_gap": "skip"}, "on_gap 'skip'"),
        ({"prefetch": 0}, "prefetch 0"),
        ({"prefetch": True}, "prefetch True"),
        ({"away_s": float("nan")}, "away_s nan"),
    ],
)
def test_bad_settings_are_named(streamed: MemoryBus, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        streamed.replay("orders", **options)


def test_only_a_topic_is_replayed() -> None:
    with pytest.raises(NameInvalid, match="only a topic"):
        MemoryBus().replay("queue:jobs")


@pytest.mark.parametrize("keep", [{"keep_s": 59}, {"keep_s": 1.5}, {"keep_bytes": 10}])
def test_bad_retention_is_named(keep: dict[str, int]) -> None:
    with pytest.raises(NameInvalid, match="a whole number"):
        Stream(Topic("orders"), **keep)


texts = st.text(max_size=30)
numbers = st.integers(0, (1 << 63) - 1)
positions = st.builds(Position, numbers, numbers, texts, numbers)


@given(st.builds(Checkpoint, texts, st.dictionaries(texts, positions, max_size=4)))
def test_a_checkpoint_is_read_back_as_it_was(checkpoint: Checkpoint) -> None:
    assert Checkpoint.parse(str(checkpoint)) == checkpoint


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "[" * 100_000,
        '{"replay":2,"topic":"orders","brokers":{}}',
        '{"replay":1,"topic":1,"brokers":{}}',
        '{"replay":1,"topic":"orders","brokers":{"mb1":[1,0,"id"]}}',
        '{"replay":1,"topic":"orders","brokers":{"mb1":[-1,0,"id",0]}}',
        '{"replay":1,"topic":"orders","brokers":{"mb1":[true,0,"id",0]}}',
        '{"replay":1,"topic":"orders","brokers":{"mb1":[1.5,0,"id",0]}}',
    ],
)
def test_what_is_no_checkpoint_is_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match="not a checkpoint") as told:
        Checkpoint.parse(text)
    assert "\n" not in str(told.value)


@given(numbers, numbers, numbers)
def test_a_position_without_its_message_is_a_gap(offset: int, first: int, count: int) -> None:
    gap = gap_behind(POSITION._replace(offset=offset), first, first + count)
    assert (gap is None) == (offset in range(first, first + count))
    if gap is not None and gap.lost is not None:
        assert gap.lost == first - offset - 1


def test_the_id_decides_at_the_same_offset() -> None:
    assert gap_at(POSITION, "seven") is None
    assert gap_at(POSITION, "eight") is not None

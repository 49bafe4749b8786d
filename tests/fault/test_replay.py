"""Promise: a replay returns each stored message of every broker, in the broker's order, or tells the gap."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from messagebus import (
    Batching,
    BusConfig,
    Checkpoint,
    Consumer,
    Message,
    NotReady,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Replay,
    Replayed,
    ReplayGap,
    Stream,
    Topic,
    TopologyMismatch,
    declare,
)
from messagebus.admin import delete_subscriptions
from messagebus.message import Header
from messagebus.replay import stream_ends
from ops.local.cluster import LocalCluster
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually
from tests.support.faults import bus_config, delete_queue, direct, queue_exists, register
from tests.support.load import drain, publishing

WITHIN_S = 60.0
BACK_WITHIN_S = 600.0
BROKERS = ("mb1", "mb2", "mb3")
LOOKS = 100
CONFIRMED = Outcome.CONFIRMED


def made(bus: BusConfig, topic: str) -> None:
    assert declare(bus, [Stream(topic)]).complete


def published(
    bus: BusConfig, topic: str, count: int, config: PublisherConfig | None = None
) -> list[str]:
    """Publish so many, by publishers that the balancer spreads over the brokers. Returns their ids."""
    with contextlib.ExitStack() as stack:
        publishers = [stack.enter_context(Publisher(bus, config)) for _ in BROKERS]
        headers: dict[str, Header] = {"x-stream-offsets": 3}  # no name of the stream's own
        sent = [
            publishers[number % len(publishers)].submit(
                topic, b"%d" % number, headers={} if number % 7 else headers
            )
            for number in range(count)
        ]
        return [each.result(WITHIN_S).message_id for each in sent]


def ids(found: Iterable[Replayed]) -> list[str]:
    return [each.message_id for each in found]


def assert_in_order(found: Iterable[Replayed]) -> None:
    """Check that the positions of each broker are its own, one after the other."""
    by_broker = defaultdict[str, list[tuple[int, int]]](list)
    for each in found:
        by_broker[each.broker].append((each.offset, each.part))
    for places in by_broker.values():
        assert places == sorted(set(places))
        assert [offset for offset, _ in itertools.groupby(places, lambda each: each[0])] == list(
            range(places[0][0], places[-1][0] + 1)
        )


@pytest.mark.guarantee("replay")
@pytest.mark.parametrize("batched", [False, True], ids=["alone", "batches"])
def test_a_replay_returns_each_message_of_all_brokers_and_goes_on_behind_a_checkpoint(
    cluster: LocalCluster, bus: BusConfig, topic: str, batched: bool
) -> None:
    config = PublisherConfig(batch={topic: Batching(linger_s=0.005)} if batched else {})
    made(bus, topic)
    first = published(bus, topic, 500, config)
    replay = Replay(bus, topic, prefetch=50)
    found = list(itertools.islice(replay, 137))
    kept = str(replay.checkpoint())
    replay.stop()
    more = published(bus, topic, 200, config)
    found += (rest := list(Replay(bus, topic, since=Checkpoint.parse(kept))))
    assert sorted(ids(found)) == sorted(first + more)
    assert_in_order(found)
    assert list(Replay(bus, topic, since=timedelta(hours=1), until="now"))
    later = datetime.now(UTC) + timedelta(hours=1)
    assert list(Replay(bus, topic, since=later)) == []
    assert rest


@pytest.mark.guarantee("replay")
def test_a_replay_has_each_header_of_a_message_that_is_no_list_and_no_table(
    bus: BusConfig, topic: str
) -> None:
    """Those of messages in batches are a part of the stored body, and whole."""
    declare(bus, [Stream(topic), f"{topic}/all"])
    plain: dict[str, Any] = {"text": "a", "number": 1 << 40, "yes": True}
    nested: dict[str, Any] = {"list": ["a", 1], "table": {"a": 1}}
    raw = {"raw": b"\x00"}
    message = Message(body=b"", headers={**plain, **nested, **raw})
    with Publisher(bus) as publisher:
        publisher.send_safe(topic, message)
    with Publisher(bus, PublisherConfig(batch={topic: Batching(linger_s=0.2)})) as publisher:
        publisher.send_many(topic, [message] * 2)
    with Consumer(bus, topic, subscription="all") as consumer:
        for _ in range(3):
            delivery = consumer.receive(WITHIN_S)
            assert delivery is not None
            assert delivery.headers == message.headers
            consumer.ack(delivery)
    for replayed in Replay(bus, topic):
        found = dict(replayed.headers)
        assert found.pop("raw") in (b"\x00", "\x00")  # RabbitMQ 4 makes it a text
        assert found == {**plain, **(nested if replayed.part else {})}


@pytest.mark.guarantee("replay")
def test_the_first_stream_of_a_broker_survives_a_kill_right_after_its_declaration(
    make_cluster: MakeCluster,
) -> None:
    """RabbitMQ keeps the name of its coordinator of streams in memory at first, as those of quorum queues."""
    young = make_cluster(1)
    bus, topic = bus_config(young), "young"
    made(bus, topic)
    sent = published(bus, topic, 5)
    young.kill("mb1")
    young.start("mb1")
    young.wait_ready()
    assert sorted(ids(Replay(bus, topic))) == sorted(sent)


@pytest.mark.guarantee("replay")
def test_a_killed_broker_takes_nothing_from_a_replay_and_doubles_nothing(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    made(bus, topic)
    sent = published(bus, topic, 3_000)
    found = []
    # A broker that was killed may take minutes to come back on a busy machine.
    with Replay(bus, topic, prefetch=20, away_s=BACK_WITHIN_S) as replay:
        for each in replay:
            found.append(each)
            if len(found) == 100:
                broken.kill("mb1")
                broken.start("mb1")
    assert sorted(ids(found)) == sorted(sent)
    assert_in_order(found)


@pytest.mark.guarantee("replay-gap-is-told")
def test_a_stream_that_was_made_again_is_a_gap_and_goes_on_by_time_where_that_is_asked_for(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    made(bus, topic)
    published(bus, topic, 60)
    replay = Replay(bus, topic)
    assert len(list(replay)) == 60
    kept = replay.checkpoint()
    victim = broken.node("mb1").broker
    assert victim in kept.positions, "the first broker took nothing"
    queue = Stream(topic).amqp_queue
    delete_queue(broken, "mb1", queue)
    eventually(lambda: queue_exists(broken, "mb1", queue), within_s=WITHIN_S)
    with pytest.raises(ReplayGap, match=victim):
        list(Replay(bus, topic, since=kept))
    sent = published(bus, topic, 400)  # more than were there: the old offset exists again
    with pytest.raises(ReplayGap, match=victim):
        list(Replay(bus, topic, since=kept))
    assert sorted(ids(Replay(bus, topic, since=kept, on_gap="time"))) == sorted(sent)


@pytest.mark.guarantee("replay-gap-is-told")
def test_offsets_that_a_power_off_gave_again_to_other_messages_are_a_gap(
    broken: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    made(bus, topic)
    register(broken, f"{topic}/kept")
    before = published(bus, topic, 90)
    # What the disk had when the power went: the queues whole, since they are synced, the stream without its
    # tail, since it is not.
    broken.kill("mb1")
    (streams,) = broken.node("mb1").data_dir.glob("*/stream")
    shutil.copytree(streams, tmp_path / "synced")
    broken.start("mb1")
    broken.wait_ready()
    lost = published(bus, topic, 150)
    replay = Replay(bus, topic)
    assert sorted(ids(replay)) == sorted(before + lost)
    kept, victim = replay.checkpoint(), broken.node("mb1").broker
    broken.kill("mb1")
    shutil.rmtree(streams)
    shutil.copytree(tmp_path / "synced", streams)
    broken.start("mb1")
    broken.wait_ready()
    left = ids(Replay(bus, topic))
    assert set(before) <= set(left) < set(before + lost), "nothing was lost"
    with pytest.raises(ReplayGap, match=victim):
        list(Replay(bus, topic, since=kept))
    # As many again, so that the broker gives the offset of the checkpoint to another message.
    again = published(bus, topic, 600)
    found = {each.broker: each.offset for each in Replay(bus, topic)}
    assert found[victim] > kept.positions[victim].offset
    with pytest.raises(ReplayGap, match=victim):
        list(Replay(bus, topic, since=kept))
    by_time = ids(Replay(bus, topic, since=kept, on_gap="time"))
    assert set(again) <= set(by_time) <= set(left + again)
    # What was confirmed is none of the stream's: each subscription has it.
    sent = {*before, *lost, *again}
    assert drain(bus, topic, "kept", expected=sent).keys() == sent


@pytest.mark.guarantee("replay-by-key")
def test_a_replay_by_key_is_in_order_and_needs_the_home_of_the_key_alone(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    assert declare(bus, [Stream(topic), Topic(topic, partitions=6), f"{topic}/billing"]).complete

    def publish(numbers: Iterable[int]) -> None:
        with Publisher(bus) as publisher:
            messages = [Message(body=b"%d" % n, key=f"k{n % 12}") for n in numbers]
            assert {each.outcome for each in publisher.send_many(topic, messages)} == {CONFIRMED}

    publish(range(240))
    assert sorted(int(each.body) for each in Replay(bus, topic)) == [*range(240)]
    replay = Replay(bus, topic, key="k5")
    assert [int(each.body) for each in replay] == [*range(5, 240, 12)]
    kept = replay.checkpoint()
    (home,) = kept.positions
    name, *others = sorted(BROKERS, key=lambda each: broken.node(each).broker != home)
    # The stream is lost on the home: it is made again, and bound to its segments.
    queue = Stream(topic).amqp_queue
    delete_queue(broken, name, queue)
    eventually(lambda: is_bound(bus, topic, home), within_s=WITHIN_S)
    with pytest.raises(ReplayGap, match=home):
        list(Replay(bus, topic, key="k5", since=kept))
    publish(range(245, 249 + 240, 12))
    for each in others:
        broken.kill(each)
    found = [int(each.body) for each in Replay(bus, topic, key="k5", away_s=WITHIN_S)]
    assert found[-20:] == [*range(245, 249 + 240, 12)][-20:]


def is_bound(bus: BusConfig, topic: str, home: str) -> bool:
    """Return whether a message to a partition at home there enters its stream."""
    with Publisher(bus) as publisher:
        publisher.send_safe(topic, Message(body=b"0", key="k5"))
    return any(each.broker == home for each in Replay(bus, topic, away_s=WITHIN_S, key="k5"))


@pytest.mark.guarantee("replay-gap-is-told")
@pytest.mark.parametrize("attached", [True, False], ids=["attached", "away"])
def test_retention_that_passes_a_reader_is_a_gap_with_the_number_of_messages(
    broken: LocalCluster, bus: BusConfig, topic: str, attached: bool
) -> None:
    assert declare(bus, [Stream(topic, keep_bytes=1_000_000)]).complete
    home = broken.node("mb1").broker
    with Publisher(direct(broken, "mb1")) as publisher:
        assert {each.broker for each in filled(publisher, topic)} == {home}
        replay = Replay(bus, topic, until=None, prefetch=1)
        found = [next(replay) for _ in range(3)]
        assert [each.offset for each in found] == [*range(found[0].offset, found[0].offset + 3)]
        if not attached:
            replay.stop()
            replay = Replay(bus, topic, since=replay.checkpoint())
        sent = filled(publisher, topic)
        assert {each.broker for each in sent} == {home}
    last, reached = sent[-1].message_id, found[-1].offset
    # More than is on its way to the reader.
    eventually(lambda: oldest(bus, topic, home) > reached + 100, within_s=WITHIN_S)
    with replay, pytest.raises(ReplayGap, match="older messages were dropped") as told:
        found += itertools.takewhile(lambda each: each.message_id != last, replay)
    assert told.value.lost is not None
    assert reached < found[-1].offset + told.value.lost < oldest(bus, topic, home)
    assert_in_order(found)


@pytest.mark.guarantee("replay-gap-is-told")
def test_retention_by_time_drops_what_is_older_and_a_replay_tells_it(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    keep_bytes, size = 8_000_000, 20_000
    assert declare(bus, [Stream(topic, keep_s=60, keep_bytes=keep_bytes)]).complete
    with broken.management("mb1") as management:
        # The same stream with seconds for its minute.
        path, way = (
            f"queues/%2F/mb.stream%2F{topic}",
            f"bindings/%2F/e/mb.topic%2F{topic}/q/mb.stream%2F{topic}",
        )
        arguments = management.get(f"/api/{path}").raise_for_status().json()["arguments"]
        assert arguments["x-max-age"] == "60s"
        management.delete(f"/api/{path}").raise_for_status()
        made = {"durable": True, "arguments": {**arguments, "x-max-age": "2s"}}
        management.put(f"/api/{path}", json=made).raise_for_status()
        management.post(f"/api/{way}", json={}).raise_for_status()
    home, sent = broken.node("mb1").broker, list[Published]()
    with Publisher(direct(broken, "mb1")) as publisher:

        def is_dropped_at(offset: int) -> bool:
            sent.append(publisher.send_safe(topic, bytes(size)))
            return oldest(bus, topic, home) > offset

        sent += [publisher.send_safe(topic, bytes(size)) for _ in range(100)]
        replay = Replay(bus, topic)
        reached = next(replay).offset
        kept = replay.checkpoint()
        replay.stop()
        # It is looked at when a segment is full, of a twentieth of keep_bytes.
        eventually(lambda: is_dropped_at(reached), within_s=WITHIN_S)
    assert len(sent) * size < keep_bytes
    left = {each.message_id for each in Replay(bus, topic)}
    assert sent[0].message_id not in left
    assert sent[-1].message_id in left
    with pytest.raises(ReplayGap, match="older messages were dropped"):
        list(Replay(bus, topic, since=kept))


def filled(publisher: Publisher, topic: str) -> list[Published]:
    """Publish 6 MB, never so much at once that retention, which drops whole chunks, would leave nothing."""
    found = list[Published]()
    for begun in range(0, 1_200, 50):
        bodies = [b"%4d" % n + bytes(5_000) for n in range(begun, begun + 50)]
        sent = [publisher.submit(topic, each) for each in bodies]
        found += [each.result(WITHIN_S) for each in sent]
    return found


def oldest(bus: BusConfig, topic: str, broker: str) -> int:
    """Return the offset of the oldest message that a broker's stream has; -1 where it does not say."""
    found = stream_ends(bus, topic, since={broker: 0}, within_s=WITHIN_S).get(broker)
    return -1 if found is None else found.offset


@pytest.mark.guarantee("replay")
def test_a_stream_that_is_being_written_is_never_taken_for_an_empty_one(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    made(bus, topic)
    assert set(stream_ends(bus, topic).values()) == {None}
    published(bus, topic, 30)
    with publishing(bus, topic, publishers=3):
        ends = [stream_ends(bus, topic, within_s=WITHIN_S) for _ in range(LOOKS)]
    for broker in ends[0]:
        offsets = [-1 if (last := each[broker]) is None else last.offset for each in ends]
        assert offsets == sorted(offsets)
        assert offsets[0] >= 0


def test_a_replay_that_goes_on_gets_what_is_published_later(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    made(bus, topic)
    with Replay(bus, topic, until=None) as replay, publishing(bus, topic, publishers=2) as load:
        found = list(itertools.islice(replay, 300))
    assert len(set(ids(found))) == 300
    assert set(ids(found)) <= {each.published.message_id for each in load.sent}


@pytest.mark.guarantee("replay-gap-is-told")
def test_an_attached_replay_hears_that_its_stream_was_deleted_and_made_again(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    made(bus, topic)
    first = published(bus, topic, 60)
    with Replay(bus, topic, until=None, on_gap="time") as replay:
        found = list(itertools.islice(replay, len(first)))
        queue = Stream(topic).amqp_queue
        delete_queue(broken, "mb1", queue)
        eventually(lambda: queue_exists(broken, "mb1", queue), within_s=WITHIN_S)
        later = published(direct(broken, "mb1"), topic, 30)
        found += itertools.islice(replay, len(later))
    assert sorted(ids(found)) == sorted(first + later)


def test_a_stream_that_was_deleted_is_gone_everywhere_and_can_be_made_with_other_bounds(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    made(bus, topic)
    published(bus, topic, 30)
    assert delete_subscriptions(bus, [f"stream:{topic}"], token=broken.token).complete
    assert not any(queue_exists(broken, name, Stream(topic).amqp_queue) for name in BROKERS)
    assert declare(bus, [Stream(topic, keep_s=3_600, keep_bytes=5_000_000)]).complete
    with pytest.raises(TopologyMismatch, match="keep_s is wanted 7200 and exists 3600"):
        declare(bus, [Stream(topic, keep_s=7_200)])
    made(bus, topic)
    sent = published(bus, topic, 9)
    assert sorted(ids(Replay(bus, topic))) == sorted(sent)


def test_the_command_prints_from_its_checkpoint_on_and_publishes_to_one_subscription_alone(
    broken: LocalCluster, bus: BusConfig, topic: str, tmp_path: Path
) -> None:
    def replay(*words: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-m", "messagebus", "replay", topic, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            env={**os.environ, **broken.client_env()},
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["id"] for line in done.stdout.splitlines()]

    made(bus, topic)
    first, kept = published(bus, topic, 40), str(tmp_path / "kept")
    assert sorted(replay("--checkpoint", kept)) == sorted(first)
    second = published(bus, topic, 10)
    assert sorted(replay("--checkpoint", kept)) == sorted(second)
    assert replay("--checkpoint", kept) == []
    register(broken, f"{topic}/late", f"{topic}/other")
    replay("--to", f"{topic}/late")
    got = drain(bus, topic, "late", expected=set(first + second))
    assert got == dict.fromkeys(first + second, 1)
    assert drain(bus, topic, "other", expected=[]) == {}


def test_a_topic_without_a_stream_is_told(
    bus: BusConfig, topic: str, cluster: LocalCluster
) -> None:
    with pytest.raises(NotReady, match=r"no queue .mb\.stream"):
        list(Replay(bus, topic, away_s=1))

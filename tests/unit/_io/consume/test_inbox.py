"""_io.consume.inbox: from a link's transport to the application and back, and nothing is answered twice."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pika
import pytest

from messagebus._io.amqp.batch import BATCH_TYPE, encode_entry
from messagebus._io.amqp.copy_headers import counted
from messagebus._io.amqp.frames import TOO_LONG, Arrived
from messagebus._io.amqp.packed import ALTERED
from messagebus._io.amqp.properties import encode, encode_batch_properties
from messagebus._io.amqp.properties import encode_entry as properties_of
from messagebus._io.consume.copies import CopiedAnswers, Original, Stored
from messagebus._io.consume.inbox import HEADERS_TOO_LONG, Inbox
from messagebus._io.consume.pipeline import Pipeline
from messagebus.config import ConsumerConfig
from messagebus.consumer import Order
from messagebus.destination import Queue, Source, Subscription, Topic
from messagebus.message import Delivery, Message
from tests.support.eventually import eventually_async

MB1 = "mb1:5672"
PLAIN = encode(Message(body=b"", message_id="plain"), "plain", 17)
BATCH = encode(Message(body=b"", content_type="application/vnd.messagebus.batch"), "batch", 17)


class FakeTransport:
    """Transport that keeps the answers."""

    def __init__(self) -> None:
        self.on_contents: Callable[[list[Arrived]], None]
        self.on_turn: Callable[[], None]
        self.acks: list[tuple[int, bool]] = []
        self.nacks: list[tuple[int, bool]] = []

    def ack(self, tag: int, multiple: bool) -> None:
        self.acks.append((tag, multiple))

    def nack(self, tag: int, requeue: bool) -> None:
        self.nacks.append((tag, requeue))

    def flush(self) -> None:
        pass


class FakeCopies:
    """Copies that are made at once, unless they are to fail."""

    def __init__(self) -> None:
        self.given_back: list[bytes] = []
        self.later: list[tuple[bytes, int, dict[str, Any]]] = []
        self.parked: list[tuple[bytes, str]] = []
        self.works, self.cannot = True, False
        self.gate: asyncio.Event | None = None

    async def again(
        self,
        original: Original,
        headers: Mapping[str, Any],
        wanted: Callable[[], bool],
        *,
        delay_ms: int = 0,
    ) -> Stored:
        if delay_ms:
            self.later.append((original.body, delay_ms, dict(headers)))
        else:
            self.given_back.append(original.body)
        return await self._end(wanted)

    async def park(
        self, original: Original, headers: Mapping[str, Any], wanted: Callable[[], bool]
    ) -> Stored:
        self.parked.append((original.body, headers["mb-park-reason"]))
        return await self._end(wanted)

    async def _end(self, wanted: Callable[[], bool]) -> Stored:
        if self.gate is not None:
            await self.gate.wait()
        if self.cannot:
            return Stored.CANNOT
        return Stored.STORED if self.works and wanted() else Stored.UNWANTED

    async def stop(self) -> None:
        pass


class Bench:
    def __init__(self, source: Source | None = None, order: Order = "none") -> None:
        self.copies, self.transport, self.turns = FakeCopies(), FakeTransport(), 0
        answers = CopiedAnswers(self.copies, self._turn)  # type: ignore[arg-type]
        config = ConsumerConfig(handed_out_max=100, prefetch=100, order=order)
        source = source or Queue("jobs")
        self.pipeline = Pipeline(
            source,
            config,
            answers,
            on_turn=self._turn,
            on_ready=self._turn,
            on_back=self._turn,
        )
        self.stage, self.plain = self.pipeline.first, self.pipeline.plain
        self.counters = self.pipeline.counters
        self.inbox = Inbox(source, self.pipeline, answers, self._turn)
        self.epoch = self.inbox.connected(MB1, self.transport)  # type: ignore[arg-type]

    def relink(self) -> None:
        """End the link and open another one."""
        self.inbox.disconnected(MB1)
        self.transport = FakeTransport()
        self.inbox.connected(MB1, self.transport)  # type: ignore[arg-type]

    def _turn(self) -> None:
        self.turns += 1
        self.inbox.flush()

    def batch(
        self, tag: int, *bodies: bytes, redelivered: bool = False, raw: bytes = BATCH
    ) -> None:
        parts: list[bytes] = []
        for number, body in enumerate(bodies):
            encode_entry(parts, properties_of(Message(body=b""), f"{tag}-{number}"), body)
        self.transport.on_contents([(tag, redelivered, raw, b"".join(parts))])

    def taken(self) -> list[Delivery]:
        found = []
        while (delivery := self.stage.take()) is not None:
            found.append(delivery)
        return found


async def test_acks_of_one_turn_go_together() -> None:
    bench = Bench()
    for tag in range(1, 6):
        bench.transport.on_contents([(tag, False, PLAIN, b"")])
    for delivery in bench.taken():
        bench.stage.ack(delivery)
    bench.inbox.flush()
    assert bench.transport.acks == [(5, True)]


async def test_what_is_read_behind_the_end_of_its_link_is_left_to_come_again() -> None:
    bench = Bench()
    bench.inbox.disconnected(MB1)
    bench.transport.on_contents([(1, False, PLAIN, b"")])
    bench.batch(2, b"a", b"b")
    assert bench.taken() == []


async def test_a_copy_that_fails_leaves_the_batch_to_be_delivered_again() -> None:
    bench = Bench()
    bench.copies.works = False
    bench.batch(1, b"a")
    (only,) = bench.taken()
    bench.stage.nack(only, requeue=True)
    await bench.inbox.finish(1)
    assert bench.transport.acks == []
    assert bench.inbox.owed(MB1) == 1


async def test_a_damaged_batch_is_parked_whole_and_the_next_delivery_comes() -> None:
    bench = Bench()
    bench.transport.on_contents([(1, False, BATCH, b"nonsense")])
    bench.transport.on_contents([(2, False, PLAIN, b"good")])
    assert [each.body for each in bench.taken()] == [b"good"]
    await eventually_async(lambda: bench.transport.acks == [(1, False)], within_s=5)
    ((body, reason),) = bench.copies.parked
    assert body == b"nonsense"
    assert reason.startswith("damaged batch: entry 1")
    assert bench.counters.batches_damaged == 1


@pytest.mark.guarantee("damaged-batch-is-parked")
@pytest.mark.parametrize(
    ("encoding", "marks", "reason"),
    [
        ("deflate", {"mb-size": 1_000}, "it does not unpack to the 1000 bytes of its mb-size"),
        ("deflate", {"mb-size": 1 << 30}, "mb-size 1073741824"),
        ("zstd", {"mb-size": 1_000}, "content_encoding 'zstd'"),
        ("", {"mb-crc": 1}, "checksum"),
    ],
    ids=["bomb", "bomb that says so", "unknown encoding", "wrong checksum"],
)
async def test_a_batch_that_lies_about_itself_is_parked_with_the_reason_and_the_next_delivery_comes(
    encoding: str, marks: dict[str, int], reason: str
) -> None:
    bench, bomb = Bench(), zlib.compress(bytes(64 << 20), 9)
    lies = encode_batch_properties("batch", 17, encoding=encoding, marks=marks)
    bench.transport.on_contents([(1, False, lies, bomb), (2, False, PLAIN, b"good")])
    assert [each.body for each in bench.taken()] == [b"good"]
    await eventually_async(lambda: bench.transport.acks == [(1, False)], within_s=5)
    ((body, told),) = bench.copies.parked
    assert (body, reason in told) == (bomb, True), told


@pytest.mark.guarantee("altered-message-is-parked")
async def test_a_message_whose_checksum_is_wrong_is_parked_alone_and_in_a_batch() -> None:
    bench, summed = Bench(), Message(body=b"as published").with_checksum()
    alone = encode(summed, "a", 0)
    bench.transport.on_contents([(1, False, alone, b"altered"), (2, False, alone, summed.body)])
    parts: list[bytes] = []
    for number, body in enumerate((summed.body, b"altered")):
        encode_entry(parts, properties_of(summed, f"e{number}"), body)
    bench.transport.on_contents([(3, False, BATCH, b"".join(parts))])
    found = bench.taken()
    assert [each.body for each in found] == [summed.body] * 2
    assert all("mb-crc" not in each.headers for each in found)
    await eventually_async(lambda: len(bench.copies.parked) == 2, within_s=5)
    assert bench.copies.parked == [(b"altered", ALTERED)] * 2
    await eventually_async(lambda: bench.transport.acks == [(1, False)], within_s=5)


async def test_at_the_end_only_the_rest_of_half_answered_batches_is_copied() -> None:
    bench = Bench()
    bench.batch(1, b"a", b"b", b"c")
    bench.batch(2, b"untouched", b"as well")
    bench.stage.ack(bench.taken()[1])
    bench.inbox.close()
    assert bench.stage.take() is None
    await bench.inbox.finish(1)
    assert sorted(bench.copies.given_back) == [b"a", b"c"]
    assert bench.transport.acks == [(1, False)]
    assert bench.inbox.owed(MB1) == 1


# Answers by copies.
async def test_a_retry_is_answered_when_its_copy_is_stored_and_holds_its_place_until_then() -> None:
    bench = Bench()
    bench.copies.gate = asyncio.Event()
    bench.transport.on_contents([(tag, False, PLAIN, b"%d" % tag) for tag in (1, 2)])
    first, second = bench.taken()
    retrying = asyncio.ensure_future(
        bench.stage.retry(first, delay_ms=5, headers={"mb-attempt": 2})
    )
    await asyncio.sleep(0)
    assert not bench.stage.ack(first), "it is being answered"
    assert not await bench.stage.park(first, headers={})
    assert bench.stage.ack(second)
    bench.inbox.flush()
    assert bench.transport.acks == [(2, False)]
    assert bench.plain.handed_out == 1
    bench.copies.gate.set()
    assert await retrying
    assert bench.transport.acks == [(2, False), (1, False)]
    assert bench.copies.later == [(b"1", 5, {"mb-attempt": 2})]
    assert (bench.plain.handed_out, bench.counters.retried) == (0, 1)
    assert bench.counters.acks_stale == 2


async def test_a_copy_goes_on_when_nobody_waits_for_it_any_more() -> None:
    bench = Bench()
    bench.copies.gate = asyncio.Event()
    bench.transport.on_contents([(1, False, PLAIN, b"x")])
    (only,) = bench.taken()
    parking = asyncio.ensure_future(bench.stage.park(only, headers={"mb-park-reason": "why"}))
    await asyncio.sleep(0)
    parking.cancel()
    bench.copies.gate.set()
    await eventually_async(lambda: bench.transport.acks == [(1, False)], within_s=5)
    assert (bench.counters.parked, bench.plain.handed_out) == (1, 0)


async def test_a_link_that_ends_meanwhile_makes_the_answer_stale() -> None:
    bench = Bench()
    bench.copies.gate = asyncio.Event()
    bench.transport.on_contents([(1, False, PLAIN, b"x")])
    (only,) = bench.taken()
    retrying = asyncio.ensure_future(bench.stage.retry(only, delay_ms=5, headers={}))
    await asyncio.sleep(0)
    bench.inbox.disconnected(MB1)
    bench.copies.gate.set()
    assert not await retrying
    assert (bench.counters.acks_stale, bench.counters.retried) == (1, 0)
    assert bench.plain.handed_out == 0


async def test_what_cannot_be_copied_is_left_to_the_broker() -> None:
    bench = Bench()
    bench.copies.cannot = True
    bench.transport.on_contents([(1, False, PLAIN, b"x")])
    (only,) = bench.taken()
    assert await bench.stage.park(only, headers={"mb-park-reason": "why"})
    assert (bench.transport.acks, bench.transport.nacks) == ([], [(1, False)])
    assert bench.inbox.owed(MB1) == 0


@pytest.mark.parametrize("how", ["retry", "park"])
async def test_what_fails_while_a_copy_is_made_reaches_who_waits_and_leaves_nothing_owed(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench()
    bench.transport.on_contents([(1, False, PLAIN, b"a")])
    delivery = bench.stage.take()
    assert delivery is not None

    async def fails(*_: object, **__: object) -> Stored:
        raise OverflowError("int too large to convert")

    monkeypatch.setattr(bench.copies, "again", fails)
    monkeypatch.setattr(bench.copies, "park", fails)
    if how == "retry":
        answering = bench.stage.retry(delivery, delay_ms=1_000, headers={})
    else:
        answering = bench.stage.park(delivery, headers={})
    with pytest.raises(OverflowError):
        await asyncio.wait_for(answering, 60)
    assert bench.transport.nacks == [(1, False)]
    assert (bench.inbox.owed(MB1), bench.plain.handed_out) == (0, 0)


def came_out_of_a_step(**death: Any) -> bytes:
    due = datetime.fromtimestamp(1_700_000_000, UTC)
    newest = {"queue": "mb.delay/2000", "reason": "expired", "time": due, "exchange": "", **death}
    headers = {"x-death": [newest], "x-first-death-queue": "mb.delay/2000", "mb-ttl-ms": 500}
    headers["x-first-death-exchange"] = headers["x-last-death-exchange"] = "mb.delay/2000"
    return b"".join(pika.BasicProperties(headers=headers, message_id="m").encode())


async def test_what_left_its_step_too_early_waits_on_and_what_is_too_late_is_parked() -> None:
    bench = Bench()
    early = came_out_of_a_step(**{"original-expiration": "200"})
    bench.transport.on_contents([(1, False, early, b"early"), (2, False, PLAIN, b"now")])
    bench.transport.on_contents([(3, False, came_out_of_a_step(), b"late")])
    await eventually_async(lambda: bench.inbox.owed(MB1) == 1, within_s=5)
    assert bench.copies.later == [(b"early", 1_800, {"mb-ttl-ms": 200})]
    assert bench.copies.parked == [(b"late", "expired")]
    delivery = bench.stage.take()
    assert delivery is not None
    assert delivery.body == b"now"
    assert bench.stage.take() is None


async def test_a_message_whose_headers_were_passed_over_is_parked_by_a_copy_of_its_body() -> None:
    """Else the link would end at it, again and again."""
    bench = Bench()
    bench.transport.on_contents([(1, False, TOO_LONG, b"huge"), (2, False, PLAIN, b"next")])
    await eventually_async(lambda: bench.inbox.owed(MB1) == 1, within_s=5)
    assert bench.copies.parked == [(b"huge", HEADERS_TOO_LONG)]
    delivery = bench.stage.take()
    assert delivery is not None
    assert delivery.body == b"next"


STRANGE = {
    "texts": ["a"],
    "a queue that is none": [{"queue": 7, "reason": "rejected"}],
    "a count that is none": [{"queue": "q", "reason": "rejected", "count": "many"}],
}


@pytest.mark.parametrize("deaths", STRANGE.values(), ids=STRANGE)
@pytest.mark.parametrize("content_type", ["text/plain", BATCH_TYPE])
async def test_what_would_stop_its_brokers_dead_lettering_is_parked_by_a_copy_and_never_rejected(
    deaths: object, content_type: str
) -> None:
    """Such an x-death, that a client wrote, ends the dead-lettering of all queues of a RabbitMQ 3.10."""
    bench = Bench()
    properties = pika.BasicProperties(headers={"x-death": deaths}, content_type=content_type)
    raw = b"".join(properties.encode())
    bench.transport.on_contents([(1, False, raw, b"strange"), (2, False, PLAIN, b"next")])
    assert [each.body for each in bench.taken()] == [b"next"]
    await eventually_async(lambda: bench.transport.acks == [(1, False)], within_s=5)
    assert bench.copies.parked == [(b"strange", "x-death that no broker can count on")]
    bench.copies.cannot = True
    bench.transport.on_contents([(3, False, raw, b"strange")])
    await eventually_async(lambda: len(bench.copies.parked) == 2, within_s=5)
    await bench.inbox.finish(1)
    assert bench.transport.nacks == []
    assert bench.inbox.owed(MB1) == 2


async def test_an_expiring_subscription_which_dead_letters_nothing_takes_any_x_death() -> None:
    bench = Bench(Subscription(Topic("orders"), "live", expires_s=60))
    raw = b"".join(pika.BasicProperties(headers={"x-death": ["a"]}).encode())
    bench.transport.on_contents([(1, False, raw, b"strange")])
    assert [each.body for each in bench.taken()] == [b"strange"]


@pytest.mark.guarantee("batch-is-finished")
async def test_a_batch_with_a_part_that_cannot_be_copied_is_rejected_whole_and_nothing_is_lost() -> (
    None
):
    bench = Bench()
    bench.batch(1, b"a", b"b", b"c")
    bench.transport.on_contents([(2, False, PLAIN, b"")])
    first, second, third, alone = bench.taken()
    bench.copies.cannot = True
    assert await bench.stage.park(first, headers={"mb-park-reason": "why"})
    bench.copies.cannot = False
    assert await bench.stage.park(second, headers={"mb-park-reason": "why"})
    assert (bench.transport.acks, bench.transport.nacks, bench.inbox.owed(MB1)) == ([], [], 2)
    assert bench.stage.ack(third)
    assert bench.stage.ack(alone)
    bench.inbox.flush()
    assert (bench.transport.acks, bench.transport.nacks) == ([(2, False)], [(1, False)])
    assert (bench.inbox.owed(MB1), bench.plain.handed_out) == (0, 0)


# Giving back untouched.
LONG_AGO, FAR_AHEAD = 0, 1 << 62


async def test_what_was_never_handed_out_is_given_back_in_order() -> None:
    bench = Bench()
    bench.transport.on_contents([(tag, False, PLAIN, b"") for tag in (1, 2, 3, 4)])
    held, unseen = bench.stage.take(), bench.stage.take()
    assert held is not None
    assert unseen is not None
    oldest = bench.inbox.oldest(MB1)
    assert oldest is not None
    assert oldest.receipt.tag == 3
    assert bench.inbox.give_back(MB1, [unseen], LONG_AGO) == 3
    assert bench.transport.nacks == [(2, True), (3, True), (4, True)]
    assert (bench.inbox.owed(MB1), bench.plain.handed_out, bench.stage.buffered()) == (1, 1, 0)
    assert bench.counters.given_back == 3
    bench.relink()
    assert bench.inbox.give_back(MB1, [held], LONG_AGO) == 0
    assert (bench.transport.nacks, bench.plain.handed_out) == ([], 0)


async def test_of_a_batch_that_somebody_has_begun_nothing_is_given_back_while_there_is_time() -> (
    None
):
    bench = Bench()
    bench.batch(1, b"a", b"b")
    bench.batch(2, b"c", b"d")
    first = bench.stage.take()
    assert first is not None
    assert bench.inbox.give_back(MB1, [], LONG_AGO) == 2
    assert bench.transport.nacks == [(2, True)]
    assert [each.body for each in bench.taken()] == [b"b"]


async def test_a_batch_of_which_parts_were_handed_out_unseen_is_given_back_once_and_whole() -> None:
    bench = Bench()
    bench.batch(1, b"a", b"b", b"c")
    bench.batch(2, b"d", b"e")
    taken = [bench.stage.take() for _ in range(2)]
    unseen = [each for each in taken if each is not None]
    assert bench.inbox.give_back(MB1, unseen, LONG_AGO) == 5
    assert bench.transport.nacks == [(1, True), (2, True)]
    assert (bench.inbox.owed(MB1), bench.plain.handed_out, bench.stage.buffered()) == (0, 0, 0)
    assert not bench.stage.ack(unseen[0])
    await bench.inbox.finish(1)


async def test_before_the_consumer_timeout_the_rest_of_a_begun_batch_is_copied_and_it_is_acked() -> (
    None
):
    bench = Bench()
    bench.batch(1, b"a", b"b", b"c", b"d")
    answered, running, unseen = (bench.stage.take() for _ in range(3))
    assert answered is not None
    assert running is not None
    assert unseen is not None
    bench.stage.ack(answered)
    assert bench.inbox.give_back(MB1, [unseen], FAR_AHEAD) == 2
    await eventually_async(lambda: bench.copies.given_back == [b"c", b"d"], within_s=5)
    assert (bench.transport.acks, bench.transport.nacks, bench.plain.handed_out) == ([], [], 1)
    bench.stage.ack(running)
    bench.inbox.flush()
    assert bench.transport.acks == [(1, False)]


async def test_what_runs_on_until_the_consumer_timeout_does_not_multiply_what_was_copied() -> None:
    bench = Bench()
    bench.batch(1, b"a", b"b")
    bench.batch(2, b"c")
    running = bench.stage.take()
    assert running is not None
    bench.inbox.give_back(MB1, [], FAR_AHEAD)
    bench.inbox.finish_batches(LONG_AGO)
    assert bench.copies.given_back == []
    bench.inbox.finish_batches(FAR_AHEAD)
    await eventually_async(lambda: bench.transport.acks == [(1, False)], within_s=5)
    assert sorted(bench.copies.given_back) == [b"a", b"b"]
    assert not bench.stage.ack(running)
    assert bench.plain.handed_out == 0


def worn(count: int, **properties: str) -> bytes:
    """Encode a message as a quorum queue delivers it after this many returns."""
    return counted(encode(Message(body=b"", **properties), "worn", 17), count)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limit", "count", "is_copied"),
    [
        (20, 9, False),
        (20, 10, True),
        (1, 0, False),
        (1, 1, True),
        (5, 2, False),
        (5, 3, True),
        (0, 1_000_000, False),
    ],
)
@pytest.mark.parametrize("ends", [False, True])
async def test_what_came_back_too_often_and_nobody_saw_begins_anew_as_a_copy(
    limit: int, count: int, is_copied: bool, ends: bool
) -> None:
    bench = Bench(Queue("jobs", delivery_limit=limit))
    bench.transport.on_contents([(1, True, worn(count), b"alone"), (2, True, worn(count), b"seen")])
    bench.batch(3, b"a", b"b", raw=worn(count, content_type=BATCH_TYPE))
    unseen, _seen, part = (bench.stage.take() for _ in range(3))
    untouched = [each for each in (unseen, part) if each is not None]
    if ends:
        bench.inbox.close(untouched)
        await bench.inbox.finish(1)
        assert bench.transport.nacks == []
    else:
        bench.inbox.give_back(MB1, untouched, LONG_AGO)
        await asyncio.sleep(0.01)
        assert bench.transport.nacks == ([] if is_copied else [(1, True), (3, True)])
    assert bench.plain.handed_out == 1
    assert len(bench.copies.given_back) == (2 if is_copied else 0)
    assert bench.transport.acks == ([(1, False), (3, False)] if is_copied else [])


async def test_where_order_is_all_a_copy_is_the_last_resort() -> None:
    ordered = Subscription(Topic("orders"), "billing", single_active=True, delivery_limit=4)
    bench = Bench(ordered)
    bench.transport.on_contents([(tag, True, worn(tag), b"%d" % tag) for tag in (1, 2, 3, 4)])
    bench.inbox.close()
    await bench.inbox.finish(1)
    assert bench.copies.given_back == [b"4"]


# Where order is all.
ORDERED = Subscription(Topic("orders"), "billing", single_active=True)


async def test_what_arrives_at_a_link_that_is_to_end_is_not_handed_out_and_not_answered() -> None:
    bench = Bench(ORDERED)
    bench.transport.on_contents([(1, False, PLAIN, b""), (2, False, PLAIN, b"")])
    first = bench.stage.take()
    assert first is not None
    bench.inbox.shut(MB1)
    bench.transport.on_contents([(3, False, PLAIN, b"")])
    (second,) = bench.taken()
    bench.stage.ack(first)
    assert bench.inbox.holds(MB1)
    bench.stage.ack(second)
    assert not bench.inbox.holds(MB1)
    assert bench.inbox.owed(MB1) == 1


async def test_what_is_kept_back_stays_owed_and_only_what_is_in_hand_is_waited_for() -> None:
    bench = Bench(ORDERED)
    bench.copies.gate = asyncio.Event()
    bench.transport.on_contents([(tag, False, PLAIN, b"") for tag in (1, 2, 3)])
    first, unseen = bench.stage.take(), bench.stage.take()
    assert first is not None
    assert unseen is not None
    bench.inbox.keep_back(MB1, [unseen])
    assert (bench.plain.handed_out, bench.taken(), bench.inbox.owed(MB1)) == (1, [], 3)
    parking = asyncio.ensure_future(bench.stage.park(first, headers={"mb-park-reason": "why"}))
    await asyncio.sleep(0)
    assert bench.inbox.holds(MB1)
    bench.copies.gate.set()
    assert await parking
    assert not bench.inbox.holds(MB1)
    assert (bench.transport.acks, bench.transport.nacks) == ([(1, False)], [])


async def test_where_order_is_all_a_half_answered_batch_is_left_owed_at_the_end() -> None:
    bench = Bench(ORDERED)
    bench.batch(1, b"a", b"b")
    first = bench.stage.take()
    assert first is not None
    bench.stage.ack(first)
    bench.inbox.close()
    await bench.inbox.finish(1)
    assert (bench.copies.given_back, bench.inbox.owed(MB1)) == ([], 1)


async def test_of_a_batch_that_comes_again_what_was_answered_is_not_handed_out_again() -> None:
    bench = Bench()
    bench.batch(1, b"a", b"b", b"c")
    bench.stage.ack(bench.taken()[1])
    bench.relink()
    bench.batch(1, b"a", b"b", b"c", redelivered=True)
    again = bench.taken()
    assert [each.body for each in again] == [b"a", b"c"]
    assert all(bench.stage.ack(each) for each in again)
    bench.inbox.flush()
    assert bench.transport.acks == [(1, False)]
    bench.batch(2, b"a", b"b", b"c")
    assert len(bench.taken()) == 3, "an equal one that is new"

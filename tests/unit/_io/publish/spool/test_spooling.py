"""The disk spool of a publisher: what no broker takes lies on the disk, and goes out later, in order."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import pkgutil
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from messagebus import (
    BacklogFull,
    Batching,
    BusConfig,
    ConfigError,
    Durability,
    Hooks,
    Message,
    Outcome,
    Published,
    Publisher,
    PublisherConfig,
    Queue,
    Refused,
    Spool,
    SpoolFull,
    Topic,
    Unknown,
)
from messagebus._io.publish.calls import Outgoing
from messagebus._io.publish.spool import folder as spool_folder
from messagebus._io.publish.spool.records import place_of, read_place
from messagebus.admin.spool import spool_status
from messagebus.destination import Destination
from messagebus.message import NONE_GIVEN, OPTIONS, Options
from messagebus.testing import MemoryBus
from tests.support.eventually import eventually, eventually_async

WITHIN_S = 60.0
CONFIG = PublisherConfig(deadline_s=20)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    bus = MemoryBus(2)
    bus.declare("orders/billing", "others/billing", "queue:jobs")
    yield bus
    bus.start_brokers()
    bus.close()


def retry_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for part in ("door", "keeper", "writer", "replayer"):
        monkeypatch.setattr(f"messagebus._io.publish.spool.{part}.DISK_RETRY_MS", 20)


def spool(path: Path, **settings: int | bool) -> Spool:
    return Spool(path / "spool", **{"after_s": 0.1, **settings})  # type: ignore[arg-type]


def started(
    bus: MemoryBus, where: Spool, config: PublisherConfig = CONFIG, hooks: tuple[Hooks, ...] = ()
) -> Publisher:
    publisher = bus.publisher(config, spool=where, hooks=hooks)
    publisher.start()
    return publisher


def is_empty(publisher: Publisher) -> bool:
    return not publisher.stats().spool_messages


def drained(bus: MemoryBus, publisher: Publisher) -> None:
    bus.start_brokers()
    publisher.flush()  # it has taken over what others left
    eventually(lambda: is_empty(publisher), within_s=WITHIN_S, what="the spool is sent")


def segments(path: Path) -> list[Path]:
    return sorted((path / "spool").glob("*/*.seg"))


def left_behind(bus: MemoryBus, where: Spool, *bodies: bytes) -> list[str]:
    """Spool these by a publisher that ends; return their ids."""
    bus.stop_brokers()
    publisher = started(bus, where)
    ends = [publisher.send_safe("orders", body) for body in bodies]
    assert {end.outcome for end in ends} == {Outcome.SPOOLED}
    publisher.stop()
    return [end.message_id for end in ends]


@pytest.mark.guarantee("spooled-is-sent-later")
def test_what_no_broker_takes_is_spooled_and_arrives_later_unchanged(
    bus: MemoryBus, tmp_path: Path
) -> None:
    publisher = started(bus, spool(tmp_path))
    assert publisher.send_safe("orders", b"0").outcome is Outcome.CONFIRMED
    bus.stop_brokers()
    message = Message.json({"n": 1}, headers={"shop": 12}, key="k", type="order.placed")
    spooled = publisher.send_safe("orders", message)
    assert (spooled.outcome, spooled.durability) == (Outcome.SPOOLED, Durability.FSYNC)
    assert (spooled.broker, spooled.attempts) == ("", 0)
    plain = publisher.send_safe("orders", b"2")
    stats = publisher.stats()
    assert (stats.spooled, stats.spool_messages, stats.confirmed) == (2, 2, 1)
    assert stats.spool_bytes > 0
    assert 0 <= stats.spool_oldest_s < WITHIN_S
    drained(bus, publisher)
    first, second, third = bus.published("orders")
    assert (first.body, third.body) == (b"0", b"2")
    assert (second.message_id, third.message_id) == (spooled.message_id, plain.message_id)
    assert second == Message.json(
        {"n": 1}, headers={"shop": 12}, key="k", type="order.placed", message_id=second.message_id
    )
    assert third.content_type == first.content_type
    stats = publisher.stats()
    assert (stats.spooled, stats.confirmed, stats.replayed) == (2, 1, 2)
    assert publisher.send_safe("orders", b"3").outcome is Outcome.CONFIRMED
    assert publisher.stop() == 0
    assert list((tmp_path / "spool").iterdir()) == []


@pytest.mark.guarantee("spool-keeps-order")
def test_nothing_overtakes_the_spool_through_any_coming_and_going(
    bus: MemoryBus, tmp_path: Path
) -> None:
    publisher = started(bus, spool(tmp_path), PublisherConfig(batch={"others": Batching()}))
    sent: dict[str, list[str]] = defaultdict(list)
    done = threading.Event()

    def publish(destination: str) -> None:
        futures = []
        while not done.is_set():
            futures.append(publisher.submit(destination, b"x"))
            if len(futures) % 50 == 0:
                futures[-1].result()
        ends = [future.result() for future in futures]
        sent[destination] += [end.message_id for end in ends]
        assert {end.outcome for end in ends} <= {Outcome.CONFIRMED, Outcome.SPOOLED}

    threads = [threading.Thread(target=publish, args=(name,)) for name in ("orders", "others")]
    for thread in threads:
        thread.start()
    for _ in range(4):
        spooled = publisher.stats().spooled
        bus.stop_brokers()
        eventually(lambda n=spooled: publisher.stats().spooled > n + 100, within_s=WITHIN_S)  # type: ignore[misc]
        replayed = publisher.stats().replayed
        bus.start_brokers()
        eventually(lambda n=replayed: publisher.stats().replayed > n, within_s=WITHIN_S)  # type: ignore[misc]
    done.set()
    for thread in threads:
        thread.join()
    drained(bus, publisher)
    for destination, ids in sent.items():
        arrived = [message.message_id for message in bus.published(destination)]
        assert set(arrived) == set(ids)
        assert list(dict.fromkeys(arrived)) == ids, f"first arrivals of {destination}"


def test_a_spool_ends_though_its_publisher_never_pauses(bus: MemoryBus, tmp_path: Path) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path), PublisherConfig(backlog_messages_max=1_000))
    done = threading.Event()

    def publish() -> None:
        while not done.is_set():
            publisher.send("orders", b"x")

    threads = [threading.Thread(target=publish) for _ in range(2)]
    for thread in threads:
        thread.start()
    eventually(lambda: publisher.stats().spool_messages > 3_000, within_s=WITHIN_S)
    bus.start_brokers()
    try:
        eventually(lambda: publisher.stats().confirmed, within_s=60, what="past the spool")
    finally:
        done.set()
        for thread in threads:
            thread.join()


def is_segment(fd: int) -> bool:
    return Path(f"/proc/self/fd/{fd}").readlink().suffix == spool_folder.SEGMENT


@pytest.mark.guarantee("spooled-is-sent-later")
def test_the_outcome_comes_after_the_sync(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_sync, synced = threading.Event(), []

    def sync(fd: int) -> None:
        if is_segment(fd):
            may_sync.wait(WITHIN_S)
            os.fdatasync(fd)
            synced.append(os.fstat(fd).st_size)

    monkeypatch.setattr(spool_folder, "sync", sync)
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    futures = [publisher.submit("orders", b"x" * 100) for _ in range(100)]
    eventually(
        lambda: segments(tmp_path) and segments(tmp_path)[0].stat().st_size, within_s=WITHIN_S
    )
    assert not any(future.done() for future in futures)
    may_sync.set()
    assert {future.result().outcome for future in futures} == {Outcome.SPOOLED}
    assert synced[-1] == segments(tmp_path)[0].stat().st_size
    assert len(synced) < 20, "a sync for many"


@pytest.mark.guarantee("spooled-is-sent-later")
def test_what_a_process_left_behind_goes_out_before_what_its_successor_sends(
    bus: MemoryBus, tmp_path: Path
) -> None:
    where = spool(tmp_path)
    ids = left_behind(bus, where, b"0", b"1") + left_behind(bus, where, b"2")
    publisher = started(bus, where)
    future = publisher.submit("orders", b"3")
    drained(bus, publisher)
    assert future.result().outcome in (Outcome.SPOOLED, Outcome.CONFIRMED)
    eventually(lambda: len(bus.published("orders")) == 4, within_s=WITHIN_S)
    assert [message.body for message in bus.published("orders")] == [b"0", b"1", b"2", b"3"]
    assert [message.message_id for message in bus.published("orders")][:3] == ids


def test_two_publishers_of_one_folder_leave_each_other_alone(
    bus: MemoryBus, tmp_path: Path
) -> None:
    bus.stop_brokers()
    one, two = started(bus, spool(tmp_path)), started(bus, spool(tmp_path))
    one.send_safe("orders", b"one")
    two.send_safe("orders", b"two")
    assert (one.stats().spool_messages, two.stats().spool_messages) == (1, 1)
    assert len(segments(tmp_path)) == 2
    drained(bus, one)
    drained(bus, two)
    assert sorted(message.body for message in bus.published("orders")) == [b"one", b"two"]


def on(bus: MemoryBus, name: str, where: Spool) -> Publisher:
    """A running publisher to another virtual host of the bus, as its settings have it."""
    made = Publisher(BusConfig(vhost=name), CONFIG, spool=where, _wire=bus._wire)
    made.start()
    return made


@pytest.mark.guarantee("spool-knows-its-bus")
def test_what_was_spooled_for_one_bus_is_sent_to_no_other(
    bus: MemoryBus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus.stop_brokers()
    staging = on(bus, "staging", spool(tmp_path))
    assert staging.send_safe("orders", b"a test of staging").outcome is Outcome.SPOOLED
    staging.stop()
    bus.start_brokers()
    production = on(bus, "production", spool(tmp_path))
    production.send_safe("orders", b"production's own")
    production.flush()
    assert "its='broker=localhost:5672 vhost=staging'" in caplog.text
    assert caplog.text.count("spool of another bus stays") == 1
    production.stop()
    (left,) = [each for each in spool_status(tmp_path / "spool") if each.messages]
    assert left.bus == "broker=localhost:5672 vhost=staging"
    assert [each.body for each in bus.published("orders")] == [b"production's own"]
    again = on(bus, "staging", spool(tmp_path))
    drained(bus, again)
    again.stop()
    bus.assert_published("orders", body=b"a test of staging", count=1)
    assert not list((tmp_path / "spool").iterdir())


def test_a_publisher_finds_its_spool_whatever_folder_its_process_goes_to(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "elsewhere").mkdir()
    bus.stop_brokers()
    publisher = started(bus, Spool("spool", after_s=0))
    publisher.send_safe("orders", b"one")
    monkeypatch.chdir(tmp_path / "elsewhere")
    publisher.send_safe("orders", b"two")
    drained(bus, publisher)
    stats = publisher.stats()
    assert (stats.spool_damaged, stats.replayed) == (0, 2)
    publisher.stop()
    assert [each.body for each in bus.published("orders")] == [b"one", b"two"]
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_fork_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    folder = spool_folder.SpoolFolder.create(tmp_path, "broker=a:5672 vhost=/")
    reader, writer = os.pipe()
    up_reader, up_writer = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(writer)
        os.write(up_writer, b"x")
        os.read(reader, 1)
        os._exit(0)
    try:
        os.read(up_reader, 1)
        assert spool_folder.SpoolFolder.lock(folder.path) is None
        folder.close()
        taken = spool_folder.SpoolFolder.lock(folder.path)
        assert taken is not None
        taken.close()
    finally:
        os.close(writer)
        os.waitpid(pid, 0)


def test_with_always_each_message_goes_to_the_disk_first(bus: MemoryBus, tmp_path: Path) -> None:
    publisher = started(bus, spool(tmp_path, always=True))
    ends = publisher.send_many("orders", [b"%d" % number for number in range(100)])
    assert {end.outcome for end in ends} == {Outcome.SPOOLED}
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [b"%d" % n for n in range(100)]


def test_a_stop_without_brokers_leaves_everything_on_the_disk(
    bus: MemoryBus, tmp_path: Path
) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path, after_s=60))
    futures = [publisher.submit("orders", b"%d" % number) for number in range(10)]
    assert publisher.stop(timeout_s=0) == 0
    assert {future.result().outcome for future in futures} == {Outcome.SPOOLED}
    publisher = started(bus, spool(tmp_path))
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [b"%d" % n for n in range(10)]


def test_batches_and_bundles_are_spooled_message_by_message(bus: MemoryBus, tmp_path: Path) -> None:
    config = PublisherConfig(batch={"orders": Batching(count_max=10, linger_s=0.2)})
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path), config)
    messages = [Message.text(f"{n}", headers={"n": n}) if n % 2 else b"%d" % n for n in range(30)]
    ends = publisher.send_many("orders", messages)
    assert {end.outcome for end in ends} == {Outcome.SPOOLED}
    drained(bus, publisher)
    arrived = bus.published("orders")
    assert [message.body for message in arrived] == [b"%d" % number for number in range(30)]
    assert [message.headers.get("n") for message in arrived[1::2]] == list(range(1, 30, 2))
    assert [message.message_id for message in arrived] == [end.message_id for end in ends]


async def test_bundles_of_an_asyncio_publisher_are_spooled(tmp_path: Path) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    bus.stop_brokers()
    config = PublisherConfig(batch={"orders": Batching()})
    async with bus.async_publisher(config, spool=spool(tmp_path)) as publisher:
        for _ in range(2):  # withdrawn from memory, then straight to the disk
            ends = await publisher.send_many("orders", [b"x"] * 120)
            assert {end.outcome for end in ends} == {Outcome.SPOOLED}
        assert publisher.stats().spooled == 240
    bus.start_brokers()
    async with bus.async_publisher(config, spool=spool(tmp_path)):
        await eventually_async(lambda: len(bus.published("orders")) == 240, within_s=WITHIN_S)


async def test_a_spool_takes_no_bundle_of_messages_that_travel_one_by_one(tmp_path: Path) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    async with bus.async_publisher(spool=spool(tmp_path)) as publisher:
        target = publisher._outgoing.read("orders", b"", NONE_GIVEN)[0]
        assert publisher._admission.packing_of(target) is None


def test_a_message_that_needs_no_confirm_is_not_spooled(bus: MemoryBus, tmp_path: Path) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    publisher.send_safe("orders", b"x")
    end = publisher.submit(Topic("loose", Durability.NONE), b"x", timeout_s=0.2).result()
    assert end.outcome is Outcome.REFUSED


def test_a_broker_that_refuses_a_message_gets_it_again_and_holds_up_no_other_destination(
    bus: MemoryBus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    bus.refuse_next("orders", 2)
    ids = [publisher.send_safe("orders", b"%d" % number).message_id for number in range(3)]
    publisher.send_safe("others", b"x")
    drained(bus, publisher)
    assert len(bus.published("others")) == 1
    assert {message.message_id for message in bus.published("orders")} == set(ids)
    stats = publisher.stats()
    assert (stats.spool_failures, stats.refused, stats.replayed) == (2, 0, 4)
    assert "spool: not taken destination=orders" in caplog.text


class Seen(Hooks):
    def __init__(self) -> None:
        self.ends: list[tuple[str, str, Outcome]] = []

    def published(self, destination: str, message: Message, published: Published) -> None:
        assert message.message_id == published.message_id
        self.ends.append(("published", published.message_id, published.outcome))

    def spooled(self, destination: str, published: Published) -> None:
        assert destination == "queue:jobs"
        assert published.broker
        self.ends.append(("spooled", published.message_id, published.outcome))


def test_hooks_learn_that_it_is_spooled_and_that_it_went_out(
    bus: MemoryBus, tmp_path: Path
) -> None:
    seen = Seen()
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path), hooks=(seen,))
    told = publisher.send_safe("queue:jobs", b"x").message_id
    drained(bus, publisher)
    eventually(lambda: len(seen.ends) == 2, within_s=WITHIN_S)
    assert seen.ends == [
        ("published", told, Outcome.SPOOLED),
        ("spooled", told, Outcome.CONFIRMED),
    ]


@pytest.mark.parametrize(
    ("destination", "options", "place"),
    [
        (Topic("orders"), {}, "orders"),
        (Topic("orders", Durability.PAGE_CACHE), {}, "orders page-cache"),
        (Queue("jobs", create=True), {}, "queue:jobs create"),
        (Queue("jobs", delivery_limit=5), {}, "queue:jobs limit=5"),
        (
            Queue("jobs", create=True, plain=True, single_active=True),
            {},
            "queue:jobs create plain single_active",
        ),
        (Topic("orders"), {"deliver_after_s": 5}, "orders delay=5000"),
    ],
    ids=str,
)
def test_a_place_says_all_that_is_needed_to_publish_there_again(
    destination: Destination, options: Options, place: str
) -> None:
    given = tuple(options.get(name) for name in OPTIONS)
    target = Outgoing().read(destination, b"x", given)[0]
    assert place_of(target) == place
    again = read_place(place)
    assert again.address == target.address
    wanted, *_delay = again.address.wanted
    assert repr(wanted) == repr(destination)  # equal when their names are
    assert place_of(again) == place


@pytest.mark.guarantee("spool-is-bounded")
@pytest.mark.parametrize("settings", [{"messages_max": 10}, {"bytes_max": 65_536}], ids=str)
def test_a_full_spool_takes_no_more_and_says_so(
    bus: MemoryBus, tmp_path: Path, settings: dict[str, int]
) -> None:
    bus.stop_brokers()
    config = PublisherConfig(backlog_messages_max=5)
    publisher = started(bus, spool(tmp_path, **settings), config)
    ends: list[Published] = []
    body = b"x" * 5_000
    while (end := publisher.submit("orders", body, timeout_s=1).result()) and not end.reason:
        assert end.outcome is Outcome.SPOOLED
        ends.append(end)
    assert end.outcome is Outcome.REFUSED
    assert "the spool takes nothing: it is full" in end.reason
    assert len(ends) == 10 if "messages_max" in settings else 5 < len(ends) < 14
    futures = [publisher.submit("orders", b"x" * 5_000) for _ in range(5)]
    with pytest.raises(SpoolFull, match="it is full"):
        publisher.submit("orders", b"x", timeout_s=0.1)
    assert issubclass(SpoolFull, BacklogFull)
    assert "full" in publisher.stats().spool_fault
    total = sum(path.stat().st_size for path in segments(tmp_path))
    assert total <= settings.get("bytes_max", total)
    drained(bus, publisher)
    assert {future.result().outcome for future in futures} <= {Outcome.CONFIRMED, Outcome.SPOOLED}
    ids = [end.message_id for end in ends] + [each.result().message_id for each in futures]
    assert [message.message_id for message in bus.published("orders")] == ids
    eventually(lambda: publisher.stats().spool_fault == "", within_s=WITHIN_S)


@pytest.mark.parametrize("settings", [{"messages_max": 10}, {"bytes_max": 65_536}], ids=str)
async def test_bundles_that_no_spool_of_this_size_takes_are_spooled_message_by_message(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    bus = MemoryBus()
    bus.declare("orders/billing")
    config = PublisherConfig(batch={"orders": Batching(count_max=50)})
    where = spool(tmp_path, always=True, **settings)
    async with bus.async_publisher(config, spool=where) as publisher:
        ends = await publisher.send_many("orders", [b"x" * 1_200] * 50)
        assert {end.outcome for end in ends} == {Outcome.SPOOLED}
        await eventually_async(lambda: len(bus.published("orders")) == 50, within_s=WITHIN_S)


def test_what_a_full_spool_leaves_to_a_stop_waits_no_more(bus: MemoryBus, tmp_path: Path) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path, messages_max=2))
    ends = [publisher.submit("orders", b"x") for _ in range(5)]
    eventually(lambda: publisher.stats().spool_fault, within_s=WITHIN_S)
    assert publisher.stop(0) == 3
    outcomes = [end.result(WITHIN_S).outcome for end in ends]
    assert outcomes == [Outcome.SPOOLED] * 2 + [Outcome.REFUSED] * 3
    assert publisher.stats().backlog == 0


class Disk:
    """A disk that fails on demand: with this error, after so many bytes of each write."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        self.bytes_max = 0
        self.at_sync = False
        monkeypatch.setattr(spool_folder, "write", self.write)
        monkeypatch.setattr(spool_folder, "sync", self.sync)

    def write(self, fd: int, data: memoryview) -> int:
        if self.error and not self.at_sync:
            if self.bytes_max:
                part = os.write(fd, data[: self.bytes_max])
                self.bytes_max = 0
                return part
            raise OSError(self.error, os.strerror(self.error))
        return os.write(fd, data)

    def sync(self, fd: int) -> None:
        if self.error and self.at_sync:
            raise OSError(self.error, os.strerror(self.error))
        os.fdatasync(fd)


@pytest.mark.guarantee("spool-is-bounded")
@pytest.mark.parametrize("at_sync", [False, True], ids=["write", "sync"])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=errno.errorcode.get)
def test_a_disk_that_fails_is_told_and_loses_nothing_that_was_spooled(
    bus: MemoryBus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: int,
    at_sync: bool,
) -> None:
    retry_soon(monkeypatch)
    disk = Disk(monkeypatch)
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    before = publisher.send_safe("orders", b"before")
    disk.error, disk.at_sync, disk.bytes_max = error, at_sync, 30

    def refused() -> None:
        with suppress(Unknown):  # the deadline passed while the disk was tried again
            publisher.send_safe("orders", b"refused", timeout_s=0.3)
        refused()

    with pytest.raises(Refused, match=os.strerror(error)):
        refused()
    waits = publisher.submit("orders", b"waits")
    assert publisher.stats().spool_fault == os.strerror(error)
    assert f"spool fails folder={tmp_path / 'spool'} reason={os.strerror(error)!r}" in caplog.text
    disk.error = 0
    assert waits.result().outcome is Outcome.SPOOLED
    assert publisher.stats().spool_fault == ""
    publisher.stop()
    again = started(bus, spool(tmp_path))
    drained(bus, again)
    ids = [message.message_id for message in bus.published("orders")]
    assert ids == [before.message_id, waits.result().message_id]
    assert again.stats().spool_damaged == 0


def test_a_disk_that_hangs_makes_the_outcome_unknown(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on = threading.Event()
    hang = goes_on.wait
    monkeypatch.setattr(spool_folder, "sync", lambda fd: is_segment(fd) and hang(WITHIN_S))
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    end = publisher.submit("orders", b"x", timeout_s=0.5).result()
    assert end.outcome is Outcome.UNKNOWN
    goes_on.set()
    drained(bus, publisher)


def test_a_folder_that_cannot_be_used_is_told_at_the_start(bus: MemoryBus, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    publisher = bus.publisher(spool=tmp_path / "file" / "spool")
    with pytest.raises(ConfigError, match=r"spool '.*': Not a directory"):
        publisher.start()
    assert not [each for each in threading.enumerate() if each.name == "messagebus-publisher"]


def test_a_folder_that_is_deleted_is_told_and_made_anew(
    bus: MemoryBus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    publisher.send_safe("orders", b"lost")
    shutil.rmtree(tmp_path / "spool")
    assert publisher.send_safe("orders", b"kept").outcome is Outcome.SPOOLED
    assert len(segments(tmp_path)) == 1
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [b"kept"]
    assert publisher.stats().spool_damaged == 1
    assert "lost=1" in caplog.text


def change(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(bytes(data))


Damage = Callable[[Path], None]


def zero_bytes(path: Path) -> None:
    path.write_bytes(b"")


def huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(1 << 40)


@pytest.mark.guarantee("spool-file-never-lies")
@pytest.mark.parametrize(
    ("damage", "arrive", "kept"),
    [
        (lambda path: change(path, 5), [], ".damaged"),
        (lambda path: change(path, 120), [b"1", b"2"], ".hole-42"),
        (lambda path: change(path, path.stat().st_size - 1), [b"0", b"1"], ".hole-"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), [b"0", b"1"], "torn"),
        (zero_bytes, [], "torn"),
        (huge, [], ".damaged"),
        (lambda path: path.rename(path.with_name(f"{7:016d}.seg")), [], ".damaged"),
    ],
    ids=["header", "record", "last record", "torn end", "0 bytes", "huge", "renamed"],
)
def test_damage_is_told_and_put_aside_and_the_rest_arrives(
    bus: MemoryBus,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    damage: Damage,
    arrive: list[bytes],
    kept: str,
) -> None:
    left_behind(bus, spool(tmp_path), b"0", b"1", b"2")
    damage(segments(tmp_path)[0])
    publisher = started(bus, spool(tmp_path))
    drained(bus, publisher)
    assert publisher.send_safe("orders", b"after").outcome in (Outcome.CONFIRMED, Outcome.SPOOLED)
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [*arrive, b"after"]
    if kept == "torn":
        if arrive:
            assert "torn end" in caplog.text
        return
    assert "spool damaged" in caplog.text
    aside = [path for path in (tmp_path / "spool").rglob("*") if kept in path.name]
    assert {path.stat().st_mode & 0o777 for path in aside} == {0o600}
    assert publisher.stats().spool_damaged == 1


@pytest.mark.guarantee("spool-is-bounded")
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO], ids=errno.errorcode.get)
def test_what_is_sent_leaves_a_disk_that_has_no_room_even_for_the_cursor(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: int
) -> None:
    retry_soon(monkeypatch)
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    publisher.send_safe("orders", b"fills the disk")
    faults = 0

    def fails(fd: int, data: memoryview) -> int:
        nonlocal faults
        # A disk that is full of segments takes more when they are gone; any other one some time later.
        if segments(tmp_path) if error == errno.ENOSPC else faults < 3:
            faults += 1
            raise OSError(error, os.strerror(error))
        return os.write(fd, data)

    monkeypatch.setattr(spool_folder, "write", fails)
    drained(bus, publisher)
    eventually(lambda: not segments(tmp_path), within_s=WITHIN_S, what="the disk has room")
    assert faults
    monkeypatch.setattr(spool_folder, "write", os.write)
    eventually(lambda: not publisher.stats().spool_bytes, within_s=WITHIN_S)
    bus.stop_brokers()
    assert publisher.send_safe("orders", b"again").outcome is Outcome.SPOOLED
    publisher.stop()
    drained(bus, started(bus, spool(tmp_path)))
    assert [message.body for message in bus.published("orders")] == [b"fills the disk", b"again"]


def test_what_cannot_be_read_just_now_is_sent_later_or_put_aside(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messagebus._io.publish.spool.writer.SEGMENT_BYTES", 1)
    left_behind(bus, spool(tmp_path), b"0", b"1", b"2")
    first, second, _ = segments(tmp_path)
    unreadable = {first.name: errno.EIO, second.name: errno.EMFILE}
    read = spool_folder.SpoolFolder.read

    def fails(folder: spool_folder.SpoolFolder, name: str, *place: int) -> bytes:
        if error := unreadable.get(name):
            raise OSError(error, os.strerror(error))
        return read(folder, name, *place)

    monkeypatch.setattr(spool_folder.SpoolFolder, "read", fails)

    def take_over() -> None:
        publisher = started(bus, spool(tmp_path))
        drained(bus, publisher)
        publisher.stop()

    take_over()  # this process has too many open files
    assert bus.published("orders") == []
    del unreadable[second.name]
    take_over()
    unreadable.clear()
    take_over()
    assert [message.body for message in bus.published("orders")] == [b"1", b"2"]
    assert first.with_name(f"{first.name}.damaged").exists()


def test_a_missing_segment_is_told(
    bus: MemoryBus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("messagebus._io.publish.spool.writer.SEGMENT_BYTES", 1)
    left_behind(bus, spool(tmp_path), b"0", b"1", b"2")
    segments(tmp_path)[1].unlink()
    publisher = started(bus, spool(tmp_path))
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [b"0", b"2"]
    assert "records 2 to 2 before it are missing" in caplog.text


def one_stuck_and_x_sent(bus: MemoryBus, where: Spool) -> None:
    """Spool one that is always refused, and x behind it, which is sent before the publisher ends."""
    bus.stop_brokers()
    publisher = started(bus, where)
    bus.refuse_next("queue:jobs", 1_000)
    publisher.send_safe("queue:jobs", b"stuck")
    publisher.send_safe("orders", b"x")
    bus.start_brokers()
    eventually(lambda: publisher.stats().replayed, within_s=WITHIN_S)
    publisher.stop()


def test_a_damaged_cursor_costs_duplicates_only(
    bus: MemoryBus, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one_stuck_and_x_sent(bus, spool(tmp_path))
    (cursor,) = (tmp_path / "spool").glob("*/cursor")
    change(cursor, 20)
    again = started(bus, spool(tmp_path))
    eventually(lambda: again.stats().replayed, within_s=WITHIN_S)
    assert [message.body for message in bus.published("orders")] == [b"x", b"x"]
    assert "the checksum of the cursor is wrong" in caplog.text


def test_a_restart_does_not_send_again_what_the_cursor_says_is_confirmed(
    bus: MemoryBus, tmp_path: Path
) -> None:
    one_stuck_and_x_sent(bus, spool(tmp_path))
    again = started(bus, spool(tmp_path))
    eventually(lambda: again.stats().spool_failures, within_s=WITHIN_S)
    assert again.stats().spool_messages == 1
    assert [message.body for message in bus.published("orders")] == [b"x"]


def test_a_clock_that_goes_back_makes_no_negative_age(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    publisher.send_safe("orders", b"x")
    now = time.time()
    monkeypatch.setattr("messagebus._io.publish.spool.keeper.time.time", lambda: now - 86_400.0)
    assert publisher.stats().spool_oldest_s == 0.0
    publisher.send_safe("orders", b"y")
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [b"x", b"y"]


@pytest.mark.parametrize("batch", [0, 3])
def test_a_clock_before_1970_keeps_no_publish_waiting(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: int
) -> None:
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(time, "time", lambda: -86_400.0)
        patch.setattr(time, "time_ns", lambda: -86_400_000_000_000)
        bodies = [b"x"] * (batch or 1)
        ends = (
            publisher.send_many("orders", bodies)
            if batch
            else [publisher.send_safe("orders", b"x")]
        )
    assert {end.outcome for end in ends} == {Outcome.SPOOLED}
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == bodies


@pytest.mark.parametrize("where", ["encode_record", "segment_name"])
def test_an_unexpected_error_of_the_spool_ends_publishes_and_goes_by(
    bus: MemoryBus,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    where: str,
) -> None:
    retry_soon(monkeypatch)
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path), PublisherConfig(deadline_s=2.0))
    with monkeypatch.context() as patch:
        patch.setattr(f"messagebus._io.publish.spool.writer.{where}", lambda *_: 1 // 0)
        with pytest.raises(Refused, match=r"the spool takes nothing: .*division"):
            publisher.send_safe("orders", b"x")
    assert "ZeroDivisionError" in caplog.text
    assert publisher.send_safe("orders", b"y").outcome is Outcome.SPOOLED
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [b"y"]
    assert publisher.stop() == 0


def test_an_unexpected_error_of_a_new_folder_ends_publishes_and_goes_by(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry_soon(monkeypatch)
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path), PublisherConfig(deadline_s=2.0))
    publisher.send_safe("orders", b"deleted")
    shutil.rmtree(tmp_path / "spool")
    with monkeypatch.context() as patch:
        patch.setattr(spool_folder.Store, "create", lambda *_: 1 // 0)
        future = publisher.submit("orders", b"x")
        assert "the spool takes nothing: " in future.result(WITHIN_S).reason
    assert publisher.send_safe("orders", b"y").outcome is Outcome.SPOOLED


@pytest.mark.parametrize("moment", ["taking over", "idle", "writing", "sending"])
async def test_an_application_that_cancels_all_tasks_of_its_loop_ends_no_spool(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The writer, the replayer and the taking over begin again; what the disk is doing is not lost."""
    retry_soon(monkeypatch)
    left_behind(bus, spool(tmp_path), b"left")
    entered, released, main = threading.Event(), threading.Event(), asyncio.current_task()

    def hold(patched: str) -> None:
        place = f"messagebus._io.publish.spool.{patched}"
        real = pkgutil.resolve_name(place)

        def slow(*args: object) -> object:
            entered.set()
            released.wait(WITHIN_S)
            return real(*args)

        monkeypatch.setattr(place, slow)

    if moment == "taking over":
        hold("keeper.adopt")
    publisher = bus.async_publisher(CONFIG, spool=spool(tmp_path))
    work: asyncio.Task[Any] = asyncio.create_task(publisher.start())
    if moment != "taking over":
        await work
    if moment == "writing":
        hold("folder.write")
        work = asyncio.create_task(publisher.send_safe("orders", b"first"))
    if moment == "sending":
        hold("folder.SpoolFolder.read")
        bus.start_brokers()
    if moment != "idle":
        await eventually_async(entered.is_set, within_s=WITHIN_S)
    for task in asyncio.all_tasks() - {main, work}:
        task.cancel()
    await asyncio.sleep(0)
    monkeypatch.undo()
    released.set()
    await work
    if moment != "writing":
        await publisher.send_safe("orders", b"first")
    bus.start_brokers()
    await publisher.send_safe("orders", b"second")
    await eventually_async(
        lambda: [each.body for each in bus.published("orders")] == [b"left", b"first", b"second"],
        within_s=WITHIN_S,
    )
    assert await publisher.stop() == 0


def test_a_stop_that_ends_with_its_loop_ends_what_a_disk_keeps(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    monkeypatch.setattr("messagebus._io.publish.spool.keeper.CLOSE_S", 0.01)
    bus.stop_brokers()

    async def begin() -> asyncio.Future[Published]:
        publisher = bus.async_publisher(spool=spool(tmp_path))
        await publisher.start()
        assert (await publisher.send_safe("orders", b"x")).outcome is Outcome.SPOOLED
        monkeypatch.setattr(spool_folder, "sync", lambda _fd: released.wait(WITHIN_S))
        end = await publisher.submit("orders", b"y")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(publisher.stop(WITHIN_S), 0.01)
        return end

    assert asyncio.run(begin()).result().outcome in (Outcome.UNKNOWN, Outcome.REFUSED)
    released.set()


def test_an_unexpected_error_while_sending_from_the_spool_goes_by(
    bus: MemoryBus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    retry_soon(monkeypatch)
    bus.stop_brokers()
    publisher = started(bus, spool(tmp_path))
    publisher.send_safe("orders", b"x")
    failed = threading.Event()

    def fail(*_: object, **_more: object) -> None:
        failed.set()
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr("messagebus._io.publish.spool.replayer.scan", fail)
        bus.start_brokers()
        assert failed.wait(WITHIN_S)
    drained(bus, publisher)
    assert [message.body for message in bus.published("orders")] == [b"x"]


def test_a_publisher_without_a_spool_imports_none_of_it() -> None:
    import subprocess
    import sys

    code = (
        "import sys; from messagebus.testing import MemoryBus\n"
        "bus = MemoryBus(); p = bus.publisher(); p.start(); p.stop()\n"
        "print([name for name in sys.modules if 'spool' in name])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.fixture(autouse=True)
def _loud(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "messagebus")

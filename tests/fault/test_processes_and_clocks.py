"""Promise: forks, exits, jumping clocks and careless threads lose nothing in silence."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import logging
import ssl
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pika.adapters.asyncio_connection import _AsyncioIOServicesAdapter

from messagebus import (
    AlreadySettled,
    BusConfig,
    Consumer,
    Delivery,
    NotReady,
    Outcome,
    Publisher,
    Queue,
    Secret,
)
from messagebus._io.amqp.link import Credentials, Link, dial
from messagebus._io.amqp.properties import read_message_id
from messagebus.broker import Broker
from ops.local.certificates import issue_missing
from tests.support.eventually import FACTOR, eventually
from tests.support.fake_amqp import FakeRabbit, fake_rabbit
from tests.support.orders import QUEUE, SUBSCRIPTION, TOPIC, WITHIN_S, received

ROOT = Path(__file__).resolve().parents[2]
INSIST_S = 0.5
IN_FLIGHT = 500
ROUNDS = 100
# Lower bound of the loop's calls in a dial through TCP, TLS and AMQP.
STEPS_MIN = 20
YEAR_S = 365 * 86_400


def script(rabbit: FakeRabbit, text: str) -> subprocess.CompletedProcess[str]:
    """Run it in a process of its own, with `bus` made; return when it has ended."""
    head = f"""
import os, sys
from messagebus import *
bus = BusConfig(broker={rabbit.name!r})
"""
    return subprocess.run(
        [sys.executable, "-c", head + text],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=3 * WITHIN_S * FACTOR,
        check=False,
    )


@pytest.mark.guarantee("exit-settles-or-says")
def test_an_interpreter_that_exits_with_messages_in_flight_settles_them(
    rabbit: FakeRabbit,
) -> None:
    done = script(
        rabbit,
        f"""
publisher = Publisher(bus)
publisher.start(require="one")
publisher.send_safe("{TOPIC}", b"first", timeout_s=5)
for number in range({IN_FLIGHT}):
    publisher.submit("{TOPIC}", b"%d" % number)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    stored = [each.body for each in rabbit.queues[QUEUE].messages]
    assert stored == [b"first", *(b"%d" % number for number in range(IN_FLIGHT))]


@pytest.mark.guarantee("exit-settles-or-says")
def test_an_interpreter_that_exits_right_after_submit_settles_everything(
    rabbit: FakeRabbit,
) -> None:
    done = script(
        rabbit,
        f"""
publisher = Publisher(bus)
publisher.start()
for number in range({IN_FLIGHT}):
    publisher.submit("{TOPIC}", b"%d" % number)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    stored = [each.body for each in rabbit.queues[QUEUE].messages]
    assert stored == [b"%d" % number for number in range(IN_FLIGHT)]


@pytest.mark.guarantee("exit-settles-or-says")
def test_an_interpreter_that_exits_says_how_much_it_could_not_settle(rabbit: FakeRabbit) -> None:
    rabbit.manners.confirms = "never"
    done = script(
        rabbit,
        f"""
publisher = Publisher(bus, PublisherConfig(deadline_s=60))
publisher.start(require="one")
for number in range({IN_FLIGHT}):
    publisher.submit("{TOPIC}", b"%d" % number)
""",
    )
    assert str(IN_FLIGHT) in done.stderr, "nobody was told"


@pytest.mark.guarantee("clock-jump-and-fork")
def test_every_use_in_a_forked_child_says_so_not_only_the_first(rabbit: FakeRabbit) -> None:
    done = script(
        rabbit,
        f"""
publisher = Publisher(bus)
publisher.start(require="one")
child = os.fork()
if child == 0:
    told = 0
    for _ in range(3):
        try:
            publisher.submit("{TOPIC}", b"child")
        except Stopped:
            told += 1
    os._exit(10 + told)
_, status = os.waitpid(child, 0)
publisher.stop()
assert os.waitstatus_to_exitcode(status) == 13, f"told {{os.waitstatus_to_exitcode(status) - 10}} of 3 times"
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_publishers_made_before_a_fork_and_started_in_its_children_give_ids_of_their_own(
    rabbit: FakeRabbit,
) -> None:
    done = script(
        rabbit,
        f"""
publishers = [Publisher(bus), Publisher(bus, hooks=[Hooks()])]
children = [os.fork() for _ in range(1)]
children += [os.fork()] if all(children) else []
for publisher in publishers:
    with publisher:
        publisher.send_many("{TOPIC}", [b"1", b"2"])
if all(children):
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    ids = [read_message_id(each.properties) for each in rabbit.queues[QUEUE].messages]
    assert len(ids) == 3 * 2 * 2
    assert len(set(ids)) == len(ids)


@pytest.mark.guarantee("clock-jump-and-fork")
def test_a_forked_child_that_exits_by_itself_says_nothing(rabbit: FakeRabbit) -> None:
    done = script(
        rabbit,
        """
publisher = Publisher(bus)
publisher.start(require="one")
child = os.fork()
if child == 0:
    sys.exit(0)
_, status = os.waitpid(child, 0)
publisher.stop()
assert status == 0
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Objects that are collected without having been closed."""
    found: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", found.append)
    return found


@pytest.mark.filterwarnings("error::ResourceWarning")
def test_a_publisher_that_is_stopped_at_once_leaves_no_socket_behind(
    rabbit: FakeRabbit, left: list[object]
) -> None:
    for _ in range(ROUNDS):
        with Publisher(BusConfig(broker=rabbit.name)):
            pass
    gc.collect()
    assert not left


class Steps:
    """Counter of pika's calls of its loop, from 1; at one of them something happens."""

    NAMES = (
        "getaddrinfo",
        "add_callback_threadsafe",
        "call_later",
        "set_reader",
        "set_writer",
        "remove_reader",
        "remove_writer",
    )

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._left = 0
        self._action: Callable[[], None] = lambda: None
        for name in self.NAMES:
            real = getattr(_AsyncioIOServicesAdapter, name)
            monkeypatch.setattr(_AsyncioIOServicesAdapter, name, self._counted(real))

    def _counted(self, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **options: object) -> object:
            self._left -= 1
            if not self._left:
                self._action()
            return real(*arguments, **options)

        return call

    def at(self, step: int, action: Callable[[], None]) -> None:
        self._left, self._action = step, action


@pytest.mark.filterwarnings("error::ResourceWarning")
@pytest.mark.parametrize("cuts", [1, 2], ids=["once", "twice"])
def test_a_dial_that_is_cut_off_at_any_moment_leaves_no_socket_behind(
    tmp_path: Path, left: list[object], monkeypatch: pytest.MonkeyPatch, cuts: int
) -> None:
    """In TCP, TLS and AMQP. Its own deadline and its caller's may end it in a row."""
    issue_missing(tmp_path, {"fake": ("127.0.0.1",)})
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "fake.pem", tmp_path / "fake.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    with fake_rabbit(tls=server) as rabbit:
        dialing = functools.partial(_cut_off, rabbit.name, client, Steps(monkeypatch), cuts)
        step = 1
        while not asyncio.run(dialing(step)):
            gc.collect()
            assert not left, f"step {step}"
            step += 1
    assert step > STEPS_MIN


async def _cut_off(name: str, tls: ssl.SSLContext, steps: Steps, cuts: int, step: int) -> bool:
    """Dial, and cut the dial off at that step. Returns whether the link was open before."""
    loop = asyncio.get_running_loop()
    credentials = Credentials(user="guest", password=Secret("guest"), tls=tls)
    dialing = asyncio.create_task(dial(Broker.parse(name), credentials, timeout_ms=60_000))

    def cut_off() -> None:
        dialing.cancel()
        for _ in range(cuts - 1):
            loop.call_soon(dialing.cancel)

    steps.at(step, cut_off)
    (link,) = await asyncio.gather(dialing, return_exceptions=True)
    if isinstance(link, Link):
        await link.close()
    return isinstance(link, Link)


@pytest.mark.guarantee("clock-jump-and-fork")
def test_a_client_that_was_started_before_a_fork_says_so_in_the_child_and_works_in_the_parent(
    rabbit: FakeRabbit,
) -> None:
    done = script(
        rabbit,
        f"""
publisher = Publisher(bus)
publisher.start(require="one")
consumer = Consumer(bus, "{TOPIC}", subscription="{SUBSCRIPTION}")
consumer.start(require="one")
child = os.fork()
if child == 0:
    told = 0
    for call in (
        lambda: publisher.send_safe("{TOPIC}", b"child", timeout_s=5),
        lambda: publisher.flush(5),
        lambda: consumer.stats(),
    ):
        try:
            call()
        except Stopped as fault:
            told += "fork" in str(fault)
    os._exit(10 + told)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 13, status
publisher.send_safe("{TOPIC}", b"parent", timeout_s=5)
delivery = consumer.receive(5)
assert delivery.body == b"parent"
consumer.ack(delivery)
publisher.stop()
consumer.stop()
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert rabbit.published == 1


@pytest.mark.guarantee("clock-jump-and-fork")
def test_a_consumer_in_a_forked_child_hands_out_answers_and_ends_nothing(
    rabbit: FakeRabbit,
) -> None:
    """The child's copy holds the parent's deliveries, and a lock that may never open there."""
    for number in range(IN_FLIGHT):
        rabbit.put(QUEUE, b"%d" % number)
    done = script(
        rabbit,
        f"""
consumer = Consumer(bus, "{TOPIC}", subscription="{SUBSCRIPTION}")
consumer.start(require="one")
first = consumer.receive(5)
with consumer._arrived:  # as when its own thread hands something over in the moment of the fork
    child = os.fork()
if child == 0:
    consumer._arrived = None
    told = 0
    for call in (
        lambda: consumer.receive(),
        lambda: consumer.receive_immediate(),
        lambda: consumer.receive_many(10),
        lambda: next(iter(consumer)),
        lambda: consumer.ack(first),
        lambda: consumer.nack(first),
        lambda: consumer.ack_safe(first),
        lambda: consumer.pause(),
        lambda: consumer.keep_alive(),
    ):
        try:
            call()
        except Stopped as fault:
            told += "fork" in str(fault)
    os._exit(10 + told if consumer.stop() == 0 else 9)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 19, os.waitstatus_to_exitcode(status)
assert consumer.ack(first)
for _ in range({IN_FLIGHT} - 1):
    assert consumer.ack_safe(consumer.receive(5))
assert consumer.stop() == 0
""",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not rabbit.queues[QUEUE].messages


def test_clients_made_before_a_fork_and_started_after_it_work(rabbit: FakeRabbit) -> None:
    done = script(
        rabbit,
        f"""
publisher = Publisher(bus)
consumer = Consumer(bus, "{TOPIC}", subscription="{SUBSCRIPTION}")
child = os.fork()
if child == 0:
    with publisher, consumer:
        publisher.send_safe("{TOPIC}", b"child", timeout_s=5)
        assert consumer.ack_safe(consumer.receive(5))
    os._exit(7)
_, status = os.waitpid(child, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
""",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.guarantee("clock-jump-and-fork")
@pytest.mark.parametrize("jump_s", [-10 * YEAR_S, -3600, 3600, 60 * YEAR_S], ids=str)
def test_a_wall_clock_that_jumps_disturbs_nobody(
    rabbit: FakeRabbit, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    bus = BusConfig(broker=rabbit.name, heartbeat_s=1)
    with Publisher(bus) as publisher, Consumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
        _send_and_receive(publisher, consumer)
        accepted = rabbit.accepted
        with monkeypatch.context() as patch:
            _set_wall_clock(patch, lambda: jump_s)
            _send_and_receive(publisher, consumer)
            late = publisher.submit(Queue("nowhere", create=True), b"", timeout_s=0.2)
            assert late.result(WITHIN_S * FACTOR).outcome is not Outcome.CONFIRMED
            assert consumer.receive(0.2) is None
        _send_and_receive(publisher, consumer)
        assert publisher.stats().links_lost == 0
        assert rabbit.accepted <= accepted + 1, "more than the registration of nowhere"


@pytest.mark.guarantee("clock-jump-and-fork")
def test_a_wall_clock_that_never_stands_still_disturbs_nobody(
    rabbit: FakeRabbit, monkeypatch: pytest.MonkeyPatch
) -> None:
    jumps = itertools.cycle([0, YEAR_S, -YEAR_S, 10 * YEAR_S])
    _set_wall_clock(monkeypatch, lambda: next(jumps))
    bus = BusConfig(broker=rabbit.name)
    with Publisher(bus) as publisher, Consumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
        for _ in range(ROUNDS):
            _send_and_receive(publisher, consumer)
        assert publisher.stats().links_lost == 0


def _set_wall_clock(patch: pytest.MonkeyPatch, ahead_s: Callable[[], int]) -> None:
    real_s, real_ns = time.time, time.time_ns
    patch.setattr(time, "time", lambda: real_s() + ahead_s())
    patch.setattr(time, "time_ns", lambda: real_ns() + ahead_s() * 10**9)


def _send_and_receive(publisher: Publisher, consumer: Consumer) -> None:
    sent = publisher.send_safe(TOPIC, b"x", timeout_s=WITHIN_S)
    assert 0 <= sent.settled_ns - sent.sent_ns < WITHIN_S * 10**9
    delivery = received(consumer)
    assert delivery.message_id == sent.message_id
    assert consumer.ack(delivery)


@pytest.mark.guarantee("ack-to-its-own-link")
def test_of_two_threads_that_answer_one_delivery_exactly_one_does(rabbit: FakeRabbit) -> None:
    for number in range(ROUNDS):
        rabbit.put(QUEUE, b"%d" % number)
    bus = BusConfig(broker=rabbit.name)
    with Consumer(bus, TOPIC, subscription=SUBSCRIPTION) as consumer:
        for _ in range(ROUNDS):
            assert _answered_by_two(consumer, received(consumer)) == Counter(answered=1, told=1)
        eventually(lambda: consumer.stats().acked == ROUNDS, within_s=WITHIN_S)
        stats = consumer.stats()
        assert (stats.acks_stale, stats.handed_out) == (0, 0)
        assert stats.delivered == ROUNDS, "the broker was told twice and closed the channel"


def _answered_by_two(consumer: Consumer, delivery: Delivery) -> Counter[str]:
    said: Counter[str] = Counter()
    together = threading.Barrier(2)

    def answer() -> None:
        together.wait()
        try:
            said["answered"] += consumer.ack(delivery)
        except AlreadySettled:
            said["told"] += 1

    threads = [threading.Thread(target=answer) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return said


@pytest.mark.guarantee("no-list-at-start")
def test_a_start_without_a_list_and_without_a_cached_one_says_so_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    bus = BusConfig(list_urls=("http://127.0.0.1:1/list",), list_cache=str(tmp_path / "list"))
    consumer = Consumer(bus, TOPIC, subscription=SUBSCRIPTION)
    began = time.monotonic()
    with pytest.raises(NotReady, match="no list"):
        consumer.start(require="one", timeout_s=INSIST_S)
    assert time.monotonic() - began < WITHIN_S * FACTOR
    assert any("list" in record.getMessage() for record in caplog.records)


@pytest.mark.guarantee("no-list-at-start")
@pytest.mark.parametrize("cached", ["", "<html>", "127.0.0.1:99999\n", "\x00\xff", "# comment\n"])
def test_a_damaged_cached_list_is_as_good_as_none(tmp_path: Path, cached: str) -> None:
    cache = tmp_path / "list"
    cache.write_text(cached)
    bus = BusConfig(list_urls=("http://127.0.0.1:1/list",), list_cache=str(cache))
    with pytest.raises(NotReady, match="no list"):
        Consumer(bus, TOPIC, subscription=SUBSCRIPTION).start(require="one", timeout_s=INSIST_S)


@pytest.mark.guarantee("no-list-at-start")
def test_a_start_without_a_list_attaches_by_the_cached_one(
    rabbit: FakeRabbit, tmp_path: Path
) -> None:
    cache = tmp_path / "list"
    cache.write_text(f"# cluster: fake\n# generation: 3\n{rabbit.name}\n")
    bus = BusConfig(list_urls=("http://127.0.0.1:1/list",), list_cache=str(cache))
    consumer = Consumer(bus, TOPIC, subscription=SUBSCRIPTION)
    consumer.start(require="one", timeout_s=WITHIN_S)
    try:
        rabbit.put(QUEUE, b"x")
        assert received(consumer).body == b"x"
        assert consumer.stats().list_age_s is None  # a cached list is not a fresh one
    finally:
        consumer.stop(timeout_s=0)

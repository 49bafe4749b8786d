"""Promise: a partition moves to another broker in daylight: nothing is lost, and each key keeps its order."""

from __future__ import annotations

import asyncio
import math
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import Future
from contextlib import closing
from pathlib import Path
from typing import Any

import pika
import pika.exceptions
import pytest

from messagebus import (
    Consumer,
    Outcome,
    Published,
    Publisher,
    Subscription,
    Topic,
    declare,
)
from messagebus._io import amqp_wire
from messagebus._io.amqp import link
from messagebus.broker import Broker
from messagebus.core.homes import Home
from ops.local.cluster import LocalCluster
from tests import tiers
from tests.support.eventually import eventually, let_accepted_begin
from tests.support.faults import bus_config, metric, queue_exists, write_list
from tests.support.moves import begin, chains, homes, rotated, settled
from tests.support.ordered_load import PARTITIONS, WITHIN_S, loaded, out_of_order

# What the agent of the old home tells, one after the other.
STEPS = ("move begins", "sealed segment", "partition moved", "segment finished")
# Longer than a move takes, on a busy machine too.
LATE_S = 2.0


def begun(cluster: LocalCluster, folder: Path, *words: str) -> subprocess.Popen[str]:
    """Begin `messagebus partitions`."""
    token = folder / "token"
    token.write_text(cluster.token.reveal())
    return subprocess.Popen(
        [sys.executable, "-m", "messagebus", "partitions", *words],
        env={**os.environ, **cluster.client_env(), "MESSAGEBUS_TOKEN_FILE": str(token)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def command(cluster: LocalCluster, folder: Path, *words: str, code: int = 0) -> str:
    """Run `messagebus partitions`, and return what it prints. Those that are at home there are refused: 3."""
    ran = begun(cluster, folder, *words)
    out, error = ran.communicate(timeout=2 * WITHIN_S)
    assert ran.returncode == code, error
    assert all("is its home" in line for line in error.splitlines())
    return out


def killed_at(cluster: LocalCluster, topic: str, step: str, end: str) -> None:
    """Move a partition, and kill the agent of its old or its next home when the old one tells of a step."""
    old, to = homes(cluster, topic)[0], rotated(cluster, topic)[0]
    log = cluster.layout.log_file(f"{cluster.name_of(old)}-agent")
    known = log.stat().st_size
    # An agent that was killed just before may not be heard yet.
    eventually(lambda: begin(cluster, topic, {0: to}) == {}, within_s=WITHIN_S, what="it begins")
    eventually(lambda: step.encode() in log.read_bytes()[known:], within_s=WITHIN_S, what=step)
    victim = cluster.name_of(old if end == "old" else to)
    cluster.kill(victim, agent=True)
    cluster.start(victim, agent=True)
    eventually(lambda: settled(cluster, topic), within_s=WITHIN_S, what=f"{end} killed at {step}")
    assert homes(cluster, topic)[0] == to


@pytest.mark.guarantee("key-order-across-brokers")
def test_partitions_move_under_load_with_agents_killed_and_nothing_is_lost_or_out_of_order(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    with loaded(broken, topic, tmp_path) as (group, _search, ended):
        to = rotated(broken, topic)
        assert begin(broken, topic, to) == {}
        eventually(lambda: settled(broken, topic), within_s=WITHIN_S, what="all moves are finished")
        assert homes(broken, topic) == list(to.values())
        # One end at each step, the other one tomorrow; the model of moves has all ends everywhere.
        for number, step in enumerate(STEPS, tiers.today()):
            killed_at(broken, topic, step, ("old", "next")[number % 2])
        first = broken.brokers[0]
        command(
            broken, tmp_path, "move", topic, *map(str, range(PARTITIONS)), "--to", first, code=3
        )
        assert set(homes(broken, topic)) == {first}
        told = command(broken, tmp_path, "spread", topic, "--yes")
        assert told == f"moved 8 partitions of {topic}\n"
        assert Counter(homes(broken, topic)) == dict.fromkeys(broken.brokers, 4)
        confirmed = ended()
        assert out_of_order(group.first_ends()) == []
    assert sum(map(len, confirmed.values())) > 100


class Relay:
    """A way to a broker that holds up what the broker says by `late_s`, in a thread of its own."""

    def __init__(self, broker: str) -> None:
        self.host, _, port = broker.rpartition(":")
        self._port, self.late_s, self.broker = int(port), 0.0, broker
        self.port: Future[int] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    def __enter__(self) -> Relay:
        self._thread.start()
        self.port.result()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()

    async def _serve(self) -> None:
        self._loop, self._over = asyncio.get_running_loop(), asyncio.Event()
        async with await asyncio.start_server(self._relay, "127.0.0.1", 0) as server:
            self.port.set_result(server.sockets[0].getsockname()[1])
            await self._over.wait()
            server.close()
            await let_accepted_begin()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            answers, asks = await asyncio.open_connection(self.host, self._port)

            async def back() -> None:
                while said := await answers.read(1 << 16):
                    self._loop.call_later(self.late_s, writer.write, said)

            with closing(asks):
                answering = asyncio.create_task(back())
                while asked := await reader.read(1 << 16):
                    asks.write(asked)
                answering.cancel()

    async def dial(self, to: Broker, *args: Any, **settings: Any) -> link.Link:
        """Dial a broker as a publisher does, this one through the relay."""
        if to.name != self.broker:
            return await link.dial_named(to, *args, **settings)
        return await link.dial(Broker("127.0.0.1", self.port.result()), *args, **settings)


@pytest.mark.guarantee("key-order-across-brokers")
def test_nothing_goes_to_the_next_home_before_a_slow_one_has_answered_what_was_sent_to_it(
    broken: LocalCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    bus = bus_config(broken)
    declare(bus, [Topic(topic, partitions=1), f"{topic}/ledger"], timeout_s=60)
    [home] = homes(broken, topic)
    with Relay(home) as relay, Publisher(bus) as publisher:
        monkeypatch.setattr(amqp_wire, "dial_named", relay.dial)
        publisher.send_safe(topic, b"0", key="k", timeout_s=WITHIN_S)
        relay.late_s = LATE_S
        assert begin(broken, topic, rotated(broken, topic)) == {}
        ends, open_s = list[Future[Published]](), math.inf
        while time.monotonic() < open_s + 2 * LATE_S:
            body = b"%d" % (len(ends) + 1)
            ends.append(publisher.submit(topic, body, key="k", timeout_s=WITHIN_S))
            [chain] = chains(broken, topic)
            if chain.is_open and chain.homes[-1].broker != home:
                open_s = min(open_s, time.monotonic())
        assert {end.result(WITHIN_S).outcome for end in ends} == {Outcome.CONFIRMED}
    with Consumer(bus, topic, subscription="ledger", order="key") as consumer:
        numbers = [received(consumer) for _ in range(len(ends) + 1)]
    assert numbers == list(range(len(ends) + 1))


@pytest.mark.guarantee("key-order-across-brokers")
def test_what_holds_up_a_move_is_named_and_holds_up_no_publish_and_no_other_subscription(
    broken: LocalCluster, topic: str
) -> None:
    bus = bus_config(broken)
    declare(bus, [Topic(topic, partitions=1), f"{topic}/ledger", f"{topic}/slow"], timeout_s=60)
    [home], [to] = homes(broken, topic), rotated(broken, topic).values()
    others = [name for name in broken.names if broken.node(name).broker != home]
    with (
        Publisher(bus) as publisher,
        Consumer(bus, topic, subscription="ledger", order="key") as ledger,
    ):
        sent = 0

        def passes() -> None:
            nonlocal sent
            publisher.send_safe(topic, b"%d" % sent, key="k", timeout_s=WITHIN_S)
            assert received(ledger) == sent
            sent += 1

        passes()
        for away, why in (
            (others, "takes no messages, or its agent does not answer"),  # a majority
            ([broken.name_of(home)], "its home"),
        ):
            for name in away:
                broken.kill(name, agent=True)
            assert why in begin(broken, topic, {0: to})[0]
            passes()
            for name in away:
                broken.start(name, agent=True)
        eventually(lambda: begin(broken, topic, {0: to}) == {}, within_s=WITHIN_S)
        eventually(lambda: chains(broken, topic)[0].is_open, within_s=WITHIN_S)
        for _ in range(3):
            passes()
        why = f"its former home {home} still has messages: consume these first"
        eventually(lambda: begin(broken, topic, {0: home}) == {0: why}, within_s=WITHIN_S)
    with Consumer(bus, topic, subscription="slow", order="key") as slow:
        assert [received(slow) for _ in range(sent)] == list(range(sent))
        eventually(lambda: settled(broken, topic), within_s=WITHIN_S)


def abandoning(cluster: LocalCluster, folder: Path, topic: str, home: str) -> subprocess.Popen[str]:
    return begun(cluster, folder, "abandon", topic, "--home", home, "--yes")


def refusal(cluster: LocalCluster, folder: Path, topic: str, home: str) -> str:
    ran = abandoning(cluster, folder, topic, home)
    told = ran.communicate(timeout=WITHIN_S)[1].splitlines()
    assert (ran.returncode, len(told)) == (1, 1), told
    return told[0]


def is_returned(cluster: LocalCluster, broker: str, exchange: str, key: str) -> bool:
    """Return whether a publish at a broker finds no way in, whatever its publisher knows."""
    host, _, port = broker.rpartition(":")
    login = pika.PlainCredentials("bus", cluster.password.reveal())
    to = pika.ConnectionParameters(host, int(port), credentials=login)
    with closing(pika.BlockingConnection(to)) as connection:
        channel = connection.channel()
        channel.confirm_delivery()
        try:
            channel.basic_publish(exchange, key, b"late", mandatory=True)
        except pika.exceptions.UnroutableError:
            return True
    return False


@pytest.mark.guarantee("abandoned-home-is-fenced")
def test_a_lost_home_is_abandoned_and_serves_nothing_of_its_partitions_when_it_is_back(
    broken: LocalCluster, topic: str, tmp_path: Path
) -> None:
    bus = bus_config(broken)
    search = Subscription(Topic(topic), "search", ordered=False)
    whole = Topic(topic, partitions=1)
    declare(bus, [whole, f"{topic}/ledger", f"{topic}/audit", search], timeout_s=60)
    [home] = homes(broken, topic)
    lost = broken.name_of(home)
    first, last = sorted(set(broken.names) - {lost}, key=lambda name: broken.node(name).broker)
    old_list = broken.node(lost).list_file.read_text()
    with (
        Publisher(bus) as publisher,
        Consumer(bus, topic, subscription="audit", order="key") as audit,
    ):

        def publish(*numbers: int) -> None:
            for number in numbers:
                publisher.send_safe(topic, b"%d" % number, key="k", timeout_s=WITHIN_S)

        def is_refused(why: str) -> None:
            eventually(lambda: why in refusal(broken, tmp_path, topic, home), within_s=WITHIN_S)

        publish(0, 1, 2)
        assert [received(audit) for _ in range(3)] == [0, 1, 2]
        is_refused(f"{home} is on the list")
        write_list(broken, [first, last])
        is_refused(f"gets an answer of {home}: put it on the list again")
        broken.kill(lost)
        broken.kill(lost, agent=True)
        broken.kill(last, agent=True)
        is_refused(f"all agents of the list have to agree: that of {broken.node(last).broker}")
        broken.start(last, agent=True)

        log = broken.layout.log_file(f"{first}-agent")
        known = log.stat().st_size
        operators = [abandoning(broken, tmp_path, topic, home) for _ in range(2)]
        line = f"abandoned topic={topic} ".encode()
        eventually(lambda: line in log.read_bytes()[known:], within_s=WITHIN_S, what="it begins")
        broken.kill(first, agent=True)
        broken.start(first, agent=True)
        for each in (*operators, abandoning(broken, tmp_path, topic, home)):
            told = each.communicate(timeout=2 * WITHIN_S)
            wanted = f"1 partition of {topic}: what nobody consumed on {home} is lost\n"
            assert (each.returncode, told[0]) == (0, wanted), told
        publish(3)
        assert received(audit) == 3
        known_by_all = chains(broken, topic, at=first)
        [chain] = known_by_all
        assert (set(chain.lost), chain.is_open) == ({Home(home)}, True)
        assert chain.homes[-1].broker in (broken.node(first).broker, broken.node(last).broker)
        assert f"lost: 1@{home}" in command(broken, tmp_path, "show", topic)

        broken.node(lost).list_file.write_text(old_list)  # as of before: it has missed all that
        broken.start(lost)
        broken.start(lost, agent=True)
        eventually(lambda: metric(broken, lost, "gate_open") == 1, within_s=WITHIN_S)
        assert is_returned(broken, home, f"mb.part/{topic}", "0.1")
        assert not queue_exists(broken, lost, f"mb.seg/{topic}/ledger/0.1")
        for at in broken.names:
            assert chains(broken, topic, at=at) == known_by_all
        write_list(broken, broken.names)
        eventually(lambda: begin(broken, topic, {0: home}) == {}, within_s=WITHIN_S)
        with Consumer(bus, topic, subscription="ledger", order="key") as ledger:
            assert received(ledger) == 3
            eventually(lambda: settled(broken, topic), within_s=WITHIN_S)
            assert homes(broken, topic) == [home]
            publish(4)
            assert received(ledger) == received(audit) == 4
        with Consumer(bus, search) as unordered:
            assert {received(unordered) for _ in range(5)} == set(range(5))


def received(consumer: Consumer) -> int:
    delivery = consumer.receive(WITHIN_S)
    assert delivery is not None
    consumer.ack(delivery)
    return int(delivery.body)

"""`messagebus forward` in memory: what arrives at the next site, and what happens while it is away."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from messagebus import BusConfig, ConsumerConfig, Durability, Message, PublisherConfig, Topic
from messagebus.__main__ import cli
from messagebus._io.amqp.copy_headers import to_forward
from messagebus._io.amqp.properties import decode, encode, has_priority, read_headers
from messagebus._io.publish.door import MemoryDoor
from messagebus._io.publish.targets import Target
from messagebus.admin import directory
from messagebus.aio import AsyncConsumer
from messagebus.commands.exits import Exit
from messagebus.core.ends import REFUSED_FOR_EVER
from messagebus.core.path import HOPS_MAX
from messagebus.message import BODY_BYTES_MAX, Delivery
from messagebus.testing import MemoryBus
from messagebus.tools import foreign
from messagebus.tools import forward as module
from messagebus.tools.forward import Forwarder, NextSite, Publishes, site_of
from tests.support.eventually import eventually_async

WITHIN_S, NEVER_S = 60.0, 3_600.0
TOPIC = "orders"
ORDERED = ConsumerConfig(order="key")


class Sites:
    """Sites in memory, each with a reader of the topic, and forwarders between them."""

    def __init__(self, names: str) -> None:
        self.buses = {name: MemoryBus(brokers=2) for name in names}
        for bus in self.buses.values():
            bus.declare(f"{TOPIC}/all")

    def forwarder(
        self,
        line: str,
        *,
        config: ConsumerConfig | None = None,
        hold_s: float = 60.0,
        hops_max: int = HOPS_MAX,
    ) -> Forwarder:
        here, there = line[0], line[1]
        subscription = f"forward-{there}"
        self.buses[here].declare(f"{TOPIC}/{subscription}")
        consumers = partial(
            self.buses[here].async_consumer, TOPIC, subscription=subscription, config=config
        )
        # A short deadline: a publish that finds no broker ends, and is repeated.
        publishing = PublisherConfig(deadline_s=0.2)
        return Forwarder(
            consumers,
            partial(self.buses[there].async_publisher, publishing),
            TOPIC,
            NextSite(here, there, hops_max),
            name=line,
            hold_s=hold_s,
        )

    def send(self, site: str, *payloads: Message | bytes) -> list[str]:
        with self.buses[site].publisher() as publisher:
            return [publisher.send_safe(TOPIC, each).message_id for each in payloads]

    def arrived(self, site: str) -> list[Message]:
        return self.buses[site].published(TOPIC)

    def ids(self, site: str) -> Counter[str]:
        return Counter(each.message_id for each in self.arrived(site))

    def unforwarded(self, line: str) -> int:
        return self.buses[line[0]].waiting(TOPIC, f"forward-{line[1]}")


@pytest.fixture
def make_sites(monkeypatch: pytest.MonkeyPatch) -> type[Sites]:
    monkeypatch.setattr(module, "AGAIN_S", 0.01)
    monkeypatch.setattr(module, "LOOK_S", 0.01)
    monkeypatch.setattr(module, "LINE_S", 5.0)
    return Sites


@contextlib.asynccontextmanager
async def running(*forwarders: Forwarder) -> AsyncIterator[None]:
    stopped = asyncio.Event()
    tasks = [asyncio.create_task(each.run(stopped)) for each in forwarders]
    try:
        # Both sides must be there at the start.
        await eventually_async(
            lambda: all(
                each.is_started or task.done() for each, task in zip(forwarders, tasks, strict=True)
            ),
            within_s=WITHIN_S,
        )
        yield
        assert not any(task.done() for task in tasks), [
            task.exception() for task in tasks if task.done()
        ]
        stopped.set()
        async with asyncio.timeout(WITHIN_S):
            assert await asyncio.gather(*tasks) == [0] * len(tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def read_all(bus: MemoryBus, count: int) -> list[Delivery]:
    async with bus.async_consumer(TOPIC, subscription="all") as consumer:
        found: list[Delivery] = []
        while len(found) < count and (delivery := await consumer.receive(WITHIN_S)):
            consumer.ack(delivery)
            found.append(delivery)
        return found


FULL = Message(
    body=b"\x00body",
    content_type="application/x-of-a-shop",
    message_id="an-id",
    headers={
        "text": "grün",
        "number": -(1 << 40),
        "flag": True,
        "none": None,
        "bytes": b"\xff",
        "list": [1, "two", {"three": 3}],
        "table": {"deep": {"deeper": 1}},
    },
    key="customer-17",
    priority=3,
    correlation_id="c",
    reply_to="r",
    type="t",
    ttl_s=60.0,
    content_encoding="gzip",
    app_id="shop",
)


@pytest.mark.guarantee("forwarded-at-least-once")
async def test_a_message_arrives_with_its_id_and_all_that_its_publisher_said(
    make_sites: type[Sites],
) -> None:
    sites = make_sites("ab")
    async with running(sites.forwarder("ab")):
        await asyncio.to_thread(sites.send, "a", FULL)
        (delivery,) = await read_all(sites.buses["b"], 1)
    assert delivery.message == FULL
    assert delivery.path == ("a",)
    assert sites.unforwarded("ab") == 0
    sites.buses["a"].assert_answered(TOPIC, "forward-b", count=1)


async def test_the_age_of_a_message_counts_from_its_first_publish(make_sites: type[Sites]) -> None:
    sites = make_sites("ab")
    forwarder = sites.forwarder("ab")
    await asyncio.to_thread(sites.send, "a", b"x")
    (first,) = await read_all(sites.buses["a"], 1)
    async with running(forwarder):
        (second,) = await read_all(sites.buses["b"], 1)
    assert second.first_ms == first.first_ms
    assert first.path == ()


def test_headers_of_other_clients_that_a_message_of_ours_may_not_have_pass_byte_by_byte() -> None:
    entries = b"".join(
        (
            b"\x05ratiod" + struct.pack(">d", 0.25),
            b"\x04tinyb\x07",
            b"\x04time" + b"T" + struct.pack(">Q", 17),
            b"\x04listA" + struct.pack(">I", 9) + b"d" + struct.pack(">d", 0.5),
            b"\x06mb-keyS" + struct.pack(">I", 2) + b"\xff\xfe",
        )
    )
    left = b"\x0amb-attemptb\x03" + b"\x07mb-pathS" + struct.pack(">I", 1) + b"z"
    table = entries + left
    raw = b"\x20\x00" + struct.pack(">I", len(table)) + table
    message = to_forward(raw, decode(raw, b""), "an-id", "a,b", 17)
    again = encode(message, "an-id", 0)
    assert entries in again
    assert left not in again
    assert {**read_headers(again)}.items() >= {"mb-path": "a,b", "mb-first-ms": 17}.items()


@pytest.mark.guarantee("forward-loops-end")
@pytest.mark.parametrize(
    ("names", "lines"), [("ab", ["ab", "ba"]), ("abc", ["ab", "bc", "ca"])], ids=["two", "three"]
)
async def test_in_a_circle_of_sites_each_gets_a_message_once_and_then_it_ends(
    make_sites: type[Sites], names: str, lines: list[str]
) -> None:
    sites = make_sites(names)
    forwarders = [sites.forwarder(line) for line in lines]
    async with running(*forwarders):
        sent = Counter[str]()
        for name in names:
            sent.update(await asyncio.to_thread(sites.send, name, *[b"x"] * 20))
        await eventually_async(
            lambda: all(sites.ids(name).keys() == sent.keys() for name in names), within_s=WITHIN_S
        )
        # Each was passed over where it would have come back.
        await eventually_async(
            lambda: sum(each.passed_over for each in forwarders) == sent.total(), within_s=WITHIN_S
        )
        assert not any(map(sites.unforwarded, lines))
    assert [sites.ids(name) for name in names] == [sent] * len(names)


async def test_with_one_hop_only_messages_that_were_published_here_go_on(
    make_sites: type[Sites],
) -> None:
    sites = make_sites("abc")
    lines = ["ab", "ac", "ba", "bc", "ca", "cb"]
    forwarders = [sites.forwarder(line, hops_max=1) for line in lines]
    async with running(*forwarders):
        sent = Counter(await asyncio.to_thread(sites.send, "a", *[b"x"] * 10))
        await eventually_async(
            lambda: sum(each.passed_over for each in forwarders) == 4 * 10, within_s=WITHIN_S
        )
    assert [sites.ids(name) for name in "abc"] == [sent] * 3


@pytest.mark.guarantee("forwarded-at-least-once")
async def test_messages_wait_at_their_site_while_the_next_is_away_and_none_is_lost(
    make_sites: type[Sites], caplog: pytest.LogCaptureFixture
) -> None:
    sites = make_sites("ab")
    forwarder = sites.forwarder("ab", hold_s=0.3)
    async with running(forwarder):
        sent = Counter(await asyncio.to_thread(sites.send, "a", *[b"x"] * 50))
        await eventually_async(lambda: sites.ids("b").keys() == sent.keys(), within_s=WITHIN_S)
        sites.buses["b"].stop_brokers()
        sent.update(await asyncio.to_thread(sites.send, "a", *[b"y"] * 300))
        # Given back: nobody holds them, so the page shows them as waiting.
        await eventually_async(lambda: sites.unforwarded("ab") == 300, within_s=WITHIN_S)
        sites.buses["b"].start_brokers()
        await eventually_async(lambda: sites.ids("b").keys() == sent.keys(), within_s=WITHIN_S)
        await eventually_async(lambda: not sites.unforwarded("ab"), within_s=WITHIN_S)
    assert "forwarding waits way=ab" in caplog.text
    assert "forwarding again way=ab" in caplog.text
    assert caplog.text.count("forwarding waits") == 1, "at most one line a minute"


async def test_one_publisher_waits_for_the_next_site_and_a_stop_does_not_wait_for_it(
    make_sites: type[Sites], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Each publisher logs by itself, once a minute, that it reaches no broker."""
    monkeypatch.setattr(module, "AWAY_S", NEVER_S)
    sites, spells = make_sites("ab"), [0]
    forwarder = sites.forwarder("ab", hold_s=0.05)
    make = forwarder._publishers

    def counted() -> Publishes:
        spells[0] += 1
        return make()

    forwarder._publishers = counted
    stopped = asyncio.Event()
    work = asyncio.create_task(forwarder.run(stopped))
    await eventually_async(lambda: forwarder.is_started, within_s=WITHIN_S)
    sites.buses["b"].stop_brokers()
    await asyncio.to_thread(sites.send, "a", *[b"x"] * 10)
    await eventually_async(
        lambda: spells[0] == 2 and sites.unforwarded("ab") == 10, within_s=WITHIN_S
    )
    await eventually_async(lambda: caplog.text.count("no answer yet from") == 2, within_s=WITHIN_S)
    stopped.set()
    assert await asyncio.wait_for(work, WITHIN_S) == 0
    assert spells[0] == 2


@pytest.mark.guarantee("forwarded-at-least-once")
async def test_nothing_is_acked_that_the_next_site_did_not_confirm(
    make_sites: type[Sites],
) -> None:
    """Refused, unconfirmed, and without a subscription: each is tried again under its id."""
    sites = make_sites("ab")
    sites.buses["b"].refuse_next(TOPIC, 5)
    forwarder = sites.forwarder("ab", hold_s=0.3)
    async with running(forwarder):
        sent = Counter(await asyncio.to_thread(sites.send, "a", *[b"x"] * 20))
        await eventually_async(lambda: sites.ids("b") == sent, within_s=WITHIN_S)
        sites.buses["b"].freeze()
        sent.update(await asyncio.to_thread(sites.send, "a", *[b"y"] * 20))
        await eventually_async(lambda: forwarder._is_waiting, within_s=WITHIN_S)
        assert forwarder.forwarded == 20
        sites.buses["b"].thaw()
        await eventually_async(lambda: sites.ids("b").keys() == sent.keys(), within_s=WITHIN_S)


async def test_both_lines_are_cut_in_turn_and_every_site_has_every_message(
    make_sites: type[Sites],
) -> None:
    sites = make_sites("ab")
    async with running(*(sites.forwarder(line, hold_s=0.1) for line in ("ab", "ba"))):
        sent = Counter[str]()
        for away in "abab":
            sites.buses[away].stop_brokers()
            there = "b" if away == "a" else "a"
            sent.update(await asyncio.to_thread(sites.send, there, *[b"x"] * 30))
            sites.buses[away].start_brokers()
        for name in "ab":
            await eventually_async(
                lambda name=name: sites.ids(name).keys() == sent.keys(),  # type: ignore[misc]
                within_s=WITHIN_S,
            )
        # A stop waits for confirms no longer than its grace, which a busy machine may need for other things.
        await eventually_async(
            lambda: not any(map(sites.unforwarded, ("ab", "ba"))), within_s=WITHIN_S
        )


async def test_several_forwarders_share_the_messages(make_sites: type[Sites]) -> None:
    sites = make_sites("ab")
    forwarders = [sites.forwarder("ab") for _ in range(3)]
    async with running(*forwarders):
        sent = Counter(await asyncio.to_thread(sites.send, "a", *[b"x"] * 600))
        await eventually_async(lambda: sites.ids("b").keys() == sent.keys(), within_s=WITHIN_S)
    assert all(each.forwarded for each in forwarders)


async def test_messages_of_a_key_arrive_in_their_order_though_some_are_refused(
    make_sites: type[Sites],
) -> None:
    sites = make_sites("ab")
    for bus in sites.buses.values():
        bus.stop_brokers(bus.brokers[1])  # order is that of one broker
    sites.buses["b"].refuse_next(TOPIC, 10)
    messages = [Message(body=b"%d" % n, key=f"k{n % 5}") for n in range(100)]
    async with running(sites.forwarder("ab", config=ORDERED)):
        await asyncio.to_thread(sites.send, "a", *messages)
        await eventually_async(lambda: len(sites.arrived("b")) == 100, within_s=WITHIN_S)
    for key in {each.key for each in messages}:
        bodies = [int(each.body) for each in sites.arrived("b") if each.key == key]
        assert bodies == sorted(bodies)


@pytest.mark.parametrize("what", ["body", "properties"])
async def test_what_no_broker_would_take_is_parked_and_the_rest_goes_on(
    make_sites: type[Sites], what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = make_sites("ab")
    monkeypatch.setattr(
        foreign, "BODY_BYTES_MAX" if what == "body" else "PROPERTIES_BYTES_MAX", 300
    )
    large = (
        Message(body=b"x" * 301)
        if what == "body"
        else Message(body=b"", reply_to="r" * 250, app_id="a" * 60)
    )
    forwarder = sites.forwarder("ab")
    async with running(forwarder):
        await asyncio.to_thread(sites.send, "a", large, b"fits")
        await eventually_async(lambda: len(sites.arrived("b")) == 1, within_s=WITHIN_S)
        await eventually_async(lambda: forwarder.parked == 1, within_s=WITHIN_S)
    assert [each.body for each in sites.arrived("b")] == [b"fits"]
    assert len(sites.buses["a"].parked(TOPIC, "forward-b")) == 1
    assert BODY_BYTES_MAX == 16 * 1024 * 1024


async def test_what_raises_when_it_is_published_is_parked_and_the_rest_goes_on(
    make_sites: type[Sites],
) -> None:
    sites = make_sites("ab")
    forwarder = sites.forwarder("ab")
    translate = forwarder._translate

    def break_one(delivery: Delivery) -> Message | None:
        message = translate(delivery)
        if delivery.body == b"broken":
            object.__setattr__(message, "priority", 1_000)  # no byte
        return message

    forwarder._translate = break_one
    async with running(forwarder):
        await asyncio.to_thread(sites.send, "a", b"broken", b"fits")
        await eventually_async(lambda: len(sites.arrived("b")) == 1, within_s=WITHIN_S)
        await eventually_async(lambda: forwarder.parked == 1, within_s=WITHIN_S)
    assert len(sites.buses["a"].parked(TOPIC, "forward-b")) == 1


@pytest.mark.parametrize("reason", REFUSED_FOR_EVER)
async def test_what_the_next_site_refuses_at_every_try_is_parked_and_the_rest_goes_on(
    make_sites: type[Sites], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sites = make_sites("ab")
    forwarder = sites.forwarder("ab")
    await asyncio.to_thread(sites.send, "a", Message(body=b"refused", priority=3), b"fits")

    def fault_of(_door: MemoryDoor, target: Target, properties: bytes) -> str:
        is_it = has_priority(properties) and target.address.exchange == f"mb.topic/{TOPIC}"
        return f"{reason} at all" if is_it else ""

    monkeypatch.setattr(MemoryDoor, "fault_of", fault_of)
    async with running(forwarder):
        await eventually_async(lambda: len(sites.arrived("b")) == 1, within_s=WITHIN_S)
        await eventually_async(lambda: forwarder.parked == 1, within_s=WITHIN_S)
    assert len(sites.buses["a"].parked(TOPIC, "forward-b")) == 1


async def test_a_stop_waits_for_the_confirms_of_what_is_on_its_way(make_sites: type[Sites]) -> None:
    sites = make_sites("ab")
    forwarder = sites.forwarder("ab")
    stopped = asyncio.Event()
    task = asyncio.create_task(forwarder.run(stopped))
    sent = Counter(await asyncio.to_thread(sites.send, "a", *[b"x"] * 200))
    await eventually_async(lambda: forwarder.forwarded > 0, within_s=WITHIN_S)
    stopped.set()
    assert await task == 0
    left = sites.unforwarded("ab")
    assert sites.ids("b").total() + left == sent.total(), "neither twice nor lost"


async def test_a_consumer_that_is_lost_with_what_it_delivered_sends_it_again_under_its_id(
    make_sites: type[Sites],
) -> None:
    sites = make_sites("ab")
    forwarder = sites.forwarder("ab", hold_s=0.3)
    async with running(forwarder):
        sent = Counter(await asyncio.to_thread(sites.send, "a", b"first"))
        await eventually_async(lambda: sites.ids("b") == sent, within_s=WITHIN_S)
        sites.buses["b"].freeze()
        sent.update(await asyncio.to_thread(sites.send, "a", *[b"x"] * 20))
        await eventually_async(lambda: forwarder._is_waiting, within_s=WITHIN_S)
        sites.buses["a"].lose_connection()
        sites.buses["b"].thaw()
        await eventually_async(lambda: sites.ids("b").keys() == sent.keys(), within_s=WITHIN_S)
        await eventually_async(lambda: not sites.unforwarded("ab"), within_s=WITHIN_S)


# The command.
def settings(folder: Path, text: str) -> str:
    path = folder / "there.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize(
    ("here", "there", "topics", "told"),
    [
        (
            {},
            "cluster = 'b'",
            ["orders"],
            "this bus: `cluster` is not set; it is the name of the site",
        ),
        ({"cluster": "a"}, "vhost = '/'", ["orders"], "`cluster` is not set"),
        ({"cluster": "a"}, "cluster = 'a'", ["orders"], "the other site is 'a', as this one"),
        ({"cluster": "a"}, "cluster = 'b'", ["queue:jobs"], "only topics are forwarded"),
        ({"cluster": "a"}, "cluster = 'b'", ["orders", "--durability", "none"], "durability none"),
        (
            {"cluster": "a", "consumer_at_most_once": "1"},
            "cluster = 'b'",
            ["orders"],
            "at_most_once",
        ),
        ({"cluster": "a,b"}, "cluster = 'b'", ["orders"], "cluster 'a,b'"),
        ({"cluster": "a"}, "clutser = 'b'", ["orders"], "clutser"),
    ],
)
def test_settings_that_cannot_work_are_refused_in_one_line(
    here: dict[str, str],
    there: str,
    topics: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in here.items():
        monkeypatch.setenv(f"MESSAGEBUS_{name.upper()}", value)
    monkeypatch.setattr(directory, "reach", lambda *_args, **_options: None)
    done = CliRunner().invoke(cli, ["forward", *topics, "--to-bus", settings(tmp_path, there)])
    assert done.exit_code == Exit.USAGE
    assert told in done.output
    assert done.output.count("\n") == 1


def test_the_name_of_a_site_is_that_of_its_cluster() -> None:
    assert site_of(BusConfig(cluster="paris"), "this bus") == "paris"


def test_a_topic_without_confirms_is_refused_and_others_keep_their_durability() -> None:
    found = module._topic("orders", Durability.PAGE_CACHE)
    assert (found, found.durability) == (Topic("orders"), Durability.PAGE_CACHE)


def test_a_consumer_of_a_forwarder_is_an_ordinary_one() -> None:
    assert isinstance(
        Sites("a").buses["a"].async_consumer("orders", subscription="x"), AsyncConsumer
    )

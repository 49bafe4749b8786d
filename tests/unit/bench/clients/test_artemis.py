from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.clients import artemis
from bench.clients.artemis import (
    NODES,
    Frame,
    Link,
    Receiver,
    Sender,
    broker_xml,
    durability,
    parse,
)
from bench.errors import BenchError
from bench.harness.interface import Where
from bench.harness.outcomes import CONFIRMED, UNKNOWN
from bench.load.profile import Profile
from tests.support.results import profile_with

CORE = "{urn:activemq:core}"
HOSTS = ["127.0.0.201", "127.0.0.202"]


def two_topics(**system: Any) -> Profile:
    return profile_with(
        {"publishers": 2, "consumers": 4},
        system={"name": "artemis", "brokers": 2} | system,
        messages={"topics": 2, "subscriptions": 2},
    )


def core(number: int = 1, **system: Any) -> ElementTree.Element:
    text = broker_xml(number, HOSTS, Path("/own"), two_topics(**system))
    found = ElementTree.fromstring(text).find(f"{CORE}core")
    assert found is not None
    return found


def test_every_topic_is_an_address_with_a_queue_for_every_subscription() -> None:
    addresses = core().findall(f"{CORE}addresses/{CORE}address")
    queues = {
        each.get("name"): [queue.get("name") for queue in each.iter(f"{CORE}queue")]
        for each in addresses
    }
    assert queues == {
        "load0": ["load0.sink0", "load0.sink1"],
        "load1": ["load1.sink0", "load1.sink1"],
    }


def test_durability_decides_whether_the_journal_is_synced_and_is_said() -> None:
    for level, syncs in (("fsync", "true"), ("page-cache", "false")):
        assert core(durability=level).findtext(f"{CORE}journal-datasync") == syncs
    assert durability(two_topics()).startswith("fsynced by one broker")
    assert "not fsynced" in durability(two_topics(durability="page-cache"))


def test_nodes_of_a_cluster_know_the_others_and_standalone_nodes_nobody() -> None:
    assert core().find(f"{CORE}cluster-connections") is None
    found = core(2, name="artemis-cluster")
    hosts = [each.text for each in found.findall(f"{CORE}connectors/{CORE}connector")]
    assert hosts == ["tcp://127.0.0.201:61616", "tcp://127.0.0.202:61616"]
    (connection,) = found.iter(f"{CORE}cluster-connection")
    own = connection.findtext(f"{CORE}connector-ref")
    others = [each.text for each in connection.iter(f"{CORE}connector-ref")]
    assert own == "node-2"
    assert others == ["node-2", "node-1"]


# Frames as Artemis 2.40 writes them.
RECEIPT = b"RECEIPT\nreceipt-id:17\n\n\x00\n"
MESSAGE = b"MESSAGE\nsubscription:0\ncontent-length:4\nack:56,16\n\nx\x00y\n\x00\n"


def test_frames_are_read_with_bodies_of_any_bytes() -> None:
    frames, rest = parse(RECEIPT + MESSAGE)
    assert frames == [
        Frame(b"RECEIPT", {b"receipt-id": b"17"}, b""),
        Frame(
            b"MESSAGE",
            {b"subscription": b"0", b"content-length": b"4", b"ack": b"56,16"},
            b"x\x00y\n",
        ),
    ]
    assert rest == b""


@given(st.lists(st.sampled_from([RECEIPT, MESSAGE]), max_size=5), st.data())
def test_it_does_not_matter_where_the_bytes_are_cut(
    parts: list[bytes], data: st.DataObject
) -> None:
    stream = b"".join(parts)
    found, rest, at = [], b"", 0
    while at < len(stream):
        step = data.draw(st.integers(1, len(stream)))
        frames, rest = parse(rest + stream[at : at + step])
        found += frames
        at += step
    assert found == parse(stream)[0]
    assert len(found) == len(parts)


def test_of_a_header_that_comes_twice_the_first_counts() -> None:
    frames, _ = parse(b"MESSAGE\nreceipt:1\nreceipt:2\n\n\x00")
    assert frames[0].headers[b"receipt"] == b"1"


class FakeLink(Link):
    """Link that keeps the written frames and answers as told."""

    def __init__(self, broker: str, on_frames: Callable[[list[Frame]], None]) -> None:
        super().__init__(broker, on_frames)
        self.written: list[Frame] = []
        self.says = self._on_frames

    def write(self, data: bytes) -> None:
        self.written += parse(data)[0]

    def close(self) -> None: ...


@pytest.fixture
def links(monkeypatch: pytest.MonkeyPatch) -> dict[str, FakeLink]:
    found: dict[str, FakeLink] = {}

    async def opened(broker: str, on_frames: Callable[[list[Frame]], None]) -> Link:
        return found.setdefault(broker, FakeLink(broker, on_frames))

    monkeypatch.setattr(artemis, "opened", opened)
    return found


def profile(name: str = "artemis", **load: Any) -> Profile:
    return profile_with(load, system={"name": name, "brokers": 2})


def where(number: int = 0) -> Where:
    return Where("one", "load0", "sink0", {NODES: "a:1,b:1"}, number)


def receipt(number: int) -> Frame:
    return Frame(b"RECEIPT", {b"receipt-id": b"%d" % number}, b"")


def message(body: bytes, ack: bytes) -> Frame:
    return Frame(b"MESSAGE", {b"ack": ack}, body)


def test_a_receipt_confirms_one_message_and_the_end_leaves_the_others_unknown(
    links: dict[str, FakeLink],
) -> None:
    async def work() -> dict[int, int]:
        sender = Sender(profile(), where(1))
        await sender.open()
        for number in range(3):
            await sender.send(number, b"body", "")
        links["b:1"].says([receipt(1)])
        await sender.close(0.0)
        return {end.sequence: end.outcome for end in sender.ends()}

    assert asyncio.run(work()) == {1: CONFIRMED, 0: UNKNOWN, 2: UNKNOWN}
    sent = links["b:1"].written
    assert {each.headers[b"persistent"] for each in sent} == {b"true"}


def test_a_full_window_waits_for_a_receipt(links: dict[str, FakeLink]) -> None:
    async def work() -> tuple[bool, int]:
        sender = Sender(profile(window=1), where())
        await sender.open()
        await sender.send(0, b"", "")
        second = asyncio.create_task(sender.send(1, b"", ""))
        await asyncio.sleep(0)
        waited = not second.done()
        links["a:1"].says([receipt(0)])
        await second
        return waited, len(links["a:1"].written)

    assert asyncio.run(work()) == (True, 2)


def test_a_broker_that_hangs_up_ends_the_load(links: dict[str, FakeLink]) -> None:
    async def work() -> None:
        sender = Sender(profile(), where())
        await sender.open()
        links["a:1"].connection_lost(None)
        await sender.send(0, b"", "")

    with pytest.raises(BenchError, match="a:1: it hung up"):
        asyncio.run(work())


def test_a_consumer_is_connected_to_every_standalone_node_and_to_one_of_a_cluster(
    links: dict[str, FakeLink],
) -> None:
    asyncio.run(Receiver(profile("artemis-cluster"), where(1)).open())
    assert list(links) == ["b:1"]
    asyncio.run(Receiver(profile(), where()).open())
    assert sorted(links) == ["a:1", "b:1"]


@pytest.mark.parametrize(
    ("ack", "wanted"), [("each", [b"1", b"2", b"3"]), ("many", [b"2", b"3"]), ("none", [])]
)
def test_deliveries_are_answered_as_the_profile_says(
    ack: str, wanted: list[bytes], links: dict[str, FakeLink]
) -> None:
    async def work() -> list[bytes]:
        receiver = Receiver(profile(ack=ack, prefetch=8), where())
        await receiver.open()
        links["a:1"].says([message(b"x", b"1"), message(b"y", b"2"), message(b"z", b"3")])
        return [each.body for each in await receiver.take(0.0)]

    assert asyncio.run(work()) == [b"x", b"y", b"z"]
    subscribed, *answers = links["a:1"].written
    assert subscribed.headers[b"destination"] == b"load0\\c\\cload0.sink0"
    assert [each.headers[b"id"] for each in answers] == wanted

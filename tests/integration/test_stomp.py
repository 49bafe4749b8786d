"""Programs that speak STOMP, on RabbitMQ's own plug-in: as far as docs/howto/stomp.md says."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import pytest
import stomp

from messagebus import Consumer, Publisher, Subscription, Topic, Unroutable
from messagebus.admin.directory import declare
from ops.local import files
from ops.local.cluster import LocalCluster
from ops.local.layout import Layout, NodeLayout
from ops.provision.wanted import plugins_text
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually
from tests.support.faults import bus_config

COUNT = 20
WITHIN_S = 60.0
PORT = 61613  # each broker has an address of its own


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> LocalCluster:
    """Two brokers with the plug-in."""
    plain = files.broker_config

    def with_listener(layout: Layout, node: NodeLayout) -> str:
        listener = f'{{rabbitmq_stomp, [{{tcp_listeners, [{{"{node.host}", {PORT}}}]}}]}}'
        return plain(layout, node).rstrip().removesuffix("\n].") + f",\n {listener}\n].\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "broker_config", with_listener)
        patch.setattr(files, "plugins_text", lambda: plugins_text(("stomp",)))
        return make_cluster(brokers=2)


class Frames(stomp.ConnectionListener):  # type: ignore[misc]
    """Frames of one connection."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Any] = queue.Queue()
        self.errors: queue.Queue[Any] = queue.Queue()
        self.receipts: set[str] = set()

    def on_message(self, frame: Any) -> None:
        self.messages.put(frame)

    def on_error(self, frame: Any) -> None:
        self.errors.put(frame)

    def on_receipt(self, frame: Any) -> None:
        self.receipts.add(frame.headers["receipt-id"])


@contextmanager
def connected(cluster: LocalCluster, host: str) -> Iterator[tuple[stomp.Connection12, Frames]]:
    frames = Frames()
    connection = stomp.Connection12([(host, PORT)], heartbeats=(10_000, 10_000), vhost="/")
    connection.set_listener("", frames)
    connection.connect("bus", cluster.password.reveal(), wait=True)
    try:
        yield connection, frames
    finally:
        with suppress(stomp.exception.NotConnectedException):  # after an error the broker hangs up
            connection.disconnect()


def hosts(cluster: LocalCluster) -> list[str]:
    """Return the hosts of all brokers, from the list as any client fetches it."""
    lines = httpx.get(cluster.list_url).text.splitlines()
    return [line.split()[0].rpartition(":")[0] for line in lines if line and line[0] != "#"]


def test_a_consumer_by_stomp_gets_and_acks_what_every_broker_holds(cluster: LocalCluster) -> None:
    bus = bus_config(cluster)
    declare(bus, ["read", "read/stomp"])
    with Publisher(bus) as publisher:
        sent = {
            publisher.send_safe("read", b"x" * 100, headers={"n": n}).message_id
            for n in range(COUNT)
        }
    got: dict[str, Any] = {}
    with ExitStack() as stack:
        opened = [stack.enter_context(connected(cluster, host)) for host in hosts(cluster)]
        assert len(opened) == len(cluster.names)
        for connection, _ in opened:
            where = "/amq/queue/mb.sub%2Fread%2Fstomp"
            prefetch = {"prefetch-count": "10"}
            connection.subscribe(where, id="1", ack="client-individual", headers=prefetch)

        def all_came() -> bool:
            for connection, frames in opened:
                while not frames.messages.empty():
                    frame = frames.messages.get()
                    got[frame.headers["amqp-message-id"]] = frame
                    connection.ack(frame.headers["ack"])
            return got.keys() == sent

        eventually(all_came, within_s=WITHIN_S)
        assert all(frames.errors.empty() for _, frames in opened)
    assert {frame.headers["n"] for frame in got.values()} == {str(n) for n in range(COUNT)}
    with Consumer(bus, Subscription(Topic("read"), "stomp")) as consumer:
        assert consumer.receive(timeout_s=1) is None


def test_a_publisher_by_stomp_has_a_receipt_and_its_id_and_properties_arrive(
    cluster: LocalCluster,
) -> None:
    bus = bus_config(cluster)
    declare(bus, ["written", "written/py"])
    host = hosts(cluster)[0]
    with connected(cluster, host) as (connection, frames):
        for n in range(COUNT):
            connection.send(
                "/exchange/mb.topic%2Fwritten",
                f"body {n}",
                content_type="text/plain",
                headers={
                    "persistent": "true",
                    "amqp-message-id": f"id-{n}",
                    "receipt": f"r{n}",
                    "shop": "blue",
                },
            )
        eventually(lambda: len(frames.receipts) == COUNT, within_s=WITHIN_S)
    with Consumer(bus, Subscription(Topic("written"), "py")) as consumer:
        for _ in range(COUNT):
            delivery = consumer.receive(timeout_s=WITHIN_S)
            assert delivery is not None
            number = delivery.message_id.removeprefix("id-")
            assert delivery.body == f"body {number}".encode()
            assert delivery.headers["shop"] == "blue"
            assert delivery.broker.startswith(host)
            consumer.ack(delivery)


def test_a_publisher_by_stomp_is_not_told_that_nobody_subscribes(cluster: LocalCluster) -> None:
    """It is the reason for which it asks first whether the topic is complete."""
    bus = bus_config(cluster)
    declare(bus, ["alone"])
    with connected(cluster, hosts(cluster)[0]) as (connection, frames):
        connection.send("/exchange/mb.topic%2Falone", "x", headers={"receipt": "r"})
        eventually(lambda: "r" in frames.receipts, within_s=WITHIN_S)
    with Publisher(bus) as publisher, pytest.raises(Unroutable):
        publisher.send_safe("alone", b"x")


@pytest.mark.parametrize("where", ["/queue/own", "/topic/own", "/amq/queue/mb.ready"])
def test_what_is_not_of_the_bus_is_refused_to_a_user_of_the_bus(
    cluster: LocalCluster, where: str
) -> None:
    with connected(cluster, hosts(cluster)[0]) as (connection, frames):
        connection.subscribe(where, id="1", ack="client-individual")
        assert frames.errors.get(timeout=WITHIN_S).headers["message"] == "access_refused"

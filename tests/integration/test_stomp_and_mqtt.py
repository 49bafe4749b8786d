"""Programs that speak STOMP or MQTT, on RabbitMQ's own plug-ins: as far as docs/guides/stomp.md says."""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import httpx
import paho.mqtt.client as mqtt
import pika
import pytest
import stomp
from paho.mqtt.enums import CallbackAPIVersion

from messagebus import (
    BusConfig,
    Consumer,
    Publisher,
    RegistrationIncomplete,
    Subscription,
    Topic,
    Unroutable,
)
from messagebus.admin.directory import declare
from ops.local import files
from ops.local.cluster import LocalCluster
from ops.local.layout import Layout, NodeLayout
from ops.provision.wanted import RIGHTS, plugins_text
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually
from tests.support.faults import agent_answer, bus_config

COUNT = 20
WITHIN_S = 60.0
PORT = 61613  # each broker has an address of its own
MQTT_PORT = 1883
DEVICE = "device"
# What must not come has this time to come; it took 0.1 s where it came.
NOTHING_WITHIN_S = 1.0
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def cluster(make_cluster: MakeCluster) -> LocalCluster:
    """Two brokers with the plug-ins, and a user of the role `mqtt`."""
    plain = files.broker_config

    def with_listeners(layout: Layout, node: NodeLayout) -> str:
        listeners = "".join(
            f',\n {{rabbitmq_{name}, [{{tcp_listeners, [{{"{node.host}", {port}}}]}}]}}'
            for name, port in (("stomp", PORT), ("mqtt", MQTT_PORT))
        )
        return plain(layout, node).rstrip().removesuffix("\n].") + f"{listeners}\n].\n"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "broker_config", with_listeners)
        patch.setattr(files, "plugins_text", lambda: plugins_text(("mqtt", "stomp")))
        made = make_cluster(brokers=2)
    grant(made, DEVICE, "mqtt")
    return made


def grant(cluster: LocalCluster, user: str, role: str) -> None:
    """Give a user the rights of a role of docs/operations/security.md on every broker; make the device."""
    rights = dict(zip(("configure", "write", "read"), RIGHTS[role][1:], strict=True))
    for name in cluster.names:
        with cluster.management(name) as api:
            if user == DEVICE:
                made = {"password": DEVICE, "tags": ""}
                api.put(f"/api/users/{DEVICE}", json=made).raise_for_status()
            api.put(f"/api/permissions/%2F/{user}", json=rights).raise_for_status()


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


class Device:
    """Connection by MQTT 3.1.1."""

    def __init__(self, client: mqtt.Client) -> None:
        self._client = client
        self.ended = threading.Event()
        client.on_disconnect = lambda *_: self.ended.set()

    def publish(self, topic: str, body: str, *, within_s: float = WITHIN_S) -> bool:
        """Publish by QoS 1. Returns whether the PUBACK came in time, and the link is still there."""
        info = self._client.publish(topic, body, qos=1)
        with suppress(RuntimeError):
            info.wait_for_publish(within_s)
        return info.is_published() and not self.ended.is_set()


@contextmanager
def device(host: str, user: str = DEVICE, password: str = DEVICE) -> Iterator[Device]:
    client = mqtt.Client(
        CallbackAPIVersion.VERSION2, client_id=f"d{next(_numbers)}", reconnect_on_failure=False
    )
    client.username_pw_set(user, password)
    accepted = threading.Event()
    client.on_connect = lambda *_: accepted.set()
    opened = Device(client)
    client.connect(host, MQTT_PORT)
    client.loop_start()
    try:
        assert accepted.wait(WITHIN_S)
        yield opened
    finally:
        client.disconnect()
        client.loop_stop()


def let_in(cluster: LocalCluster, name: str) -> set[str]:
    """Return the routing keys under which MQTT's exchange leads to topics on a broker."""
    with cluster.management(name) as api:
        found = api.get("/api/exchanges/%2F/amq.topic/bindings/source").raise_for_status().json()
    assert all(each["destination"] == f"mb.topic/{each['routing_key']}" for each in found)
    return {each["routing_key"] for each in found}


def everywhere(cluster: LocalCluster, topic: str) -> list[bool]:
    return [topic in let_in(cluster, name) for name in cluster.names]


def bodies(bus: BusConfig, source: str, count: int) -> list[str]:
    """Return the bodies of so many messages of a subscription, in their order, acked."""
    topic, _, name = source.partition("/")
    got = list[str]()
    with Consumer(bus, Subscription(Topic(topic), name)) as consumer:
        while len(got) < count:
            delivery = consumer.receive(timeout_s=WITHIN_S)
            assert delivery is not None, f"{len(got)} of {count}"
            got.append(delivery.body.decode())
            consumer.ack(delivery)
        assert consumer.receive(timeout_s=NOTHING_WITHIN_S) is None
    return got


def test_what_a_device_publishes_on_any_broker_reaches_every_subscription(
    cluster: LocalCluster,
) -> None:
    bus = bus_config(cluster)
    declare(bus, [Topic("doors.front", mqtt=True), "doors.front/a", "doors.front/b"])
    for number, host in enumerate(hosts(cluster)):
        with device(host) as one:
            assert one.publish("doors/front", f"open {number}")
    sent = {f"open {number}" for number in range(len(cluster.names))}
    assert set(bodies(bus, "doors.front/a", len(sent))) == sent
    with Consumer(bus, Subscription(Topic("doors.front"), "b")) as consumer:
        for _ in sent:
            delivery = consumer.receive(timeout_s=WITHIN_S)
            assert delivery is not None
            assert delivery.message_id == delivery.content_type == ""
            consumer.ack(delivery)


def test_a_device_reaches_no_topic_that_does_not_ask_for_it_and_is_not_told(
    cluster: LocalCluster,
) -> None:
    bus = bus_config(cluster)
    host = hosts(cluster)[0]
    declare(bus, ["shut", "shut/all"])
    with device(host) as one:
        assert one.publish("shut", "lost")
        assert everywhere(cluster, "shut") == [False, False]
        declare(bus, [Topic("shut", mqtt=True)])
        declare(bus, ["shut"])  # whoever says nothing of it takes it as it is
        assert everywhere(cluster, "shut") == [True, True]
        assert one.publish("shut", "kept")
        declare(bus, [Topic("shut", mqtt=False)])
        assert everywhere(cluster, "shut") == [False, False]
        assert one.publish("shut", "lost again")
    assert bodies(bus, "shut/all", 1) == ["kept"]
    assert [agent_answer(cluster, name, "/topology")["lost"] for name in cluster.names] == [[], []]


def test_a_puback_survives_a_kill_and_a_broker_comes_back_with_what_was_switched_meanwhile(
    cluster: LocalCluster,
) -> None:
    bus = bus_config(cluster)
    name, host = cluster.names[-1], hosts(cluster)[-1]
    declare(bus, [Topic("kept", mqtt=True), "kept/all", Topic("off", mqtt=True), "on"])
    with device(host) as one:
        sent = [str(n) for n in range(COUNT) if one.publish("kept", str(n))]
        cluster.kill(name)
    assert len(sent) == COUNT
    cluster.kill(name, agent=True)
    with pytest.raises(RegistrationIncomplete):  # one of two agents is no majority
        declare(bus, [Topic("off", mqtt=False)], timeout_s=1.0)
    cluster.start(name, agent=True, wait=False)
    eventually(lambda: declared(bus, Topic("off", mqtt=False)), within_s=WITHIN_S)
    declare(bus, [Topic("on", mqtt=True)])
    cluster.start(name)
    eventually(lambda: let_in(cluster, name) >= {"kept", "on"}, within_s=WITHIN_S)
    eventually(lambda: "off" not in let_in(cluster, name), within_s=WITHIN_S)
    assert bodies(bus, "kept/all", COUNT) == sent


def declared(bus: BusConfig, topic: Topic) -> bool:
    try:
        return declare(bus, [topic], timeout_s=1.0).complete
    except RegistrationIncomplete:
        return False


def test_a_binding_that_somebody_removes_comes_back(cluster: LocalCluster) -> None:
    declare(bus_config(cluster), [Topic("unbound", mqtt=True)])
    name = cluster.names[0]
    node = cluster.node(name)
    login = pika.PlainCredentials("admin", cluster.admin_password.reveal())
    where = pika.ConnectionParameters(node.host, node.amqp_port, credentials=login)
    with pika.BlockingConnection(where) as connection:
        connection.channel().exchange_unbind("mb.topic/unbound", "amq.topic", "unbound")
        eventually(lambda: "unbound" in let_in(cluster, name), within_s=WITHIN_S)


def test_a_device_without_the_right_is_not_acknowledged_and_nothing_arrives(
    cluster: LocalCluster,
) -> None:
    bus = bus_config(cluster)
    declare(bus, [Topic("mine", mqtt=True), "mine/all", Topic("theirs", mqtt=True), "theirs/all"])
    host = hosts(cluster)[0]
    own = {"exchange": "amq.topic", "write": "^mine$", "read": "^$"}
    with cluster.management(cluster.names[0]) as api:
        api.put(f"/api/topic-permissions/%2F/{DEVICE}", json=own).raise_for_status()
        try:
            with device(host) as one:
                assert one.publish("mine", "allowed")
            with device(host) as one:
                assert not one.publish("theirs", "refused", within_s=NOTHING_WITHIN_S)
            with device(host, "bus", cluster.password.reveal()) as one:  # an application
                assert not one.publish("mine", "refused", within_s=NOTHING_WITHIN_S)
            with connected(cluster, host) as (connection, frames):
                connection.send("/exchange/amq.topic/mine", "refused")
                assert frames.errors.get(timeout=WITHIN_S).headers["message"] == "access_refused"
        finally:
            api.delete(f"/api/topic-permissions/%2F/{DEVICE}").raise_for_status()
    assert bodies(bus, "mine/all", 1) == ["allowed"]
    assert bodies(bus, "theirs/all", 0) == []


def test_an_agent_that_may_not_bind_says_so_and_other_publishers_go_on(
    cluster: LocalCluster,
) -> None:
    """Agents whose rights are older than MQTT: `ops provision` brings them."""
    bus = bus_config(cluster)
    declare(bus, ["older", "older/all"])
    pattern = RIGHTS["agent"][3].replace(r"|amq\.topic", "")
    for name in cluster.names:
        with cluster.management(name) as api:
            older = {"configure": ".*", "write": ".*", "read": pattern}
            api.put("/api/permissions/%2F/admin", json=older).raise_for_status()
    try:
        with pytest.raises(RegistrationIncomplete, match=r"mqtt: .*amq\.topic"):
            declare(bus, [Topic("older", mqtt=True)], timeout_s=2.0)
        with Publisher(bus) as publisher:
            publisher.send_safe("older", "by AMQP")
    finally:
        grant(cluster, "admin", "operator")
    declare(bus, [Topic("older", mqtt=True)])
    assert everywhere(cluster, "older") == [True, True]
    assert bodies(bus, "older/all", 1) == ["by AMQP"]

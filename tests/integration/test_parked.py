"""`messagebus parked` over all brokers, as a shell user sees it, and messages that it must never lose."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from messagebus import (
    BusConfig,
    ConfigError,
    Consumer,
    Durability,
    Message,
    Publisher,
    Subscription,
    Topic,
    declare,
)
from messagebus._io.admin import parking as look
from messagebus.admin import (
    ParkedFilter,
    ParkedProgress,
    count_parked,
    count_subscriptions,
    purge_parked,
    read_parked,
    redrive_parked,
)
from ops.local.cluster import LocalCluster
from tests.support.eventually import eventually
from tests.support.faults import delete_queue, direct

WITHIN_S = 60
DEADLINE_S = 60.0
NOW_MS = time.time_ns() // 1_000_000
HOUR_MS = 3_600_000

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(cluster: LocalCluster) -> Run:
    """Function that runs `messagebus parked ...` against the cluster."""

    def run(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            argv(*words),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            env=environment(cluster) | env,
            check=False,
        )
        assert "Traceback" not in done.stderr
        return done

    return run


def argv(*words: str) -> list[str]:
    return [sys.executable, "-m", "messagebus", "parked", *words]


def environment(cluster: LocalCluster) -> dict[str, str]:
    return {**os.environ, **cluster.client_env()}


def park(
    cluster: LocalCluster,
    name: str,
    queue: str,
    ids: list[str],
    **headers: Any,
) -> None:
    """Park messages as a client of the bus does, or another client by docs/WIRE.md."""
    content_type = headers.pop("content_type", "text/plain")
    with cluster.management(name) as management:
        for message_id in ids:
            properties = {
                "message_id": message_id,
                "delivery_mode": 2,
                "app_id": "shop",
                "content_type": content_type,
                "headers": {
                    "mb-park-reason": "timeout",
                    "mb-park-attempts": 5,
                    "mb-park-first-ms": NOW_MS - 2 * HOUR_MS,
                    "mb-park-ms": NOW_MS,
                    "mb-attempt": 5,
                    "mb-key": "k",
                    "color": "red",
                    **headers,
                },
            }
            body = {
                "properties": properties,
                "routing_key": queue,
                "payload": base64.b64encode(f"body of {message_id}".encode()).decode(),
                "payload_encoding": "base64",
            }
            answer = management.post("/api/exchanges/%2F/amq.default/publish", json=body)
            assert answer.raise_for_status().json() == {"routed": True}


def waiting(bus: BusConfig, name: str) -> int:
    """Count the messages that wait in the subscription's own queues now."""
    return sum(each.ready for each in count_subscriptions(bus).counts if each.name == name)


def received(bus: BusConfig, topic: str, count: int, subscription: str = "all") -> Counter[str]:
    """Receive this many messages and all that come within a moment after them; answer all, return the ids."""
    ids: Counter[str] = Counter()
    with Consumer(bus, topic, subscription=subscription) as consumer:
        while (delivery := consumer.receive(DEADLINE_S if ids.total() < count else 1)) is not None:
            ids[delivery.message_id] += 1
            consumer.ack(delivery)
    return ids


# Looking.
@pytest.mark.guarantee("reading-takes-nothing-away")
def test_what_is_parked_is_counted_and_shown_on_every_broker_and_stays_in_order(
    cluster: LocalCluster, bus: BusConfig, topic: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, parking = f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", parking, ["a1", "a2", "a3"])
    park(cluster, "mb2", parking, ["b1"], **{"mb-park-reason": "bad\x1b[2J"})
    listed = json.loads(run("list", name, "--json").stdout)
    assert listed["faults"] == {}
    assert {row["broker"]: (row["count"], row["reasons"]) for row in listed["parked"]} == {
        cluster.node("mb1").broker: (3, {"timeout": 3}),
        cluster.node("mb2").broker: (1, {"bad\x1b[2J": 1}),
    }
    told = run("list")
    assert told.returncode == 0
    assert told.stdout.splitlines()[0].split() == ["NAME", "BROKER", "COUNT", "OLDEST", "REASONS"]
    assert "\x1b" not in told.stdout
    for _ in range(3):
        shown = json.loads(run("show", name, "--json").stdout)["messages"]
        assert [row["id"] for row in shown] == ["a1", "a2", "a3", "b1"]
    assert shown[0] == {
        "id": "a1",
        "name": name,
        "broker": cluster.node("mb1").broker,
        "key": "k",
        "reason": "timeout",
        "exception": "",
        "attempts": 5,
        "first": shown[0]["first"],
        "parked": shown[0]["parked"],
        "redriven": 0,
        "headers": {"color": "red"},
        "content_type": "text/plain",
        "body_bytes": 10,
        "body": "body of a1",
    }
    text = run("show", name, "--match", "b1$", "--limit", "5").stdout
    assert text.splitlines()[0] == "b1"
    assert "reason     bad\\x1b[2J" in text
    # Many are taken in parts, by one consumer after the other.
    park(cluster, "mb1", parking, more := [f"c{number:02}" for number in range(20)])
    monkeypatch.setattr(look, "LOOKED_AT", 2)
    where = ParkedFilter(reason="timeout", brokers=(cluster.node("mb1").broker,))
    for _ in range(3):
        found = read_parked(bus, [name], where=where, count_max=100)
        assert [each.message_id for each in found.messages] == ["a1", "a2", "a3", *more]


def test_filters_take_what_they_say_and_limits_hold_over_all_brokers(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name, parking = f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", parking, ["old"], **{"mb-park-ms": NOW_MS - 3 * HOUR_MS, "mb-key": "x"})
    park(cluster, "mb2", parking, ["new", "odd"])
    park(cluster, "mb3", parking, ["silent"], **{"mb-park-ms": "yesterday", "color": "blue"})

    def ids(**where: Any) -> set[str]:
        found = read_parked(bus, [name], where=ParkedFilter(**where))
        assert sum(
            each.count for each in count_parked(bus, [name], where=ParkedFilter(**where)).counts
        ) == len(found.messages)
        return {each.message_id for each in found.messages}

    assert ids() == {"old", "new", "odd", "silent"}
    assert ids(older_than_s=3600) == {"old"}
    assert ids(newer_than_s=3600) == {"new", "odd"}
    assert ids(key="x") == {"old"}
    assert ids(match="^color: blue$") == {"silent"}
    assert ids(match="body of o") == {"old", "odd"}
    assert ids(reason="TIME", match="w$") == {"new"}
    assert ids(brokers=(cluster.node("mb3").broker,)) == {"silent"}
    assert len(read_parked(bus, [name], count_max=2).messages) == 2
    assert purge_parked(bus, [name], count_max=3).total == 3
    assert purge_parked(bus, [name], where=ParkedFilter(key="nobody")).total == 0
    assert len(ids()) == 1
    with pytest.raises(ConfigError, match="not in the consumer list"):
        read_parked(bus, [name], where=ParkedFilter(brokers=("nowhere:5672",)))
    with pytest.raises(ConfigError, match="not a regular expression"):
        ParkedFilter(match="(")


# Putting back.
def test_a_redriven_message_is_the_same_and_begins_anew(
    cluster: LocalCluster, bus: BusConfig, topic: str, run: Run
) -> None:
    name, parking, own = f"{topic}/all", f"mb.park/{topic}/all", f"mb.sub/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb2", parking, ["m1", "m2"], **{"mb-redriven": 1})
    park(cluster, "mb3", parking, ["m3"], **{"mb-park-reason": "other"})
    dry = run("redrive", name, "--dry-run", "--reason", "timeout")
    assert (dry.returncode, dry.stdout.splitlines()[-1]) == (0, "would redrive 2")
    asked = run("redrive", name)
    assert (asked.returncode, asked.stdout) == (2, "")
    done = run("redrive", name, "--reason", "timeout", "--yes", "--rate", "1000")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "redriven 2")
    assert json.loads(run("list", name, "--json").stdout)["parked"][0]["count"] == 1
    with cluster.management("mb2") as management:
        wanted = {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"}
        path = f"/api/queues/%2F/{quote(own, safe='')}/get"
        raw = management.post(path, json=wanted).raise_for_status().json()
    assert [each["properties"]["message_id"] for each in raw] == ["m1", "m2"]
    properties = raw[0]["properties"]
    assert (properties["app_id"], properties["delivery_mode"]) == ("shop", 2)
    headers = {n: v for n, v in properties["headers"].items() if n != "x-delivery-count"}
    assert headers == {
        "mb-first-ms": NOW_MS - 2 * HOUR_MS,
        "mb-key": "k",
        "mb-redriven": 2,
        "color": "red",
    }
    with Consumer(bus, topic, subscription="all") as consumer:
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        assert (delivery.message.key, delivery.message.headers["color"]) == ("k", "red")
        consumer.ack(delivery)


def test_a_corrected_body_goes_to_its_own_subscription_and_is_handled_there_once_more(
    cluster: LocalCluster, bus: BusConfig, topic: str, run: Run, tmp_path: Path
) -> None:
    name, other = f"{topic}/all", f"{topic}/others"
    declare(bus, [name, other])
    park(cluster, "mb2", f"mb.park/{topic}/all", ["m1", "m10"])
    (tmp_path / "corrected").write_bytes(b"corrected")
    done = run("redrive", name, "--id", "m1", "--body", str(tmp_path / "corrected"), "--yes")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "redriven 1")
    with Consumer(bus, topic, subscription="all") as consumer:
        delivery = consumer.receive(DEADLINE_S)
        assert delivery is not None
        assert (delivery.message_id, delivery.body) == ("m1", b"corrected")
        assert (delivery.message.key, delivery.message.headers["color"]) == ("k", "red")
        assert delivery.message.content_type == "text/plain"
        consumer.ack(delivery)
    assert [each.message_id for each in read_parked(bus, [name]).messages] == ["m10"]
    with cluster.management("mb2") as management:
        path = f"/api/queues/%2F/{quote(f'mb.sub/{other}', safe='')}/get"
        wanted = {"count": 9, "ackmode": "ack_requeue_true", "encoding": "auto"}
        assert management.post(path, json=wanted).raise_for_status().json() == []


def test_a_corrected_body_that_does_not_fit_its_content_type_leaves_the_message_where_it_is(
    cluster: LocalCluster, bus: BusConfig, topic: str, run: Run, tmp_path: Path
) -> None:
    name = f"{topic}/all"
    declare(bus, [name])
    park(cluster, "mb2", f"mb.park/{name}", ["m1"], content_type="application/json")
    (tmp_path / "broken").write_bytes(b"{")
    done = run("redrive", name, "--id", "m1", "--body", str(tmp_path / "broken"), "--yes")
    assert done.returncode == 3
    assert "the new body does not fit its content type application/json: not JSON" in done.stderr
    assert [each.message_id for each in read_parked(bus, [name]).messages] == ["m1"]


def test_an_id_that_no_parked_message_has_is_told(bus: BusConfig, topic: str, run: Run) -> None:
    name = f"{topic}/all"
    declare(bus, [name])
    done = run("purge", name, "--id", "gone", "--yes")
    assert done.returncode == 4
    assert done.stderr.splitlines()[-1] == "messagebus: no parked message has the id gone"


def ids_of(count: int) -> list[str]:
    return [f"m{number:04d}" for number in range(count)]


@pytest.mark.parametrize("header", ["mb-first-ms", "mb-park-first-ms", "mb-redriven"])
def test_a_forged_header_holds_up_no_redrive(
    cluster: LocalCluster, bus: BusConfig, topic: str, header: str
) -> None:
    name, parking = f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", parking, ["low"], **{header: -(1 << 63)})
    park(cluster, "mb1", parking, ["high"], **{header: (1 << 63) - 1})
    park(cluster, "mb1", parking, ["good"])
    moved = redrive_parked(bus, [name], rate_per_s=1e6)
    assert (moved.total, moved.faults) == (3, {})
    assert set(received(bus, topic, 3)) == {"low", "high", "good"}


# A second: half a minute for 150, so that it has not ended when a slow machine comes to end it.
SLOWLY = "5"


@pytest.mark.guarantee("redriving-loses-nothing")
def test_a_redrive_that_is_killed_loses_nothing_and_doubles_one_message_at_most(
    cluster: LocalCluster, bus: BusConfig, topic: str, run: Run
) -> None:
    name, parking = f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    wanted = ids_of(150)
    park(cluster, "mb1", parking, wanted)
    for _ in range(3):
        before = waiting(bus, name)
        with subprocess.Popen(
            argv("redrive", name, "--yes", "--rate", SLOWLY), env=environment(cluster)
        ) as process:
            eventually(lambda: waiting(bus, name) > before + 5, within_s=WITHIN_S)  # noqa: B023
            process.kill()
    done = run("redrive", name, "--yes", "--rate", "10000")
    assert done.returncode == 0, done.stderr
    eventually(lambda: count_parked(bus, [name]).counts == (), within_s=WITHIN_S)
    found = received(bus, topic, len(wanted))
    assert set(found) == set(wanted)
    assert found.total() <= len(wanted) + 3  # at most one for each kill


@pytest.mark.guarantee("redriving-loses-nothing")
def test_a_redrive_that_is_interrupted_says_how_far_it_came_and_doubles_nothing(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name, parking = f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    wanted = ids_of(150)
    park(cluster, "mb1", parking, wanted)
    with subprocess.Popen(
        argv("redrive", name, "--yes", "--rate", SLOWLY),
        env=environment(cluster),
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        eventually(lambda: waiting(bus, name) > 5, within_s=WITHIN_S)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=WITHIN_S)
    assert process.returncode == 130
    told = said.strip().splitlines()
    assert told[-1].startswith("messagebus: interrupted: redriven ")
    moved = int(told[-1].split()[-1])
    found = received(bus, topic, moved)
    assert found == Counter(wanted[:moved])
    assert sum(each.count for each in count_parked(bus, [name]).counts) == len(wanted) - moved


def test_what_is_parked_meanwhile_is_left_for_the_next_time(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name, parking = f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", parking, ids_of(5))

    def parked_again(progress: ParkedProgress) -> None:
        park(cluster, "mb1", parking, [f"late{progress.total}"])

    done = redrive_parked(bus, [name], on_progress=parked_again, rate_per_s=1000)
    assert done.moved == {(name, cluster.node("mb1").broker): 5}
    assert {each.message_id for each in read_parked(bus, [name]).messages} == {
        f"late{number}" for number in range(1, 6)
    }


# Faults.
@pytest.mark.guarantee("redriving-loses-nothing")
def test_a_redrive_into_a_deleted_queue_is_told_and_loses_nothing(
    broken: LocalCluster, bus: BusConfig, topic: str, run: Run
) -> None:
    cluster, name, parking = broken, f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb2", parking, ["m1", "m2"])
    cluster.kill("mb2", agent=True)  # which would make it again
    delete_queue(cluster, "mb2", f"mb.sub/{topic}/all")
    done = run("redrive", name, "--yes")
    place = f"{name} on {cluster.node('mb2').broker}"
    assert (done.returncode, done.stdout) == (3, "redriven 0\n")
    told = f"messagebus: {place}: mb.sub/{topic}/all is not there any more: deleted?"
    assert done.stderr.startswith(told)
    shown = read_parked(bus, [name]).messages
    assert [each.message_id for each in shown] == ["m1", "m2"]
    strange = run("redrive", f"{topic}/nobody", "--yes")
    assert strange.returncode == 4
    told = f"messagebus: {topic}/nobody: there is no such subscription or queue"
    assert strange.stderr.startswith(told)
    assert strange.stderr.count("\n") == 1


def test_a_broker_that_does_not_answer_is_named(
    broken: LocalCluster, bus: BusConfig, topic: str, run: Run
) -> None:
    cluster, name, parking = broken, f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", parking, ["m1"])
    away = cluster.node("mb3").broker
    cluster.kill("mb3")
    for words in (["list", name], ["show", name], ["redrive", name, "--yes"]):
        done = run(*words)
        assert done.returncode == 3
        (line,) = [line for line in done.stderr.splitlines() if line.startswith("messagebus:")]
        assert line.startswith(f"messagebus: {away}: ")
    assert "redriven 1" in done.stdout


@pytest.mark.guarantee("redriving-loses-nothing")
def test_a_queue_that_is_full_takes_no_more_and_nothing_is_lost(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name, own = f"{topic}/all", f"mb.sub/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", f"mb.park/{topic}/all", ids_of(9))
    policy = {"pattern": f"^{own}$", "apply-to": "queues", "definition": {"max-length": 3}}
    with cluster.management("mb1") as api:
        api.put(f"/api/policies/%2F/{topic}", json=policy).raise_for_status()
        try:
            eventually(lambda: redrive_parked(bus, [name]).faults, within_s=WITHIN_S)
            (fault,) = redrive_parked(bus, [name]).faults.values()
        finally:
            api.delete(f"/api/policies/%2F/{topic}")
    assert fault == f"{own} takes no more: full?"
    left = [each.message_id for each in read_parked(bus, [name]).messages]
    moved = received(bus, topic, 9 - len(left))
    assert sorted([*left, *moved]) == ids_of(9)


@pytest.mark.parametrize("durability", [Durability.PAGE_CACHE])
def test_without_agents_and_in_classic_queues_it_is_the_same(
    cluster: LocalCluster, bus: BusConfig, topic: str, durability: Durability
) -> None:
    destination = Topic(topic, durability)
    declare(bus, [destination, Subscription(destination, "all")])
    park(cluster, "mb1", f"mb.park/{topic}/all", ids_of(7))
    alone = direct(cluster, "mb1", list_urls=())
    with pytest.raises(ConfigError, match="name them, such as orders/billing"):
        count_parked(alone)
    names = [f"{topic}/all", f"{topic}/nobody"]
    for _ in range(2):
        found = read_parked(alone, names, where=ParkedFilter(match="m000[0-4]"))
        assert [each.message_id for each in found.messages] == ids_of(5)
        assert list(found.faults.values()) == ["there is no parking queue of it"]
    odd = ParkedFilter(match="m000[13]$")
    assert purge_parked(alone, names[:1], where=odd).total == 2
    assert redrive_parked(alone, names[:1]).total == 5
    assert list(received(bus, topic, 5)) == [ids_of(7)[number] for number in (0, 2, 4, 5, 6)]


@contextmanager
def user(cluster: LocalCluster, **rights: str) -> Iterator[dict[str, str]]:
    """Give settings of a user with these rights on all brokers."""
    name, password = "parkedonly", "parkedonly-password"
    for broker in cluster.names:
        with cluster.management(broker) as api:
            api.put(f"/api/users/{name}", json={"password": password, "tags": ""})
            all_rights = {"configure": "^$", "write": "^$", "read": "^$"} | rights
            api.put(f"/api/permissions/%2F/{name}", json=all_rights).raise_for_status()
    try:
        yield {"MESSAGEBUS_USER": name, "MESSAGEBUS_PASSWORD": password}
    finally:
        for broker in cluster.names:
            with cluster.management(broker) as api:
                api.delete(f"/api/users/{name}")


def test_missing_rights_are_told_and_lose_nothing(
    cluster: LocalCluster, bus: BusConfig, topic: str
) -> None:
    name, parking = f"{topic}/all", f"mb.park/{topic}/all"
    declare(bus, [name])
    park(cluster, "mb1", parking, ["m1"])
    for rights in ({"read": "^$"}, {"read": "^mb\\.park/.*"}):
        with user(cluster, **rights) as env:
            limited = BusConfig.from_env(
                {k: v for k, v in cluster.client_env().items() if "PASSWORD" not in k} | env
            )
            (fault,) = redrive_parked(limited, [name]).faults.items()
            assert fault[0] == f"{name} on {cluster.node('mb1').broker}"
            assert "needs read on mb.park/... and write on the default exchange" in fault[1]
            assert "password" not in fault[1]
    assert [each.message_id for each in read_parked(bus, [name]).messages] == ["m1"]


# Poison.
POISON = """
import os, sys
from messagebus import BusConfig, Consumer, ConsumerConfig, Subscription, Topic
source = Subscription(Topic(sys.argv[1]), "all", delivery_limit=2)
with Consumer(BusConfig.from_env(os.environ), source, config=ConsumerConfig(prefetch=1)) as consumer:
    for delivery in consumer:
        if delivery.body == b"poison":
            os._exit(7)
        consumer.ack_safe(delivery)
        if delivery.body == b"last":
            os._exit(0)
"""


@pytest.mark.guarantee("delivery-limit-parks")
def test_a_message_that_kills_its_consumer_is_parked_after_the_delivery_limit(
    cluster: LocalCluster, bus: BusConfig, topic: str, run: Run
) -> None:
    name = f"{topic}/all"
    declare(bus, [Subscription(Topic(topic), "all", delivery_limit=2)])
    with Publisher(direct(cluster, "mb2")) as publisher:
        for body in (b"good", b"poison", b"last"):
            publisher.send_safe(topic, Message(body=body, message_id=body.decode(), key="k"))
    ends = []
    while 0 not in ends:
        done = subprocess.run(
            [sys.executable, "-c", POISON, topic],
            env=environment(cluster),
            timeout=WITHIN_S,
            check=False,
        )
        ends.append(done.returncode)
        assert len(ends) < 6, ends
    assert ends == [7, 7, 7, 0]
    eventually(lambda: count_parked(bus, [name]).counts, within_s=WITHIN_S)
    (row,) = json.loads(run("show", name, "--json").stdout)["messages"]
    assert (row["id"], row["key"], row["body"]) == ("poison", "k", "poison")
    assert (row["reason"], row["attempts"]) == ("delivery limit", 3)
    assert row["broker"] == cluster.node("mb2").broker
    assert row["first"] <= row["parked"]
    assert "delivery limit: 1" in run("list", name).stdout
    assert redrive_parked(bus, [name]).total == 1
    assert received(bus, topic, 1) == {"poison": 1}

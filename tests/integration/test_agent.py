"""Agents on real brokers: the register, their declarations, what they notice, and their answers."""

from __future__ import annotations

import base64
import shutil
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from bench.faults import alarm
from messagebus import BusConfig, Consumer, Outcome, Publisher
from ops.commands.kits import CHECKOUT
from ops.local import parts
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.faults import (
    agent_answer,
    delete_queue,
    direct,
    metric,
    operators_drain,
    queue_exists,
    register,
    unregister,
    write_list,
)
from tests.support.orders import taken
from tests.support.trials.outer_faults import YEAR_S, lying, set_clock

HTTP_TIMEOUT_S = 60.0


def url(cluster: LocalCluster, name: str, path: str) -> str:
    return f"http://{cluster.node(name).agent}{path}"


def get(cluster: LocalCluster, name: str, path: str, **request: Any) -> httpx.Response:
    return httpx.get(
        url(cluster, name, path),
        timeout=HTTP_TIMEOUT_S,
        trust_env=False,
        verify=False,
        **request,
    )


def post(cluster: LocalCluster, name: str, body: Any, **request: Any) -> httpx.Response:
    return httpx.post(
        url(cluster, name, "/topology"),
        json=body,
        timeout=HTTP_TIMEOUT_S,
        trust_env=False,
        verify=False,
        **request,
    )


def bus_login(cluster: LocalCluster) -> tuple[str, str]:
    return ("bus", cluster.password.reveal())


def checked(cluster: LocalCluster, name: str) -> str:
    """Return the answer to a balancer's agent-check."""
    host, _, port = cluster.node(name).check.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=HTTP_TIMEOUT_S) as check:
        return check.makefile().read()


def entry_of(cluster: LocalCluster, name: str, wanted: str) -> dict[str, Any]:
    entries = agent_answer(cluster, name, "/topology")["entries"]
    found: list[dict[str, Any]] = [entry for entry in entries if entry["wanted"] == wanted]
    return found[0] if found else {}


def losses_of(cluster: LocalCluster, name: str, wanted: str) -> list[dict[str, Any]]:
    lost = agent_answer(cluster, name, "/topology")["lost"]
    return [loss for loss in lost if loss["wanted"] == wanted]


def bindings_of(cluster: LocalCluster, name: str, topic: str, queue: str) -> list[Any]:
    with cluster.management(name) as management:
        path = (
            f"/api/bindings/%2F/e/{quote(f'mb.topic/{topic}', safe='')}/q/{quote(queue, safe='')}"
        )
        found: list[Any] = management.get(path).raise_for_status().json()
    return found


def publish(cluster: LocalCluster, name: str, queue: str, text: str) -> None:
    body = {
        "properties": {"delivery_mode": 2},
        "routing_key": queue,
        "payload": text,
        "payload_encoding": "string",
    }
    with cluster.management(name) as management:
        answer = management.post("/api/exchanges/%2F/amq.default/publish", json=body)
    assert answer.raise_for_status().json() == {"routed": True}


def messages_in(cluster: LocalCluster, name: str, queue: str) -> list[str]:
    body = {"count": 10, "ackmode": "ack_requeue_true", "encoding": "auto"}
    with cluster.management(name) as management:
        path = f"/api/queues/%2F/{quote(queue, safe='')}/get"
        answer = management.post(path, json=body)
    assert answer.status_code == httpx.codes.OK, answer.text
    return [message["payload"] for message in answer.json()]


def test_an_application_registers_by_its_broker_login(cluster: LocalCluster, topic: str) -> None:
    wanted = [topic, f"{topic}/billing", f"queue:{topic}"]
    answer = post(cluster, "mb1", {"wanted": wanted}, auth=bus_login(cluster))
    assert answer.status_code == 200
    assert answer.json() == {
        "complete": True,
        "held": sorted(cluster.node(name).broker for name in cluster.names),
        "later": [],
        "missing": {},
        "options": {name: {} for name in wanted},
        "created": wanted,
    }
    again = post(cluster, "mb2", {"wanted": wanted}, auth=bus_login(cluster))
    assert again.json()["created"] == []
    for name in cluster.names:
        settled = agent_answer(cluster, name, "/settled")
        assert settled["settled"]
        assert settled["queues"][f"mb.sub/{topic}/billing"]
        assert queue_exists(cluster, name, f"mb.sub/{topic}/billing")
        assert queue_exists(cluster, name, f"mb.park/{topic}/billing")
        assert bindings_of(cluster, name, topic, f"mb.sub/{topic}/billing")


def test_who_may_not_is_told_so(cluster: LocalCluster, topic: str) -> None:
    body = {"wanted": [topic]}
    assert post(cluster, "mb1", body).status_code == 401
    assert post(cluster, "mb1", body, auth=("bus", "wrong")).status_code == 401
    wrong = {"Authorization": "Bearer wrong"}
    assert post(cluster, "mb1", body, headers=wrong).status_code == 401
    for path in ("/topology/merge", "/drain"):
        answer = httpx.post(
            url(cluster, "mb1", path), json={}, auth=bus_login(cluster), trust_env=False
        )
        assert answer.status_code == 401, path
    bad = {"Authorization": "Basic " + base64.b64encode(b"nocolon").decode()}
    assert post(cluster, "mb1", body, headers=bad).status_code == 401


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"wanted": []},
        {"wanted": "orders"},
        {"wanted": ["a b"]},
        {"wanted": ["queue:a/b"]},
        {"wanted": ["a"], "alive": 1},
        [],
    ],
)
def test_what_makes_no_sense_is_refused(cluster: LocalCluster, body: Any) -> None:
    answer = post(cluster, "mb1", body, auth=bus_login(cluster))
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_creating_what_lives_changes_no_number(cluster: LocalCluster, topic: str) -> None:
    register(cluster, topic)
    before = entry_of(cluster, "mb3", topic)
    assert register(cluster, topic)["complete"]
    assert entry_of(cluster, "mb3", topic) == before


def test_a_deleted_subscription_goes_from_every_broker(cluster: LocalCluster, topic: str) -> None:
    register(cluster, topic, f"{topic}/billing")
    assert unregister(cluster, f"{topic}/billing")["complete"]
    for name in cluster.names:
        assert not queue_exists(cluster, name, f"mb.sub/{topic}/billing")
        assert not queue_exists(cluster, name, f"mb.park/{topic}/billing")
        assert not entry_of(cluster, name, f"{topic}/billing")["alive"]


def test_a_name_deleted_and_created_while_a_broker_is_down_starts_empty_there(
    broken: LocalCluster, topic: str
) -> None:
    queue = f"mb.sub/{topic}/crm"
    register(broken, topic, f"{topic}/crm")
    publish(broken, "mb2", queue, "of the earlier life")
    broken.kill("mb2")
    assert unregister(broken, f"{topic}/crm")["complete"]
    again = register(broken, f"{topic}/crm")
    assert again["complete"]
    assert again["later"] == [broken.node("mb2").broker]
    broken.start("mb2")
    broken.wait_ready()
    assert queue_exists(broken, "mb2", queue)
    assert messages_in(broken, "mb2", queue) == []


def test_a_broker_that_serves_without_its_agent_makes_a_change_incomplete(
    broken: LocalCluster, topic: str
) -> None:
    register(broken, topic)
    broken.kill("mb2", agent=True)
    answer = register(broken, f"{topic}/billing")
    assert not answer["complete"]
    assert set(answer["missing"]) == {broken.node("mb2").broker}
    broken.start("mb2", agent=True)
    eventually(
        lambda: register(broken, f"{topic}/billing")["complete"], within_s=60, what="complete"
    )


@pytest.mark.guarantee("one-of-two-wins")
def test_of_two_that_want_one_new_queue_otherwise_at_once_one_is_told_and_no_broker_drains(
    cluster: LocalCluster, topic: str
) -> None:
    for number in range(5):
        wanted = {
            name: {"wanted": [{"name": f"queue:{topic}.{number}", "durability": durability}]}
            for name, durability in (("mb1", "page-cache"), ("mb3", "fsync"))
        }
        with ThreadPoolExecutor() as pool:
            answers = list(
                pool.map(lambda each: post(cluster, *each, auth=bus_login(cluster)), wanted.items())
            )
        told = sorted((each.status_code, each.json().get("complete")) for each in answers)
        assert told == [(200, True), (409, None)], [each.text for each in answers]
        (refused,) = (each.json() for each in answers if each.status_code == 409)
        assert refused["mismatch"]
        assert [checked(cluster, name) for name in cluster.names] == ["ready\n"] * 3
    eventually(lambda: all(is_brought_about(cluster, name) for name in cluster.names), within_s=60)


@pytest.mark.guarantee("complete-means-everywhere")
def test_a_suspended_broker_without_its_agent_makes_a_change_incomplete(
    broken: LocalCluster, topic: str
) -> None:
    """It is in maintenance mode: its port refuses, and it will serve again with the gate that it has."""
    register(broken, topic)
    broken.kill("mb2", agent=True)
    broken.evaluate("mb2", "rabbit_maintenance:suspend_all_client_listeners().")
    try:
        answer = register(broken, f"{topic}/billing")
        assert not answer["complete"]
        assert "nothing proves" in answer["missing"][broken.node("mb2").broker]
        broken.kill("mb2")
        again = register(broken, f"{topic}/billing")
        assert again["complete"], again
        assert again["later"] == [broken.node("mb2").broker]
    finally:
        broken.start("mb2")
        broken.start("mb2", agent=True)


def test_a_broker_that_makes_no_quorum_queues_any_more_does_so_again(
    broken: LocalCluster, topic: str
) -> None:
    """It is as after a deletion at a bad moment of a boot: RabbitMQ does not start that supervisor again."""
    broken.evaluate("mb2", "supervisor:terminate_child(rabbit_sup, rabbit_fifo_dlx_sup).")
    eventually(lambda: register(broken, f"{topic}/billing")["complete"], within_s=60)
    assert queue_exists(broken, "mb2", f"mb.sub/{topic}/billing")


def test_what_is_delayed_leaves_its_step_again_where_dead_lettering_ended(
    broken: LocalCluster, bus: BusConfig, topic: str
) -> None:
    """Nothing is declared there; RabbitMQ never starts the workers of existing queues again."""
    with (
        Consumer(bus, topic, subscription="all") as consumer,
        Publisher(direct(broken, "mb2")) as publisher,
    ):
        publisher.send_safe(topic, b"before", deliver_after_s=1, timeout_s=30)
        assert taken(consumer).body == b"before"
        broken.evaluate("mb2", "supervisor:terminate_child(rabbit_sup, rabbit_fifo_dlx_sup).")
        sent = publisher.send_safe(topic, b"later", deliver_after_s=1, timeout_s=30)
        assert sent.broker == broken.node("mb2").broker
        delivery = consumer.receive(timeout_s=60 * FACTOR)
        assert delivery is not None
        assert delivery.message_id == sent.message_id
        consumer.ack(delivery)


def test_a_queue_whose_process_died_takes_messages_again_and_a_policy_that_loses_them_is_named(
    broken: LocalCluster, topic: str
) -> None:
    queue, path = f"mb.sub/{topic}/billing", "/api/policies/%2F/ttl"
    register(broken, topic, f"{topic}/billing")
    policy = {
        "pattern": f"^{queue}$",
        "apply-to": "queues",
        "definition": {"message-ttl": 3_600_000},
    }
    with broken.management("mb2") as management:
        management.put(path, json=policy).raise_for_status()
        told = f"ready, but policy 'ttl' loses messages by message-ttl: {queue}"
        eventually(
            lambda: agent_answer(broken, "mb2", "/health").get("reason") == told, within_s=120
        )
        management.delete(path).raise_for_status()
    broken.evaluate(
        "mb2",
        "[ra:stop_server(quorum_queues, {element(1, amqqueue:get_pid(Q)), node()})"
        ' || Q <- rabbit_amqqueue:list(<<"/">>),'
        f' element(4, amqqueue:get_name(Q)) =:= <<"{queue}">>].',
    )
    with Publisher(direct(broken, "mb2")) as publisher:

        def takes() -> bool:
            return publisher.submit(topic, b"x").result(60).outcome is Outcome.CONFIRMED

        eventually(takes, within_s=120)


def test_without_a_majority_nothing_is_changed(broken: LocalCluster, topic: str) -> None:
    for name in ("mb2", "mb3"):
        broken.kill(name, agent=True)
    answer = post(broken, "mb1", {"wanted": [topic]}, auth=bus_login(broken))
    assert answer.status_code == 409
    assert "no majority" in answer.json()["error"]
    assert not entry_of(broken, "mb1", topic)


def test_a_wiped_agent_adopts_the_map_from_the_others(broken: LocalCluster, topic: str) -> None:
    register(broken, topic)
    broken.stop("mb3", agent=True)
    shutil.rmtree(broken.node("mb3").agent_dir)
    broken.start("mb3", agent=True)
    eventually(lambda: agent_answer(broken, "mb3", "/topology")["intact"], within_s=60)
    assert entry_of(broken, "mb3", topic) == entry_of(broken, "mb1", topic)


@pytest.mark.guarantee("no-clock-decides")
@pytest.mark.parametrize("years", [10, -10])
def test_an_agent_whose_clock_is_years_off_makes_nobody_forget_and_forgets_nothing(
    broken: LocalCluster, topic: str, years: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(broken, topic, f"{topic}/billing")
    set_clock(tmp_path, years * YEAR_S)
    with monkeypatch.context() as other:
        other.setattr(parts, "CHECKOUT", f"{tmp_path}:{CHECKOUT}")
        restart_agent(broken, "mb1")
    eventually(lambda: agent_answer(broken, "mb1", "/topology")["informed"], within_s=60)
    # Deleted by the agent whose clock is off, while another one is away: it must not come back.
    broken.kill("mb3", agent=True)
    unregister(broken, f"{topic}/billing")
    post(broken, "mb1", {"wanted": [f"{topic}/crm"]}, auth=bus_login(broken)).raise_for_status()
    broken.start("mb3", agent=True)
    restart_agent(broken, "mb1")
    restart_agent(broken, "mb2")
    for name in ("mb1", "mb2", "mb3"):
        eventually(lambda name=name: is_brought_about(broken, name), within_s=60)  # type: ignore[misc]
        found = agent_answer(broken, name, "/topology")
        assert found["intact"]
        assert found["informed"]
        alive = {entry["wanted"] for entry in found["entries"] if entry["alive"]}
        assert {topic, f"{topic}/crm"} <= alive
        assert f"{topic}/billing" not in alive
    assert register(broken, f"{topic}/audit")["complete"]


@pytest.mark.guarantee("no-clock-decides")
def test_a_liar_at_an_agents_address_makes_nobody_forget(broken: LocalCluster, topic: str) -> None:
    register(broken, topic, f"{topic}/billing")
    node = broken.node("mb3")
    broken.kill("mb3", agent=True)
    with lying(node.host, node.agent_port, node.broker, broken.layout.cluster) as (_, asked):
        eventually(lambda: asked.count("/topology") > 6, within_s=60)
        for name in ("mb1", "mb2"):
            found = agent_answer(broken, name, "/topology")
            assert found["intact"]
            assert found["informed"]
            assert entry_of(broken, name, f"{topic}/billing")["alive"]
    broken.start("mb3", agent=True)
    eventually(lambda: register(broken, f"{topic}/crm")["complete"], within_s=60)
    assert entry_of(broken, "mb3", f"{topic}/billing")["alive"]
    assert entry_of(broken, "mb3", f"{topic}/crm")["number"] < 2**40


def restart_agent(cluster: LocalCluster, name: str) -> None:
    cluster.kill(name, agent=True)
    cluster.start(name, agent=True)


def test_a_vanished_queue_is_told_and_made_again(cluster: LocalCluster, topic: str) -> None:
    register(cluster, topic, f"{topic}/audit")
    before = metric(cluster, "mb1", "lost_total")
    delete_queue(cluster, "mb1", f"mb.sub/{topic}/audit")
    eventually(
        lambda: any(loss["repaired_at_ms"] for loss in losses_of(cluster, "mb1", f"{topic}/audit")),
        within_s=60,
        what="repaired",
    )
    (loss,) = losses_of(cluster, "mb1", f"{topic}/audit")
    assert (loss["what"], loss["name"]) == ("queue", f"mb.sub/{topic}/audit")
    assert metric(cluster, "mb1", "lost_total") == before + 1
    assert queue_exists(cluster, "mb1", f"mb.sub/{topic}/audit")
    assert bindings_of(cluster, "mb1", topic, f"mb.sub/{topic}/audit")
    assert not losses_of(cluster, "mb2", f"{topic}/audit")


@pytest.mark.guarantee("vanished-queue-is-made-again")
def test_a_vanished_binding_is_told_and_made_again(cluster: LocalCluster, topic: str) -> None:
    register(cluster, topic, f"{topic}/audit")
    queue = f"mb.sub/{topic}/audit"
    with cluster.management("mb1") as management:
        (binding,) = bindings_of(cluster, "mb1", topic, queue)
        path = (
            f"/api/bindings/%2F/e/{quote(f'mb.topic/{topic}', safe='')}/q/{quote(queue, safe='')}"
        )
        management.delete(f"{path}/{binding['properties_key']}").raise_for_status()
    eventually(lambda: bindings_of(cluster, "mb1", topic, queue), within_s=60, what="bound")
    eventually(lambda: losses_of(cluster, "mb1", f"{topic}/audit"), within_s=60, what="told")


def test_what_vanished_while_the_agent_was_away_is_told_too(
    broken: LocalCluster, topic: str
) -> None:
    register(broken, topic, f"{topic}/audit")
    broken.stop("mb1", agent=True)
    delete_queue(broken, "mb1", f"mb.sub/{topic}/audit")
    broken.start("mb1", agent=True)
    eventually(lambda: queue_exists(broken, "mb1", f"mb.sub/{topic}/audit"), within_s=60)
    (loss,) = losses_of(broken, "mb1", f"{topic}/audit")
    assert loss["how"] == "start"


def test_the_verdict_of_a_broker_in_alarm_is_drain(broken: LocalCluster) -> None:
    assert checked(broken, "mb1") == "ready\n"
    try:
        alarm(broken, "mb1", on=True)
        eventually(lambda: get(broken, "mb1", "/health").status_code == 404, within_s=60)
        assert "memory" in get(broken, "mb1", "/health").json()["reason"]
        assert checked(broken, "mb1") == "drain\n"
    finally:
        alarm(broken, "mb1", on=False)
    eventually(lambda: checked(broken, "mb1") == "ready\n", within_s=60)


def test_operators_drain_outlives_the_agent(broken: LocalCluster) -> None:
    operators_drain(broken, "mb2", True)
    broken.kill("mb2", agent=True)
    broken.start("mb2", agent=True)
    eventually(lambda: get(broken, "mb2", "/health").status_code == 404, within_s=60)
    assert get(broken, "mb2", "/health").json()["draining"] is True
    assert checked(broken, "mb2") == "drain\n"
    operators_drain(broken, "mb2", False)
    assert checked(broken, "mb2") == "ready\n"


def test_a_killed_broker_is_down_and_its_gate_opens_again(broken: LocalCluster) -> None:
    broken.kill("mb3")
    eventually(lambda: get(broken, "mb3", "/health").status_code == 503, within_s=60)
    assert checked(broken, "mb3") == "drain\n"
    assert get(broken, "mb3", "/live").status_code == 200
    broken.start("mb3")
    eventually(lambda: get(broken, "mb3", "/health").status_code == 200, within_s=60)
    assert agent_answer(broken, "mb3", "/settled")["gate"]


def test_a_killed_broker_that_has_all_takes_publishes_without_a_declaration(
    broken: LocalCluster, topic: str
) -> None:
    wanted = [f"{topic}/s{number}" for number in range(12)]
    register(broken, topic, *wanted)
    broken.kill("mb3")
    eventually(lambda: get(broken, "mb3", "/health").status_code == 503, within_s=60)
    broken.start("mb3")
    eventually(lambda: get(broken, "mb3", "/health").status_code == 200, within_s=60)
    with broken.management("mb3") as management:

        def counted() -> dict[str, int]:
            path = "/api/overview?columns=churn_rates"
            found: dict[str, int] = management.get(path).raise_for_status().json()["churn_rates"]
            return found

        # Statistics lag by a second, and the balancer's checks log in once a second.
        before = eventually(lambda: counted().get("connection_created", 0), within_s=60)
        eventually(lambda: counted()["connection_created"] > before + 3, within_s=60)
        now = counted()
    assert now["queue_declared"] < len(wanted), "two for each would be declared"
    assert now["queue_created"] < len(wanted)


def test_a_node_answers_operators_while_others_ask_it(cluster: LocalCluster) -> None:
    """All calls of Erlang's own program have one name by default, and a node refuses a second one of it."""
    with ThreadPoolExecutor() as pool:
        asked = [
            pool.submit(cluster.evaluate, "mb1", "timer:sleep(500), node().") for _ in range(4)
        ]
    assert {each.result() for each in asked} == {"mb1@localhost"}


def ra(cluster: LocalCluster, name: str, queue: str, then: str) -> None:
    """Have the broker's Erlang evaluate `then` with N, Ra's name for the queue."""
    found = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>))'
    cluster.evaluate(name, f"{found}, {{N, _}} = amqqueue:get_pid(Q), {then}.")


@pytest.mark.guarantee("no-publish-before-settled-boot")
def test_the_gate_stays_shut_while_a_queue_has_no_leader(broken: LocalCluster, topic: str) -> None:
    """It is as after a boot with a queue of a million messages, which takes its time to be read."""
    assert register(broken, f"queue:{topic}")["complete"]
    queue = f"mb.queue/{topic}"
    broken.kill("mb2", agent=True)
    with broken.management("mb2") as management:
        management.delete("/api/queues/%2F/mb.ready/contents").raise_for_status()
    ra(broken, "mb2", queue, "ra_leaderboard:clear(N)")
    log, words = broken.dir / "run" / "mb2-agent.log", "queues are read from disk"
    before = log.read_text().count(words)
    broken.start("mb2", agent=True, wait=False)
    eventually(lambda: log.read_text().count(words) > before, within_s=60)
    assert not agent_answer(broken, "mb2", "/settled")["gate"]
    ra(broken, "mb2", queue, "ra_leaderboard:record(N, {N, node()}, [{N, node()}])")
    eventually(lambda: agent_answer(broken, "mb2", "/settled")["gate"], within_s=60)


def is_brought_about(cluster: LocalCluster, name: str) -> bool:
    try:
        return bool(agent_answer(cluster, name, "/settled")["settled"])
    except httpx.HTTPError:
        return False


def test_the_list_has_its_headers_and_is_conditional(cluster: LocalCluster) -> None:
    answer = get(cluster, "mb1", "/consumer-list")
    generation = answer.headers["MB-Generation"]
    assert answer.headers["ETag"] == f'"{generation}"'
    assert answer.headers["MB-Cluster"] == cluster.layout.cluster
    headers = {"If-None-Match": answer.headers["ETag"]}
    assert get(cluster, "mb1", "/consumer-list", headers=headers).status_code == 304
    assert get(cluster, "mb1", "/consumer-list?generation=x").status_code == 400


def test_a_waiting_fetch_hears_of_a_new_list_within_a_second(broken: LocalCluster) -> None:
    generation = int(get(broken, "mb2", "/consumer-list").headers["MB-Generation"])
    path = f"/consumer-list?generation={generation}&wait_s=0.2"
    assert get(broken, "mb2", path).status_code == 304
    heard: list[tuple[float, httpx.Response]] = []

    def wait() -> None:
        query = f"generation={generation}&wait_s=9&client=c7&subscription=a/b&applied={generation}"
        answer = get(broken, "mb2", f"/consumer-list?{query}", auth=bus_login(broken))
        heard.append((time.monotonic(), answer))

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: client_of(broken, "mb2", "c7"), within_s=60)
    written_s = time.monotonic()
    write_list(broken, broken.names)
    waiting.join()
    ((heard_s, answer),) = heard
    assert answer.status_code == 200
    assert int(answer.headers["MB-Generation"]) > generation
    assert heard_s - written_s < 5
    (client,) = client_of(broken, "mb2", "c7")
    assert (client["subscription"], client["applied"]) == ("a/b", generation)


def client_of(cluster: LocalCluster, name: str, client_id: str) -> list[dict[str, Any]]:
    clients = agent_answer(cluster, name, "/clients")["clients"]
    return [client for client in clients if client["id"] == client_id]


def test_a_bad_list_changes_nothing_and_is_counted(broken: LocalCluster) -> None:
    before = get(broken, "mb2", "/consumer-list")
    faults = metric(broken, "mb2", "list_faults_total")
    broken.node("mb2").list_file.write_text("<html>503</html>\n")
    eventually(lambda: metric(broken, "mb2", "list_faults_total") == faults + 1, within_s=60)
    assert get(broken, "mb2", "/consumer-list").text == before.text
    broken.node("mb2").list_file.write_text(before.text)
    write_list(broken, broken.names)
    eventually(
        lambda: (
            get(broken, "mb2", "/consumer-list").headers["MB-Generation"]
            != before.headers["MB-Generation"]
        ),
        within_s=60,
    )


def test_a_port_in_use_is_one_line(cluster: LocalCluster, tmp_path: Path) -> None:
    """The other agent listens there; nothing else of the settings is touched."""
    running = cluster.node("mb1")
    for name in ("password", "token"):
        (tmp_path / name).write_text("x")
    (tmp_path / "agent.toml").write_text(
        f'broker = "{running.broker}"\nuser = "admin"\npassword_file = "password"\n'
        f'http = "{running.agent}"\ncheck = "{running.check}"\nlist_file = "list"\n'
        'state_dir = "state"\ntoken_file = "token"\n'
    )
    argv = [sys.executable, "-m", "messagebus", "agent", "--config", str(tmp_path / "agent.toml")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if "WARNING" not in line]
    assert len(said) == 1
    assert "Address already in use" in said[0]

"""A real HAProxy with our configuration, in front of brokers and agents that do as told."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from inventory.inventory import load
from lb import agents, runtime
from lb.apply import apply, prepare_start, save_state
from lb.errors import ApplyFailed, LbError
from lb.runtime import STATES_BY_AGENT
from messagebus.errors import ConfigError
from tests.support.eventually import FACTOR, eventually
from tests.support.haproxy import HOST, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with ExitStack() as stack:
        rig = Rig(tmp_path, stack, nodes=3)
        try:
            yield rig
        finally:
            rig.kill()


@pytest.mark.guarantee("haproxy-cuts-nobody")
def test_a_shut_gate_takes_nobody_from_the_first_moment(rig: Rig) -> None:
    rig.brokers[0].gate = False
    two = rig.inventory(2)
    rig.start(two)

    def another_client() -> bool:
        with suppress(OSError), rig.client():
            return rig.brokers[1].clients >= 100
        return False

    eventually(another_client, within_s=60, what="100 clients served")
    assert rig.brokers[0].clients == 0
    rig.wait(two, mb1="down", mb2="up")
    eventually(
        lambda: "the gate is shut" in rig.servers(two)["mb1"].check,
        within_s=60,
        what="the check's reason",
    )
    assert rig.brokers[0].clients == 0


def test_a_gate_that_opens_is_seen_within_seconds(rig: Rig) -> None:
    rig.brokers[0].gate = False
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="down")
    rig.brokers[0].gate = True
    rig.wait(two, within_s=60, mb1="up")


def test_a_broker_whose_name_is_known_late_is_up_after_its_checks_and_not_before(
    rig: Rig,
) -> None:
    with name_server() as (port, names):
        rig.inventory(2)
        path = rig.folder / "inventory.toml"
        text = path.read_text().replace(
            f"{HOST}:{rig.brokers[1].port}", f"mb2.example:{rig.brokers[1].port}"
        )
        path.write_text(text.replace("sessions_max = 400", 'sessions_max = 400\ndns = "yes"'))
        two = load(path)
        prepare_start(two)
        config = two.balancer.config
        own_dns = f"nameserver own {HOST}:{port}\n    hold valid 1s"
        config.write_text(config.read_text().replace("parse-resolv-conf", own_dns))
        rig.launch(two)
        rig.wait(two, mb1="up", mb2="down")
        rig.brokers[1].gate = False
        names["mb2.example"] = HOST

        def is_asked() -> bool:
            with suppress(OSError), rig.client():
                pass
            return "the gate is shut" in rig.servers(two)["mb2"].check

        eventually(is_asked, within_s=120, what="the check of the broker with a name")
        assert rig.brokers[1].clients == 0
        rig.brokers[1].gate = True
        rig.wait(two, within_s=120, mb2="up")


@contextmanager
def name_server() -> Iterator[tuple[int, dict[str, str]]]:
    """Serve DNS on a port of its own: names -> IPv4 addresses, which may be added while it runs."""
    names: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind((HOST, 0))

        def serve() -> None:
            with suppress(OSError):
                while True:
                    asked, client = server.recvfrom(2_048)
                    end = asked.index(0, 12)
                    labels, at = list[str](), 12
                    while at < end:
                        labels.append(asked[at + 1 : at + 1 + asked[at]].decode())
                        at += 1 + asked[at]
                    address, kind = names.get(".".join(labels)), asked[end + 1 : end + 3]
                    answers = b""
                    if address is not None and kind == b"\0\1":  # A, IN, 1 s
                        answers = bytes.fromhex("c00c 0001 0001 00000001 0004")
                        answers += socket.inet_aton(address)
                    flags = b"\x81\x80" if address is not None else b"\x81\x83"
                    counts = bytes([0, 1, 0, bool(answers), 0, 0, 0, 0])
                    server.sendto(
                        asked[:2] + flags + counts + asked[12 : end + 5] + answers, client
                    )

        threading.Thread(target=serve, daemon=True).start()
        yield server.getsockname()[1], names


def test_a_reload_keeps_down_what_was_down_and_drained_what_was_drained(rig: Rig) -> None:
    three = rig.inventory(3)
    rig.start(three)
    rig.wait(three, mb1="up", mb2="up", mb3="up")
    rig.brokers[0].gate = False
    rig.agents[1].draining = True
    rig.wait(three, mb1="down", mb2="drain")
    # Nobody tells the new process anything before it serves.
    rig.agents[1].mute = True
    rig.brokers[0].frozen = True
    before = [broker.clients for broker in rig.brokers]
    apply(three, reload=True)
    rig.come_and_go(50)
    assert rig.verdicts(three) == {"mb1": "down", "mb2": "drain", "mb3": "up"}
    assert [broker.clients for broker in rig.brokers[:2]] == before[:2]


def test_a_new_broker_takes_nobody_before_its_first_check(rig: Rig) -> None:
    rig.start(rig.inventory(2))
    rig.wait(rig.inventory(2), mb1="up", mb2="up")
    rig.brokers[2].gate = False
    three = rig.inventory(3)
    applied = apply(three)
    assert (applied.changed, applied.reloaded) == (True, True)
    rig.come_and_go(50)
    assert rig.brokers[2].clients == 0
    rig.brokers[2].gate = True
    rig.wait(three, mb3="up")


def test_a_removed_broker_disappears(rig: Rig) -> None:
    rig.start(rig.inventory(3))
    apply(rig.inventory(2))
    assert list(rig.verdicts(rig.inventory(2))) == ["mb1", "mb2"]


def test_connections_outlive_a_reload(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up", mb2="up")
    with rig.client() as connection:
        apply(rig.inventory(3))
        connection.sendall(b"still there?")
        assert connection.recv(100) == b"still there?"


def test_a_drain_moves_nobody_and_takes_nobody(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up", mb2="up")
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(rig.client())
        held = rig.brokers[0].clients
        assert held == 2
        assert agents.drain(two, "mb1")["haproxy"].sessions == 2
        rig.come_and_go(20)
        assert rig.brokers[0].clients == held
        assert agents.ready(two, "mb1")["haproxy"].verdict == "up"


def test_a_drain_outlives_a_crash_of_haproxy(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up", mb2="up")
    agents.drain(two, "mb1")
    save_state(two)
    rig.kill()
    rig.agents[0].mute = True
    rig.start(two)
    rig.wait(two, mb1="drain", mb2="up")
    assert rig.servers(two)["mb1"].drained


def test_a_frozen_broker_is_left_and_its_sessions_are_cut(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up", mb2="up")
    with rig.client() as one, rig.client() as other:
        rig.brokers[0].frozen = True
        rig.wait(two, within_s=60, mb1="down")
        ended = [_ends(connection) for connection in (one, other)]
    assert sorted(ended) == [False, True]
    rig.brokers[0].frozen = False
    rig.wait(two, mb1="up")


def test_a_silent_agent_changes_nothing(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up", mb2="up")
    agents.drain(two, "mb2")
    for agent in rig.agents[:2]:
        agent.mute = True
    with rig.client() as connection:

        def noticed() -> bool:
            return all(server.agent not in STATES_BY_AGENT for server in rig.servers(two).values())

        eventually(noticed, within_s=60, what="HAProxy gets no answer from the agents")
        assert rig.verdicts(two) == {"mb1": "up", "mb2": "drain"}
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"


def test_a_dead_agent_is_skipped_within_the_request(rig: Rig) -> None:
    two = rig.inventory(2)
    for agent in rig.agents[:2]:
        agent.text = "mb1:5672\n"
    rig.start(two)
    eventually(lambda: httpx.get(rig.list_url, verify=False).is_success, within_s=60)
    rig.agents[0].http.socket.close()
    answers = [
        httpx.get(rig.list_url, verify=False, timeout=2 * FACTOR).status_code for _ in range(10)
    ]
    assert answers == [200] * 10


def test_an_agent_that_dies_in_a_fetch_is_replaced_by_another(rig: Rig) -> None:
    two = rig.inventory(2)
    for agent in rig.agents[:2]:
        agent.text = "mb1:5672\n"
    rig.start(two)
    eventually(lambda: httpx.get(rig.list_url, verify=False).is_success, within_s=60)
    rig.agents[0].dies_in.add("/consumer-list")
    assert [httpx.get(rig.list_url, verify=False).status_code for _ in range(6)] == [200] * 6


def test_a_post_that_may_have_arrived_is_not_repeated(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    url = rig.list_url.replace("/consumer-list", "/topology")
    for agent in rig.agents[:2]:
        agent.dies_in.add("/topology")
    answer = httpx.post(url, json={"wanted": ["orders"]})
    assert answer.status_code == 502
    assert sum(agent.requests.count("POST /topology") for agent in rig.agents) == 1


@pytest.mark.parametrize("path", ["/drain", "/clients", "/topology/merge", "/metrics", "/"])
def test_what_operators_ask_of_one_agent_is_not_on_the_list_port(rig: Rig, path: str) -> None:
    rig.start(rig.inventory(2))
    url = rig.list_url.replace("/consumer-list", path)
    assert httpx.get(url).status_code == 404
    assert httpx.post(url, json={}).status_code == 404


def test_the_statistics_port_has_a_page_and_metrics(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up")
    base = f"http://{HOST}:{rig.ports[2]}"
    assert "mb_brokers" in httpx.get(f"{base}/").text
    metrics = httpx.get(f"{base}/metrics").text
    assert 'haproxy_server_status{proxy="mb_brokers",server="mb1",state="UP"} 1' in metrics


def test_a_broker_gets_no_more_connections_than_it_is_allowed(rig: Rig) -> None:
    rig.inventory(1)
    path = rig.folder / "inventory.toml"
    path.write_text(
        path.read_text().replace(
            "sessions_max = 400", "sessions_max = 400\nserver_sessions_max = 2"
        )
    )
    one = load(path)
    rig.start(one)
    rig.wait(one, mb1="up")
    with rig.client(), rig.client():
        with pytest.raises(ConnectionError), rig.client():
            raise AssertionError("a third connection")
        assert rig.servers(one)["mb1"].sessions == 2
    eventually(lambda: rig.servers(one)["mb1"].sessions == 0, within_s=60)
    rig.come_and_go(1)


def test_the_admin_socket_is_its_owners(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    assert two.balancer.socket.stat().st_mode & 0o777 == 0o600


def test_by_hand_a_broker_is_taken_out_and_back(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up", mb2="up")
    path = two.balancer.socket
    eventually(lambda: rig.servers(two)["mb1"].agent in STATES_BY_AGENT, within_s=60)
    with pytest.raises(LbError, match="the agent of mb1 answers and would undo it"):
        runtime.maint(path, "mb1", on=True)
    rig.agents[0].mute = True
    eventually(lambda: rig.servers(two)["mb1"].agent not in STATES_BY_AGENT, within_s=60)
    runtime.maint(path, "mb1", on=True)
    apply(two, reload=True)
    assert rig.verdicts(two)["mb1"] == "maint"
    runtime.maint(path, "mb1", on=False)
    rig.wait(two, mb1="up")
    runtime.set_weight(path, "mb1", 40)
    assert rig.servers(two)["mb1"].weight == 40


def test_what_cannot_be_bound_is_rolled_back(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    two = rig.inventory(2)
    rig.start(two)
    rig.wait(two, mb1="up", mb2="up")
    before = two.balancer.config.read_text()
    monkeypatch.setattr("lb.apply.RELOAD_WITHIN_S", 3 * FACTOR)
    with socket.create_server((HOST, 0)) as taken, rig.client() as connection:
        bad = rig.inventory(2, stats_port=taken.getsockname()[1])
        with pytest.raises(ApplyFailed, match="the one before is back"):
            apply(bad)
        connection.sendall(b"x")
        assert connection.recv(1) == b"x"
    assert two.balancer.config.read_text() == before
    rig.come_and_go(1)
    assert apply(rig.inventory(3)).reloaded


def test_what_haproxy_refuses_is_told_and_nothing_changes(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    before = runtime.process(two.balancer.socket)
    path = rig.folder / "inventory.toml"
    path.write_text(path.read_text().replace('stats = "127.0.0.1:', 'stats = "[1:2]:'))
    with pytest.raises(ConfigError, match="HAProxy refuses the configuration: "):
        apply(load(path))
    assert runtime.process(two.balancer.socket).pid == before.pid


def test_the_same_inventory_reloads_nothing(rig: Rig) -> None:
    two = rig.inventory(2)
    rig.start(two)
    before = runtime.process(two.balancer.socket).pid
    assert not apply(two).reloaded
    assert runtime.process(two.balancer.socket).pid == before


def _ends(connection: socket.socket) -> bool:
    """Return whether the other side has ended this connection."""
    connection.settimeout(0.5 * FACTOR)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True

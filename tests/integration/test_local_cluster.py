"""A whole local cluster: it comes up, breaks on demand, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from lb.runtime import servers
from messagebus.broker import BrokerList
from ops.errors import LocalFault
from ops.local import preflight, process
from ops.local import servers as local_servers
from ops.local.cluster import LocalCluster
from ops.local.layout import Layout, Server
from tests.support.cluster import MakeCluster, end
from tests.support.eventually import eventually

# Linux gives the whole of 127.0.0.0/8 to loopback; no other test uses this part of it.
NETWORK = f"127.251.{os.getpid() % 250}"


def test_every_broker_calls_itself_as_the_list_does(cluster: LocalCluster) -> None:
    for name in cluster.names:
        with cluster.management(name) as management:
            overview = management.get("/api/overview").raise_for_status().json()
        assert overview["cluster_name"] == cluster.node(name).broker
    served = httpx.get(cluster.list_url, trust_env=False).raise_for_status().text
    wanted = {cluster.node(name).broker for name in cluster.names}
    assert BrokerList.parse(served).names == wanted


def test_status_tells_programs_where_everything_is(cluster: LocalCluster) -> None:
    argv = [sys.executable, "-m", "ops", "local", "status", "--json", "--dir", str(cluster.dir)]
    status = json.loads(subprocess.run(argv, check=True, capture_output=True, timeout=60).stdout)
    assert status["broker"] == cluster.broker
    assert Path(status["password_file"]).read_text() == cluster.password.reveal()
    brokers = [part for part in status["parts"] if part["kind"] == "broker"]
    assert [part["name"] for part in brokers] == ["mb1", "mb2", "mb3"]
    assert {(part["state"], part["agent_state"], part["verdict"]) for part in brokers} == {
        ("running", "running", "ready")
    }
    assert all(Path(f"/proc/{part['pid']}").exists() for part in status["parts"])


def test_a_killed_broker_is_gone_ends_a_wait_for_it_and_comes_back(cluster: LocalCluster) -> None:
    cluster.kill("mb2")
    assert cluster.process_of("mb2") is None
    assert process.marked(f"{cluster.dir}#mb2#") == []
    assert [part["state"] for part in cluster.status()["parts"] if part["name"] == "mb2"] == [
        "gone"
    ]
    with pytest.raises(LocalFault, match="mb2 does not run"):
        cluster.kill("mb2")
    with pytest.raises(LocalFault, match=r"mb2 has ended: .*mb2\.log"):
        cluster.wait_ready()
    cluster.start("mb2")
    cluster.wait_ready()


def test_servers_beside_the_brokers_come_and_go_with_the_cluster(tmp_path: Path) -> None:
    def local(*words: str) -> str:
        argv = [sys.executable, "-m", "ops", "local", *words, "--dir", str(tmp_path / "c")]
        return subprocess.run(argv, check=True, capture_output=True, timeout=300, text=True).stdout

    made = LocalCluster(tmp_path / "c", 1, network=NETWORK)
    try:
        made.up()
        local("up", "--with", "redis:always,postgresql,mariadb")
        parts = {part["name"]: part for part in json.loads(local("status", "--json"))["parts"]}
        for name in ("redis", "postgresql", "mariadb"):
            assert parts[name]["state"] == "running", name
            assert Path(parts[name]["password_file"]).stat().st_mode & 0o077 == 0
            assert local_servers.serves(_server(made, name))
        made.kill("postgresql")
        assert not local_servers.serves(_server(made, "postgresql"))
        made.up()
        assert local_servers.serves(_server(made, "postgresql"))
        made.freeze("postgresql")
        local("down")
        parts = {part["name"]: part for part in json.loads(local("status", "--json"))["parts"]}
        assert {part["state"] for part in parts.values()} == {"stopped"}
    finally:
        end(made)
    local("down", "--wipe")
    assert not (tmp_path / "c").exists()


def _server(cluster: LocalCluster, name: str) -> Server:
    return next(server for server in cluster.layout.servers if server.name == name)


def test_a_frozen_broker_is_taken_out_and_comes_back(cluster: LocalCluster) -> None:
    cluster.freeze("mb3")
    admin = cluster.layout.front.admin_socket
    eventually(lambda: servers(admin)["mb3"].verdict == "down", within_s=60)
    with pytest.raises(LocalFault, match="mb3"):
        cluster.wait_ready(within_s=0)
    cluster.thaw("mb3")
    cluster.wait_ready()


def test_up_brings_back_whatever_is_missing_and_touches_nothing_else(cluster: LocalCluster) -> None:
    kept = cluster.process_of("mb1")
    cluster.kill("mb2-agent")
    cluster.kill("haproxy")
    cluster.up()
    assert cluster.process_of("mb1") == kept
    assert cluster.process_of("mb2", agent=True)
    assert cluster.process_of("haproxy")


@pytest.fixture(scope="module")
def single(make_cluster: MakeCluster) -> LocalCluster:
    """A cluster of one broker, which each test brings up where it does not run."""
    return make_cluster(1)


def test_a_cluster_that_was_stopped_comes_back_with_its_data_and_leaves_nothing_running(
    single: LocalCluster,
) -> None:
    cluster = single
    cluster.up()
    password = cluster.password
    with cluster.management("mb1") as management:
        management.put("/api/queues/%2F/kept", json={"durable": True}).raise_for_status()
    cluster.freeze("mb1", agent=True)
    cluster.down()
    assert process.marked(f"{cluster.dir}#") == []
    cluster.up()
    assert cluster.password == password
    with cluster.management("mb1") as management:
        assert management.get("/api/queues/%2F/kept").status_code == 200


def test_a_cluster_keeps_the_programs_that_it_was_made_with(tmp_path: Path) -> None:
    made = Layout(dir=tmp_path, numbers=(1,), root=Path("/roots/sid"))
    (tmp_path / "cluster.json").write_text(made.to_json())
    with pytest.raises(LocalFault, match="has its programs in /roots/sid; take another folder"):
        LocalCluster(tmp_path, root=Path("/")).up()


def test_a_taken_port_moves_all_ports_together_and_it_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    cluster = LocalCluster(tmp_path / "c", 1, network=NETWORK, say=said.append)
    with socket.create_server((f"{NETWORK}.11", 5672)):
        try:
            cluster.up()
            assert cluster.broker == f"{NETWORK}.10:6672"
            assert cluster.node("mb1").broker == f"{NETWORK}.11:6672"
            assert said == [
                f"default ports are in use: all ports are 1000 higher, AMQP is {NETWORK}.10:6672"
            ]
            served = httpx.get(cluster.list_url, trust_env=False).text
            assert f"{NETWORK}.11:6672 agent=9081" in served
        finally:
            end(cluster)


def test_a_port_that_was_asked_for_and_is_taken_is_told_before_anything_starts(
    tmp_path: Path,
) -> None:
    cluster = LocalCluster(tmp_path / "c", 1, network=NETWORK, port_offset=0)
    with (
        socket.create_server((f"{NETWORK}.11", 15672)),
        pytest.raises(LocalFault, match=rf"in use: {NETWORK}\.11:15672"),
    ):
        cluster.up()
    assert process.marked(str(cluster.dir)) == []


def test_a_pid_file_of_somebody_else_is_never_signalled(
    single: LocalCluster, tmp_path: Path
) -> None:
    cluster = single
    other = process.spawn(
        ["/bin/sleep", "60"], env={}, log=tmp_path / "log", pid_file=tmp_path / "pid", mark="other"
    )
    try:
        cluster.up()
        mine = cluster.process_of("mb1")
        assert mine
        # Started at another time than the file says: the number was given out again.
        (cluster.dir / "run" / "mb1.pid").write_text(f"{other.pid} {other.started - 1}\n")
        assert cluster.process_of("mb1") is None
        cluster.down()
        assert other.is_alive
        # Not by its pid file, but by its mark.
        assert not mine.is_alive
    finally:
        process.kill([other])
        end(cluster)


def test_an_interrupted_start_stops_what_it_started(tmp_path: Path) -> None:
    folder = tmp_path / "c"
    argv = [sys.executable, "-m", "ops", "local", "up", "--dir", str(folder), "--network", NETWORK]
    starter = subprocess.Popen(argv, stderr=subprocess.PIPE, text=True)
    eventually(lambda: len(process.marked(f"{folder}#mb")) >= 3, within_s=60)
    starter.send_signal(signal.SIGINT)
    _, said = starter.communicate(timeout=60)
    assert starter.returncode == 130
    assert said.splitlines()[-1] == "ops: interrupted"
    assert process.marked(str(folder)) == []


def test_a_wipe_leaves_nothing_of_playbooks_either(tmp_path: Path) -> None:
    folder = tmp_path / "cluster"
    (folder / "journal").mkdir(parents=True)
    (folder / "journal" / "add mb4.ndjson").touch()
    (folder / "ops.lock").touch()
    (folder / "cluster.json").write_text(Layout(dir=folder, numbers=(1,)).to_json())
    LocalCluster(folder).down(wipe=True)
    assert not folder.exists()


# Two clusters never take the same ports, not even when both look at the same moment.
CLAIMED = f"127.252.{os.getpid() % 250}"
LAYOUT = Layout(dir=Path("/c"), numbers=(1, 2), network=CLAIMED)


def test_the_second_of_two_starters_takes_other_ports() -> None:
    first = preflight.claim_ports(LAYOUT)
    second = preflight.claim_ports(LAYOUT)
    try:
        assert (first.layout.offset, second.layout.offset) == (0, 1000)
        assert first.layout.block != second.layout.block
    finally:
        first.release()
        second.release()


def test_released_ports_are_free_again() -> None:
    for _ in range(2):
        claim = preflight.claim_ports(LAYOUT)
        assert claim.layout.offset == 0
        claim.release()


def test_a_cluster_prefers_the_ports_that_it_had() -> None:
    first = preflight.claim_ports(LAYOUT)
    second = preflight.claim_ports(first.layout)
    second.release()
    again = preflight.claim_ports(second.layout)
    again.release()
    first.release()
    assert again.layout == second.layout


def test_a_taken_port_moves_all_or_is_told() -> None:
    with socket.create_server((f"{CLAIMED}.12", 8082)):
        claim = preflight.claim_ports(LAYOUT)
        claim.release()
        assert claim.layout.offset == 1000
        with pytest.raises(LocalFault, match=rf"in use: {CLAIMED}\.12:8082"):
            preflight.claim_ports(LAYOUT, port_offset=0)


def test_a_listener_on_all_addresses_counts() -> None:
    with socket.create_server(("0.0.0.0", 0)) as everywhere:
        port = everywhere.getsockname()[1]
        assert preflight.taken([("127.0.0.77", port)]) == [f"127.0.0.77:{port}"]

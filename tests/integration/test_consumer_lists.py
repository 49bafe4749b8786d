"""The lists' kit with real agents: pushed lists are served, and the lists that clients applied are known."""

from __future__ import annotations

import getpass
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from consumer_lists import listfile, nodes
from consumer_lists.errors import PushRefused
from consumer_lists.nodes import Cluster
from consumer_lists.push import push, recover
from inventory.inventory import load
from messagebus.broker import Broker, BrokerList
from messagebus.files import write_whole
from ops.local.cluster import LocalCluster
from tests.support.eventually import FACTOR, eventually
from tests.support.sshd import ssh_server


@pytest.fixture
def lists(cluster: LocalCluster) -> Iterator[Cluster]:
    """The shared cluster's list; the same brokers are on it before and after, none draining."""
    read = Cluster.of(load(cluster.inventory))
    before = BrokerList.parse(listfile.read(read.list_file))
    yield read
    now = BrokerList.parse(listfile.read(read.list_file))
    if now.listed != before.listed:
        text = BrokerList(cluster=before.cluster, listed=before.listed).render()
        write_whole(read.list_file, listfile.with_generation(text, now.generation + 1))
    assert push(read).complete


def test_an_edit_is_pushed_and_served_by_every_agent(lists: Cluster) -> None:
    broker = BrokerList.parse(listfile.read(lists.list_file)).listed[0].broker
    changed = listfile.change(lists.list_file, lambda text: listfile.drain(text, broker))
    pushed = push(lists)
    assert pushed.complete
    assert len(pushed.serving) == len(lists.nodes)
    assert {answer.generation for answer in nodes.served(lists.nodes)} == {changed.generation}


def test_a_push_wakes_those_who_wait(cluster: LocalCluster, lists: Cluster) -> None:
    generation = BrokerList.parse(listfile.read(lists.list_file)).generation
    url = f"{cluster.list_url}?generation={generation}&wait_s=30&client=w&subscription=t/s"
    fetch = (
        "import httpx, os, sys;"
        " login = 'bus', os.environ['PASSWORD'];"
        " print(httpx.get(sys.argv[1], auth=login, timeout=60, trust_env=False).text)"
    )
    argv = [sys.executable, "-c", fetch, url]
    env = {**os.environ, "PASSWORD": cluster.password.reveal()}
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, env=env) as waiting:
        try:
            eventually(lambda: _is_heard_of(lists, "w"), within_s=60)
            listfile.change(lists.list_file, lambda text: listfile.drain(text, _last(text)))
            push(lists)
            told, _ = waiting.communicate(timeout=60 * FACTOR)
        finally:
            waiting.kill()
    assert BrokerList.parse(told).generation == generation + 1


def test_what_clients_have_applied_is_the_union_over_agents(
    cluster: LocalCluster, lists: Cluster
) -> None:
    first, second = lists.nodes[0].agent, lists.nodes[1].agent
    login = ("bus", cluster.password.reveal())
    newest = BrokerList.parse(listfile.read(lists.list_file)).generation
    for agent, applied in ((first, newest - 1), (second, newest)):
        for client, auth in (("roamer", login), ("stranger", ("bus", "wrong"))):
            query = f"client={client}&subscription=t/s&generation={applied - 1}&applied={applied}"
            url = f"http://{agent}/consumer-list?{query}"
            httpx.get(url, auth=auth, timeout=60, trust_env=False).raise_for_status()

    def applied_by(client: str) -> list[int]:
        known, silent = nodes.clients(lists.nodes)
        assert silent == {}
        return [one.applied for one in known if one.id == client]

    eventually(lambda: applied_by("roamer") == [newest], within_s=60)
    assert applied_by("stranger") == [], "a client counts with a good login only"


def test_an_older_list_is_refused_and_recovered(lists: Cluster) -> None:
    text = listfile.read(lists.list_file)
    newest = BrokerList.parse(text).generation
    write_whole(lists.list_file, listfile.with_generation(text, 1))
    with pytest.raises(PushRefused, match=f"serves generation {newest}, above 1"):
        push(lists)
    recovered = recover(lists)
    assert recovered.complete
    assert recovered.generation > newest


def test_a_dead_agent_is_named_and_catches_up(cluster: LocalCluster, lists: Cluster) -> None:
    cluster.kill("mb2", agent=True)
    try:
        listfile.change(lists.list_file, lambda text: listfile.drain(text, _last(text)))
        pushed = push(lists, within_s=2)
        assert list(pushed.differing) == ["mb2"]
        assert "mb1" in pushed.serving
    finally:
        cluster.start("mb2", agent=True)
    eventually(lambda: push(lists, within_s=0).complete, within_s=60)


def test_the_command_edits_pushes_and_shows(cluster: LocalCluster, lists: Cluster) -> None:
    name = cluster.node("mb3").broker
    assert _command(cluster, "drain", name).returncode == 0
    assert _command(cluster, "diff").returncode == 7
    assert _command(cluster, "push").returncode == 0
    # Clients of other tests, which ended a moment ago, may still be told.
    assert "mb" not in {line[:2] for line in _command(cluster, "diff").stdout.splitlines()}
    shown = json.loads(_command(cluster, "show", "--json").stdout)
    assert all(node["same"] for node in shown["nodes"])
    assert _command(cluster, "ready", name).returncode == 0
    assert _command(cluster, "push").returncode == 0
    again = _command(cluster, "ready", name)
    assert (again.returncode, again.stderr) == (1, f"consumer_lists: {name} is not draining\n")


@pytest.mark.guarantee("push-contradicts-nothing")
def test_a_list_is_pushed_over_ssh_and_a_host_that_is_down_is_told(
    cluster: LocalCluster, lists: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ssh_server(tmp_path / "sshd") as server:
        monkeypatch.setenv("MESSAGEBUS_SSH_CONFIG", str(server.config))
        far = _on_hosts(cluster, tmp_path / "inventory.toml", server.address, "root@127.0.0.1:1")
        listfile.change(lists.list_file, lambda text: listfile.drain(text, _last(text)))
        pushed = _command(cluster, "--inventory", str(far), "push", "--within-s", "2")
    assert pushed.returncode == 3
    assert pushed.stderr.startswith("mb2 differs: not written: mkdir on root@127.0.0.1:1: ")
    assert pushed.stderr.count("\n") == 1
    assert "is served by 2 of 3 nodes\n" in pushed.stdout
    assert lists.nodes[0].list_file.read_text() == lists.list_file.read_text()
    assert lists.nodes[1].list_file.read_text() != lists.list_file.read_text()
    assert _command(cluster, "diff").stdout.startswith("mb2: generation ")


def test_the_second_of_two_operators_is_refused(cluster: LocalCluster, lists: Cluster) -> None:
    before = listfile.read(lists.list_file)
    with listfile.locked(lists.list_file):
        for words in (("drain", cluster.node("mb1").broker), ("push",), ("push", "--recover")):
            refused = _command(cluster, *words)
            assert refused.returncode == 1
            assert (
                f"is being edited by {getpass.getuser()}, process {os.getpid()}" in refused.stderr
            )
    assert listfile.read(lists.list_file) == before


@pytest.mark.guarantee("push-contradicts-nothing")
def test_of_two_copies_of_a_list_the_second_to_be_pushed_is_refused(
    cluster: LocalCluster, lists: Cluster, tmp_path: Path
) -> None:
    copy = tmp_path / "list.txt"
    copy.write_text(listfile.read(lists.list_file))
    other = replace(lists, list_file=copy)
    listfile.change(copy, lambda text: listfile.drain(text, _last(text)))
    listfile.change(lists.list_file, lambda text: listfile.add(text, Broker.parse("127.0.0.99:1")))
    assert push(lists).complete
    with pytest.raises(PushRefused, match="serves another list of generation"):
        push(other)


@pytest.mark.guarantee("push-contradicts-nothing")
def test_the_list_of_another_cluster_on_a_node_stops_a_push(lists: Cluster, tmp_path: Path) -> None:
    text = listfile.read(lists.list_file)
    copy = tmp_path / "list.txt"
    copy.write_text(listfile.with_generation(text, 10**6).replace(lists.name, "elsewhere"))
    for act in (push, recover):
        with pytest.raises(PushRefused, match=f"mb1 serves the list of '{lists.name}'"):
            act(replace(lists, name="elsewhere", list_file=copy))
    assert lists.nodes[0].list_file.read_text() == text


def _on_hosts(cluster: LocalCluster, path: Path, good: str, dead: str) -> Path:
    """Return the cluster's inventory as if its nodes were on hosts: the second on one that is down."""
    lines = cluster.inventory.read_text().splitlines()
    text = "\n".join(_absolute(line, cluster.inventory.parent) for line in lines)
    for name in ("mb1", "mb2", "mb3"):
        host = "down" if name == "mb2" else "up"
        text = text.replace(f'name = "{name}"', f'name = "{name}"\nhost = "{host}"')
    for name, ssh in (("up", good), ("down", dead)):
        text += f'\n[[hosts]]\nname = "{name}"\nssh = "{ssh}"\n'
    path.write_text(text)
    return path


def _absolute(line: str, base: Path) -> str:
    key, sign, value = line.partition(' = "')
    return f"{key}{sign}{base}/{value}" if key.endswith(("_file", "list_file")) else line


def _is_heard_of(lists: Cluster, client: str) -> bool:
    return any(one.id == client for one in nodes.clients(lists.nodes)[0])


def _last(text: str) -> Broker:
    return BrokerList.parse(text).listed[-1].broker


def _command(cluster: LocalCluster, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "consumer_lists", *words],
        env={**os.environ, "MESSAGEBUS_INVENTORY": str(cluster.inventory)},
        capture_output=True,
        text=True,
        timeout=60 * FACTOR,
        check=False,
    )

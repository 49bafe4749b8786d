"""Lists pushed to nodes, and asked of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from consumer_lists import listfile
from consumer_lists import nodes as nodes_module
from consumer_lists import push as pushing
from consumer_lists.errors import Locked, PushRefused
from consumer_lists.nodes import Cluster, Node
from inventory.inventory import parse
from messagebus.errors import ListInvalid
from messagebus.tls import TlsFiles
from tests.support.agents_http import AgentsHttp, cluster_of
from tests.support.balancer import BASE, inventory_values, mirrored_values

OURS = "# cluster: prod\n# generation: 7\nmb1\nmb2\n"


class Nodes:
    """Three nodes; each serves the list written to it, unless it is stuck or its disk is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self.http = AgentsHttp(monkeypatch)
        self.cluster: Cluster = cluster_of(folder, ["a", "b", "c"])
        self.cluster.list_file.write_text(OURS)
        self.stuck: set[str] = set()
        self.full: set[str] = set()
        self.written: list[str] = []
        monkeypatch.setattr(pushing, "POLL_S", 0)

    def attach(self, name: str, applied: int) -> None:
        """Attach a client that asks the agent of this name."""
        client = {"id": "x", "subscription": "s", "applied": applied, "age_s": 1, "waits": True}
        answer = {"clients": [client], "left": []}
        self.http.answers[f"{name}:8081/clients"] = json.dumps(answer)

    def serve(self, name: str, text: str) -> None:
        self.http.answers[f"{name}:8081/consumer-list"] = text

    def write(self, node: Node, path: Path, text: str) -> None:
        assert path == node.list_file
        if node.name in self.full:
            raise OSError("no space left")
        self.written.append(node.name)
        if node.name not in self.stuck:
            self.serve(node.name, text)

    def push(self) -> pushing.Pushed:
        return pushing.push(self.cluster, write=self.write, within_s=0)

    def recover(self) -> pushing.Pushed:
        return pushing.recover(self.cluster, write=self.write, within_s=0)


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Nodes:
    return Nodes(monkeypatch, tmp_path)


def test_every_node_gets_and_serves_it(nodes: Nodes) -> None:
    pushed = nodes.push()
    assert pushed == pushing.Pushed(generation=7, serving=("a", "b", "c"))
    assert pushed.complete
    assert sorted(nodes.written) == ["a", "b", "c"]


def test_pushing_again_changes_nothing(nodes: Nodes) -> None:
    nodes.push()
    assert nodes.push().complete


def test_nodes_that_differ_are_named_with_the_reason(nodes: Nodes) -> None:
    nodes.serve("b", OURS.replace("7", "6"))
    nodes.stuck = {"a", "b"}
    nodes.full = {"c"}
    pushed = nodes.push()
    assert pushed.differing == {
        "a": "Connection refused",
        "b": "serves generation 6",
        "c": "not written: no space left",
    }
    assert pushed.serving == ()


def test_a_node_that_serves_a_newer_list_stops_everything(nodes: Nodes) -> None:
    nodes.serve("b", OURS.replace("7", "8"))
    with pytest.raises(PushRefused, match="b serves generation 8, above 7"):
        nodes.push()
    assert nodes.written == []


def test_an_edit_by_hand_without_a_new_generation_stops_everything(nodes: Nodes) -> None:
    nodes.push()
    nodes.cluster.list_file.write_text(OURS + "mb3\n")
    with pytest.raises(PushRefused, match="serves another list of generation 7"):
        nodes.push()


def test_the_list_of_another_cluster_is_refused(nodes: Nodes) -> None:
    nodes.cluster.list_file.write_text(OURS.replace("prod", "test"))
    with pytest.raises(PushRefused, match="of 'test', the inventory of 'prod'"):
        nodes.push()


def test_a_bad_list_is_not_pushed(nodes: Nodes) -> None:
    nodes.cluster.list_file.write_text("mb1:0\n")
    with pytest.raises(ListInvalid):
        nodes.push()
    assert nodes.written == []


def test_two_operators_do_not_push_at_once(nodes: Nodes) -> None:
    with listfile.locked(nodes.cluster.list_file), pytest.raises(Locked):
        nodes.push()


def test_recovering_goes_above_what_nodes_serve(nodes: Nodes) -> None:
    nodes.serve("b", OURS.replace("7", "12"))
    for name in "abc":
        nodes.http.answers[f"{name}:8081/clients"] = '{"clients": [], "left": []}'
    assert nodes.recover() == pushing.Pushed(generation=13, serving=("a", "b", "c"))
    assert "# generation: 13\n" in nodes.cluster.list_file.read_text()


def test_recovering_goes_above_what_clients_have_applied(nodes: Nodes) -> None:
    nodes.attach("c", applied=40)
    recovered = nodes.recover()
    assert recovered.generation == 41
    assert recovered.silent == {"a": "Connection refused", "b": "Connection refused"}


def test_recovering_tells_who_knows_the_newest_generation(nodes: Nodes) -> None:
    nodes.attach("c", applied=40)
    told = "from generation 7 above 40: client x of s says it has applied it"
    assert nodes.recover().jump == told
    nodes.serve("b", OURS.replace("7", "60"))
    assert nodes.recover().jump == "from generation 41 above 60: b serves it"


def test_a_jump_that_cannot_be_taken_back_is_made_when_it_is_meant(nodes: Nodes) -> None:
    nodes.attach("c", applied=10**18 - 2)
    with pytest.raises(PushRefused, match=r"client x of s says .* more than 1000 at once"):
        nodes.recover()
    assert nodes.written == []
    assert nodes.cluster.list_file.read_text() == OURS
    nodes.attach("c", applied=6 + pushing.JUMP_MAX)
    assert nodes.recover().generation == 7 + pushing.JUMP_MAX
    nodes.attach("c", applied=5_000)
    meant = pushing.recover(nodes.cluster, write=nodes.write, within_s=0, is_jump_meant=True)
    assert meant.generation == 5_001


def test_a_client_that_has_applied_a_newer_list_stops_everything(nodes: Nodes) -> None:
    nodes.attach("c", applied=8)
    with pytest.raises(PushRefused, match="client x of s has applied generation 8, above 7"):
        nodes.push()
    assert nodes.written == []


@pytest.mark.parametrize("act", ["push", "recover"])
def test_a_node_that_serves_another_cluster_s_list_stops_everything(nodes: Nodes, act: str) -> None:
    nodes.serve("b", OURS.replace("prod", "test"))
    with pytest.raises(PushRefused, match="b serves the list of 'test', not of 'prod'"):
        getattr(nodes, act)()
    assert nodes.written == []
    assert nodes.cluster.list_file.read_text() == OURS


def test_recovering_goes_above_our_own_file(nodes: Nodes) -> None:
    nodes.serve("a", OURS.replace("7", "3"))
    assert nodes.recover().generation == 8


def test_files_are_written_on_this_machine_by_default(nodes: Nodes) -> None:
    for node in nodes.cluster.nodes:
        nodes.serve(node.name, OURS)
    assert pushing.push(nodes.cluster, within_s=0).complete
    assert [node.list_file.read_text() for node in nodes.cluster.nodes] == [OURS] * 3


A, B, C = cluster_of(Path("/x"), ["a", "b", "c"]).nodes


@pytest.fixture
def http(monkeypatch: pytest.MonkeyPatch) -> AgentsHttp:
    return AgentsHttp(monkeypatch)


def _clients(*seen: tuple[str, int, float]) -> str:
    same = {"subscription": "orders/billing", "waits": True}
    clients = [
        {"id": name, "applied": applied, "age_s": age_s, **same} for name, applied, age_s in seen
    ]
    return json.dumps({"clients": clients, "left": []})


def test_every_node_is_told_in_order_also_those_that_do_not_answer(http: AgentsHttp) -> None:
    http.answers = {
        "a:8081/consumer-list": "# generation: 4\nmb1\n",
        "c:8081/consumer-list": "<html>",
    }
    one, two, three = nodes_module.served([A, B, C])
    assert (one.node, one.generation, one.fault) == ("a", 4, "")
    assert (two.node, two.generation, two.fault) == ("b", 0, "Connection refused")
    assert three.fault.startswith("no list: line 1: ")


def test_an_agent_without_a_list_is_told_in_its_words(http: AgentsHttp) -> None:
    http.answers = {"a:8081/consumer-list": 503}
    assert nodes_module.served([A])[0].fault == "503 no list"


def test_of_a_client_the_newest_word_counts(http: AgentsHttp) -> None:
    http.answers = {
        "a:8081/clients": _clients(("one", 3, 40.0), ("two", 4, 1.0)),
        "b:8081/clients": _clients(("one", 4, 2.0), ("two", 3, 30.0)),
    }
    known, silent = nodes_module.clients([A, B, C])
    assert [(client.id, client.applied) for client in known] == [("one", 4), ("two", 4)]
    assert silent == {"c": "Connection refused"}


def test_words_of_about_the_same_age_are_told_apart_by_the_generation(http: AgentsHttp) -> None:
    """A client that was answered by one agent asks another at once, with the new generation."""
    http.answers = {
        "a:8081/clients": _clients(("one", 3, 0.201), ("two", 2, 0.0)),
        "b:8081/clients": _clients(
            ("one", 4, 0.204), ("two", 9, nodes_module.ANSWER_WITHIN_S + 0.1)
        ),
    }
    known, _ = nodes_module.clients([A, B])
    assert [(client.id, client.applied) for client in known] == [("one", 4), ("two", 2)]


def test_a_client_that_left_an_agent_is_not_held_against_by_those_it_asked_before(
    http: AgentsHttp,
) -> None:
    """Unless it waits at one of them, or asked there since."""

    def known_to(agent: str, *clients: dict[str, object], left: object = ()) -> None:
        seen = [
            {"subscription": "orders/billing", "applied": 3, "age_s": 50.0, "waits": False, **each}
            for each in clients
        ]
        http.answers[f"{agent}:8081/clients"] = json.dumps({"clients": seen, "left": left})

    left = [
        {"id": name, "subscription": "orders/billing", "age_s": 20.0}
        for name in ("ended", "shared", "moved")
    ]
    known_to("a", left=left)
    known_to("b", {"id": "ended"}, {"id": "shared", "waits": True}, {"id": "moved", "age_s": 19.0})
    known_to("c", {"id": "other"})
    known, _ = nodes_module.clients([A, B, C])
    assert [client.id for client in known] == ["moved", "other", "shared"]


@pytest.mark.parametrize("answer", ["{}", "[]", "<html>", '{"clients": [{"id": "x"}]}', "null"])
def test_an_answer_that_makes_no_sense_is_no_client(http: AgentsHttp, answer: str) -> None:
    http.answers = {"a:8081/clients": answer}
    known, silent = nodes_module.clients([A])
    assert known == []
    assert list(silent) == ["a"]


def test_nobody_to_ask_is_no_answer() -> None:
    assert nodes_module.served([]) == []
    assert nodes_module.clients([]) == ([], {})


def test_a_cluster_is_made_of_what_the_inventory_says() -> None:
    cluster = Cluster.of(parse(inventory_values(brokers=1), base=BASE))
    assert (cluster.name, cluster.list_file) == ("test", BASE / "lists/test.txt")
    assert cluster.nodes == (
        Node(
            name="mb1",
            address="10.0.1.1:5672",
            agent="10.0.1.1:8081",
            list_file=BASE / "nodes/mb1/list.txt",
        ),
    )


def test_where_agents_speak_tls_they_are_asked_with_certificates() -> None:
    values = inventory_values(brokers=1)
    files = {"ca_file": "ca.pem", "cert_file": "o.pem", "key_file": "o.key"}
    values["tls"] = {**files, "server_name": "bus", "check_cert_file": "check.pem"}
    (node,) = Cluster.of(parse(values, base=BASE)).nodes
    assert node.agent_url == "https://10.0.1.1:8081"
    assert node.tls == TlsFiles(**{key: f"{BASE}/{name}" for key, name in files.items()})


@pytest.mark.parametrize(
    ("changes", "hosts"),
    [
        ({}, ((), ())),
        ({"supervisor": "systemd"}, (("10.0.1.1",), ("10.0.1.2",))),
    ],
)
def test_where_a_node_s_list_is(changes: dict[str, str], hosts: tuple[Any, ...]) -> None:
    values = inventory_values() | changes
    values["hosts"] = [{"name": "a1", "ssh": "root@a1:2222"}]
    assert tuple(node.hosts for node in Cluster.of(parse(values, base=BASE)).nodes) == hosts
    values["brokers"][0]["host"] = "a1"
    assert Cluster.of(parse(values, base=BASE)).nodes[0].hosts == ("root@a1:2222",)


def test_the_list_of_a_mirrored_node_is_on_both_hosts() -> None:
    values = mirrored_values()
    values["hosts"][1] |= {"ssh": "op@a2", "sudo": "yes"}
    node = Cluster.of(parse(values, base=BASE)).nodes[0]
    assert node.hosts == ("root@10.77.0.1", "op@a2")
    assert node.sudo == {"op@a2"}

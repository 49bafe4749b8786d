"""consumer_lists.push: the lists that may go out, and the report on nodes that do not take them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from consumer_lists import listfile
from consumer_lists import push as pushing
from consumer_lists.errors import Locked, PushRefused
from consumer_lists.nodes import Cluster, Node
from messagebus.errors import ListInvalid
from tests.support.agents_http import AgentsHttp, cluster_of

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
        client = {"id": "x", "subscription": "s", "applied": applied, "age_s": 1}
        self.http.answers[f"{name}:8081/clients"] = json.dumps({"clients": [client]})

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
        nodes.http.answers[f"{name}:8081/clients"] = '{"clients": []}'
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

from __future__ import annotations

import dataclasses
import ssl
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from lb.errors import BalancerUnreachable
from lb.runtime import ServerState
from messagebus.errors import ListInvalid
from ops.cluster.management import Queue
from ops.cluster.members import Absent
from ops.cluster.view import View
from ops.errors import NoAnswer
from ops.local import files, secrets
from ops.local.certificates import issue_missing
from ops.local.layout import Layout
from tests.support.balancer import UP

Answers = Callable[[str, str], httpx.Response]


@pytest.fixture
def view(tmp_path: Path) -> View:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(files.inventory_toml(layout))
    secrets.ensure(layout.secrets_dir)
    return View(layout.inventory)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Part of an address -> its answer, a status or a JSON value."""
    known: dict[str, Any] = {}

    def request(method: str, url: str, **_more: object) -> httpx.Response:
        for part, answer in known.items():
            if part in url:
                if isinstance(answer, int):
                    return httpx.Response(answer, text="no such luck")
                return httpx.Response(200, json=answer)
        raise httpx.ConnectError("refused")

    monkeypatch.setattr("ops.cluster.management.httpx.request", request)
    return known


def test_a_list_that_is_no_text_is_refused_by_its_line(view: View) -> None:
    view.inventory.list_file.parent.mkdir(exist_ok=True)
    view.inventory.list_file.write_bytes(b"mb1:5672\nmb\xff:5672\n")
    with pytest.raises(ListInvalid, match="line 2: not UTF-8"):
        _ = view.listed


def test_queues_of_one_connection_do_not_count(view: View, answers: dict[str, Any]) -> None:
    answers["/api/queues"] = [
        {"name": "mb.sub/orders/billing", "messages": 3, "consumers": 1, "exclusive": False},
        {"name": "amq.gen-x", "messages": 0, "consumers": 1, "exclusive": True},
        {"name": "mb.queue/new"},
    ]
    assert view.brokers.queues("mb1") == [
        Queue(name="mb.sub/orders/billing", messages=3, consumers=1),
        Queue(name="mb.queue/new", messages=None, consumers=0),
    ]


def test_connections_are_those_of_applications_with_whether_they_consume(
    view: View, answers: dict[str, Any], tmp_path: Path
) -> None:
    inventory = Layout(dir=tmp_path, numbers=(1, 2)).inventory
    agent = '\n[[users]]\nname = "mb-agent"\nrole = "agent"\npassword_file = "agent"\n'
    inventory.write_text(inventory.read_text() + agent)
    answers["/api/connections"] = [
        {"name": "1 -> 2", "user": "bus", "client_properties": {"product": "java"}},
        {"name": "3 -> 2", "user": "bus", "peer_host": "10.0.0.1", "peer_port": 4},
        {"name": "4 -> 2", "user": "admin"},
        {"name": "5 -> 2", "user": "probe"},
        {"name": "6 -> 2", "user": "mb-agent"},
    ]
    of_an_ended_channel: list[str] = []
    answers["/api/consumers"] = [
        {"channel_details": {"connection_name": "3 -> 2"}},
        {"channel_details": of_an_ended_channel},
    ]
    answers["/api/channels"] = [
        {"connection_details": {"name": "3 -> 2"}, "messages_unacknowledged": 4},
        {"connection_details": {"name": "3 -> 2"}, "messages_unacknowledged": 1},
    ]
    found = view.brokers.connections("mb1")
    assert [(one.name, one.consumes, one.unacked) for one in found] == [
        ("1 -> 2", False, 0),
        ("3 -> 2", True, 5),
    ]
    assert [str(one) for one in found] == [
        "java at ?:? (user bus)",
        "10.0.0.1:4 (user bus, holds 5 deliveries)",
    ]


def test_maps_of_all_agents(view: View, answers: dict[str, Any]) -> None:
    entry = {"wanted": "orders", "number": 4, "origin": "a:1", "alive": True, "tomb": 0}
    answers["/topology"] = {"entries": [entry]}
    assert view.agents.maps() == {name: {"orders": (4, "a:1", True)} for name in ("mb1", "mb2")}


def test_an_import_and_an_export_have_the_time_that_five_thousand_queues_take(
    view: View, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker computes 6.2 ms for each queue that is imported: 31 s, on an idle host."""
    allowed_s: list[float] = []

    def request(
        _method: str, _url: str, *, timeout: httpx.Timeout, **_more: object
    ) -> httpx.Response:
        allowed_s.append(timeout.read or 0)
        return httpx.Response(200, json={})

    monkeypatch.setattr("ops.cluster.management.httpx.request", request)
    view.brokers.define("mb1", {})
    view.brokers.definitions("mb1")
    assert len(allowed_s) == 2
    assert min(allowed_s) >= 300


def test_who_does_not_answer_is_named(view: View, answers: dict[str, Any]) -> None:
    with pytest.raises(NoAnswer, match="agent of mb2 does not answer"):
        view.agents.health("mb2")
    answers["/api/queues"] = 401
    with pytest.raises(NoAnswer, match="management of mb1: HTTP 401 no such luck"):
        view.brokers.queues("mb1")


def test_an_answer_that_means_something_is_no_fault(view: View, answers: dict[str, Any]) -> None:
    answers["/api/connections"] = 404
    view.brokers.close_connection("mb1", "1 -> 2")


def test_queues_of_all_virtual_hosts_are_known_with_their_kind(
    view: View, answers: dict[str, Any]
) -> None:
    sac = {"x-single-active-consumer": True}
    answers["/api/queues"] = [
        {"name": "mb.queue/jobs", "vhost": "/", "messages": 3},
        {"name": "legacy", "vhost": "other", "type": "stream", "messages": 2, "arguments": sac},
    ]
    assert [queue.name for queue in view.brokers.queues("mb1")] == ["mb.queue/jobs"]
    legacy = view.brokers.all_queues("mb1")[1]
    assert legacy == Queue(
        name="legacy", messages=2, consumers=0, vhost="other", kind="stream", single_active=True
    )
    assert str(legacy) == "legacy of vhost other"


def test_a_get_that_cannot_be_had_says_nothing(
    view: View, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = Queue(name="jobs", messages=0, consumers=0)
    answers["/get"] = []
    assert view.brokers.holds_message("mb1", jobs) is False
    answers["/get"] = [{"payload": ""}]
    assert view.brokers.holds_message("mb1", jobs) is True

    def refused(text: str) -> None:
        locked = httpx.Response(400, text=text)
        monkeypatch.setattr("ops.cluster.management.httpx.request", lambda *_, **__: locked)

    refused('{"reason": "405 RESOURCE_LOCKED - cannot obtain access to locked queue"}')
    assert view.brokers.holds_message("mb1", jobs) is None
    refused('{"reason": "bad_request"}')
    with pytest.raises(NoAnswer, match="HTTP 400"):
        view.brokers.holds_message("mb1", jobs)
    stream = Queue(name="log", messages=0, consumers=0, kind="stream")
    assert view.brokers.holds_message("mb1", stream) is None, "nobody is asked"


def test_who_is_absent_is_left_out_of_every_question_to_all(
    view: View, answers: dict[str, Any]
) -> None:
    answers["127.0.0.11:8081/topology"] = {"entries": []}
    with pytest.raises(NoAnswer, match="agent of mb2"):
        view.agents.maps()
    without = View(view.file, Absent(brokers=frozenset({"mb1"}), agents=frozenset({"mb2"})))
    assert without.agents.maps() == {"mb1": {}}
    assert [node.name for node in without.brokers.present] == ["mb2"]
    assert without.absent.nodes == ["mb1", "mb2"]


def test_agents_are_asked_side_by_side_and_the_absent_one_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(dir=tmp_path, numbers=(1, 2, 3, 4))
    layout.inventory.write_text(files.inventory_toml(layout))
    secrets.ensure(layout.secrets_dir)
    all_are_asked = threading.Barrier(3)

    def request(_method: str, url: str, **_more: object) -> httpx.Response:
        assert "127.0.0.14" not in url, "mb4 is absent"
        all_are_asked.wait(timeout=30)
        if "127.0.0.12" in url:
            raise httpx.ConnectError("refused")
        return httpx.Response(200, json={"entries": []})

    monkeypatch.setattr("ops.cluster.management.httpx.request", request)
    agents = View(layout.inventory, Absent(agents=frozenset({"mb4"}))).agents
    answered, silent = agents.answering_snapshots()
    assert (list(answered), list(silent)) == (["mb1", "mb3"], ["mb2"])
    assert agents.chains() == {}
    with pytest.raises(NoAnswer, match=r"^agent of mb2 does not answer"):
        agents.snapshots()


@pytest.fixture
def fronts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Balancers of a cluster of two -> brokers that they show; one that is missing is silent."""
    layout = Layout(dir=tmp_path, numbers=(1, 2), balancers=2)
    layout.inventory.write_text(files.inventory_toml(layout))
    known: dict[str, Any] = {}

    def servers(socket: Path) -> dict[str, ServerState]:
        if socket.parent.name not in known:
            raise BalancerUnreachable("refused")
        return dict(known[socket.parent.name])

    monkeypatch.setattr("lb.runtime.servers", servers)
    return known


def test_a_silent_balancer_is_named_and_an_absent_one_is_left_out(
    view: View, fronts: dict[str, Any]
) -> None:
    down = dataclasses.replace(UP, name="mb2", verdict="drain")
    fronts["haproxy"] = {"mb1": UP, "mb2": down}
    assert view.balancers.silent_balancers() == ["haproxy2"]
    with pytest.raises(NoAnswer, match="balancer haproxy2: refused"):
        view.balancers.sending()
    without = View(view.file, Absent(balancers=frozenset({"haproxy2"})))
    assert without.balancers.sending() == {"haproxy": {"mb1"}}
    fronts["haproxy2"] = {"mb2": dataclasses.replace(UP, name="mb2")}
    assert without.balancers.sending() == {"haproxy": {"mb1"}, "haproxy2": {"mb2"}}, (
        "it is back by itself"
    )


def test_a_balancer_has_ended_when_its_host_knows_no_process_of_it(
    view: View, fronts: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert view.balancers.balancer_has_ended("haproxy2")
    monkeypatch.setattr("lb.hosts.LocalMachine.signal_master", lambda *_: True)
    assert not view.balancers.balancer_has_ended("haproxy2")

    def away(*_: object) -> bool:
        raise BalancerUnreachable("no SSH")

    monkeypatch.setattr("lb.hosts.LocalMachine.signal_master", away)
    assert not view.balancers.balancer_has_ended("haproxy2")


def test_with_tls_a_broker_that_speaks_none_is_not_asked_in_clear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(dir=tmp_path, numbers=(1,), tls=True)
    issue_missing(layout.tls_dir, {"mb1": ("127.0.0.11",), "operator": ()})
    layout.inventory.write_text(files.inventory_toml(layout))
    secrets.ensure(layout.secrets_dir)
    asked: list[str] = []

    def request(_method: str, url: str, **_more: object) -> httpx.Response:
        asked.append(url.partition(":")[0])
        raise httpx.ConnectError("no TLS") from ssl.SSLError(1, "record layer failure")

    monkeypatch.setattr("ops.cluster.management.httpx.request", request)
    with pytest.raises(NoAnswer, match="management of mb1 does not answer"):
        View(layout.inventory).brokers.queues("mb1")
    assert asked == ["https"]

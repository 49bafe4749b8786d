"""Checks of one broker, and of all."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from consumer_lists.nodes import Served
from inventory.inventory import Inventory, load
from messagebus.broker import BrokerList
from messagebus.observing.snapshot import Room
from ops.cluster import checks, checkup
from ops.cluster.checks import Steady, some
from ops.cluster.management import Connection, Queue
from ops.cluster.members import Absent
from ops.cluster.view import View
from ops.errors import NoAnswer, NotProved, OpsError
from ops.local import files
from ops.local.layout import Layout
from ops.run.plan import Blocked
from tests.support.fake_view import OneForAll, view_of
from tests.support.observed import answer

GOOD = "# cluster: local\n# generation: 3\n127.0.0.11:5672\n127.0.0.12:5672\n"


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(files.inventory_toml(layout))
    return load(layout.inventory)


def lists(inventory: Inventory, ours: str, served: str | None = None, fault: str = "") -> list[str]:
    parsed = BrokerList.parse(served or ours)
    answer = Served(node="mb1", fault=fault) if fault else Served(node="mb1", served=parsed)
    return [str(each) for each in checkup.of_lists(inventory, BrokerList.parse(ours), [answer])]


def test_a_list_that_is_served_as_it_is_differs_in_nothing(inventory: Inventory) -> None:
    assert lists(inventory, GOOD) == []


@pytest.mark.parametrize(
    ("ours", "told"),
    [
        (GOOD.replace(".12", ".13"), "list: does not name 127.0.0.12:5672"),
        (GOOD.replace(".12", ".13"), "list: names 127.0.0.13:5672, which is not in the inventory"),
        (
            GOOD.replace("cluster: local", "cluster: prod"),
            "list: is of cluster 'prod', not 'local'",
        ),
        (GOOD.replace("12:5672", "12:5672 draining"), "list: 127.0.0.12:5672 is draining"),
    ],
)
def test_a_list_that_is_not_of_this_inventory_is_told(
    inventory: Inventory, ours: str, told: str
) -> None:
    assert any(each.startswith(told) for each in lists(inventory, ours))


@pytest.mark.parametrize(
    ("served", "told"),
    [
        (GOOD.replace("generation: 3", "generation: 2"), "serves generation 2, not 3"),
        (GOOD.replace("cluster: local", "cluster: x"), "serves the list of another cluster, 'x'"),
        (GOOD.replace(".12", ".14"), "serves another list of generation 3"),
    ],
)
def test_an_agent_that_serves_something_else_is_told(
    inventory: Inventory, served: str, told: str
) -> None:
    assert lists(inventory, GOOD, served) == [f"agent of mb1: {told}"]


def test_an_agent_that_serves_nothing_is_told(inventory: Inventory) -> None:
    assert lists(inventory, GOOD, fault="refused") == ["agent of mb1: serves no list: refused"]


def broker(inventory: Inventory, version: str = "") -> list[str]:
    node = replace(inventory.brokers[0], version=version)
    overview = {"rabbitmq_version": "3.10.8", "cluster_name": str(node.address)}
    return [each.what for each in checkup.of_broker(node, overview)]


def test_a_broker_of_the_wanted_version_with_room_differs_in_nothing(inventory: Inventory) -> None:
    assert broker(inventory) == broker(inventory, "3.10.8-1.1+deb12u1") == []
    # A local cluster's inventory has no more of it.
    assert broker(inventory, "3.10") == []
    assert broker(inventory, "3.1") != []


def test_what_is_wrong_with_a_broker_is_told(inventory: Inventory) -> None:
    assert broker(inventory, "3.12.1-1") == ["runs RabbitMQ 3.10.8, not 3.12.1-1"]
    other = checkup.of_broker(inventory.brokers[0], {"cluster_name": "rabbit@x"})
    assert "calls itself 'rabbit@x', not '127.0.0.11:5672'" in [each.what for each in other]


def test_stable_feature_flags_that_are_not_enabled_are_named_with_the_command_for_them() -> None:
    flags = [
        {"name": "quorum_queue", "state": "enabled", "stability": "required"},
        {"name": "message_containers", "state": "disabled", "stability": "stable"},
        {"name": "khepri_db", "state": "disabled", "stability": "experimental"},
        {"name": "user_limits", "state": "disabled", "stability": "stable"},
    ]
    (found,) = checkup.of_feature_flags("mb1", flags)
    assert str(found) == (
        "mb1: feature flags are not enabled: message_containers, user_limits:"
        " rabbitmqctl enable_feature_flag all"
    )
    assert list(checkup.of_feature_flags("mb1", flags[:1])) == []


def test_what_the_inventory_asks_for_in_vain_and_an_unfinished_password_are_told(
    inventory: Inventory,
) -> None:
    assert list(checkup.of_inventory(inventory)) == []
    (found,) = checkup.of_inventory(replace(inventory, serving_min=2))
    assert str(found) == "inventory: serving_min is 2 of 2 brokers: no playbook can take one out"
    secret = inventory.users[0].password_file
    secret.parent.mkdir()
    secret.with_name(f"{secret.name}.next").write_text("new")
    (found,) = checkup.of_inventory(inventory)
    assert found.what == ("a change of the password of bus is not finished: ops users password bus")


def test_what_is_wrong_with_a_balancer_is_told(inventory: Inventory) -> None:
    server = {"name": "mb1", "verdict": "drain", "check": "L7OK"}
    shown = {
        "balancers": [
            {"name": "a", "process": None, "fault": "no socket", "servers": [], "current": None},
            {"name": "b", "process": {}, "fault": "", "servers": [server], "current": False},
        ]
    }
    assert [str(each) for each in checkup.of_balancers(inventory, shown)] == [
        "balancer a: does not answer: no socket",
        "balancer b: does not serve the configuration of the inventory: python -m lb apply",
        "balancer b: does not know mb2",
        "balancer b: has mb1 as drain (L7OK)",
    ]


def test_clocks_and_disks_may_be_a_little_off() -> None:
    assert list(checkup.of_clock("h1", "100.500000000\n", 100.0)) == []
    (found,) = checkup.of_clock("h1", "10.0\n", 100.0)
    assert found.what == "its clock is 90.0 s behind this machine's"
    (found,) = checkup.of_clock("h1", "102.0\n", 100.0)
    assert found.what == "its clock is 2.0 s ahead of this machine's"
    (found,) = checkup.of_clock("h1", "Welcome\n102.0\n", 100.0)
    assert found.what == "says no time: 'Welcome 102.0': its login shell must print nothing"
    said = "Use% Mounted on\n 40% /\n 97% /var/lib/rabbitmq\n"
    assert [str(each) for each in checkup.of_disks("h1", said)] == [
        "h1: /var/lib/rabbitmq is 97% full"
    ]


def test_what_an_agent_says_is_told_with_its_reason() -> None:
    assert observed() == []
    assert observed(verdict="drain", reason="disk alarm") == [
        "takes no new publishers: drain, disk alarm"
    ]


def observed(**told: Any) -> list[str]:
    room = Room(disk_free=10**12, disk_limit=10**9, memory_used=1, memory_limit=9)
    answered = answer("mb1", **{"room": room, **told})
    return [each.what for each in checkup.of_observed("mb1", answered)]


def test_what_is_wrong_with_a_broker_is_said_as_everywhere() -> None:
    assert observed(alarm="alarm: memory") == [
        "Broker mb1 is in alarm: memory: its publishers leave it"
    ]
    room = Room(disk_free=2 * 10**9, disk_limit=10**9, memory_used=1, memory_limit=9)
    assert observed(room=room) == [
        "2,000 MB of disk are free on mb1; below 1,000 MB it accepts no publishes"
    ]


@pytest.mark.parametrize(
    ("days", "told"),
    [
        (-1, ["mb1: its certificate has ended"]),
        (12.2, ["mb1: its certificate ends in 12 days"]),
        (31, []),
    ],
)
def test_a_certificate_that_ends_soon_is_told(days: float, told: list[str]) -> None:
    assert [str(each) for each in checkup.of_certificate("mb1", days * 86_400)] == told


def queue(name: str, messages: int | None = 0, consumers: int = 0) -> Queue:
    return Queue(name=name, messages=messages, consumers=consumers)


def test_a_queue_consumed_elsewhere_must_be_consumed_here() -> None:
    elsewhere = [queue("a", consumers=2), queue("b", consumers=1), queue("parked")]
    assert checks.unattached([queue("a", consumers=1), queue("b")], elsewhere) == ["b"]
    assert checks.unattached([], elsewhere) == ["a", "b"]
    assert checks.unattached([queue("a", consumers=1), queue("b", consumers=9)], elsewhere) == []


def test_an_agent_is_behind_in_what_any_other_knows_later() -> None:
    old, new = (3, "a:1", True), (4, "b:1", False)
    maps = {
        "mb1": {"orders": old, "orders/billing": new},
        "mb2": {"orders": old, "orders/billing": old, "orders/crm": old},
        "mb4": {"orders": old, "orders/billing": old},
    }
    assert checks.behind(maps, "mb4") == ["orders/billing", "orders/crm"]
    assert checks.behind(maps, "mb1") == ["orders/crm"]
    assert checks.behind({"mb4": {}}, "mb4") == []


class Connections(OneForAll):
    """Clients of a broker by its statistics, look by look: client -> whether it consumes."""

    def __init__(self, *looks: dict[str, bool]) -> None:
        self.looks = list(looks)
        self.now = 0.0
        self.consumed: list[Queue] = []

    def connections(self, _name: str) -> list[Connection]:
        self.now += 1.0
        return [
            Connection(name=name, user="bus", client=name, consumes=consumes)
            for name, consumes in (
                self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]
            ).items()
        ]

    @property
    def listed(self) -> BrokerList:
        return BrokerList.parse("# generation: 3\nmb1:5672\n")

    def clients(self) -> list[object]:
        return []

    @property
    def present(self) -> list[SimpleNamespace]:
        return [SimpleNamespace(name="mb1")]

    def queues(self, _name: str) -> list[Queue]:
        return self.consumed

    def left_by(self, who: str, interval_s: float) -> Callable[[], str]:
        make = checks.left_by_publishers if who == "publishers" else checks.nobody_is_connected
        view = cast(View, self)
        check = make(view, "mb2", interval_s=interval_s, clock=lambda: self.now)
        return check if who == "publishers" else checks.left_by_clients(view, check)


@pytest.mark.parametrize("who", ["publishers", "clients"])
def test_nobody_connected_is_believed_after_an_interval(who: str) -> None:
    check = Connections({}).left_by(who, 1.5)
    answers = [check(), check(), check()]
    assert all("checking again" in answer for answer in answers[:2])
    assert answers[2] == ""


def test_a_publisher_that_statistics_show_late_begins_the_wait_anew() -> None:
    check = Connections({}, {"p": False}, {}).left_by("publishers", 1.5)
    assert "checking again" in check()
    assert check() == "1 connection that may publish: p (user bus)"
    assert "checking again" in check()
    assert "checking again" in check()
    assert check() == ""


def test_those_that_consume_are_no_publishers_and_are_clients() -> None:
    consumers = Connections({"c": True})
    assert consumers.left_by("publishers", 0)() == "none that may publish, checking again"
    assert consumers.left_by("clients", 0)() == "1 connection of clients: c (user bus)"


def test_a_broker_that_answers_is_not_dead() -> None:
    class Half(OneForAll):
        def queues(self, _name: str) -> list[Queue]:
            raise NoAnswer("management of mb2 does not answer")

        def health(self, _name: str) -> dict[str, str]:
            return {"verdict": "down"}

        inventory = SimpleNamespace(supervisor="local")

    told = r"the agent of mb2 answers, .* --lose-messages neither: .*`python -m ops local stop mb2-agent`"
    with pytest.raises(Blocked, match=told):
        checks.is_dead(cast(View, Half()), "mb2")()


def test_a_wait_for_a_gate_says_what_the_agent_waits_for() -> None:
    class Shut(OneForAll):
        def settled(self, _name: str) -> dict[str, bool]:
            return {"settled": True, "gate": False}

        def health(self, _name: str) -> dict[str, str]:
            return {"verdict": "down", "reason": "gate is shut: no majority of agents read"}

    missing = checks.topology_is_there(cast(View, Shut()), "mb2")()
    assert missing == "gate is shut: no majority of agents read"


def test_a_broker_that_does_not_answer_is_started_or_replaced_and_nothing_else() -> None:
    class Dead(OneForAll):
        def overview(self, _name: str) -> dict[str, str]:
            raise NoAnswer("management of mb2 does not answer")

    with pytest.raises(Blocked, match=r"start it first; .*`ops replace mb2`"):
        checks.it_answers(cast(View, Dead()), "mb2")()


def test_nobody_on_the_list_proves_nothing_while_somebody_consumes() -> None:
    there = Connections({})
    check = there.left_by("clients", 0.5)
    there.consumed = [queue("a", consumers=2), queue("b")]
    told = "no client asks for the list, and a consumer reads from a"
    assert [check() for _ in range(3)] == [told] * 3
    attached = checks.applied_and_attached(cast(View, there), "mb1")
    assert attached() == told
    there.consumed = [queue("a")]
    assert check() == ""
    assert attached() == ""


def test_one_look_proves_nothing_and_two_an_interval_apart_do() -> None:
    now = 0.0
    steady = Steady(1.5, lambda: now)
    assert not steady.holds()
    now = 1.5
    assert not steady.holds()
    now = 1.6
    assert steady.holds()


def test_what_was_otherwise_meanwhile_begins_anew() -> None:
    now = 0.0
    steady = Steady(1.5, lambda: now)
    steady.holds()
    steady.broken()
    now = 5.0
    assert not steady.holds()


def test_many_names_are_told_as_a_few_and_a_number() -> None:
    assert some(["a", "b"]) == "a, b"
    assert some([str(n) for n in range(9)]) == "0, 1, 2, 3, 4 and 4 more"


OWN = "127.0.0.12:5672"


class Named(OneForAll):
    """View of one node. broker, agent: what each calls itself, or why it does not answer."""

    absent = Absent()

    def __init__(self, broker: str | NoAnswer, agent: str | NoAnswer) -> None:
        self._broker, self._agent = broker, agent
        self.nodes = (self.node("mb2"),)

    def node(self, name: str) -> Any:
        return SimpleNamespace(name=name, address=OWN, management="m:1", agent="a:1")

    def overview(self, _name: str) -> dict[str, str]:
        return {"cluster_name": self._said(self._broker)}

    def observed(self, _name: str) -> Any:
        return SimpleNamespace(broker=self._said(self._agent))

    def _said(self, word: str | NoAnswer) -> str:
        if isinstance(word, NoAnswer):
            raise word
        return word


@pytest.mark.parametrize(
    ("broker", "agent", "told"),
    [
        ("127.0.0.13:5672", OWN, r"management of mb2, m:1, is that of 127\.0\.0\.13:5672, not"),
        (OWN, "127.0.0.13:5672", r"agent of mb2, a:1, is that of 127\.0\.0\.13:5672, not"),
        (NotProved("management of mb2: 401"), OWN, "401: another one may answer there"),
        (OWN, NotProved("agent of mb2: 401"), "401: another one may answer there"),
    ],
)
def test_another_one_at_the_addresses_of_a_node_is_believed_nothing(
    broker: str | NoAnswer, agent: str | NoAnswer, told: str
) -> None:
    view = cast(View, Named(broker, agent))
    with pytest.raises(Blocked, match=told):
        checks.is_itself(view, "mb2")()
    with pytest.raises(OpsError, match=told):
        checks.refuse_strangers(view)


def test_silence_proves_no_name_and_contradicts_none() -> None:
    for words in ((NoAnswer("x"), OWN), (OWN, NoAnswer("x"))):
        view = cast(View, Named(*words))
        checks.refuse_strangers(view)
        with pytest.raises(NoAnswer):
            checks.is_itself(view, "mb2")()
    assert checks.is_itself(cast(View, Named(OWN, OWN)), "mb2")() == ""


def test_what_was_started_is_the_broker_of_these_addresses() -> None:
    node = SimpleNamespace(address=OWN)
    for called in (OWN, "127.0.0.13:5672"):
        view = view_of(
            queues=lambda _name: [],
            node=lambda _name: node,
            overview=lambda _name, called=called: {"cluster_name": called},
        )
        told = checks.answers(view, "mb2")()
        assert told == (
            "" if called == OWN else f"the broker at its addresses calls itself {called}, not {OWN}"
        )


def test_whoever_was_stopped_listens_nowhere_any_more() -> None:
    listens = {"address": True, "management": False, "agent": True}
    view = view_of(is_shut=lambda _name, what: not listens[what])
    ends = ("address", "management", "agent")
    told = checks.fell_silent(view, "mb2", *ends)()
    assert told == "a process still listens at its address, agent"
    assert checks.fell_silent(view, "mb2", "management")() == ""

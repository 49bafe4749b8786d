"""Users, rights and declared topology of all brokers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from inventory.inventory import Balancer, Inventory, User
from inventory.tables import Provision
from lb.apply import Applied
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.topology import LADDER, declarations, parse_wanted
from ops.__main__ import main
from ops.cluster import definitions, topology
from ops.cluster.brokers import next_file
from ops.cluster.management import Queue
from ops.cluster.members import Absent
from ops.cluster.topology import Difference, differences, foreign, latest, newer_than, wanted_items
from ops.cluster.users import change_password, find_user
from ops.cluster.view import View
from ops.errors import NoAnswer, OpsError
from ops.local import files, secrets
from ops.local.layout import Layout
from ops.local.secrets import is_hash_of, password_hash
from tests.support.fake_view import OneForAll, view_of


def entry(wanted: str, number: int = 1, *, alive: bool = True, **options: Any) -> dict[str, Any]:
    return {
        "wanted": wanted,
        "number": number,
        "origin": "a:1",
        "alive": alive,
        "tomb": 0,
        "changed_at_ms": 0,
        **options,
    }


def test_the_newest_word_counts_also_when_it_is_a_deletion() -> None:
    maps = {
        "mb1": {"orders": entry("orders", 3), "jobs": entry("jobs", 1)},
        "mb2": {"orders": entry("orders", 4, alive=False)},
    }
    assert {name: each["number"] for name, each in latest(maps).items()} == {"orders": 4, "jobs": 1}
    assert newer_than(maps["mb1"], maps["mb2"]) == ["orders"]
    assert newer_than(maps["mb2"], maps["mb1"]) == ["jobs"]
    assert differences(maps, {}, {}) == [
        Difference("mb1", "orders", "is deleted: its agent has an older word"),
        Difference("mb2", "jobs", "is wanted: its agent does not know"),
    ]


def test_agents_that_know_the_same_and_brokers_that_have_it_differ_in_nothing() -> None:
    maps = {name: {"orders": entry("orders", 3)} for name in ("mb1", "mb2")}
    settled = {name: {"mb.sub/orders/a": True} for name in maps}
    queues = {name: {"mb.sub/orders/a": 5, "mine": 1, "mb.settle": 0} for name in maps}
    assert differences(maps, settled, queues) == []


def test_a_queue_that_is_missing_and_one_that_nobody_wants_are_told() -> None:
    found = differences(
        {}, {"mb1": {"mb.sub/orders/a": False}}, {"mb1": {"mb.sub/orders/old": 1200}}
    )
    assert [str(each) for each in found] == [
        "mb1: mb.sub/orders/a is not there, or not settled",
        "mb1: mb.sub/orders/old is not in the topology; it holds 1,200 messages",
    ]


def test_whoever_does_not_answer_is_left_out_and_the_others_are_compared() -> None:
    """One broker and one agent are dead: mb3 and that of mb2."""
    known = {"entries": [entry("orders/new")]}
    asked = list[str]()

    def settled(name: str) -> dict[str, dict[str, bool]]:
        asked.append(name)
        return {"queues": {"mb.sub/orders/new": name != "mb4"}}

    absent = Absent(brokers=frozenset({"mb3"}), agents=frozenset({"mb2"}))
    view = view_of(
        absent=absent,
        present=[SimpleNamespace(name=name) for name in ("mb1", "mb2", "mb4")],
        snapshots=lambda: {"mb1": known, "mb3": {"entries": []}, "mb4": known},
        settled=settled,
        queues=lambda _name: [],
        bindings=lambda _name: [],
    )
    assert [str(each) for each in topology.drift(view)] == [
        "mb3: orders/new is wanted: its agent does not know",
        "mb4: mb.sub/orders/new is not there, or not settled",
    ]
    assert asked == ["mb1", "mb4"]
    assert absent.parts() == ["broker mb3", "agent of mb2"]


def test_agents_are_asked_for_what_is_alive_with_its_options() -> None:
    entries = [entry("orders/a", 1, single_active=True), entry("gone", 2, alive=False)]
    assert wanted_items(entries) == [{"name": "orders/a", "single_active": True}]


def test_a_binding_that_nobody_wants_is_told() -> None:
    entries = {name: entry(name, 1) for name in ("orders", "orders/a", "queue:jobs", "delay:1000")}
    wanted = [
        (each.exchange, each.queue, each.routing_key)
        for name in entries
        for each in (*declarations(parse_wanted(name)).bindings, *LADDER.bindings)
    ]
    others = [("", "mb.sub/orders/a", "mb.sub/orders/a"), ("mine", "my.queue", "")]
    marked = [("mb.settled/mb.queue/jobs", "mb.queue/jobs", "")]
    assert list(foreign("mb1", entries, [*wanted, *others, *marked])) == []
    strange = [("mb.topic/orders", "mb.queue/jobs", ""), ("mb.out", "mb.sub/orders/a", "mb.to/x")]
    assert [str(each) for each in foreign("mb1", entries, [*wanted, *strange])] == [
        "mb1: exchange mb.out leads to mb.sub/orders/a under mb.to/x, which is not in the topology",
        "mb1: exchange mb.topic/orders leads to mb.queue/jobs, which is not in the topology",
    ]


class Agents(OneForAll):
    """Agents whose brokers have all that they know. merged: agents that were told, in order."""

    def __init__(self, **entries: list[dict[str, Any]]) -> None:
        self.maps = {
            name: {each["wanted"]: each for each in known} for name, known in entries.items()
        }
        self.nodes = [SimpleNamespace(name=name) for name in entries]
        self.inventory = SimpleNamespace(provision=Provision())
        self.merged: list[str] = []

    def snapshots(self) -> dict[str, Any]:
        return {name: {"entries": list(known.values())} for name, known in self.maps.items()}

    def merge(self, name: str, snapshot: Mapping[str, Any]) -> None:
        self.merged.append(name)
        for each in snapshot["entries"]:
            if each["number"] >= self.maps[name].get(each["wanted"], entry("", 0))["number"]:
                self.maps[name][each["wanted"]] = each

    def settled(self, _name: str) -> dict[str, Any]:
        return {"queues": {}}

    def queues(self, _name: str) -> list[Any]:
        return []

    absent = Absent()

    @property
    def present(self) -> list[Any]:
        return self.nodes

    def bindings(self, _name: str) -> list[Any]:
        return []

    def mismatch(self, _name: str, _items: object) -> str:
        return ""


def test_each_agent_is_told_once_what_it_does_not_know(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = [entry("orders"), entry("orders/billing", 2)]
    agents = Agents(mb1=whole, mb2=whole, mb3=[entry("orders")])
    monkeypatch.setattr(topology, "View", lambda _file: agents)
    monkeypatch.setattr(topology, "answering", lambda view: view)
    monkeypatch.setattr(definitions, "look", lambda _view, _name: [])
    assert main(["topology", "diff", "--inventory", str(tmp_path / "i.toml")]) == 7
    told = "mb3: orders/billing is wanted: its agent does not know\n"
    assert capsys.readouterr().out == told
    assert main(["topology", "sync", "--inventory", str(tmp_path / "i.toml")]) == 0
    assert agents.merged == ["mb3"]
    assert capsys.readouterr().out == "1 entry was sent to agents that lacked them\n"
    assert main(["topology", "diff", "--inventory", str(tmp_path / "i.toml")]) == 0
    assert capsys.readouterr().out == "3 agents and brokers have the same\n"


def test_a_sync_reports_queues_that_no_map_has_and_does_not_wait_for_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = Agents(mb1=[entry("orders")])
    old = Queue(name="mb.sub/orders/old", messages=3, consumers=0)
    monkeypatch.setattr(agents, "queues", lambda _name: [old])
    monkeypatch.setattr(topology, "View", lambda _file: agents)
    monkeypatch.setattr(topology, "SAME_STALLED_S", 0.0)
    assert main(["topology", "sync", "--inventory", str(tmp_path / "i.toml")]) == 0
    assert capsys.readouterr().out == (
        "0 entries were sent to agents that lacked them\n"
        "mb1: mb.sub/orders/old is not in the topology; it holds 3 messages\n"
    )


class Lost(Agents):
    """Agents of which some have lost their maps, and some do not answer."""

    def __init__(self, intact: set[str], silent: set[str], **entries: list[dict[str, Any]]) -> None:
        super().__init__(**entries)
        self.intact, self.silent = intact, silent

    def answering_snapshots(self) -> tuple[dict[str, Any], dict[str, str]]:
        told = {
            name: {"intact": name in self.intact, **snapshot}
            for name, snapshot in self.snapshots().items()
            if name not in self.silent
        }
        return told, {name: f"agent of {name}: refused" for name in self.silent}

    def adopt(self, name: str, snapshot: Mapping[str, Any]) -> None:
        self.merge(name, snapshot)
        self.intact.add(name)


def adopt(agents: Lost, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *words: str) -> int:
    monkeypatch.setattr(topology, "View", lambda _file: agents)
    return main(["topology", "adopt", "--inventory", str(tmp_path / "i.toml"), *words])


@pytest.mark.guarantee("adopt-on-operators-word")
def test_a_map_that_no_majority_can_vouch_for_is_adopted_on_operators_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agents = Lost({"mb1"}, {"mb3"}, mb1=[entry("orders")], mb2=[entry("queue:jobs")], mb3=[])
    assert adopt(agents, monkeypatch, tmp_path, "--yes") == 0
    assert agents.intact == {"mb1", "mb2"}
    assert set(agents.maps["mb1"]) == set(agents.maps["mb2"]) == {"orders", "queue:jobs"}
    told = capsys.readouterr().out
    assert "mb1: 1 wanted, intact\nmb2: 1 wanted, NOT intact\nagent of mb3: refused" in told


@pytest.mark.guarantee("adopt-on-operators-word")
@pytest.mark.parametrize(
    ("intact", "silent", "why"),
    [
        ({"mb1", "mb2"}, set(), "there is nothing to rebuild"),
        ({"mb1"}, {"mb2", "mb3"}, "start them first"),
    ],
)
def test_nobody_vouches_where_a_majority_can_or_is_not_there(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    intact: set[str],
    silent: set[str],
    why: str,
) -> None:
    agents = Lost(intact, silent, mb1=[entry("orders")], mb2=[], mb3=[])
    assert adopt(agents, monkeypatch, tmp_path, "--yes") == 1
    assert why in capsys.readouterr().err
    assert not agents.merged


NAMES = ("admin", "probe", "bus")


class Killed(BaseException):
    """Raised where the operator is killed."""


class Brokers:
    """Users of two brokers behind their management API, and the login that a balancer uses.

    down: names that do not answer. left: how many changes there are until the operator is killed.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.down: set[str] = set()
        self.left: int | None = None
        self.rights: dict[tuple[str, str], Any] = {}
        self.balancer = ("probe", secrets.read(layout.secret("probe.password")))
        self.users: dict[str, dict[str, dict[str, Any]]] = {}
        for node in layout.nodes:
            self.users[node.name] = {
                name: {"tags": [name], "password_hash": password_hash(self.kept(name))}
                for name in NAMES
            }

    def kept(self, name: str) -> Secret:
        return secrets.read(self.layout.secret(f"{name}.password"))

    def has(self, broker: str, user: str, password: Secret) -> bool:
        known = self.users[broker].get(user)
        return known is not None and is_hash_of(known["password_hash"], password)

    def request(
        self, method: str, url: str, *, auth: tuple[str, str], json: Any, **_more: object
    ) -> httpx.Response:
        node = next(each for each in self.layout.nodes if each.management in url)
        if node.name in self.down:
            raise httpx.ConnectError("refused")
        if not self.has(node.name, auth[0], Secret(auth[1])):
            return httpx.Response(401)
        users, path = self.users[node.name], url.partition("/api/")[2].split("/")
        if method == "GET" and path[-1] == "permissions":
            rights = {"vhost": "/", "configure": "^$", "write": "x", "read": "^$"}
            return httpx.Response(200, json=[rights])
        if method == "GET":
            return httpx.Response(200, json=users[path[1]])
        self.change()
        if path[0] == "permissions":
            self.rights[node.name, path[2]] = json
        elif method == "PUT":
            users[path[1]] = json
        else:
            users.pop(path[1], None)
        assert self.balancer_may_ask()
        return httpx.Response(204)

    def change(self) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Killed

    def balancer_may_ask(self) -> bool:
        return all(self.has(name, *self.balancer) for name in self.users if name not in self.down)

    def applied(self, inventory: Inventory, *_more: object) -> Iterator[tuple[Balancer, Applied]]:
        self.change()
        assert inventory.balancer.probe_password
        self.balancer = (inventory.balancer.probe_user, inventory.balancer.probe_password)
        assert self.balancer_may_ask()
        yield inventory.balancer, Applied(changed=True, reloaded=True, pid=1)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(dir=tmp_path, numbers=(1, 2))
    made.inventory.write_text(files.inventory_toml(made))
    secrets.ensure(made.secrets_dir)
    return made


@pytest.fixture
def brokers(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> Brokers:
    made = Brokers(layout)
    monkeypatch.setattr("ops.cluster.management.httpx.request", made.request)
    monkeypatch.setattr("ops.cluster.users.apply_all", made.applied)
    return made


Change = Callable[..., None]


@pytest.fixture
def change(layout: Layout) -> Change:
    def act(name: str, given: Secret | None = None, without: tuple[str, ...] = ()) -> None:
        view = View(layout.inventory)
        user = find_user(view.inventory, name)
        change_password(view, user, given=given, without=without, say=lambda line: None)

    return act


@pytest.mark.parametrize("name", NAMES)
def test_a_new_password_is_on_all_brokers_and_in_its_file(
    brokers: Brokers, change: Change, layout: Layout, name: str
) -> None:
    before, file = brokers.kept(name), layout.secret(f"{name}.password")
    change(name)
    after = brokers.kept(name)
    assert after != before
    assert all(brokers.has(each, name, after) for each in brokers.users)
    assert all(users[name]["tags"] == [name] for users in brokers.users.values())
    assert {user for users in brokers.users.values() for user in users} == set(NAMES)
    assert brokers.balancer == ("probe", brokers.kept("probe"))
    assert (file.stat().st_mode & 0o777, next_file(file).exists()) == (0o600, False)


@pytest.mark.parametrize("name", NAMES)
def test_a_change_that_was_killed_anywhere_is_finished_by_the_same_command(
    brokers: Brokers, change: Change, name: str
) -> None:
    """A balancer's login is good after every single change; `Brokers` sees to that."""
    for kill_at in itertools.count():
        brokers.left = kill_at
        try:
            change(name)
        except Killed:
            brokers.left = None
            change(name)
        else:
            assert kill_at >= 2
            return
        assert all(brokers.has(each, name, brokers.kept(name)) for each in brokers.users)
        assert brokers.balancer == ("probe", brokers.kept("probe"))
        assert "probe.next" not in brokers.users["mb1"]


def test_who_takes_the_probes_place_has_its_rights(brokers: Brokers, change: Change) -> None:
    change("probe")
    rights = {"configure": "^$", "write": "x", "read": "^$"}
    assert brokers.rights == {("mb1", "probe.next"): rights, ("mb2", "probe.next"): rights}


def test_a_broker_that_does_not_answer_stops_it_before_the_first_is_changed(
    brokers: Brokers, change: Change, layout: Layout
) -> None:
    before = brokers.kept("bus")
    brokers.down.add("mb2")
    with pytest.raises(NoAnswer, match="--without mb2"):
        change("bus")
    assert brokers.has("mb1", "bus", before)
    assert not next_file(layout.secret("bus.password")).exists()
    change("bus", without=("mb2",))
    assert brokers.has("mb1", "bus", brokers.kept("bus"))
    assert brokers.kept("bus") != before


def test_a_given_password_is_taken_unless_another_change_is_not_finished(
    brokers: Brokers, change: Change
) -> None:
    change("bus", Secret("correct horse"))
    assert brokers.kept("bus") == Secret("correct horse")
    brokers.left = 1
    with pytest.raises(Killed):
        change("bus")
    brokers.left = None
    with pytest.raises(OpsError, match="not finished"):
        change("bus", Secret("battery staple"))


def test_an_unknown_user_is_told_with_the_nearest(layout: Layout) -> None:
    with pytest.raises(ConfigError, match="bus"):
        find_user(View(layout.inventory).inventory, "bsu")


def test_hosts_have_the_new_one_before_their_broker_is_told(
    brokers: Brokers, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So no start of a broker, at any moment, restores the old password after it had the new one."""
    text = layout.inventory.read_text().replace('"local"', '"systemd"')
    hosts = [f'[[hosts]]\nname = "h{n}"\nssh = "root@h{n}"\n' for n in (1, 2)]
    for number in (1, 2):
        text = text.replace(f'name = "mb{number}"', f'name = "mb{number}"\nhost = "h{number}"')
    layout.inventory.write_text("\n".join([text, *hosts]))
    written: list[tuple[str, str]] = []

    class Root:
        def __init__(self, host: str) -> None:
            self.host = host

        def __enter__(self) -> Root:
            return self

        def __exit__(self, *_gone: object) -> None:
            pass

        def write(self, file: Any) -> None:
            written.append((self.host, file.path.name))
            (user,) = (u for u in json.loads(file.text)["users"] if u["name"] == "bus")
            new = secrets.read(next_file(layout.secret("bus.password")))
            assert is_hash_of(user["password_hash"], new)
            assert not brokers.has(self.host.replace("h", "mb"), "bus", new)

        def ask(self, _argv: Any) -> str:
            return f"NODENAME={self.host.replace('h', 'mb')}@localhost\n"

    monkeypatch.setattr("ops.cluster.users.root_of", lambda _inventory, host: Root(host))
    view = View(layout.inventory)
    user = User(name="bus", role="application", password_file=layout.secret("bus.password"))
    monkeypatch.setattr(
        "ops.cluster.users.PASSWORD_FILES", (Path("/etc/rabbitmq/definitions.json"),)
    )
    change_password(view, user, given=None, without=(), say=lambda line: None)
    assert written == [("h1", "definitions.json"), ("h2", "definitions.json")]


@pytest.fixture
def changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The changes in a cluster whose inventory the environment names."""
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    layout.inventory.write_text(files.inventory_toml(layout))
    secrets.ensure(layout.secrets_dir)
    monkeypatch.setenv("MESSAGEBUS_INVENTORY", str(layout.inventory))
    made: list[Any] = []
    monkeypatch.setattr(
        "ops.cluster.users.change_password",
        lambda _view, user, *, given, without, say: made.append((user.name, given, without)),
    )
    return made


def test_a_dry_run_says_where_and_changes_nothing(
    changed: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["users", "password", "bus", "--dry-run"]) == 0
    assert "on mb1, mb2; in " in capsys.readouterr().out
    assert changed == []


def test_a_given_password_is_read_and_never_printed(
    changed: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "new").write_text("correct horse\n")
    words = ["users", "password", "bus", "--from", str(tmp_path / "new"), "--without", "mb2"]
    assert main([*words, "--yes"]) == 0
    ((name, given, without),) = changed
    assert (name, given.reveal(), without) == ("bus", "correct horse", ("mb2",))
    assert "horse" not in "".join(capsys.readouterr())


def test_a_password_file_that_another_user_has_under_another_name_is_not_changed(
    changed: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    probe = tmp_path / "secrets" / "probe.password"
    probe.unlink()
    probe.symlink_to("bus.password")
    assert main(["users", "password", "bus", "--yes"]) == 2
    assert "is the password file of probe, too" in capsys.readouterr().err
    assert changed == []


@pytest.mark.parametrize(
    ("password", "why"),
    [
        (b"\n", "one line of 1 to"),
        (b"geheim\nanother line\n", "one line of 1 to"),
        (b"geheim\x1b", "one line of 1 to"),
        (b"geheim" * 1_000, "one line of 1 to"),
        (b"geheim\xff", "not UTF-8"),
    ],
)
def test_what_is_no_password_is_refused_and_not_shown(
    changed: list[Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    password: bytes,
    why: str,
) -> None:
    (tmp_path / "new").write_bytes(password)
    assert main(["users", "password", "bus", "--from", str(tmp_path / "new"), "--yes"]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert "geheim" not in said
    assert changed == []

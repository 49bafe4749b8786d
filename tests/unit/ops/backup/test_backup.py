"""Contents of a backup, and the commands that make it and bring it back."""

from __future__ import annotations

import copy
import json
import tarfile
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from inventory.inventory import ENV_PATH, Inventory, Node, load
from messagebus.broker import BrokerList
from messagebus.secret import Secret
from ops.__main__ import main
from ops.backup import cli
from ops.backup.contents import (
    Archive,
    Rights,
    definitions_of,
    files_named,
    generation_of,
    missing_definitions,
    missing_topology,
    read_archive,
    topology_of,
    without_memory,
    write_archive,
)
from ops.cluster.members import Absent
from ops.errors import NoAnswer, OpsError
from ops.local import secrets
from ops.local.files import inventory_toml
from ops.local.layout import Layout
from ops.run.plan import Command
from ops.run.runner import HostRunner
from tests.support.fake_view import OneForAll

INVENTORY = """
cluster = "prod"
list_file = "lists/prod.txt"
token_file = "secrets/token"
[provision]
tls_dir = "keys"
[balancer]
state_file = "/var/lib/haproxy/state"
probe_password_file = "secrets/probe"
[tls]
ca_file = "tls/ca.pem"
key_file = "/etc/ssl/operator.key"
[[brokers]]
node_list_file = "/etc/messagebus/list.txt"
[[users]]
password_file = "secrets/shop"
"""


def entry(name: str, number: int, *, alive: bool = True, **options: Any) -> dict[str, Any]:
    return {
        "wanted": name,
        "number": number,
        "origin": "mb1:5672",
        "alive": alive,
        "tomb": 0 if alive else 1,
        "changed_at_ms": 5,
        **options,
    }


def test_files_of_this_machine_are_kept_and_secrets_are_known_as_such(tmp_path: Path) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "mb1.key").write_text("x")
    assert files_named(INVENTORY, tmp_path) == {
        tmp_path / "lists/prod.txt": False,
        tmp_path / "secrets/token": True,
        tmp_path / "keys/mb1.key": True,
        tmp_path / "secrets/probe": True,
        tmp_path / "tls/ca.pem": False,
        Path("/etc/ssl/operator.key"): True,
        tmp_path / "secrets/shop": True,
    }


def test_of_a_name_the_newest_word_over_all_agents_counts() -> None:
    old = {"entries": [entry("a", 3), entry("b", 9, alive=False)]}
    new = {"entries": [entry("a", 4, single_active=True), entry("b", 8)]}
    kept = Archive(
        {"generation": 17},
        {
            "topology/mb1.json": json.dumps(old).encode(),
            "topology/mb2.json": json.dumps(new).encode(),
        },
    )
    found = topology_of(kept)
    assert found["a"]["single_active"] is True
    assert found["b"]["alive"] is False
    assert generation_of(kept) == 17
    assert definitions_of(kept, "mb1") is None


def test_what_nobody_knows_any_more_is_registered_and_what_was_deleted_since_is_not() -> None:
    before = {
        "kept": entry("kept", 1),
        "lost": entry("lost", 2, durability="page-cache"),
        "deleted": entry("deleted", 3),
        "dead": entry("dead", 4, alive=False),
    }
    now = {"kept": entry("kept", 1), "deleted": entry("deleted", 7, alive=False)}
    missing, left = missing_topology(before, now)
    assert missing == [{"name": "lost", "durability": "page-cache"}]
    assert left == {"deleted": "deleted since"}
    # Tombstones are forgotten; up to the floor what the agents do not know was deleted.
    assert missing_topology(before, now, floor=before["lost"]["number"]) == (
        [],
        {"deleted": "deleted since", "lost": "deleted since"},
    )


def test_what_expires_by_itself_never_comes_back_and_the_rest_by_name_where_one_is_said() -> None:
    before = {
        "orders/a": entry("orders/a", 1),
        "orders/b": entry("orders/b", 2, expires_s=300),
        "bills/a": entry("bills/a", 3),
    }
    missing, left = missing_topology(before, {})
    assert [each["name"] for each in missing] == ["orders/a", "bills/a"]
    assert list(left) == ["orders/b"]
    missing, left = missing_topology(before, {}, only=("orders/*",))
    assert [each["name"] for each in missing] == ["orders/a"]
    assert left["bills/a"] == "not asked for by --topology"


@pytest.mark.parametrize(
    ("snapshots", "forgot"),
    [
        ([], True),
        ([{"entries": []}], True),
        ([{"floor": 6, "dropped": 6, "entries": [entry("new", 2)]}], True),
        ([{"entries": []}, {"floor": 0, "entries": [entry("lost", 7)]}], False),
        ([{"floor": 9, "entries": []}], False),
        ([{"dropped": 8, "entries": []}], False),
    ],
)
def test_who_has_numbers_of_before_remembers_what_was_deleted(
    snapshots: list[dict[str, Any]], forgot: bool
) -> None:
    assert without_memory({"lost": entry("lost", 7)}, snapshots) is forgot


def test_only_what_is_missing_is_made_and_what_differs_is_told() -> None:
    before = {
        "users": [{"name": "bus", "password_hash": "x"}, {"name": "shop", "password_hash": "y"}],
        "permissions": [
            {"user": "bus", "vhost": "/", "configure": "^$"},
            {"user": "shop", "vhost": "/", "configure": "^$"},
        ],
        "policies": [{"vhost": "/", "name": "limit", "definition": {"max-length": 1}}],
        "global_parameters": [{"name": "cluster_name", "value": "mb1:5672"}],
    }
    now = {
        "users": [{"name": "bus", "password_hash": "z"}],
        "permissions": [{"user": "bus", "vhost": "/", "configure": "^$"}],
        "policies": [{"vhost": "/", "name": "limit", "definition": {"max-length": 2}}],
    }
    known = Rights(users=frozenset({"shop"}))
    missing = missing_definitions(before, now, rights=known, is_password=lambda _u, h: h == "y")
    assert missing.definitions == {
        "users": [{"name": "shop", "password_hash": "y"}],
        "permissions": [{"user": "shop", "vhost": "/", "configure": "^$"}],
    }
    assert missing.names == ["user shop", "permission of shop"]
    assert missing.remarks == (
        "user bus has another password now, or the same one stored again",
        "policy limit is another one now",
    )


LEFT = "is missing: --users brings it back, when the inventory names the user"


@pytest.mark.parametrize(
    ("rights", "tags", "hashed", "made", "why"),
    [
        (Rights(), [], "right", 0, (LEFT, LEFT)),
        (Rights(users=frozenset({"bus"})), [], "right", 0, (LEFT, LEFT)),
        (Rights(users=frozenset({"eve"})), [], "right", 2, ()),
        (
            Rights(users=frozenset({"eve"})),
            ["administrator"],
            "right",
            0,
            (
                "is missing, and was an administrator, which the inventory does not say",
                "is missing, and so is its user",
            ),
        ),
        (
            Rights(users=frozenset({"eve"}), admins=frozenset({"eve"})),
            ["administrator"],
            "right",
            2,
            (),
        ),
        (
            Rights(users=frozenset({"eve"})),
            [],
            "of before",
            0,
            (
                "is missing, and had another password than the inventory says",
                "is missing, and so is its user",
            ),
        ),
    ],
)
def test_a_user_who_was_revoked_comes_back_only_by_the_inventory_s_word(
    rights: Rights, tags: list[str], hashed: str, made: int, why: tuple[str, ...]
) -> None:
    before = {
        "users": [{"name": "eve", "password_hash": hashed, "tags": tags}],
        "permissions": [{"user": "eve", "vhost": "/", "configure": "^$"}],
    }
    missing = missing_definitions(
        before, {"users": []}, rights=rights, is_password=lambda _user, stored: stored == "right"
    )
    assert len(missing.names) == made
    assert [told.split(" ", 2)[2].removeprefix("eve ") for told in missing.remarks] == list(why)


@pytest.mark.parametrize(
    ("now", "told"),
    [
        ({"password_hash": "right, other salt"}, ()),
        ({"password_hash": "wrong"}, ("user bus has another password now",)),
        ({"password_hash": "right", "tags": ["policymaker"]}, ("user bus is another one now",)),
    ],
)
def test_a_password_that_is_known_may_be_stored_under_another_salt(
    now: dict[str, Any], told: tuple[str, ...]
) -> None:
    user = {"name": "bus", "password_hash": "right", "tags": []}
    missing = missing_definitions(
        {"users": [user]},
        {"users": [user | now]},
        is_password=lambda user, stored: user == "bus" and stored.startswith("right"),
    )
    assert (missing.definitions, missing.remarks) == ({}, told)


def test_what_agents_make_is_left_to_them() -> None:
    before = {
        "queues": [{"vhost": "/", "name": "mb.sub/a/b"}, {"vhost": "/", "name": "theirs"}],
        "exchanges": [{"vhost": "/", "name": "mb.topic/a"}, {"vhost": "/", "name": "ours"}],
        "bindings": [
            {"source": "mb.topic/a", "destination": "mb.sub/a/b"},
            {"source": "ours", "destination": "theirs"},
        ],
    }
    missing = missing_definitions(before, {})
    assert missing.names == ["exchange ours", "queue theirs", "binding ours to theirs"]


KEPT = Archive(
    {"cluster": "prod", "generation": 17},
    {"inventory.toml": b"x", "files/secrets/token": b"\x00\xff"},
    frozenset({"files/secrets/token"}),
)


def test_what_is_kept_comes_back_and_nobody_else_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    write_archive(path, KEPT)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_archive(path) == KEPT


def test_a_backup_is_never_written_over(tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    write_archive(path, KEPT)
    before = path.read_bytes()
    with pytest.raises(FileExistsError):
        write_archive(path, KEPT)
    assert path.read_bytes() == before


def test_what_is_cut_off_is_told(tmp_path: Path) -> None:
    path = tmp_path / "backup.tar.gz"
    write_archive(path, KEPT)
    whole = path.read_bytes()
    for size in range(0, len(whole) // 2, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(OpsError, match="is no backup, or damaged"):
            read_archive(path)


def test_what_was_changed_is_told_by_name(tmp_path: Path) -> None:
    path, other = tmp_path / "backup.tar.gz", tmp_path / "other"
    write_archive(path, KEPT)
    with tarfile.open(path) as tar:
        tar.extractall(other, filter="data")
    (other / "inventory.toml").write_text("y")
    with tarfile.open(path, "w:gz") as tar:
        for name in ("contents.json", "inventory.toml", "files/secrets/token"):
            tar.add(other / name, name)
    with pytest.raises(OpsError, match=r"is damaged: inventory\.toml$"):
        read_archive(path)


@pytest.mark.parametrize("text", ["", "no archive", '{"format": 1}'])
def test_what_is_no_backup_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "x").write_text(text)
    with pytest.raises(OpsError, match="is no backup"):
        read_archive(tmp_path / "x")


LIST = "# cluster: local\n# generation: 5\n127.0.0.11:5672\n127.0.0.12:5672\n"
LIMIT = {"vhost": "/", "name": "limit", "definition": {"max-length": 1}}
ADMIN_HASH = secrets.password_hash(Secret("secret of admin.password"))
LEFT_LINE = "leave: user shop is missing: --users brings it back, when the inventory names the user"
MISSING = ("make policy limit", LEFT_LINE, LEFT_LINE.replace("shop", "admin"))
ENTRY = {"origin": "mb1", "alive": True, "tomb": 0, "changed_at_ms": 1}


class Cluster(OneForAll):
    """Data of two brokers and their agents, and the orders that they got."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.layout = Layout(dir=folder, numbers=(1, 2))
        self.layout.inventory.write_text(inventory_toml(self.layout))
        self.layout.list_file.parent.mkdir()
        self.layout.list_file.write_text(LIST)
        self.layout.secrets_dir.mkdir()
        for name in ("admin.password", "token", "probe.password", "bus.password"):
            self.layout.secret(name).write_text(f"secret of {name}")
        entries = [{**ENTRY, "wanted": name, "number": 1} for name in ("orders", "orders/billing")]
        self.maps: dict[str, Any] = {name: {"entries": entries} for name in ("mb1", "mb2")}
        admin = {"name": "admin", "password_hash": ADMIN_HASH, "tags": ["administrator"]}
        shop = {"name": "shop", "password_hash": "h"}
        defined = {"users": [shop, admin], "policies": [LIMIT]}
        self.defined: dict[str, Any] = {name: copy.deepcopy(defined) for name in ("mb1", "mb2")}
        self.served = {"mb1": 5, "mb2": 5}
        self.wanted: list[dict[str, Any]] = []
        self.ran: list[tuple[str, ...]] = []
        self.dead = ""
        self.named: dict[str, str] = {}
        monkeypatch.setenv(ENV_PATH, str(self.layout.inventory))
        self.absent = Absent()
        self.file = self.layout.inventory
        monkeypatch.setattr(cli, "View", lambda _file, absent=self.absent: self._without(absent))
        monkeypatch.setattr(HostRunner, "run", lambda _self, command: self._run(command))

    def _without(self, absent: Absent) -> Cluster:
        self.absent = absent
        return self

    def node(self, name: str) -> Node:
        return self.inventory.find(name)

    @property
    def present(self) -> tuple[Node, ...]:
        return tuple(node for node in self.nodes if node.name not in self.absent.brokers)

    def overview(self, name: str) -> dict[str, str]:
        if name == self.dead:
            raise NoAnswer(f"management of {name}: refused")
        return {"cluster_name": self.named.get(name, str(self.node(name).address))}

    def observed(self, name: str) -> Any:
        return SimpleNamespace(broker=self.overview(name)["cluster_name"])

    def health(self, name: str) -> object:
        return self.observed(name)

    def _run(self, command: Command) -> str:
        self.ran.append(command.argv)
        return "generation 6: 2 of 2\n"

    @property
    def inventory(self) -> Inventory:
        return load(self.layout.inventory)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.inventory.brokers

    @property
    def listed(self) -> BrokerList:
        return BrokerList.parse(self.layout.list_file.read_text())

    def generations(self) -> dict[str, int]:
        return self.served

    def snapshots(self) -> dict[str, Any]:
        if self.dead not in ("", *self.absent.agents):
            raise NoAnswer(f"agent of {self.dead}: refused")
        return {name: found for name, found in self.maps.items() if name != self.dead}

    def definitions(self, name: str) -> dict[str, Any]:
        self.overview(name)
        found: dict[str, Any] = self.defined[name]
        return found

    def define(self, name: str, definitions: dict[str, Any]) -> None:
        for kind, things in definitions.items():
            self.defined[name].setdefault(kind, []).extend(things)

    def want(self, items: list[dict[str, Any]]) -> str:
        self.wanted += items
        return "complete"

    def forget(self) -> None:
        """Empty brokers and agents, as after a new installation."""
        self.maps = {name: {"entries": []} for name in self.maps}
        self.defined = {name: {} for name in self.defined}
        self.served = dict.fromkeys(self.served, 1)
        self.layout.list_file.write_text(LIST.replace("5\n", "1\n", 1))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    return Cluster(tmp_path, monkeypatch)


Said = pytest.CaptureFixture[str]


def test_secrets_are_in_it_when_asked_for_and_said(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    assert main(["backup", str(tmp_path / "a")]) == 0
    said = capsys.readouterr()
    assert "definitions/mb1.json  (secret)" in said.out.splitlines()
    assert "token" not in said.out
    assert "not in it: secrets/token, secrets/admin.password, secrets/probe.password" in said.err
    assert main(["backup", str(tmp_path / "b"), "--with-secrets"]) == 0
    said = capsys.readouterr()
    assert "files/secrets/token  (secret)" in said.out.splitlines()
    assert said.err == ""
    assert b"secret of" not in (tmp_path / "a").read_bytes()


def test_nothing_is_missing_from_what_is_whole(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    archive = str(tmp_path / "a")
    assert main(["backup", archive]) == 0
    assert main(["restore", archive, "--yes"]) == 0
    assert main(["restore", archive, "--files", "--yes"]) == 0
    assert capsys.readouterr().out.count("nothing is missing\n") == 2
    assert (cluster.wanted, cluster.ran) == ([], [])


def test_what_is_missing_is_made(cluster: Cluster, tmp_path: Path, capsys: Said) -> None:
    archive = str(tmp_path / "a")
    main(["backup", archive])
    cluster.forget()
    capsys.readouterr()
    assert main(["restore", archive, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == [
        *(f"{name}: {what}" for name in cluster.defined for what in MISSING),
        "topology: want orders",
        "topology: want orders/billing",
        "list: push it under a generation above 5",
    ]
    assert (cluster.wanted, cluster.ran) == ([], [])
    assert main(["restore", archive, "--yes"]) == 0
    assert [each["name"] for each in cluster.wanted] == ["orders", "orders/billing"]
    assert cluster.defined["mb2"] == {"policies": [LIMIT]}
    assert cluster.listed.generation == 5
    assert [argv[-2:] for argv in cluster.ran] == [("push", "--recover")]


def test_a_user_who_was_revoked_stays_so_and_one_of_the_inventory_comes_back_when_asked_for(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    archive = str(tmp_path / "a")
    main(["backup", archive])
    for name in cluster.defined:
        cluster.defined[name]["users"] = []
    assert main(["restore", archive, "--yes"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "nothing is missing"
    assert main(["restore", archive, "--yes", "--users"]) == 0
    assert f"mb1: {LEFT_LINE}" in capsys.readouterr().out.splitlines()
    for name in cluster.defined:
        assert [each["name"] for each in cluster.defined[name]["users"]] == ["admin"]


def test_topology_of_an_old_backup_comes_back_by_name_where_nobody_remembers_what_was_deleted(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Said
) -> None:
    archive = str(tmp_path / "a")
    main(["backup", archive])
    maps = copy.deepcopy(cluster.maps)
    cluster.forget()
    capsys.readouterr()
    assert main(["restore", archive, "--dry-run"]) == 0
    assert "no agent has a record of deletions since" in capsys.readouterr().err
    monkeypatch.setattr(cli, "OLD", timedelta())
    assert main(["restore", archive, "--yes"]) == 1
    assert "select names with --topology, of orders, orders/billing" in capsys.readouterr().err
    assert (cluster.wanted, cluster.ran) == ([], [])
    assert main(["restore", archive, "--yes", "--topology", "orders/*"]) == 0
    assert [each["name"] for each in cluster.wanted] == ["orders/billing"]
    cluster.wanted = []
    cluster.maps = {"mb1": {"entries": [], "floor": 0, "dropped": 1}, "mb2": maps["mb2"]}
    assert main(["restore", archive, "--yes"]) == 0
    assert cluster.wanted == []


def test_lost_files_come_back_and_others_stay(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    archive = str(tmp_path / "a")
    main(["backup", archive, "--with-secrets"])
    token, admin = cluster.layout.secret("token"), cluster.layout.secret("admin.password")
    token.unlink()
    cluster.layout.inventory.unlink()
    admin.write_text("horse battery")
    assert main(["restore", archive, "--files", "--yes"]) == 0
    said = capsys.readouterr()
    assert f"differs now: {admin}" in said.err
    assert token.read_text() == "secret of token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert admin.read_text() == "horse battery"
    assert cluster.layout.inventory.read_text() == inventory_toml(cluster.layout)


def test_a_backup_of_another_cluster_is_refused(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    archive = str(tmp_path / "a")
    main(["backup", archive])
    path = cluster.layout.inventory
    path.write_text(path.read_text().replace('cluster = "local"', 'cluster = "prod"'))
    assert main(["restore", archive, "--yes"]) == 1
    assert "a backup of 'local', and the inventory is of 'prod'" in capsys.readouterr().err


def test_of_a_cluster_that_does_not_answer_there_is_no_backup(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    cluster.dead = "mb2"
    assert main(["backup", str(tmp_path / "a")]) == 6
    assert "agent of mb2: refused" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


@pytest.mark.guarantee("backup-and-restore")
def test_a_backup_and_a_restore_go_on_without_the_dead_and_say_what_is_missing(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    archive, whole = str(tmp_path / "a"), str(tmp_path / "whole")
    assert main(["backup", whole]) == 0
    capsys.readouterr()
    cluster.dead = "mb2"
    assert main(["backup", archive, "--without", "mb9"]) == 2
    assert main(["backup", archive, "--without", "mb1"]) == 6, "it is not mb1 that is dead"
    assert (
        "do not answer: broker mb2, agent of mb2; where they are dead, go on by"
        " --without mb2" in capsys.readouterr().err
    )
    assert main(["backup", archive, "--without", "mb2"]) == 0
    told = capsys.readouterr().err
    assert "topology of mb2, definitions of mb2" in told
    kept = read_archive(Path(archive))
    assert kept.facts["left_out"][-2:] == ["topology of mb2", "definitions of mb2"]
    assert {"definitions/mb1.json", "topology/mb1.json"} < kept.files.keys()
    assert not {"definitions/mb2.json", "topology/mb2.json"} & kept.files.keys()
    cluster.forget()
    assert main(["restore", whole, "--yes"]) == 6
    assert main(["restore", whole, "--yes", "--without", "mb2"]) == 0
    assert "without broker mb2, agent of mb2: run this again" in capsys.readouterr().err
    assert (cluster.defined["mb1"], cluster.defined["mb2"]) == ({"policies": [LIMIT]}, {})
    assert cluster.ran[-1][-4:] == ("push", "--recover", "--without", "mb2")
    cluster.dead = ""
    assert main(["restore", whole, "--yes", "--without", "mb2"]) == 0
    assert cluster.defined["mb2"] == {"policies": [LIMIT]}, "it answers, and is not left out"


def test_what_another_broker_says_is_neither_kept_nor_restored_under_the_name_of_this_one(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    assert main(["backup", str(tmp_path / "whole")]) == 0
    first, second = (str(node.address) for node in cluster.nodes)
    cluster.named = {"mb1": second, "mb2": first}
    for words in (["backup", str(tmp_path / "b")], ["restore", str(tmp_path / "whole"), "--yes"]):
        assert main(words) == 1
        assert f"is that of {second}, not {first}" in capsys.readouterr().err
    assert not (tmp_path / "b").exists()


def test_restored_is_only_what_the_inventory_names_inside_its_folder(
    cluster: Cluster, tmp_path: Path, capsys: Said
) -> None:
    elsewhere, archive = tmp_path.parent / f"{tmp_path.name}.out", tmp_path / "a"
    named = elsewhere / "named.password"
    path = cluster.layout.inventory
    whole = path.read_text() + f'\n[[users]]\nname = "x"\npassword_file = "{named}"\n'
    path.unlink()
    files = {
        "inventory.toml": whole.encode(),
        f"files/../{elsewhere.name}/cron.d/evil": b"evil",
        f"files/{elsewhere}/abs.pub": b"evil",
        "files/secrets/strange": b"evil",
        f"files/../{elsewhere.name}/named.password": b"named",
        "files/secrets/token": b"secret of token",
    }
    cluster.layout.secret("token").unlink()
    write_archive(archive, Archive({"cluster": "local", "made_at": "x\x1b[2J"}, files))
    restored = ["restore", str(archive), "--files", "--yes", "--inventory", str(path)]

    assert main([*restored, "--dry-run"]) == 1
    assert main(restored) == 1
    said = capsys.readouterr()
    assert "\x1b" not in said.out
    assert f"outside of {tmp_path}: {named}; to write one: --outside PATH" in said.err
    assert said.err.count("the inventory does not name it") == 6
    assert not elsewhere.exists()
    assert not cluster.layout.secret("strange").exists()
    assert cluster.layout.secret("token").read_text() == "secret of token"

    assert main(restored) == 1, "nor by the inventory that it brought"
    assert main([*restored, "--outside", str(named)]) == 0
    assert [each.name for each in elsewhere.iterdir()] == ["named.password"]

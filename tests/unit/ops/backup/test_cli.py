"""ops backup and restore on a fake cluster; on a real one: tests/integration/test_backup.py."""

from __future__ import annotations

import copy
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from inventory.inventory import ENV_PATH, Inventory, Node, load
from messagebus.broker import BrokerList
from messagebus.secret import Secret
from ops.__main__ import main
from ops.backup import cli
from ops.backup.contents import Archive, write_archive
from ops.errors import NoAnswer
from ops.local import secrets
from ops.local.files import inventory_toml
from ops.local.layout import Layout
from ops.run.plan import Command
from ops.run.runner import HostRunner

LIST = "# cluster: local\n# generation: 5\n127.0.0.11:5672\n127.0.0.12:5672\n"
LIMIT = {"vhost": "/", "name": "limit", "definition": {"max-length": 1}}
ADMIN_HASH = secrets.password_hash(Secret("secret of admin.password"))
LEFT = "leave: user shop is missing: --users brings it back, when the inventory names the user"
MISSING = ("make policy limit", LEFT, LEFT.replace("shop", "admin"))
ENTRY = {"origin": "mb1", "alive": True, "tomb": 0, "changed_at_ms": 1}


class Cluster:
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
        monkeypatch.setenv(ENV_PATH, str(self.layout.inventory))
        monkeypatch.setattr(cli, "View", lambda _file: self)
        monkeypatch.setattr(HostRunner, "run", lambda _self, command: self._run(command))

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
        if self.dead:
            raise NoAnswer(f"agent of {self.dead}: refused")
        return self.maps

    def definitions(self, name: str) -> dict[str, Any]:
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
    assert f"mb1: {LEFT}" in capsys.readouterr().out.splitlines()
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
    assert "no agent remembers what was deleted since" in capsys.readouterr().err
    monkeypatch.setattr(cli, "OLD", timedelta())
    assert main(["restore", archive, "--yes"]) == 1
    assert "by --topology what comes back, of orders, orders/billing" in capsys.readouterr().err
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

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

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
from ops.errors import OpsError

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
        "user bus has another password now, or the same stored anew",
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

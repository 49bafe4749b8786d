"""Definitions that somebody imported into a broker, beside those of the inventory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from inventory.inventory import Inventory, load
from messagebus.secret import Secret
from ops.cluster.definitions import DIFFERS, LETS_IN, LOSES, foreign
from ops.local import files
from ops.local.layout import Layout
from ops.provision.wanted import definitions

PLUGINS = ("rabbitmq_management", "rabbitmq_event_exchange")
OURS = [{"name": "mb.sub/orders/billing", "vhost": "/"}]


@pytest.fixture
def inventory(tmp_path: Path) -> Inventory:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    text = files.inventory_toml(layout).replace('"local"', '"systemd"', 1)
    layout.inventory.write_text(text.replace('supervisor = "local"', 'supervisor = "systemd"'))
    return load(layout.inventory)


@pytest.fixture
def found(inventory: Inventory) -> dict[str, Any]:
    """The definitions of a broker as `ops provision` imports them, as the broker shows them."""

    class Secrets(dict[Path, Secret]):
        def __missing__(self, path: Path) -> Secret:
            return Secret("x")

    made: dict[str, Any] = json.loads(definitions(inventory, inventory.brokers[0], Secrets()))
    for user in made["users"]:
        user["tags"] = list(filter(None, user["tags"].split(",")))
    return {**made, "queues": OURS}


def test_a_broker_as_it_was_set_up_differs_in_nothing(
    inventory: Inventory, found: dict[str, Any]
) -> None:
    assert foreign(inventory, found, (), PLUGINS) == []
    found["queues"] = [*OURS, {"name": "legacy", "vhost": "/"}]
    found["permissions"].append(
        {"user": "bus", "vhost": "other", "configure": ".*", "write": ".*", "read": ".*"}
    )
    found["policies"].append({"vhost": "other", "name": "x", "pattern": ".*", "definition": {}})
    assert foreign(inventory, found, (), PLUGINS) == []


def test_a_password_that_was_changed_while_the_broker_was_away_is_named_with_the_command(
    inventory: Inventory, found: dict[str, Any]
) -> None:
    names = [user["name"] for user in found["users"]]
    kept = dict.fromkeys(names, Secret("x"))
    assert foreign(inventory, found, (), PLUGINS, kept) == []
    (told,) = foreign(inventory, found, (), PLUGINS, kept | {"bus": Secret("new")})
    file = next(user.password_file for user in inventory.users if user.name == "bus")
    assert told.what == (
        f"has another password of 'bus' than {file}: ops users password bus --from {file}"
    )
    assert "new" not in told.what.replace(str(file), "")


EVE = {"name": "eve", "tags": ["administrator"]}
MALLORY = {"name": "mallory", "tags": []}
TTL = {"vhost": "/", "name": "ttl", "pattern": ".*", "definition": {"message-ttl": 1000}}
LAZY = {"vhost": "/", "name": "lazy", "pattern": "^mb", "definition": {"queue-mode": "lazy"}}
ELSEWHERE = {"vhost": "/", "name": "len", "pattern": "^legacy", "definition": {"max-length": 1}}
UNREADABLE = {"vhost": "/", "name": "len", "pattern": "(?|a)", "definition": {"max-length": 1}}
ALL = {"configure": ".*", "write": ".*", "read": ".*"}
SHOVEL = {"vhost": "/", "component": "shovel", "name": "away", "value": {}}
LIMIT = {"vhost": "/", "component": "vhost-limits", "name": "limits", "value": {}}


@pytest.mark.parametrize(
    ("kind", "more", "rank", "what"),
    [
        ("users", EVE, LOSES, "has user 'eve' (administrator), who is not in the inventory"),
        ("users", MALLORY, LETS_IN, "has user 'mallory' (no tags), who is not in the inventory"),
        ("users", {"name": "probe.next", "tags": []}, DIFFERS, "ops users password probe"),
        ("users", EVE | {"name": "probe.next"}, LOSES, "has user 'probe.next' (administrator)"),
        ("permissions", {"user": "probe.next", "vhost": "/", **ALL}, LETS_IN, "'probe.next' the"),
        ("permissions", {"user": "x", "vhost": "/", **ALL}, LETS_IN, "gives 'x' the rights"),
        ("policies", TTL, LOSES, "sets message-ttl for 1 name of the bus"),
        ("policies", LAZY, DIFFERS, "sets queue-mode for 1 name of the bus"),
        ("policies", ELSEWHERE, DIFFERS, "sets max-length for 0 names of the bus"),
        ("policies", UNREADABLE, LOSES, "sets max-length for 1 name of the bus"),
        ("parameters", SHOVEL, LOSES, "has shovel 'away'"),
        ("parameters", LIMIT, DIFFERS, "has vhost-limits 'limits'"),
        ("global_parameters", {"name": "odd"}, DIFFERS, "has global parameter 'odd'"),
        ("topic_permissions", {"user": "bus", "vhost": "/"}, DIFFERS, "routing keys of 'bus'"),
    ],
)
def test_what_somebody_imported_is_told_with_its_rank(
    inventory: Inventory,
    found: dict[str, Any],
    kind: str,
    more: dict[str, Any],
    rank: int,
    what: str,
) -> None:
    found.setdefault(kind, []).append(more)
    (told,) = foreign(inventory, found, (), PLUGINS)
    assert told.rank == rank
    assert what in told.what


def test_users_and_rights_that_were_changed_or_are_missing_are_told(
    inventory: Inventory, found: dict[str, Any]
) -> None:
    users = {user["name"]: user for user in found["users"]}
    users["bus"]["tags"] = ["administrator"]
    rights = {each["user"]: each for each in found["permissions"]}
    rights["bus"]["write"] = ".*"
    found["users"].remove(users["probe"])
    found["permissions"].remove(rights["probe"])
    told = foreign(inventory, found, (), PLUGINS)
    assert [each.rank for each in told] == [LOSES, LETS_IN, DIFFERS, DIFFERS]
    assert told[0].what == "has user 'bus' with administrator, not no tags"
    assert "gives 'bus' the rights configure '^$' write '.*'" in told[1].what
    assert {each.what for each in told[2:]} == {"gives 'probe' no rights", "has no user 'probe'"}


def test_operator_policies_plug_ins_and_a_missing_bound_are_told_the_worst_first(
    inventory: Inventory, found: dict[str, Any]
) -> None:
    found["policies"].clear()
    plugins = ("rabbitmq_management", "rabbitmq_shovel", "rabbitmq_tracing")
    told = foreign(inventory, found, [{**TTL, "apply-to": "queues"}], plugins)
    assert [str(each.what) for each in told] == [
        "has no policy mb.bound, which bounds its queues",
        "has operator policy 'ttl', not from here: it sets message-ttl for 1 name of the bus",
        "has plug-in rabbitmq_shovel, not wanted here",
        "has plug-in rabbitmq_tracing, not wanted here",
        "lacks plug-in rabbitmq_event_exchange",
    ]

"""Differences of a broker's definitions from the inventory: what others have imported or set there.

Nothing but RabbitMQ's own commands makes users, rights, policies and parameters, so a wrong one comes from an
operator or an import, and stays until somebody sees it. Other virtual hosts are not the bus's: only users are
looked at there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any, NamedTuple

from inventory.inventory import NEXT, Inventory
from messagebus.secret import Secret
from messagebus.terminal import plural
from ops.cluster.management import DEFAULT_VHOST
from ops.cluster.quotas import is_quota
from ops.cluster.view import View
from ops.local.secrets import is_hash_of, read
from ops.provision.wanted import BOUND, PLUGINS, RIGHTS, all_users

LOSES, LETS_IN, DIFFERS = 0, 1, 2
"""Ranks of differences: the first loses messages, or gives all rights."""
OURS = "mb."
HASHING = "rabbit_password_hashing_sha256"
ADMINISTRATOR = "administrator"
# Keys of a policy by which messages of a matching queue are dropped, or given away.
LOSING = {
    *("message-ttl", "expires", "max-length", "max-length-bytes", "max-age", "overflow"),
    *("delivery-limit", "dead-letter-exchange", "dead-letter-routing-key"),
}
# Plug-ins that take connections, move messages by themselves, or decide who may log in.
OPEN = re.compile(r"rabbitmq_(auth_|federation|mqtt|shovel|stomp|stream|trust_store|web_|amqp1_0)")
# Written by RabbitMQ itself.
GLOBAL = ("cluster_name", "cluster_tags", "internal_cluster_id", "imported_definition_hash_value")


class Foreign(NamedTuple):
    """One difference. rank: LOSES, LETS_IN or DIFFERS. what: in words."""

    rank: int
    what: str


def look(view: View, name: str) -> list[Foreign]:
    """Return the differences of one broker, the worst first. Raises NoAnswer."""
    policies, plugins = view.brokers.policed(name)
    passwords = dict[str, Secret]()
    for user in all_users(view.inventory):
        with suppress(OSError):
            passwords[user.name] = read(user.password_file)
    return foreign(view.inventory, view.brokers.definitions(name), policies, plugins, passwords)


def foreign(
    inventory: Inventory,
    definitions: Mapping[str, Any],
    operator_policies: Iterable[Mapping[str, Any]] = (),
    plugins: Iterable[str] = (),
    passwords: Mapping[str, Secret] = MappingProxyType({}),
) -> list[Foreign]:
    """Return the differences of one broker, the worst first.

    definitions: all of them, in which operator policies are not. plugins: names of those that are enabled.
    passwords: of users of the inventory, by name.
    """
    return sorted(
        {
            *_users(inventory, definitions),
            *_passwords(inventory, definitions, passwords),
            *_rights(inventory, definitions),
            *_policies(inventory, definitions, operator_policies),
            *_parameters(definitions),
            *_plugins(inventory, plugins),
        }
    )


def _users(inventory: Inventory, definitions: Mapping[str, Any]) -> Iterator[Foreign]:
    roles = {user.name: user.role for user in all_users(inventory)}
    tags = {str(user["name"]): _tags(user.get("tags")) for user in definitions.get("users", ())}
    for name in roles.keys() - tags.keys():
        yield Foreign(DIFFERS, f"has no user {name!r}")
    for name, has in tags.items():
        known = roles.get(name)
        is_stand_in = known is None and roles.get(name.removesuffix(NEXT)) == "probe"
        if is_stand_in and has == _wanted_tags(inventory, "probe"):
            yield Foreign(
                DIFFERS,
                f"has user {name!r}: a change of a password is not finished:"
                f" ops users password {name.removesuffix(NEXT)}",
            )
            continue
        wanted = _wanted_tags(inventory, known) if known else frozenset[str]()
        rank = LOSES if ADMINISTRATOR in has - wanted else LETS_IN
        words = ", ".join(sorted(has)) or "no tags"
        if known is None:
            yield Foreign(rank, f"has user {name!r} ({words}), who is not in the inventory")
        elif has != wanted:
            yield Foreign(
                rank, f"has user {name!r} with {words}, not {', '.join(wanted) or 'no tags'}"
            )


def _passwords(
    inventory: Inventory, definitions: Mapping[str, Any], passwords: Mapping[str, Secret]
) -> Iterator[Foreign]:
    """Yield users with another password: one that was changed while the broker was away."""
    files = {user.name: user.password_file for user in all_users(inventory)}
    for user in definitions.get("users", ()):
        name, stored = str(user["name"]), str(user.get("password_hash"))
        known = user.get("hashing_algorithm") == HASHING and passwords.get(name)
        if known and not is_hash_of(stored, known):
            yield Foreign(
                DIFFERS,
                f"has another password of {name!r} than {files[name]}:"
                f" ops users password {name} --from {files[name]}",
            )


def _wanted_tags(inventory: Inventory, role: str) -> frozenset[str]:
    """Return the tags of a role. A local cluster's application may look at management's pages, too."""
    is_local = inventory.supervisor == "local" and role == "application"
    return _tags("monitoring" if is_local else RIGHTS[role][0])


def _tags(tags: object) -> frozenset[str]:
    """Return the tags of a user: an array, or a text with commas, by RabbitMQ's version."""
    found = tags.split(",") if isinstance(tags, str) else tags if isinstance(tags, list) else []
    return frozenset(filter(None, (str(tag).strip() for tag in found)))


def _rights(inventory: Inventory, definitions: Mapping[str, Any]) -> Iterator[Foreign]:
    roles = {user.name: user.role for user in all_users(inventory)}
    here = {
        str(each["user"]): tuple(str(each[key]) for key in ("configure", "write", "read"))
        for each in definitions.get("permissions", ())
        if each.get("vhost") == DEFAULT_VHOST
    }
    for name, role in roles.items():
        wanted = RIGHTS[role][1:]
        if name in here and here[name] != wanted:
            yield Foreign(
                LETS_IN, f"gives {name!r} the rights {_three(here[name])}, not {_three(wanted)}"
            )
        elif name not in here:
            yield Foreign(DIFFERS, f"gives {name!r} no rights")
    for name in here.keys() - roles.keys():
        if roles.get(name.removesuffix(NEXT)) != "probe" or here[name] != RIGHTS["probe"][1:]:
            yield Foreign(LETS_IN, f"gives {name!r} the rights {_three(here[name])}")
    for each in definitions.get("topic_permissions", ()):
        if each.get("vhost") == DEFAULT_VHOST:
            yield Foreign(DIFFERS, f"restricts the routing keys of {each.get('user')!r}")


def _three(rights: Iterable[str]) -> str:
    return " ".join(f"{word} {right!r}" for word, right in zip(_WORDS, rights, strict=True))


_WORDS = ("configure", "write", "read")


def _policies(
    inventory: Inventory,
    definitions: Mapping[str, Any],
    operator_policies: Iterable[Mapping[str, Any]],
) -> Iterator[Foreign]:
    wants_bound = inventory.supervisor != "local"
    policies = [each for each in definitions.get("policies", ()) if each["vhost"] == DEFAULT_VHOST]
    names = {str(each["name"]) for each in policies}
    if wants_bound and BOUND not in names:
        yield Foreign(LOSES, f"has no policy {BOUND}, which bounds its queues")
    known = {BOUND} if wants_bound else set()
    foreign = [each for each in policies if each["name"] not in known]
    kinds = [("policy", each) for each in foreign if not is_quota(each)]
    kinds += [("operator policy", each) for each in operator_policies]
    ours = _names_of_ours(definitions)
    for kind, each in kinds:
        keys = sorted(each.get("definition") or {})
        matched = sum(_matches(str(each.get("pattern")), name) for name in ours)
        about = f"for {plural(matched, 'name')} of the bus"
        losing = matched and LOSING.intersection(keys)
        yield Foreign(
            LOSES if losing else DIFFERS,
            f"has {kind} {each['name']!r}, not from here: it sets {', '.join(keys) or 'nothing'} {about}",
        )


def _names_of_ours(definitions: Mapping[str, Any]) -> list[str]:
    """Return the names of the queues and exchanges of the bus."""
    return [
        str(each["name"])
        for kind in ("queues", "exchanges")
        for each in definitions.get(kind, ())
        if each.get("vhost") == DEFAULT_VHOST and str(each["name"]).startswith(OURS)
    ]


def _matches(pattern: str, name: str) -> bool:
    """Return whether a policy is about a name; true for a pattern that only Erlang can read."""
    try:
        return re.search(pattern, name) is not None
    except re.error:
        return True


def _parameters(definitions: Mapping[str, Any]) -> Iterator[Foreign]:
    for each in definitions.get("parameters", ()):
        component = str(each.get("component"))
        if each.get("vhost") == DEFAULT_VHOST:
            takes = component.startswith(("shovel", "federation"))
            yield Foreign(LOSES if takes else DIFFERS, f"has {component} {each.get('name')!r}")
    for each in definitions.get("global_parameters", ()):
        if each.get("name") not in GLOBAL:
            yield Foreign(DIFFERS, f"has global parameter {each.get('name')!r}")


def _plugins(inventory: Inventory, plugins: Iterable[str]) -> Iterator[Foreign]:
    wanted = {f"rabbitmq_{name}" for name in (*PLUGINS, *inventory.provision.plugins)}
    enabled = frozenset(plugins)
    for name in wanted - enabled:
        yield Foreign(DIFFERS, f"lacks plug-in {name}")
    for name in enabled - wanted:
        yield Foreign(
            LETS_IN if OPEN.match(name) else DIFFERS, f"has plug-in {name}, not wanted here"
        )

"""The wanted state of a host: packages, files, system users, units. Pure, from the inventory and secrets.

Nothing here knows the host's present state; `changes` compares.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from inventory.inventory import Balancer, Gateway, Inventory, Node, User
from messagebus.secret import Secret
from ops.errors import OpsError
from ops.local.secrets import password_hash
from ops.provision.units import BALANCER_STATE_UNIT, TEMPLATES, balancer_files

AGENT_UNIT, BROKER_UNIT, BALANCER_UNIT = "messagebus-agent", "rabbitmq-server", "haproxy"
VRRP_UNIT = "keepalived"
AGENT_USER = "messagebus"
# Of the Debian package, `make deb`: its libraries are compiled, and no part of the agent's program.
GATEWAY_UNIT, GATEWAY_PACKAGE = "messagebus@gateway", "messagebus"
ETC, STATE, PROGRAMS = Path("/etc/messagebus"), Path("/var/lib/messagebus"), Path("/opt/messagebus")
RABBIT_ETC, RABBIT_DATA = Path("/etc/rabbitmq"), Path("/var/lib/rabbitmq/mnesia")
COOKIE = Path("/var/lib/rabbitmq/.erlang.cookie")
PASSWORD_FILES = (RABBIT_ETC / "definitions.json", ETC / "password")
"""The files of a broker's host that change with a password."""
PLUGINS = ("management", "event_exchange")
BOUND = "mb.bound"
"""Name of the policy that bounds every queue of the bus by bytes."""

# tags; configure, write, read. docs/operations/security.md has the same table. The rights to read an exchange
# and to write to a queue or exchange allow to bind them, and to unbind them. So no application may read any
# exchange: `Queue.exchange` has a name apart.
OURS = r"mb\..*"
RIGHTS: Mapping[str, tuple[str, str, str, str]] = {
    "operator": ("administrator", ".*", ".*", ".*"),
    "agent": (
        "monitoring",
        rf"^({OURS}|amq\.gen.*)$",
        rf"^({OURS}|amq\.gen.*|amq\.default)$",
        rf"^({OURS}|amq\.gen.*|amq\.rabbitmq\.event|amq\.topic)$",
    ),
    "application": (
        "",
        "^$",
        r"^(mb\.(topic|part|to|delay)/.*|mb\.ready|amq\.default)$",
        r"^mb\.(sub|seg|group|queue|park|stream)/.*",
    ),
    "publisher": ("", "^$", r"^(mb\.(topic|part|to|delay)/.*|mb\.ready)$", "^$"),
    # Retries and parked messages are copies: through the delay ladder, or the default exchange.
    "consumer": (
        "",
        "^$",
        r"^(mb\.delay/.*|amq\.default)$",
        r"^mb\.(sub|seg|group|queue|park|stream)/.*",
    ),
    # Devices: RabbitMQ's plug-in publishes there for them. Topics that want it are bound by agents.
    "mqtt": ("", "^$", r"^amq\.topic$", "^$"),
    "monitor": ("monitoring", "^$", "^$", "^$"),
    # Since RabbitMQ 4.2.6 a look at the gate's queue requires some right on it, also of publishers past
    # the balancer. The right to write is harmless: the gate is filled through the default exchange, and only
    # readers empty it.
    "probe": ("", "^$", r"^mb\.ready$", "^$"),
}

Secrets = Mapping[Path, Secret]
"""Contents of the secret files that the inventory names, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedFile:
    """One file. owner: ``user:group``. is_secret: its text is never shown."""

    path: Path
    text: str
    mode: int = 0o644
    owner: str = "root:root"
    is_secret: bool = False

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedHost:
    """The wanted state of one host.

    packages: name -> version, "" for any. users: system users of ours -> the other group that they
    are in. folders: path -> owner. files: in the order in which they are written.
    units: started at each boot. program: digest of the agent's program, "" where there is no agent.
    broker: name of its broker, "" where there is none.
    """

    name: str
    packages: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[str, str] = field(default_factory=dict)
    folders: Mapping[Path, str] = field(default_factory=dict)
    files: tuple[WantedFile, ...] = ()
    units: tuple[str, ...] = ()
    program: str = ""
    broker: str = ""


def wanted_host(inventory: Inventory, name: str, secrets: Secrets, program: str) -> WantedHost:
    """Return the wanted state of a host, from the programs on it. program: digest of the agent's program.

    Raises OpsError when nothing is to run there, or more than one broker.
    """
    nodes = [node for node in inventory.brokers if name in hosts_of(inventory, node)]
    balancers = [each for each in inventory.balancers if each.host == name]
    if len(nodes) > 1:
        raise OpsError(f"host {name} has several brokers: {', '.join(n.name for n in nodes)}")
    gateway = next((each for each in inventory.gateways if each.host == name), None)
    if not nodes and not balancers and gateway is None:
        raise OpsError(f"nothing of the inventory runs on host {name}")
    packages, units = _programs(balancers)
    front = tuple(_balancer_files(inventory, name))
    if gateway is not None:
        packages[GATEWAY_PACKAGE] = ""
        units = (*units, GATEWAY_UNIT)
        front += tuple(_gateway_files(inventory, gateway, secrets))
    if not nodes:
        folders = {ETC: f"root:{AGENT_USER}"} if gateway is not None else {}
        return WantedHost(name=name, packages=packages, folders=folders, files=front, units=units)
    (node,) = nodes
    is_mirrored = any(mirror.name == node.name for mirror in inventory.mirrors)
    return WantedHost(
        name=name,
        packages={
            **packages,
            **({"drbd-utils": ""} if is_mirrored else {}),
            "rabbitmq-server": node.version,
            "python3": "",
        },
        users={AGENT_USER: "rabbitmq"},
        folders={ETC: f"root:{AGENT_USER}", STATE: f"{AGENT_USER}:{AGENT_USER}"},
        files=(*front, *_broker_files(inventory, node, secrets)),
        # The storage playbooks decide which host of a mirror starts the broker.
        units=units if is_mirrored else (*units, BROKER_UNIT, AGENT_UNIT),
        program=program,
        broker=node.name,
    )


def _programs(balancers: Collection[Balancer]) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the packages and units of a host with these balancers, and without a broker."""
    packages, units = {"chrony": ""}, ["chrony"]
    if balancers:
        packages |= {"haproxy": "", "python3": ""}
        units += [BALANCER_UNIT, BALANCER_STATE_UNIT]
    if any(each.vrrp_address for each in balancers):
        packages[VRRP_UNIT] = ""
        units.append(VRRP_UNIT)
    return packages, tuple(units)


def hosts_of(inventory: Inventory, node: Node) -> set[str]:
    """Return the hosts of a broker: for a mirror both."""
    mirrored = (mirror.hosts for mirror in inventory.mirrors if mirror.name == node.name)
    return {node.host}.union(*mirrored)


def _balancer_files(inventory: Inventory, name: str) -> Iterator[WantedFile]:
    """Yield the files of the host's balancer, without its configuration, which `lb apply` writes."""
    for balancer in inventory.balancers:
        if balancer.host == name:
            for path, text in balancer_files(inventory, balancer).items():
                yield WantedFile(path=path, text=text)


def _gateway_files(
    inventory: Inventory, gateway: Gateway, secrets: Secrets
) -> Iterator[WantedFile]:
    user = next(each for each in inventory.users if each.name == gateway.user)
    words = {"inventory": inventory, "gateway": gateway, "etc": ETC}
    ours = f"root:{AGENT_USER}"

    def secret(name: str, text: str) -> WantedFile:
        return WantedFile(path=ETC / name, text=text, mode=0o640, owner=ours, is_secret=True)

    yield WantedFile(path=ETC / "gateway.toml", text=_render("gateway.toml.j2", words), owner=ours)
    yield secret("gateway.password", secrets[user.password_file].reveal() + "\n")
    assert gateway.tokens_file, "checked by the inventory"
    yield secret("gateway.tokens.toml", secrets[gateway.tokens_file].reveal() + "\n")
    if inventory.tls and inventory.provision.tls_dir:
        folder = inventory.provision.tls_dir
        for name, source in (
            ("gateway.ca.pem", inventory.tls.ca_file),
            ("gateway.pem", folder / f"{gateway.name}.pem"),
            ("gateway.key", folder / f"{gateway.name}.key"),
        ):
            yield secret(name, secrets[source].reveal())


def _broker_files(inventory: Inventory, node: Node, secrets: Secrets) -> Iterator[WantedFile]:
    users = all_users(inventory)
    agent = next((user for user in users if user.role == "agent"), users[0])
    words: dict[str, Any] = {
        "inventory": inventory,
        "node": node,
        "settings": inventory.provision,
        "agent_user": agent.name,
        "management_ip": _management_ip(inventory, node),
        "names": _names(inventory),
        "etc": ETC,
        "state": STATE,
        "data": RABBIT_DATA,
        "rabbit_etc": RABBIT_ETC,
        "program": PROGRAMS / "current",
        "unix_user": AGENT_USER,
    }
    ours = f"root:{AGENT_USER}"
    rabbit = "root:rabbitmq"

    def rendered(
        template: str, path: Path, mode: int = 0o644, owner: str = "root:root"
    ) -> WantedFile:
        return WantedFile(path=path, text=_render(template, words), mode=mode, owner=owner)

    def secret(path: Path, text: str, owner: str) -> WantedFile:
        return WantedFile(path=path, text=text, mode=0o640, owner=owner, is_secret=True)

    yield rendered("rabbitmq-env.conf.j2", RABBIT_ETC / "rabbitmq-env.conf")
    yield rendered("advanced.config.j2", RABBIT_ETC / "advanced.config")
    yield WantedFile(
        path=RABBIT_ETC / "enabled_plugins", text=plugins_text(inventory.provision.plugins)
    )
    yield secret(PASSWORD_FILES[0], definitions(inventory, node, secrets), rabbit)
    yield rendered(
        "rabbitmq-limits.conf.j2",
        Path(f"/etc/systemd/system/{BROKER_UNIT}.service.d/messagebus.conf"),
    )
    yield rendered("agent.toml.j2", ETC / "agent.toml", owner=ours)
    yield secret(PASSWORD_FILES[1], secrets[agent.password_file].reveal() + "\n", ours)
    yield secret(ETC / "token", secrets[inventory.token_file].reveal() + "\n", ours)
    if inventory.tls and inventory.provision.tls_dir:
        folder = inventory.provision.tls_dir
        yield WantedFile(path=ETC / "ca.pem", text=secrets[inventory.tls.ca_file].reveal())
        certificate = secrets[folder / f"{node.name}.pem"].reveal()
        yield WantedFile(path=ETC / "node.pem", text=certificate)
        # Broker and agent both read it: the agent's user is in the group of the broker's.
        yield secret(ETC / "node.key", secrets[folder / f"{node.name}.key"].reveal(), rabbit)
    yield rendered("messagebus-agent.service.j2", Path(f"/etc/systemd/system/{AGENT_UNIT}.service"))


def plugins_text(more: Iterable[str] = ()) -> str:
    """Return the text of the file enabled_plugins. more: "mqtt", "stomp", by the inventory."""
    return f"[{','.join(f'rabbitmq_{name}' for name in (*PLUGINS, *more))}].\n"


def _names(inventory: Inventory) -> list[str]:
    """Return the names by which clients call agents through the balancers; addresses are right anyway."""
    said = {name for each in inventory.balancers for name in (each.list.host, *each.names)}
    if inventory.tls:
        said.add(inventory.tls.server_name)
    return sorted(each for each in said if not _is_address(each.strip("[]")))


def _is_address(host: str) -> bool:
    try:
        return bool(ipaddress.ip_address(host))
    except ValueError:
        return False


def _management_ip(inventory: Inventory, node: Node) -> str:
    """Return the only address at which the management API listens; "" for all.

    A name may mean another address on the host. The address of a mirrored broker may come to a host later.
    """
    host = node.management.host.strip("[]")
    is_mirrored = any(mirror.name == node.name for mirror in inventory.mirrors)
    try:
        return "" if is_mirrored else str(ipaddress.ip_address(host))
    except ValueError:
        return ""


def secret_files(inventory: Inventory, nodes: Iterable[Node]) -> Iterator[Path]:
    """Yield files here whose contents `wanted_host` needs for these brokers' hosts."""
    yield from (user.password_file for user in all_users(inventory))
    yield inventory.token_file
    placed = [each for each in inventory.gateways if each.host]
    yield from (each.tokens_file for each in placed if each.tokens_file)
    if inventory.tls and inventory.provision.tls_dir:
        yield inventory.tls.ca_file
        for name in (*(node.name for node in nodes), *(each.name for each in placed)):
            yield from (inventory.provision.tls_dir / f"{name}.{end}" for end in ("pem", "key"))


def definitions(inventory: Inventory, node: Node, secrets: Secrets) -> str:
    """Return users, rights, policies and the broker's own name, as RabbitMQ imports them at every boot."""
    users = all_users(inventory)
    bound = inventory.provision.queue_mb_max * 1_000_000
    return json.dumps(
        {
            "vhosts": [{"name": "/"}],
            "users": [
                {
                    "name": user.name,
                    "password_hash": password_hash(
                        secrets[user.password_file], _salt(inventory, user, secrets)
                    ),
                    "hashing_algorithm": "rabbit_password_hashing_sha256",
                    "tags": RIGHTS[user.role][0],
                }
                for user in users
            ],
            "permissions": [
                {"user": user.name, "vhost": "/", "configure": can, "write": write, "read": read}
                for user in users
                for can, write, read in (RIGHTS[user.role][1:],)
            ],
            # A full queue refuses messages: its overflow, an argument, is reject-publish.
            "policies": [
                {
                    "vhost": "/",
                    "name": BOUND,
                    "pattern": r"^mb\.(sub|seg|queue|park|delay)/",
                    "apply-to": "queues",
                    "priority": 0,
                    "definition": {"max-length-bytes": bound},
                }
            ],
            "global_parameters": [{"name": "cluster_name", "value": str(node.address)}],
        },
        indent=1,
    )


def all_users(inventory: Inventory) -> list[User]:
    """Return all users: the operators', the probe, and those in the inventory."""
    balancer = inventory.balancer
    return [
        User(
            name=inventory.admin_user, role="operator", password_file=inventory.admin_password_file
        ),
        User(name=balancer.probe_user, role="probe", password_file=balancer.probe_password_file),
        *inventory.users,
    ]


def _salt(inventory: Inventory, user: User, secrets: Secrets) -> bytes:
    """Return the salt of a password, another for each password, the same at every run.

    So a second run changes nothing. It is made with the operators' token, since it is stored beside the hash:
    a
    salt made from the password alone would let guesses be tested.
    """
    password = secrets[user.password_file].reveal()
    text = f"{inventory.cluster} {user.name} {password}".encode()
    return hmac.digest(secrets[inventory.token_file].reveal().encode(), text, "sha256")[:4]


def _render(template: str, words: Mapping[str, Any]) -> str:
    return TEMPLATES.render(template, words)

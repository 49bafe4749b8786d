"""The files that the parts of a local cluster read: their text, and their places."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

from inventory.tables import HAPROXY
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.files import write_whole
from messagebus.secret import Secret
from ops.local.layout import CA, HERE, SERVER_NAME, Layout, NodeLayout
from ops.local.roots import chrooted
from ops.local.secrets import ADMIN, BUS, COOKIE, PROBE, TOKEN, password_hash, read
from ops.provision.wanted import RIGHTS, plugins_text

# RabbitMQ's default of 50 MB leaves no room for the write-ahead logs of three brokers.
DISK_FREE_LIMIT_BYTES = 500_000_000
# Five brokers on one machine stay below three quarters of its memory.
MEMORY_SHARE = 0.15
# 512 MiB by default; a short-lived broker would fill the first file of that size for nothing.
WAL_BYTES_MAX = 67_108_864
# Time after which a delay step tries again when the queue behind it does not take a message. RabbitMQ's
# default of 3 minutes made retries that late after a kill with 150 queues: the step is up before the others.
DEAD_LETTER_AGAIN_MS = 15_000
# Interval of reports of queues and connections. The management plugin reads them at the interval of
# its finest samples, so its counts are as old as both together. 5 s each by default; the playbooks
# wait for longer than that before they believe in an empty queue.
STATISTICS_INTERVAL_MS = 1_000
SAMPLES_S = 1
TRAIL_BYTES = 64_000_000

_USERS = {
    "admin": ("administrator", ".*", ".*", ".*"),
    "bus": ("monitoring", *RIGHTS["application"][1:]),
    "probe": RIGHTS["probe"],
}


CLIENT, OPERATOR, PROBE_CERTIFICATE = "client", "operator", "probe"
"""Names of the certificates that do not belong to a node."""
# HAProxy wants the certificate and its key in one file.
CHECK_PEM = "probe-both.pem"


def broker_config(layout: Layout, node: NodeLayout) -> str:
    """Return RabbitMQ's settings as Erlang terms.

    Not rabbitmq.conf: translating that costs a node one to two seconds of its boot.
    """
    retention = ",".join(
        f"{{{kind},[{{{kept_s},{SAMPLES_S}}}]}}"
        for kind, kept_s in (("global", 60), ("basic", 60), ("detailed", 10))
    )
    return f"""%% Written by `python -m ops local`; changes are lost.
[
 {{rabbit, [
   {_listeners(layout, node)},
   {{load_definitions, {_erlang(node.dir / "definitions.json")}}},
   {{disk_free_limit, {DISK_FREE_LIMIT_BYTES}}},
   {{vm_memory_high_watermark, {MEMORY_SHARE}}},
   {{collect_statistics_interval, {STATISTICS_INTERVAL_MS}}},
   {{quorum_tick_interval, {STATISTICS_INTERVAL_MS}}},
   {{dead_letter_worker_publisher_confirm_timeout, {DEAD_LETTER_AGAIN_MS}}},
   {{log, [{{categories, [{{connection, [{{level, error}}]}}]}},
          {{file, [{{file, {_erlang(node.log_dir / "broker.log")}}}, {{level, info}}]}}]}}]}},
 {{ra, [{{wal_max_size_bytes, {WAL_BYTES_MAX}}}]}},
 {{rabbitmq_management, [
   {_management_listener(layout, node)},
   {{rates_mode, basic}},
   {{sample_retention_policies, [{retention}]}}]}}
].
"""


def _listeners(layout: Layout, node: NodeLayout) -> str:
    """Return the settings of the AMQP listener. With TLS there is no plain port beside it."""
    listener = f"{{{_erlang(node.host)}, {node.amqp_port}}}"
    if not layout.tls:
        return f"{{tcp_listeners, [{listener}]}}"
    return f"""{{tcp_listeners, []}},
   {{ssl_listeners, [{listener}]}},
   {{ssl_options, [
     {{cacertfile, {_erlang(layout.tls_file(CA))}}},
     {{certfile, {_erlang(layout.tls_file(node.name + ".pem"))}}},
     {{keyfile, {_erlang(layout.tls_file(node.name + ".key"))}}},
     {{verify, verify_peer}},
     {{fail_if_no_peer_cert, true}},
     {{versions, ['tlsv1.3', 'tlsv1.2']}}]}}"""


def _management_listener(layout: Layout, node: NodeLayout) -> str:
    address = f"{{ip, {_erlang(node.host)}}}, {{port, {node.management_port}}}"
    if not layout.tls:
        return f"{{tcp_config, [{address}]}}"
    return f"""{{ssl_config, [{address},
     {{cacertfile, {_erlang(layout.tls_file(CA))}}},
     {{certfile, {_erlang(layout.tls_file(node.name + ".pem"))}}},
     {{keyfile, {_erlang(layout.tls_file(node.name + ".key"))}}},
     {{versions, ['tlsv1.3', 'tlsv1.2']}}]}}"""


def definitions(node: NodeLayout, passwords: Mapping[str, Secret]) -> str:
    """Return users, rights and the broker's own name, as RabbitMQ imports them at every boot.

    passwords: those of admin, bus and probe, by name.
    """
    users = [
        {
            "name": name,
            "password_hash": password_hash(passwords[name]),
            "hashing_algorithm": "rabbit_password_hashing_sha256",
            "tags": tag,
        }
        for name, (tag, *_rights) in _USERS.items()
    ]
    permissions = [
        {"user": name, "vhost": "/", "configure": configure, "write": write, "read": read}
        for name, (_tag, configure, write, read) in _USERS.items()
    ]
    return json.dumps(
        {
            "vhosts": [{"name": "/"}],
            "users": users,
            "permissions": permissions,
            "global_parameters": [{"name": "cluster_name", "value": node.broker}],
        },
        indent=1,
    )


def agent_toml(layout: Layout, node: NodeLayout) -> str:
    return _toml(
        {
            "broker": node.broker,
            "management": node.management,
            "user": "admin",
            "password_file": layout.secret(ADMIN),
            "http": node.agent,
            "check": node.check,
            "list_file": node.list_file,
            "state_dir": node.agent_dir,
            "token_file": layout.secret(TOKEN),
            "data_dir": node.data_dir,
            "node_name": node.node_name,
            "epmd_port": layout.epmd_port,
            "cookie_file": node.home / ".erlang.cookie",
            "trail_bytes": TRAIL_BYTES,
            **(_agent_tls(layout, node) if layout.tls else {}),
        }
    )


def _agent_tls(layout: Layout, node: NodeLayout) -> dict[str, object]:
    return {
        "tls": True,
        "tls_ca_file": layout.tls_file(CA),
        "tls_cert_file": layout.tls_file(f"{node.name}.pem"),
        "tls_key_file": layout.tls_file(f"{node.name}.key"),
    }


def inventory_toml(layout: Layout) -> str:
    """Return the text of the operators' inventory. Paths are relative to the file."""

    def here(path: Path) -> Path:
        return path.relative_to(layout.dir)

    parts = [
        _toml(
            {
                "cluster": layout.cluster,
                "list_file": here(layout.list_file),
                "token_file": here(layout.secret(TOKEN)),
                "admin_user": "admin",
                "admin_password_file": here(layout.secret(ADMIN)),
                "supervisor": "local",
            }
        ),
        *_balancers(layout),
    ]
    if layout.tls:
        certificates = {
            "ca_file": here(layout.tls_file(CA)),
            "cert_file": here(layout.tls_file(f"{OPERATOR}.pem")),
            "key_file": here(layout.tls_file(f"{OPERATOR}.key")),
            "server_name": SERVER_NAME,
            "check_cert_file": here(layout.tls_file(CHECK_PEM)),
        }
        parts.append("[tls]\n" + _toml(certificates))
    user = {"name": "bus", "role": "application", "password_file": here(layout.secret(BUS))}
    parts.append("[[users]]\n" + _toml(user))
    for node in layout.nodes:
        entry = {
            "name": node.name,
            "address": node.broker,
            "agent": node.agent,
            "check": node.check,
            "management": node.management,
            "node_list_file": here(node.list_file),
            **({"version": node.version} if node.version else {}),
        }
        parts.append("[[brokers]]\n" + _toml(entry))
    return "\n".join(parts)


def _balancers(layout: Layout) -> Iterator[str]:
    def here(path: Path) -> Path:
        return path.relative_to(layout.dir)

    probe = {"probe_user": "probe", "probe_password_file": here(layout.secret(PROBE))}
    if layout.root != HERE:
        probe["program"] = here(layout.haproxy)
    own = [
        {
            "amqp": front.amqp,
            "list": front.list_address,
            "stats": front.stats,
            "config": here(front.config),
            "socket": here(front.admin_socket),
            "state_file": here(front.state_file),
            "master_pid_file": here(front.master_pid_file),
        }
        for front in layout.fronts
    ]
    if len(own) == 1:
        yield "[balancer]\n" + _toml(own[0] | probe)
        return
    yield "[balancer]\n" + _toml(probe)
    for front, each in zip(layout.fronts, own, strict=True):
        yield "[[balancers]]\n" + _toml({"name": front.name} | each)


def _toml(values: Mapping[str, object]) -> str:
    # A JSON string is a TOML basic string.
    return "".join(
        f"{key} = {json.dumps(value if isinstance(value, int) else str(value))}\n"
        for key, value in values.items()
    )


def _erlang(text: str | Path) -> str:
    escaped = str(text).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def write_node(layout: Layout, node: NodeLayout) -> None:
    for folder in (node.home, node.data_dir, node.log_dir, node.agent_dir):
        folder.mkdir(parents=True, exist_ok=True)
    cookie = read(layout.secret(COOKIE)).reveal()
    write_whole(node.home / ".erlang.cookie", cookie, mode=0o400)
    (node.dir / "advanced.config").write_text(broker_config(layout, node))
    (node.dir / "enabled_plugins").write_text(plugins_text())
    (node.dir / "agent.toml").write_text(agent_toml(layout, node))


def write_haproxy(layout: Layout) -> None:
    """Write the script that becomes the HAProxy of the root folder."""
    command = shlex.join(chrooted(layout.root, layout.dir, [str(HAPROXY)]))
    write_whole(layout.haproxy, f'#!/bin/sh\nexec {command} "$@"\n', mode=0o700)


def write_definitions(layout: Layout, node: NodeLayout) -> None:
    passwords = {
        "admin": read(layout.secret(ADMIN)),
        "bus": read(layout.secret(BUS)),
        "probe": read(layout.secret(PROBE)),
    }
    write_whole(node.dir / "definitions.json", definitions(node, passwords))


def first_list(layout: Layout, generation: int) -> BrokerList:
    listed = tuple(
        ListedBroker(broker=Broker.parse(node.broker), agent_port=node.agent_port)
        for node in layout.nodes
    )
    return BrokerList(cluster=layout.cluster, generation=generation, listed=listed)


def write_certificates(layout: Layout) -> None:
    """Write the certificates of all nodes, and those of clients.

    A node's certificate is valid for its own address, for a name of its own, and for the name that clients of
    the balancer use.
    """
    from ops.local.certificates import (
        issue_missing,  # without TLS nobody need wait for `cryptography`
    )

    wanted: dict[str, tuple[str, ...]] = {
        node.name: (node.host, SERVER_NAME, f"{node.name}.{SERVER_NAME}") for node in layout.nodes
    }
    for name in (CLIENT, OPERATOR, PROBE_CERTIFICATE):
        wanted[name] = ()
    issue_missing(layout.tls_dir, wanted)
    both = [layout.tls_file(f"{PROBE_CERTIFICATE}.{end}") for end in ("pem", "key")]
    write_whole(layout.tls_file(CHECK_PEM), "".join(file.read_text() for file in both))


def client_env(layout: Layout) -> dict[str, str]:
    """Return the environment variables of a client's process."""
    env = {
        "MESSAGEBUS_BROKER": layout.front.amqp,
        "MESSAGEBUS_LIST_URL": layout.list_url,
        "MESSAGEBUS_USER": "bus",
        "MESSAGEBUS_PASSWORD_FILE": str(layout.secret(BUS)),
    }
    if layout.tls:
        env |= {
            "MESSAGEBUS_TLS": "true",
            "MESSAGEBUS_TLS_CA_FILE": str(layout.tls_file(CA)),
            "MESSAGEBUS_TLS_CERT_FILE": str(layout.tls_file(f"{CLIENT}.pem")),
            "MESSAGEBUS_TLS_KEY_FILE": str(layout.tls_file(f"{CLIENT}.key")),
            "MESSAGEBUS_TLS_SERVER_NAME": SERVER_NAME,
        }
    return env

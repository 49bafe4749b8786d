"""`python -m ops compose`: brokers, agents, balancer and services as containers of one machine.

The files of each broker are those of `ops provision`, the balancer's configuration is that of `lb`. All
passwords are new and random. Brokers are added and upgraded on hosts, not here: playbooks reach hosts by SSH.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click

from inventory.inventory import Inventory, load
from lb.render import render
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.errors import ConfigError
from messagebus.files import write_whole
from messagebus.secret import Secret
from messagebus.services.agent import genesis
from messagebus.terminal import say
from ops.commands.kits import CHECKOUT
from ops.provision.wanted import ETC, RABBIT_ETC, STATE, WantedFile, wanted_host

BROKERS_MAX = 9
CLUSTER = "compose"
LIST = ETC / "consumer-list"
SECRETS = ("admin", "agent", "bus", "probe", "token", "gateway", "monitor", "grafana")
SECRET_BYTES = 16
# Settings of an agent that has the broker's Erlang at hand; in its own container it has not.
NOT_HERE = ("node_name", "cookie_file")
# Anybody inside of a container may read them; nobody outside, since their folder is shut.
MODE, FOLDER_MODE = 0o644, 0o700
# One release each, so that a second start runs what the first one ran.
IMAGES = {
    "rabbitmq": "docker.io/library/rabbitmq:4.3.0-management",
    "haproxy": "docker.io/library/haproxy:3.2.22",
    "prometheus": "docker.io/prom/prometheus:v3.5.0",
    "grafana": "docker.io/grafana/grafana:12.1.1",
}
MONITORING = CHECKOUT / "ops" / "monitoring"


@click.command(short_help="Write a compose file: a bus in containers.")
@click.argument("out", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--brokers",
    "count",
    type=click.IntRange(1, BROKERS_MAX),
    default=3,
    show_default=True,
    help="Number of brokers.",
)
@click.option(
    "--image",
    default="messagebus",
    show_default=True,
    help="Image of messagebus, made by `make image`.",
)
def compose(out: Path, count: int, image: str) -> None:
    """Write compose.yaml and all its settings into the new folder OUT, with random passwords.

    \b
    Example:
      make image
      python -m ops compose bus && podman-compose --file bus/compose.yaml up --detach
    """
    with _shut(out) as folder:
        known = {name: Secret(secrets.token_hex(SECRET_BYTES)) for name in SECRETS}
        inventory = _inventory(folder, [f"mb{number + 1}" for number in range(count)], known)
        for name, text in _files(inventory, folder, known, image):
            write_whole(folder / name, text, mode=MODE)
        for node in inventory.brokers:
            genesis(folder / node.name / "state")
    say(f"{out}/compose.yaml: publish at 127.0.0.1:5672; list http://127.0.0.1:8081/consumer-list")
    say(f"gateway http://127.0.0.1:8080, its token in {out}/secrets/gateway")
    say(f"monitor http://127.0.0.1:8085, user admin, password in {out}/secrets/monitor")
    say(f"Grafana http://127.0.0.1:3000, user admin, password in {out}/secrets/grafana")


@contextmanager
def _shut(out: Path) -> Iterator[Path]:
    """Make a new or empty folder one that only its owner enters; leave it empty after a failure.

    Raises ConfigError for a folder with something in it, or of somebody else, who could open it again.
    """
    folder, is_new = out.resolve(), not out.exists()
    try:
        folder.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise ConfigError(f"{out}: not empty; the passwords in it would be lost")
        if folder.stat().st_uid != os.geteuid():
            raise ConfigError(f"{out}: it belongs to another user, who could read the passwords")
        folder.chmod(FOLDER_MODE)
    except OSError as fault:
        raise ConfigError(f"{out}: {fault.strerror}") from fault
    try:
        yield folder
    except BaseException:
        for each in folder.iterdir():
            if each.is_dir():
                shutil.rmtree(each)
            else:
                each.unlink()
        if is_new:
            folder.rmdir()
        raise


def _inventory(out: Path, names: list[str], known: dict[str, Secret]) -> Inventory:
    """Return the inventory of the containers, whose names are hosts. Writes the secrets that it reads."""
    for name, secret in known.items():
        write_whole(out / "secrets" / name, secret.reveal() + "\n", mode=MODE)
    lines = [
        f'cluster = "{CLUSTER}"\nlist_file = "consumer-list"\ntoken_file = "secrets/token"',
        'admin_user = "admin"\nadmin_password_file = "secrets/admin"\nsupervisor = "systemd"',
        '[balancer]\namqp = "0.0.0.0:5672"\nlist = "0.0.0.0:8081"\nstats = "0.0.0.0:8404"\nhost = "lb"',
        'dns = "yes"',  # the network of the containers has a resolver that knows them
        'probe_user = "probe"\nprobe_password_file = "secrets/probe"',
        'config = "/usr/local/etc/haproxy/haproxy.cfg"\nsocket = "/tmp/admin.sock"',
        'state_file = "/tmp/state"\nmaster_pid_file = "/tmp/haproxy.pid"',
        *(
            f'[[users]]\nname = "{name}"\nrole = "{role}"\npassword_file = "secrets/{name}"'
            for name, role in (("agent", "agent"), ("bus", "application"))
        ),
        *(f'[[hosts]]\nname = "{name}"\nssh = "root@{name}"' for name in ("lb", *names)),
        *(
            f'[[brokers]]\nname = "{name}"\nhost = "{name}"\naddress = "{name}:5672"\n'
            f'agent = "{name}:8081"\ncheck = "{name}:8082"\nmanagement = "{name}:15672"\n'
            f'node_list_file = "{LIST}"'
            for name in names
        ),
    ]
    path = out / "inventory.toml"
    write_whole(path, "\n".join(lines))
    try:
        return load(path)
    finally:
        path.unlink()  # playbooks would not reach these hosts


def _files(
    inventory: Inventory, out: Path, known: dict[str, Secret], image: str
) -> Iterator[tuple[str, str]]:
    """Yield the path below OUT and the text of each file."""
    from messagebus.services.monitor import (
        hash_password,  # no other command of the kit needs the page
    )

    names = [node.name for node in inventory.brokers]
    read = {out / "secrets" / name: secret for name, secret in known.items()}
    for name in names:
        for file in wanted_host(inventory, name, read, "").files:
            if file.path.parent in (ETC, RABBIT_ETC):
                yield f"{name}/{file.path.parent.name}/{file.path.name}", _fitting(file)
        yield f"{name}/{ETC.name}/{LIST.name}", _list(names)
    yield "lb/haproxy.cfg", render(dataclasses.replace(inventory, supervisor="local"))
    bus = (
        'broker = "lb:5672"\nlist_urls = ["http://lb:8081/consumer-list"]\nuser = "bus"\n'
        'password_file = "/run/secrets/bus"\n'
    )
    yield (
        "gateway.toml",
        'listen = "0.0.0.0:8080"\nadmin = "0.0.0.0:8081"\n'
        f'tokens_file = "/etc/messagebus/tokens.toml"\n[bus]\n{bus}',
    )
    digest = hashlib.sha256(known["gateway"].reveal().encode()).hexdigest()
    rights = "\n".join(f'{each} = ["*"]' for each in ("publish", "consume", "declare"))
    yield "tokens.toml", f'[[token]]\nname = "all"\nsha256 = "{digest}"\n{rights}\n'
    yield (
        "monitor.toml",
        f'listen = "0.0.0.0:8085"\nstate_dir = "{STATE}"\n[bus]\n{bus}'
        '[balancers]\nstats = ["http://lb:8404"]\n[[people]]\nname = "admin"\nrole = "admin"\n'
        f'password = "{hash_password(known["monitor"].reveal())}"\n',
    )
    yield "prometheus/alerts.yml", (MONITORING / "alerts.yml").read_text()
    yield "prometheus/prometheus.yml", _json(_prometheus(names))
    datasource = {"name": "Prometheus", "type": "prometheus", "url": "http://prometheus:9090"}
    sources = {"apiVersion": 1, "datasources": [datasource | {"isDefault": True}]}
    yield "grafana/messagebus.yml", _json(sources)
    yield "compose.yaml", _json(_services(names, image))


def _fitting(file: WantedFile) -> str:
    """Return the text of a broker's file without what a container has not."""
    lines = file.text.splitlines(keepends=True)
    return "".join(line for line in lines if line.partition(" ")[0] not in NOT_HERE)


def _list(names: list[str]) -> str:
    listed = tuple(ListedBroker(broker=Broker(name, 5672), agent_port=8081) for name in names)
    return BrokerList(cluster=CLUSTER, generation=1, listed=listed).render()


def _prometheus(names: list[str]) -> dict[str, object]:
    targets = {
        "messagebus-agents": [f"{name}:8081" for name in names],
        "messagebus-balancers": ["lb:8404"],
        "messagebus-gateways": ["gateway:8081"],
    }
    jobs = [
        {"job_name": job, "static_configs": [{"targets": each}]} for job, each in targets.items()
    ]
    times = {"scrape_interval": "15s", "evaluation_interval": "15s"}
    return {"global": times, "rule_files": ["alerts.yml"], "scrape_configs": jobs}


def _services(names: list[str], image: str) -> dict[str, object]:
    ours = {"image": image, "restart": "always", "read_only": True, "tmpfs": ["/tmp"]}
    services = {service: about for name in names for service, about in _broker(name, ours).items()}
    services |= _entries(names, ours) | _monitoring()
    return {
        "name": "messagebus",
        "services": services,
        "volumes": {name: {} for name in names},
        "secrets": {name: {"file": f"./secrets/{name}"} for name in ("bus", "grafana")},
    }


def _started(*services: str) -> dict[str, object]:
    return {each: {"condition": "service_started"} for each in services}


def _broker(name: str, ours: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return a broker and its agent. ours: what the services of our own image have in common."""
    return {
        name: {
            "image": IMAGES["rabbitmq"],
            "hostname": name,
            "restart": "always",
            "environment": {"RABBITMQ_NODENAME": f"{name}@localhost"},
            "volumes": [f"./{name}/rabbitmq:{RABBIT_ETC}:ro", f"{name}:/var/lib/rabbitmq"],
            "stop_grace_period": "2m",
        },
        f"{name}-agent": {
            **ours,
            "command": ["-v", "agent", "--config", f"{ETC}/agent.toml"],
            "network_mode": f"service:{name}",
            "depends_on": _started(name),
            # It syncs the broker's files, and keeps its own, which belong to two other users.
            "user": "0:0",
            "cap_drop": ["ALL"],
            "cap_add": ["DAC_OVERRIDE"],
            "volumes": [
                f"./{name}/messagebus:{ETC}:ro",
                f"{name}:/var/lib/rabbitmq:ro",
                f"./{name}/state:{STATE}",
            ],
        },
    }


def _entries(names: list[str], ours: Mapping[str, object]) -> dict[str, dict[str, object]]:
    """Return what applications and people connect to: balancer, gateway and monitor."""
    balancer: dict[str, object] = {
        "image": IMAGES["haproxy"],
        "restart": "always",
        "depends_on": _started(*names),
        "ports": ["127.0.0.1:5672:5672", "127.0.0.1:8081:8081", "127.0.0.1:8404:8404"],
        "volumes": ["./lb/haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro"],
    }
    gateway: dict[str, object] = {
        **ours,
        "command": ["-v", "gateway", "--config", f"{ETC}/gateway.toml"],
        "depends_on": _started("lb"),
        "ports": ["127.0.0.1:8080:8080"],
        "volumes": [f"./{each}:{ETC}/{each}:ro" for each in ("gateway.toml", "tokens.toml")],
        "secrets": ["bus"],
        "stop_grace_period": "1m",
    }
    monitor: dict[str, object] = {
        **ours,
        "command": ["-v", "monitor", "--config", f"{ETC}/monitor.toml"],
        "depends_on": _started("lb"),
        "ports": ["127.0.0.1:8085:8085"],
        "volumes": [f"./monitor.toml:{ETC}/monitor.toml:ro"],
        "tmpfs": ["/tmp", f"{STATE}:mode=1777"],
        "secrets": ["bus"],
    }
    return {"lb": balancer, "gateway": gateway, "monitor": monitor}


def _monitoring() -> dict[str, dict[str, object]]:
    sources = "/etc/grafana/provisioning/datasources"
    prometheus: dict[str, object] = {
        "image": IMAGES["prometheus"],
        "ports": ["127.0.0.1:9090:9090"],
        "volumes": ["./prometheus:/etc/prometheus:ro"],
    }
    grafana: dict[str, object] = {
        "image": IMAGES["grafana"],
        "environment": {"GF_SECURITY_ADMIN_PASSWORD__FILE": "/run/secrets/grafana"},
        "secrets": ["grafana"],
        "ports": ["127.0.0.1:3000:3000"],
        "volumes": [f"./grafana/messagebus.yml:{sources}/messagebus.yml:ro"],
    }
    return {"prometheus": prometheus, "grafana": grafana}


def _json(value: object) -> str:
    """Return YAML: JSON is a part of it."""
    return json.dumps(value, indent=2) + "\n"

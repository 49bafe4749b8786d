"""Settings of what watches a local cluster: the monitor's page, and Prometheus with our rules."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from messagebus.files import write_whole
from ops.commands.kits import CHECKOUT
from ops.local.files import CLIENT
from ops.local.layout import CA, SERVER_NAME, Layout, Server

RULES = CHECKOUT / "ops" / "monitoring"
SCRAPE_EVERY = "5s"
# A client's environment variables without their beginning -> the monitor's settings of the bus.
_LISTS = {"LIST_URL": "list_urls"}
_CERTIFICATE = (("cert_file", "pem"), ("key_file", "key"))
PREFIX = "MESSAGEBUS_"
JOURNAL = "journal"


def write(layout: Layout, server: Server, client_env: Mapping[str, str]) -> None:
    """Write the settings of a server that watches; do nothing for another one."""
    server.dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    if server.kind == "monitor":
        (layout.dir / JOURNAL).mkdir(exist_ok=True)  # the first playbook is yet to come
        write_whole(server.dir / "monitor.toml", monitor_toml(layout, server, client_env))
    elif server.kind == "prometheus":
        write_whole(server.dir / "prometheus.yml", prometheus_yml(layout))


def monitor_toml(layout: Layout, server: Server, client_env: Mapping[str, str]) -> str:
    """Return the monitor's settings: read only, for everybody on this machine."""
    bus = []
    for name, value in client_env.items():
        key = name.removeprefix(PREFIX)
        if key in _LISTS:
            bus.append(f"{_LISTS[key]} = [{json.dumps(value)}]")
        else:
            bus.append(f"{key.lower()} = {value if value == 'true' else json.dumps(value)}")
    stats = [f"http://{front.stats}" for front in layout.fronts]
    return "\n".join(
        [
            f'listen = "{server.host}:{server.port}"',
            'state_dir = "state"',
            "[bus]",
            *bus,
            "[balancers]",
            f"stats = {json.dumps(stats)}",
            "[journal]",
            f"folder = {json.dumps(str(layout.dir / JOURNAL))}",
            "",
        ]
    )


def _tls(layout: Layout) -> dict[str, Any]:
    own = {key: str(layout.tls_file(f"{CLIENT}.{end}")) for key, end in _CERTIFICATE}
    return {**own, "ca_file": str(layout.tls_file(CA)), "server_name": SERVER_NAME}


def prometheus_yml(layout: Layout) -> str:
    """Return Prometheus' settings, as JSON, which is YAML, too."""
    agents: dict[str, Any] = {
        "job_name": "messagebus-agents",
        "static_configs": [{"targets": [node.agent for node in layout.nodes]}],
    }
    if layout.tls:
        agents |= {"scheme": "https", "tls_config": _tls(layout)}
    balancers = {
        "job_name": "messagebus-balancers",
        "static_configs": [{"targets": [front.stats for front in layout.fronts]}],
    }
    files = [str(RULES / name) for name in ("alerts.yml", "records.yml")]
    every = {"scrape_interval": SCRAPE_EVERY, "evaluation_interval": SCRAPE_EVERY}
    return json.dumps(
        {"global": every, "rule_files": files, "scrape_configs": [agents, balancers]}, indent=1
    )

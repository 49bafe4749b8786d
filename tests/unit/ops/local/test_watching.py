"""Settings of what watches a local cluster, as those programs read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from messagebus_monitor.config import MonitorConfig
from ops.local.layout import Layout, ServerChoice
from ops.local.servers import argv, environment, url
from ops.local.watching import write

CHOICES = (ServerChoice("monitor", 8085), ServerChoice("prometheus", 9090))


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
def test_the_monitor_reads_its_settings_and_prometheus_asks_every_agent(
    tmp_path: Path, tls: bool
) -> None:
    layout = Layout(dir=tmp_path, numbers=(1, 2), tls=tls, balancers=2, choices=CHOICES)
    (tmp_path / "bus.password").write_text("secret")
    env = {
        "MESSAGEBUS_BROKER": layout.front.amqp,
        "MESSAGEBUS_LIST_URL": layout.list_url,
        "MESSAGEBUS_USER": "bus",
        "MESSAGEBUS_PASSWORD_FILE": str(tmp_path / "bus.password"),
        **({"MESSAGEBUS_TLS": "true", "MESSAGEBUS_TLS_SERVER_NAME": "bus.test"} if tls else {}),
    }
    monitor, prometheus = layout.servers
    for server in layout.servers:
        write(layout, server, env)
    config = MonitorConfig.from_file(monitor.dir / "monitor.toml")
    assert config.bus.list_urls == (layout.list_url,)
    assert config.bus.tls is tls
    assert len(config.balancers) == 2
    assert not config.token_file
    told = json.loads((prometheus.dir / "prometheus.yml").read_text())
    agents, balancers = told["scrape_configs"]
    assert agents["static_configs"][0]["targets"] == [node.agent for node in layout.nodes]
    assert ("tls_config" in agents) is tls
    assert len(balancers["static_configs"][0]["targets"]) == 2
    assert all(Path(each).is_file() for each in told["rule_files"])


def test_their_addresses_are_those_of_pages_and_no_setting_of_the_user_reaches_them(
    tmp_path: Path,
) -> None:
    layout = Layout(dir=tmp_path, numbers=(1,), choices=CHOICES)
    monitor, prometheus = layout.servers
    assert url(monitor) == f"http://{monitor.host}:8085/"
    assert argv(prometheus)[-1] == f"--web.listen-address={prometheus.host}:9090"
    assert "PYTHONPATH" in environment(monitor)
    assert "PYTHONPATH" not in environment(prometheus)

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

from inventory.inventory import load, parse
from messagebus.secret import Secret
from messagebus.topology import GATE
from messagebus_agent import AgentConfig
from ops.local import files
from ops.local.certificates import issue_missing
from ops.local.layout import Layout
from ops.playbooks.cli import STATISTICS_LOCAL_S

LAYOUT = Layout(dir=Path('/tmp/a "quoted" folder'), numbers=(1, 2), offset=1000)
NODE = LAYOUT.nodes[1]
PASSWORDS = {name: Secret(f"{name}'s") for name in ("admin", "bus", "probe")}


def test_a_broker_calls_itself_as_the_list_does() -> None:
    text = files.definitions(NODE, PASSWORDS)
    assert json.loads(text)["global_parameters"] == [
        {"name": "cluster_name", "value": "127.0.0.12:6672"}
    ]


def test_definitions_hold_no_password() -> None:
    text = files.definitions(NODE, PASSWORDS)
    assert not any(password.reveal() in text for password in PASSWORDS.values())


def test_applications_cannot_configure_nor_unbind_subscriptions() -> None:
    definitions = json.loads(files.definitions(NODE, PASSWORDS))
    rights = {right["user"]: right for right in definitions["permissions"]}
    assert rights["bus"]["configure"] == "^$"
    # Unbinding a queue takes the right to write to the queue.
    assert not re.search(rights["bus"]["write"], "mb.sub/orders/billing")
    assert re.search(rights["bus"]["write"], "mb.topic/orders")


def test_the_probe_may_see_the_gate_and_nothing_else() -> None:
    definitions = json.loads(files.definitions(NODE, PASSWORDS))
    (rights,) = [right for right in definitions["permissions"] if right["user"] == "probe"]
    assert rights["configure"] == rights["read"] == "^$"
    assert re.search(rights["write"], GATE)
    assert not re.search(rights["write"], f"{GATE}2")
    assert not re.search(rights["write"], "mb.topic/orders")


def test_counts_are_no_older_than_playbooks_expect() -> None:
    assert files.STATISTICS_INTERVAL_MS / 1000 + files.SAMPLES_S < STATISTICS_LOCAL_S
    text = files.broker_config(LAYOUT, NODE)
    assert "{quorum_tick_interval, 1000}" in text
    assert "{global,[{60,1}]},{basic,[{60,1}]},{detailed,[{10,1}]}" in text


def test_settings_of_a_broker() -> None:
    text = files.broker_config(LAYOUT, NODE)
    assert '{tcp_listeners, [{"127.0.0.12", 6672}]}' in text
    assert "{wal_max_size_bytes, 67108864}" in text
    assert "{disk_free_limit, 500000000}" in text
    assert "{connection, [{level, error}]}" in text
    assert '{tcp_config, [{ip, "127.0.0.12"}, {port, 16672}]}' in text
    assert '"/tmp/a \\"quoted\\" folder/nodes/mb2/definitions.json"' in text


def test_an_agent_reads_its_settings() -> None:
    config = AgentConfig.from_mapping(tomllib.loads(files.agent_toml(LAYOUT, NODE)))
    assert config.broker == "127.0.0.12:6672"
    assert config.management == "127.0.0.12:16672"
    assert config.epmd_port == LAYOUT.epmd_port
    assert config.node_name == "mb2@localhost"


def test_the_inventory_names_every_broker() -> None:
    text = files.inventory_toml(LAYOUT)
    inventory = parse(tomllib.loads(text), base=LAYOUT.dir)
    assert [node.name for node in inventory.brokers] == ["mb1", "mb2"]
    assert str(inventory.brokers[1].address) == NODE.broker
    assert inventory.list_file == LAYOUT.list_file
    assert inventory.balancer.socket == LAYOUT.front.admin_socket


def with_tls(folder: Path) -> Layout:
    layout = Layout(dir=folder, numbers=(1, 2), tls=True)
    issue_missing(layout.tls_dir, {"mb1": ("127.0.0.11",), "operator": ()})
    return layout


def test_with_tls_a_broker_has_no_plain_port(tmp_path: Path) -> None:
    layout = Layout(dir=tmp_path, numbers=(1,), tls=True)
    text = files.broker_config(layout, layout.nodes[0])
    assert "{tcp_listeners, []}" in text
    assert '{ssl_listeners, [{"127.0.0.11", 5672}]}' in text
    assert f'{{keyfile, "{tmp_path}/tls/mb1.key"}}' in text
    assert "{fail_if_no_peer_cert, true}" in text
    assert '{ssl_config, [{ip, "127.0.0.11"}, {port, 15672}' in text
    assert "tcp_config" not in text


def test_with_tls_agents_and_operators_know_their_certificates(tmp_path: Path) -> None:
    layout = with_tls(tmp_path)
    agent = AgentConfig.from_mapping(tomllib.loads(files.agent_toml(layout, layout.nodes[0])))
    assert (agent.tls, agent.tls_cert_file) == (True, str(tmp_path / "tls/mb1.pem"))
    inventory = parse(tomllib.loads(files.inventory_toml(layout)), base=tmp_path)
    assert inventory.tls is not None
    assert inventory.tls.server_name == "bus.test"
    assert inventory.tls.files.faults() == []
    assert inventory.agent_url(inventory.brokers[0]) == "https://127.0.0.11:8081"


def test_an_inventory_names_every_balancer(tmp_path: Path) -> None:
    layout = Layout(dir=tmp_path, numbers=(1,), balancers=2)
    layout.inventory.write_text(files.inventory_toml(layout))
    inventory = load(layout.inventory)
    assert [each.name for each in inventory.balancers] == ["haproxy", "haproxy2"]
    assert [each.socket for each in inventory.balancers] == [
        front.admin_socket for front in layout.fronts
    ]

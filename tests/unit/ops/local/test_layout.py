"""Layout of a local cluster: addresses, files of its parts, servers beside it, secrets."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from inventory.inventory import load, parse
from inventory.tables import HAPROXY
from messagebus.secret import Secret
from messagebus.services.agent import AgentConfig
from messagebus.services.monitor.config import MonitorConfig
from messagebus.services.monitor.playbooks import Playbooks
from messagebus.tls import TlsFiles
from messagebus.topology import GATE
from ops.__main__ import main as ops
from ops.errors import LocalFault
from ops.local import files, secrets, servers
from ops.local.certificates import Authority, issue_missing
from ops.local.folder import Folder
from ops.local.layout import (
    BALANCERS_MAX,
    BLOCK_SIZE,
    NODES_MAX,
    Layout,
    Server,
    ServerChoice,
    node_number,
)
from ops.local.roots import RABBITMQCTL
from ops.local.servers import argv, environment, url
from ops.local.watching import write
from ops.playbooks.cli import STATISTICS_LOCAL_S
from tests.support.eventually import eventually

DIR = Path("/tmp/cluster")


def layout(**changes: object) -> Layout:
    return Layout(**{"dir": DIR, "numbers": (1, 2, 3), **changes})  # type: ignore[arg-type]


def test_every_node_has_an_address_of_its_own_and_the_ports_of_a_real_host() -> None:
    assert [node.broker for node in layout().nodes] == [
        "127.0.0.11:5672",
        "127.0.0.12:5672",
        "127.0.0.13:5672",
    ]
    first = layout().node("mb1")
    assert (first.management, first.agent, first.check) == (
        "127.0.0.11:15672",
        "127.0.0.11:8081",
        "127.0.0.11:8082",
    )
    assert (layout().front.amqp, layout().front.list_address, layout().front.stats) == (
        "127.0.0.10:5672",
        "127.0.0.10:8081",
        "127.0.0.10:8404",
    )


def test_an_offset_moves_all_ports_together() -> None:
    plain, moved = layout(), layout(offset=2000)
    assert [(host, port + 2000) for host, port in plain.sockets] == list(moved.sockets)


def test_blocks_of_two_clusters_do_not_touch() -> None:
    last = layout(numbers=(NODES_MAX,)).nodes[0].distribution_port
    assert last < layout(block=1).epmd_port
    assert layout(block=1).epmd_port - layout().epmd_port == BLOCK_SIZE


def test_a_node_comes_and_goes() -> None:
    assert layout().with_node("mb4").numbers == (1, 2, 3, 4)
    assert layout().with_node("mb2").numbers == (1, 2, 3)
    assert layout().without_node("mb2").numbers == (1, 3)


def test_a_broker_of_another_version_keeps_it_until_it_is_removed() -> None:
    mixed = layout().with_node("mb2", "4.0")
    assert [node.version for node in mixed.nodes] == ["", "4.0", ""]
    assert mixed.with_node("mb2") == mixed
    assert mixed.without_node("mb2").with_node("mb2") == layout()
    assert files.inventory_toml(mixed).count('version = "4.0"') == 1


def test_a_written_layout_is_read_back() -> None:
    wanted = layout(network="127.0.7", offset=1000, block=3, tls=True, root=Path("/r"), balancers=2)
    wanted = replace(wanted, choices=(ServerChoice("redis", 6379, "always"),), versions={2: "4.0"})
    assert Layout.from_json(DIR, wanted.to_json()) == wanted


def test_a_server_has_a_folder_and_a_password_file_of_its_own() -> None:
    wanted = layout(choices=(ServerChoice("redis", 6380), ServerChoice("mariadb", 3307)))
    assert [(server.host, server.port, str(server.dir)) for server in wanted.servers] == [
        ("127.0.0.10", 6380, "/tmp/cluster/servers/redis"),
        ("127.0.0.10", 3307, "/tmp/cluster/servers/mariadb"),
    ]
    assert wanted.servers[0].password_file == DIR / "secrets" / "redis.password"


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"numbers": [1], "colour": 1}', '{"numbers": 3}']
)
def test_a_damaged_state_file_is_told_in_one_line(text: str) -> None:
    with pytest.raises(LocalFault, match=r"cluster\.json is damaged"):
        Layout.from_json(DIR, text)


@pytest.mark.parametrize("network", ["127.0", "127.0.0.1", "127.0.256", "127.0.x", ""])
def test_a_network_is_three_numbers(network: str) -> None:
    with pytest.raises(LocalFault, match="network"):
        layout(network=network)


@pytest.mark.parametrize("numbers", [(), (0,), (NODES_MAX + 1,)])
def test_the_number_of_brokers_has_bounds(numbers: tuple[int, ...]) -> None:
    with pytest.raises(LocalFault, match="brokers"):
        layout(numbers=numbers)


@pytest.mark.parametrize("name", ["mb", "mb0", "mb01", "mb100", "rabbit", "../mb1", "mb1-agent"])
def test_a_node_is_called_mb_and_a_number(name: str) -> None:
    with pytest.raises(LocalFault, match="are called"):
        node_number(name)


def test_an_unknown_node_is_told_with_those_that_there_are() -> None:
    with pytest.raises(LocalFault, match="no broker mb7 here; there are mb1, mb2, mb3"):
        layout().node("mb7")


def test_each_balancer_has_an_address_and_a_folder_of_its_own() -> None:
    assert [front.amqp for front in layout(balancers=2).fronts] == [
        "127.0.0.10:5672",
        "127.0.0.9:5672",
    ]
    assert [front.config for front in layout(balancers=2).fronts] == [
        DIR / "haproxy" / "haproxy.cfg",
        DIR / "haproxy2" / "haproxy.cfg",
    ]
    for count in (0, BALANCERS_MAX + 1):
        with pytest.raises(LocalFault, match="balancers"):
            layout(balancers=count)


LAYOUT = Layout(dir=Path('/tmp/a "quoted" folder'), numbers=(1, 2), offset=1000)
NODE = LAYOUT.nodes[1]
PASSWORDS = {name: Secret(f"{name}'s") for name in ("admin", "bus", "probe")}


def test_a_broker_calls_itself_as_the_list_does() -> None:
    text = files.definitions(NODE, PASSWORDS)
    assert json.loads(text)["global_parameters"] == [
        {"name": "cluster_name", "value": "127.0.0.12:6672"}
    ]


def test_rabbitmqctl_asks_the_node_of_the_broker_that_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = Layout(dir=tmp_path, numbers=(1, 2))
    Folder(tmp_path).write(layout)
    ran = list[tuple[list[str], str]]()

    def run(argv: list[str], *, env: dict[str, str], check: bool) -> object:
        ran.append((argv, env["RABBITMQ_NODENAME"]))
        return subprocess.CompletedProcess(argv, 64)

    monkeypatch.setattr(subprocess, "run", run)
    words = ["ctl", "--dir", str(tmp_path), "mb2", "list_queues", "--help"]
    assert ops(["local", *words]) == 64
    assert ran == [([RABBITMQCTL, "list_queues", "--help"], "mb2@localhost")]


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


def test_a_root_folder_s_own_haproxy_checks_its_configuration(tmp_path: Path) -> None:
    """Neither is one installed on this system, nor does an ordinary user's PATH have its programs."""
    folder = tmp_path / "root"
    program = folder / "usr/sbin/haproxy"
    program.parent.mkdir(parents=True)
    layout = Layout(dir=tmp_path / "cluster", numbers=(1,), root=folder)
    layout.dir.mkdir()
    files.write_haproxy(layout)
    inventory = parse(tomllib.loads(files.inventory_toml(layout)), base=layout.dir)
    assert inventory.balancer.program == layout.haproxy
    assert str(folder) in layout.haproxy.read_text()
    assert os.access(layout.haproxy, os.X_OK)
    plain = parse(tomllib.loads(files.inventory_toml(LAYOUT)), base=LAYOUT.dir)
    assert plain.balancer.program == HAPROXY


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


def test_files_of_a_first_start_that_was_killed_are_written_again(tmp_path: Path) -> None:
    layout, folder = Layout(dir=tmp_path, numbers=(1, 2)), Folder(tmp_path)
    folder.write(layout)
    layout.state_file.unlink()
    layout.list_file.write_text("")
    folder.write(layout)
    assert folder.layout == layout
    assert folder.consumer_list().generation == 1
    moved = replace(layout, offset=100)
    folder.write(moved)
    assert folder.consumer_list() == files.first_list(moved, 2)


def test_an_inventory_names_every_balancer(tmp_path: Path) -> None:
    layout = Layout(dir=tmp_path, numbers=(1,), balancers=2)
    layout.inventory.write_text(files.inventory_toml(layout))
    inventory = load(layout.inventory)
    assert [each.name for each in inventory.balancers] == ["haproxy", "haproxy2"]
    assert [each.socket for each in inventory.balancers] == [
        front.admin_socket for front in layout.fronts
    ]


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
    assert Playbooks(config.journal).runs() == []
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


def postgresql(folder: Path) -> Server:
    return Server(
        name="postgresql",
        kind="postgresql",
        host="127.0.0.10",
        port=5432,
        dir=folder,
        password_file=folder / "password",
    )


def test_the_lock_of_a_killed_postgresql_that_nobody_has_reaped_is_removed(tmp_path: Path) -> None:
    lock = tmp_path / "data" / "postmaster.pid"
    lock.parent.mkdir()
    with subprocess.Popen(["/bin/sleep", "60"]) as child:
        lock.write_text(f"{child.pid}\n/data\n")
        servers.prepare(postgresql(tmp_path))
        assert lock.exists(), "it lives"
        os.kill(child.pid, 9)
        stat = Path(f"/proc/{child.pid}/stat")
        eventually(lambda: " Z " in stat.read_text(), within_s=10)
        servers.prepare(postgresql(tmp_path))
        assert not lock.exists()


def test_an_address_for_people_has_no_password(tmp_path: Path) -> None:
    assert servers.url(postgresql(tmp_path)) == "postgresql://bus@127.0.0.10:5432/postgres"


def test_secrets_are_made_once_and_readable_by_their_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    secrets.ensure(folder)
    first = {file.name: file.read_text() for file in folder.iterdir()}
    secrets.ensure(folder)
    assert {file.name: file.read_text() for file in folder.iterdir()} == first
    assert len(set(first.values())) == len(first) == 5
    assert {file.stat().st_mode & 0o777 for file in folder.iterdir()} == {0o600}
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_password_is_hashed_as_rabbitmq_does_it() -> None:
    # The example of https://www.rabbitmq.com/docs/passwords.
    hashed = secrets.password_hash(Secret("test12"), bytes.fromhex("908DC60A"))
    assert hashed == "kI3GCqW5JLMJa4iX1lo7X4D6XbYqlLgxIs30+P6tENUV2POR"


def test_a_hash_is_known_by_its_password_and_not_by_its_salt() -> None:
    first, second = (secrets.password_hash(Secret("test12")) for _ in range(2))
    assert first != second
    assert secrets.is_hash_of(first, Secret("test12"))
    assert secrets.is_hash_of(second, Secret("test12"))
    for stored, password in ((first, "test13"), ("no base64", "test12"), ("", "test12")):
        assert not secrets.is_hash_of(stored, Secret(password))


WANTED: dict[str, tuple[str, ...]] = {"mb1": ("127.0.0.11", "bus.test"), "client": ()}


def test_what_is_missing_is_made_and_the_rest_kept(tmp_path: Path) -> None:
    issue_missing(tmp_path, WANTED)
    first = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert set(first) == {"ca.pem", "ca.key", "mb1.pem", "mb1.key", "client.pem", "client.key"}
    issue_missing(tmp_path, {**WANTED, "mb2": ("127.0.0.12",)})
    second = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert second == first | {name: second[name] for name in ("mb2.pem", "mb2.key")}


def test_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    issue_missing(tmp_path, WANTED)
    assert {file.stat().st_mode & 0o777 for file in tmp_path.glob("*.key")} == {0o600}


def test_a_certificate_that_ends_soon_is_made_anew(tmp_path: Path) -> None:
    issue_missing(tmp_path, {"client": ()})
    before = (tmp_path / "ca.pem").read_bytes()
    certificate, key = Authority.load(tmp_path).issue("client", days=5)
    (tmp_path / "client.pem").write_text(certificate)
    (tmp_path / "client.key").write_text(key)
    issue_missing(tmp_path, {"client": ()})
    assert (tmp_path / "client.pem").read_text() != certificate
    assert (tmp_path / "ca.pem").read_bytes() == before
    files = [str(tmp_path / name) for name in ("ca.pem", "client.pem", "client.key")]
    assert TlsFiles(ca_file=files[0], cert_file=files[1], key_file=files[2]).faults() == []


def test_a_certificate_is_for_its_names_and_addresses() -> None:
    pem, _key = Authority.make("a").issue("mb1", WANTED["mb1"])
    names = x509.load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    )
    assert names.value.get_values_for_type(x509.DNSName) == ["bus.test"]
    assert [str(ip) for ip in names.value.get_values_for_type(x509.IPAddress)] == ["127.0.0.11"]

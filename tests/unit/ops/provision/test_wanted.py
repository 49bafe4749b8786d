from __future__ import annotations

import json
import re
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inventory.inventory import Inventory, Mirror, parse
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from messagebus.services.agent.config import AgentConfig
from messagebus.services.gateway.config import GatewayConfig
from messagebus.topology import LADDER, declarations, parse_wanted
from ops.errors import OpsError
from ops.provision.wanted import (
    RIGHTS,
    Secrets,
    WantedHost,
    definitions,
    secret_files,
    wanted_host,
)
from tests.support.systemd import exposure_fault, verify

# Exposure by systemd-analyze security, 0 to 100: the agent's unit's own here, and a little more.
EXPOSURE_MAX = 20

VALUES: dict[str, Any] = {
    "cluster": "prod",
    "list_file": "prod.txt",
    "token_file": "token",
    "admin_user": "admin",
    "admin_password_file": "admin.password",
    "supervisor": "systemd",
    "balancer": {
        "host": "lb1",
        "amqp": "lb1:5672",
        "list": "lb1:8081",
        "stats": "lb1:8404",
        "config": "/etc/haproxy/haproxy.cfg",
        "socket": "/run/haproxy/admin.sock",
        "state_file": "/var/lib/haproxy/state",
        "master_pid_file": "/run/haproxy.pid",
        "probe_user": "probe",
        "probe_password_file": "probe.password",
    },
    "hosts": [{"name": name, "ssh": name} for name in ("h1", "h2", "lb1")],
    "brokers": [
        {
            "name": "mb1",
            "host": "h1",
            "address": "h1.example:5672",
            "agent": "h1.example:8081",
            "check": "h1.example:8082",
            "management": "h1.example:15672",
            "node_list_file": "/etc/messagebus/list.txt",
            "version": "3.10.8-1",
        }
    ],
    "users": [
        {"name": "mb-agent", "role": "agent", "password_file": "agent.password"},
        {"name": "shop", "role": "publisher", "password_file": "shop.password"},
        {"name": "billing", "role": "consumer", "password_file": "billing.password"},
    ],
}


def inventory(**more: Any) -> Inventory:
    return parse({**VALUES, **more}, base=Path("/inv"))


def secrets(of: Inventory) -> Secrets:
    return {path: Secret(f"secret of {path.name}") for path in secret_files(of, of.brokers)}


def host(of: Inventory, name: str = "h1") -> WantedHost:
    return wanted_host(of, name, secrets(of), "abc")


def text_of(wanted: WantedHost, path: str) -> str:
    return next(file.text for file in wanted.files if str(file.path) == path)


TLS = {
    "tls": {
        "ca_file": "ca.pem",
        "cert_file": "op.pem",
        "key_file": "op.key",
        "server_name": "prod",
        "check_cert_file": "probe.pem",
    },
    "provision": {"tls_dir": "tls"},
}


def arguments(conf: str, **environment: str) -> list[str]:
    """Return the arguments of Erlang after RabbitMQ's scripts have read this rabbitmq-env.conf."""
    script = f'{conf}\nprintf %s "$RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"'
    # As RabbitMQ's own program reads it once more: it ends where a line fails.
    ended = subprocess.run(
        ["sh", "-e", "-c", script],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return ended.stdout.split()


def test_the_distribution_of_a_broker_is_for_its_own_host_whatever_arguments_its_unit_gives() -> (
    None
):
    conf = text_of(host(inventory()), "/etc/rabbitmq/rabbitmq-env.conf")
    own = {"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+S 1:1"}
    for environment in (own, {}):
        found = arguments(conf, **environment)
        assert found[: 2 if environment else 0] == (["+S", "1:1"] if environment else [])
        place = found.index("inet_dist_use_interface")
        assert found[place + 1] == "{127,0,0,1}"


def test_a_brokers_host_has_its_broker_its_agent_and_the_time() -> None:
    wanted = host(inventory())
    assert wanted.packages == {"chrony": "", "rabbitmq-server": "3.10.8-1", "python3": ""}
    assert wanted.units == ("chrony", "rabbitmq-server", "messagebus-agent")
    assert wanted.program == "abc"


def test_a_balancers_host_has_no_broker_and_no_secret_of_one() -> None:
    wanted = host(inventory(), "lb1")
    assert wanted.packages == {"chrony": "", "haproxy": "", "python3": ""}
    assert [str(file.path) for file in wanted.files] == [
        "/etc/systemd/system/haproxy.service.d/messagebus.conf",
        "/etc/systemd/system/messagebus-balancer-state.service",
        "/usr/local/lib/messagebus/keeper.py",
    ]
    assert wanted.units == ("chrony", "haproxy", "messagebus-balancer-state")
    assert not any(file.is_secret for file in wanted.files)
    assert wanted.program == ""


def test_of_a_mirror_no_host_starts_the_broker_by_itself() -> None:
    mirror = Mirror(
        name="mb1",
        hosts=("h1", "h2"),
        device=Path("/dev/drbd0"),
        disk=Path("/dev/sdb"),
        mount=Path("/var/lib/rabbitmq"),
        port=7788,
    )
    mirrored = replace(inventory(), mirrors=(mirror,))
    assert host(mirrored).units == host(mirrored, "h2").units == ("chrony",)
    assert host(mirrored).files == host(mirrored, "h2").files
    assert "drbd-utils" in host(mirrored, "h2").packages
    (agent,) = [file for file in host(mirrored).files if file.path.name == "agent.toml"]
    assert 'mirror_device = "/dev/drbd0"' in agent.text


def test_hosts_without_a_part_or_with_two_brokers_are_refused() -> None:
    with pytest.raises(OpsError, match="nothing of the inventory runs on host h2"):
        host(inventory(), "h2")
    second = {
        **VALUES["brokers"][0],
        "name": "mb2",
        "address": "x:1",
        "agent": "x:2",
        "check": "x:3",
        "management": "x:4",
    }
    with pytest.raises(OpsError, match="host h1 has several brokers: mb1, mb2"):
        host(inventory(brokers=[VALUES["brokers"][0], second]))


def test_the_management_api_listens_where_the_inventory_says_it_is_asked() -> None:
    def listens_at(host_of_it: str) -> str:
        broker = {**VALUES["brokers"][0], "management": f"{host_of_it}:15672"}
        text = text_of(host(inventory(brokers=[broker])), "/etc/rabbitmq/advanced.config")
        (line,) = [each.strip() for each in text.splitlines() if "tcp_config" in each]
        return line

    assert listens_at("10.9.0.1") == '{tcp_config, [{ip, "10.9.0.1"}, {port, 15672}]},'
    assert listens_at("[fd00::1]") == '{tcp_config, [{ip, "fd00::1"}, {port, 15672}]},'
    assert listens_at("h1.example") == "{tcp_config, [{port, 15672}]},"


def test_the_agent_reads_its_settings() -> None:
    settings = AgentConfig.from_mapping(
        tomllib.loads(text_of(host(inventory()), "/etc/messagebus/agent.toml"))
    )
    assert settings.user == "mb-agent"
    assert settings.broker == "h1.example:5672"
    assert settings.list_file == "/etc/messagebus/list.txt"
    assert settings.node_name == "mb1@localhost"


def test_with_tls_there_is_no_plain_port_and_the_key_is_no_worlds_business() -> None:
    wanted = host(inventory(**TLS))
    config = text_of(wanted, "/etc/rabbitmq/advanced.config")
    assert "{tcp_listeners, []}" in config
    assert "{ssl_listeners, [5672]}" in config
    assert "{ssl_config, [" in config
    assert "tcp_config" not in config
    assert config.count("{") == config.count("}")
    assert config.count("[") == config.count("]")
    key = next(file for file in wanted.files if file.path.name == "node.key")
    assert (key.mode, key.is_secret, key.text) == (0o640, True, "secret of mb1.key")


def test_limits_stand_in_the_brokers_settings() -> None:
    config = text_of(
        host(inventory(provision={"disk_free_mb": 300, "memory_percent": 25, "wal_mb_max": 64})),
        "/etc/rabbitmq/advanced.config",
    )
    for line in (
        "{disk_free_limit, 300000000}",
        "{vm_memory_high_watermark, 0.25}",
        "{wal_max_size_bytes, 64000000}",
        "{dead_letter_worker_publisher_confirm_timeout, 15000}",
    ):
        assert line in config
    assert config.count("{") == config.count("}")
    assert config.count("[") == config.count("]")


def test_another_size_of_queues_changes_what_a_running_broker_imports_and_nothing_else() -> None:
    before, after = (host(inventory(provision={"queue_mb_max": mb})) for mb in (8_000, 36_000))
    differ = {
        str(old.path) for old, new in zip(before.files, after.files, strict=True) if old != new
    }
    assert differ == {"/etc/rabbitmq/definitions.json"}
    (policy,) = json.loads(text_of(after, *differ))["policies"]
    assert policy["definition"] == {"max-length-bytes": 36_000_000_000}


def test_users_have_no_right_that_they_do_not_need() -> None:
    told = json.loads(text_of(host(inventory()), "/etc/rabbitmq/definitions.json"))
    rights = {each["user"]: each for each in told["permissions"]}
    assert sorted(rights) == ["admin", "billing", "mb-agent", "probe", "shop"]
    assert rights["shop"]["configure"] == rights["billing"]["configure"] == "^$"
    assert rights["shop"]["read"] == rights["probe"]["read"] == "^$"
    assert rights["probe"]["configure"] == "^$"
    assert rights["probe"]["write"] == r"^mb\.ready$"
    assert {user["name"]: user["tags"] for user in told["users"]}["mb-agent"] == "monitoring"
    assert told["global_parameters"] == [{"name": "cluster_name", "value": "h1.example:5672"}]
    (policy,) = told["policies"]
    assert policy["definition"] == {"max-length-bytes": 8_000_000_000}
    assert re.match(policy["pattern"], "mb.sub/orders/billing")


@pytest.mark.parametrize(
    ("role", "queue", "may"),
    [
        ("consumer", "mb.sub/orders/a", True),
        ("consumer", "mb.park/orders/a", True),
        ("consumer", "amq.gen-x", False),
        ("publisher", "mb.sub/orders/a", False),
        ("agent", "amq.rabbitmq.event", True),
        ("agent", "amq.topic", True),
        ("mqtt", "mb.sub/orders/a", False),
        ("agent", "other", False),
    ],
)
def test_who_may_read_what(role: str, queue: str, may: bool) -> None:
    assert bool(re.search(RIGHTS[role][3], queue)) is may


APPLICATIONS = ("application", "publisher", "consumer", "mqtt", "monitor", "probe")


@pytest.mark.guarantee("roles-cannot-bind")
@pytest.mark.parametrize("role", APPLICATIONS)
def test_no_right_of_an_application_is_enough_for_a_binding(role: str) -> None:
    """RabbitMQ asks for the right to read the exchange, and to write to the target."""
    names = ("orders", "orders/billing", "queue:jobs", "delay:1000")
    parts = [*(declarations(parse_wanted(name)) for name in names), LADDER]
    _tags, configure, _write, read = RIGHTS[role]
    exchanges = {exchange.name for part in parts for exchange in part.exchanges}
    assert not [each for each in exchanges if re.search(read, each)]
    queues = {queue.name for part in parts for queue in part.queues}
    assert not [each for each in exchanges | queues if re.search(configure, each)]


def test_agents_keep_a_trail_where_the_inventory_gives_it_room() -> None:
    for wanted, expected in (({}, 0), ({"trail_mb": 200}, 200_000_000)):
        written = text_of(host(inventory(provision=wanted)), "/etc/messagebus/agent.toml")
        assert AgentConfig.from_mapping(tomllib.loads(written)).trail_bytes == expected


def test_agents_know_the_names_of_the_balancers() -> None:
    balancer = {**VALUES["balancer"], "names": ["bus.example", "Lists.example"]}
    written = text_of(host(inventory(balancer=balancer)), "/etc/messagebus/agent.toml")
    agent = AgentConfig.from_mapping(tomllib.loads(written))
    assert agent.hosts == {"bus.example", "lists.example", "lb1", agent.address.host}


def test_no_password_stands_in_a_file_that_anybody_may_read() -> None:
    for file in host(inventory(**TLS)).files:
        if "secret of" in file.text and "ca.pem" not in file.text and "mb1.pem" not in file.text:
            assert file.is_secret, file.path
            assert file.mode & 0o007 == 0


def test_a_salt_tells_nothing_of_its_password_without_the_operators_token() -> None:
    made, node = inventory(), inventory().brokers[0]
    found = [
        definitions(made, node, {**secrets(made), made.token_file: Secret(token)})
        for token in ("one", "one", "other")
    ]
    assert found[0] == found[1] != found[2]


def test_a_second_rendering_is_the_same() -> None:
    assert host(inventory()) == host(inventory())


def test_systemd_runs_the_agents_unit_as_it_is_and_lets_it_do_little(tmp_path: Path) -> None:
    path = "/etc/systemd/system/messagebus-agent.service"
    unit = tmp_path / "messagebus-agent.service"
    unit.write_text(text_of(host(inventory()), path))
    assert verify(unit) == ""
    assert exposure_fault(unit, EXPOSURE_MAX) == ""


GATEWAYS: dict[str, Any] = {
    "balancer": {**VALUES["balancer"], "http": "lb1:8080"},
    "users": [
        *VALUES["users"],
        {"name": "web", "role": "application", "password_file": "web.password"},
    ],
    "gateways": [
        {
            "name": "gw1",
            "host": "h2",
            "user": "web",
            "tokens_file": "tokens.toml",
            "address": "10.0.0.7:8080",
            "admin": "10.0.0.7:8081",
        },
        {"name": "gw2", "address": "10.0.0.8:8080", "admin": "10.0.0.8:8081"},
    ],
}


def test_a_gateways_host_has_the_package_its_settings_and_its_unit() -> None:
    wanted = host(inventory(**GATEWAYS), "h2")
    assert wanted.packages == {"chrony": "", "messagebus": ""}
    assert wanted.units == ("chrony", "messagebus@gateway")
    assert wanted.program == ""
    assert wanted.folders == {Path("/etc/messagebus"): "root:messagebus"}
    secret = {file.path.name for file in wanted.files if file.is_secret}
    assert secret == {"gateway.password", "gateway.tokens.toml"}
    assert text_of(wanted, "/etc/messagebus/gateway.password") == "secret of web.password\n"
    beside = host(
        inventory(**{**GATEWAYS, "gateways": [{**GATEWAYS["gateways"][0], "host": "h1"}]})
    )
    assert set(beside.units) == {
        "chrony",
        "rabbitmq-server",
        "messagebus-agent",
        "messagebus@gateway",
    }
    names = [file.path for file in beside.files]
    assert len(names) == len(set(names))


def test_each_host_of_balancers_with_one_address_has_keepalived_with_the_same_settings() -> None:
    own = VALUES["balancer"] | {
        "amqp": "0.0.0.0:5672",
        "list": "0.0.0.0:8081",
        "vrrp_address": "10.0.0.9/24",
        "vrrp_interface": "eth0",
    }
    del own["host"]
    of = inventory(balancer=own, balancers=[{"name": name, "host": name} for name in ("lb1", "h2")])
    texts = {}
    for name in ("lb1", "h2"):
        wanted = host(of, name)
        assert "keepalived" in wanted.packages
        assert wanted.units[-1] == "keepalived"
        texts[name] = text_of(wanted, "/etc/keepalived/keepalived.conf")
        assert "/dev/tcp/lb1/8404" in text_of(wanted, "/usr/local/lib/messagebus/alive.sh")
    assert "10.0.0.9/24" in texts["lb1"]
    assert texts["lb1"].replace("router_id lb1", "router_id h2") == texts["h2"]
    alone = host(inventory(), "lb1")
    assert "keepalived" not in {*alone.packages, *alone.units}


@pytest.mark.parametrize("more", [{}, TLS])
def test_the_gateway_reads_its_settings(
    more: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    wanted = host(inventory(**GATEWAYS, **more), "h2")
    monkeypatch.setattr("ops.provision.wanted.ETC", tmp_path)
    local = host(inventory(**GATEWAYS, **more), "h2")
    for file in local.files:
        file.path.write_text(file.text)
    if more:  # what it reads at once are real certificates
        assert 'tls_ca_file = "/etc/messagebus/gateway.ca.pem"' in text_of(
            wanted, "/etc/messagebus/gateway.toml"
        )
        assert text_of(wanted, "/etc/messagebus/gateway.key") == "secret of gw1.key"
        return
    config = GatewayConfig.from_file(tmp_path / "gateway.toml")
    assert (config.name, config.listen, config.admin) == ("gw1", "10.0.0.7:8080", "10.0.0.7:8081")
    assert config.peers == {"gw2": "http://10.0.0.8:8080"}
    assert config.bus.list_urls == ("http://lb1:8081/consumer-list",)
    assert (config.bus.broker, config.bus.user, config.bus.cluster) == ("lb1:5672", "web", "prod")


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ({"host": "h9"}, "gateway gw1: no host 'h9'"),
        ({"user": "shop"}, "user 'shop': one of .* with role application"),
        ({"tokens_file": None}, "tokens_file: missing"),
        ({"name": "gw-1"}, "letters and digits"),
    ],
)
def test_a_gateway_that_cannot_be_set_up_is_named(wrong: dict[str, Any], told: str) -> None:
    gateway = {k: v for k, v in {**GATEWAYS["gateways"][0], **wrong}.items() if v is not None}
    with pytest.raises(ConfigError, match=told):
        inventory(**{**GATEWAYS, "gateways": [gateway]})


def test_plugins_of_the_inventory_are_enabled_beside_ours() -> None:
    with_both = host(inventory(provision={"plugins": ["mqtt", "stomp"]}))
    assert "rabbitmq_mqtt,rabbitmq_stomp]" in text_of(with_both, "/etc/rabbitmq/enabled_plugins")
    assert "{allow_anonymous, false}" in text_of(with_both, "/etc/rabbitmq/advanced.config")
    plain = host(inventory())
    assert "stomp" not in text_of(plain, "/etc/rabbitmq/enabled_plugins")
    assert "mqtt" not in text_of(plain, "/etc/rabbitmq/advanced.config")

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lb.inventory import Address, load, parse
from lb.render import marker, render
from lb.timers import Timers
from messagebus.errors import ConfigError
from tests.support.balancer import BASE, inventory, inventory_values


def test_relative_paths_start_at_the_file() -> None:
    read = parse(inventory_values(), base=BASE)
    assert read.list_file == BASE / "lists/test.txt"
    assert read.brokers[1].node_list_file == BASE / "nodes/mb2/list.txt"


def test_addresses_are_split() -> None:
    read = parse(inventory_values(), base=BASE)
    assert read.brokers[0].check == Address("10.0.1.1", 8082)
    assert str(read.balancer.list) == "10.0.0.1:8081"


def test_a_broker_is_found_by_name_and_by_address() -> None:
    read = inventory()
    assert read.find("mb2") is read.find("10.0.1.2:5672")


def test_an_unknown_broker_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"no broker 'mb3'.*did you mean 'mb"):
        inventory().find("mb3")


def test_no_brokers_yet_is_an_inventory() -> None:
    values = inventory_values()
    del values["brokers"]
    assert parse(values, base=BASE).brokers == ()


def test_timers_have_defaults_and_take_others() -> None:
    assert inventory().balancer.timers == Timers()
    assert inventory(timers={"check_ms": 1500}).balancer.timers == Timers(check_ms=1500)


def test_new_certificates_of_the_checks_are_a_new_configuration(tmp_path: Path) -> None:
    (tmp_path / "probe").write_text("sesame")
    lines = GOOD_TLS.format(folder=tmp_path)
    (tmp_path / "inventory.toml").write_text(lines)
    texts = []
    for content in (None, "one", "two"):
        if content:
            (tmp_path / "check.pem").write_text(content)
        texts.append(render(load(tmp_path / "inventory.toml")))
    assert len(set(texts)) == 3
    assert render(load(tmp_path / "inventory.toml")) == texts[-1]
    assert len({marker(text) for text in texts}) == 3


GOOD_TLS = """
cluster = "test"
list_file = "list.txt"
token_file = "token"
admin_user = "admin"
admin_password_file = "admin"
supervisor = "systemd"
[balancer]
amqp = "10.0.0.1:5671"
list = "10.0.0.1:8081"
stats = "10.0.0.1:8404"
config = "haproxy.cfg"
socket = "admin.sock"
state_file = "state"
master_pid_file = "pid"
probe_user = "probe"
probe_password_file = "{folder}/probe"
[tls]
ca_file = "ca.pem"
cert_file = "operator.pem"
key_file = "operator.key"
server_name = "bus.example"
check_cert_file = "check.pem"
"""


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("server_name", "no name", "tls.server_name"),
        ("server_nam", "x", "tls.server_nam: unknown key; did you mean 'server_name'"),
        ("ca_file", "", "tls.ca_file"),
    ],
)
def test_what_is_wrong_with_tls_is_told(tmp_path: Path, key: str, value: str, told: str) -> None:
    values = tomllib.loads(GOOD_TLS)
    values["tls"][key] = value
    with pytest.raises(ConfigError, match=told):
        parse(values, base=tmp_path)


def _set(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(values: dict[str, Any]) -> None:
        *tables, key = path.split(".")
        place: Any = values
        for table in tables:
            place = place[int(table)] if table.isdigit() else place[table]
        place[key] = value

    return change


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (_set("cluster", "no/slash"), "cluster: 'no/slash'"),
        (_set("cluster", 7), "cluster: str wanted, not int"),
        (_set("supervisor", "upstart"), "supervisor: 'upstart'; allowed: local, systemd"),
        (_set("list_file", ""), "list_file: '' is not a path"),
        (_set("balancer.amqp", "10.0.0.1"), "balancer.amqp: no port"),
        (_set("balancer.amqp", "10.0.0.1:99999"), "balancer.amqp: not a port"),
        (_set("balancer.probe_user", "pro be"), "balancer.probe_user"),
        (_set("balancer.sessions_max", True), "balancer.sessions_max"),
        (_set("balancer.timers", {"chek_ms": 1}), "balancer.timers.chek_ms: .*mean 'check_ms'"),
        (_set("balancer.timers", {"check_ms": 0}), "balancer.timers.check_ms: 0"),
        (_set("brokers.0.name", "mb 1"), r"brokers\[0\].name: 'mb 1'"),
        (_set("brokers.1.name", "mb1"), "mb1 is used twice"),
        (_set("brokers.1.address", "10.0.1.1:5672"), "10.0.1.1:5672 is used twice"),
        (_set("brokers.1.chek", "x"), r"brokers\[1\].chek: unknown key; did you mean 'check'"),
        (_set("brokers", 3), "brokers: tables wanted"),
    ],
)
def test_a_fault_is_told_with_its_key(change: Callable[[dict[str, Any]], None], told: str) -> None:
    values = inventory_values()
    change(values)
    with pytest.raises(ConfigError, match=told):
        parse(values, base=BASE)


def test_all_faults_are_told_at_once() -> None:
    values = inventory_values()
    del values["token_file"], values["balancer"]["socket"], values["brokers"][0]["check"]
    with pytest.raises(ConfigError) as raised:
        parse(values, base=BASE)
    assert str(raised.value) == (
        "inventory: balancer.socket: missing; token_file: missing; brokers[0].check: missing"
    )


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
paths = st.sampled_from(
    ["cluster", "balancer", "balancer.amqp", "balancer.timers", "brokers", "brokers.0"]
)


@given(paths, json_values)
def test_whatever_stands_there_only_a_config_error_escapes(path: str, value: object) -> None:
    values = inventory_values()
    if path == "brokers.0":
        values["brokers"][0] = value
    else:
        _set(path, value)(values)
    with contextlib.suppress(ConfigError):
        parse(values, base=BASE)


def test_a_file_is_read_with_its_secret(tmp_path: Path) -> None:
    (tmp_path / "inventory.toml").write_text(_toml())
    assert load(tmp_path / "inventory.toml").balancer.probe_password is None
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "probe").write_text("sesame\n")
    password = load(tmp_path / "inventory.toml").balancer.probe_password
    assert password is not None
    assert password.reveal() == "sesame"
    assert "sesame" not in repr(load(tmp_path / "inventory.toml"))


@pytest.mark.parametrize("text", ["cluster =", "\x00"])
def test_a_file_that_is_no_toml_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "inventory.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"inventory\.toml"):
        load(tmp_path / "inventory.toml")


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load(tmp_path / "inventory.toml")


def _toml() -> str:
    lines = []
    values = inventory_values()
    balancer, brokers = values.pop("balancer"), values.pop("brokers")
    for head, table in (
        ("", values),
        ("[balancer]", balancer),
        *(("[[brokers]]", b) for b in brokers),
    ):
        lines += [head, *(f'{key} = "{value}"' for key, value in table.items())]
    return "\n".join(lines)


def mirrored(**changes: Any) -> dict[str, Any]:
    values = inventory_values()
    values["hosts"] = [
        {
            "name": "a1",
            "ssh": "root@10.77.0.1",
            "replication": "10.78.0.1",
            "management": "10.77.0.1",
        },
        {
            "name": "a2",
            "ssh": "10.77.0.2:2222",
            "replication": "10.78.0.2",
            "management": "10.77.0.2",
        },
        {"name": "b1", "ssh": "b1.example"},
        {"name": "b2", "ssh": "b2.example", "replication": "10.78.0.4"},
        {
            "name": "b3",
            "ssh": "b3.example",
            "replication": "10.78.0.5",
            "management": "10.78.0.5",
        },
    ]
    values["brokers"][0]["host"] = "a1"
    values["mirrors"] = [
        {
            "name": "mb1",
            "hosts": ["a1", "a2"],
            "device": "/dev/drbd0",
            "disk": "/dev/vdb",
            "mount": "/var/lib/rabbitmq",
            "port": 7789,
            **changes,
        }
    ]
    return values


def test_a_mirror_names_its_broker_and_two_hosts() -> None:
    read = parse(mirrored(), base=BASE)
    mirror = read.mirror("mb1")
    assert mirror.hosts == ("a1", "a2")
    assert (mirror.address, mirror.resync_rate) == ("", "100M")
    assert read.host("a2").ssh == "10.77.0.2:2222"
    assert (read.find("mb1").host, read.find("mb2").host) == ("a1", "")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": "mb7"}, "mirror mb7: no broker of that name; did you mean"),
        ({"hosts": ["a1", "a9"]}, "mirror mb1: no host 'a9'"),
        ({"hosts": ["a1", "a1"]}, "mirrors[0].hosts: ['a1', 'a1']; 2 different ones wanted"),
        ({"hosts": ["a1"]}, "2 different ones wanted"),
        ({"hosts": ["a1", "b1"]}, "mirror mb1: host b1 has no replication address"),
        ({"hosts": ["a1", "b2"]}, "mirror mb1: host b2 has no management address"),
        ({"hosts": ["a1", "b3"]}, "host b3 has 10.78.0.5 for management and replication"),
        ({"address": "10.77.0.9"}, "mirrors[0].address: '10.77.0.9' is not of the form"),
        ({"resync_rate": "fast"}, "mirrors[0].resync_rate: 'fast' is not of the form"),
        ({"device": "drbd0"}, "mirrors[0].device: 'drbd0' is not of the form"),
        ({"port": 0}, "mirrors[0].port: 0 is not a whole number"),
        ({"disks": "/dev/vdb"}, "mirrors[0].disks: unknown key; did you mean 'disk'?"),
    ],
)
def test_a_wrong_mirror_is_told(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as told:
        parse(mirrored(**changes), base=BASE)
    assert fault in str(told.value)


def test_a_host_is_in_one_mirror_and_a_broker_has_one() -> None:
    values = mirrored()
    values["mirrors"].append(dict(values["mirrors"][0]))
    with pytest.raises(
        ConfigError, match=r"host a1 is in two mirrors; .*broker mb1 has two mirrors"
    ):
        parse(values, base=BASE)


def test_two_hosts_of_one_name_or_address_are_refused() -> None:
    values = mirrored()
    values["hosts"].append({"name": "a1", "ssh": "b1.example"})
    with pytest.raises(
        ConfigError, match=r"host a1 is there twice; ssh address b1.example is there"
    ):
        parse(values, base=BASE)


def several(**second: Any) -> dict[str, Any]:
    """Two balancers, of which the second is on another host."""
    values = inventory_values()
    values["hosts"] = [{"name": "front2", "ssh": "root@10.0.0.2"}]
    own = {key: values["balancer"].pop(key) for key in OWN}
    there = {
        "name": "lb2",
        "host": "front2",
        "amqp": "10.0.0.2:5672",
        "list": "10.0.0.2:8081",
        "stats": "10.0.0.2:8404",
        "config": "/etc/haproxy/haproxy.cfg",
        "socket": "/run/haproxy/admin.sock",
        "state_file": "/var/lib/haproxy/state",
        "master_pid_file": "/run/haproxy.pid",
    }
    values["balancers"] = [{"name": "lb1", **own}, there | second]
    return values


OWN = ("amqp", "list", "stats", "config", "socket", "state_file", "master_pid_file")


def test_several_balancers_share_what_stands_in_one_table() -> None:
    read = parse(several(sessions_max=99), base=BASE)
    assert [each.name for each in read.balancers] == ["lb1", "lb2"]
    assert [each.host for each in read.balancers] == ["", "front2"]
    assert [each.probe_user for each in read.balancers] == ["probe", "probe"]
    assert [each.sessions_max for each in read.balancers] == [8_000, 99]
    assert [each.server_sessions_max for each in read.balancers] == [8_000, 99]
    assert read.balancer.name == "lb1"
    assert read.at(read.find_balancer("lb2")).balancers == (read.balancers[1],)
    with pytest.raises(ConfigError, match=r"no balancer 'lb3'.*did you mean 'lb"):
        read.find_balancer("lb3")


@pytest.mark.parametrize(
    ("second", "fault"),
    [
        ({"name": "lb1"}, "balancer lb1 is there twice"),
        ({"host": "front9"}, "balancer lb2: no host 'front9'; did you mean 'front2'?"),
        ({"config": "haproxy.cfg"}, "'haproxy.cfg' is on another host: an absolute path wanted"),
        ({"amqp": "10.0.0.1:5672"}, "balancer address 10.0.0.1:5672 is there twice"),
        ({"host": "", "socket": "haproxy/admin.sock"}, "balancers[1].host: '' is not of the form"),
        ({"sokcet": "/x"}, "balancers[1].sokcet: unknown key; did you mean 'socket'?"),
    ],
)
def test_what_is_wrong_with_one_of_several_balancers_is_told(
    second: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as told:
        parse(several(**second), base=BASE)
    assert fault in str(told.value)


def test_two_balancers_of_this_machine_have_files_of_their_own() -> None:
    values = several()
    del values["balancers"][1]["host"]
    values["balancers"][1]["socket"] = "haproxy/admin.sock"
    with pytest.raises(ConfigError, match=r"admin socket .*/haproxy/admin.sock is there twice"):
        parse(values, base=BASE)

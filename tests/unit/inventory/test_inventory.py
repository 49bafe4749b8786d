"""Inventories, and the files and tables that they are printed and read by."""

from __future__ import annotations

import contextlib
import dataclasses
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.inventory import Address, Inventory, InventoryFile, load, parse
from inventory.tables import Provision, Timers, User
from lb.lint import faults
from lb.render import marker, render
from messagebus.errors import ConfigError
from ops.local import secrets
from ops.local.certificates import Authority
from tests.support.balancer import BASE, inventory, inventory_values, mirrored_values


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


def test_a_secret_that_is_no_text_is_one_line_without_a_byte_of_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_bytes(b"geheim\xff")
    read = dataclasses.replace(inventory(), token_file=file)
    for ask in (lambda: read.proof_to(read.brokers[0]), lambda: secrets.read(file)):
        with pytest.raises(ConfigError, match="not UTF-8") as refused:
            ask()
        assert "xff" not in str(refused.value)


def test_no_brokers_yet_is_an_inventory() -> None:
    values = inventory_values()
    del values["brokers"]
    assert parse(values, base=BASE).brokers == ()


def test_timers_have_defaults_and_take_others() -> None:
    assert inventory().balancer.timers == Timers()
    assert inventory(timers={"check_s": 1.5}).balancer.timers == Timers(check_s=1.5)


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
        (_set("cluster", 7), "cluster: expected string, not int"),
        (_set("supervisor", "upstart"), "supervisor: 'upstart'; allowed: 'local' or 'systemd'"),
        (_set("list_file", ""), "list_file: '' is not a path"),
        (_set("balancer.amqp", "10.0.0.1"), "balancer.amqp: no port"),
        (_set("balancer.amqp", "10.0.0.1:99999"), "balancer.amqp: not a port"),
        (_set("brokers.0.address", "amqps://u:pw@mb1/v"), r"address: write mb1:5671, not a URL"),
        (_set("balancer.probe_user", "pro be"), "balancer.probe_user"),
        (_set("balancer.sessions_max", True), "balancer.sessions_max"),
        (_set("balancer.timers", {"chek_s": 1}), "balancer.timers.chek_s: .*mean 'check_s'"),
        (_set("balancer.timers", {"check_s": 0}), "balancer.timers.check_s: 0"),
        (_set("brokers.0.name", "mb 1"), r"brokers\[0\].name: 'mb 1'"),
        (_set("brokers.1.name", "mb1"), "broker mb1 is there twice"),
        (_set("brokers.1.address", "10.0.1.1:5672"), "10.0.1.1:5672 is used twice"),
        (_set("brokers.1.chek", "x"), r"brokers\[1\].chek: unknown key; did you mean 'check'"),
        (_set("brokers", [3]), r"brokers\[0\]: expected table, not int"),
        (_set("balancer", 3), "balancer: expected table, not int"),
        (_set("balancers", [3]), r"balancers\[0\]: expected table, not int"),
        (_set("balancers", 3), "balancers: expected array, not int"),
        (_set("balancer.probe_password", "x"), "balancer.probe_password: unknown key"),
        (_set("cluster", None), "cluster: expected string, not NoneType"),
        (_set("list_file", 7), "list_file: expected string, not int"),
        (_set("list_file", "a\nb"), r"list_file: 'a\\nb' is not a path"),
        (_set("brokers", 3), "brokers: expected array, not int"),
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
        "inventory: token_file: missing; balancer.socket: missing; brokers[0].check: missing"
    )


def test_the_value_of_an_unknown_key_is_not_shown() -> None:
    values = inventory_values()
    values["balancer"]["probe_password"] = values["admin_pasword"] = "sesame"
    assert "sesame" not in told(values)


def test_a_missing_balancer_is_told() -> None:
    values = inventory_values()
    del values["balancer"]
    assert told(values) == "inventory: balancer: missing"


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


def test_a_file_is_parsed_anew_only_when_its_text_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, parsed = tmp_path / "inventory.toml", list[str]()

    def counted(values: dict[str, Any], **how: Any) -> Inventory:
        parsed.append(values["cluster"])
        return parse(values, **how)

    monkeypatch.setattr("inventory.inventory.parse", counted)
    path.write_text(_toml())
    known = InventoryFile(path)
    assert known.load() == known.load() == load(path)
    was = parsed[0]
    path.write_text(path.read_text().replace(f'cluster = "{was}"', 'cluster = "other"'))
    assert known.load().cluster == known.load().cluster == "other"
    assert parsed == [was, was, "other"], "`load` has parsed it once too"
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "probe").write_text("sesame")
    secret = known.load().balancer.probe_password
    assert secret is not None
    assert secret.reveal() == "sesame", "a secret is in another file"


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


def test_an_inventory_without_some_balancers_keeps_one_at_least() -> None:
    read = inventory()
    second = dataclasses.replace(read.balancer, name="lb2")
    two = dataclasses.replace(read, balancers=(read.balancer, second))
    assert [each.name for each in two.without(["haproxy"]).balancers] == ["lb2"]
    assert two.without([]) == two
    with pytest.raises(ConfigError, match="no balancer is left"):
        two.without(["haproxy", "lb2"])
    with pytest.raises(ConfigError, match="no balancer 'lb3'"):
        two.without(["lb3"])


Values = dict[str, Any]


def told(values: Values) -> str:
    with pytest.raises(ConfigError) as refused:
        parse(values, base=BASE)
    return str(refused.value)


@pytest.mark.parametrize(
    ("key", "fault"),
    [
        ("name", "broker mb1 is there twice"),
        ("address", "10.0.1.1:5672 is used twice, by mb1 and mb2"),
        ("agent", "10.0.1.1:8081 is used twice, by mb1 and mb2"),
        ("check", "10.0.1.1:8082 is used twice, by mb1 and mb2"),
        ("management", "10.0.1.1:15672 is used twice, by mb1 and mb2"),
    ],
)
def test_two_brokers_share_nothing(key: str, fault: str) -> None:
    values = inventory_values()
    values["brokers"][1][key] = values["brokers"][0][key]
    assert told(values) == f"inventory: {fault}"


def test_a_broker_of_an_unknown_host_names_the_nearest() -> None:
    values = mirrored_values()
    values["hosts"].append({"name": "front1", "ssh": "front1.example"})
    values["brokers"][1]["host"] = "front"
    assert told(values) == "inventory: mb2: no host 'front'; did you mean 'front1'?"


@pytest.mark.parametrize(
    ("one", "same"),
    [
        ("localhost:5672", "127.0.0.1:5672"),
        ("[::1]:5672", "[0:0:0:0:0:0:0:1]:5672"),
        ("Mb.example:5672", "mb.Example:5672"),
    ],
)
def test_one_address_in_two_ways_of_writing_is_used_twice(one: str, same: str) -> None:
    values = inventory_values()
    values["brokers"][0]["address"], values["brokers"][1]["address"] = one, same
    assert told(values) == f"inventory: {same} is used twice, by mb1 and mb2"


def test_names_of_brokers_differ_by_more_than_case() -> None:
    values = inventory_values()
    values["brokers"][1]["name"] = "MB1"
    assert told(values) == "inventory: broker mb1 is there twice"


def test_a_byte_order_mark_of_an_editor_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "probe").write_text("sesame")
    file = tmp_path / "inventory.toml"
    file.write_text(GOOD_TLS.format(folder=tmp_path), encoding="utf-8-sig")
    assert load(file).cluster == "test"


def test_each_user_has_one_role() -> None:
    values = inventory_values()
    values["users"] = [{"name": "probe", "role": "agent", "password_file": "secrets/agent"}]
    assert told(values) == "inventory: user probe is there twice"


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ("secrets/one", "secrets/one is there twice"),
        ("secrets/../secrets/one", "secrets/one is there twice"),
        ("secrets/one.next", "secrets/one.next is there twice"),
        ("secrets/admin", "secrets/admin is there twice"),
        ("secrets/probe", "secrets/probe is there twice"),
        ("secrets/token", "secrets/token is there twice"),
    ],
)
def test_two_users_never_share_a_password_file_nor_the_one_beside_it(file: str, fault: str) -> None:
    """A change of the one's password would lock the other out."""
    values = inventory_values()
    values["admin_password_file"], values["token_file"] = "secrets/admin", "secrets/token"
    values["balancer"]["probe_password_file"] = "secrets/probe"
    values["users"] = [
        {"name": "one", "role": "consumer", "password_file": "secrets/one"},
        {"name": "two", "role": "consumer", "password_file": file},
    ]
    assert told(values) == f"inventory: password_file {BASE}/{fault}"


def test_no_user_has_the_name_of_a_stand_in() -> None:
    values = inventory_values()
    values["users"] = [{"name": "probe.next", "role": "consumer", "password_file": "secrets/x"}]
    assert told(values) == (
        "inventory: user probe.next: that name is for the time in which a password of another user changes"
    )


def _renamed(values: Values) -> None:
    values["hosts"][3]["name"] = "b1"


def _host(key: str) -> Callable[[Values], None]:
    def change(values: Values) -> None:
        values["hosts"][1][key] = values["hosts"][0][key]

    return change


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_renamed, "host b1 is there twice"),
        (_host("ssh"), "ssh address root@10.77.0.1 is there twice"),
        (_host("replication"), "replication address 10.78.0.1 is there twice"),
        (_host("management"), "management address 10.77.0.1 is there twice"),
    ],
)
def test_two_hosts_share_nothing(change: Callable[[Values], None], fault: str) -> None:
    values = mirrored_values()
    change(values)
    assert told(values) == f"inventory: {fault}"


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"name": "mb7"}, "mirror mb7: no broker of that name; did you mean 'mb2'?"),
        ({"hosts": ["a1", "a9"]}, "mirror mb1: no host 'a9'"),
        ({"hosts": ["a1", "b1"]}, "mirror mb1: host b1 has no replication address"),
        (
            {"hosts": ["a1", "b2"]},
            "mirror mb1: host b2 has no management address, by which it is fenced",
        ),
        (
            {"hosts": ["a1", "b3"]},
            "mirror mb1: host b3 has 10.78.0.5 for management and replication, one network",
        ),
    ],
)
def test_a_mirror_is_of_a_broker_and_of_hosts_that_can_fence(changes: Values, fault: str) -> None:
    assert told(mirrored_values(**changes)) == f"inventory: {fault}"


def test_a_host_is_in_one_mirror_and_a_broker_and_an_address_have_one() -> None:
    values = mirrored_values(address="10.77.0.100/24")
    values["mirrors"].append(dict(values["mirrors"][0]))
    assert told(values) == (
        "inventory: address 10.77.0.100/24 is there twice; host a1 is in two mirrors; "
        "host a2 is in two mirrors; broker mb1 has two mirrors"
    )


def test_a_balancer_is_on_a_host_that_is_reached_as_root() -> None:
    values = mirrored_values()
    values["hosts"].append({"name": "front1", "ssh": "op@front1.example", "sudo": "yes"})
    values["balancer"]["host"] = "front1"
    for key in ("config", "socket", "state_file", "master_pid_file"):
        values["balancer"][key] = f"/var/lib/{key}"
    assert told(values).endswith(
        "inventory: balancer haproxy: the SSH user of front1 is not root, as a balancer requires"
    )


def several(**second: Any) -> dict[str, Any]:
    """Return two balancers, of which the second is on another host."""
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
        (
            {"config": "haproxy.cfg"},
            "'haproxy.cfg' is on another host: it must be an absolute path",
        ),
        ({"amqp": "10.0.0.1:5672"}, "balancer address 10.0.0.1:5672 is there twice"),
        ({"host": "", "socket": "haproxy/admin.sock"}, "balancers[1].host: '' is not of the form"),
        ({"sokcet": "/x"}, "balancers[1].sokcet: unknown key; did you mean 'socket'?"),
    ],
)
def test_what_is_wrong_with_one_of_several_balancers_is_told(
    second: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ConfigError) as told_of_tables:
        parse(several(**second), base=BASE)
    assert fault in str(told_of_tables.value)


def paired(**second: Any) -> dict[str, Any]:
    """Two balancers, each on a host of its own, that share 10.0.0.9."""
    values = several(**second)
    values["hosts"].append({"name": "front1", "ssh": "root@10.0.0.1"})
    values["balancer"] |= {"vrrp_address": "10.0.0.9/24", "vrrp_interface": "eth0"}
    for each in values["balancers"]:
        each |= {"amqp": "0.0.0.0:5672", "list": "0.0.0.0:8081"} | second
    values["balancers"][0] |= {
        "host": "front1",
        **{key: values["balancers"][1][key] for key in OWN[3:]},
    }
    return values


def test_two_balancers_share_an_address_that_moves() -> None:
    read = parse(paired(), base=BASE)
    assert [each.vrrp_address for each in read.balancers] == ["10.0.0.9/24"] * 2
    assert [each.vrrp_id for each in read.balancers] == [51, 51]


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (_set("balancers.1.vrrp_address", "10.0.0.8/24"), "no other balancer has 10.0.0.9/24"),
        (
            lambda values: values["balancer"].pop("vrrp_address"),
            "vrrp_interface needs vrrp_address",
        ),
        (_set("balancer.vrrp_address", "10.0.0.999/24"), "lb1: vrrp_address: '10.0.0.999/24'"),
        (_set("balancer.vrrp_interface", "eth 0"), "'eth 0' is not of the form"),
        (_set("balancers.1.vrrp_interface", "x" * 16), "is not of the form"),
        (_set("balancer.vrrp_id", 256), "256 is not a whole number from 1 to 255"),
        (_set("balancers.1.vrrp_id", 7), "need the same vrrp_id"),
        (_set("balancers.1.amqp", "10.0.0.2:5672"), "only 0.0.0.0:5672 is at every address"),
        (_set("balancers.1.list", "10.0.0.2:8081"), "lb2: vrrp_address: list is 10.0.0.2:8081"),
        (_set("balancers.1.host", "front1"), "configuration front1:/etc/haproxy"),
    ],
)
def test_what_keeps_an_address_from_moving_is_told(
    change: Callable[[dict[str, Any]], None], fault: str
) -> None:
    values = paired()
    change(values)
    with pytest.raises(ConfigError) as told:
        parse(values, base=BASE)
    assert fault in str(told.value)


def test_two_balancers_of_this_machine_have_files_of_their_own() -> None:
    values = several()
    del values["balancers"][1]["host"]
    values["balancers"][1]["socket"] = "haproxy/admin.sock"
    with pytest.raises(ConfigError, match=r"admin socket .*/haproxy/admin.sock is there twice"):
        parse(values, base=BASE)


def test_the_defaults_go_together() -> None:
    assert faults(inventory()) == []


def test_every_timer_is_explained() -> None:
    told_of_tables = Timers.__doc__ or ""
    assert all(field.name in told_of_tables for field in dataclasses.fields(Timers))


def test_a_mirror_names_its_broker_and_two_hosts() -> None:
    read = parse(mirrored_values(), base=BASE)
    mirror = read.mirror("mb1")
    assert mirror.hosts == ("a1", "a2")
    assert (mirror.address, mirror.resync_rate) == ("", "100M")
    assert read.host("a2").ssh == "10.77.0.2:2222"
    assert (read.find("mb1").host, read.find("mb2").host) == ("a1", "")


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        (
            {"hosts": ["a1", "a1"]},
            "mirrors[0].hosts: ['a1', 'a1']; two different hosts are required",
        ),
        ({"hosts": ["a1"]}, "two different hosts are required"),
        ({"address": "10.77.0.9"}, "mirrors[0].address: '10.77.0.9' is not of the form"),
        ({"resync_rate": "fast"}, "mirrors[0].resync_rate: 'fast' is not of the form"),
        ({"device": "drbd0"}, "mirrors[0].device: 'drbd0' is not of the form"),
        ({"port": 0}, "mirrors[0].port: 0 is not a whole number"),
        ({"disks": "/dev/vdb"}, "mirrors[0].disks: unknown key; did you mean 'disk'?"),
    ],
)
def test_a_wrong_mirror_is_told(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as told_of_tables:
        parse(mirrored_values(**changes), base=BASE)
    assert fault in str(told_of_tables.value)


def read(**tables: Any) -> Inventory:
    return parse(inventory_values() | tables, base=BASE)


def told_of_tables(**tables: Any) -> str:
    with pytest.raises(ConfigError) as refused:
        read(**tables)
    return str(refused.value)


FINE = {"name": "shop", "role": "publisher", "password_file": "secrets/shop"}
TLS = {
    "ca_file": "ca.pem",
    "cert_file": "o.pem",
    "key_file": "o.key",
    "server_name": "bus.example",
    "check_cert_file": "check.pem",
}


def test_a_user_has_a_role_and_its_password_in_a_file() -> None:
    assert read(users=[FINE]).users == (
        User(name="shop", role="publisher", password_file=Path(BASE, "secrets/shop")),
    )


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"role": "king"}, "users[0].role: 'king'; allowed: agent, application,"),
        ({"password": "x"}, "users[0].password: unknown key; did you mean 'password_file'?"),
        ({"name": "a b"}, "users[0].name: 'a b' is not of the form"),
    ],
)
def test_what_is_wrong_with_a_user_is_told(values: dict[str, Any], fault: str) -> None:
    assert fault in told_of_tables(users=[FINE | values])


def test_limits_have_defaults() -> None:
    assert read(provision={"disk_free_mb": 5}).provision == Provision(disk_free_mb=5)
    assert read().provision == Provision()


def test_an_operators_certificate_that_has_ended_is_named_before_anybody_is_asked(
    tmp_path: Path,
) -> None:
    authority = Authority.make("of a test")
    authority.save(tmp_path)
    file = tmp_path / "operator.pem"
    known = read(tls=TLS)
    assert known.tls
    tls = dataclasses.replace(known.tls, ca_file=tmp_path / "ca.pem", cert_file=file, key_file=file)
    secured = dataclasses.replace(known, tls=tls)
    file.write_text("".join(authority.issue("operator", days=-1)))
    with pytest.raises(ConfigError, match=rf"cert_file {file}: has ended: renew it"):
        secured.certificates()
    file.write_text("".join(authority.issue("operator")))
    assert secured.certificates()


def test_tls_wants_certificates_of_brokers_where_hosts_are_provisioned() -> None:
    assert read(tls=TLS).provision.tls_dir is None
    assert read(tls=TLS, provision={"tls_dir": "x"}).provision.tls_dir == BASE / "x"
    assert told_of_tables(tls=TLS, provision={}) == "inventory: provision.tls_dir: missing"


@pytest.mark.parametrize(
    ("values", "fault"),
    [
        ({"disk_free": 5}, "provision.disk_free: unknown key; did you mean 'disk_free_mb'?"),
        ({"tls_dir": "x"}, "provision.tls_dir: unknown key without [tls]"),
    ],
)
def test_what_is_wrong_with_limits_is_told(values: dict[str, Any], fault: str) -> None:
    assert told_of_tables(provision=values) == f"inventory: {fault}"


@pytest.mark.parametrize("sudo", ["maybe", True, ["no"]])
def test_who_may_become_root_is_said_by_yes_or_no(sudo: object) -> None:
    hosts = [{"name": "a1", "ssh": "a1", "sudo": sudo}]
    assert told_of_tables(hosts=hosts) == f"inventory: hosts[0].sudo: {sudo!r}; allowed: no, yes"

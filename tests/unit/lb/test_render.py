"""Written configurations, and what HAProxy says of them."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inventory.inventory import Inventory, parse
from lb.lint import faults
from lb.render import marker, render
from messagebus.errors import ConfigError
from messagebus.secret import Secret
from tests.support.balancer import BASE, PASSWORD, inventory, inventory_values


def _section(text: str, head: str) -> list[str]:
    """Return the lines of one section, stripped."""
    after = text.split(f"\n{head}\n", 1)[1]
    return [line.strip() for line in re.split(r"\n(?=\S)", after, maxsplit=1)[0].splitlines()]


def test_every_broker_is_a_server_with_two_checks() -> None:
    brokers = _section(render(inventory()), "backend mb_brokers")
    assert [line for line in brokers if line.startswith("server ")] == [
        "server mb1 10.0.1.1:5672 check agent-check agent-port 8082",
        "server mb2 10.0.1.2:5672 check agent-check agent-port 8082",
    ]


@pytest.mark.parametrize("dns", [True, False])
def test_names_are_looked_up_again_and_again_where_dns_knows_them(dns: bool) -> None:
    read = inventory()
    text = render(read.at(dataclasses.replace(read.balancer, dns=dns)))
    assert ("parse-resolv-conf" in text) is dns
    how = "init-addr last,libc," + ("192.0.2.1 resolvers mb_names" if dns else "none")
    for backend in ("mb_brokers", "mb_agents"):
        assert [line.endswith(how) for line in _section(text, f"backend {backend}")].count(
            True
        ) == 1


def test_no_name_has_to_be_known_when_haproxy_starts() -> None:
    """HAProxy refuses to start where it cannot look up the address of an agent check or of another check."""
    values = inventory_values()
    values["brokers"][1] |= {"address": "mb2:5672", "agent": "mb2:8081", "check": "mb2:8082"}
    read = dataclasses.replace(parse(values, base=BASE), balancers=inventory().balancers)
    servers = [line for line in render(read).splitlines() if line.strip().startswith("server mb2")]
    assert [line.split()[2:] for line in servers] == [
        ["mb2:5672", "check", "agent-check", "agent-port", "8082"],
        ["mb2:8081", "check"],
    ]


def test_an_agent_that_answers_elsewhere_is_asked_there() -> None:
    values = inventory_values()
    values["brokers"][0]["check"] = "10.0.9.1:8082"
    read = dataclasses.replace(parse(values, base=BASE), balancers=inventory().balancers)
    server = "server mb1 10.0.1.1:5672 check agent-check agent-addr 10.0.9.1 agent-port 8082"
    assert server in _section(render(read), "backend mb_brokers")


def test_a_broker_takes_so_many_connections_at_most() -> None:
    read = inventory()
    assert " maxconn 8000 " in render(read)
    less = read.at(dataclasses.replace(read.balancer, server_sessions_max=7))
    assert " maxconn 7 " in render(less)


def test_on_a_host_the_process_that_serves_is_not_root() -> None:
    assert "user haproxy" not in render(inventory())
    host = render(dataclasses.replace(inventory(), supervisor="systemd"))
    assert {"user haproxy", "group haproxy"} <= set(_section(host, "global"))


def test_publishers_go_where_the_fewest_are() -> None:
    brokers = _section(render(inventory()), "backend mb_brokers")
    assert "balance leastconn" in brokers
    assert "load-server-state-from-file global" in brokers


def test_the_sessions_of_a_dead_broker_are_cut() -> None:
    assert "on-marked-down shutdown-sessions" in render(inventory())


def test_a_broker_that_is_gone_is_not_rendered() -> None:
    assert "mb2" in render(inventory(2))
    assert "mb2" not in render(inventory(1))


def test_the_list_port_serves_clients_alone() -> None:
    lists = _section(render(inventory()), "frontend mb_list")
    assert (
        "http-request deny deny_status 404 unless"
        " { path /consumer-list /topology /partitions /settled /live /trail }" in lists
    )


def test_whoever_needs_no_login_leaves_connections_to_publishers() -> None:
    text = render(with_gateways())
    for name, most in (("mb_list", 4_000), ("mb_http", 2_000), ("mb_stats", 64)):
        assert f"maxconn {most}" in _section(text, f"frontend {name}")
    for name in ("mb_list", "mb_http"):
        section = _section(text, f"frontend {name}")
        assert "tcp-request connection track-sc0 src" in section
        reject = "{ sc0_conn_cur gt 1000 } || { sc0_conn_rate gt 1000 }"
        assert f"tcp-request connection reject if {reject}" in section


def test_agents_and_gateways_hear_that_a_client_has_gone() -> None:
    """By the defaults alone: in a backend it does not count for the frontend, which would not look."""
    for rendered in (render(inventory()), render(with_gateways())):
        assert "option abortonclose" in _section(rendered, "defaults")


def test_the_agents_time_out_after_a_waiting_fetch() -> None:
    agents = _section(
        render(inventory(timers={"list_wait_s": 30, "list_server_s": 40})), "backend mb_agents"
    )
    assert "timeout server 40s" in agents


def test_a_post_is_never_repeated() -> None:
    agents = _section(render(inventory()), "backend mb_agents")
    assert "http-request disable-l7-retry unless METH_GET" in agents


def test_the_admin_socket_is_its_owners() -> None:
    assert (
        "stats socket '/somewhere/haproxy/admin.sock' mode 600 level admin expose-fd listeners"
        in render(inventory())
    )


@given(st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20))
def test_a_path_stays_one_word(name: str) -> None:
    read = inventory()
    socket = read.balancer.socket.parent / name
    moved = read.at(dataclasses.replace(read.balancer, socket=socket))
    (line,) = [line for line in render(moved).splitlines() if "stats socket" in line]
    quoted = (
        line.strip()
        .removeprefix("stats socket ")
        .removesuffix(" mode 600 level admin expose-fd listeners")
    )
    assert "".join(quoted[1:-1].split("'\\''")) == str(socket).replace("'", "")
    assert quoted.count("'") == 2 + 3 * str(socket).count("'")


def test_the_marker_changes_with_the_configuration_and_only_then() -> None:
    one, other = render(inventory()), render(inventory(3))
    assert marker(one) == marker(render(inventory()))
    assert marker(one) != marker(other)
    assert re.fullmatch(r"messagebus test config [0-9a-f]{16}", marker(one))


def test_a_foreign_configuration_has_no_marker() -> None:
    assert marker("global\n    description x\n") == ""


def test_the_password_stands_in_the_login_alone() -> None:
    text = render(inventory())
    assert PASSWORD not in text
    assert text.count(PASSWORD.encode().hex()) == 1


def test_without_the_password_nothing_is_rendered() -> None:
    read = inventory()
    unread = dataclasses.replace(read.balancer, probe_password=None)
    with pytest.raises(ConfigError, match="probe_password_file: cannot read"):
        render(read.at(unread))


def test_another_password_is_another_configuration() -> None:
    read = inventory()
    other = dataclasses.replace(read.balancer, probe_password=Secret("other"))
    assert marker(render(read)) != marker(render(read.at(other)))


def with_tls() -> Inventory:
    values = inventory_values()
    values["tls"] = {
        "ca_file": "tls/ca.pem",
        "cert_file": "tls/operator.pem",
        "key_file": "tls/operator.key",
        "server_name": "bus.test",
        "check_cert_file": "tls/it's.pem",
    }
    read = parse(values, base=BASE)
    balancer = dataclasses.replace(read.balancer, probe_password=Secret(PASSWORD))
    return read.at(balancer)


def test_tls_is_passed_through_and_spoken_by_the_checks_alone() -> None:
    text = render(with_tls())
    brokers, agents = _section(text, "backend mb_brokers"), _section(text, "backend mb_agents")
    checks = (
        "default-server check-ssl check-sni bus.test verify required verifyhost bus.test"
        " ca-file '/somewhere/tls/ca.pem' crt '/somewhere/tls/it'\\''s.pem'"
    )
    for section in (brokers, agents):
        assert section[0] == "mode tcp"
        assert checks in section
        assert not [line for line in section if line.startswith("server") and " ssl" in line]
    assert "tcp-check connect default" in brokers
    assert "mode tcp" in _section(text, "frontend mb_list")
    assert "http-request" not in text.split("frontend mb_stats")[0]


def test_without_tls_nothing_is_said_of_it() -> None:
    text = render(inventory())
    assert "ssl" not in text
    assert "TLS" not in text
    assert "tcp-check connect\n" in text


def with_gateways(**more: object) -> Inventory:
    values = inventory_values()
    values["balancer"]["http"] = "10.0.0.1:8080"
    values["gateways"] = [
        {"name": f"gw{n}", "address": f"10.0.2.{n}:8080", "admin": f"10.0.2.{n}:8081"}
        for n in (1, 2)
    ]
    found = parse({**values, **more}, base=BASE)
    balancer = dataclasses.replace(found.balancer, probe_password=Secret(PASSWORD))
    return dataclasses.replace(found, balancers=(balancer,))


def test_a_key_meets_the_same_gateway_again_while_that_is_ready() -> None:
    section = _section(render(with_gateways()), "backend mb_gateways")
    assert [line for line in section if line.startswith("server ")] == [
        "server gw1 10.0.2.1:8080 check port 8081",
        "server gw2 10.0.2.2:8080 check port 8081",
    ]
    assert {"balance hdr(Idempotency-Key)", "option httpchk GET /readyz"} <= set(section)
    assert "mb_gateways" not in render(inventory())


def test_the_frontend_of_gateways_speaks_tls_where_it_has_a_certificate() -> None:
    found = with_gateways()
    assert "bind 10.0.0.1:8080" in _section(render(found), "frontend mb_http")
    file = Path("/etc/haproxy/gateway.pem")
    balancer = dataclasses.replace(found.balancer, http_cert_file=file)
    section = _section(
        render(dataclasses.replace(found, balancers=(balancer,))), "frontend mb_http"
    )
    (bind,) = [line for line in section if line.startswith("bind ")]
    assert bind.startswith(f"bind 10.0.0.1:8080 ssl crt '{file}' ssl-min-ver TLSv1.2")


def test_gateways_and_their_frontend_go_together() -> None:
    with pytest.raises(ConfigError, match="go together"):
        with_gateways(gateways=[])
    values = inventory_values()
    values["balancer"]["http_cert_file"] = "/etc/haproxy/gateway.pem"
    with pytest.raises(ConfigError, match="http_cert_file needs http"):
        parse(values, base=BASE)
    entry = {"address": "10.0.2.1:8080", "admin": "10.0.2.1:8081"}
    with pytest.raises(ConfigError, match=r"10\.0\.2\.1:8080 is used twice, by gw1 and gw2"):
        with_gateways(gateways=[entry | {"name": "gw1"}, entry | {"name": "gw2"}])


@pytest.mark.parametrize(
    ("timers", "told"),
    [
        ({"client_s": 120}, "client_s 120: more than twice heartbeat_s"),
        ({"server_s": 60}, "server_s 60"),
        ({"heartbeat_s": 90}, "server_s 180"),
        ({"list_server_s": 60}, "waiting fetches are cut"),
        ({"connect_s": 0.5}, "connect_s 0.5: less than 0.5"),
        ({"check_fast_inter_s": 1.001}, "check_fast_inter_s 1.001"),
        ({"agent_inter_s": 2}, "a drain is seen late"),
        ({"hard_stop_s": 720}, "a reload cuts publishers"),
    ],
)
def test_a_time_that_cuts_healthy_clients_is_refused(timers: dict[str, int], told: str) -> None:
    assert any(told in fault for fault in faults(inventory(timers=timers)))


@pytest.mark.parametrize("heartbeat_s", [1, 10, 89])
def test_anything_above_twice_the_heartbeat_is_good(heartbeat_s: int) -> None:
    limit = 2 * heartbeat_s
    good = {"heartbeat_s": heartbeat_s, "client_s": limit + 1, "server_s": limit + 1}
    assert faults(inventory(timers=good)) == []
    assert len(faults(inventory(timers={**good, "client_s": limit, "server_s": limit}))) == 2


def test_no_broker_is_a_fault() -> None:
    assert faults(inventory(0)) == ["no broker in the inventory"]


def test_a_socket_path_that_haproxy_cannot_bind_is_a_fault() -> None:
    read = inventory()
    socket = read.balancer.socket.parent / ("x" * 98)
    moved = read.at(dataclasses.replace(read.balancer, socket=socket))
    assert "at most 97 bytes" in faults(moved)[0]


def test_one_address_for_two_services_is_a_fault() -> None:
    read = inventory()
    same = dataclasses.replace(read.balancer, stats=read.balancer.amqp)
    assert faults(read.at(same)) != []


def test_the_administrator_is_no_probe() -> None:
    read = inventory()
    same = dataclasses.replace(read.balancer, probe_user=read.admin_user)
    assert "administrator" in faults(read.at(same))[0]


def test_an_empty_password_is_a_fault() -> None:
    read = inventory()
    empty = dataclasses.replace(read.balancer, probe_password=Secret(""))
    assert "is empty" in faults(read.at(empty))[0]


def test_one_broker_takes_no_more_than_there_are_in_all() -> None:
    read = inventory()
    many = dataclasses.replace(read.balancer, server_sessions_max=8_001)
    assert "not above sessions_max (8000)" in faults(read.at(many))[0]


def test_all_balancers_together_do_not_swamp_a_broker() -> None:
    read = inventory()
    eight = tuple(dataclasses.replace(read.balancer, name=f"lb{n}") for n in range(2, 9))
    assert (
        "64000 from 8 balancers together"
        in faults(dataclasses.replace(read, balancers=(read.balancer, *eight)))[0]
    )


def test_a_fault_of_one_of_several_balancers_names_it() -> None:
    read = inventory()
    second = dataclasses.replace(read.balancer, name="lb2", probe_user=read.admin_user)
    (fault,) = faults(dataclasses.replace(read, balancers=(read.balancer, second)))
    assert fault.startswith("lb2: probe_user is the administrator")

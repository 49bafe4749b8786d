"""Promise: with TLS on, nothing is sent to a peer whose certificate was not verified, and the rest works."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.faults import close_listed
from inventory.inventory import load
from lb.apply import check
from messagebus import (
    AsyncPublisher,
    BusConfig,
    CertificateRefused,
    ConfigError,
    Consumer,
    NotReady,
    Publisher,
    PublisherConfig,
    Queue,
    declare,
)
from messagebus.admin import brokers
from messagebus.errors import ListUnavailable
from messagebus.files import write_whole
from ops.local.certificates import Authority, issue_missing
from ops.local.cluster import LocalCluster
from ops.local.files import CHECK_PEM, CLIENT, OPERATOR, PROBE_CERTIFICATE
from ops.local.layout import CA, SERVER_NAME, Layout, NodeLayout
from tests.support.cluster import MakeCluster
from tests.support.eventually import eventually
from tests.support.faults import (
    balancer_configured,
    balancer_state,
    client_id,
    close_connections,
)
from tests.support.load import consuming, publishing
from tests.support.playbooks import lb, ops

READY_WITHIN_S = 60.0
LISTED_WITHIN_S = 60.0
CHECKED_WITHIN_S = 60.0
DEADLINE_S = 3.0
CLIENT_ID = "verified"


@pytest.fixture(scope="module")
def secured(make_cluster: MakeCluster) -> LocalCluster:
    return make_cluster(2, tls=True)


@pytest.fixture
def bus(secured: LocalCluster) -> BusConfig:
    return BusConfig.from_env(secured.client_env())


@pytest.fixture(scope="module")
def stranger(secured: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with bad certificates: of another authority, and `expired` of the right one."""
    folder = tmp_path_factory.mktemp("stranger")
    issue_missing(folder, {CLIENT: (), "mb2": (SERVER_NAME, secured.node("mb2").host)})
    certificate, key = Authority.load(secured.layout.tls_dir).issue("expired", days=-1)
    (folder / "expired.pem").write_text(certificate)
    write_whole(folder / "expired.key", key)
    return folder


def connections(cluster: LocalCluster, user: str) -> list[dict[str, Any]]:
    found = []
    for name in cluster.names:
        with cluster.management(name) as management:
            found += management.get("/api/connections").raise_for_status().json()
    return [each for each in found if each.get("user") == user]


@pytest.mark.guarantee("tls-verifies-first")
def test_messages_pass_and_every_connection_is_verified_on_both_ends(
    secured: LocalCluster, bus: BusConfig
) -> None:
    seen: dict[str, dict[str, Any]] = {}
    bus = replace(bus, client_id=CLIENT_ID)
    with consuming(bus, "orders", "billing") as work:
        # Brokers list a connection once a second: those of publishers live a little longer.
        lifetime = PublisherConfig(connection_lifetime_s=4)
        with publishing(bus, "orders", publishers=2, config=lifetime) as load:
            eventually(
                lambda: {s.published.broker for s in load.confirmed()} == set(names_of(secured)),
                within_s=READY_WITHIN_S,
                what="both brokers were published to",
            )
            # A consumer on each broker, and some of the publishers.
            eventually(
                lambda: len(see(secured, seen)) >= 4,
                within_s=READY_WITHIN_S,
                what="brokers list connections",
            )
        assert work.wait_for(load.confirmed_ids()) == set()
    assert {each["ssl"] for each in seen.values()} == {True}
    assert {each["peer_cert_subject"] for each in seen.values()} == {f"CN={CLIENT}"}


def see(cluster: LocalCluster, seen: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add the current connections to those seen before. Agents check our login as bus, too."""
    ours = [each for each in connections(cluster, "bus") if client_id(each) == CLIENT_ID]
    seen |= {each["name"]: each for each in ours}
    return seen


async def test_the_asyncio_client_speaks_tls_too(bus: BusConfig) -> None:
    async with AsyncPublisher(bus) as publisher:
        assert (await publisher.send_safe(Queue("jobs", create=True), b"x")).broker


def test_registering_and_the_list_go_over_https(secured: LocalCluster, bus: BusConfig) -> None:
    assert declare(bus, ["declared", "declared/one"]).complete
    assert brokers(bus).names == set(names_of(secured))
    with pytest.raises(httpx.HTTPError):
        httpx.get(secured.list_url.replace("https", "http"), trust_env=False)


def test_the_management_api_is_asked_over_tls_alone(secured: LocalCluster) -> None:
    address = secured.node("mb1").management
    with secured.management("mb1") as management:
        assert management.get("/api/overview").raise_for_status().json()["rabbitmq_version"]
    with pytest.raises(httpx.HTTPError):
        httpx.get(f"http://{address}/api/overview", trust_env=False, timeout=READY_WITHIN_S)
    trusted = load(secured.layout.inventory).certificates()

    def seen() -> bool:  # by the agent, from that API alone
        url = f"https://{secured.node('mb1').agent}/metrics"
        return "disk_free_bytes" in httpx.get(url, verify=trusted, trust_env=False).text

    eventually(seen, within_s=READY_WITHIN_S, what="what the API says in the agent's metrics")


def test_without_tls_a_client_gets_nothing_out_of_a_broker(
    secured: LocalCluster, bus: BusConfig
) -> None:
    plain = BusConfig(broker=bus.broker, user="bus", password_file=bus.password_file)
    with pytest.raises(NotReady):
        Publisher(plain).start(require="one", timeout_s=DEADLINE_S)
    host, _, port = bus.broker.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=READY_WITHIN_S) as probe:
        probe.sendall(b"AMQP\x00\x00\x09\x01")
        assert b"AMQP" not in probe.recv(100)


CASES = [
    ("the broker's authority is another one", {"tls_ca_file": CA}, "not good: self-signed"),
    ("our name for it is another one", {"tls_server_name": "x.test"}, "not valid for 'x.test'"),
    ("we ask for its address", {"tls_server_name": ""}, "IP address mismatch"),
    ("we have none", {"tls_cert_file": "", "tls_key_file": ""}, "our certificate: cert.*required"),
    (
        "ours is of another authority",
        {"tls_cert_file": f"{CLIENT}.pem", "tls_key_file": f"{CLIENT}.key"},
        "our certificate: unknown ca",
    ),
    (
        "ours has expired",
        {"tls_cert_file": "expired.pem", "tls_key_file": "expired.key"},
        "our certificate: certificate expired",
    ),
]


@pytest.mark.guarantee("tls-verifies-first")
@pytest.mark.parametrize(("_why", "settings", "told"), CASES, ids=[case[0] for case in CASES])
def test_a_certificate_that_is_not_taken_is_told_at_once(
    bus: BusConfig, stranger: Path, _why: str, settings: dict[str, str], told: str
) -> None:
    there: dict[str, Any] = {
        key: str(stranger / value) if value and key.endswith("_file") else value
        for key, value in settings.items()
    }
    with pytest.raises(CertificateRefused, match=told) as raised:
        Publisher(replace(bus, **there)).start(require="one", timeout_s=READY_WITHIN_S)
    assert "\n" not in str(raised.value)


def test_a_consumer_is_told_as_well(bus: BusConfig, stranger: Path) -> None:
    wrong = replace(bus, tls_ca_file=str(stranger / CA))
    with pytest.raises(CertificateRefused, match="not good"):
        Consumer(wrong, "queue:jobs").start(require="one", timeout_s=READY_WITHIN_S)
    with pytest.raises(CertificateRefused, match="not good"):
        declare(wrong, ["queue:jobs"])
    with pytest.raises(ListUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        brokers(wrong)


@pytest.mark.guarantee("credentials-change-under-load")
def test_certificates_are_read_again_at_every_dial(
    secured: LocalCluster, bus: BusConfig, tmp_path: Path
) -> None:
    issue = Authority.load(secured.layout.tls_dir).issue
    files = tmp_path / "client.pem", tmp_path / "client.key"

    def write(name: str) -> None:
        for file, text in zip(files, issue(name), strict=True):
            write_whole(file, text)

    def subjects() -> set[str]:
        """Return those of the client's connections; each publisher has a new one every second."""
        ours = [each for each in connections(secured, "bus") if client_id(each) == "rotates"]
        return {each["peer_cert_subject"] for each in ours}

    def all_are_second() -> bool:
        # A connection is listed a second after it is there: one round may miss some.
        for name in secured.names:
            close_listed(secured, name, "rotates", peer_cert_subject="CN=first")
        return subjects() == {"CN=second"}

    write("first")
    ours = replace(
        bus, tls_cert_file=str(files[0]), tls_key_file=str(files[1]), client_id="rotates"
    )
    with consuming(ours, "queue:rotated") as work:
        with publishing(ours, "queue:rotated") as load:
            eventually(lambda: subjects() == {"CN=first"}, within_s=LISTED_WITHIN_S)
            write("second")
            eventually(all_are_second, within_s=READY_WITHIN_S)
            eventually(work.consumer.keep_alive, within_s=READY_WITHIN_S)
        assert work.wait_for(load.confirmed_ids()) == set()


def test_all_certificates_are_renewed_while_messages_flow_and_nothing_is_lost(
    secured: LocalCluster, bus: BusConfig
) -> None:
    """They are those of brokers and agents, of HAProxy's checks, of clients and of operators."""
    layout, bus = secured.layout, replace(bus, client_id="renews")
    issue = Authority.load(layout.tls_dir).issue
    with consuming(bus, "queue:renewed") as work:
        with publishing(bus, "queue:renewed", publishers=2) as load:
            eventually(load.confirmed, within_s=READY_WITHIN_S)
            for node in layout.nodes:
                renew(layout, node.name, *issue(node.name, server_names(node)))
            for name in (CLIENT, OPERATOR, PROBE_CERTIFICATE):
                renew(layout, name, *issue(name))
            both = [layout.tls_file(f"{PROBE_CERTIFICATE}.{end}") for end in ("pem", "key")]
            write_whole(layout.tls_file(CHECK_PEM), "".join(file.read_text() for file in both))
            applied = lb(secured, "apply")
            assert "reloaded" in applied.stdout, applied.stderr
            secured.wait_ready()
            for name in secured.names:
                close_connections(secured, name, bus.client_id)
            count = len(load.confirmed())
            eventually(lambda: len(load.confirmed()) > count + 20, within_s=READY_WITHIN_S)
        assert work.wait_for(load.confirmed_ids()) == set()


def renew(layout: Layout, name: str, certificate: str, key: str) -> None:
    write_whole(layout.tls_file(f"{name}.key"), key)
    write_whole(layout.tls_file(f"{name}.pem"), certificate)


def server_names(node: NodeLayout) -> tuple[str, ...]:
    return node.host, SERVER_NAME, f"{node.name}.{SERVER_NAME}"


def test_an_agent_shows_new_certificates_without_a_restart(
    secured: LocalCluster, bus: BusConfig
) -> None:
    node = secured.node("mb1")
    certificate, key = Authority.load(secured.layout.tls_dir).issue(
        "mb1", (node.host, SERVER_NAME, f"mb1.{SERVER_NAME}")
    )
    host, _, port = node.agent.rpartition(":")
    write_whole(secured.layout.tls_file("mb1.key"), key)
    write_whole(secured.layout.tls_file("mb1.pem"), certificate)
    wanted = ssl.PEM_cert_to_DER_cert(certificate)

    def shown() -> bytes | None:
        context = bus.tls_files.client_context()
        with (
            socket.create_connection((host, int(port)), timeout=READY_WITHIN_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return secure.getpeercert(binary_form=True)

    eventually(lambda: shown() == wanted, within_s=CHECKED_WITHIN_S)


def test_the_end_of_certificates_is_told_before_it_comes(
    secured: LocalCluster, bus: BusConfig
) -> None:
    """The agent's metrics and `ops check` show it."""
    days_left, ends_soon = 397, 20
    node = secured.node("mb2")
    metrics = f"https://{node.agent}/metrics"

    def shown_days() -> float:
        context = bus.tls_files.client_context()
        text = httpx.get(metrics, verify=context, trust_env=False).text
        found = re.search(r"^messagebus_agent_certificate_seconds_left{.*} (\S+)$", text, re.M)
        return float(found[1]) / 86_400 if found else 0

    assert shown_days() == pytest.approx(days_left, abs=1)
    assert "certificate" not in ops(secured, "check").stdout
    before = [secured.layout.tls_file(f"mb2.{kind}") for kind in ("key", "pem")]
    kept = [file.read_text() for file in before]
    certificate, key = Authority.load(secured.layout.tls_dir).issue(
        "mb2", (node.host, SERVER_NAME, f"mb2.{SERVER_NAME}"), days=ends_soon
    )
    try:
        for file, text in zip(before, (key, certificate), strict=True):
            write_whole(file, text)
        assert shown_days() == pytest.approx(ends_soon, abs=1)
        told = f"agent of mb2: its certificate ends in {ends_soon} days"
        eventually(lambda: told in ops(secured, "check").stdout, within_s=CHECKED_WITHIN_S)
    finally:
        for file, text in zip(before, kept, strict=True):
            write_whole(file, text)


@pytest.fixture
def routed(secured: LocalCluster) -> Iterator[None]:
    """One address for several brokers: HAProxy reads only the name that TLS asks for."""
    before = secured.layout.front.config.read_text()
    rules = [
        "tcp-request inspect-delay 5s",
        "tcp-request content accept if { req.ssl_hello_type 1 }",
    ]
    backends = []
    for name in secured.names:
        rules.append(f"use_backend {name} if {{ req.ssl_sni -i {name}.{SERVER_NAME} }}")
        address = secured.node(name).broker
        backends.append(f"backend {name}\n    mode tcp\n    server {name} {address}\n")
    backends.append("backend nobody\n    mode tcp\n")
    frontend = "\n    ".join([*rules, "default_backend nobody"])
    text = before.replace("default_backend mb_brokers", frontend) + "\n" + "\n".join(backends)
    with balancer_configured(secured, text):
        yield


@pytest.mark.usefixtures("routed")
def test_haproxy_can_route_by_the_server_name(secured: LocalCluster, bus: BusConfig) -> None:
    for name in secured.names:
        node = secured.node(name)
        # The list from this node's own agent: those behind the balancer have other names.
        named = replace(
            bus,
            tls_server_name=f"{name}.{SERVER_NAME}",
            list_urls=(f"https://{node.agent}/consumer-list",),
        )
        with Publisher(named) as publisher:
            published = publisher.send_safe(
                Queue("jobs", create=True), b"x", timeout_s=READY_WITHIN_S
            )
        assert published.broker == node.broker


def test_certificates_that_haproxy_cannot_load_are_told_before_anything_is_touched(
    secured: LocalCluster,
) -> None:
    inventory = load(secured.inventory)
    assert inventory.tls is not None
    for key in ("ca_file", "check_cert_file"):
        missing: dict[str, Any] = {key: Path("/no/such.pem")}
        wrong = replace(inventory, tls=replace(inventory.tls, **missing))
        with pytest.raises(ConfigError, match=r"/no/such\.pem"):
            check(wrong)
    check(inventory)


@pytest.mark.guarantee("tls-verifies-first")
def test_a_broker_with_a_strange_certificate_gets_no_publishes(
    secured: LocalCluster, bus: BusConfig, stranger: Path
) -> None:
    files = [secured.layout.tls_file(f"mb2.{end}") for end in ("pem", "key")]
    good = [file.read_text() for file in files]
    secured.stop("mb2")
    try:
        for file in files:
            write_whole(file, (stranger / file.name).read_text())
        secured.start("mb2")
        eventually(lambda: balancer_state(secured, "mb1") == "UP", within_s=CHECKED_WITHIN_S)
        assert balancer_state(secured, "mb2") == "DOWN"
        with Publisher(bus) as publisher:
            published = publisher.send_safe(
                Queue("jobs", create=True), b"x", timeout_s=READY_WITHIN_S
            )
        assert published.broker == secured.node("mb1").broker
    finally:
        secured.stop("mb2")
        for file, text in zip(files, good, strict=True):
            write_whole(file, text)
        secured.start("mb2")
        secured.wait_ready()


def names_of(cluster: LocalCluster) -> list[str]:
    return [cluster.node(name).broker for name in cluster.names]

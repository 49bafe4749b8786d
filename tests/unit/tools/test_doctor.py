"""`messagebus doctor` names the cause in each of many broken set-ups, and nothing where all is well."""

from __future__ import annotations

import email.utils
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from click.testing import CliRunner

from messagebus.__main__ import cli
from messagebus._io.amqp.control import Right
from messagebus._io.amqp.link import Link
from messagebus.commands import options
from messagebus.destination import Stream, Subscription, Topic, parse_destination
from messagebus.errors import LinkLost
from messagebus.observing.rules import FIRST
from messagebus.observing.snapshot import NO_LINK
from messagebus.tls import TlsFiles
from messagebus.tools import doctor
from messagebus.topology import Wanted
from ops.local.certificates import issue_missing
from tests.support.fake_amqp import FakeRabbit, Manners, fake_rabbit


class Agents(ThreadingHTTPServer):
    """List and agent of one broker, as it is told."""

    daemon_threads = True
    text, health, code, skew_s, date = "", {"verdict": "ready"}, 200, 0.0, ""


class _Answers(BaseHTTPRequestHandler):
    server: Agents

    def do_GET(self) -> None:
        is_health = self.path == "/health"
        body = json.dumps(self.server.health) if is_health else self.server.text
        self.send_response_only(self.server.code if is_health else 200 if body else 404)
        when_s = time.time() + self.server.skew_s
        self.send_header("Date", self.server.date or email.utils.formatdate(when_s, usegmt=True))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


@dataclass
class Rig:
    """A bus that is well: one broker, which is its own balancer, and its agent."""

    rabbit: FakeRabbit
    agents: Agents
    folder: Path
    monkeypatch: pytest.MonkeyPatch
    env: dict[str, str] = field(default_factory=dict)

    def examine(self, rights: doctor.Rights | None = None) -> list[doctor.Finding]:
        for name, text in self.env.items():
            self.monkeypatch.setenv(name, text)
        return doctor.examine(os.environ, rights or doctor.Rights())

    def show(self, *lines: str) -> None:
        self.agents.text = "# cluster: c\n# generation: 3\n" + "".join(f"{e}\n" for e in lines)

    @property
    def line(self) -> str:
        return f"{self.rabbit.name} agent={self.agents.server_port}"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.agents.server_port}/consumer-list"


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Rig]:
    for name in [each for each in os.environ if each.startswith("MESSAGEBUS_")]:
        monkeypatch.delenv(name)
    for name in (*doctor.PROXIES, *map(str.lower, doctor.PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4_096, 4_096))
    monkeypatch.setattr(options, "profiled", {})
    with (
        fake_rabbit(manners=Manners(passwords={"guest": "guest"})) as rabbit,
        Agents(("127.0.0.1", 0), _Answers) as agents,
    ):
        thread = threading.Thread(target=agents.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        made = Rig(rabbit, agents, tmp_path, monkeypatch)
        made.env = {"MESSAGEBUS_BROKER": rabbit.name, "MESSAGEBUS_LIST_URL": made.url}
        made.show(made.line)
        yield made
        agents.shutdown()
        thread.join()


def nobody() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_a_bus_that_is_well_has_no_fault_and_no_doubt(rig: Rig) -> None:
    found = rig.examine()
    assert {each.mark for each in found} == {doctor.Mark.WELL}
    whats = [each.what.split()[0] for each in found]
    assert whats == ["versions", "settings", "balancer", "list", "broker", "agent"]


def test_one_rabbitmq_is_a_broker_and_no_balancer(rig: Rig) -> None:
    del rig.env["MESSAGEBUS_LIST_URL"]
    whats = [each.what.split()[0] for each in rig.examine()]
    assert (whats[-1], "balancer" in whats) == ("broker", False)


def silent(rig: Rig) -> None:
    """Take connections into a backlog and answer nothing, as behind a firewall that drops."""
    rig.monkeypatch.setattr(doctor, "ANSWER_S", 0.5)
    rig.rabbit.manners.silent_after = "connect"


def http_port(rig: Rig) -> None:
    rig.env["MESSAGEBUS_BROKER"] = f"127.0.0.1:{rig.agents.server_port}"


def renamed(rig: Rig) -> None:
    rig.rabbit.manners.cluster_name = "mb9:5672"


def wrong_password(rig: Rig) -> None:
    rig.env["MESSAGEBUS_PASSWORD"] = "hush-hush"


def one_away(rig: Rig) -> None:
    rig.show(rig.line, f"127.0.0.1:{nobody()} agent={rig.agents.server_port}")


def setting(name: str, text: str) -> Callable[[Rig], None]:
    return lambda rig: rig.env.__setitem__(f"MESSAGEBUS_{name}", text)


def agents(**how: object) -> Callable[[Rig], None]:
    return lambda rig: vars(rig.agents).update(how)


def limits(rig: Rig) -> None:
    rig.monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4_096))


def old_pika(rig: Rig) -> None:
    rig.monkeypatch.setattr(doctor, "seam_problem", lambda: "pika 3.0 is not known")


def namesake(rig: Rig) -> None:
    rig.monkeypatch.setattr(doctor, "namesake", lambda: "another project's distribution")


def proxy(rig: Rig) -> None:
    rig.env["HTTPS_PROXY"] = "http://user:hush-hush@proxy:3128"


def behind(rig: Rig) -> None:
    rig.env["MESSAGEBUS_LIST_URL"] = f"{rig.url},http://127.0.0.1:{nobody()}/consumer-list"


def no_agent(rig: Rig) -> None:
    """Something ends the connection of a fetch without an answer."""
    rig.env["MESSAGEBUS_LIST_URL"] = f"http://{rig.rabbit.name}/consumer-list"


def cache(rig: Rig) -> None:
    rig.env["MESSAGEBUS_LIST_CACHE"] = str(rig.folder / "no" / "such" / "list")


# Set-up, sign, what, told, what to do.
BROKEN: dict[str, tuple[Callable[[Rig], None], str, str, str, str]] = {
    "a mistyped setting": (setting("BORKER", "x"), "✗", "settings", "did you mean", "settings.md"),
    "a password file that is away": (
        setting("PASSWORD_FILE", "/no/such"),
        "✗",
        "settings",
        "password_file",
        "settings.md",
    ),
    "a host without a name": (
        setting("BROKER", "no-such-host.invalid:5672"),
        "✗",
        "balancer",
        "no-such-host.invalid",
        "DNS",
    ),
    "a balancer that is down": (
        setting("BROKER", f"127.0.0.1:{nobody()}"),
        "✗",
        "balancer",
        "connection refused",
        "its port",
    ),
    "a port of HTTP": (http_port, "✗", "balancer", "speaks HTTP", "AMQP port"),
    "a balancer without a broker": (silent, "✗", "balancer", "within 500 ms", "lb status"),
    "a balancer without an agent": (no_agent, "✗", "list", "", "lb status"),
    "a wrong password": (wrong_password, "✗", "broker", "refuses user guest", "PASSWORD_FILE"),
    "a wrong vhost": (setting("VHOST", "shop"), "✗", "broker", "vhost", "MESSAGEBUS_VHOST"),
    "another broker at the address": (renamed, "✗", "broker", "mb9:5672 answers", "the list"),
    "a balancer to a broker beside the list": (renamed, "✗", "balancer", "not on the list", "lb"),
    "a broker that only the balancer reaches": (
        one_away,
        "✗",
        "broker",
        "connection refused",
        "port",
    ),
    "a list that is away": (behind, "✗", "list", "connection refused", "port"),
    "an address without a list": (agents(text=""), "✗", "list", "HTTP 404", "/consumer-list"),
    "a page for a list": (agents(text="<html>"), "✗", "list", "line 1", "/consumer-list"),
    "the list of another cluster": (setting("CLUSTER", "d"), "✗", "list", "'c'", "CLUSTER"),
    "a list of strange hosts": (
        setting("BROKER_HOSTS_ALLOWED", "*.example"),
        "✗",
        "list",
        "127.0.0.1",
        "HOSTS_ALLOWED",
    ),
    "a cache that cannot be written": (cache, "▲", "list cache", "cannot be written", "folder"),
    "an agent with another clock": (agents(skew_s=90.0), "▲", "agent", "ahead of", "ntp"),
    "a broker that drains": (
        agents(health={"verdict": "drain", "reason": "operators drain it"}, code=404),
        "▲",
        "agent",
        "operators drain it",
        "end the drain",
    ),
    "a broker in memory alarm": (
        agents(health={"verdict": "drain", "reason": "alarm: memory"}, code=404),
        "▲",
        "agent",
        "accepts no publishes: alarm: memory",
        FIRST["a-broker-is-in-memory-alarm"],
    ),
    "a broker with a full disk": (
        agents(health={"verdict": "drain", "reason": "alarm: disk, memory"}, code=404),
        "▲",
        "agent",
        "accepts no publishes: alarm: disk, memory",
        FIRST["a-disk-is-full"],
    ),
    "a gate that is shut": (
        agents(health={"verdict": "down", "reason": "not settled"}, code=503),
        "✗",
        "agent",
        "gate shut: not settled",
        FIRST["a-gate-stays-shut"],
    ),
    "a broker that its agent does not reach": (
        agents(health={"verdict": "down", "reason": NO_LINK}, code=503),
        "✗",
        "agent",
        "its broker is down",
        FIRST["a-host-is-dead"],
    ),
    "something else than an agent": (
        agents(health=["x"]),
        "▲",
        "agent",
        "no agent answers",
        "agent=",
    ),
    "few open files": (limits, "▲", "limits", "256 open files", "ulimit"),
    "a proxy in the environment": (proxy, "▲", "proxies", "HTTPS_PROXY is set", "bus itself"),
    "an unknown pika": (old_pika, "▲", "versions", "slow path", "pika"),
    "the other messagebus": (namesake, "✗", "packages", "another project's", "environment"),
}


@pytest.mark.parametrize(
    ("hours", "told"), [(30, "1 day ago"), (50, "2 days ago"), (1, "within the last day")]
)
def test_since_when_a_certificate_has_ended_is_counted_in_whole_days(hours: int, told: str) -> None:
    found = doctor._of_days("certificate", "ours", time.time() - hours * 3_600)
    assert (found.mark, found.text) == (doctor.Mark.FAULT, f"ours ended {told}")


@pytest.mark.parametrize("name", BROKEN)
def test_the_cause_of_a_broken_set_up_is_named(rig: Rig, name: str) -> None:
    spoil, sign, what, told, todo = BROKEN[name]
    spoil(rig)
    found = rig.examine()
    causes = [e for e in found if e.mark is not doctor.Mark.WELL and e.what.startswith(what)]
    assert any(
        doctor.SIGNS[each.mark] == sign and told in each.text and todo in each.todo
        for each in causes
    ), found
    assert "hush-hush" not in str(found)


@pytest.mark.parametrize("ours", [True, False])
def test_tls_on_one_side_only_is_named(rig: Rig, ours: bool) -> None:
    issue_missing(rig.folder, {"client": (), "mb1": ("127.0.0.1",)})
    names = {"ca": "ca.pem", "cert": "client.pem", "key": "client.key"}
    tls = {f"MESSAGEBUS_TLS_{k.upper()}_FILE": str(rig.folder / v) for k, v in names.items()}
    server = TlsFiles(
        ca_file=str(rig.folder / "ca.pem"),
        cert_file=str(rig.folder / "mb1.pem"),
        key_file=str(rig.folder / "mb1.key"),
    )
    rig.env.pop("MESSAGEBUS_LIST_URL")
    if ours:
        rig.env |= tls | {"MESSAGEBUS_TLS": "true"}
        told = [each.text for each in rig.examine() if each.mark is doctor.Mark.FAULT]
        assert told == ["this port speaks plain AMQP"]
        return
    with fake_rabbit(tls=server.server_context()) as rabbit:
        rig.env["MESSAGEBUS_BROKER"] = rabbit.name
        told = [each.text for each in rig.examine() if each.mark is doctor.Mark.FAULT]
        assert told == ["this port speaks TLS"]
        rig.env |= tls | {"MESSAGEBUS_TLS": "true"}
        found = rig.examine()
        assert [each for each in found if each.mark is doctor.Mark.FAULT] == []
        assert any("its certificate is good for" in each.text for each in found)


def test_the_command_tells_a_line_each_and_ends_with_7(rig: Rig) -> None:
    rig.env["MESSAGEBUS_PASSWORD"] = "hush-hush"
    done = CliRunner().invoke(cli, ["doctor"], prog_name="messagebus", env=rig.env)
    assert done.exit_code == 7
    assert "✗ balancer" in done.stdout
    assert " → correct user and password" in done.stdout
    assert "hush-hush" not in done.output
    told = CliRunner().invoke(cli, ["doctor", "--json"], prog_name="messagebus", env=rig.env)
    assert {row["mark"] for row in json.loads(told.stdout)} == {"well", "fault"}


@pytest.mark.parametrize("lost_at", ["rights", "queue"])
def test_what_was_found_before_a_link_was_lost_is_shown_too(rig: Rig, lost_at: str) -> None:
    async def rights_of(*_: object, **__: object) -> set[Right]:
        if lost_at == "rights":
            raise LinkLost(rig.rabbit.name, "rights are not told in time")
        return {Right("read", "mb.sub/orders/billing")}

    async def try_call(*_: object, **__: object) -> None:
        raise LinkLost(rig.rabbit.name, "hung up")

    rig.monkeypatch.setattr(doctor, "rights_of", rights_of)
    rig.monkeypatch.setattr(Link, "try_call", try_call)
    asked = doctor.Rights([parse_destination("orders")], [Subscription(Topic("orders"), "billing")])
    found = rig.examine(asked)
    told = [each.text for each in found if each.what.startswith("broker")]
    assert told[0].startswith("answers as")
    assert told[1:] == (
        ["rights are not told in time"]
        if lost_at == "rights"
        else ["user guest has no right to publish to orders", "hung up"]
    )


@pytest.mark.parametrize("date", ["soon", "Mon, 99 Foo 2030 25:00:00 GMT", "-"])
def test_a_date_that_is_none_says_nothing_of_a_clock(rig: Rig, date: str) -> None:
    rig.agents.date = date
    assert [each.text for each in rig.examine() if each.what.startswith("agent")] == ["gate open"]


def test_a_profile_is_named_as_the_source_of_its_settings(rig: Rig) -> None:
    options.profiled["MESSAGEBUS_BROKER"] = "/home/x/prod.toml"
    told = [each.text for each in rig.examine() if each.what == "settings"]
    assert told == [
        "from /home/x/prod.toml: MESSAGEBUS_BROKER",
        "from the environment: MESSAGEBUS_LIST_URL",
    ]


@pytest.mark.parametrize(
    ("known", "told"),
    [
        ([Topic("orders")], ["it has no subscription: publishes to it are unroutable"]),
        ([Topic("orders"), Subscription(Topic("orders"), "billing")], []),
        ([Topic("orders"), Stream(Topic("orders"))], []),
        ([], []),
    ],
)
def test_a_topic_without_a_subscription_is_named_with_what_declares_one(
    rig: Rig, known: list[Wanted], told: list[str]
) -> None:
    async def topology(_bus: object) -> list[Wanted]:
        return known

    async def rights_of(*_: object, **__: object) -> set[Right]:
        return set()

    rig.monkeypatch.setattr(doctor, "topology", topology)
    rig.monkeypatch.setattr(doctor, "rights_of", rights_of)
    found = rig.examine(doctor.Rights([parse_destination("orders")]))
    of_topic = [each for each in found if each.what == "topic orders"]
    assert [each.text for each in of_topic] == told
    assert {each.todo for each in of_topic} <= {"messagebus declare orders/SUBSCRIPTION"}

"""`messagebus doctor`: what is wrong between this host and the bus, one line a finding.

Everything is tried from this host with the settings of the environment: the balancer, the list, and every
broker of it directly, as a firewall may have opened the balancer alone. Nothing is published, consumed or
declared.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import platform
import resource
import ssl
import sys
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

import click
import httpx

from messagebus import __version__
from messagebus._io.agents.consumer_list import fetch_list
from messagebus._io.agents.http import http_client
from messagebus._io.agents.registration import credentials
from messagebus._io.agents.subscriptions import topology
from messagebus._io.amqp.connection import seam_problem
from messagebus._io.amqp.control import Right, rights_of
from messagebus._io.amqp.link import Link, dial
from messagebus._io.amqp_wire import namesake
from messagebus._io.loop import run_blocking
from messagebus.admin.directory import PORTS
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.clock import whole_ms
from messagebus.commands import options
from messagebus.commands.exits import Exit
from messagebus.commands.options import bus_settings
from messagebus.config import ENV_PREFIX, NOT_SETTINGS, BusConfig
from messagebus.core.membership import Judgement, ListKeeper
from messagebus.destination import (
    Queue,
    Source,
    Stream,
    Subscription,
    Topic,
    parse_destination,
)
from messagebus.errors import (
    NOT_FOUND,
    CertificateRefused,
    ChannelRefused,
    ConfigError,
    LinkError,
    ListError,
    LoginRefused,
    NameInvalid,
    TopologyError,
    one_line,
    reason_of,
)
from messagebus.observing.rules import FIRST
from messagebus.observing.snapshot import LOSES, NO_LINK
from messagebus.terminal import columns, folded, plural, say
from messagebus.topology import parse_wanted

ANSWER_S = 3.0
SKEW_S_MAX = 2.0
DAYS_LEFT_MIN = 14
DESCRIPTORS_MIN = 1_024
BROKERS_AT_ONCE = 16
DAY_S = 86_400
PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Mark(StrEnum):
    """Judgement of a finding."""

    WELL = "well"
    DOUBT = "doubt"
    FAULT = "fault"


SIGNS = {Mark.WELL: "✓", Mark.DOUBT: "▲", Mark.FAULT: "✗"}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. what: the thing examined. text: its state. todo: the remedy, "" if there is no fault."""

    mark: Mark
    what: str
    text: str
    todo: str = ""


def _well(what: str, text: str) -> Finding:
    return Finding(Mark.WELL, what, text)


def _doubt(what: str, text: str, todo: str) -> Finding:
    return Finding(Mark.DOUBT, what, text, todo)


def _fault(what: str, text: str, todo: str) -> Finding:
    return Finding(Mark.FAULT, what, text, todo)


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights to be tried. publish: destinations. consume: subscriptions and queues."""

    publish: Sequence[Topic | Queue] = ()
    consume: Sequence[Source] = ()

    def __iter__(self) -> Iterator[tuple[str, Right, str, str]]:
        """Yield the words, the right, and what must exist for it: exchange or queue, and its name."""
        for each in self.publish:
            yield f"publish to {each}", Right("write", each.exchange), "exchange", str(each)
        for source in self.consume:
            yield f"consume {source}", Right("read", source.amqp_queue), "queue", str(source)


def examine(environ: Mapping[str, str], rights: Rights) -> list[Finding]:
    """Return all findings, in the order of a connection. Blocks for some seconds at most."""
    found = [*_of_process(environ), *_of_settings(environ)]
    try:
        bus = bus_settings()
    except ConfigError as fault:
        return [*found, _fault("settings", str(fault), "correct it: docs/reference/settings.md")]
    return [*found, *run_blocking(_of_bus(bus, rights))]


# This host.
def _of_process(environ: Mapping[str, str]) -> Iterator[Finding]:
    told = f"messagebus {__version__}, Python {platform.python_version()}, pika {version('pika')}"
    if problem := seam_problem():
        yield _doubt(
            "versions", f"{told}: slow path: {problem}", "install a tested version of pika"
        )
    else:
        yield _well("versions", told)
    if problem := namesake():
        yield _fault("packages", problem, "do so in this environment")
    soft, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < DESCRIPTORS_MIN:
        todo = f"ulimit -n {DESCRIPTORS_MIN}, or LimitNOFILE= of the service"
        yield _doubt(
            "limits", f"at most {soft} open files: each broker and each client needs one", todo
        )
    if set_ := [name for name in PROXIES if environ.get(name) or environ.get(name.lower())]:
        told = f"{', '.join(set_)} is set, and messagebus uses no proxy"
        yield _doubt("proxies", told, "allow direct connections to the bus itself")


def _of_settings(environ: Mapping[str, str]) -> Iterator[Finding]:
    names = [
        name
        for name in sorted(environ)
        if name.startswith(ENV_PREFIX) and name.removeprefix(ENV_PREFIX).lower() not in NOT_SETTINGS
    ]
    for place in sorted({options.profiled.get(name, "the environment") for name in names}):
        mine = [name for name in names if options.profiled.get(name, "the environment") == place]
        yield _well("settings", f"from {place}: {', '.join(mine)}")
    for name, means in (
        ("BROKER", "the default is localhost:5672"),
        ("LIST_URL", "a single broker without agents"),
    ):
        if not any(each.startswith(ENV_PREFIX + name) for each in names):
            told = f"{ENV_PREFIX}{name} is not set: {means}"
            yield _doubt("settings", told, "set it if this is not intended")


# The bus.
async def _of_bus(bus: BusConfig, rights: Rights) -> list[Finding]:
    found = list(_of_certificate(bus))
    if not bus.list_urls:  # one RabbitMQ is the whole bus
        entry, _name = await _of_address(bus, "broker", bus.address, rights)
        return [*found, *entry]
    entry, name = await _of_address(bus, "balancer", bus.address, Rights())
    found += entry
    listed, of_lists = await _of_lists(bus)
    found += of_lists
    if listed is None:
        return found
    if name and name not in listed.names:
        told = f"it leads to {name}, which is not on the list: no consumer reads messages there"
        found.append(_fault("balancer", told, "python -m lb diff; python -m consumer_lists show"))
    places = asyncio.Semaphore(BROKERS_AT_ONCE)

    async def of_one(listed: ListedBroker) -> list[Finding]:
        async with places:
            told, _name = await _of_address(bus, "broker", listed.broker, rights, is_named=True)
            return [*told, *await _of_agent(bus, listed)]

    for each in await asyncio.gather(*map(of_one, listed)):
        found += each
    return [*found, *await _of_topics(bus, rights)]


async def _of_topics(bus: BusConfig, rights: Rights) -> list[Finding]:
    """Find topics to publish to that exist and have no subscription, and no stream."""
    asked = {each for each in rights.publish if isinstance(each, Topic)}
    try:
        known = await topology(bus) if asked else []
    except TopologyError:  # no agent answers, which has its own line
        return []
    bare = asked.intersection(each for each in known if isinstance(each, Topic))
    bare -= {each.topic for each in known if isinstance(each, Subscription | Stream)}
    told = "it has no subscription: publishes to it are unroutable"
    return [
        _fault(f"topic {each}", told, f"messagebus declare {each}/SUBSCRIPTION")
        for each in sorted(bare, key=str)
    ]


def _of_certificate(bus: BusConfig) -> Iterator[Finding]:
    if not bus.tls:
        return
    try:
        end_s = bus.tls_files.good_until_s()
    except ConfigError as fault:
        yield _fault("certificate", str(fault), "name files that this user may read")
        return
    if end_s:
        yield _of_days("certificate", "the client's, or its authority's,", end_s)


def _of_days(what: str, whose: str, end_s: float) -> Finding:
    left_s = end_s - time.time()
    if left_s < 0:
        ago = int(-left_s // DAY_S)
        told = f"{plural(ago, 'day')} ago" if ago else "within the last day"
        return _fault(what, f"{whose} ended {told}", "renew it")
    days = int(left_s // DAY_S)
    told = f"{whose} is good for {plural(days, 'day')}"
    return _well(what, told) if days >= DAYS_LEFT_MIN else _doubt(what, told, "renew it")


async def _of_address(
    bus: BusConfig, what: str, address: Broker, rights: Rights, *, is_named: bool = False
) -> tuple[list[Finding], str]:
    """Try the name, the port, TLS, the login and rights of one address; return the broker's own name, too."""
    what = f"{what} {address}"
    if fault := await _unreachable(what, address.host, address.port):
        return [fault], ""
    began_s = time.monotonic()
    try:
        timeout_ms = whole_ms(max(bus.dial_timeout_s, ANSWER_S))
        link = await dial(address, credentials(bus), timeout_ms=timeout_ms)
    except (LinkError, ConfigError) as why:
        return [await _why_no_link(bus, what, address, why)], ""
    took_ms = 1_000 * (time.monotonic() - began_s)
    called = f" as {link.broker}" if link.broker else ""
    found = [_well(what, f"answers{called} to user {bus.current_user()} in {took_ms:.0f} ms")]
    if is_named and link.broker not in ("", address.name):
        todo = "correct the list, or the forwarding of this address"
        found = [_fault(what, f"{link.broker} answers at this address", todo)]
    try:
        if bus.tls and (end_s := await _peer_ends_s(bus, address)):
            found.append(_of_days(what, "its certificate", end_s))
        async for each in _of_rights(bus, what, link, rights):
            found.append(each)
    except LinkError as why:
        found.append(_fault(what, why.reason, "read the broker's log"))
    finally:
        await link.close()
    return found, link.broker


async def _unreachable(what: str, host: str, port: int) -> Finding | None:
    host = host.strip("[]")
    try:
        async with asyncio.timeout(ANSWER_S):
            await asyncio.get_running_loop().getaddrinfo(host, port)
            _reader, writer = await asyncio.open_connection(host, port)
        writer.close()
    except TimeoutError:
        told = f"no answer within {ANSWER_S:g} s"
        return _fault(
            what, told, f"look for a firewall on the way, or a host that is down: port {port}"
        )
    except ConnectionRefusedError:
        return _fault(what, "connection refused", f"start it, or correct its port {port}")
    except OSError as fault:
        told = fault.strerror or str(fault)
        todo = (
            "check the route to it"
            if fault.errno and fault.errno > 0
            else "check DNS and /etc/hosts"
        )
        return _fault(what, f"{host}: {told}", f"{todo} on this host")
    return None


async def _why_no_link(
    bus: BusConfig, what: str, address: Broker, fault: LinkError | ConfigError
) -> Finding:
    told = getattr(fault, "reason", str(fault))
    match fault:
        case CertificateRefused():
            return _fault(
                what, told, "correct MESSAGEBUS_TLS_CA_FILE, _TLS_SERVER_NAME or its certificate"
            )
        case LoginRefused() if "vhost" in told:
            return _fault(what, told, "correct MESSAGEBUS_VHOST, or this user's rights there")
        case LoginRefused():
            told = f"refuses user {bus.current_user()}: {told}"
            todo = "correct user and password (MESSAGEBUS_USER, MESSAGEBUS_PASSWORD_FILE) on this broker"
            return _fault(what, told, todo)
        case ConfigError():
            return _fault(what, told, "docs/reference/settings.md")
    spoken = await _spoken(address, tls=bus.tls)
    if spoken := spoken or ("plain AMQP" if "WRONG_VERSION_NUMBER" in told else ""):
        return _fault(what, f"this port speaks {spoken}", _TODO_SPOKEN[spoken])
    if what.startswith("balancer"):
        return _fault(what, told, f"check that a broker is up behind it: {_BEHIND}")
    return _fault(what, told, "check that it is RabbitMQ and has started")


# HAProxy ends connections at once while none is up, as when certificates have ended.
_BEHIND = "python -m lb status; python -m ops check"
_TODO_SPOKEN = {
    "TLS": "set MESSAGEBUS_TLS=true and MESSAGEBUS_TLS_CA_FILE",
    "plain AMQP": "use the port of its TLS listener, or unset MESSAGEBUS_TLS",
    "HTTP": "use the AMQP port (5672, 5671), not the port of a web page",
}


async def _spoken(address: Broker, *, tls: bool) -> str:
    """Return what a port speaks that gave us no link; "" where that is unknown."""
    host = address.host.strip("[]")
    try:
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection(host, address.port)
            try:
                # A broker answers what is not AMQP with the header that it wants.
                writer.write(b"GET / HTTP/1.0\r\n\r\n")
                said = await reader.read(5)
            finally:
                writer.close()
            if said.startswith(b"HTTP"):
                return "HTTP"
            if said.startswith(b"AMQP"):
                return "plain AMQP" if tls else ""
            if not tls:
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                _reader, writer = await asyncio.open_connection(host, address.port, ssl=context)
                writer.close()
                return "TLS"
    except ssl.SSLError as fault:  # an alert: TLS it is, and it wants a certificate
        return "TLS" if "ALERT" in str(fault.reason) else ""
    except (OSError, TimeoutError):
        pass
    return ""


async def _peer_ends_s(bus: BusConfig, address: Broker) -> float | None:
    """Return the end of a broker's certificate, in s since 1970; None where it is not told."""
    host = address.host.strip("[]")
    name = bus.tls_server_name if address == bus.address and bus.tls_server_name else host
    try:
        async with asyncio.timeout(ANSWER_S):
            _reader, writer = await asyncio.open_connection(
                host, address.port, ssl=bus.tls_files.client_context(), server_hostname=name
            )
            told = writer.get_extra_info("peercert")
            writer.close()
    except (OSError, TimeoutError, ConfigError):
        return None
    return float(ssl.cert_time_to_seconds(told["notAfter"])) if told else None


async def _of_rights(
    bus: BusConfig, what: str, link: Link, rights: Rights
) -> AsyncIterator[Finding]:
    asked = list(rights)
    if not asked:
        return
    has = await rights_of(
        link.address,
        credentials(bus),
        [right for _words, right, _kind, _name in asked],
        timeout_ms=whole_ms(ANSWER_S),
    )
    for words, right, kind, name in asked:
        if has is None or right not in has:
            todo = f"grant {right.operation} on {right.name} to the user: ops provision"
            yield _fault(what, f"user {bus.current_user()} has no right to {words}", todo)
            continue
        try:
            await link.try_call(f"{kind}_declare", **{kind: right.name}, passive=True)
        except ChannelRefused as refused:
            if refused.code != NOT_FOUND:
                raise
            # A topic alone takes nothing: its publishes are unroutable.
            wanted = f"{name}/SUBSCRIPTION" if kind == "exchange" else name
            yield _fault(what, f"there is no {name}", f"messagebus declare {wanted}")
        else:
            yield _well(what, f"may {words}")


# Lists and agents.
async def _of_lists(bus: BusConfig) -> tuple[BrokerList | None, list[Finding]]:
    found, best = list[Finding](), BrokerList(listed=(), generation=-1)
    for url in bus.list_urls:
        parts, what = urlsplit(url), f"list {url}"
        host, port = parts.hostname or "", parts.port or PORTS[parts.scheme]
        if fault := await _unreachable(what, host, port):
            found.append(fault)
            continue
        try:
            async with http_client(bus) as http:
                listed = await fetch_list(http, url)
        except (ListError, ConfigError) as why:
            todo = "use the balancer's address of the list, which ends in /consumer-list"
            if isinstance(why.__cause__, httpx.TransportError):
                todo += f"; check that an agent is up behind it: {_BEHIND}"
            found.append(_fault(what, str(why).removeprefix(f"{url}: "), todo))
            continue
        assert listed is not None, "only a waiting fetch is answered with nothing newer"
        keeper = ListKeeper(cluster=bus.cluster, hosts_allowed=bus.broker_hosts_allowed)
        judgement, reason = keeper.judge(
            generation=listed.generation,
            cluster=listed.cluster,
            hosts=(each.broker.host for each in listed),
            now_ms=0,
        )
        if judgement is Judgement.REFUSED:
            todo = "correct MESSAGEBUS_CLUSTER, MESSAGEBUS_BROKER_HOSTS_ALLOWED or the address"
            found.append(_fault(what, reason, todo))
            continue
        told = f"{plural(len(listed.listed), 'broker')}, generation {listed.generation}"
        found.append(_well(what, f"{told}, cluster {listed.cluster or '-'}"))
        if best.listed and listed.generation != best.generation:
            todo = "an agent is behind: python -m consumer_lists show"
            found.append(_doubt(what, f"another address has generation {best.generation}", todo))
        best = max(best, listed, key=lambda each: each.generation)
    if cache := bus.list_cache:
        found.append(_of_cache(Path(cache)))
    return (best if best.listed else None), found


def _of_cache(path: Path) -> Finding:
    if not os.access(path.parent, os.W_OK):
        todo = "name a folder that this user can write to"
        return _doubt("list cache", f"{path.parent} cannot be written to", todo)
    if not path.exists():
        return _well("list cache", f"{path}: none yet")
    return _well("list cache", f"{path}: {int(time.time() - path.stat().st_mtime)} s old")


async def _of_agent(bus: BusConfig, listed: ListedBroker) -> list[Finding]:
    url = f"{urlsplit(bus.list_urls[0]).scheme}://{listed.agent_address}/health"
    what = f"agent {listed.agent_address}"
    try:
        async with http_client(bus, timeout=ANSWER_S) as http:
            asked_s = time.time()
            answer = await http.get(url)
        told = answer.json()
        verdict, reason = str(told["verdict"]), str(told.get("reason", ""))
    except (httpx.HTTPError, OSError) as fault:
        todo = (
            f"check that this host can reach it. {FIRST['an-agent-is-dead']}"
            " Until then registrations are incomplete"
        )
        return [_doubt(what, reason_of(fault), todo)]
    except (ValueError, KeyError, TypeError):
        return [
            _doubt(
                what,
                f"HTTP {answer.status_code}: no agent answers there",
                "correct agent= in the list",
            )
        ]
    found = []
    if (date_s := _date_s(answer.headers.get("Date", ""))) is not None:
        # It tells whole seconds, and the answer took some time.
        middle_s = (asked_s + time.time()) / 2
        skew_s = date_s + 0.5 - middle_s
        if abs(skew_s) > SKEW_S_MAX + (time.time() - asked_s):
            side = "ahead of" if skew_s > 0 else "behind"
            told_skew = f"its clock is {abs(skew_s):.0f} s {side} this host's"
            found.append(
                _doubt(
                    what,
                    told_skew,
                    "run chrony or ntp on both hosts: ages and delays are wrong until then",
                )
            )
    if verdict == "ready" and LOSES in reason:
        return [_doubt(what, f"gate open: {reason}", FIRST["a-policy-loses-messages"]), *found]
    if verdict == "ready":
        return [_well(what, f"gate open{f': {reason}' if reason else ''}"), *found]
    if verdict == "drain":
        first = next(
            (FIRST[page] for kind, page in _ALARMS if kind in reason), "wait, or end the drain"
        )
        return [_doubt(what, f"accepts no publishes: {reason}", first), *found]
    if reason == NO_LINK:
        return [_fault(what, f"its broker is down: {reason}", FIRST["a-host-is-dead"]), *found]
    return [_fault(what, f"gate shut: {reason}", FIRST["a-gate-stays-shut"]), *found]


def _date_s(text: str) -> float | None:
    """Return the time that a header says, in s since 1970; None for what is no date."""
    try:
        return email.utils.parsedate_to_datetime(text).timestamp()
    except (ValueError, TypeError, OverflowError):
        return None


# Beginning of an alarm's reason -> its section of docs/OPERATIONS.md: there is no drain to end.
_ALARMS = (("alarm: memory", "a-broker-is-in-memory-alarm"), ("alarm: disk", "a-disk-is-full"))


# The command.
@click.command(short_help="Find problems between this host and the bus.")
@click.option(
    "--publish", "publish", multiple=True, help="Check the right to publish to this topic or queue."
)
@click.option(
    "--consume",
    "consume",
    multiple=True,
    help="Check the right to consume TOPIC/SUBSCRIPTION or queue:NAME.",
)
@click.option("--json", "as_json", is_flag=True, help="Print it as JSON.")
def doctor(publish: tuple[str, ...], consume: tuple[str, ...], as_json: bool) -> int:
    """Find problems between this host and the bus, with the settings of this environment.

    The command prints a line for each finding, with its remedy: ✓ passed, ▲ doubtful, ✗ failed. It tries
    every broker of the list directly. It publishes, consumes and declares nothing. Exit code 7: a check
    failed.

    \b
    Example:
      messagebus doctor --publish orders --consume orders/billing
    """
    found = examine(os.environ, _rights(publish, consume))
    if as_json:
        click.echo(json.dumps([asdict(each) for each in found], indent=2))
    else:
        for each in found:
            todo = f" → {each.todo}" if each.todo else ""
            finding = f"{_sign(each.mark)} {each.what}: {one_line(each.text)}{todo}"
            for line in folded(finding, columns()):
                say(line)
    return Exit.FOUND if any(each.mark is Mark.FAULT for each in found) else Exit.DONE


def _sign(mark: Mark) -> str:
    sign = SIGNS[mark]
    try:
        sign.encode(sys.stdout.encoding or "ascii")
    except UnicodeEncodeError:
        return mark.value
    return sign


def _rights(publish: Sequence[str], consume: Sequence[str]) -> Rights:
    sources = [parse_wanted(each) for each in consume]
    for each in sources:
        if not isinstance(each, Subscription | Queue):
            raise NameInvalid(f"--consume {each}: TOPIC/SUBSCRIPTION or queue:NAME")
    return Rights(
        [parse_destination(each) for each in publish],
        [each for each in sources if isinstance(each, Subscription | Queue)],
    )

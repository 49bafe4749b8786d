"""Requests to the agents about subscriptions, each for its own broker, and deletion on all brokers.

All agents are asked at once, each within ANSWER_TIMEOUT_S. An agent that does not answer is named, not
counted as zero.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from messagebus._io.agents.http import http_client, json_object
from messagebus._io.agents.registration import read_registration
from messagebus._io.wire import Registration
from messagebus.admin.proof import TokenProof
from messagebus.broker import BrokerList, ListedBroker
from messagebus.config import BusConfig
from messagebus.destination import Queue, Source, Stream, Subscription, Topic
from messagebus.errors import (
    REASON_CHARS_MAX,
    ConfigError,
    LinkLost,
    LoginRefused,
    NotFound,
    TopologyError,
    one_line,
    reason_of,
)
from messagebus.secret import Secret
from messagebus.topology import OPTION_KINDS, STREAM_PREFIX, Wanted, topic_of, with_options

CONNECT_TIMEOUT_S = 2.0
# An agent asks all others before it answers a change, and one broker with 1,000 queues takes seconds.
ANSWER_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionCount:
    """One subscription or queue on one broker.

    name: ``orders/billing`` or ``queue:jobs``. broker: ``host:port``. durability, single_active, expires_s,
    delivery_limit, ttl_s: its options. ready: waiting messages. consumers: number of consumers.
    unacked: messages delivered and not answered, up to some seconds old; None if unknown. partitions: of its
    topic, 0: none.
    segments: segments whose home the broker is, such as ``7.1`` -> waiting messages.
    """

    name: str
    broker: str
    ready: int
    consumers: int
    unacked: int | None = None
    durability: str = "fsync"
    single_active: bool = False
    expires_s: int = 0
    delivery_limit: int = 0
    ttl_s: int = 0
    partitions: int = 0
    segments: Mapping[str, int] = field(default_factory=dict)


COUNTED = {each.name for each in fields(SubscriptionCount)} - {"name", "broker"}


@dataclass(frozen=True, slots=True)
class SubscriptionCounts:
    """Answers of the brokers. counts: by name and broker.

    unanswered: broker -> why it did not answer. answered: the brokers that answered, with or without counts.
    """

    counts: tuple[SubscriptionCount, ...]
    unanswered: Mapping[str, str] = field(default_factory=dict)
    answered: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PurgedMessages:
    """Counts of dropped messages: broker -> name -> count. unanswered: broker -> the reason."""

    dropped: Mapping[str, Mapping[str, int]]
    unanswered: Mapping[str, str] = field(default_factory=dict)


async def count(bus: BusConfig, brokers: BrokerList) -> SubscriptionCounts:
    """Count messages and consumers on all brokers. Raises LoginRefused."""
    auth = httpx.BasicAuth(bus.current_user(), bus.current_password().reveal())
    answers, unanswered = await _ask_all(bus, brokers, "GET", "/subscriptions", lambda _: auth)
    counts = []
    for broker, told in answers.items():
        try:
            counts += [
                SubscriptionCount(
                    name=name,
                    broker=broker,
                    **{key: value for key, value in values.items() if key in COUNTED},
                )
                for name, values in told["subscriptions"].items()
            ]
        except (KeyError, TypeError, AttributeError):
            unanswered[broker] = "not an agent's answer"
    return SubscriptionCounts(
        tuple(sorted(counts, key=lambda each: (each.name, each.broker))),
        unanswered,
        tuple(sorted(answers.keys() - unanswered.keys())),
    )


async def purge(
    bus: BusConfig, brokers: BrokerList, names: Sequence[str], *, token: Secret
) -> PurgedMessages:
    """Drop ready messages on all brokers. Raises LoginRefused, or ConfigError for an impossible token."""
    answers, unanswered = await _ask_all(
        bus, brokers, "POST", "/subscriptions/purge", _proof(token), json={"wanted": list(names)}
    )
    return PurgedMessages({b: told.get("purged", {}) for b, told in answers.items()}, unanswered)


async def delete(
    bus: BusConfig, brokers: BrokerList, names: Sequence[str], *, token: Secret
) -> Registration:
    """Delete on all brokers by tombstones, through the first agent that can.

    Each is asked at its own address: behind a balancer another agent than the one that gave a nonce might
    answer. Raises TopologyError when no agent could do it, when a topic is read, or when one of the names
    never existed;
    LoginRefused; ConfigError for an impossible token.
    """
    proof = _proof(token)
    fault = "no broker is on the list"
    async with http_client(bus, timeout=ANSWER_TIMEOUT_S) as http:
        for listed in brokers:
            url = _agent_url(bus, listed, "/topology")
            try:
                await _check_known(http, url, names)
                answer = await http.post(
                    url,
                    json={"wanted": list(names), "alive": False},
                    auth=proof(listed.broker.name),
                )
                if answer.status_code == httpx.codes.OK:
                    return read_registration(url, answer)
                _raise_if_refused(url, answer)
                if json_object(answer).get("mismatch"):
                    raise TopologyError(_error_of(answer))
                fault = f"{url}: HTTP {answer.status_code} {_error_of(answer)}"
            except (httpx.HTTPError, ValueError, LinkLost) as trouble:
                fault = f"{url}: {reason_of(trouble)}"
    raise TopologyError(f"nothing is known to be deleted: {fault}")


async def set_draining(
    bus: BusConfig, listed: ListedBroker, *, draining: bool, token: Secret
) -> None:
    """Set the flag that a broker's agent keeps. Raises LoginRefused, LinkLost, ConfigError for a token."""
    url = _agent_url(bus, listed, "/drain")
    auth = _proof(token)(listed.broker.name)
    async with http_client(bus, timeout=ANSWER_TIMEOUT_S) as http:
        try:
            answer = await http.post(url, json={"draining": draining}, auth=auth)
        except httpx.HTTPError as fault:
            raise LinkLost(listed.broker.name, reason_of(fault)) from fault
    _raise_if_refused(url, answer)
    if answer.status_code != httpx.codes.OK:
        raise LinkLost(listed.broker.name, f"HTTP {answer.status_code} {_error_of(answer)}")


async def move(
    bus: BusConfig, listed: ListedBroker, topic: str, to: Mapping[int, str], *, token: Secret
) -> Mapping[int, str]:
    """Begin moves of partitions that are at home on this broker. Returns the refused ones with the reason.

    Raises LoginRefused, LinkLost, ConfigError for a token.
    """
    asked = {"topic": topic, "to": {str(partition): home for partition, home in to.items()}}
    return await _ordered(bus, listed, "/partitions", asked, "refused", token)


async def abandon(
    bus: BusConfig, first: ListedBroker, topic: str, home: str, *, token: Secret
) -> Mapping[int, str]:
    """Go on without a lost home: partition -> what it waits for, to be asked again, or "" at its end.

    first: of the list, by name. Raises TopologyError for a refusal; LoginRefused, LinkLost, ConfigError.
    """
    asked = {"topic": topic, "home": home}
    return await _ordered(bus, first, "/partitions/abandon", asked, "waits", token)


async def _ordered(
    bus: BusConfig, to: ListedBroker, path: str, body: object, answer_key: str, token: Secret
) -> Mapping[int, str]:
    url, name = _agent_url(bus, to, path), to.broker.name
    async with http_client(bus, timeout=ANSWER_TIMEOUT_S) as http:
        try:
            answer = await http.post(url, json=body, auth=_proof(token)(name))
            _raise_if_refused(url, answer)
            if answer.status_code == httpx.codes.OK:
                return {int(key): why for key, why in answer.json()[answer_key].items()}
        except (httpx.HTTPError, ValueError, KeyError) as fault:
            raise LinkLost(name, reason_of(fault)) from fault
    if answer.status_code == httpx.codes.CONFLICT:
        raise TopologyError(_error_of(answer))
    raise LinkLost(name, f"HTTP {answer.status_code} {_error_of(answer)}")


async def homes_by(bus: BusConfig, listed: ListedBroker, topic: str) -> str:
    """Return the homes of a topic as this broker's agent knows them, who decides of those there.

    Raises LinkLost.
    """
    path, name = f"/partitions?topic={topic}", listed.broker.name
    good, bad = await _ask_all(
        bus, BrokerList(listed=(listed,)), "GET", path, lambda _name: httpx.Auth()
    )
    if name in bad:
        raise LinkLost(name, f"its agent: {bad[name]}")
    return str(good[name].get("homes", ""))


async def known(bus: BusConfig) -> list[Source]:
    """Return all subscriptions and queues that any agent knows. Raises TopologyError."""
    return [each for each in await topology(bus) if isinstance(each, Subscription | Queue)]


async def topology(bus: BusConfig) -> list[Wanted]:
    """Return all names that any agent knows, topics too. Raises TopologyError."""
    fault = "no list address: only agents know the subscriptions"
    async with http_client(bus, timeout=ANSWER_TIMEOUT_S) as http:
        for url in bus.list_urls:
            try:
                told = (await http.get(urljoin(url, "topology"))).raise_for_status().json()
                alive = [entry for entry in told["entries"] if entry["alive"]]
                found = [with_options(each["wanted"], _options(each)) for each in alive]
                return [_with_homes(each, found) for each in found]
            except (httpx.HTTPError, ValueError, KeyError, TypeError) as trouble:
                fault = f"{url}: {reason_of(trouble)}"
    raise TopologyError(f"no agent says which subscriptions there are: {fault}")


def _with_homes(wanted: Wanted, among: Sequence[Wanted]) -> Wanted:
    """Return a subscription or stream of a partitioned topic with the homes of that."""
    if not isinstance(wanted, Subscription | Stream) or not wanted.topic.partitions:
        return wanted
    topics = (each for each in among if isinstance(each, Topic) and each == wanted.topic)
    return replace(wanted, topic=next(topics, wanted.topic))


def _options(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {key: entry[key] for key in OPTION_KINDS if key in entry}


async def _check_known(http: httpx.AsyncClient, url: str, names: Sequence[str]) -> None:
    """Raise NotFound for unknown names. A deleted name is known: deleting it again completes it.

    So is the topic of a known name: its subscription made it, perhaps without an entry of its own.
    """
    told = (await http.get(url)).raise_for_status().json()
    known = {entry["wanted"] for entry in told["entries"]} if isinstance(told, dict) else set()
    known |= {topic_of(name.removeprefix(STREAM_PREFIX)) for name in known}
    if unknown := [name for name in names if name not in known]:
        raise NotFound(f"there is no {', '.join(unknown)}")


async def _ask_all(
    bus: BusConfig,
    brokers: BrokerList,
    method: str,
    path: str,
    auth: Callable[[str], httpx.Auth],
    **request: Any,
) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return each agent's answer and each failure, by broker name. auth: from a broker name."""
    timeout = httpx.Timeout(ANSWER_TIMEOUT_S, connect=CONNECT_TIMEOUT_S)
    async with http_client(bus) as http:

        async def ask(listed: ListedBroker) -> dict[str, Any] | str:
            url = _agent_url(bus, listed, path)
            try:
                async with asyncio.timeout(ANSWER_TIMEOUT_S):
                    answer = await http.request(
                        method, url, timeout=timeout, auth=auth(listed.broker.name), **request
                    )
                _raise_if_refused(url, answer)
                if answer.status_code != httpx.codes.OK:
                    return _why_not(answer)
                told = answer.json()
            except (httpx.HTTPError, TimeoutError, ValueError) as fault:
                return reason_of(fault)
            is_its_own = isinstance(told, dict) and told.get("broker") == listed.broker.name
            return told if is_its_own else "another agent answers there"

        # All have ended before the connections close, also when one of them is refused.
        asked = [ask(listed) for listed in brokers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
    good, bad = dict[str, dict[str, Any]](), dict[str, str]()
    for listed, told in zip(brokers, answers, strict=True):
        if isinstance(told, BaseException):
            raise told
        if isinstance(told, str):
            bad[listed.broker.name] = told
        else:
            good[listed.broker.name] = told
    return good, bad


def _agent_url(bus: BusConfig, listed: ListedBroker, path: str) -> str:
    """Return the own address of a broker's agent; it speaks TLS where the list does."""
    return f"{urlsplit(bus.list_urls[0]).scheme}://{listed.agent_address}{path}"


def _proof(token: Secret) -> Callable[[str], httpx.Auth]:
    """Return a function from a broker name to the proof for its agent. Raises ConfigError."""
    text = token.reveal()
    # A token that cannot be sent would appear in the error of httpx.
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ConfigError("token: printable ASCII without blanks, as in the operators' token file")
    return lambda broker: TokenProof(lambda: token, to=broker)


def _raise_if_refused(url: str, answer: httpx.Response) -> None:
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise LoginRefused(url, _error_of(answer) or "refused")


def _why_not(answer: httpx.Response) -> str:
    """Return why an agent did not answer; it checks logins by its broker, and cannot while that is down."""
    if answer.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        told = json_object(answer)
        if told.get("linked") is False:
            reason = one_line(str(told.get("reason") or "no connection to it"), REASON_CHARS_MAX)
            return f"the broker is down (its agent says: {reason})"
    return f"HTTP {answer.status_code} {_error_of(answer)}"


def _error_of(answer: httpx.Response) -> str:
    return one_line(str(json_object(answer).get("error") or answer.text), REASON_CHARS_MAX)

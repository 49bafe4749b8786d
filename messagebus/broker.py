"""Brokers, and the consumer list that names those to consume from.

Pure values: parsing and writing the text of a list. Fetching it is `_io.agents.consumer_list`, serving it
`agent.consumer_list`, editing it the kit `consumer_lists`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from messagebus.errors import ConfigError, ListInvalid
from messagebus.secret import Secret, split_address

__all__ = [
    *("AGENT_PORT", "AMQP_PORT", "LIST_BYTES_MAX", "WIRE_VERSION"),
    *("AmqpUrl", "Broker", "BrokerList", "ListedBroker", "is_http"),
]

AMQP_PORT, AMQPS_PORT = 5672, 5671
AGENT_PORT = 8081
# Of docs/WIRE.md: the first number changes with what an older client cannot take.
WIRE_VERSION = "1.0"
# 1,000 brokers of 60 bytes are 60 kB; an answer above this is not a list.
LIST_BYTES_MAX = 1 << 20

# A name of parts of 1 to 63 characters, or an IPv6 address in brackets.
_HOST = re.compile(r"(?ai)(?!.*\.\.|.*[^.]{64}|.{254})[^\W_]([\w.-]*[^\W_])?|\[[0-9a-f:.]{2,45}\]")
_CLUSTER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HEADER = re.compile(r"#\s*(cluster|generation)\s*:\s*(.*)")


@dataclass(frozen=True, slots=True, order=True)
class Broker:
    """A RabbitMQ node as clients see it: host and port. IPv6 addresses are kept in brackets."""

    host: str
    port: int = AMQP_PORT

    @property
    def name(self) -> str:
        """``host:port``: the name in lists, logs and receipts."""
        return f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str, port: int = AMQP_PORT) -> Broker:
        """Read ``host:port``, or ``host`` with this port.

        Raises ValueError, whose text names the fault; for a URL it has the address to write instead, without
        the login.
        """
        if "://" in text or "@" in text:
            raise ValueError(_without_url(text))
        host, colon, said = text.rpartition(":") if not text.endswith("]") else (text, "", "")
        if not colon:
            host = text
        if not _HOST.fullmatch(host):
            raise ValueError(f"not a host name or address: {host!r}")
        return cls(host, parse_port(said) if colon else port)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedBroker:
    """One line of a list.

    draining: the broker takes no new publishes; it is consumed from until it leaves the list.
    agent_port: where the agent of the same host answers HTTP.
    """

    broker: Broker
    draining: bool = False
    agent_port: int = AGENT_PORT

    @property
    def agent_address(self) -> str:
        """``host:port``; a list does not say whether TLS is spoken there."""
        return f"{self.broker.host}:{self.agent_port}"

    def render(self) -> str:
        """Return the line; `BrokerList.parse` reads it back."""
        agent = f" agent={self.agent_port}" if self.agent_port != AGENT_PORT else ""
        return f"{self.broker}{agent}{' draining' if self.draining else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerList:
    """List of brokers to consume from: a cluster's name, a generation, its brokers.

    generation: only grows; 0 means that the list does not say, as a plain file of addresses.
    listed: in the order of the file, no broker twice, never empty.
    """

    cluster: str = ""
    generation: int = 0
    listed: tuple[ListedBroker, ...]

    def __iter__(self) -> Iterator[ListedBroker]:
        return iter(self.listed)

    @property
    def names(self) -> frozenset[str]:
        """``host:port`` of each broker."""
        return frozenset(entry.broker.name for entry in self.listed)

    def find(self, name: str) -> ListedBroker | None:
        """Return the entry of ``host:port``, or None."""
        return next((entry for entry in self.listed if entry.broker.name == name), None)

    def render(self) -> str:
        """Return the text of this list; ``parse`` reads it back."""
        head = [f"# cluster: {self.cluster}"] if self.cluster else []
        head += [f"# generation: {self.generation}"] if self.generation else []
        return "\n".join([*head, *(entry.render() for entry in self.listed)]) + "\n"

    @classmethod
    def parse(cls, text: str) -> BrokerList:
        """Read a list. Any bad line rejects the whole.

        Raises ListInvalid with the number of the line: a bad address, port or attribute, a broker
        named twice, a header that makes no sense, no broker at all, or more than LIST_BYTES_MAX bytes.
        """
        if len(text.encode("utf-8", "replace")) > LIST_BYTES_MAX:
            raise ListInvalid(f"more than {LIST_BYTES_MAX} bytes")
        if text.startswith("\ufeff"):
            raise ListInvalid("it begins with a byte order mark: save it without one", line=1)
        headers: dict[str, str] = {}
        listed: dict[Broker, ListedBroker] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            if header := _HEADER.fullmatch(line.strip()):
                _read_header(headers, header[1], header[2].strip(), number)
            elif entry := _read_entry(line, number):
                if entry.broker in listed:
                    raise ListInvalid(f"{entry.broker} is listed twice", line=number)
                listed[entry.broker] = entry
        if not listed:
            raise ListInvalid("no broker in it")
        generation = int(headers.get("generation", "0"))
        return cls(
            cluster=headers.get("cluster", ""), generation=generation, listed=tuple(listed.values())
        )


class AmqpUrl(NamedTuple):
    """Parts of ``amqps://user:password@host:port/vhost``.

    user, vhost: "" where the URL has none. password: None where it has none. tls: the scheme is amqps.
    """

    broker: Broker
    user: str
    password: Secret | None
    vhost: str
    tls: bool

    @classmethod
    def parse(cls, text: str) -> AmqpUrl:
        """Read a URL, with user, password and vhost in their percent-encoding.

        Without a port it is 5672, or 5671 of amqps. A path of ``/`` alone says no vhost, as in other clients.
        Raises ConfigError, which shows nothing of it but the scheme.
        """
        parts = split_address(text)
        if parts.scheme not in ("amqp", "amqps"):
            raise ConfigError("not an AMQP URL: amqp:// or amqps:// wanted")
        if parts.query or parts.fragment:
            raise ConfigError(f"{parts.scheme}://…: ? and # have no meaning, settings have names")
        if "/" in (vhost := parts.path.removeprefix("/")):
            raise ConfigError(f"{parts.scheme}://…: in a vhost / is %2F")
        login, _, address = parts.netloc.rpartition("@")
        user, colon, password = login.partition(":")
        try:
            broker = Broker.parse(address, AMQPS_PORT if parts.scheme == "amqps" else AMQP_PORT)
        except ValueError:  # its text shows what may be a password
            raise ConfigError(
                f"{parts.scheme}://…: no host and port behind the login; in user and password @ is %40"
            ) from None
        secret = Secret(unquote(password)) if colon else None
        return cls(broker, unquote(user), secret, unquote(vhost), parts.scheme == "amqps")


def _without_url(text: str) -> str:
    """Return the line that refuses a URL, or an address with a login, where a broker is only named."""
    try:
        wanted = AmqpUrl.parse(text).broker.name
    except ConfigError:  # http://, or user:password@host: its parts can only be guessed
        wanted = "host:port"
    return f"write {wanted}, not a URL: login, vhost and TLS have settings of their own"


def parse_port(text: str) -> int:
    """Read a TCP port. Raises ValueError unless it is 1 to 65535."""
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535):
        raise ValueError(f"not a port from 1 to 65535: {text!r}")
    return int(text)


def _read_header(headers: dict[str, str], key: str, value: str, number: int) -> None:
    good = _CLUSTER.fullmatch(value) if key == "cluster" else re.fullmatch(r"[0-9]{1,18}", value)
    if not good:
        raise ListInvalid(f"not a {key}: {value!r}", line=number)
    if key in headers:
        raise ListInvalid(f"{key} is said twice", line=number)
    headers[key] = value


def _read_entry(line: str, number: int) -> ListedBroker | None:
    words = line.partition("#")[0].split()
    if not words:
        return None
    draining, agent_port = False, AGENT_PORT
    try:
        for word in words[1:]:
            if word == "draining":
                draining = True
            elif word.startswith("agent="):
                agent_port = parse_port(word.removeprefix("agent="))
            else:
                raise ValueError(f"unknown attribute {word!r}; allowed: draining, agent=PORT")
        return ListedBroker(broker=Broker.parse(words[0]), draining=draining, agent_port=agent_port)
    except ValueError as fault:
        raise ListInvalid(str(fault), line=number) from None


def is_http(url: str) -> bool:
    """Return whether a text is an http:// or https:// address with a host and a right port."""
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").encode("idna")
        return parts.scheme in ("http", "https") and bool(host) and parts.port != 0
    except ValueError:
        return False

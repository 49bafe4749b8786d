"""Settings: frozen values, checked as a whole when they are made, every field with its unit.

Sources are pure functions of a mapping, an environment or a file; all three configs have all three.
Nothing below this module reads the environment. One `ConfigError` names all faults.

A file is TOML, with the tables ``[bus]``, ``[publisher]`` and ``[consumer]``, each of which may be
missing; or the keys of one config and no table. The variables of an environment are the same keys in
capitals: MESSAGEBUS_USER, MESSAGEBUS_PUBLISHER_WINDOW, MESSAGEBUS_CONSUMER_PREFETCH.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

from messagebus.broker import AmqpUrl, Broker, is_http
from messagebus.checks import flag_faults, raise_faults, range_faults
from messagebus.core.redundancy import MODES, REQUIRED
from messagebus.destination import parse_destination
from messagebus.errors import ConfigError, NameInvalid
from messagebus.secret import Secret
from messagebus.terminal import did_you_mean
from messagebus.tls import TlsFiles

__all__ = ["Batching", "BusConfig", "ConsumerConfig", "PublisherConfig", "Spool", "read_secret"]

ENV_PREFIX = "MESSAGEBUS_"
# Variables of that prefix that are no settings: of the hot path and commands; of operators; of tests.
NOT_SETTINGS = frozenset(
    {
        *("hot_path", "outbox_database", "token_file"),
        *("inventory", "local_dir", "local_root", "ssh_config"),
        *("contract_broker", "hosts_suite", "model_runs", "test_time_factor"),
    }
)
NOT_BOTH = (
    "redundant and spool: what lies on this host's disk is on no broker; use a publisher for each"
)
ON_FULL = ("refuse", "wait")
ON_FULL_SPOOL = (
    'spool and on_full="wait": both keep what brokers do not take, the one on disk, the other in memory;'
    " leave one out"
)
# A RabbitMQ on this host, with the login that a new one has.
DEFAULT_BROKER = "localhost:5672"
DEFAULT_USER = "guest"
ORDERS = ("none", "key", "partition")
AT_MOST_ONCE_DEDUP = "dedup: without meaning with at_most_once, which never runs a message again"
CLIENT_ID_MAX = 200
# What is said of an address with a login in it, which is not shown.
BROKER_FORM = "host:port, or with a login amqp://user:password@host:port/vhost"
TRUE, FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9_-]+)*")

T = TypeVar("T")
C = TypeVar("C", bound="_Settings")


class _Settings:
    """Sources of settings, shared by all configs."""

    __slots__ = ()
    _table: ClassVar[str]
    """Its table in a file; with an underscore, the prefix of its variables."""

    def _type_faults(self) -> list[str]:
        """Return a line for each setting that is not of its type, without its value; it gets its default.

        The text "false" would be true, and each letter of a text one of several patterns.
        """
        faults = []
        kinds = _types_of(type(self))  # type: ignore[arg-type]  # a class has a hash
        for field in dataclasses.fields(self):  # type: ignore[arg-type]  # each config is one
            value, kind = getattr(self, field.name), kinds[field.name]
            if kind == tuple[str, ...] and isinstance(value, list | set | frozenset):
                value = tuple(value)
                object.__setattr__(self, field.name, value)
            is_valid, wanted = _WANTED.get(kind, (None, ""))
            if is_valid is not None and not is_valid(value):
                made = field.default_factory
                default = field.default if made is dataclasses.MISSING else made()
                object.__setattr__(self, field.name, default)
                faults.append(f"{field.name}: {wanted} wanted, not {type(value).__name__}")
        return faults

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Take settings by field name; passwords as text. Raises ConfigError with every fault."""
        made, faults = _read(cls, values)
        raise_faults(faults)
        return made

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read the variables of this config: see the module.

        Raises ConfigError with every fault of all variables, those of the other configs too.
        """
        found: dict[type[Any], Any] = {}
        faults: list[str] = []
        for kind in (BusConfig, PublisherConfig, ConsumerConfig):
            variable = functools.partial(_variable, kind._table)
            found[kind], wrong = _read(kind, _of_environment(environ, kind._table), variable)
            faults += wrong
        raise_faults(faults)
        made: Self = found[cls]
        return made

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file: see the module. Raises ConfigError with every fault of the whole file."""
        values = read_toml(path)
        tables = {kind._table: kind for kind in (BusConfig, PublisherConfig, ConsumerConfig)}
        made, faults = _read_file(cls, values, tables)
        raise_faults([f"{path}: {'; '.join(faults)}"] if faults else [])
        return made


_FILES = (
    "user_file",
    "password_file",
    "list_cache",
    "tls_ca_file",
    "tls_cert_file",
    "tls_key_file",
)
"""Settings of `BusConfig` that are paths."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig(_Settings):
    """Settings of the connections to the bus: addresses, login, TLS, the name of this client.

    broker: ``host:port`` of the balancer, or of a single RabbitMQ. Or an AMQP URL,
        ``amqps://user:password@host:port/vhost``: it also sets user, password, vhost and tls, and `broker` is
        its ``host:port`` then.
    list_urls: addresses of the consumer list, tried in turn. Empty: `broker` is the only broker, and the
        library declares queues itself. MESSAGEBUS_LIST_URL has them separated by commas.
    user, password: the login. user_file, password_file: files that hold them instead; read again at every
        new connection.
    vhost: virtual host of RabbitMQ.
    list_cache: file with the last valid list; a client can start from it without the balancer.
    cluster: name of the cluster; the list of another cluster is refused. "": any.
    broker_hosts_allowed: shell patterns of host names; a list with another host is refused. Empty: any.
    client_id: name of this client for brokers and agents; at most 200 printable ASCII characters. "": each
        client has its own, of host, process and a random part.
    heartbeat_s: interval of AMQP's heartbeats in seconds; 0: none.
    dial_timeout_s: seconds for TCP connect and AMQP handshake together, at the first try; each failed try
        doubles them, up to dial_timeout_max_s. Longer, while more than four clients of one event loop dial
        the same address and their dials take longer.
    Relative paths of files start at the working directory of the process when the config is created.
    tls: True: every connection is encrypted and verified, also that of the list; the name in the
        certificate must be that of the host.
    tls_ca_file: trusted authorities, PEM; "": those of the system.
    tls_cert_file, tls_key_file: certificate of this client and its key, PEM; one file may hold both.
    tls_server_name: expected name in the certificates behind the balancer, if it is not the host of
        `broker`; also sent as SNI.
    """

    _table: ClassVar[str] = "bus"

    broker: str = DEFAULT_BROKER
    list_urls: tuple[str, ...] = ()
    user: str = DEFAULT_USER
    user_file: str = ""
    password: Secret = dataclasses.field(default_factory=lambda: Secret("guest"))
    password_file: str = ""
    vhost: str = "/"
    cluster: str = ""
    list_cache: str = ""
    broker_hosts_allowed: tuple[str, ...] = ()
    client_id: str = ""
    heartbeat_s: int = 10
    dial_timeout_s: float = 0.5
    dial_timeout_max_s: float = 8.0
    tls: bool = False
    tls_ca_file: str = ""
    tls_cert_file: str = ""
    tls_key_file: str = ""
    tls_server_name: str = ""

    def __post_init__(self) -> None:
        for name in _FILES:  # dials read them again, wherever the process has gone by then
            if isinstance(file := getattr(self, name), str | Path) and file:
                object.__setattr__(self, name, str(Path(file).absolute()))
        faults = self._type_faults()
        password: object = self.password
        if isinstance(password, str):  # a type checker says no, and no repr may show it
            object.__setattr__(self, "password", Secret(password))
        elif not isinstance(password, Secret):
            object.__setattr__(self, "password", Secret(""))
            faults.append(f"password: a text wanted, not {type(password).__name__}")
        faults += self._take_url()
        raise_faults(
            [
                *faults,
                *range_faults(
                    self,
                    heartbeat_s=(0, 3600),
                    dial_timeout_s=(0.01, 60.0),
                    dial_timeout_max_s=(0.01, 60.0),
                ),
                *(
                    f"list_urls {_without_login(url)!r}: http:// or https:// address"
                    for url in self.list_urls
                    if not is_http(url)
                ),
                *self._client_id_faults(),
                *self._broker_faults(),
                *self._login_faults(),
                *self._tls_faults(),
            ]
        )

    def _take_url(self) -> list[str]:
        """Set the fields that a broker's URL says. Returns a line for each that says another thing."""
        broker = self.broker
        if "://" not in broker:
            return []
        # No fault and no repr shows its password.
        object.__setattr__(self, "broker", DEFAULT_BROKER)
        try:
            url = AmqpUrl.parse(broker)
        except ConfigError as fault:
            return [f"broker: {fault}"]
        object.__setattr__(self, "broker", url.broker.name)
        faults = []
        settings: tuple[tuple[str, object, object], ...] = (
            ("user", url.user or None, DEFAULT_USER),
            ("password", url.password, Secret("guest")),
            ("vhost", url.vhost or None, "/"),
            ("tls", url.tls, False),
        )
        for name, value, default in settings:
            if value is None:
                continue
            file = getattr(self, f"{name}_file", "")
            if file or getattr(self, name) not in (default, value):
                faults.append(f"{name}: the broker's URL has another one; leave one of them out")
            object.__setattr__(self, name, value)
        return faults

    def _client_id_faults(self) -> list[str]:
        told = self.client_id
        if len(told) <= CLIENT_ID_MAX and told.isascii() and told.isprintable():
            return []
        shown = told[:CLIENT_ID_MAX]
        return [f"client_id {shown!r}: at most {CLIENT_ID_MAX} printing ASCII characters"]

    def _broker_faults(self) -> list[str]:
        try:
            Broker.parse(self.broker)
        except ValueError as fault:
            told = f"{self.broker!r}: {fault}" if "@" not in self.broker else BROKER_FORM
            return [f"broker {told}"]
        return []

    def _login_faults(self) -> list[str]:
        """Return the faults of the login's files now, while somebody still looks; dials read them again."""
        faults = []
        for read in (self.current_user, self.current_password):
            try:
                read()
            except ConfigError as fault:
                faults.append(str(fault))
        return faults

    def _tls_faults(self) -> list[str]:
        if not self.tls:
            given = [
                key
                for key in ("tls_ca_file", "tls_cert_file", "tls_key_file", "tls_server_name")
                if getattr(self, key)
            ]
            return [f"{key}: without effect while tls is off" for key in given]
        faults = self.tls_files.faults()
        if self.tls_server_name and not _HOST_NAME.fullmatch(self.tls_server_name):
            faults.append(f"tls_server_name {self.tls_server_name!r}: a host name wanted")
        # A forged list would collect passwords.
        plain = [url for url in self.list_urls if url.lower().startswith("http:")]
        return faults + [f"list_urls {_without_login(url)!r}: https:// with tls" for url in plain]

    @property
    def address(self) -> Broker:
        """`broker`, parsed."""
        return Broker.parse(self.broker)

    @property
    def tls_files(self) -> TlsFiles:
        """The files for all TLS connections; an https list without `tls` uses the system's authorities."""
        return TlsFiles(
            ca_file=self.tls_ca_file, cert_file=self.tls_cert_file, key_file=self.tls_key_file
        )

    def current_user(self) -> str:
        """Return the current user. Raises ConfigError when the file cannot be read."""
        return read_secret("user_file", self.user_file) if self.user_file else self.user

    def current_password(self) -> Secret:
        """Return the current password: the file is read again at every dial, so that it can rotate."""
        if not self.password_file:
            return self.password
        return Secret(read_secret("password_file", self.password_file))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Rules for packing several messages of one destination into one AMQP message.

    count_max: the largest number of messages in a batch. bytes_max: the largest size of all their bodies;
        at most 15 MiB, because RabbitMQ 4 accepts 16 MiB and each message has properties, too.
    linger_s: seconds that a batch waits for more messages, less than the publisher's deadline_s. 0: no wait;
        messages that are waiting are packed nevertheless. A flush or a stop ends the wait.
    """

    count_max: int = 50
    bytes_max: int = 65_536
    linger_s: float = 0.0

    def __post_init__(self) -> None:
        raise_faults(
            range_faults(
                self,
                count_max=(1, 10_000),
                bytes_max=(1, 15 * 1024 * 1024),
                linger_s=(0.0, 60.0),
            )
        )


@dataclass(frozen=True, slots=True)
class Spool:
    """Disk spool: a folder on this host for messages that no broker takes now (docs/guides/spool.md).

    path: the folder. Each publisher has its own sub-folder, and takes over those of processes that ended.
    bytes_max, messages_max: limits of one publisher, including what it took over. A message that does not fit
        waits in memory, as without a spool.
    after_s: seconds without a broker before messages go to the disk.
    always: True: every message is written to the disk first, and sent to a broker from there.
    """

    path: str | Path
    _: dataclasses.KW_ONLY
    bytes_max: int = 1024 * 1024 * 1024
    messages_max: int = 1_000_000
    after_s: float = 0.5
    always: bool = False

    def __post_init__(self) -> None:
        faults = range_faults(
            self,
            bytes_max=(64 * 1024, 1 << 50),
            messages_max=(1, 1_000_000_000),
            after_s=(0.0, 3_600.0),
        )
        path: Any = self.path
        if not (isinstance(path, str | Path) and _is_path(str(path))):
            faults.append(f"path {path!r}: a folder wanted")
        faults += flag_faults(self, "always")
        raise_faults([f"spool: {fault}" for fault in faults])


def _is_path(text: str) -> bool:
    """Return whether a file system may have it: neither empty, nor NUL, nor text without a form in bytes."""
    try:
        return bool(text) and b"\0" not in os.fsencode(text)
    except UnicodeEncodeError:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig(_Settings):
    """Settings of a publisher.

    window: the largest number of publishes sent and not yet confirmed, on one connection.
    backlog_messages_max, backlog_bytes_max: limits of messages accepted and not yet sent. If the backlog is
        full, callers wait.
    deadline_s: seconds for one publish, from acceptance to outcome, including all retries.
    attempts_max: the largest number of sends of one publish.
    retry_unknown: True: a publish that a lost connection left unknown is sent again, with the same id.
    connection_lifetime_s: seconds after which the connection is renewed through the balancer, varied at
        random by up to 20 %.
    confirm_slow_s: if the oldest confirm is outstanding for longer, the publisher moves to another broker; so
        it does if the broker confirms nothing at all for two fifths of this time while publishes wait. On a
        slow line the time counts from the last byte of the message.
    batch: destination as text (``orders``, ``queue:jobs``) -> how its messages are packed; messages of
        other destinations are sent one by one.
    redundant: destinations, as text, whose messages two brokers must confirm; a call may override it.
    redundancy: "required": without two confirms a publish is unknown. "preferred": one confirm is enough
        if there is no second broker.
    on_full: what becomes of a publish that a broker refuses, as one does whose queue has reached its quota.
        "refuse": the publish ends as refused. "wait": it is tried again, here or at another broker, until its
        deadline, and callers wait for room in the backlog; messages of a full destination may overtake each
        other. Publishes to topics with partitions end as refused in both cases.
    spool: disk spool for messages that no broker takes; None: they wait in memory until their deadline.
        In a file or the environment: a path, or a table, as ``{path = "/var/spool/shop", always = true}``.
    """

    _table: ClassVar[str] = "publisher"

    window: int = 512
    backlog_messages_max: int = 10_000
    backlog_bytes_max: int = 64 * 1024 * 1024
    deadline_s: float = 30.0
    attempts_max: int = 20
    retry_unknown: bool = True
    connection_lifetime_s: int = 600
    confirm_slow_s: float = 1.5
    batch: Mapping[str, Batching] = dataclasses.field(default_factory=dict, hash=False)
    redundant: tuple[str, ...] = ()
    redundancy: str = REQUIRED
    on_full: str = "refuse"
    spool: Spool | None = None

    def __post_init__(self) -> None:
        faults = self._type_faults()
        batch, wrong = _checked_batch(self.batch, self.deadline_s)
        object.__setattr__(self, "batch", batch)
        redundant, wrong_names = _checked_redundant(self.redundant)
        object.__setattr__(self, "redundant", redundant)
        faults += wrong + wrong_names
        if self.redundancy not in MODES:
            faults.append(f"redundancy {self.redundancy!r}: {' or '.join(MODES)}")
        if self.on_full not in ON_FULL:
            faults.append(f"on_full {self.on_full!r}: {' or '.join(ON_FULL)}")
        spool: Any = self.spool
        if spool is not None and not isinstance(spool, Spool):
            faults.append(f"spool: a Spool wanted, not {type(spool).__name__}")
        if spool is not None and redundant:
            faults.append(NOT_BOTH)
        if spool is not None and self.on_full == "wait":
            faults.append(ON_FULL_SPOOL)
        raise_faults(
            faults
            + range_faults(
                self,
                window=(1, 65_535),
                backlog_messages_max=(1, 10_000_000),
                backlog_bytes_max=(1, 1 << 40),
                deadline_s=(0.001, 86_400.0),
                attempts_max=(1, 1_000_000),
                connection_lifetime_s=(1, 86_400 * 365),
                confirm_slow_s=(0.001, 3_600.0),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig(_Settings):
    """Settings of a consumer.

    handed_out_max: the largest number of unanswered deliveries in the application, of all brokers together.
    prefetch: the largest number of unanswered deliveries of one broker, handed out or not; 1 to 2,000.
    refresh_interval_s: the longest time between two requests for the consumer list, in seconds.
    consumer_timeout_s: the brokers' setting of this name, in seconds (1,800 by default). A broker takes back
        a delivery that is not answered in this time, and all others of this consumer there. The consumer
        returns deliveries that the application has not seen before that, and logs a run near the limit.
    at_most_once: True: deliveries are acked before the handler receives them. A crash or a failed run then
        loses the message.
    dedup: URL of the store of deduplication, such as ``redis://…`` or ``sqlite:///…``; "": none. Never
        shown, because it may hold a password. The `dedup` of a consumer overrides it
        (docs/explanation/once.md).
    order: "key": deliveries of one key are handed out one after the other, each when the one before is
        answered; "partition": the same for all deliveries of one broker; "none": docs/explanation/order.md.
    slots, slot, cover: for hundreds of brokers and consumers. With slots > 0 this consumer, number `slot`
        (from 0) of `slots` in its subscription, reads only its share of the brokers; `cover` consumers
        read each broker. slots=0: it reads all brokers.
    """

    _table: ClassVar[str] = "consumer"

    handed_out_max: int = 500
    prefetch: int = 200
    refresh_interval_s: int = 30
    consumer_timeout_s: int = 1_800
    at_most_once: bool = False
    dedup: Secret = dataclasses.field(default_factory=lambda: Secret(""))
    slots: int = 0
    slot: int = 0
    cover: int = 2
    order: str = "none"

    def __post_init__(self) -> None:
        raise_faults(
            self._type_faults()
            + self._dedup_faults()
            + self._order_faults()
            + range_faults(
                self,
                handed_out_max=(1, 1_000_000),
                prefetch=(1, 2_000),
                refresh_interval_s=(1, 3_600),
                consumer_timeout_s=(1, 86_400 * 365),
                slots=(0, 10_000),
                slot=(0, max(0, self.slots - 1) if type(self.slots) is int else 0),
                cover=(1, 1_000),
            )
        )

    def _order_faults(self) -> list[str]:
        if self.order not in ORDERS:
            return [
                f"order {self.order!r}: {', '.join(ORDERS)}{did_you_mean(str(self.order), ORDERS)}"
            ]
        if self.order != "none" and self.at_most_once:
            return [
                "order: without meaning with at_most_once, which answers before a run; leave one out"
            ]
        return []

    def _dedup_faults(self) -> list[str]:
        url: object = self.dedup
        if isinstance(url, str):  # a type checker says no, and no repr may show it
            object.__setattr__(self, "dedup", Secret(url))
        elif not isinstance(url, Secret):
            object.__setattr__(self, "dedup", Secret(""))
            return [f"dedup: the URL of a store wanted, not {type(url).__name__}"]
        if not self.dedup.reveal():
            return []
        if self.at_most_once:
            return [AT_MOST_ONCE_DEDUP]
        from messagebus.stores import open_store  # only where it is used

        try:
            open_store(self.dedup)
        except ConfigError as fault:
            return [f"dedup {fault}"]
        return []


def _checked_batch(
    batch: Mapping[str, Any], deadline_s: object
) -> tuple[dict[str, Batching], list[str]]:
    """Return `batch` with one spelling for each destination, and its faults."""
    checked: dict[str, Batching] = {}
    faults = []
    for text, batching in batch.items():
        try:
            checked[str(parse_destination(text))] = batching
        except NameInvalid as fault:
            faults.append(f"batch: {fault}")
        if not isinstance(batching, Batching):
            faults.append(f"batch {text!r}: Batching wanted, not {type(batching).__name__}")
        elif isinstance(deadline_s, int | float) and batching.linger_s >= deadline_s:
            faults.append(
                f"batch {text!r}: linger_s {batching.linger_s:g}: below deadline_s {deadline_s:g}"
            )
    return checked, faults


def _checked_redundant(names: tuple[str, ...]) -> tuple[tuple[str, ...], list[str]]:
    """Return the destinations in one spelling each, and the faults."""
    checked, faults = [], []
    for text in () if names == ("",) else names:  # ("",): of a variable that is empty
        try:
            checked.append(str(parse_destination(text)))
        except NameInvalid as fault:
            faults.append(f"redundant: {fault}")
    return tuple(checked), faults


def _of_environment(environ: Mapping[str, str], table: str) -> dict[str, str]:
    """Return the variables of one table by field name. Variables of the bus have no table's name in front."""
    ours = {
        key.removeprefix(ENV_PREFIX).lower(): text
        for key, text in environ.items()
        if key.startswith(ENV_PREFIX)
    }
    others = ("publisher_", "consumer_")
    if table != "bus":
        begin = f"{table}_"
        return {
            key.removeprefix(begin): text for key, text in ours.items() if key.startswith(begin)
        }
    values = {
        key: text
        for key, text in ours.items()
        if key not in NOT_SETTINGS and not key.startswith(others)
    }
    if urls := values.pop("list_url", ""):
        if "list_urls" in values:
            raise ConfigError(
                "MESSAGEBUS_LIST_URL and MESSAGEBUS_LIST_URLS: the same; say one of them"
            )
        values["list_urls"] = urls
    return values


def _variable(table: str, key: str) -> str:
    """Return the name of the variable of a setting."""
    if key == "list_urls":
        return "MESSAGEBUS_LIST_URL"
    return ENV_PREFIX + (key if table == "bus" else f"{table}_{key}").upper()


def _read_file(
    wanted: type[T], values: Mapping[str, Any], tables: Mapping[str, type[Any]]
) -> tuple[T, list[str]]:
    """Return the wanted config of a file, and the faults of all its tables."""
    if not values.keys() & tables.keys():
        return _read(wanted, values)
    faults = [_unknown(key, tables) for key in values if key not in tables]
    found: dict[type[Any], Any] = {}
    for name, kind in tables.items():
        table = values.get(name, {})
        if not isinstance(table, dict):
            faults.append(f"[{name}]: a table wanted, not {type(table).__name__}")
            continue
        found[kind], wrong = _read(kind, table)
        faults += [f"[{name}] {fault}" for fault in wrong]
    return found.get(wanted, wanted), faults


def _read(
    kind: type[T], values: Mapping[str, Any], name_of: Callable[[str], str] = str
) -> tuple[T, list[str]]:
    """Return the config and every fault of keys, types and ranges. With a fault the config is not valid.

    name_of: returns the name of a key that a user knows.
    """
    known, faults = _converted(kind, values, name_of)
    try:
        return kind(**known), faults
    except ConfigError as fault:
        return kind(), [*faults, str(fault)]


def _converted(
    kind: type[Any], values: Mapping[str, Any], name_of: Callable[[str], str] = str
) -> tuple[dict[str, Any], list[str]]:
    """Return the known settings as their fields want them, and the faults of keys and types."""
    types = _types_of(kind)  # type: ignore[arg-type]  # a class has a hash
    names = [name_of(each) for each in types]
    faults = [_unknown(name_of(key), names) for key in values if key not in types]
    known: dict[str, Any] = {}
    for key, value in values.items():
        if key in types:
            try:
                known[key] = _CONVERTERS[types[key]](value)
            except (TypeError, ValueError) as fault:
                faults.append(f"{name_of(key)}: {fault}")
    return known, faults


@functools.cache  # it evaluates annotations: 0.1 ms each
def _types_of(kind: type) -> Mapping[str, Any]:
    """Return the type of each field, in order."""
    types = typing.get_type_hints(kind)
    names = [field.name for field in dataclasses.fields(kind)]
    return {name: types[name] for name in names if name != "_"}  # "_": what follows has names


# From text of an environment, or a value from TOML, to a field's type. Faults never show a value: it may be
# a secret.
def _as_text(value: Any) -> str:
    return _expect(str, value)


def _as_whole(value: Any) -> int:
    try:
        return int(value) if isinstance(value, str) else _expect(int, value)
    except ValueError:
        raise ValueError("a whole number wanted") from None


def _as_number(value: Any) -> float:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            raise ValueError("a number wanted") from None
    if type(value) not in (int, float):
        raise TypeError(f"a number wanted, not {type(value).__name__}")
    return value  # type: ignore[no-any-return]


def _as_bool(value: Any) -> bool:
    if isinstance(value, str) and value.lower() in (*TRUE, *FALSE):
        return value.lower() in TRUE
    if not isinstance(value, bool):
        raise TypeError("true or false wanted")
    return value


def _as_secret(value: Any) -> Secret:
    return value if isinstance(value, Secret) else Secret(_expect(str, value))


def _as_texts(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    words = words if isinstance(words, tuple) else _expect(list, words)
    texts = tuple(_expect(str, word).strip() for word in words)
    return () if texts == ("",) else texts  # a variable that is set and empty


def _as_batch(value: Any) -> dict[str, Batching]:
    """Read a table, which in an environment is written as in a file, behind the equals sign."""
    table = tomllib.loads(f"batch = {value}")["batch"] if isinstance(value, str) else value
    return {key: _as_batching(key, each) for key, each in _expect(dict, table).items()}


def _as_batching(destination: str, value: Any) -> Batching:
    if isinstance(value, Batching):
        return value
    batching, faults = _read(Batching, _expect(dict, value))
    if faults:
        raise ValueError(f"{destination!r}: {'; '.join(faults)}")
    return batching


def _as_path(value: Any) -> str | Path:
    return value if isinstance(value, Path) else _expect(str, value)


def _as_spool(value: Any) -> Spool | None:
    """Read a path, or a table, which in an environment is written as in a file."""
    if value is None or isinstance(value, Spool):
        return value
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = tomllib.loads(f"spool = {value}")["spool"]
    if isinstance(value, str):
        return Spool(value) if value else None
    known, faults = _converted(Spool, _expect(dict, value))
    if not known.get("path"):
        faults.append("path: a folder wanted")
    if faults:
        raise ValueError("; ".join(faults))
    return Spool(**known)


_CONVERTERS: dict[Any, Callable[[Any], Any]] = {
    str: _as_text,
    int: _as_whole,
    float: _as_number,
    bool: _as_bool,
    Secret: _as_secret,
    tuple[str, ...]: _as_texts,
    Mapping[str, Batching]: _as_batch,
    str | Path: _as_path,
    Spool | None: _as_spool,
}
"""The type of a field -> its converter. A type that is not here is an error of the class, not a text."""


# The type of a field -> whether a value is of it, and the words for it; the values of others are looked at.
_WANTED: dict[Any, tuple[Callable[[Any], bool], str]] = {
    bool: (lambda value: isinstance(value, bool), "True or False"),
    str: (lambda value: isinstance(value, str), "a text"),
    tuple[str, ...]: (
        lambda value: isinstance(value, tuple) and all(isinstance(each, str) for each in value),
        "several texts",
    ),
    Mapping[str, Batching]: (
        lambda value: isinstance(value, Mapping) and all(isinstance(each, str) for each in value),
        "a mapping of texts",
    ),
}


def _expect(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{kind.__name__} wanted, not {type(value).__name__}")
    return value


def _unknown(key: str, fields: Iterable[str]) -> str:
    return f"unknown setting {key!r}{did_you_mean(key, fields)}"


def _without_login(url: str) -> str:
    """Return the address without what may be a password before its ``@``."""
    return f"***@{url.rpartition('@')[2]}" if "@" in url else url


# What is given for a bus by mistake -> what was meant.
INSTEAD_OF_BUS = {
    "str": ": BusConfig(broker=...)",
    "MemoryBus": ": its clients are bus.publisher(), bus.consumer(), bus.replay(); for an app app.use(bus)",
}


def settings_of(bus: BusConfig | None, config: C | None, kind: type[C]) -> tuple[BusConfig, C]:
    """Return the settings of a client. Where no bus is given, the environment says what is not given.

    Raises ConfigError.
    """
    if config is None:
        config = kind() if bus is not None else kind.from_env(os.environ)
    elif not isinstance(config, kind):
        told = f"config: a {kind.__name__} or None, not {type(config).__name__}"
        raise ConfigError(told)
    return bus_of(bus), config


def bus_of(bus: BusConfig | None) -> BusConfig:
    """Return the settings, or for None those of the environment. Raises ConfigError."""
    if bus is None:
        return BusConfig.from_env(os.environ)
    if not isinstance(bus, BusConfig):
        raise ConfigError(_no_bus(bus))
    return bus


NO_AGENTS = (
    "list_urls (MESSAGEBUS_LIST_URL) is not set: this needs agents, and a single RabbitMQ has none; see"
    " docs/reference/commands.md#with-and-without-agents"
)


def with_agents(bus: BusConfig | None) -> BusConfig:
    """Return the settings of a bus that has agents. Raises ConfigError without list addresses."""
    bus = bus_of(bus)
    if not bus.list_urls:
        raise ConfigError(NO_AGENTS)
    return bus


def _no_bus(given: object) -> str:
    """Return the complaint about what is no bus; never its value: an address may have a password."""
    kind = type(given).__name__
    return f"bus: a BusConfig or None, not {kind}{INSTEAD_OF_BUS.get(kind, '')}"


def read_toml(path: str | Path) -> dict[str, Any]:
    """Read a TOML file. Raises ConfigError, with the path."""
    try:
        return tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
        raise ConfigError(f"{path}: {fault}") from fault


def read_secret(key: str, path: str) -> str:
    """Read a secret's file, without surrounding blanks. Raises ConfigError, which shows no byte of it.

    Of a path only what exists is shown: the rest may be the secret itself, set for its file by mistake.
    """
    try:
        return Path(path).read_text().strip()
    except (OSError, ValueError) as fault:
        told = fault.strerror if isinstance(fault, OSError) else "not UTF-8 text"
        raise ConfigError(f"{key}: {_as_far_as_it_exists(Path(path))}: {told}") from None


def _as_far_as_it_exists(path: Path) -> str:
    # Path.exists raises where it is not allowed to look.
    there = next((each for each in (path, *path.parents) if os.path.exists(each)), Path())  # noqa: PTH110
    return str(path) if there == path else f"{there}/... (the rest may be the secret itself)"

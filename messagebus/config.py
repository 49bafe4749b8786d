"""Settings: frozen values, checked whole at the edge, every field with its unit.

Sources are pure functions of a mapping, an environment or a file. Nothing below this module reads the
environment. All faults of a config are told in one `ConfigError`.
"""

from __future__ import annotations

import dataclasses
import difflib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar
from urllib.parse import urlsplit

from messagebus.broker import Broker
from messagebus.destination import parse_destination
from messagebus.errors import ConfigError, NameInvalid
from messagebus.secret import Secret

__all__ = ["Batching", "BusConfig", "ConsumerConfig", "PublisherConfig"]

ENV_PREFIX = "MESSAGEBUS_"
# Variables of that prefix that belong to the operators' kits and the tests.
NOT_SETTINGS = frozenset({"inventory", "local_dir", "test_time_factor"})
DEFAULT_BROKER = "127.0.0.10:5672"
DEFAULT_USER = "guest"

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class BusConfig:
    """Where the bus is and who we are.

    broker: the balancer's AMQP address as ``host:port``, or that of a single RabbitMQ.
    list_urls: addresses of the consumer list, tried in turn; empty means that `broker` is the only
        broker, and the library declares queues by itself.
    list_cache: file that keeps the last good list, so that a start without the balancer works.
    cluster: a list that names another cluster is refused; "" takes any.
    broker_hosts_allowed: shell patterns; a list that names another host is refused; empty takes any.
    heartbeat_s: AMQP heartbeat, 0 turns it off.
    dial_timeout_ms: for TCP connect and AMQP handshake of a first try, together; doubled by each
        failed try up to dial_timeout_max_ms.
    """

    broker: str = DEFAULT_BROKER
    list_urls: tuple[str, ...] = ()
    user: str = DEFAULT_USER
    password: Secret = dataclasses.field(default_factory=lambda: Secret("guest"))
    password_file: str = ""
    vhost: str = "/"
    cluster: str = ""
    list_cache: str = ""
    broker_hosts_allowed: tuple[str, ...] = ()
    client_id: str = ""
    heartbeat_s: int = 10
    dial_timeout_ms: int = 500
    dial_timeout_max_ms: int = 8_000

    def __post_init__(self) -> None:
        faults = [
            *_ranges(
                self,
                heartbeat_s=(0, 3600),
                dial_timeout_ms=(10, 60_000),
                dial_timeout_max_ms=(10, 60_000),
            ),
            *(
                f"list_urls {_without_login(url)!r}: http:// or https:// address"
                for url in self.list_urls
                if not _is_http(url)
            ),
        ]
        try:
            Broker.parse(self.broker)
        except ValueError as fault:
            told = f"{self.broker!r}: {fault}" if "@" not in self.broker else "only host:port"
            faults.append(f"broker {told}")
        _raise_all(faults)

    @property
    def address(self) -> Broker:
        return Broker.parse(self.broker)

    def current_password(self) -> Secret:
        """The password as it is now: the file is read again at every dial, so that it can rotate."""
        if not self.password_file:
            return self.password
        return _read_secret(self.password_file)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Take settings by field name; passwords as text. Raises ConfigError for an unknown key."""
        return _from_mapping(cls, values)

    @classmethod
    def from_env(cls, environ: Mapping[str, str]) -> Self:
        """Read MESSAGEBUS_BROKER, _LIST_URL (commas between several), _USER, _PASSWORD or
        _PASSWORD_FILE, _VHOST, _CLUSTER, _LIST_CACHE. Raises ConfigError for any other of that prefix.
        """
        ours = {key: text for key, text in environ.items() if key.startswith(ENV_PREFIX)}
        values = {key.removeprefix(ENV_PREFIX).lower(): text for key, text in ours.items()}
        values = {key: text for key, text in values.items() if key not in NOT_SETTINGS}
        if urls := values.pop("list_url", ""):
            values["list_urls"] = urls
        return _from_mapping(cls, values)

    @classmethod
    def from_file(cls, path: str | Path) -> Self:
        """Read a TOML file whose keys are the field names."""
        try:
            return _from_mapping(cls, tomllib.loads(Path(path).read_text()))
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as fault:
            raise ConfigError(f"{path}: {fault}") from fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """How messages of one destination are packed into one AMQP message.

    count_max: messages in a batch at most. bytes_max: of all their bodies together.
    linger_ms: how long a batch waits for more; 0 still packs what is waiting.
    """

    count_max: int = 50
    bytes_max: int = 65_536
    linger_ms: int = 0

    def __post_init__(self) -> None:
        _raise_all(
            _ranges(
                self,
                count_max=(1, 10_000),
                bytes_max=(1, 16 * 1024 * 1024),
                linger_ms=(0, 60_000),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherConfig:
    """How to publish.

    window: publishes sent and not yet confirmed, on one link.
    backlog_messages_max, backlog_bytes_max: accepted and not yet sent; a full backlog makes callers wait.
    deadline_ms: for one publish, from acceptance to outcome, over all retries.
    attempts_max: how often one publish is sent at most.
    retry_unknown: send again, under the same id, what a lost link left unknown.
    connection_lifetime_s: a link is renewed through the balancer after that, within 20 % at random.
    confirm_slow_ms: a broker whose oldest confirm is later than that is left for another one.
    batch: destination as text (``orders``, ``queue:jobs``) -> how its messages are packed; the others'
        go one by one.
    """

    window: int = 512
    backlog_messages_max: int = 10_000
    backlog_bytes_max: int = 64 * 1024 * 1024
    deadline_ms: int = 30_000
    attempts_max: int = 20
    retry_unknown: bool = True
    connection_lifetime_s: int = 600
    confirm_slow_ms: int = 2_000
    batch: Mapping[str, Batching] = dataclasses.field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        batch, faults = _checked_batch(self.batch)
        object.__setattr__(self, "batch", batch)
        _raise_all(
            faults
            + _ranges(
                self,
                window=(1, 65_535),
                backlog_messages_max=(1, 10_000_000),
                backlog_bytes_max=(1, 1 << 40),
                deadline_ms=(1, 86_400_000),
                attempts_max=(1, 1_000_000),
                connection_lifetime_s=(1, 86_400 * 365),
                confirm_slow_ms=(1, 3_600_000),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerConfig:
    """How to consume.

    handed_out_max: deliveries that the application holds unanswered, over all brokers together.
    prefetch: deliveries that one broker may have under way to us, held or not; 1 to 2,000.
    refresh_interval_s: the list is asked for again after that at the latest, changed or not.
    at_most_once: answer before the handler sees a delivery; a crash then loses it.
    """

    handed_out_max: int = 500
    prefetch: int = 200
    refresh_interval_s: int = 30
    at_most_once: bool = False

    def __post_init__(self) -> None:
        _raise_all(
            _ranges(
                self,
                handed_out_max=(1, 1_000_000),
                prefetch=(1, 2_000),
                refresh_interval_s=(1, 3_600),
            )
        )


def _checked_batch(batch: Mapping[str, Any]) -> tuple[dict[str, Batching], list[str]]:
    """The same under the one spelling of each destination, and what is wrong with it."""
    checked: dict[str, Batching] = {}
    faults = []
    for text, batching in batch.items():
        try:
            checked[str(parse_destination(text))] = batching
        except NameInvalid as fault:
            faults.append(f"batch: {fault}")
        if not isinstance(batching, Batching):
            faults.append(f"batch {text!r}: Batching wanted, not {type(batching).__name__}")
    return checked, faults


def _from_mapping(kind: type[T], values: Mapping[str, Any]) -> T:
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    faults = [_unknown(key, fields) for key in values if key not in fields]
    known: dict[str, Any] = {}
    for key, value in values.items():
        if key in fields:
            try:
                known[key] = _convert(str(fields[key].type), value)
            except (TypeError, ValueError) as fault:
                faults.append(f"{key}: {fault}")
    _raise_all(faults)
    return kind(**known)


def _convert(type_name: str, value: Any) -> Any:
    """Text from an environment, or a value from TOML, as the field's type. Never shows a secret."""
    match type_name:
        case "Secret":
            return value if isinstance(value, Secret) else Secret(_expect(str, value))
        case "tuple[str, ...]":
            words = value.split(",") if isinstance(value, str) else value
            return tuple(_expect(str, word).strip() for word in words)
        case "int":
            return int(value) if isinstance(value, str) else _expect(int, value)
        case "Mapping[str, Batching]":
            return {key: _as_batching(key, each) for key, each in _expect(dict, value).items()}
        case _:
            return _expect(str, value)


def _as_batching(destination: str, value: Any) -> Batching:
    try:
        return (
            value if isinstance(value, Batching) else _from_mapping(Batching, _expect(dict, value))
        )
    except (ConfigError, TypeError) as fault:
        raise ValueError(f"{destination!r}: {fault}") from None


def _expect(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise TypeError(f"{kind.__name__} wanted, not {type(value).__name__}")
    return value


def _unknown(key: str, fields: Iterable[str]) -> str:
    near = difflib.get_close_matches(key, fields, n=1)
    return f"unknown setting {key!r}" + (f"; did you mean {near[0]!r}?" if near else "")


def _ranges(config: object, **allowed: tuple[int, int]) -> list[str]:
    return [
        f"{key} {getattr(config, key)!r}: {low:,} to {high:,}"
        for key, (low, high) in allowed.items()
        if type(getattr(config, key)) is not int or not low <= getattr(config, key) <= high
    ]


def _raise_all(faults: list[str]) -> None:
    if faults:
        raise ConfigError("; ".join(faults))


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def _without_login(url: str) -> str:
    """The address without what may be a password before its ``@``."""
    return f"***@{url.rpartition('@')[2]}" if "@" in url else url


def _read_secret(path: str) -> Secret:
    try:
        return Secret(Path(path).read_text().strip())
    except (OSError, ValueError) as fault:
        # The text of a decoding error would show a byte of the secret.
        told = fault if isinstance(fault, OSError) else f"{path} is not UTF-8 text"
        raise ConfigError(f"password_file: {told}") from None

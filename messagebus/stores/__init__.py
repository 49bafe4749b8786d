"""Stores of deduplication: what is known of each message in each subscription.

`core.claims` says what a turn means; each store carries it out where its records lie:

    memory:                                   one consumer; also for tests
    sqlite:///PATH                            the processes of one host
    redis://… rediss://… redis+sentinel://…   many hosts
    postgresql://… mysql://…                  many hosts, in the application's own database
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import NamedTuple, Protocol, runtime_checkable

from messagebus.checks import flag_faults, raise_faults, range_faults
from messagebus.core.claims import UNENDED_LIMIT, Answer, Record, Rule, Turn, key_of
from messagebus.errors import ConfigError
from messagebus.secret import Secret

# Scheme of a URL -> module and class.
_STORES = {
    "memory": ("memory", "MemoryStore"),
    "sqlite": ("sqlite", "SqliteStore"),
    "redis": ("redis", "RedisStore"),
    "rediss": ("redis", "RedisStore"),
    "postgresql": ("sql", "SqlStore"),
    "mysql": ("sql", "SqlStore"),
}

__all__ = [
    "Answer",
    "Dedup",
    "Record",
    "Rule",
    "Store",
    "StoreCounts",
    "Turn",
    "keeps_outside",
    "key_of",
    "open_store",
]


class StoreCounts(NamedTuple):
    """Records of a store, by state, of all its subscriptions.

    forgotten: records that this object dropped before their time, because the store was full.
    """

    running: int = 0
    waiting: int = 0
    done: int = 0
    parked: int = 0
    forgotten: int = 0


@runtime_checkable
class Store(Protocol):
    """Records of messages, and the turns that change them.

    Every method raises StoreAway when the store does not answer, is full, or is damaged; and ConfigError
    where waiting does not help, such as a wrong password. Methods may be called from several loops and
    threads. The caller bounds each wait: a call that is cancelled may still be carried out, now or later.
    """

    async def turn(self, turn: Turn, rule: Rule) -> Answer:
        """Carry out a turn, each key of it as one step; repeat the same turn after StoreAway."""

    async def forget(self, keys: Sequence[bytes]) -> int:
        """Delete records, whatever their state, and return how many there were."""

    async def show(self, keys: Sequence[bytes]) -> list[Record | None]:
        """Return the records of these keys in their order; None where nothing is known.

        Their times are whole milliseconds since 1970.
        """

    async def count(self) -> StoreCounts:
        """Count all records; this may read every one of them."""

    async def close(self) -> None:
        """Let go of connections, threads and files. The next call opens them again."""


@dataclass(frozen=True, slots=True)
class Dedup:
    """Deduplication of a consumer: the handler of each message succeeds at most once.

    store: a store, or its URL (`open_store`).
    remember_s: seconds that a record is kept after its last change. It must exceed the longest time for which
    a broker may be down.
    lease_s: seconds for which a crashed process blocks the messages that it was handling.
    on_store_away: what happens while the store does not answer. "wait": nothing is handed out; "run":
    handlers run without deduplication, and such runs are counted.
    too_old: what happens to messages that are older than remember_s and have no record: "run" or "park".
    deferred_max: the largest number of deliveries that wait here while another consumer handles their
    duplicate; further ones wait in the delay ladder.
    store_timeout_s: limit of one call, in seconds.
    unended_max: number of runs of one message that may begin and never end, as in a crash, before it is
    parked; each of the last three runs alone.
    fence: True: the store counts the consumers that receive a partition, for `Delivery.fence`.
    """

    store: Store | str | Secret
    remember_s: int = 86_400
    lease_s: int = 30
    on_store_away: str = "wait"
    too_old: str = "run"
    deferred_max: int = 100
    store_timeout_s: float = 0.5
    unended_max: int = 5
    fence: bool = False

    def __post_init__(self) -> None:
        faults = range_faults(
            self,
            remember_s=(1, 86_400 * 3_650),
            lease_s=(1, 86_400),
            deferred_max=(0, 100_000),
            store_timeout_s=(0.001, 60.0),
            unended_max=(1, UNENDED_LIMIT - 1),
        ) + flag_faults(self, "fence")
        for key, words in (("on_store_away", ("wait", "run")), ("too_old", ("run", "park"))):
            if (told := getattr(self, key)) not in words:
                faults.append(f"{key} {told!r}: {' or '.join(words)}")
        if not faults and self.remember_s < self.lease_s:
            faults.append(f"remember_s {self.remember_s}: at least lease_s {self.lease_s}")
        if isinstance(self.store, str):  # no repr may show its password
            object.__setattr__(self, "store", Secret(self.store))
        store: object = self.store
        if isinstance(store, str | Secret):
            try:
                open_store(store)
            except ConfigError as fault:
                faults.append(f"store {fault}")
        elif not isinstance(store, Store):
            faults.append(f"store: a Store or its URL wanted, not {type(store).__name__}")
        elif self.fence and not hasattr(store, "next_fence"):
            faults.append(f"fence: {type(store).__name__} has no `next_fence`")
        raise_faults(faults)

    @property
    def rule(self) -> Rule:
        """The limits of its claims, as the core has them."""
        return Rule(self.lease_s * 1_000, self.remember_s * 1_000, self.unended_max)

    def opened(self) -> Store:
        """Return the store. If it was given as a URL, a new one is opened, and the caller closes it."""
        return open_store(self.store) if isinstance(self.store, str | Secret) else self.store


def open_store(url: str | Secret) -> Store:
    """Return the store of a URL; nothing is connected or made before its first call.

    Raises ConfigError for a URL that cannot be meant, or when the package for it is not installed.
    """
    text = url.reveal() if isinstance(url, Secret) else url
    scheme = text.partition(":")[0].partition("+")[0].lower()
    if scheme not in _STORES or ":" not in text:
        known = "memory:, sqlite:///PATH, redis://HOST, postgresql://HOST/DB or mysql://HOST/DB"
        raise ConfigError(f"{_shown(text)}: {known}")
    module, name = _STORES[scheme]
    try:
        kind = getattr(import_module(f"messagebus.stores.{module}"), name)
    except ModuleNotFoundError as fault:
        raise ConfigError(
            f"{scheme}: package {fault.name} is not installed:"
            f" pip install 'messagebus-rabbitmq[{module}]'"
        ) from fault
    store: Store = kind.from_url(text)
    return store


def keeps_outside(store: Store | str | Secret) -> bool:
    """Return whether one of these stores, or an address of one, keeps its records outside of the process."""
    if isinstance(store, str | Secret):
        store = open_store(store)
    outside = {f"messagebus.stores.{module}" for module, _ in _STORES.values()}
    outside.discard("messagebus.stores.memory")
    return any(kind.__module__ in outside for kind in type(store).__mro__)


def _shown(text: str) -> str:
    """Return the part of a URL that can be shown: the rest may hold a password."""
    scheme, mark, _rest = text.partition("://")
    return f"{scheme}://…" if mark and scheme.replace("+", "").isalnum() else "no URL of a store"

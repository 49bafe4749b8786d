"""The consumer list as a watched file, and the clients that fetch it.

The file is the source. A new file that is bad, of another cluster or of an older generation changes
nothing: the last good one is still served, and the fault is counted and logged once.

`Clients` knows who fetched the list from this agent, and which generation they have applied. A client asks
one agent at a time, so the whole is the union over all agents; the newest wins. Time is passed in as whole
milliseconds.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from messagebus.broker import LIST_BYTES_MAX, BrokerList
from messagebus.errors import ListInvalid
from messagebus.services.agent.web.metrics import Figure

log = logging.getLogger("messagebus.agent")

# A stat of one file; a change is served within a quarter of a second.
LOOK_INTERVAL_S = 0.2

Mark = tuple[int, int, int]
# A waiting fetch takes up to 60 s and is followed by the next one.
EXPIRY_MS = 90_000
# A client that hung up while it waited has ended, or asks again within its back-off.
LEFT_MS = 10_000
# 10,000 consumers are planned for, over all agents; beyond this the longest silent one is dropped.
CLIENTS_MAX = 20_000
# Length of an id, and of a subscription with its topic: AMQP's bound of a name.
TEXT_MAX = 255


class ListFile:
    """The last good list of one file.

    current: None until a good list was read. faults: number of bad files. fault: the reason, "" while good.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._mark: Mark | None = None
        self._news = asyncio.Event()
        self._has_ended = False
        self.current: BrokerList | None = None
        self.text = ""
        self.faults = 0
        self.fault = "not read yet"

    @property
    def etag(self) -> str:
        """The generation; for a file without one, a digest of its text."""
        if self.current is not None and self.current.generation:
            return f'"{self.current.generation}"'
        return f'"0-{hashlib.sha256(self.text.encode()).hexdigest()[:16]}"'

    @property
    def generation(self) -> int:
        """The generation of the list that is served; -1 without one."""
        return self.current.generation if self.current else -1

    def figures(self) -> Iterator[Figure]:
        yield Figure("list_generation", self.generation)
        yield Figure("list_faults", self.faults)

    async def watch(self, on_change: Callable[[], None]) -> None:
        """Look every LOOK_INTERVAL_S, for ever; call on_change after each new good list."""
        while True:
            if self.look():
                on_change()
            await asyncio.sleep(LOOK_INTERVAL_S)

    def look(self) -> bool:
        """Read the file if it has changed. Returns whether there is a new list."""
        try:
            stat = self._path.stat()
            mark = (stat.st_mtime_ns, stat.st_ino, stat.st_size)
            if mark == self._mark:
                return False
            self._mark = mark
            return self._take(self._read())
        except (OSError, UnicodeDecodeError, ListInvalid) as fault:
            self._refuse(str(fault))
            return False

    def wake(self) -> None:
        """Let all waiting requests look again."""
        self._news.set()
        self._news = asyncio.Event()

    def end(self) -> None:
        """End all waits, also later ones."""
        self._has_ended = True
        self.wake()

    async def newer_than(self, generation: int) -> bool:
        """Wait, without a time limit, until the list's generation is above this. False: `end` was called."""
        while self.current is None or self.current.generation <= generation:
            if self._has_ended:
                return False
            await self._news.wait()
        return True

    def _read(self) -> str:
        with self._path.open("rb") as file:
            return file.read(LIST_BYTES_MAX + 1).decode()

    def _take(self, text: str) -> bool:
        new, old = BrokerList.parse(text), self.current
        if old is not None and new.generation < old.generation:
            raise ListInvalid(f"generation {new.generation} is older than {old.generation}")
        if old is not None and old.cluster and new.cluster != old.cluster:
            raise ListInvalid(f"of cluster {new.cluster!r}, not {old.cluster!r}")
        if old is not None and new != old and new.generation == old.generation:
            log.warning("list changed without a new generation generation=%d", new.generation)
        self.current, self.text, self.fault = new, text, ""
        log.info("list read generation=%d brokers=%d", new.generation, len(new.listed))
        self.wake()
        return new != old

    def _refuse(self, fault: str) -> None:
        if fault == self.fault:
            return
        self.faults += 1
        self.fault = fault
        log.warning(
            'list refused, serving the last good one file=%s fault="%s" docs=%s',
            *(self._path, fault, ListInvalid.docs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client's last request. applied: generation that it works by, 0 for none yet."""

    id: str
    subscription: str
    applied: int
    age_ms: int


class Clients:
    """The clients of one agent."""

    def __init__(self) -> None:
        # (id, subscription) -> (applied, time), longest silent first
        self._clients: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        # (id, subscription) -> time of hanging up, longest ago first
        self._left: OrderedDict[tuple[str, str], int] = OrderedDict()
        # (id, subscription) -> time of the last answer to a waiting fetch, until it asks again
        self._answered: dict[tuple[str, str], int] = {}

    def note_request(self, client_id: str, subscription: str, applied: int, now_ms: int) -> None:
        """Record a client that asks, or was waiting until now."""
        key = _key(client_id, subscription)
        if key not in self._clients and len(self._clients) >= CLIENTS_MAX:
            # Anybody may say an id. Those that are known and still ask are not pushed out by new ones.
            _, (_, at_ms) = next(iter(self._clients.items()))
            if now_ms - at_ms <= EXPIRY_MS:
                return
            longest_silent, _ = self._clients.popitem(last=False)
            self._answered.pop(longest_silent, None)
        self._left.pop(key, None)
        self._answered.pop(key, None)
        self._clients[key] = (applied, now_ms)
        self._clients.move_to_end(key)

    def left(self, client_id: str, subscription: str, now_ms: int) -> None:
        """Record that it hung up: it is dropped LEFT_MS from now unless it is seen again."""
        key = _key(client_id, subscription)
        if (known := self._clients.get(key)) is not None:
            self._clients[key] = (known[0], min(known[1], now_ms - EXPIRY_MS + LEFT_MS))
            self._clients.move_to_end(key, last=False)
            self._left[key] = now_ms
            self._left.move_to_end(key)
            if len(self._left) > CLIENTS_MAX:
                self._left.popitem(last=False)

    def answered(self, client_id: str, subscription: str, now_ms: int) -> None:
        """Record that its waiting fetch was answered: it asks again at once, here or at another agent."""
        key = _key(client_id, subscription)
        if key in self._clients:
            self._answered[key] = now_ms

    def gone(self, now_ms: int) -> list[Client]:
        """Return the clients that hung up here LEFT_MS ago or earlier; age_ms: since then.

        Other agents, which such a client asked before, know it for up to EXPIRY_MS.
        """
        for key in [key for key, at_ms in self._left.items() if now_ms - at_ms > EXPIRY_MS]:
            del self._left[key]
        return [
            Client(id=client_id, subscription=subscription, applied=0, age_ms=now_ms - at_ms)
            for (client_id, subscription), at_ms in self._left.items()
            if now_ms - at_ms > LEFT_MS
        ]

    def figures(self, now_ms: int, generation: int) -> Iterator[Figure]:
        """Yield the figures of living clients. generation: of the list that they should have."""
        living = self.here(now_ms)
        behind = sum(client.applied < generation for client in living)
        yield Figure("clients", len(living))
        yield Figure("clients_behind", behind)

    def living(self, now_ms: int) -> list[Client]:
        """Return the clients seen within EXPIRY_MS; drop the others."""
        for key in [key for key, (_, at_ms) in self._clients.items() if now_ms - at_ms > EXPIRY_MS]:
            del self._clients[key]
            self._answered.pop(key, None)
        return [
            Client(id=client_id, subscription=subscription, applied=applied, age_ms=now_ms - when)
            for (client_id, subscription), (applied, when) in self._clients.items()
        ]

    def here(self, now_ms: int) -> list[Client]:
        """Return the living clients without those that have ended, or ask another agent now."""
        ends = self._left, self._answered
        return [
            each
            for each in self.living(now_ms)
            if all(now_ms - at.get((each.id, each.subscription), now_ms) <= LEFT_MS for at in ends)
        ]


def _key(client_id: str, subscription: str) -> tuple[str, str]:
    return client_id[:TEXT_MAX], subscription[:TEXT_MAX]

"""The part of the map that the broker has, as its agent applied it. It asks nobody."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from messagebus.clock import monotonic_ms
from messagebus.services.agent.broker.definitions import Definitions
from messagebus.services.agent.topology.register import Entry, Register


class Applied:
    """The entries of the map that one broker has, exactly as the map wants them.

    entries: by name; empty when a link opens, because nothing is known of what is there.
    version: that of the map when all of it was there, settled; 0 while it is not.
    births: queues of the broker -> their `mb-born`; None while they are not known.
    held: living entry -> its number, when all was last there; kept over restarts of the agent.
    vanished: names of entries with a missing part, until they are applied again.
    behind_since_ms: monotonic time since when the broker has lacked some of the map; None while it has all.

    on_held: called when `held` has changed.
    """

    def __init__(self, register: Register, on_held: Callable[[], None]) -> None:
        self._register, self._on_held = register, on_held
        self.entries: dict[str, Entry] = {}
        self.version = 0
        self.births: dict[str, int | None] | None = None
        self._listed: Definitions | None = None
        self.held: dict[str, int] = {}
        self.vanished: set[str] = set()
        self.behind_since_ms: int | None = None

    @property
    def is_whole(self) -> bool:
        """True when exactly the current map is on the broker."""
        return self.version == self._register.version

    def has(self, entry: Entry) -> bool:
        """Return whether the broker has exactly this entry, alive or dead."""
        return self.entries.get(entry.wanted) == entry

    def begin(
        self, births: dict[str, int | None] | None, listed: Definitions | None = None
    ) -> None:
        """Forget what an earlier link knew. listed: what is there now, where that is known."""
        self.entries, self.version, self.births, self._listed = {}, 0, births, listed

    def take_listed(self) -> Definitions | None:
        """Return what was there when the link opened, once: soon after that the list is old."""
        listed, self._listed = self._listed, None
        return listed

    def completed(self, version: int, entries: Mapping[str, Entry]) -> None:
        """Note that all entries of a version are there; the map may be at a later one by now."""
        self.version = version
        self.behind_since_ms = None if self.is_whole else monotonic_ms()
        held = {name: entry.number for name, entry in entries.items() if entry.alive}
        if held != self.held:
            self.held = held
            self._on_held()

    def waits(self) -> None:
        """Begin the time behind anew: a known wait on every broker at once must not drain them all."""
        self.behind_since_ms = monotonic_ms()

    def progressed(self) -> None:
        """Note that a part was made. Hundreds at once take every broker longer than one may lag behind."""
        if self.behind_since_ms is not None:
            self.waits()

    def fell_behind(self) -> None:
        """Begin the time behind, unless it has begun."""
        if self.behind_since_ms is None:
            self.waits()

    def apply_again(self, name: str = "") -> None:
        """Have the map applied again, with this entry."""
        self.entries.pop(name, None)
        self.version = 0

    def declared(self, queue: str, number: int) -> None:
        """Note a queue that is there now; one that was there before keeps its birth."""
        if self.births is not None:
            self.births.setdefault(queue, number)

    def deleted(self, queue: str) -> None:
        """Note that a queue is there no more."""
        if self.births is not None:
            self.births.pop(queue, None)

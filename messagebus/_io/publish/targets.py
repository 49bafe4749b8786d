"""The places that publishes go to: addresses, and the common part of the publishes of one.

An `Address` is a destination as a broker names it, with what must exist before the first publish. A `Target`
is an address with a content type; `Targets` makes each once, and refuses what a destination cannot have.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import cast

from messagebus.bodies import BINARY
from messagebus.config import NOT_BOTH
from messagebus.core.redundancy import MODES, PARTITIONED, REQUIRED
from messagebus.destination import Delay, Destination, Queue, Topic, parse_destination
from messagebus.errors import (
    ConfigError,
    NameInvalid,
)
from messagebus.stats import Durability
from messagebus.topology import differences, options_of

# More targets than any application has kinds of messages; above it the cache is cleared.
TARGETS_MAX = 10_000
# What is said of a topic with partitions to a publisher with a spool.
NO_SPOOL = "has partitions: it is published to without a spool"


def place_name(exchange: str, routing_key: str) -> str:
    """Return the name of a place to publish to, as a broker names it when it returns a message."""
    return f"{exchange} {routing_key}" if routing_key else exchange


_CHANGING = ("mqtt", "homes")


def _options_text(durability: Durability, wanted: Destination | None) -> str:
    """Return what is asked of a destination beside its name, as text; "" where nothing is.

    mqtt may change, and homes do: they are not compared.
    """
    options: dict[str, object] = {}
    if durability is not Durability.FSYNC:
        options["durability"] = durability.value
    if wanted is not None:
        options.update(options_of(wanted))
    return "".join(f"~{key}={value}" for key, value in options.items() if key not in _CHANGING)


@dataclass(frozen=True, slots=True)
class Address:
    """A place that publishes go to. name: for people. wanted: what must exist before the first publish.

    options_text: the options that are asked of it beside its name. destination: its name in `core.pending`.
    Publishes that ask for other options than the place has, such as another durability, are held, opened
    and refused apart from those that ask for the right ones.
    """

    name: str
    exchange: str
    routing_key: str
    durability: Durability
    wanted: tuple[Destination | Delay, ...] = ()
    options_text: str = field(init=False, repr=False, compare=False)
    destination: str = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        asked = cast(Destination, self.wanted[0]) if self.wanted else None
        text, put = _options_text(self.durability, asked), object.__setattr__
        put(self, "options_text", text)
        put(self, "destination", place_name(self.exchange, self.routing_key) + text)

    @classmethod
    def of(cls, destination: Destination, delay: Delay | None = None) -> Address:
        """Make the address of a destination, direct or after a delay."""
        name, durability = str(destination), destination.durability
        if delay is None:
            return cls(name, destination.exchange, "", durability, (destination,))
        return cls(name, delay.exchange, destination.due_key, durability, (destination, delay))

    @classmethod
    def queue(cls, queue: str, durability: Durability) -> Address:
        """Make the address of an existing queue of a broker, past its exchange: for copies."""
        return cls(queue, "", queue, durability)


class Target:
    """The common part of publishes of one address and content type; compared by identity.

    redundancy: "" for one broker, else how two are wanted.
    """

    __slots__ = ("address", "confirms", "content_type", "destination", "durability", "redundancy")

    def __init__(self, address: Address, content_type: str, redundancy: str = "") -> None:
        self.redundancy = redundancy
        self.address, self.content_type, self.destination = (
            address,
            content_type,
            address.destination,
        )
        self.durability = address.durability
        self.confirms = self.durability is not Durability.NONE


class Targets:
    """A cache of targets. Any thread may ask.

    redundant: destinations as text that are redundant unless a call says otherwise; redundancy: how.
    """

    def __init__(
        self,
        redundant: Collection[str] = (),
        redundancy: str = REQUIRED,
        *,
        has_spool: bool = False,
    ) -> None:
        self._redundant, self._redundancy = frozenset(redundant), redundancy
        self._has_spool = has_spool
        self._known: dict[tuple[object, ...], Target] = {}
        self.plain_known: dict[str | tuple[str, str], Target] = {}
        """The targets that `plain` has returned: of bytes by destination, of others also by content type."""
        self._twice: dict[str, Target] = {}
        self._partitioned: dict[str, int] = {}

    def partitioned(self, topic: str, partitions: int) -> None:
        """Note that a topic has this many partitions, also in the targets that are in use."""
        self._partitioned[topic] = partitions
        self._twice.clear()  # a topic with partitions refuses it
        self.plain_known.clear()  # it may have been redundant by itself: one with partitions is not
        for key, target in list(self._known.items()):
            if target.address.name == topic and not target.redundancy:
                if _other_partitions(target.address.wanted[0], partitions):
                    del self._known[key]  # it is refused from now on
                else:
                    target.redundancy = PARTITIONED

    def plain(self, destination: str, content_type: str = BINARY) -> Target:
        """Return the target for a payload to a destination given as text. Raises NameInvalid."""
        key = destination if content_type == BINARY else (destination, content_type)
        target = self.plain_known.get(key)
        if target is None:
            if len(self.plain_known) >= TARGETS_MAX:
                self.plain_known.clear()
            target = self.of(parse_destination(destination), content_type)
            self.plain_known[key] = target
        return target

    def twice(self, destination: str) -> Target:
        """Return the target for bytes that two brokers are to confirm. Raises NameInvalid, ConfigError."""
        target = self._twice.get(destination)
        if target is None:
            if len(self._twice) >= TARGETS_MAX:
                self._twice.clear()
            target = self.of(parse_destination(destination), BINARY, redundant=True)
            self._twice[destination] = target
        return target

    def of(
        self,
        destination: Destination,
        content_type: str,
        delay: Delay | None = None,
        redundant: bool | str | None = None,
    ) -> Target:
        """Return the target. redundant: as of `Publisher.submit`; None: as configured."""
        try:
            name = str(destination)
            redundancy = self._redundancy_of(name, destination, redundant)
            # With all that two destinations of one name may differ in. Written out: it is on the hot path.
            key: tuple[object, ...]
            common = name, destination.durability, delay, content_type, redundancy
            if isinstance(destination, Queue):
                key = (
                    common,
                    destination.create,
                    destination.plain,
                    destination.single_active,
                    destination.delivery_limit,
                )
            else:
                key = common, destination.partitions, destination.mqtt, destination.deflate
        except AttributeError:
            raise NameInvalid(
                f"destination {destination!r}: a name, Topic or Queue wanted"
            ) from None
        target = self._known.get(key)
        if target is None:
            if len(self._known) >= TARGETS_MAX:
                self._known.clear()
            target = Target(Address.of(destination, delay), content_type, redundancy)
            if redundancy == PARTITIONED and delay is not None:
                raise ConfigError(
                    f"{name} has partitions: a delayed message has no place in their order"
                )
            is_partitioned = isinstance(destination, Topic) and destination.partitions > 0
            if self._has_spool and (is_partitioned or redundancy == PARTITIONED):
                raise ConfigError(f"{name} {NO_SPOOL}")
            if redundancy and self._has_spool:
                raise ConfigError(f"{name}: {NOT_BOTH}")
            if redundancy and not target.confirms:
                raise ConfigError(
                    f"{name} has durability none: nothing is confirmed, so nothing is redundant"
                )
            self._known[key] = target
        return target

    def _redundancy_of(
        self, name: str, destination: Destination, redundant: bool | str | None
    ) -> str:
        if name in self._partitioned:
            if redundant:
                raise ConfigError(f"{name} has partitions: redundant is for topics without")
            if told := _other_partitions(destination, self._partitioned[name]):
                raise ConfigError(told)
            return PARTITIONED
        if redundant is None:
            return self._redundancy if name in self._redundant else ""
        if isinstance(redundant, bool):
            return self._redundancy if redundant else ""
        if redundant not in MODES:
            raise ConfigError(f"redundant={redundant!r}: True, False, {' or '.join(MODES)}")
        return redundant


def _other_partitions(wanted: Destination | Delay, partitions: int) -> str:
    """Return how a topic that says its partitions differs from what exists; "" where it does not."""
    if not isinstance(wanted, Topic) or wanted.partitions in (0, partitions):
        return ""
    return differences(wanted, {"partitions": partitions})

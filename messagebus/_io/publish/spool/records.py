"""Publishes as records of a spool: their destination as text, and the properties that they go out with."""

from __future__ import annotations

import time
from typing import cast

from messagebus._io.amqp.properties import IN_BATCH, bare_shape, encode
from messagebus._io.publish.publishes import Bundle, Publish
from messagebus._io.publish.targets import Address, Target
from messagebus.broker import Broker
from messagebus.config import BusConfig
from messagebus.core.spool import lane_of
from messagebus.destination import Delay, Queue, parse_destination
from messagebus.errors import NameInvalid
from messagebus.stats import Durability

# Options of a queue that a place has as words: it may be made by the publish.
QUEUE_FLAGS = ("create", "plain", "single_active")
DELIVERY_MODE = 1 << 4  # in the first byte of a property list


def place_of(target: Target) -> str:
    """Return the destination of a target as text, with all that is needed to publish to it again."""
    address = target.address
    destination, *delay = address.wanted
    words = [address.name, *(f"delay={cast(Delay, each).ms}" for each in delay)]
    if target.durability is not Durability.FSYNC:
        words.append(target.durability.value)
    if isinstance(destination, Queue):
        words += [name for name in QUEUE_FLAGS if getattr(destination, name)]
        if destination.delivery_limit:
            words.append(f"limit={destination.delivery_limit}")
    return " ".join(words)


def read_place(place: str) -> Target:
    """Return the target of a place. Raises NameInvalid."""
    name, *words = place.split(" ")
    destination, delay = parse_destination(name), None
    durability, limit, flags = Durability.FSYNC, 0, set[str]()
    for word in words:
        key, _, value = word.partition("=")
        try:
            match key:
                case "delay":
                    delay = Delay(int(value))
                case "limit":
                    limit = int(value)
                case _ if word in QUEUE_FLAGS:
                    flags.add(word)
                case _:
                    durability = Durability(word)
        except ValueError:
            raise NameInvalid(f"place {place!r}: {word!r} is not known") from None
    if isinstance(destination, Queue):
        options = {name: name in flags for name in QUEUE_FLAGS}
        destination = Queue(destination.name, durability, limit, **options)
    else:
        destination = type(destination)(destination.name, durability)
    return Target(Address.of(destination, delay), "")


def name_of(bus: BusConfig) -> str:
    """Return the name of a bus in spools: its cluster's name, or the address of its entry; and the vhost."""
    entry = f"cluster={bus.cluster}" if bus.cluster else f"broker={Broker.parse(bus.broker).name}"
    return f"{entry} vhost={bus.vhost}"


class Records:
    """The records of one publisher: places and lanes, each read or written out once."""

    def __init__(self) -> None:
        self.lanes: dict[str, str] = {}
        """Destination -> lane, of all that was ever spooled here."""
        self._places: dict[Target, tuple[bytes, str]] = {}
        self._targets: dict[str, Target] = {}
        self._lane_of: dict[str, str] = {}  # place -> lane
        self._shapes: dict[str, tuple[int, bytes, bytes]] = {}

    def place_of(self, target: Target) -> tuple[bytes, str]:
        """Return the place of a target, and its lane."""
        found = self._places.get(target)
        if found is None:
            place = place_of(target)
            found = self._places[target] = (place.encode(), lane_of(place))
            self.lanes[target.destination] = lane_of(place)
        return found

    def target_of(self, place: str) -> Target:
        """Return the target of a place. Raises NameInvalid for one of a later version."""
        target = self._targets.get(place)
        if target is None:
            target = self._targets[place] = read_place(place)
            self.lanes[target.destination] = lane_of(place)
        return target

    def lane_of(self, place: str) -> str:
        """Return the lane of a place."""
        return self._lane_of.get(place) or self._lane_of.setdefault(place, lane_of(place))

    def contents_of(self, publish: Publish) -> list[tuple[bytes, bytes]]:
        """Return properties and body of each message of a publish that goes to the disk."""
        if isinstance(publish, Bundle):
            content_type = publish.target.content_type
            return [
                (self.bare(content_type, message_id), body)
                for message_id, body in zip(publish.ids, publish.bodies, strict=True)
            ]
        assert publish.properties is not None
        return [(publish.properties, publish.body)]

    def bare(self, content_type: str, message_id: str) -> bytes:
        """Return the properties of a message that is nothing but a body."""
        stamp_s = int(time.time())
        shape = self._shapes.get(content_type)
        if shape is None or shape[0] != stamp_s:
            shape = self._shapes[content_type] = (stamp_s, *bare_shape(content_type, stamp_s))
        return shape[1] + message_id.encode() + shape[2]

    def alone(self, publish: Publish) -> bytes:
        """Return the properties as a message has them that travels in no batch."""
        raw = publish.properties
        if raw is None:
            return self.bare(publish.target.content_type, publish.message_id)
        if raw[0] & DELIVERY_MODE:
            return raw
        message = IN_BATCH.message(raw, b"")
        return encode(message, publish.message_id, int(time.time()))

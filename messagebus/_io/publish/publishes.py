"""Publishes on their way, and the waiters for their ends.

`Publish` is what `core.pending` keeps: one object, with its bytes and its waiter. `tell` gives settled ones
their ends; `Many` is the one waiter of many.
"""

from __future__ import annotations

import functools
import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol, cast

from messagebus._io.amqp.properties import due_first, encode, encode_entry
from messagebus._io.loop import raise_soon
from messagebus._io.publish.targets import Target
from messagebus.core.ends import CONFIRMED, END_CONFIRMED, SPOOLED, Item
from messagebus.core.parking import STEP_PREFIX
from messagebus.message import Message
from messagebus.stats import CONFIRMED_OUTCOME, Durability, Outcome, Published

NEVER_SENT: tuple[str, int, tuple[str, ...]] = ("", 0, ())
# Costs half of the class's own constructor, which checks its arguments by name.
_new = tuple.__new__
_OUTCOMES = {outcome.value: outcome for outcome in Outcome}
_OTHERWISE = dict.fromkeys(_OUTCOMES, Durability.NONE) | {SPOOLED: Durability.FSYNC}


class Waiter(Protocol):
    """A future of asyncio or of threads."""

    def done(self) -> bool: ...

    def set_result(self, result: Any, /) -> None: ...


class Publish(Item):
    """One publish with its bytes and its waiter.

    properties: encoded; None for only a body of the target's content type. sent: broker and time of the
    last send, and the broker as `Published.brokers` has it. waiter: gets the end. settled_ns: set by
    `tell`.
    """

    __slots__ = ("body", "properties", "sent", "settled_ns", "target", "waiter")

    def __init__(
        self,
        message_id: str,
        target: Target,
        body: bytes,
        properties: bytes | None,
        deadline_ms: int,
        waiter: Waiter | Many | None,
    ) -> None:
        # Written out, not through Item: one call less for each message.
        self.message_id = message_id
        self.destination = target.destination
        self.size = len(body)
        self.count = 1
        self.deadline_ms = deadline_ms
        self.attempts = 0
        self.end = None
        self.target = target
        self.body = body
        self.properties = properties
        self.sent = NEVER_SENT
        self.waiter = waiter
        self.settled_ns = 0

    def published(self) -> Published:
        """Return the end of a settled publish."""
        assert self.end is not None
        outcome, reason = self.end
        broker, sent_ns, brokers = self.sent
        if outcome == CONFIRMED:
            told, durability = CONFIRMED_OUTCOME, self.target.durability
        else:
            told, durability, brokers = _OUTCOMES[outcome], _OTHERWISE[outcome], ()
        return _new(
            Published,
            (
                self.message_id,
                told,
                durability,
                broker,
                self.attempts,
                sent_ns,
                self.settled_ns,
                reason,
                brokers,
            ),
        )


Shape = tuple[bytes, bytes]
"""The properties of a bare message before its id, and behind it."""


class PublishCopy(Publish):
    """One of the two copies of a message that goes to two brokers; both have the very same bytes.

    shape: of a bare message that does not travel in a batch; its time stamp is that of the call. alone: it
    travels in no batch. twin, place: as in `Item`.
    """

    __slots__ = ("alone", "place", "shape", "twin")

    def __init__(
        self,
        message_id: str,
        target: Target,
        body: bytes,
        properties: bytes | None,
        shape: Shape | None,
        deadline_ms: int,
        alone: bool,
    ) -> None:
        # Written out, as in `Publish`.
        self.message_id = message_id
        self.destination = target.destination
        self.size = len(body)
        self.count = 1
        self.deadline_ms = deadline_ms
        self.attempts = 0
        self.end = None
        self.target = target
        self.body = body
        self.properties = properties
        self.sent = NEVER_SENT
        self.waiter = None
        self.settled_ns = 0
        self.shape = shape
        self.alone = alone
        self.place = ""
        self.twin: PublishCopy | None = None


class Bundle(Publish):
    """Plain bodies that were given together: one batch, one end, an id for each.

    No object for each message: 0.3 us of client CPU instead of 2.
    """

    __slots__ = ("bodies", "ids", "parts")

    def __init__(
        self,
        ids: list[str],
        bodies: list[bytes],
        size: int,
        target: Target,
        deadline_ms: int,
        waiter: Many,
    ) -> None:
        super().__init__(ids[0], target, b"", None, deadline_ms, waiter)
        self.ids, self.bodies = ids, bodies
        self.count, self.size = len(ids), size
        self.parts: Many | None = None

    def taken_apart(self) -> list[Item]:
        """Let each body be a publish of its own. This one ends when all of them have ended."""
        self.parts = Many(self)
        for message_id, body in zip(self.ids, self.bodies, strict=True):
            part = Publish(message_id, self.target, body, None, self.deadline_ms, self.parts)
            part.attempts = self.attempts
            self.parts.add(part)
        self.parts.all_added()
        return cast(list[Item], self.parts.publishes)

    def done(self) -> bool:
        return self.end is not None

    def set_result(self, _all_ended: None) -> None:
        """End this one, as the waiter of its parts."""
        assert self.parts is not None
        ends = [cast(Publish, part).end for part in self.parts.publishes]
        self.end = next((end for end in ends if end is not END_CONFIRMED), END_CONFIRMED)
        tell((self,), time.monotonic_ns())

    def all_published(self) -> list[Published]:
        """Return one end for each message, in order."""
        if self.parts is not None:
            return self.parts.results()
        fields = zip(self.ids, *map(itertools.repeat, self.published()[1:]), strict=False)
        return list(map(_new, itertools.repeat(Published), fields))


def encode_publish(target: Target, message: Message, message_id: str, *, alone: bool) -> bytes:
    """Return the properties of a message, or its entry's in a batch."""
    if alone:
        if target.address.exchange.startswith(STEP_PREFIX) and message.ttl_s is not None:
            message = due_first(message)
        return encode(message, message_id, int(time.time()), persistent=target.confirms)
    return encode_entry(message, message_id)


def tell(settled: Sequence[Ended], settled_ns: int) -> None:
    """Give each settled publish's end to its waiter, once, whatever another waiter raises. On the loop."""
    left = iter(settled)
    while True:
        try:
            for publish in left:
                publish.settled_ns = settled_ns
                waiter, publish.waiter = publish.waiter, None
                if waiter is None:
                    continue
                if isinstance(waiter, Many):
                    waiter.unsettled -= 1
                    if not waiter.unsettled:
                        waiter.finish()
                elif not waiter.done():
                    waiter.set_result(publish.published())
            return
        except BaseException as fault:  # of a hook: raised in a turn of its own
            raise_soon(fault)


class Ended(Protocol):
    """A publish that has ended, on one broker or on two."""

    settled_ns: int
    waiter: Waiter | Many | None

    def published(self) -> Published: ...


class Many:
    """The one waiter of many publishes: `finished` gets a result when the last of them is settled.

    Their ends are made afterwards, together: half as many objects live at once.
    """

    def __init__(self, finished: Waiter) -> None:
        self._finished = finished
        self.publishes: list[Ended] = []
        self.unsettled = 1
        """Number of open publishes, plus one until `all_added`. `tell` counts it down."""

    def add(self, publish: Ended) -> None:
        """Add a publish made in this turn of the loop with this as its waiter."""
        self.publishes.append(publish)
        self.unsettled += 1

    def extend(self, publishes: Sequence[Ended]) -> None:
        """Add several, as `add`."""
        self.publishes += publishes
        self.unsettled += len(publishes)

    def all_added(self) -> None:
        """End the adding of publishes."""
        self.unsettled -= 1
        if not self.unsettled:
            self.finish()

    def finish(self) -> None:
        if not self._finished.done():
            self._finished.set_result(None)

    def results(self) -> list[Published]:
        """Return the ends in the order in which the publishes were added."""
        ends: list[Published] = []
        for publish in self.publishes:
            if type(publish) is Bundle:
                ends += publish.all_published()
            else:
                ends.append(publish.published())
        return ends


def message_ids() -> Iterator[str]:
    """Return an iterator over ids of 32 hex digits: ten random bytes of its own, six bytes of a counter.

    For one thread: there is a generator in it, which cannot be entered by two.
    The last three digits come from a table, which all share: 0.04 us an id instead of 0.28 for formatting a
    number.
    """
    prefix, last = secrets.token_hex(10), _last_digits()
    blocks = (map(f"{prefix}{number:09x}".__add__, last) for number in itertools.count())
    return itertools.chain.from_iterable(blocks)


@functools.cache
def _last_digits() -> tuple[str, ...]:
    return tuple(f"{number:03x}" for number in range(16**3))

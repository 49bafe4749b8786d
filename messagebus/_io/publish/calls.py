"""Calls of a publisher, checked before anything is accepted: destination, payload, options, time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import cast

from messagebus._io.publish.targets import Target, Targets
from messagebus.bodies import BINARY
from messagebus.core.redundancy import REQUIRED
from messagebus.destination import Destination, delay_step, parse_destination
from messagebus.errors import (
    BacklogFull,
    ConfigError,
    MessageInvalid,
    SpoolFull,
)
from messagebus.handling import WAIT_S_MAX
from messagebus.message import (
    BODY_BYTES_MAX,
    DELAYS,
    NONE_GIVEN,
    Given,
    Message,
    Options,
    Payload,
    check_seconds,
    given_options,
    is_bare,
    message_with,
)

# Some thousand years: beyond, milliseconds are no exact number. Each option has its own bound below.
SECONDS_MAX = 10**11
_ROUTING = {*DELAYS, "redundant"}
TWICE_GIVEN: Given = (*NONE_GIVEN[:-1], True)
"""The options of a call with redundant=True alone."""
Call = tuple[Target, bytes, Message | None]
"""One call of a publisher: target, body, and the message unless it is nothing but that body."""


def whole_timeout_ms(timeout_s: float) -> int:
    """Return a publish's timeout in ms. Raises ConfigError for an invalid one."""
    if not isinstance(timeout_s, int | float) or not 0 <= timeout_s < math.inf:
        raise ConfigError(f"timeout_s {timeout_s!r}: seconds, 0 or more")
    return int(min(timeout_s, WAIT_S_MAX) * 1000)


def no_room(size: int, timeout_ms: int, full: str, fault: str) -> BacklogFull:
    """Return the error of a publish that found no room.

    full: the limit that was hit. fault: why the spool took nothing either, or "".
    """
    told = f"no room for {size} bytes within {timeout_ms} ms: the limit is {full}"
    return SpoolFull(f"{told}; the spool takes nothing: {fault}") if fault else BacklogFull(told)


class Outgoing:
    """Reader of the calls of one publisher. Any thread may use it."""

    def __init__(
        self,
        redundant: Collection[str] = (),
        redundancy: str = REQUIRED,
        *,
        has_spool: bool = False,
    ) -> None:
        self._targets = Targets(redundant, redundancy, has_spool=has_spool)
        self._plain = self._targets.plain_known

    def partitioned(self, topic: str, partitions: int) -> None:
        """Note that a topic has partitions."""
        self._targets.partitioned(topic, partitions)

    def name_of(self, destination: Destination | str) -> str:
        """Return the name that hooks get: ``orders``, ``queue:jobs``. Raises NameInvalid."""
        return str(parse_destination(destination) if isinstance(destination, str) else destination)

    def read(self, destination: Destination | str, payload: Payload, given: Given) -> Call:
        """Return the target, the body, and the message unless it is nothing but a body.

        Raises NameInvalid, MessageInvalid, or ConfigError for redundancy without confirms or beside a spool.
        """
        if type(payload) is bytes and (given is NONE_GIVEN or given == NONE_GIVEN):
            # The usual case: a Message costs 2 us.
            if len(payload) > BODY_BYTES_MAX:
                raise MessageInvalid(f"body of {len(payload)} bytes: at most {BODY_BYTES_MAX}")
            if isinstance(destination, str):
                target = self._plain.get(destination) or self._targets.plain(destination)
                return target, payload, None
            return self._targets.of(destination, BINARY), payload, None
        is_bytes = type(payload) is bytes and len(payload) <= BODY_BYTES_MAX
        if is_bytes and given == TWICE_GIVEN and isinstance(destination, str):
            return self._targets.twice(destination), cast(bytes, payload), None
        options = given_options(given)
        message = message_with(payload, options)
        call = message.body, None if is_bare(message) else message
        if isinstance(destination, str):
            if _ROUTING.isdisjoint(options):
                kind = message.content_type
                key = destination if kind == BINARY else (destination, kind)
                return self._plain.get(key) or self._targets.plain(destination, kind), *call
            destination = parse_destination(destination)
        delay_ms = _delay_ms(options)
        delay = delay_step(delay_ms) if delay_ms > 0 else None
        redundant = options.get("redundant")
        return self._targets.of(destination, message.content_type, delay, redundant), *call


def _delay_ms(options: Options) -> int:
    """Return the delay in ms; 0 means at once."""
    if all(name in options for name in DELAYS):
        raise MessageInvalid("deliver_after_s and deliver_at: only one of them")
    if "deliver_after_s" in options:
        return _whole_ms("deliver_after_s", options["deliver_after_s"])
    at = options.get("deliver_at")
    if at is None:
        return 0
    if isinstance(at, datetime):
        if at.tzinfo is None:
            raise MessageInvalid("deliver_at without a time zone: datetime.now(UTC) has one")
        at = at.timestamp()
    return _whole_ms("deliver_at", max(0, _finite("deliver_at", at) - time.time()))


def _finite(name: str, at: object) -> float:
    """Return a time in seconds. Raises MessageInvalid for what is none."""
    if isinstance(at, bool) or not isinstance(at, int | float) or not -math.inf < at < math.inf:
        raise MessageInvalid(f"{name} {at!r}: a time in seconds since 1970, or a datetime")
    return at


def _whole_ms(name: str, seconds: object) -> int:
    """Return whole ms, rounded up. Raises MessageInvalid unless it is a number of seconds."""
    return -int(-check_seconds(name, seconds, SECONDS_MAX) * 1000 // 1)


def checked_payloads(payloads: Iterable[Payload]) -> Iterable[Payload]:
    """Return the payloads of one call. Raises MessageInvalid for one payload, which would go in pieces."""
    if isinstance(payloads, str | bytes | bytearray | memoryview | Mapping | Message):
        raise MessageInvalid(
            f"payloads is {type(payloads).__name__}: a list of payloads wanted; send_safe takes one"
        )
    return payloads

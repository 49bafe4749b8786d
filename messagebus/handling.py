"""Answers of a handler to a delivery, and the policy for failures: values, no I/O.

A delivery is acked when its handler returns. A handler returns or raises `RetryLater`, `Park` or `Reject`
to give another answer; any other exception is a failed run, and a `RetryPolicy` says what follows.
"""

from __future__ import annotations

import asyncio
import math
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal
from urllib.parse import quote

from messagebus.checks import range_faults
from messagebus.clock import wall_ms, whole_ms
from messagebus.core.attempts import Action, Drop, End, ParkKey, ParkNow, Rule, StopKey
from messagebus.destination import DELAY_STEPS_MS
from messagebus.errors import ConfigError, text_of
from messagebus.message import ATTEMPT_HEADER, FIRST_HEADER, Delivery, Header

__all__ = [
    "TEXT_BYTES_MAX",
    "Park",
    "Reject",
    "RetryLater",
    "RetryPolicy",
    "Words",
    "checked_after",
    "checked_grace",
    "checked_wait",
    "judge",
    "park_headers",
    "retry_headers",
    "rule_of",
]

# Bound of a reason or exception in a header or log line; a header must fit a frame with all others.
TEXT_BYTES_MAX = 1024
# Length of a text that is searched for passwords: an exception may hold 10 MB.
READ_CHARS_MAX = 4 * TEXT_BYTES_MAX
FRAMES_MAX = 3
ATTEMPTS_MAX = 1000
FACTOR_MAX = 100.0
DELAY_S_MAX = DELAY_STEPS_MS[-1] / 1000
# Longest rest of a delivery in its place: its key waits, and its broker's prefetch has one less.
PLACE_DELAY_S_MAX = 60.0
# Longest wait of a `receive` with a bound; some 30 years.
WAIT_S_MAX = 1e9
HIDDEN = "***"


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retry policy: what happens to a delivery whose handler failed.

    attempts_max: the largest number of runs, including the first; 1 to 1,000.
    first_delay_s: seconds before the second run. Each further delay is `factor` times longer, up to
    delay_max_s. Delays are rounded up to a step of the delay ladder (1, 2, 5, 10, 20, 30 s, ... 7 days).
    jitter: share by which a delay is varied at random, up or down, before it is rounded.
    retry_on: exceptions that lead to another run. give_up_on: exceptions that do not, even if they are in
    retry_on.
    then: what happens after the last failed run. "park": the message moves to the parking queue; "drop": it
        is deleted. If order is kept, also "park-key": later messages of its key are parked, too, until they
        are redriven; "stop": no more messages of its key are handed out, and the worker is not ready.
    where: "ladder": a copy waits in the delay ladder, and other messages overtake it; "place": the message
        waits in the consumer, at most 60 s, and later ones of its key wait behind it. None: "place" if order
        is kept, otherwise "ladder".
    """

    attempts_max: int = 5
    first_delay_s: float = 1.0
    delay_max_s: float = 3600.0
    factor: float = 2.0
    jitter: float = 0.2
    retry_on: tuple[type[BaseException], ...] = (Exception,)
    give_up_on: tuple[type[BaseException], ...] = ()
    then: Literal["park", "drop", "park-key", "stop"] = "park"
    where: Literal["ladder", "place"] | None = None

    def __post_init__(self) -> None:
        faults = [
            *range_faults(
                self,
                attempts_max=(1, ATTEMPTS_MAX),
                first_delay_s=(0, DELAY_S_MAX),
                delay_max_s=(0, DELAY_S_MAX),
                factor=(1, FACTOR_MAX),
                jitter=(0.0, 1.0),
            ),
            *_exception_faults(self, "retry_on"),
            *_exception_faults(self, "give_up_on"),
        ]
        if self.then not in tuple(_THEN):  # it may be anything, also what has no hash
            faults.append(f"then {self.then!r}: {', '.join(map(repr, _THEN))}")
        if self.where not in (None, "ladder", "place"):
            faults.append(f"where {self.where!r}: 'ladder', 'place' or None")
        if faults:
            raise ConfigError(f"RetryPolicy: {'; '.join(faults)}")


_THEN: dict[str, Action] = {
    "park": ParkNow(),
    "drop": Drop(),
    "park-key": ParkKey(),
    "stop": StopKey(),
}


def _exception_faults(policy: RetryPolicy, key: str) -> list[str]:
    kinds: object = getattr(policy, key)
    if isinstance(kinds, tuple) and all(
        isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds
    ):
        return []
    return [f"{key} {kinds!r}: a tuple of exception classes"]


class RetryLater(Exception):
    """Raised or returned by a handler to have this delivery handled again.

    after_s: the delay in seconds, rounded up to a step of the delay ladder; None: the delay of the policy.
    reason: stored with the message. The run counts as an attempt: after the last one `then` of the policy
    applies.
    """

    def __init__(self, after_s: float | None = None, reason: str = "") -> None:
        if after_s is not None:
            checked_after(after_s)
        super().__init__(reason or "the handler asks for another run")
        self.after_s = after_s
        self.reason = reason


class Park(Exception):
    """Raised or returned by a handler to move this delivery to the parking queue at once."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Reject(Exception):
    """Raised or returned by a handler to have no further run; `then` of the retry policy applies."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def checked_after(after_s: float, *, order: str = "none") -> int:
    """Return the delay in ms. Raises ConfigError when it is negative or longer than the longest one.

    order: what its consumer keeps; where it is not "none" the longest one is that in place.
    """
    if not isinstance(after_s, int | float) or not 0 <= after_s <= DELAY_S_MAX:
        raise ConfigError(f"after_s {after_s!r}: 0 to {DELAY_S_MAX:,.0f}")
    if order != "none" and after_s > PLACE_DELAY_S_MAX:
        raise ConfigError(
            f"after_s {after_s!r}: at most {PLACE_DELAY_S_MAX:g} with order={order!r}, because its key"
            " waits; publish a new message with deliver_after_s, or park this one and redrive it"
        )
    return whole_ms(after_s)


def checked_wait(timeout_s: float | None) -> float | None:
    """Return the time in s that a `receive` waits; None for no bound, and 0 for a negative one.

    Raises ConfigError for what is no number of seconds.
    """
    if timeout_s is None:
        return None
    if timeout_s == math.inf:
        raise ConfigError(f"timeout_s {timeout_s!r}: seconds, or None to wait without a bound")
    return checked_grace(timeout_s)


def checked_grace(seconds: float, name: str = "timeout_s") -> float:
    """Return the time in s to wait for an end: 0 for a negative one, WAIT_S_MAX for an infinite one.

    Raises ConfigError for a value that is not a number of seconds.
    """
    if not isinstance(seconds, int | float) or seconds != seconds:  # a NaN; an int may be no float
        raise ConfigError(f"{name} {seconds!r}: a number of seconds")
    return max(0.0, min(seconds, WAIT_S_MAX))


def checked_most(count: int, name: str = "count_max") -> int:
    """Return how many are meant, 0 for none. Raises ConfigError for a negative number, or no whole one."""
    if type(count) is not int or count < 0:
        raise ConfigError(f"{name} {count!r}: a whole number, 0 or more")
    return count


def rule_of(policy: RetryPolicy) -> Rule:
    """Return the policy as the rule of `core.attempts`."""
    return Rule(
        attempts_max=policy.attempts_max,
        first_ms=whole_ms(policy.first_delay_s),
        max_ms=whole_ms(policy.delay_max_s),
        factor=policy.factor,
        jitter=policy.jitter,
        then=_THEN[policy.then],
        limit_ms=DELAY_STEPS_MS[-1],
    )


def judge(policy: RetryPolicy, error: BaseException) -> tuple[End, int | None]:
    """Return how the run that raised this error ended, and the delay in ms that its handler asked for."""
    match error:
        case RetryLater():
            return End.LATER, _requested_ms(error)
        case Park():
            return End.PARK, None
        case Reject():
            return End.REJECT, None
        case _ if isinstance(error, policy.give_up_on):
            return End.FAILED_FOR_GOOD, None
        case BaseExceptionGroup() if not isinstance(error, policy.give_up_on):
            ends = {judge(policy, each)[0] for each in _leaves(error)}
            return End.FAILED if ends == {End.FAILED} else End.FAILED_FOR_GOOD, None
        # The task, or the one it waited for, was cancelled by other code: not the message's fault.
        case asyncio.CancelledError():
            return End.FAILED, None
        case _ if isinstance(error, policy.retry_on):
            return End.FAILED, None
        case _:
            return End.FAILED_FOR_GOOD, None


def _requested_ms(error: RetryLater) -> int | None:
    """Return the delay in ms that the handler asked for; None for the policy's delay.

    It is also None for a subclass that never called `RetryLater.__init__`, or whose after_s is not valid.
    """
    after_s = getattr(error, "after_s", None)
    try:
        return None if after_s is None else checked_after(after_s)
    except (ConfigError, TypeError):
        return None


def single(error: BaseException) -> BaseException:
    """Return the exception of a group that decides what follows; the error itself if it is no group.

    A TaskGroup raises such groups. The one that asks for the fewest further runs decides: Park,
    Reject, RetryLater; else the only one in the group, or the group itself.
    """
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = list(_leaves(error))
    for kind in (Park, Reject, RetryLater):
        if found := next((leaf for leaf in leaves if isinstance(leaf, kind)), None):
            return found
    return leaves[0] if len(leaves) == 1 else error


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error


class Words:
    """Formatter of exceptions and reasons as short texts without these passwords.

    secrets: the current ones; hidden both plain and as quoted in an address.
    """

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        plain = [secret for secret in secrets if secret]
        found = {*plain, *(quote(secret, safe="") for secret in plain)}
        # The longest first: one may be a part of another.
        self._secrets = sorted(found, key=len, reverse=True)

    def short(self, text: str) -> str:
        """Return the text without passwords, at most TEXT_BYTES_MAX bytes of UTF-8."""
        longest = max(map(len, self._secrets), default=0)
        read = text[: READ_CHARS_MAX + longest]
        for secret in self._secrets:
            read = read.replace(secret, HIDDEN)
        is_cut = len(text) > READ_CHARS_MAX + longest
        if is_cut:
            read = read[: max(0, len(read) - longest)]  # the rest of a password that was cut in two
        raw = read.encode("utf-8", "replace")
        if len(raw) <= TEXT_BYTES_MAX and not is_cut:
            return raw.decode()
        return raw[: TEXT_BYTES_MAX - 3].decode("utf-8", "ignore") + "..."

    def of(self, error: BaseException) -> str:
        """Return type and text of an exception, also where its text cannot be had."""
        name, text = type(error).__name__, text_of(error)
        return self.short(f"{name}: {text}" if text else name)

    def text(self, error: BaseException) -> str:
        """Return the text of an exception without its type."""
        return self.short(text_of(error))

    def where(self, error: BaseException) -> str:
        """Return the last places that it came through, outermost first: ``file.py:12 function``."""
        try:
            frames = traceback.extract_tb(error.__traceback__, limit=-FRAMES_MAX)
        except Exception:  # a source file that is gone, or no file at all
            return ""
        found = [f"{_file(each.filename)}:{each.lineno} {each.name}" for each in frames]
        return self.short(" > ".join(found))


def _file(path: str) -> str:
    return path.rpartition("/")[2]


def retry_headers(delivery: Delivery, attempt: int | None, reason: str) -> dict[str, Header]:
    """Return the headers of the copy for run number `attempt`, None for the next. reason: as of `Words`."""
    return {
        ATTEMPT_HEADER: delivery.attempt + 1 if attempt is None else attempt,
        FIRST_HEADER: delivery.first_ms,
        "mb-retry-reason": reason,
    }


def park_headers(delivery: Delivery, reason: str, exception: str) -> dict[str, Header]:
    """Return the headers of a parked copy. reason, exception: short, see `Words`."""
    return {
        "mb-park-reason": reason,
        "mb-park-exception": exception,
        "mb-park-attempts": delivery.attempt,
        "mb-park-first-ms": delivery.first_ms,
        "mb-park-ms": wall_ms(),
        "mb-park-broker": delivery.broker,
    }

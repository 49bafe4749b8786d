"""One handler of one consumer: its runs, the answers to their deliveries, and their log lines.

`core.attempts` decides; this module turns its decisions into answers, headers of copies, counts and log
lines. `_io.consume.run_in_threads` and `_io.consume.run_on_loop` call the handlers. Thread-safe.
"""

# One run, begun by `run_on_loop` or `run_in_threads`, which call `returned` or `failed` at its end:
#
#   started ─┬─▶ returned ─▶ ack, or the answers that the handler gave
#            ├─▶ failed ─▶ `core.attempts` decides ─▶ retry, park, reject or drop, once for each delivery
#            └─▶ its time is over: `tick` answers as for a failure ─▶ ended_late, whenever it ends
#
# Owners: `Runs` knows what runs and until when; `Answering` (the consumer's driver) carries answers out,
# and drops those of lost links; `Handling` has the counts and the log's bounds. Any thread may call it:
# `_lock` guards counts and lines.

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import random
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import Context, ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from messagebus._io.hooks import HookChain
from messagebus.checks import raise_faults
from messagebus.clock import whole_ms
from messagebus.config import BusConfig, ConsumerConfig
from messagebus.core.attempts import (
    Ack,
    Action,
    Drop,
    End,
    ParkKey,
    ParkNow,
    Retry,
    Run,
    Runs,
    StopKey,
    decide,
)
from messagebus.destination import delay_step
from messagebus.errors import AlreadySettled, ConfigError
from messagebus.handling import (
    PLACE_DELAY_S_MAX,
    Park,
    Reject,
    RetryLater,
    RetryPolicy,
    Words,
    checked_after,
    judge,
    park_headers,
    retry_headers,
    rule_of,
    single,
)
from messagebus.message import Delivery, Header
from messagebus.terminal import printable

log = logging.getLogger("messagebus.consumer")

# A handler that fails for every message must not fill a disk: further lines in this time are only counted.
LINES_MAX, LINES_S = 100, 10.0
# Bound of runs that go on after their time; each holds a thread or a task.
OVERRUNNING_MAX = 100
TICK_S, TICK_MIN_S = 0.5, 0.01
# Share of the brokers' consumer timeout after which a run is logged.
NEAR_SHARE = 0.8
# Header of a copy in the parking queue: what follows with its key is parked, too.
PARK_KEY = "mb-park-key"
# Delay of a retry that never comes: the key of its delivery is stopped.
STOP_MS = -1

_handled_by: ContextVar[object] = ContextVar("messagebus_handled_by", default=None)


def run_context(consumer: object) -> Context:
    """Make the context that the runs of this consumer's handlers copy: empty but for the consumer.

    It is not the context of `run`'s caller: a span around it would be the parent of every message's.
    """
    made = Context()
    made.run(_handled_by.set, consumer)
    return made


def handled_by() -> object:
    """Return the consumer whose handler runs here, in this task or thread or its children; None for none."""
    return _handled_by.get()


class Batch(list[Delivery]):
    """The deliveries of one run of a batch handler, one or more, in the order of their arrival.

    payloads: the payload read from each; empty without a reader.
    """

    def __init__(self, deliveries: Iterable[Delivery] = ()) -> None:
        super().__init__(deliveries)
        self.payloads: list[Any] = []

    @property
    def message_id(self) -> str:
        """A name of the batch for people."""
        return f"{self[0].message_id} and {len(self) - 1} more"

    @property
    def received_ns(self) -> int:
        """The earliest arrival of its deliveries."""
        return min(delivery.received_ns for delivery in self)


Job = Delivery | Batch
"""The input of one run."""


@dataclass(frozen=True, slots=True)
class BatchHandler:
    """A handler function of batches whose payloads are read before. read: raises the answer to a misfit."""

    function: Callable[[Batch], object]
    read: Callable[[Delivery], Any] | None


def deliveries_of(job: Job) -> list[Delivery]:
    return job if isinstance(job, Batch) else [job]


class Answering(Protocol):
    """The answers to a consumer's deliveries; none of these waits. False: it is stale."""

    @property
    def ack(self) -> Callable[[Delivery], bool]: ...

    @property
    def retry(self) -> Callable[[Delivery, int, Mapping[str, Header]], bool]: ...

    @property
    def park(self) -> Callable[[Delivery, Mapping[str, Header]], bool]: ...


@dataclass(frozen=True, slots=True)
class Answers:
    """An `Answering` made of a consumer's functions."""

    ack: Callable[[Delivery], bool]
    retry: Callable[[Delivery, int, Mapping[str, Header]], bool]
    park: Callable[[Delivery, Mapping[str, Header]], bool]


class LateRuns(Protocol):
    """The receivers of reports on runs that take too long: a consumer's claims and lanes."""

    def overran(self, deliveries: list[Delivery]) -> None:
        """Keep the claims of a run that goes on: its answer follows. On the loop."""

    def ended_late(self, deliveries: list[Delivery], *, well: bool) -> None:
        """Give back the claims of a run that overran and has ended; well: they are done. On any thread."""


@dataclass(frozen=True, slots=True)
class LateRunsByPost:
    """`LateRuns` for runs in threads. post: has a function called on the loop."""

    claims: LateRuns
    post: Callable[[Callable[[], None]], object]

    def overran(self, deliveries: list[Delivery]) -> None:
        self.claims.overran(deliveries)

    def ended_late(self, deliveries: list[Delivery], *, well: bool) -> None:
        self.post(lambda: self.claims.ended_late(deliveries, well=well))


def words_of(bus: BusConfig) -> Words:
    """Return words without the current password of the bus."""
    try:
        secrets = {bus.password.reveal(), bus.current_password().reveal()}
    except ConfigError:
        secrets = {bus.password.reveal()}
    return Words(secrets)


def reason_text(bus: BusConfig, reason: str, error: BaseException | None) -> str:
    """Return the reason of a retry as its copy has it: short, without the current password of the bus.

    "" for neither: no password file is read then.
    """
    if not reason and error is None:
        return ""
    words = words_of(bus)
    return words.short(reason) if error is None or reason else words.of(error)


def is_coroutine_handler(handler: Callable[..., object]) -> bool:
    """Return whether a call of it gives an awaitable; also of an object with such a ``__call__``."""
    return inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(
        getattr(handler, "__call__", None)  # noqa: B004 - its kind is asked for, not whether it is there
    )


def _name_of(handler: Callable[..., object]) -> str:
    return str(getattr(handler, "__qualname__", None) or type(handler).__qualname__)


@dataclass(slots=True)
class _Counts:
    failed: int = 0
    dropped: int = 0


class Handling:
    """The runs of one handler.

    words: makes the object that hides the current passwords in texts. answers_first: at most once, so that a
    failed run can be answered no more. consumer_timeout_s: the brokers'. on_overran: called when a run's time
    is over and its delivery has its answer. order: what is kept by the consumer.
    """

    def __init__(
        self,
        handler: Callable[[Any], object],
        answering: Answering,
        *,
        policy: RetryPolicy | None,
        time_limit_s: float | None,
        chain: HookChain | None,
        words: Callable[[], Words],
        answers_first: bool,
        consumer_timeout_s: int,
        order: str = "none",
    ) -> None:
        self.handler, self.name = handler, _name_of(handler)
        self.answering, self.chain = answering, chain
        self.around: Callable[[Any], AbstractContextManager[None]] | None
        """Entered around each run with its job; None for no hooks."""
        self.around = None if chain is None else chain.handling
        self.on_overran: Callable[[Run[Job]], None] = lambda _run: None
        self.claims: LateRuns | None = None
        """Set where deliveries are deduplicated; see `tick` and `ended_late`."""
        raise_faults(retry_faults(policy, answers_first, order))
        self._policy = policy or RetryPolicy()
        self._rule, self._order = rule_of(self._policy), order
        if order != "none":
            self._rule = self._rule._replace(limit_ms=whole_ms(PLACE_DELAY_S_MAX))
        checked_limit(time_limit_s)
        self._words, self._answers_first = words, answers_first
        self.limit_ns = None if time_limit_s is None else round(time_limit_s * 1e9)
        self.runs: Runs[Job] = Runs(self.limit_ns)
        self.counts = _Counts()
        self._near_ns = round(consumer_timeout_s * 1e9 * NEAR_SHARE)
        self._near: set[Run[Job]] = set()
        self._lock = threading.Lock()
        self._lines = 0
        self._lines_since_s = 0.0

    # The end of a run.
    def ended_late(self, run: Run[Job], *, well: bool) -> None:
        """Note the end of a run that was answered when its time was over. well: it did its work."""
        if self.claims is not None:
            self.claims.ended_late(deliveries_of(run.item), well=well)

    def returned(self, job: Job, result: object) -> None:
        """Answer for a run that ended well with this result."""
        try:
            if result is None:
                self._acked(job)
            elif isinstance(result, RetryLater | Park | Reject):
                self.failed(job, result)
            elif mistake := _mistake(result):
                self.failed(job, TypeError(mistake))
            elif not (isinstance(job, Batch) and isinstance(result, Mapping)):
                self._acked(job)
            elif strange := set(result) - set(job):
                # An ack would lose the meaning of these answers.
                kind = type(next(iter(strange))).__name__
                self.failed(
                    job, TypeError(f"answers of {kind}: a mapping of its deliveries wanted")
                )
            else:
                for delivery in job:
                    end = result.get(delivery)
                    if isinstance(end, BaseException):
                        self._failed(delivery, end)
                    elif end is not None and (mistake := _mistake(end)):
                        self._failed(delivery, TypeError(mistake))
                    else:
                        self.acked(delivery)
        except Exception as fault:  # of an object that cannot be inspected, as an unbound proxy
            self.failed(job, fault)

    def _acked(self, job: Job) -> None:
        for delivery in (job,) if isinstance(job, Delivery) else job:
            self.acked(delivery)

    def acked(self, delivery: Delivery) -> None:
        """Ack the delivery of a run that ended well without another answer."""
        try:
            live = self.answering.ack(delivery)
        except AlreadySettled:  # by the handler itself
            live = True
        if self.chain is not None:
            # A live link took no ack: the handler itself answered.
            answered = live or delivery._ledger.is_live
            self.chain.handled(delivery, "ack" if answered else "stale", None)

    def failed(self, job: Job, error: BaseException) -> None:
        """Answer for a run that ended by this exception, or returned it. Never raises for any exception."""
        for delivery in deliveries_of(job):
            self._failed(delivery, error)

    def _failed(self, delivery: Delivery, error: BaseException) -> None:
        try:
            self._judged(delivery, error)
        except Exception as fault:  # of the exception itself: its attributes, its text, its class
            log.error(
                "run cannot be judged handler=%s source=%s message=%s answer=park error=%s fault=%s",
                self.name,
                delivery.source,
                printable(delivery.message_id),
                type(error).__name__,
                type(fault).__name__,
            )
            self._park_unjudged(delivery, error)

    def _park_unjudged(self, delivery: Delivery, error: BaseException) -> None:
        name = type(error).__name__
        try:
            with suppress(AlreadySettled):  # by the handler itself, or before the judging failed
                if self._answers_first:
                    live, answer = self.answering.ack(delivery), "drop"
                else:
                    headers = park_headers(delivery, f"cannot be judged: {name}", name)
                    live, answer = self.answering.park(delivery, headers), "park"
                if self.chain is not None:
                    self.chain.handled(delivery, answer if live else "stale", error)
        except Exception:
            log.exception("delivery without an answer message=%s", printable(delivery.message_id))

    def _judged(self, delivery: Delivery, error: BaseException) -> None:
        error = single(error)
        end, after_ms = judge(self._policy, error)
        if after_ms is not None and after_ms > self._rule.limit_ms:
            error, after_ms = self._too_long(after_ms, error), None
        share = random.random()
        action = decide(self._rule, delivery.attempt, end, after_ms=after_ms, share=share)
        if self._answers_first:
            action = Drop()
        try:
            live, answer = self._answer(delivery, action, end, error)
        except AlreadySettled:  # by the handler itself, before it failed
            live, answer = True, "ack"
        with self._lock:
            self.counts.failed += end not in (End.LATER, End.PARK, End.REJECT)
            self.counts.dropped += answer == "drop"
        if self.chain is not None:
            asked = isinstance(error, RetryLater | Park | Reject)
            self.chain.handled(delivery, answer if live else "stale", None if asked else error)

    def _too_long(self, after_ms: int, error: BaseException) -> BaseException:
        """Return the fault of a handler that asked for a delay which its order does not allow."""
        try:
            checked_after(after_ms / 1000, order=self._order)
        except ConfigError as fault:
            return fault.with_traceback(error.__traceback__)
        return error

    def _answer(
        self, delivery: Delivery, action: Action, end: End, error: BaseException
    ) -> tuple[bool, str]:
        words = self._words()
        text = words.of(error)
        match action:
            case Retry(attempt, delay_ms):
                reason = words.text(error) if end is End.LATER else text
                in_place = self._order != "none"
                delay_s = f"{delay_ms / 1000:g}" if in_place else _seconds(delay_ms)
                self._tell(delivery, f"retry delay_s={delay_s}", words, error)
                headers = retry_headers(delivery, attempt, reason)
                return self.answering.retry(delivery, delay_ms, headers), "retry"
            case StopKey():
                self._tell(delivery, "stop", words, error)
                headers = retry_headers(delivery, delivery.attempt, text)
                return self.answering.retry(delivery, STOP_MS, headers), "stop"
            case ParkNow() | ParkKey():
                self._tell(delivery, "park", words, error)
                headers = park_headers(delivery, self._why(delivery, end, text, words, error), text)
                if isinstance(action, ParkKey):
                    headers[PARK_KEY] = True
                return self.answering.park(delivery, headers), "park"
            case Drop() | Ack():
                self._tell(delivery, "drop", words, error)
                return self.answering.ack(delivery), "drop"

    def _why(
        self, delivery: Delivery, end: End, text: str, words: Words, error: BaseException
    ) -> str:
        """Return why there is no further run."""
        match end:
            case End.PARK | End.REJECT:
                return words.text(error)
            case End.FAILED_FOR_GOOD:
                return f"failed for good: {type(error).__name__}"
            case _:
                return f"{delivery.attempt} of {self._rule.attempts_max} attempts failed"

    def _tell(self, delivery: Delivery, answer: str, words: Words, error: BaseException) -> None:
        """Log one line for a run that did not end well, without traceback: an exception may be 10 MB."""
        level = logging.INFO if isinstance(error, RetryLater) else logging.WARNING
        if not log.isEnabledFor(level) or not self._may_tell():
            return
        event = "run ended" if isinstance(error, RetryLater | Park | Reject) else "run failed"
        log.log(
            level,
            event
            + " handler=%s source=%s broker=%s message=%s attempt=%d answer=%s error=%r at=%r",
            self.name,
            delivery.source,
            delivery.broker,
            printable(delivery.message_id),
            delivery.attempt,
            answer,
            words.of(error),
            words.where(error),
        )
        if log.isEnabledFor(logging.DEBUG) and error.__traceback__ is not None:
            trace = words.short("".join(traceback.format_tb(error.__traceback__, -5)))
            log.debug("run failed message=%s traceback:\n%s", printable(delivery.message_id), trace)

    def _may_tell(self) -> bool:
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._lines_since_s > LINES_S:
                untold, self._lines, self._lines_since_s = self._lines - LINES_MAX, 0, now_s
                if untold > 0:
                    log.warning("handler failed handler=%s suppressed=%d", self.name, untold)
            self._lines += 1
            return self._lines <= LINES_MAX

    # Time.
    def tick(self, now_ns: int) -> None:
        """Answer for the runs whose time is over."""
        for run in self.runs.overdue(now_ns):
            if self.claims is not None:
                self.claims.overran(deliveries_of(run.item))
            self.failed(
                run.item,
                TimeoutError(f"ran longer than its limit of {(self.limit_ns or 0) / 1e9:g} s"),
            )
            self.on_overran(run)
        self._warn_near(now_ns)

    def _warn_near(self, now_ns: int) -> None:
        """Warn once for each run whose delivery the broker will soon take back."""
        near = {run for run in self.runs.open if now_ns - run.item.received_ns > self._near_ns}
        for run in near - self._near:
            log.warning(
                "run near the consumer timeout handler=%s message=%s owed_s=%.0f run_s=%.0f",
                self.name,
                printable(run.item.message_id),
                (now_ns - run.item.received_ns) / 1e9,
                (now_ns - run.since_ns) / 1e9,
            )
        self._near = near

    @property
    def tick_s(self) -> float:
        """The seconds between calls of `tick`."""
        if self.limit_ns is None:
            return TICK_S
        return min(TICK_S, max(TICK_MIN_S, self.limit_ns / 1e10))

    @property
    def may_replace(self) -> bool:
        """True when another thread or task may take the place of one that overran."""
        return self.runs.overran <= OVERRUNNING_MAX

    def left(self, what: str) -> int:
        """Log the runs that had not ended in time; return their number."""
        runs = self.runs.underway()
        if runs:
            oldest_s = self.runs.oldest_ns(time.monotonic_ns()) / 1e9
            message = printable(runs[0].item.message_id)
            log.warning(
                "stopped too early handler=%s %s=%d oldest_run_s=%.1f message=%s",
                self.name,
                what,
                len(runs),
                oldest_s,
                message,
            )
        return len(runs)

    def stats(self) -> dict[str, Any]:
        """Return the fields of `ConsumerStats` about handling."""
        return {
            "handling": len(self.runs.underway()),
            "oldest_run_s": self.runs.oldest_ns(time.monotonic_ns()) / 1e9,
            "overrunning": self.runs.overran,
            "failed": self.counts.failed,
            "dropped": self.counts.dropped,
        }


def _mistake(result: object) -> str:
    """Return the fault of a handler's result, where an ack would lose its meaning; "" for none."""
    if inspect.isgenerator(result) or inspect.isasyncgen(result):
        return "the handler returned a generator, of which nothing has run"
    if isinstance(result, type) and issubclass(result, RetryLater | Park | Reject):
        return f"the handler returned the class {result.__name__}: an object of it wanted"
    return ""


def checked_limit(time_limit_s: float | None) -> float | None:
    """Return the limit if it is valid. Raises ConfigError."""
    if time_limit_s is not None and not 0 < time_limit_s < math.inf:
        raise ConfigError(f"time_limit_s {time_limit_s!r}: seconds above 0, or None")
    return time_limit_s


def checked_count(name: str, count: int) -> int:
    """Return the count if it is valid. Raises ConfigError."""
    if type(count) is not int or not 1 <= count <= COUNT_MAX:
        raise ConfigError(f"{name} {count!r}: 1 to {COUNT_MAX:,}")
    return count


COUNT_MAX = 10_000


def retry_faults(retry: RetryPolicy | None, at_most_once: bool, order: str = "none") -> list[str]:
    """Return the faults of a retry policy where a delivery is answered before its run, or order is kept."""
    if retry is not None and (faults := _order_faults(retry, order)):
        return faults
    if not at_most_once or retry is None or (retry.attempts_max == 1 and retry.then == "drop"):
        return []
    return [
        "retry: with at_most_once a run that fails is the last, and nothing is parked; leave it out"
    ]


def _order_faults(retry: RetryPolicy, order: str) -> list[str]:
    if order == "none":
        asked = [f"where={retry.where!r}"] if retry.where == "place" else []
        asked += [f"then={retry.then!r}"] if retry.then in ("park-key", "stop") else []
        return [f"retry: {each} wants a consumer with order='key'" for each in asked]
    if retry.where == "ladder":
        return [f"retry: where='ladder' overtakes with order={order!r}; leave it out"]
    if retry.first_delay_s > PLACE_DELAY_S_MAX:
        told = f"first_delay_s {retry.first_delay_s!r}: at most {PLACE_DELAY_S_MAX:g}"
        return [f"retry: {told} with order={order!r}, because its key waits"]
    return []


def batch_faults(
    batch: object,
    linger_s: object,
    config: ConsumerConfig | None = None,
    *,
    order: str | None = None,
) -> list[str]:
    """Return the faults of a batch's size and its time. config: its consumer's. order: if not its own."""
    if batch is None:
        return [] if linger_s is None else [f"linger_s {linger_s!r}: of what? batch wanted"]
    faults = []
    if type(batch) is not int or not 1 <= batch <= BATCH_MAX:
        faults.append(f"batch {batch!r}: 1 to {BATCH_MAX:,}")
    elif (order or (config and config.order)) == "partition" and batch > 1:
        faults.append(
            f"batch {batch}: with order='partition' one message of a broker is out at a time;"
            " take order='key', or no batch"
        )
    elif config is not None:
        faults += [
            f"batch {batch}: {name} is {most}, so it never becomes full"
            for name in ("prefetch", "handed_out_max")
            if batch > (most := getattr(config, name))
        ]
    is_number = isinstance(linger_s, int | float) and not isinstance(linger_s, bool)
    if linger_s is not None and not (is_number and 0 <= linger_s <= LINGER_S_MAX):  # type: ignore[operator]
        faults.append(f"linger_s {linger_s!r}: 0 to {LINGER_S_MAX:g}")
    return faults


# The largest prefetch: all of a batch may lie on one broker.
BATCH_MAX = 2_000
LINGER_S, LINGER_S_MAX = 0.2, 60.0


def _seconds(delay_ms: int) -> str:
    """Return the actual delay in s: rounded up to a step."""
    return f"{delay_step(delay_ms).ms // 1000 if delay_ms > 0 else 0}"


class Ticking:
    """A timer that calls `Handling.tick` on a loop until `stop`; both methods on that loop."""

    def __init__(self, handling: Handling, also: Callable[[], None] = lambda: None) -> None:
        self._handling, self._also = handling, also
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def start(self) -> None:
        if self._stopped:
            return
        try:
            self._handling.tick(time.monotonic_ns())
            self._also()
        except Exception:  # go on with the next one: time limits must hold
            log.exception("time limits not looked after handler=%s", self._handling.name)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(self._handling.tick_s, self.start)

    def stop(self) -> None:
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

"""The conversation of one consumer with its store of deduplication: one turn at a time.

    begin ─▶ a turn is sent ─▶ answered ─┐
               ▲             └▶ away ────┤ orders are carried out
               └─────────────────────────┘ until there is no turn; then at `wake_ms`, by a timer

Owners: `core.turns` decides on each turn; `StoreTurns` reads the clock, calls the store, bounds its time, and
logs that it is away. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable

from messagebus._io.loop import Tasks
from messagebus._io.wire import TOO_LATE
from messagebus.clock import NS_PER_MS
from messagebus.core.claims import Turn, key_of
from messagebus.core.deliveries import Ledger
from messagebus.core.once import Orders
from messagebus.core.turns import Turns
from messagebus.core.waiting import NEVER_MS
from messagebus.errors import ConfigError, LinkError, StoreAway
from messagebus.message import SEGMENT_MARK, Delivery
from messagebus.stores import Dedup, keeps_outside

log = logging.getLogger("messagebus.consumer")

# Share of the newest call in the mean that is shown.
NEWEST_SHARE = 0.1
# One line for a store that is away, and another one each time that has passed.
AWAY_EVERY_S = 60.0
# For an application's store that does not close.
CLOSE_TIMEOUT_S = 2.0
# For the first answer of a store, which delays a start by so much while the store is away.
CHECK_TIMEOUT_S = 2.0
FINISH_EVERY_S = 0.005
FENCE_AGAIN_S = 0.5
# For a conversation that was cancelled, or failed.
BEGIN_AGAIN_S = 0.05


class StoreTurns:
    """The turns of one consumer's claims with its store.

    on_orders: carries out what an answer has ordered. on_back: called when the store is back after it was
    away; what waited for it may have been given back.
    """

    def __init__(
        self,
        dedup: Dedup,
        subscription: str,
        machine: Turns[Delivery],
        *,
        on_orders: Callable[[Orders[Delivery]], None],
        on_back: Callable[[], None],
    ) -> None:
        self._subscription, self.machine = subscription, machine
        self._on_orders, self._on_back = on_orders, on_back
        self._store = dedup.opened()
        self._owns_store = self._store is not dedup.store
        self._rule = dedup.rule
        self._timeout_s = dedup.store_timeout_s
        self.waits_when_away = dedup.on_store_away == "wait"
        """True when nothing is handed out while the store is away."""
        self.call_ms = 0.0
        """The mean time of a call; 0 before the first."""
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._is_talking = self._is_closed = False
        # Resolved when there is something to tell or ask; None while that is under way.
        self._idle: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wake_ms = NEVER_MS  # the time of the timer
        self.has_news = False
        """True when an end of a run is to be told: `begin` does so."""
        self._logged_s = 0.0

    def begin(self) -> None:
        """Tell and ask the store what there is, unless that is under way."""
        self.has_news = False
        if self._is_talking or self._is_closed:
            return
        self._is_talking = True
        if self._idle is None:
            self._tasks.spawn(self._talk())
        elif not self._idle.done():  # not cancelled by the application
            self._idle.set_result(None)

    async def _talk(self) -> None:
        """Carry out turns whenever there are some, in one task: a new one for each would cost more."""
        turns, claims = self.machine, self.machine.claims
        try:
            while True:
                now_ns = time.monotonic_ns()
                while (turn := turns.turn(now_ns // NS_PER_MS)) is not None:
                    began_ns = now_ns
                    try:
                        async with asyncio.timeout(self._timeout_s):
                            answer = await self._store.turn(turn, self._rule)
                        verdicts, kept = answer
                        if len(verdicts) != len(turn.claim) or len(kept) != len(turn.extend):
                            raise StoreAway("it did not answer what it was asked")
                    # Also of a store that an application has written.
                    except (Exception, asyncio.CancelledError) as fault:
                        now_ns = time.monotonic_ns()
                        turns.away(now_ns // NS_PER_MS)
                        if _is_cancelled(fault):
                            raise
                        self._log_away(fault)
                    else:
                        now_ns = time.monotonic_ns()
                        took_ms = (now_ns - began_ns) / NS_PER_MS
                        share = NEWEST_SHARE if self.call_ms else 1
                        self.call_ms += (took_ms - self.call_ms) * share
                        if self._logged_s:
                            self._log_back()
                        turns.answered(answer, now_ns // NS_PER_MS)
                    orders, claims.orders = claims.orders, None  # `take` inlined: a call less
                    if orders is not None:
                        self._on_orders(orders)
                if (wake_ms := turns.wake_ms()) is not None and wake_ms < self._wake_ms:
                    self._set_timer(wake_ms, now_ns // NS_PER_MS)
                self._is_talking, self._idle = False, self._loop.create_future()
                await self._idle
                self._idle = None
        finally:  # also when the application cancels all tasks of its loop
            self._is_talking, self._idle = False, None
            if not (self._is_closed or self._loop.is_closed()):
                self._loop.call_later(BEGIN_AGAIN_S, self.begin)

    def _set_timer(self, wake_ms: int, now_ms: int) -> None:
        """Begin at this time. An earlier timer is good, too: a turn without a need is none."""
        if self._timer is not None:
            self._timer.cancel()
        self._wake_ms = wake_ms
        self._timer = self._loop.call_later(max(0, wake_ms - now_ms) / 1000, self._wake)

    def _wake(self) -> None:
        self._timer, self._wake_ms = None, NEVER_MS
        self.begin()

    def _log_back(self) -> None:
        self._logged_s = 0.0
        log.warning("store is back subscription=%s", self._subscription)
        self._on_back()

    def _log_away(self, fault: BaseException) -> None:
        since_s = self._loop.time() - self._logged_s
        if self._logged_s and since_s < AWAY_EVERY_S:
            return
        self._logged_s = self._loop.time()
        is_away = isinstance(fault, StoreAway | TimeoutError)
        # The text of an error that is not ours may hold a password.
        is_ours = is_away or isinstance(fault, ConfigError)
        why = (str(fault) or TOO_LATE) if is_ours else type(fault).__name__
        log.log(
            logging.WARNING if is_away else logging.ERROR,
            "store is away subscription=%s reason=%r docs=%s: %s",
            self._subscription,
            why,
            ConfigError.docs if isinstance(fault, ConfigError) else StoreAway.docs,
            "nothing is handed out" if self.waits_when_away else "handlers run without it",
        )

    async def check(self) -> None:
        """Raise ConfigError for a store that waiting does not help, such as one without its tables.

        A store that is away is no reason not to start. One of the application's own class is not asked.
        """
        if keeps_outside(self._store):
            with contextlib.suppress(StoreAway, TimeoutError):
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    await self._store.turn(Turn(), self._rule)

    async def fence(
        self, ledger: Ledger, round_trip: Callable[[], Awaitable[object]]
    ) -> int | None:
        """Return the `Delivery.fence` of a link; None when the link has ended meanwhile.

        round_trip: waits for an answer of the link. A store that is away is asked again.
        """
        broker, _, segment = ledger.broker.partition(SEGMENT_MARK)
        key = key_of(f"{self._subscription}#{segment.partition('.')[0] or broker}", "fence")
        while ledger.is_live:
            try:
                async with asyncio.timeout(self._timeout_s):
                    number: int = await self._store.next_fence(key)  # type: ignore[attr-defined]
                # Its number is below that of the next one only if it is still served at this moment.
                await round_trip()
                return number
            except LinkError:
                return None
            except Exception as fault:
                self._log_away(fault)
                await asyncio.sleep(FENCE_AGAIN_S)
        return None

    async def finish(self, timeout_s: float) -> None:
        """Tell the store what there is to tell, up to this time, and let go of it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self.machine.has_reported_all:
                    self.begin()
                    await asyncio.sleep(FINISH_EVERY_S)
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.cancel()
        if self._owns_store:
            try:
                async with asyncio.timeout(CLOSE_TIMEOUT_S):
                    await self._store.close()
            except Exception as fault:
                log.info("store not closed reason=%s", type(fault).__name__)


def _is_cancelled(fault: BaseException) -> bool:
    """Return whether this task was cancelled; False when the store has cancelled its own call."""
    task = asyncio.current_task()
    return isinstance(fault, asyncio.CancelledError) and task is not None and task.cancelling() > 0

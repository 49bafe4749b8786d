"""Deduplication of one consumer: its turns with the store, and what they mean for its deliveries.

`core.once` decides. Deliveries are claimed where they arrive, all of one read in one call, so that the
prefetch hides the way to the store; ends are told together with the next claims. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from messagebus._io.amqp.connection import Transport
from messagebus._io.amqp.frames import Arrived
from messagebus._io.amqp.properties import read_headers, read_message_id, read_stamp_ms
from messagebus._io.consume.ordering import is_redriven
from messagebus._io.consume.runs import handled_by
from messagebus._io.hooks import HookChain
from messagebus._io.loop import Tasks, now_ms
from messagebus.core.claims import Turn, key_of, keys_of
from messagebus.core.deliveries import Ledger
from messagebus.core.once import SEED_BYTES
from messagebus.core.once import Once as Claims
from messagebus.core.parking import DUE_STEP_MS, REDRIVEN, STEP_MARK, read_due_ms
from messagebus.destination import Source
from messagebus.errors import ConfigError, LinkError, StoreAway
from messagebus.handling import Park
from messagebus.inbox import Once
from messagebus.message import SEGMENT_MARK, Delivery
from messagebus.stores import Dedup, keeps_outside

log = logging.getLogger("messagebus.consumer")

# Share of the newest call in the mean that is shown.
NEWEST_SHARE = 0.1
# One line for a store that is away, and another one each time that has passed.
TOLD_EVERY_S = 60.0
# For an application's store that does not close.
CLOSE_TIMEOUT_S = 2.0
# For the first answer of a store, which delays a start by so much while the store is away.
CHECK_TIMEOUT_S = 2.0
LAPSE_EVERY_S = 1.0
FINISH_EVERY_S = 0.005
FENCE_AGAIN_S = 0.5
# The claim of a delivery that waits for its turn in an ordered queue. DENIED: somebody else runs its message.
ASKED, GRANTED, DENIED, LET_GO = range(4)
# The least that `Dedup.remember_s` may be: what is younger is never too old.
REMEMBER_MS_MIN = 1_000
_REDRIVEN = REDRIVEN.encode()


def dedup_id(message_id: str, redriven: int) -> str:
    """Return the id that a message is known by in a store: a message that was redriven runs again.

    The surrogate between both has no form in UTF-8: no message that a publisher sends has such an id.
    """
    return f"{message_id}\ud800{redriven}" if redriven else message_id


def dedup_id_of(delivery: Delivery) -> str:
    """Return the `dedup_id` of a delivery's message; "" for a message without an id."""
    message_id = delivery.message_id
    if "\ufffd" in message_id:  # other bytes than UTF-8 are all read as this: ids are told by bytes
        message_id = read_message_id(delivery._properties, "surrogateescape") or message_id
    if message_id and _REDRIVEN in delivery._properties:
        count = delivery._library_headers.get(REDRIVEN)
        return dedup_id(message_id, count if isinstance(count, int) else 0)
    return message_id


def once_of(delivery: Delivery) -> Once:
    """Return a handler's parameter: its message, to be noted as done in the application's database.

    Raises Park for a message without an id.
    """
    message_id = dedup_id_of(delivery)
    if not message_id:
        raise Park("a message without an id cannot be told from its copies")
    key = key_of(str(delivery.source), message_id)
    dedup = getattr(handled_by(), "_dedup", None)
    return Once(key) if dedup is None else Once(key, remember_s=dedup.remember_s)


class Inbox(Protocol):
    """The consumer's deliveries, as far as deduplication moves them."""

    in_order: bool

    def hand_out(self, deliveries: Sequence[Delivery]) -> None:
        """Give these to the application in their turn."""

    def take_buffered(self) -> Delivery | None:
        """Return the next delivery that was handed out here."""

    def untake(self, delivery: Delivery) -> None:
        """Undo `take_buffered`; the delivery is handed out again later."""

    def acked(self, delivery: Delivery) -> None:
        """Ack a delivery that the application has acked and that is stored as done."""

    def ack_duplicate(self, delivery: Delivery) -> bool:
        """Ack a delivery that the application never gets. False: it is answered, or its link has ended."""

    def park_unseen(self, delivery: Delivery, reason: str) -> None:
        """Park a delivery that the application never gets, and call `parked` when it is done."""

    def defer(self, delivery: Delivery, delay_ms: int) -> None:
        """Have it come again after this time, without counting an attempt."""


class Lanes(Protocol):
    """Keeper of the order behind the claims: `_io.consume.ordering`."""

    def denied(self, deliveries: list[Delivery]) -> None:
        """Note that these wait for somebody else's run of their messages."""

    def is_next(self, delivery: Delivery) -> bool:
        """Return whether a delivery would go to the application if it were granted."""


class Deduplication:
    """The claims of one consumer. on_turn: called when something was handed out or acked. on_back: when
    the store is back; what waited for it may have been given back.

    timeout_s: the brokers' consumer timeout.
    """

    def __init__(
        self,
        dedup: Dedup,
        source: Source,
        inbox: Inbox,
        *,
        chain: HookChain | None,
        on_turn: Callable[[], None],
        on_back: Callable[[], None],
        timeout_s: int,
    ) -> None:
        self._dedup, self._inbox, self._chain, self._on_turn = dedup, inbox, chain, on_turn
        self._take_buffered = inbox.take_buffered
        self._on_back = on_back
        self._subscription = str(source)
        self._key_of = keys_of(self._subscription)
        self._store = dedup.opened()
        self._owns_store = self._store is not dedup.store
        self._rule = dedup.rule
        self._timeout_s = dedup.store_timeout_s
        self._consumer_timeout_ns = timeout_s * 1_000_000_000
        self._waits = dedup.on_store_away == "wait"
        self._once: Claims[Delivery] = Claims(
            self._rule,
            secrets.token_bytes(SEED_BYTES),
            run_when_away=not self._waits,
            park_too_old=dedup.too_old == "park",
            deferred_max=dedup.deferred_max,
            age_ms=_age_ms,
            is_next=self._is_next,
        )
        self._loop = asyncio.get_running_loop()
        self._tasks = Tasks()
        self._talking = False
        self._timer: asyncio.TimerHandle | None = None
        # Arrived and not handed out, in that order, by link; in ordered queues also those that are granted.
        self._pending: dict[Ledger, dict[Delivery, int]] = {}
        self._held: set[Delivery] = set()  # by the application
        self._plain: set[Delivery] = set()  # without an id, so without a claim
        self._acking: set[Delivery] = set()
        self._overran: set[Delivery] = set()
        self._waiters: dict[Delivery, asyncio.Future[None]] = {}
        self._without_id = 0
        self._call_ms = 0.0
        self._told_s = 0.0
        self._is_closed = False
        self.lanes: Lanes | None = None
        """Set where order is kept behind this."""
        self.runs_handlers = False
        """True where handlers run: each delivery has an end then, whatever its link."""
        self._lapsed_s = self._loop.time()

    async def check(self) -> None:
        """Raise ConfigError for a store that waiting does not help, such as one without its tables.

        A store that is away is no reason not to start. One of the application's own class is not asked.
        """
        if keeps_outside(self._store):
            with contextlib.suppress(StoreAway, TimeoutError):
                async with asyncio.timeout(CHECK_TIMEOUT_S):
                    await self._store.turn(Turn(), self._rule)

    def keep_order(self) -> None:
        """Hold all copies, bounded by the prefetch: one at the end of the queue would be overtaken."""
        self._once.keep_all()

    # Arriving.
    def arrived(self, ledger: Ledger, deliveries: Sequence[Delivery]) -> None:
        """Claim deliveries of one link; they are handed out when they are granted."""
        known, keys = [], []
        key_of, behind = self._key_of, False
        for delivery in deliveries:
            if message_id := dedup_id_of(delivery):
                known.append(delivery)
                keys.append(key_of(message_id))
                continue
            self._plain.add(delivery)
            self._without_id += 1
            if self._inbox.in_order and self.lanes is None:  # behind all that wait on its link
                behind = True
                pending = self._pending.setdefault(ledger, {})
                pending.update(dict.fromkeys(known, ASKED))
                pending[delivery] = GRANTED
            else:
                self._inbox.hand_out([delivery])
        if known:
            self._pending.setdefault(ledger, {}).update(dict.fromkeys(known, ASKED))
            self._once.arrived(zip(keys, known, strict=True), now_ms())
            self._carry_out()
            self.talk()
        if behind:
            self._hand_out_in_order(self._pending[ledger])

    def comes_again(self, delivery: Delivery) -> None:
        """Claim a delivery that has kept its place since its run failed, before its copies."""
        message_id = dedup_id_of(delivery)
        if not message_id:
            self.arrived(delivery._ledger, [delivery])
            return
        self._pending.setdefault(delivery._ledger, {})[delivery] = ASKED
        self._once.comes_again(self._key_of(message_id), delivery, now_ms())
        self._carry_out()
        self.talk()

    def let_go(self, deliveries: Sequence[Delivery]) -> None:
        """Give up the claims of deliveries that are granted and wait in their lanes, until `ask`."""
        self._once.let_go(deliveries)
        self.talk()

    def ask(self, deliveries: Sequence[Delivery]) -> None:
        """Ask for the claims of these again."""
        self._once.ask(deliveries)
        self.talk()

    def fence(
        self, ledger: Ledger, transport: Transport, round_trip: Callable[[], Awaitable[object]]
    ) -> None:
        """Keep what arrives over a link until its `Delivery.fence` is known, where that is wanted."""
        if not self._dedup.fence:
            return
        broker, _, segment = ledger.broker.partition(SEGMENT_MARK)
        key = key_of(f"{self._subscription}#{segment.partition('.')[0] or broker}", "fence")
        arrived, waiting = transport.on_contents, list[Arrived]()

        async def take() -> None:
            while ledger.is_live:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        number = await self._store.next_fence(key)  # type: ignore[attr-defined]
                    # Its number is below that of the next one only if it is still served at this moment.
                    await round_trip()
                except LinkError:
                    return
                except Exception as fault:
                    self._tell_away(fault)
                    await asyncio.sleep(FENCE_AGAIN_S)
                    continue
                if ledger.is_live:
                    ledger.fence, transport.on_contents = number, arrived
                    arrived(waiting)
                return

        def wait(contents: list[Arrived]) -> None:
            if not waiting:
                self._tasks.spawn(take())
            waiting.extend(contents)

        transport.on_contents = wait

    # The application's side.
    def take(self) -> Delivery | None:
        """Return the next delivery for the application whose claim still stands."""
        while (delivery := self._take_buffered()) is not None:
            # `may_start` inlined: each delivery passes here.
            if self._once.may_start(delivery, now_ms()) or delivery in self._plain:
                self._held.add(delivery)
                return delivery
            self._claim_anew(delivery)
            self._inbox.untake(delivery)
        return None

    def may_start(self, delivery: Delivery) -> bool:
        """Return whether a delivery may be run or parked. False: its claim is asked for again."""
        if self._once.may_start(delivery, now_ms()) or delivery in self._plain:
            return True
        self._claim_anew(delivery)
        return False

    def _claim_anew(self, delivery: Delivery) -> None:
        self._pending.setdefault(delivery._ledger, {})[delivery] = ASKED
        self.talk()

    def put_back(self, deliveries: Iterable[Delivery]) -> None:
        """Note that the application never saw deliveries that it took: they are handed out again."""
        for delivery in deliveries:
            self._held.discard(delivery)
            self._once.not_started(delivery)

    def ended(self, delivery: Delivery, *, live: bool) -> bool:
        """Take the ack of a delivery. live: its link lives, and the ack is owed.

        False: ack it now; else `Inbox.acked` is called when it is stored.
        """
        self._held.discard(delivery)
        if (self._plain and self._is_plain(delivery)) or not self._once.ended(delivery):
            return False
        if live:
            self._acking.add(delivery)
        if not self._waits:  # it may be acked without the store
            self._carry_out()
        return True

    def is_telling(self, delivery: Delivery) -> bool:
        """Return whether the store is still to be told about the last run of a delivery."""
        return self._once.holds(delivery)

    def is_acking(self, delivery: Delivery) -> bool:
        """Return whether the end of an acked delivery is still to be stored."""
        return delivery in self._acking

    def give_back(self, delivery: Delivery) -> None:
        """Let the message run again, without waiting for the store."""
        self._held.discard(delivery)
        if delivery not in self._overran and not self._is_plain(delivery):
            self._once.given_back(delivery)
            self._carry_out()
            self.talk()

    async def released(self, delivery: Delivery) -> None:
        """Give a claim back, and return when the store knows; at once for a run that goes on."""
        self._held.discard(delivery)
        if (
            delivery in self._overran
            or self._is_plain(delivery)
            or not self._once.holds(delivery)  # a run that overran has ended since
        ):
            return
        waiter = self._waiter(delivery)
        self._once.given_back(delivery)
        self._carry_out()
        self.talk()
        await waiter

    async def parked(self, delivery: Delivery, stored: bool) -> None:
        """Tell that a copy is in the parking queue, and return when the store knows. stored: it is."""
        self._held.discard(delivery)
        if not stored:
            self.give_back(delivery)
        elif not self._is_plain(delivery) and self._once.holds(delivery):
            self._overran.discard(delivery)
            waiter = self._waiter(delivery)
            self._once.parked(delivery)
            self._carry_out()
            self.talk()
            await waiter

    def _waiter(self, delivery: Delivery) -> asyncio.Future[None]:
        waiter = self._waiters[delivery] = self._loop.create_future()
        return waiter

    def _tell_waiter(self, delivery: Delivery) -> None:
        waiter = self._waiters.pop(delivery, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _is_plain(self, delivery: Delivery) -> bool:
        if delivery not in self._plain:
            return False
        self._plain.discard(delivery)
        return True

    def overran(self, deliveries: Iterable[Delivery]) -> None:
        """Keep the claims of a run whose time is over: it goes on, and nobody else may run these."""
        found = [each for each in deliveries if each not in self._plain]
        self._overran.update(found)
        self._once.overran(found)
        self.look_again()

    def ended_late(self, deliveries: Iterable[Delivery], *, well: bool) -> None:
        """Give the claims of a run back that overran and has ended now. well: its copies need not run."""
        for delivery in deliveries:
            if delivery in self._overran:
                self._overran.discard(delivery)
                (self._once.ended if well else self._once.given_back)(delivery)
        self._carry_out()
        self.talk()

    # Giving back.
    def oldest(self, ledger: Ledger) -> Delivery | None:
        """Return the delivery of this link that has waited longest for its claim; None for none."""
        return next(iter(self._pending.get(ledger, ())), None)

    def holds(self, ledger: Ledger) -> bool:
        """Return whether deliveries of this link wait for their claim."""
        return bool(self._pending.get(ledger))

    def withdraw(self, ledger: Ledger) -> list[Delivery]:
        """Take out what waits for its claim, of one link. `dropped` follows, with all of the link."""
        return list(self._pending.pop(ledger, ()))

    def dropped(self, deliveries: Iterable[Delivery]) -> None:
        """Give the claims of deliveries up that go back unseen, or whose link has ended."""
        gone = []
        for delivery in deliveries:
            if delivery in self._held:
                self._held.discard(delivery)
                self._once.not_started(delivery)
            if not self._is_plain(delivery):
                gone.append(delivery)
        if gone:
            self._once.dropped(gone)
            self._carry_out()
            self.talk()

    @property
    def running(self) -> int:
        """The deliveries that handlers run, whether their links live or not."""
        return len(self._held) if self.runs_handlers else 0

    @property
    def pending(self) -> int:
        """The deliveries that wait for their claim."""
        return sum(map(len, self._pending.values()))

    # Turns.
    def talk(self) -> None:
        """Tell and ask the store what there is, unless that is under way."""
        if not self._talking and not self._is_closed:
            self._talking = True
            self._tasks.spawn(self._talk())

    async def _talk(self) -> None:
        once = self._once
        try:
            while (turn := once.turn(now_ms())) is not None:
                began_s = time.perf_counter()
                try:
                    async with asyncio.timeout(self._timeout_s):
                        answer = await self._store.turn(turn, self._rule)
                    verdicts, kept = answer
                    if (len(verdicts), len(kept)) != (len(turn.claim), len(turn.extend)):
                        raise StoreAway("it did not answer what it was asked")
                # Also of a store that an application has written.
                except (Exception, asyncio.CancelledError) as fault:
                    task = asyncio.current_task()
                    if isinstance(fault, asyncio.CancelledError) and task and task.cancelling():
                        raise  # it is ours that was cancelled, and not the store's
                    once.away(now_ms())
                    self._tell_away(fault)
                else:
                    took_ms = (time.perf_counter() - began_s) * 1000
                    self._call_ms += (took_ms - self._call_ms) * (
                        NEWEST_SHARE if self._call_ms else 1
                    )
                    once.answered(answer, now_ms())
                    if self._told_s:
                        self._told_s = 0.0
                        log.warning("store is back subscription=%s", self._subscription)
                        self._on_back()
                self._carry_out()
        finally:
            self._talking = False
            self._wake_later()

    def _wake_later(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        wake_ms = self._once.wake_ms()
        if wake_ms is not None and not self._is_closed:
            self._timer = self._loop.call_later(max(0, wake_ms - now_ms()) / 1000, self.talk)

    def _tell_away(self, fault: BaseException) -> None:
        since_s = self._loop.time() - self._told_s
        if self._told_s and since_s < TOLD_EVERY_S:
            return
        self._told_s = self._loop.time()
        is_away = isinstance(fault, StoreAway | TimeoutError)
        # The text of an error that is not ours may hold a password.
        is_told = is_away or isinstance(fault, ConfigError)
        why = (str(fault) or "no answer in time") if is_told else type(fault).__name__
        log.log(
            logging.WARNING if is_away else logging.ERROR,
            "store is away subscription=%s reason=%r: %s",
            self._subscription,
            why,
            "nothing is handed out" if self._waits else "handlers run without it",
        )

    def _carry_out(self) -> None:
        """Do what `core.once` has ordered."""
        orders = self._once.take()
        if orders is None:
            return
        inbox = self._inbox
        acking = self._acking
        for delivery in orders.ack:
            if delivery in acking:
                acking.discard(delivery)
                inbox.acked(delivery)
            elif delivery in self._waiters:
                self._tell_waiter(delivery)
            else:
                self.settled(delivery)
                if inbox.ack_duplicate(delivery):
                    self._tell(delivery, "duplicate")
        for delivery in orders.released:
            self._tell_waiter(delivery)
        for delivery, reason in orders.park:
            self.settled(delivery)
            inbox.park_unseen(delivery, reason)
            self._tell(delivery, "park")
        for delivery, delay_ms in orders.defer:
            self.settled(delivery)
            inbox.defer(delivery, delay_ms)
            self._tell(delivery, "deferred")
        if orders.held and self.lanes is not None:
            self.lanes.denied(orders.held)
        if inbox.in_order and self.lanes is None:
            self._note(orders.hand_out, GRANTED)
            self._note(orders.held, DENIED)
            for of_link in self._pending.values():
                self._hand_out_in_order(of_link)
        elif orders.hand_out:
            pending = self._pending
            for delivery in orders.hand_out:
                if (waiting := pending.get(delivery._ledger)) is not None:
                    waiting.pop(delivery, None)
            inbox.hand_out(orders.hand_out)
        self._on_turn()

    def _note(self, deliveries: Iterable[Delivery], claim: int) -> None:
        for delivery in deliveries:
            pending = self._pending.get(delivery._ledger)
            if pending is not None and delivery in pending:
                pending[delivery] = claim

    def _hand_out_in_order(self, pending: dict[Delivery, int]) -> None:
        """Hand out what is granted and has nothing before it on its link that still waits.

        Nothing behind a first that somebody else runs keeps its claim: as in `core.keyed`, both would wait.
        """
        ready = list(itertools.takewhile(lambda each: pending[each] == GRANTED, pending))
        for delivery in ready:
            del pending[delivery]
        if ready:
            self._inbox.hand_out(ready)
        is_denied = next(iter(pending.values()), ASKED) == DENIED
        claim, becomes = (GRANTED, LET_GO) if is_denied else (LET_GO, ASKED)
        plain = self._plain
        if found := [each for each in pending if pending[each] == claim and each not in plain]:
            self._note(found, becomes)
            (self._once.let_go if is_denied else self._once.ask)(found)

    def _is_next(self, delivery: Delivery) -> bool:
        """Return whether a delivery would go to the application if it were granted."""
        if self.lanes is not None:
            return self.lanes.is_next(delivery)
        if not self._inbox.in_order:
            return True
        return next(iter(self._pending.get(delivery._ledger, ())), None) is delivery

    def look_again(self) -> None:
        """Let a suspect run that has become the next of its lane."""
        if self._once.has_suspects:
            self.talk()

    def settled(self, delivery: Delivery) -> None:
        """Note that a delivery waits for no claim any more."""
        if (pending := self._pending.get(delivery._ledger)) is not None:
            pending.pop(delivery, None)

    def _tell(self, delivery: Delivery, verdict: str) -> None:
        if self._chain is not None:
            self._chain.deduplicated(delivery, verdict)

    # Time and end.
    def tick(self) -> None:
        """Give up what an application without handlers took over a link that has ended, and forgot.

        Its message came again long ago, and waits for an end that nobody will give.
        """
        if self._loop.time() - self._lapsed_s < LAPSE_EVERY_S:
            return
        self._lapsed_s = self._loop.time()
        for ledger in [each for each in self._pending if not each.is_live]:
            del self._pending[ledger]
        if not self.runs_handlers:
            before_ns = time.monotonic_ns() - self._consumer_timeout_ns
            self.dropped(
                [
                    each
                    for each in self._held
                    if not each._ledger.is_live and each.received_ns < before_ns
                ]
            )

    async def finish(self, timeout_s: float) -> None:
        """Tell the store what there is to tell, up to this time, and let go of it."""
        if not self.runs_handlers:  # a run may go on behind a stop: its claim runs out
            self.dropped(list(self._held))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while not self._once.is_told:
                    self.talk()
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

    # Numbers.
    def stats(self) -> dict[str, Any]:
        """Return the fields of `ConsumerStats` about deduplication."""
        counters, away_ms = self._once.counters, self._once.away_ms(now_ms())
        away = "waiting" if self._waits else "open"
        return {
            "duplicates": counters.duplicates,
            "deferred": counters.deferred,
            "dedup_too_old": counters.too_old,
            "undeduplicated": counters.undeduplicated + self._without_id,
            "dedup_state": "ok" if away_ms is None else away,
            "store_away_s": (away_ms or 0) / 1000,
            "store_s": self._call_ms / 1000,
        }


def _age_ms(delivery: Delivery) -> int:
    """Return the ms since the message's first publish, or since it was due; 0 for a redriven one."""
    if b"mb-first-ms" in delivery._properties or delivery._part:
        first_ms: int | None = delivery.first_ms
    else:
        first_ms = read_stamp_ms(delivery._properties)
    age_ms = 0 if first_ms is None else time.time_ns() // 1_000_000 - first_ms
    if age_ms < REMEMBER_MS_MIN:
        return age_ms
    # It was not to be handled before: nobody can have forgotten that it was.
    if is_redriven(delivery):
        return 0
    if STEP_MARK in delivery._properties:
        due_ms = read_due_ms(read_headers(delivery._properties))
        if due_ms is not None:
            return time.time_ns() // 1_000_000 - due_ms - DUE_STEP_MS
    return age_ms

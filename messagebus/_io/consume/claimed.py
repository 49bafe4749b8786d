"""The stage of deduplication: what a store says of messages, and what that means for their deliveries.

`core.once` and `core.turns` decide, `turns` asks the store. Deliveries are claimed where they arrive, all of
one read in one turn, so that the prefetch hides the way to the store; ends are told together with the next
claims.

    arrived ─▶ pending, of its link ─▶ granted to the stage behind ─▶ taken ─▶ ack: its end is told ─▶ acked
                    │ ▲                                                 └─▶ given back, or released
                    │ └─ its claim ran out before its run
                    └─▶ acked as a duplicate, parked, deferred, or held: as `core.once` orders

Owners: `RunClaims` knows which delivery waits for what; `Claimed` moves them. Without an id a message has no
claim, and runs at once. Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from messagebus._io.consume.dedup import id_and_age
from messagebus._io.consume.link_order import LinkOrder
from messagebus._io.consume.ordered import Ordered, received_ns_of
from messagebus._io.consume.plain import Plain
from messagebus._io.consume.stage import BehindClaims
from messagebus._io.consume.store_turns import StoreTurns
from messagebus._io.hooks import HookChain
from messagebus.clock import NS_PER_MS, LogLimit, monotonic_ms, wall_ms
from messagebus.core.claims import keys_of
from messagebus.core.deliveries import Ledger
from messagebus.core.once import Claims, Orders
from messagebus.core.turns import SEED_BYTES, Turns
from messagebus.destination import Source
from messagebus.message import Delivery
from messagebus.stores import Dedup

log = logging.getLogger("messagebus.consumer")

LAPSE_EVERY_S = 1.0
PARKED_LOGGED_EVERY_MS = 60_000
REMEDY = "publish a corrected message under a new id, or redrive the parked one"


class RunClaims:
    """The claims on the messages of one consumer, by delivery: a `Claiming`, and a `LateRuns`.

    is_next: returns whether a delivery would go to the application if it were granted. on_orders: carries out
    what `core.once` orders. on_back: as of `StoreTurns`. timeout_s: the brokers' consumer timeout.
    """

    def __init__(
        self,
        dedup: Dedup,
        subscription: str,
        *,
        is_next: Callable[[Delivery], bool],
        on_orders: Callable[[Orders[Delivery]], None],
        on_back: Callable[[], None],
        timeout_s: int,
    ) -> None:
        self.machine: Claims[Delivery] = Claims(
            dedup.rule,
            park_too_old=dedup.too_old == "park",
            deferred_max=dedup.deferred_max,
            is_next=is_next,
        )
        turns = Turns(
            self.machine,
            secrets.token_bytes(SEED_BYTES),
            run_when_away=dedup.on_store_away != "wait",
        )
        self.turns = StoreTurns(dedup, subscription, turns, on_orders=on_orders, on_back=on_back)
        self.talk = self.turns.begin
        """Tells and asks the store what there is."""
        self._on_orders, self._key_of = on_orders, keys_of(subscription)
        self._consumer_timeout_ns = timeout_s * 1_000_000_000
        self.pending: dict[Ledger, dict[Delivery, None]] = {}
        """Deliveries that have arrived and are not granted, in that order, by link."""
        self.held: set[Delivery] = set()
        """Deliveries that the application holds."""
        self.without_id: set[Delivery] = set()
        """Deliveries without an id, so without a claim, and without an end."""
        self.acking: set[Delivery] = set()
        """Acked by the application, and acked to the broker when the end is stored."""
        self._overran: set[Delivery] = set()
        self._waiters: dict[Delivery, asyncio.Future[None]] = {}
        self._without_id_count = 0
        self.runs_handlers = False
        """True where handlers run: each delivery has an end then, whatever its link."""
        self._loop = asyncio.get_running_loop()
        self._lapsed_s = self._loop.time()

    # Deliveries come.
    def arrived(self, ledger: Ledger, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Claim the messages of deliveries of one link; return those without an id, which have no claim."""
        pending, key_of = self.pending.setdefault(ledger, {}), self._key_of
        known, free = [], []
        now_ms = wall_ms()
        for delivery in deliveries:
            message_id, age_ms = id_and_age(delivery, now_ms)
            if message_id:
                known.append((key_of(message_id), delivery, age_ms))
                pending[delivery] = None
                continue
            self.without_id.add(delivery)
            self._without_id_count += 1
            free.append(delivery)
        if known:
            self.machine.arrived(known, deliveries[-1].received_ns // NS_PER_MS)
            if (orders := self.machine.take()) is not None:
                self._on_orders(orders)
            self.talk()
        return free

    def comes_again(self, delivery: Delivery) -> None:
        """Claim a delivery that has kept its place since its run failed, before its copies."""
        message_id, age_ms = id_and_age(delivery, wall_ms())
        if not message_id:
            self.without_id.add(delivery)
            self._without_id_count += 1
            self._on_orders(Orders(hand_out=[delivery]))
            return
        self.pending.setdefault(delivery._ledger, {})[delivery] = None
        self.machine.comes_again(self._key_of(message_id), delivery, age_ms, monotonic_ms())
        self.carry_out()
        self.talk()

    def claim_anew(self, delivery: Delivery) -> None:
        """Have a delivery wait whose claim ran out before its run: it is granted again."""
        self.pending.setdefault(delivery._ledger, {})[delivery] = None
        self.talk()

    def settled(self, delivery: Delivery) -> None:
        """Note that a delivery waits for no claim any more."""
        if (pending := self.pending.get(delivery._ledger)) is not None:
            pending.pop(delivery, None)

    def carry_out(self) -> None:
        """Have the orders carried out that are new."""
        if (orders := self.machine.take()) is not None:
            self._on_orders(orders)

    # Runs.
    def may_start(self, delivery: Delivery) -> bool:
        """Return whether a delivery may be run or parked. False: its claim is asked for again."""
        if self.machine.may_start(delivery, monotonic_ms()) or delivery in self.without_id:
            return True
        self.claim_anew(delivery)
        return False

    def not_started(self, deliveries: Iterable[Delivery]) -> None:
        """Note that the application never saw deliveries that it took: they are handed out again."""
        for delivery in deliveries:
            self.held.discard(delivery)
            self.machine.not_started(delivery)

    def has_claim(self, delivery: Delivery) -> bool:
        """Return whether a delivery has one, or is to have one: False for a message without an id."""
        return delivery not in self.without_id

    def is_telling(self, delivery: Delivery) -> bool:
        """Return whether the store is still to be told about the last run of a delivery."""
        return self.machine.holds(delivery)

    def give_back(self, delivery: Delivery) -> None:
        """Let the message run again, without waiting for the store."""
        self.held.discard(delivery)
        if delivery not in self._overran and not self._has_no_id(delivery):
            self.machine.given_back(delivery)
            self.carry_out()
            self.talk()

    async def released(self, delivery: Delivery) -> None:
        """Give a claim back, and return when the store knows; at once for a run that goes on."""
        self.held.discard(delivery)
        if (
            delivery in self._overran
            or self._has_no_id(delivery)
            or not self.machine.holds(delivery)  # a run that overran has ended since
        ):
            return
        await self._tell_and_wait(self.machine.given_back, delivery)

    async def parked(self, delivery: Delivery, stored: bool) -> None:
        """Tell that a copy is in the parking queue, and return when the store knows. stored: it is."""
        self.held.discard(delivery)
        if not stored:
            self.give_back(delivery)
        elif not self._has_no_id(delivery) and self.machine.holds(delivery):
            self._overran.discard(delivery)
            await self._tell_and_wait(self.machine.parked, delivery)

    async def _tell_and_wait(self, end: Callable[[Delivery], None], delivery: Delivery) -> None:
        """Tell the store this end of a run, and return when it knows."""
        waiter = self._waiters[delivery] = self._loop.create_future()
        end(delivery)
        self.carry_out()
        self.talk()
        await waiter

    def end_wait(self, delivery: Delivery) -> bool:
        """Let whoever waits go on, now that the end of a delivery is stored. False: nobody waits."""
        waiter = self._waiters.pop(delivery, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return waiter is not None

    def _has_no_id(self, delivery: Delivery) -> bool:
        """Return whether a delivery has no claim, for lack of an id; this is its end."""
        if delivery not in self.without_id:
            return False
        self.without_id.discard(delivery)
        return True

    def overran(self, deliveries: list[Delivery]) -> None:
        """Keep the claims of a run whose time is over: it goes on, and nobody else may run these."""
        found = [each for each in deliveries if each not in self.without_id]
        self._overran.update(found)
        self.machine.overran(found)
        self.look_again()

    def ended_late(self, deliveries: list[Delivery], *, well: bool) -> None:
        """Give the claims of a run back that overran and has ended now. well: its copies need not run."""
        for delivery in deliveries:
            if delivery in self._overran:
                self._overran.discard(delivery)
                (self.machine.ended if well else self.machine.given_back)(delivery)
        self.carry_out()
        self.talk()

    # Claims go.
    def dropped(self, deliveries: Iterable[Delivery]) -> None:
        """Give the claims of deliveries up that go back unseen, or whose link has ended."""
        gone = []
        for delivery in deliveries:
            if delivery in self.held:
                self.held.discard(delivery)
                self.machine.not_started(delivery)
            if not self._has_no_id(delivery):
                gone.append(delivery)
        if gone:
            self.machine.dropped(gone)
            self.carry_out()
            self.talk()

    def let_go(self, deliveries: Sequence[Delivery]) -> None:
        """Give up the claims of deliveries that are granted and wait in their lanes, until `ask`."""
        self.machine.let_go(deliveries)
        self.talk()

    def ask(self, deliveries: Sequence[Delivery]) -> None:
        """Ask for the claims of these again."""
        self.machine.ask(deliveries)
        self.talk()

    def look_again(self) -> None:
        """Let a suspect run that has become the next of its lane."""
        if self.machine.suspects.waiting:
            self.talk()

    def keep_all(self) -> None:
        """Hold all copies, bounded by the prefetch: one at the end of its queue would be overtaken."""
        self.machine.held.keep_all()

    def lapse(self) -> None:
        """Give up what an application without handlers took over a link that has ended, and forgot.

        Its message came again long ago, and waits for an end that nobody will give.
        """
        if self._loop.time() - self._lapsed_s < LAPSE_EVERY_S:
            return
        self._lapsed_s = self._loop.time()
        for ledger in [each for each in self.pending if not each.is_live]:
            del self.pending[ledger]
        if not self.runs_handlers:
            before_ns = time.monotonic_ns() - self._consumer_timeout_ns
            self.dropped(
                [
                    each
                    for each in self.held
                    if not each._ledger.is_live and each.received_ns < before_ns
                ]
            )

    @property
    def running(self) -> int:
        """The deliveries that handlers run, whether their links live or not."""
        return len(self.held) if self.runs_handlers else 0

    async def finish(self, timeout_s: float) -> None:
        """Tell the store what there is to tell, up to this time, and let go of it."""
        if not self.runs_handlers:  # a run may go on behind a stop: its claim runs out
            self.dropped(list(self.held))
        await self.turns.finish(timeout_s)

    def stats(self) -> dict[str, Any]:
        """Return the fields of `ConsumerStats` about deduplication."""
        counters, away_ms = self.machine.counters, self.turns.machine.away_ms(monotonic_ms())
        away = "waiting" if self.turns.waits_when_away else "open"
        return {
            "duplicates": counters.duplicates,
            "deferred": counters.deferred,
            "dedup_too_old": counters.too_old,
            "undeduplicated": counters.undeduplicated + self._without_id_count,
            "dedup_state": "ok" if away_ms is None else away,
            "store_away_s": (away_ms or 0) / 1000,
            "store_s": self.turns.call_ms / 1000,
        }


class Claimed:
    """The first stage of a consumer with deduplication.

    on_turn: called when something was acked, on_ready when something was handed out, or may be soon. on_back,
    timeout_s: as of `RunClaims`.
    """

    def __init__(
        self,
        dedup: Dedup,
        source: Source,
        behind: Ordered | Plain,
        plain: Plain,
        *,
        chain: HookChain | None,
        on_turn: Callable[[], None],
        on_ready: Callable[[], None],
        on_back: Callable[[], None],
        timeout_s: int,
    ) -> None:
        self._behind: BehindClaims = behind
        self._plain = plain
        self._chain, self._on_turn, self._on_ready = chain, on_turn, on_ready
        self._source, self._parked_lines = source, LogLimit(PARKED_LOGGED_EVERY_MS)
        self.claims = claims = RunClaims(
            dedup,
            str(source),
            is_next=self._is_next,
            on_orders=self._carry_out,
            on_back=on_back,
            timeout_s=timeout_s,
        )
        behind.claimed_by(claims)
        if behind.has_lanes:
            claims.keep_all()
        # Of `take`, through which each delivery passes.
        self._take_next, self._may_start = behind.take, claims.machine.may_start
        self._held, self._without_id = claims.held, claims.without_id
        self.nack, self.retry, self.park = behind.nack, behind.retry, behind.park

    def keep_order(self) -> None:
        """Hand out in the order of each link, whatever is granted first. Of a single active consumer."""
        self._behind = LinkOrder(self._plain, self.claims)
        self.claims.keep_all()

    # The application's side.
    def take(self) -> Delivery | None:
        """Return the next delivery for the application whose claim still stands."""
        while (delivery := self._take_next()) is not None:
            now_ms = time.monotonic_ns() // NS_PER_MS  # `monotonic_ms` inlined: a call less
            if self._may_start(delivery, now_ms) or delivery in self._without_id:
                self._held.add(delivery)
                return delivery
            self.claims.claim_anew(delivery)
            self._plain.untake(delivery)
        return None

    def ack(self, delivery: Delivery) -> bool:
        """Ack a delivery when its end is stored.

        That of a lost link is stored too: its delivery came again, and is a duplicate then.
        """
        claims = self.claims
        live = delivery._ledger.claim(delivery._tag, delivery._part)
        if self._behind.has_lanes:
            self._behind.answered(delivery)
        self._held.discard(delivery)
        if delivery in self._without_id:
            self._without_id.discard(delivery)
        elif claims.machine.ended(delivery):
            claims.turns.has_news = True
            if live:
                claims.acking.add(delivery)
            if not claims.turns.waits_when_away:  # it may be acked without the store
                claims.carry_out()
            return live or self._plain.stale()
        return self._plain.acked(delivery) if live else self._plain.stale()

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Hand out next, in this order, the deliveries taken last, which nobody has seen."""
        self.claims.not_started(deliveries)
        self._behind.put_back(deliveries)

    def never_answered(self, deliveries: Sequence[Delivery]) -> None:
        """Give up the claims of deliveries that nobody will answer."""
        self.claims.dropped(deliveries)
        self._behind.never_answered(deliveries)

    def is_acking(self, delivery: Delivery) -> bool:
        """Return whether the end of an acked delivery is still to be stored."""
        return delivery in self.claims.acking

    # The links' side.
    def arrived(self, ledger: Ledger, deliveries: Sequence[Delivery]) -> None:
        """Claim deliveries of one link; they are granted to the stage behind as the store answers."""
        if self._behind.has_lanes:
            self._behind.entered(deliveries)
        if free := self.claims.arrived(ledger, deliveries):
            self._behind.granted(free)

    def withdrawn(
        self, ledger: Ledger, taken: Sequence[Delivery] = (), *, is_lost: bool = False
    ) -> list[Delivery]:
        """Take out what waits of a link; its claims are given up."""
        pending = self.claims.pending.pop(ledger, ())
        found = self._behind.withdrawn(ledger, taken, is_lost=is_lost)
        found = list(dict.fromkeys([*found, *pending]))
        self.claims.dropped(found)  # all at once: a copy is not to follow one that goes, too
        return found

    # Questions.
    def oldest(self, ledger: Ledger) -> Delivery | None:
        waiting = next(iter(self.claims.pending.get(ledger, ())), None)
        both = (waiting, self._behind.oldest(ledger))
        found = [one for one in both if one is not None]
        return min(found, key=received_ns_of, default=None)

    def holds(self, ledger: Ledger) -> bool:
        return self._behind.holds(ledger, bool(self.claims.pending.get(ledger)))

    def buffered(self) -> int:
        return self._behind.buffered(sum(map(len, self.claims.pending.values())))

    def _is_next(self, delivery: Delivery) -> bool:
        """Return whether a delivery would go to the application if it were granted."""
        return self._behind.is_next(delivery)

    # Orders of `core.once`.
    def _carry_out(self, orders: Orders[Delivery]) -> None:
        claims = self.claims
        for delivery in orders.ack:
            if delivery in claims.acking:
                claims.acking.discard(delivery)
                self._plain.acked(delivery)
            elif not claims.end_wait(delivery):
                self._ack_duplicate(delivery)
        if orders.of_parked and self._parked_lines.allows():
            log.warning(
                "copy of a parked message acknowledged without a run message=%r subscription=%s remedy=%r",
                *(orders.of_parked[0].message_id, self._source, REMEDY),
            )
        for delivery in orders.released:
            claims.end_wait(delivery)
        for delivery, reason in orders.park:
            claims.settled(delivery)
            log.warning("parked unseen message=%r reason=%r", delivery.message_id, reason)
            self._behind.park_unseen(delivery, reason)
            self._report(delivery, "park")
        for delivery, delay_ms in orders.defer:
            claims.settled(delivery)
            self._plain.defer(delivery, delay_ms)
            self._report(delivery, "deferred")
        if orders.held:
            self._behind.held(orders.held)
        if orders.hand_out:
            for delivery in orders.hand_out:
                claims.settled(delivery)
            self._behind.granted(orders.hand_out)
        if orders.ack:
            self._on_turn()
        else:
            self._on_ready()

    def _ack_duplicate(self, delivery: Delivery) -> None:
        """Ack a delivery that the application never gets."""
        self.claims.settled(delivery)
        self._behind.answered(delivery)
        if delivery._ledger.ack(delivery._tag, delivery._part):
            self._report(delivery, "duplicate")

    def _report(self, delivery: Delivery, verdict: str) -> None:
        if self._chain is not None:
            self._chain.deduplicated(delivery, verdict)

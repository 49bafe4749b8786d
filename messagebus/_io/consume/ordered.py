"""The stage that keeps an order: its lanes, their rests, and what is parked because its key was.

Owners: `core.keyed` decides on lanes; `Ordered` carries out its orders; `Alarm` keeps the time of rests. Runs
on one asyncio loop.

    arrived, or entered and granted ─▶ next of its lane ─▶ the stage behind ─▶ answered: the lane goes on
                                                                           └─▶ rests in its place, by a timer,
                                                                               and is claimed for its next run
"""

from __future__ import annotations

import asyncio
import logging
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from messagebus._io.amqp.properties import read_key
from messagebus._io.consume.plain import Plain
from messagebus._io.consume.runs import PARK_KEY, STOP_MS
from messagebus._io.consume.stage import Claiming, NoClaims
from messagebus.clock import monotonic_ms
from messagebus.core.deliveries import Ledger
from messagebus.core.keyed import FOR_EVER, Keyed
from messagebus.core.parking import REDRIVEN
from messagebus.message import ATTEMPT_HEADER, Delivery, Header
from messagebus.terminal import printable

log = logging.getLogger("messagebus.consumer")

# Until the store has been told that a run failed, its message cannot be claimed for the next one.
ASK_AGAIN_MS = 50
BEHIND_PARKED = "its key was parked before"
_REDRIVEN = REDRIVEN.encode()


class Alarm:
    """A timer that is set to a time. due: called with the time now; returns the next one, None for none."""

    def __init__(self, due: Callable[[int], int | None]) -> None:
        self._due = due
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._forward_ms = 0

    def now_ms(self) -> int:
        return monotonic_ms() + self._forward_ms

    def set(self, at_ms: int | None) -> None:
        """Go off at this time, and not before; None: not at all."""
        self.stop()
        if at_ms is not None:
            self._timer = self._loop.call_later(max(0, at_ms - self.now_ms()) / 1000, self._ring)

    def _ring(self) -> None:
        self.set(self._due(self.now_ms()))

    def put_forward(self, ms: int) -> None:
        """Let this time pass."""
        self._forward_ms += ms
        self._ring()

    def stop(self) -> None:
        """Do not go off."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Ordered:
    """The lanes of one consumer. on_ready: called soon after something was handed out that had waited.

    order: "key" or "partition". On a topic or queue without partitions all of one broker is a partition.
    """

    has_lanes = True

    def __init__(self, order: str, behind: Plain, on_ready: Callable[[], None]) -> None:
        self._behind, self._on_ready = behind, on_ready
        self.take = behind.take
        self._lane_of = key_of if order == "key" else _broker_of
        self._claims: Claiming = NoClaims()
        self.keyed = self._lanes(claims=False)
        self._loop = asyncio.get_running_loop()
        self.rests = Alarm(self._due)
        self._woken = False
        self.gaps = 0
        self.runs_handlers = False
        """True where handlers run: each delivery has an end then, whatever its link."""

    def _lanes(self, *, claims: bool) -> Keyed[Delivery]:
        return Keyed(lane_of=self._lane_of, link_of=_ledger_of, lifts=is_redriven, claims=claims)

    # The application's side.
    def ack(self, delivery: Delivery) -> bool:
        """Answer a delivery: it is done with; what follows in its lane is handed out. False: stale."""
        live = self._behind.ack(delivery)
        self.answered(delivery)
        return live

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        """Have a delivery run again in its place (requeue), or reject it. False: stale.

        A broker would deliver it behind others.
        """
        if requeue:
            return self._rest(delivery, 0, {})
        self._parks(delivery, {})
        self.answered(delivery)
        return self._behind.nack(delivery, requeue=False)

    async def retry(
        self, delivery: Delivery, *, delay_ms: int, headers: Mapping[str, Header]
    ) -> bool:
        """Keep a delivery for its next run, after this time; STOP_MS stops its key. False: stale.

        headers: of that run; the attempt is taken from them.
        """
        return self._rest(delivery, delay_ms, headers)

    async def park(self, delivery: Delivery, *, headers: Mapping[str, Header]) -> bool:
        """Put a delivery into the parking queue; its lane goes on behind it. False: stale."""
        self._parks(delivery, headers)
        return await self._behind.park(delivery, headers=headers, then=self.answered)

    def _rest(self, delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]) -> bool:
        ledger = delivery._ledger
        if not ledger.is_live:
            self._claims.give_back(delivery)
            self.answered(delivery)
            return self._behind.stale()
        self._behind.rests(delivery, is_retry=bool(headers))
        attempt = headers.get(ATTEMPT_HEADER, delivery.attempt)
        delivery._own = {**delivery._library_headers, ATTEMPT_HEADER: attempt}
        self._claims.give_back(delivery)
        is_stopped = delay_ms == STOP_MS
        self.keyed.rest(delivery, FOR_EVER if is_stopped else self.rests.now_ms() + delay_ms)
        if is_stopped:
            log.error(
                "key stopped source=%s broker=%s message=%s",
                delivery.source,
                delivery.broker,
                printable(delivery.message_id),
            )
        else:
            self.rests.set(self.keyed.wake_ms())
        if ledger.is_kept:
            found = self.withdrawn(ledger)
            self._claims.dropped(found)
            ledger.kept += found
        return True

    def _parks(self, delivery: Delivery, headers: Mapping[str, Header]) -> None:
        """Count a gap in its order; with PARK_KEY in the headers its key is parked.

        Where its link has ended it is not parked: the broker redelivers it, and it runs again.
        """
        if not delivery._ledger.is_live:
            return
        self.gaps += 1
        if PARK_KEY in headers and not self.keyed.park(delivery):
            log.error("too many keys are parked message=%s", printable(delivery.message_id))

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        self._behind.put_back(deliveries)

    def never_answered(self, deliveries: Sequence[Delivery]) -> None:
        """Let the lanes go on of deliveries that nobody will answer."""
        for delivery in deliveries:
            self.answered(delivery)

    # Events.
    def arrived(self, ledger: Ledger, deliveries: Sequence[Delivery]) -> None:
        """Enter what one link brought, in that order, and hand out the first of each lane."""
        self.keyed.arrived(deliveries)
        hand_out, park = self.keyed.take()
        if hand_out:
            self._behind.arrived(ledger, hand_out)
        if park:
            self._park(park)

    def entered(self, deliveries: Sequence[Delivery]) -> None:
        """Enter what one link brought, in that order, to be granted."""
        self.keyed.arrived(deliveries)

    def granted(self, deliveries: Sequence[Delivery]) -> None:
        """Note that the claims of these are stored."""
        self.keyed.granted(deliveries)
        self._carry_out()

    def held(self, deliveries: Sequence[Delivery]) -> None:
        """Note that these wait for somebody else's run of their messages."""
        self.keyed.denied(deliveries)
        self._carry_out()

    def answered(self, delivery: Delivery) -> None:
        """Note the end of a delivery; what follows in its lane is handed out."""
        self.keyed.answered(delivery)
        if self.keyed.has_orders:
            self._carry_out()
        else:
            self._claims.look_again()

    def park_unseen(self, delivery: Delivery, reason: str) -> bool:
        """Park a delivery that the application never gets; its lane goes on behind it."""
        is_parked = self._behind.park_unseen(delivery, reason, self.answered)
        self.gaps += is_parked
        return is_parked

    def withdrawn(
        self, ledger: Ledger, taken: Sequence[Delivery] = (), *, is_lost: bool = False
    ) -> list[Delivery]:
        """Take out what waits or rests of a link, and what was handed out in vain."""
        unseen = self._behind.withdrawn(ledger, taken, is_lost=is_lost)
        if is_lost:
            found = self.keyed.lost(ledger, unseen, keep_runs=self.runs_handlers)
        else:
            found = self.keyed.withdraw(ledger, unseen)
        self._carry_out()
        return list(dict.fromkeys([*unseen, *found]))

    def _carry_out(self) -> None:
        keyed = self.keyed
        hand_out, park = keyed.take()
        if hand_out:
            self._behind.granted(hand_out)
            if not self._woken:  # whoever waits for a delivery must hear of it, whatever let it out
                self._woken = True
                self._loop.call_soon(self._wake)
        self._park(park)
        if keyed.has_claims:
            let_go, ask = keyed.take_claims()
            self._claims.let_go(let_go)
            self._claims.ask(ask)
        self._claims.look_again()

    def _wake(self) -> None:
        self._woken = False
        self._on_ready()

    def _park(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            if self._claims.may_start(delivery):
                self.park_unseen(delivery, BEHIND_PARKED)

    # Runs behind their limit: `LateRuns`.
    def overran(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.keyed.overran(delivery)
        self._claims.overran(deliveries)

    def ended_late(self, deliveries: list[Delivery], *, well: bool) -> None:
        self._claims.ended_late(deliveries, well=well)
        for delivery in deliveries:
            self.keyed.ended_late(delivery)
        self._carry_out()

    # Questions.
    def is_next(self, delivery: Delivery) -> bool:
        return self.keyed.is_next(delivery)

    def oldest(self, ledger: Ledger) -> Delivery | None:
        first = self._behind.oldest(ledger)
        found = self.keyed.oldest(ledger) + ([] if first is None else [first])
        return min(found, key=received_ns_of, default=None)

    def holds(self, ledger: Ledger, unclaimed: bool = False) -> bool:
        """Return it; what waits for its claim waits in its lane, and that of stopped keys goes back."""
        return self.keyed.holds(ledger) or self._behind.holds(ledger)

    def buffered(self, unclaimed: int = 0) -> int:
        """Return it; what waits for its claim waits in its lane."""
        return self._behind.buffered(self.keyed.waiting)

    def claimed_by(self, claims: Claiming) -> None:
        """Let deliveries out only as they are granted. Called before anything arrives."""
        self._claims = claims
        self.keyed = self._lanes(claims=True)
        self._behind.claimed_by(claims)

    # Rests.
    def _due(self, now_ms: int) -> int | None:
        """Give the deliveries whose rest is over their next run; return the time of the next one."""
        for delivery in self.keyed.due(now_ms):
            self._again(delivery)
        self._carry_out()
        return self.keyed.wake_ms()

    def _again(self, delivery: Delivery) -> None:
        """Give a delivery its next run."""
        delivery._answered = False
        if not self.keyed.waits(delivery):  # it was handed out, or is gone with its link meanwhile
            return
        if self._claims.is_telling(delivery):
            self._loop.call_later(ASK_AGAIN_MS / 1000, self._again, delivery)
        else:
            self._claims.comes_again(delivery)

    # Numbers.
    def stats(self) -> dict[str, Any]:
        """Return the fields of `ConsumerStats` about order."""
        keyed = self.keyed
        return {
            "order_waiting": keyed.waiting,
            "order_gaps": self.gaps,
            "keys_resting": keyed.resting,
            "keys_parked": keyed.parked,
            "keys_stopped": keyed.stopped,
        }


def key_of(delivery: Delivery) -> str | Delivery:
    """Return the key of a delivery; itself without one. Others are read only if it is not first."""
    message = delivery._message
    if message is None:
        key = read_key(delivery._properties)
        return (delivery.key if key is None else key) or delivery
    return message.key or delivery


def _broker_of(delivery: Delivery) -> str:
    return delivery._ledger.broker


received_ns_of: Callable[[Delivery], int] = operator.attrgetter("received_ns")


def _ledger_of(delivery: Delivery) -> Ledger:
    return delivery._ledger


def is_redriven(delivery: Delivery) -> bool:
    """Return whether a redrive published the message: its header counts, not the same bytes in a property."""
    return _REDRIVEN in delivery._properties and REDRIVEN in delivery._library_headers

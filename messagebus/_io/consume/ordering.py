"""Order in one consumer: its lanes, their rests, and what is parked because its key was.

`core.keyed` decides. It stands between what arrives, or what deduplication grants, and what is handed out.
Runs on one asyncio loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from messagebus._io.amqp.properties import read_key
from messagebus._io.consume.runs import PARK_KEY, STOP_MS, ClaimsOfRuns
from messagebus._io.loop import now_ms
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


class Claims(ClaimsOfRuns, Protocol):
    """Deduplication, as far as deliveries that rest have to do with it."""

    def give_back(self, delivery: Delivery) -> None:
        """Let the message run again."""

    def comes_again(self, delivery: Delivery) -> None:
        """Claim a delivery for its next run, before its copies; it is granted by `Inbox.hand_out`."""

    def let_go(self, deliveries: Sequence[Delivery]) -> None:
        """Give up the claims of these until `ask` names them."""

    def ask(self, deliveries: Sequence[Delivery]) -> None:
        """Ask for the claims of these again."""

    def look_again(self) -> None:
        """Take note that other deliveries may be the next of their lanes."""

    def is_telling(self, delivery: Delivery) -> bool:
        """Return whether the store is still to be told about its last run."""

    def may_start(self, delivery: Delivery) -> bool:
        """Return whether its claim still stands. False: it is asked for again, and granted again."""


class Inbox(Protocol):
    """The consumer's deliveries, as far as order moves them."""

    def hand_over(self, deliveries: Iterable[Delivery]) -> None:
        """Give these to the application in their turn."""

    def hand_over_of(self, broker: str, deliveries: Sequence[Delivery]) -> None:
        """Do the same with deliveries of one live link."""

    def park_behind(self, delivery: Delivery, reason: str) -> None:
        """Park a delivery that the application never gets."""


class Ordering:
    """The lanes of one consumer. on_turn: called soon after something was handed out that had waited.

    order: "key" or "partition". On a topic or queue without partitions all of one broker is a partition.
    """

    def __init__(
        self, order: str, inbox: Inbox, claims: Claims | None, on_turn: Callable[[], None]
    ) -> None:
        self._inbox, self._claims, self._on_turn = inbox, claims, on_turn
        self.keyed: Keyed[Delivery] = Keyed(
            lane_of=key_of if order == "key" else _broker_of,
            link_of=_ledger_of,
            lifts=is_redriven,
            claims=claims is not None,
        )
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._forward_ms = 0
        self._woken = False
        self.gaps = 0
        self.runs_handlers = False
        """True where handlers run: each delivery has an end then, whatever its link."""

    # Deliveries come and go.
    def arrived(self, broker: str, deliveries: Iterable[Delivery]) -> None:
        """Enter what one link brought, in that order."""
        self.keyed.arrived(deliveries)
        hand_out, park = self.keyed.take()
        if hand_out:  # all of these have just arrived
            self._inbox.hand_over_of(broker, hand_out)
        if park:
            self._park(park)

    def granted(self, deliveries: Iterable[Delivery]) -> None:
        """Note that the claims of these are stored."""
        self.keyed.granted(deliveries)
        self._carry_out()

    def denied(self, deliveries: Iterable[Delivery]) -> None:
        """Note that these wait for somebody else's run of their messages."""
        self.keyed.denied(deliveries)
        self._carry_out()

    def is_next(self, delivery: Delivery) -> bool:
        """Return whether a delivery would be handed out if its claim were stored."""
        return self.keyed.is_next(delivery)

    def answered(self, delivery: Delivery) -> None:
        """Note the end of a delivery; what follows in its lane is handed out."""
        keyed = self.keyed
        keyed.answered(delivery)
        if keyed.has_orders:
            self._carry_out()
        elif self._claims is not None:
            self._claims.look_again()

    def rest(self, delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]) -> None:
        """Keep a delivery for its next run, after this time; STOP_MS stops its key.

        headers: of that run; the attempt is taken from them.
        """
        attempt = headers.get(ATTEMPT_HEADER, delivery.attempt)
        delivery._own = {**delivery._library_headers, ATTEMPT_HEADER: attempt}
        if self._claims is not None:
            self._claims.give_back(delivery)
        is_stopped = delay_ms == STOP_MS
        until_ms = FOR_EVER if is_stopped else self._now_ms() + delay_ms
        self.keyed.rest(delivery, until_ms)
        if is_stopped:
            log.error(
                "key stopped source=%s broker=%s message=%s",
                delivery.source,
                delivery.broker,
                printable(delivery.message_id),
            )
        else:
            self._wake_later()

    def parks(self, delivery: Delivery, headers: Mapping[str, Header]) -> None:
        """Count a gap in its order; with PARK_KEY in the headers its key is parked.

        Where its link has ended it is not parked: the broker redelivers it, and it runs again.
        """
        if not delivery._ledger.is_live:
            return
        self.gaps += 1
        if PARK_KEY in headers and not self.keyed.park(delivery):
            log.error("too many keys are parked message=%s", printable(delivery.message_id))

    def _carry_out(self) -> None:
        keyed = self.keyed
        hand_out, park = keyed.take()
        if hand_out:
            self._inbox.hand_over(hand_out)
            if not self._woken:  # whoever waits for a delivery must hear of it, whatever let it out
                self._woken = True
                self._loop.call_soon(self._turn)
        self._park(park)
        if keyed.has_claims:
            assert self._claims is not None
            let_go, ask = keyed.take_claims()
            self._claims.let_go(let_go)
            self._claims.ask(ask)
        if self._claims is not None:
            self._claims.look_again()

    def _turn(self) -> None:
        self._woken = False
        self._on_turn()

    def _park(self, deliveries: Iterable[Delivery]) -> None:
        for delivery in deliveries:
            if self._claims is None or self._claims.may_start(delivery):
                self._inbox.park_behind(delivery, BEHIND_PARKED)

    # Runs behind their limit: `ClaimsOfRuns`.
    def overran(self, deliveries: list[Delivery]) -> None:
        for delivery in deliveries:
            self.keyed.overran(delivery)
        if self._claims is not None:
            self._claims.overran(deliveries)

    def ended_late(self, deliveries: list[Delivery], *, well: bool) -> None:
        if self._claims is not None:
            self._claims.ended_late(deliveries, well=well)
        for delivery in deliveries:
            self.keyed.ended_late(delivery)
        self._carry_out()

    # Links go.
    def lost(self, ledger: Ledger, unseen: list[Delivery]) -> list[Delivery]:
        """Forget what waits or rests of a link that has ended; return it. unseen: handed out in vain."""
        found = self.withdraw(ledger, unseen)
        self.keyed.lost(ledger, (), keep_runs=self.runs_handlers)
        self._carry_out()
        return found

    def withdraw(self, ledger: Ledger, unseen: list[Delivery]) -> list[Delivery]:
        """Take out what waits or rests of a link, which goes back with it."""
        found = self.keyed.withdraw(ledger, unseen)
        self._carry_out()
        return found

    # Time.
    def put_forward(self, ms: int) -> None:
        """Let this time pass for what rests."""
        self._forward_ms += ms
        self._due()

    def _now_ms(self) -> int:
        return now_ms() + self._forward_ms

    def _wake_later(self) -> None:
        wake_ms = self.keyed.wake_ms()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if wake_ms is not None:
            self._timer = self._loop.call_later(max(0, wake_ms - self._now_ms()) / 1000, self._due)

    def _due(self) -> None:
        for delivery in self.keyed.due(self._now_ms()):
            self._again(delivery)
        self._carry_out()
        self._wake_later()

    def _again(self, delivery: Delivery) -> None:
        """Give a delivery its next run."""
        delivery._answered = False
        if self._claims is None or not self.keyed.waits(delivery):  # gone with its link meanwhile
            return
        if self._claims.is_telling(delivery):
            self._loop.call_later(ASK_AGAIN_MS / 1000, self._again, delivery)
        else:
            self._claims.comes_again(delivery)

    def stop(self) -> None:
        """Have nothing come due any more."""
        if self._timer is not None:
            self._timer.cancel()

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


def _ledger_of(delivery: Delivery) -> Ledger:
    return delivery._ledger


def is_redriven(delivery: Delivery) -> bool:
    """Return whether a redrive published the message: its header counts, not the same bytes in a property."""
    return _REDRIVEN in delivery._properties and REDRIVEN in delivery._library_headers

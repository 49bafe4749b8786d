"""The last stage: deliveries that the application may take, and its answers to them.

States of a delivery here, and the owner of each:

    granted ──take──▶ held by the application ──ack, nack──▶ answered in its ledger
    (FanIn)           (counted by FanIn)      ──retry, park──▶ claimed in its ledger ─▶ its copy is stored
                                                               (CopiedAnswers)          ─▶ answered

A delivery counts as held until its ledger has its answer, or its link ends. So the bound `handed_out_max`
includes those whose copies are on their way.
"""

from __future__ import annotations

import functools
import itertools
import logging
import operator
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from messagebus._io.consume.copies import CopiedAnswers, Original, Then, is_live
from messagebus._io.consume.stage import Claiming, NoClaims
from messagebus.core.deliveries import FanIn, Ledger
from messagebus.handling import park_headers
from messagebus.message import Delivery, Header

log = logging.getLogger("messagebus.consumer")


@dataclass(slots=True)
class Counters:
    """Counts of one consumer. retried, parked: answered by a stored copy. given_back: returned unseen."""

    delivered: int = 0
    acked: int = 0
    nacked: int = 0
    acks_stale: int = 0
    batches_damaged: int = 0
    retried: int = 0
    parked: int = 0
    given_back: int = 0


class Plain:
    """The deliveries of all brokers as one stream, and their answers. answers: those that wait for a copy."""

    has_lanes = False

    def __init__(self, handed_out_max: int, answers: CopiedAnswers, counters: Counters) -> None:
        self._answers, self._counters = answers, counters
        self._fanin: FanIn[Delivery] = FanIn(handed_out_max)
        self.take = self._fanin.take
        self.pause, self.resume = self._fanin.pause, self._fanin.resume
        self.arrived = self._fanin.arrived
        self.ready = self._fanin.turns
        """Empty when nothing is there to be taken."""
        self._claims: Claiming = NoClaims()

    # The application's side.
    def ack(self, delivery: Delivery) -> bool:
        """Answer a delivery: it is done with. False: stale."""
        ledger = delivery._ledger
        if not ledger.ack(delivery._tag, delivery._part):
            return self.stale()
        self._counters.acked += 1
        self._fanin.answered(ledger)
        return True

    def acked(self, delivery: Delivery) -> bool:
        """Ack a delivery that is claimed in its ledger for that. False: stale."""
        ledger = delivery._ledger
        if not ledger.claim_done(delivery._tag, delivery._part):
            return self.stale()
        self._counters.acked += 1
        self._fanin.answered(ledger)
        return True

    def stale(self) -> bool:
        """Count an answer that its link cannot take any more."""
        self._counters.acks_stale += 1
        return False

    async def _stale_answer(self) -> bool:
        return self.stale()

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        """Give a delivery back (requeue), or reject it into the parking queue. False: stale.

        A part of a batch has no nack of its own: a copy of it goes to the end of the queue, or is parked.
        """
        ledger, tag, part = delivery._ledger, delivery._tag, delivery._part
        # The next one to get it may learn that it runs elsewhere, and asks again.
        self._claims.give_back(delivery)
        if not (ledger.claim(tag, part) if part else ledger.nack(tag, requeue=requeue)):
            return self.stale()
        self._counters.nacked += 1
        self._fanin.answered(ledger)
        if part and requeue:
            self._answers.begin_again(ledger, tag, part, Original.of(delivery))
        elif part:
            self._answers.begin_park(ledger, tag, part, Original.of(delivery), "rejected")
        return True

    def retry(
        self, delivery: Delivery, *, delay_ms: int, headers: Mapping[str, Header]
    ) -> Awaitable[bool]:
        """Answer by a copy for another run, made when the claim on the message is given back."""

        def ended(answered: bool) -> None:
            self._counters.retried += answered
            self._copied(delivery, answered)

        ledger = delivery._ledger
        if not ledger.claim(delivery._tag, delivery._part):
            self._claims.give_back(delivery)
            return self._stale_answer()
        copying = self._answers.copies.again(
            Original.of(delivery), headers, is_live(ledger), delay_ms=delay_ms
        )
        return self._answers.wait_for(delivery, copying, before=self._claims.released, ended=ended)

    def park(
        self, delivery: Delivery, *, headers: Mapping[str, Header], then: Then | None = None
    ) -> Awaitable[bool]:
        """Answer by a copy in the parking queue."""

        def ended(answered: bool) -> None:
            self._counters.parked += answered
            self._copied(delivery, answered)

        ledger = delivery._ledger
        if not ledger.claim(delivery._tag, delivery._part):
            self._claims.give_back(delivery)
            if then is not None:
                then(delivery)
            return self._stale_answer()
        copying = self._answers.copies.park(Original.of(delivery), headers, is_live(ledger))
        settled = functools.partial(self._claims.parked, delivery)
        return self._answers.wait_for(delivery, copying, settled=settled, ended=ended, then=then)

    def _copied(self, delivery: Delivery, answered: bool) -> None:
        if answered:
            self._fanin.answered(delivery._ledger)
        else:
            self.stale()

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Hand out next, in this order, the deliveries taken last, which nobody has seen."""
        for ledger in dict.fromkeys(map(_ledger_of, deliveries)):
            if ledger.is_live:
                self._fanin.put_back(ledger, [one for one in deliveries if one._ledger is ledger])

    def untake(self, delivery: Delivery) -> None:
        """Undo `take`: the delivery is granted again later."""
        if delivery._ledger.is_live:
            self._fanin.answered(delivery._ledger)

    def rests(self, delivery: Delivery, *, is_retry: bool) -> None:
        """Count a delivery that waits for its next run in its place as held no more."""
        self._counters.retried += is_retry
        self._fanin.answered(delivery._ledger)

    def never_answered(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: they went with their link."""

    # Events.
    def entered(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: they come by `granted`."""

    def granted(self, deliveries: Iterable[Delivery]) -> None:
        """Give deliveries to the application in their turn; those of an ended link come again."""
        for ledger, some in itertools.groupby(deliveries, _ledger_of):
            if ledger.is_live:
                self._fanin.arrived(ledger, some)

    def held(self, deliveries: Sequence[Delivery]) -> None:
        """Do nothing: no others wait for these."""

    def answered(self, delivery: Delivery) -> None:
        """Do nothing: no others wait for it."""

    def park_unseen(self, delivery: Delivery, reason: str, then: Then | None = None) -> bool:
        """Park a delivery that the application never gets. False: it has its answer, or its link ended."""
        ledger, tag, part = delivery._ledger, delivery._tag, delivery._part
        if not ledger.claim(tag, part):
            self._claims.give_back(delivery)
            if then is not None:
                then(delivery)
            return False
        settled = functools.partial(self._claims.parked, delivery)
        headers = park_headers(delivery, reason, "")

        async def park() -> None:
            copying = self._answers.copies.park(Original.of(delivery), headers, is_live(ledger))
            self._counters.parked += await self._answers.given(
                copying, ledger, tag, part, settled=settled
            )
            if then is not None:
                then(delivery)

        self._answers.begin(park())
        return True

    def defer(self, delivery: Delivery, delay_ms: int) -> None:
        """Have a delivery come again after this time, as it is, without counting an attempt."""
        ledger, tag, part = delivery._ledger, delivery._tag, delivery._part
        if ledger.claim(tag, part):
            original = Original.of(delivery)
            self._answers.begin_again(ledger, tag, part, original, delay_ms=delay_ms)

    def withdrawn(
        self, ledger: Ledger, taken: Sequence[Delivery] = (), *, is_lost: bool = False
    ) -> list[Delivery]:
        """Take out what nobody has taken of a link, and what was taken and never seen."""
        self._fanin.put_back(ledger, taken)
        found = self._fanin.withdraw(ledger)
        if is_lost:
            self._fanin.dropped(ledger)
        return found

    def no_longer_held(self, ledger: Ledger, count: int) -> None:
        """Count so many deliveries as held by the application no more."""
        for _one in range(count):
            self._fanin.answered(ledger)

    # Questions.
    @property
    def is_full(self) -> bool:
        """True when the application holds as many deliveries as it may."""
        return self._fanin.is_full

    @property
    def handed_out(self) -> int:
        """The number of deliveries that the application holds."""
        return self._fanin.handed_out

    def is_next(self, delivery: Delivery) -> bool:
        return True

    def oldest(self, ledger: Ledger) -> Delivery | None:
        return self._fanin.oldest(ledger)

    def holds(self, ledger: Ledger, unclaimed: bool = False) -> bool:
        return unclaimed or self._fanin.holds(ledger)

    def buffered(self, unclaimed: int = 0) -> int:
        return unclaimed + self._fanin.buffered

    def claimed_by(self, claims: Claiming) -> None:
        """Report to these claims from now on. Called before anything arrives."""
        self._claims = claims


_ledger_of: Callable[[Delivery], Ledger] = operator.attrgetter("_ledger")

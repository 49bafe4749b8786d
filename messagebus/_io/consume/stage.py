"""The way of a delivery from its link to the application and back, in stages.

    link ─▶ Inbox ─▶ Claimed ─▶ Ordered, or LinkOrder ─▶ Plain ─▶ application
                        ▲                                            │ its answer
                        └────────────────────────────────────────────┘
                     the first stage, from which it goes on to the others

`Plain` is always there; `Claimed` where messages are deduplicated, `Ordered` where an order is kept, and
`LinkOrder` where a single active consumer deduplicates. The first of them gets what arrives and the answers
of the application. A stage knows the one behind it, and none knows the Inbox: what goes to a link is entered
in the ledger of the delivery, and `Inbox.flush` sends it.

    arrived ─▶ granted ─▶ taken ─▶ ack, nack, retry, park ─▶ answered
       │          ▲ its claim is stored, and it is the next of its lane
       ├─▶ held ──┘ somebody else runs its message
       └─▶ withdrawn: its link ends, or takes it back unseen

Everything runs on one asyncio loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Protocol

from messagebus.core.deliveries import Ledger
from messagebus.message import Delivery, Header


class Waiting(Protocol):
    """Deliveries that wait in a stage, or are held by the application."""

    def put_back(self, deliveries: Sequence[Delivery]) -> None:
        """Hand out next, in this order, the deliveries taken last, which nobody has seen."""

    def never_answered(self, deliveries: Sequence[Delivery]) -> None:
        """Take note of deliveries that were taken, whose link has ended, and that nobody will answer."""

    def withdrawn(
        self, ledger: Ledger, taken: Sequence[Delivery] = (), *, is_lost: bool = False
    ) -> list[Delivery]:
        """Take out what waits of a link, and return it. taken: goes with it, handed out and never seen.

        is_lost: the link has ended; what the application holds of it counts no more.
        """

    def oldest(self, ledger: Ledger) -> Delivery | None:
        """Return the delivery of a link that has waited longest unseen; None when there is none."""

    def holds(self, ledger: Ledger) -> bool:
        """Return whether deliveries of a link wait here, or are held by the application."""

    def buffered(self) -> int:
        """Return the number of deliveries that wait."""


class Stage(Waiting, Protocol):
    """One stage. False of an answer: it is stale, and counted: its link has ended, or it was answered."""

    @property
    def arrived(self) -> Callable[[Ledger, Sequence[Delivery]], None]:
        """Takes the deliveries of one read of a link, at least one."""

    @property
    def take(self) -> Callable[[], Delivery | None]:
        """Returns the next delivery; None when there is none or the application holds enough."""

    @property
    def ack(self) -> Callable[[Delivery], bool]:
        """Answers a delivery: it is done with."""

    def nack(self, delivery: Delivery, *, requeue: bool) -> bool:
        """Give a delivery back (requeue), or reject it into the parking queue."""

    def retry(
        self, delivery: Delivery, *, delay_ms: int, headers: Mapping[str, Header]
    ) -> Awaitable[bool]:
        """Have a delivery come again after this delay, with these headers. The waiter may be cancelled."""

    def park(self, delivery: Delivery, *, headers: Mapping[str, Header]) -> Awaitable[bool]:
        """Put a delivery into the parking queue, with these headers. The waiter may be cancelled."""


class BehindClaims(Waiting, Protocol):
    """A stage that may stand behind `Claimed`: it gets deliveries when their claims are stored.

    unclaimed: of deliveries that wait for their claims in the stage before.
    """

    @property
    def has_lanes(self) -> bool:
        """True when deliveries may wait here for others: it gets `entered` and `answered` then."""

    def entered(self, deliveries: Sequence[Delivery]) -> None:
        """Take note of deliveries that have arrived and will be granted."""

    def granted(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries that the application may have."""

    def held(self, deliveries: Sequence[Delivery]) -> None:
        """Take note of deliveries that wait, because somebody else runs their messages."""

    def answered(self, delivery: Delivery) -> None:
        """Take note of the end of a delivery that this stage is not asked to answer."""

    def park_unseen(self, delivery: Delivery, reason: str) -> bool:
        """Park a delivery that the application never gets. False: it has its answer, or its link ended."""

    def is_next(self, delivery: Delivery) -> bool:
        """Return whether a delivery would go to the application if it were granted."""

    def holds(self, ledger: Ledger, unclaimed: bool = False) -> bool:
        """Return whether deliveries of a link wait, or are held by the application."""

    def buffered(self, unclaimed: int = 0) -> int:
        """Return the number of deliveries that wait."""


class Claiming(Protocol):
    """The claims on the messages of a consumer, as far as the stages behind `Claimed` deal with them."""

    def give_back(self, delivery: Delivery) -> None:
        """Let a message run again, without waiting for the store."""

    async def released(self, delivery: Delivery) -> None:
        """Let a message run again, and return when the store knows."""

    async def parked(self, delivery: Delivery, stored: bool) -> None:
        """Tell that a copy is in the parking queue, and return when the store knows. stored: it is."""

    def dropped(self, deliveries: Iterable[Delivery]) -> None:
        """Give the claims up of deliveries that go back unseen, or whose link has ended."""

    def may_start(self, delivery: Delivery) -> bool:
        """Return whether its claim still stands. False: it is asked for again, and granted again."""

    def has_claim(self, delivery: Delivery) -> bool:
        """Return whether a delivery has a claim, or is to have one: False for a message without an id."""

    def is_telling(self, delivery: Delivery) -> bool:
        """Return whether the store is still to be told about the last run of a delivery."""

    def comes_again(self, delivery: Delivery) -> None:
        """Claim a delivery for its next run, before its copies."""

    def let_go(self, deliveries: Sequence[Delivery]) -> None:
        """Give up the claims of these until `ask` names them."""

    def ask(self, deliveries: Sequence[Delivery]) -> None:
        """Ask for the claims of these again."""

    def look_again(self) -> None:
        """Take note that other deliveries may be the next of their lanes."""

    def overran(self, deliveries: list[Delivery]) -> None:
        """Keep the claims of a run that goes on: its answer follows."""

    def ended_late(self, deliveries: list[Delivery], *, well: bool) -> None:
        """Give back the claims of a run that overran and has ended; well: they are done."""


class NoClaims:
    """`Claiming` of a consumer without deduplication: every message may run."""

    def give_back(self, delivery: Delivery) -> None:
        pass

    async def released(self, delivery: Delivery) -> None:
        pass

    async def parked(self, delivery: Delivery, stored: bool) -> None:
        pass

    def dropped(self, deliveries: Iterable[Delivery]) -> None:
        pass

    def may_start(self, delivery: Delivery) -> bool:
        return True

    def has_claim(self, delivery: Delivery) -> bool:
        return False

    def is_telling(self, delivery: Delivery) -> bool:
        return False

    def comes_again(self, delivery: Delivery) -> None:
        pass

    def let_go(self, deliveries: Sequence[Delivery]) -> None:
        pass

    def ask(self, deliveries: Sequence[Delivery]) -> None:
        pass

    def look_again(self) -> None:
        pass

    def overran(self, deliveries: list[Delivery]) -> None:
        pass

    def ended_late(self, deliveries: list[Delivery], *, well: bool) -> None:
        pass

"""_io.publish.destinations: the moment from which a destination may be published to."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, cast

import pytest

from messagebus._io.amqp.link import Link
from messagebus._io.loop import Tasks
from messagebus._io.publish import destinations as module
from messagebus._io.publish.destinations import Destinations
from messagebus._io.publish.targets import Address
from messagebus._io.wire import Registration
from messagebus.core.ends import LATE_WHILE_OPENED, Item
from messagebus.core.pending import PendingPublishes
from messagebus.destination import Delay, Destination, Queue, Subscription, Topic
from messagebus.errors import (
    ChannelRefused,
    LinkLost,
    LoginRefused,
    MessageBusError,
    RegistrationIncomplete,
    TopologyMismatch,
)
from messagebus.stats import Outcome
from messagebus.testing import MemoryBus
from messagebus.topology import Wanted
from tests.support.eventually import eventually_async

ORDERS, SECRETS = Topic("orders"), Topic("secrets")


class FakeTopology:
    """Topology that answers from a list of faults; None is an answer without one."""

    def __init__(self, *faults: MessageBusError | None) -> None:
        self.faults = list(faults)
        self.asked = 0
        self.missing: dict[Destination | Delay, MessageBusError] = {}
        self.verified: list[list[Destination | Delay]] = []
        self.queues: set[Queue] = set()

    async def exists(self, queue: Queue, *, timeout_ms: int) -> bool:
        return queue in self.queues

    async def register(
        self,
        wanted: Sequence[Wanted],
        *,
        timeout_ms: int,
        enough: bool = False,
        on_answer: Callable[[Registration], None] | None = None,
    ) -> Registration:
        self.asked += 1
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        return Registration(True)

    async def homes(self, topic: str, known: str, *, wait_s: int) -> str:
        return known

    async def verify(
        self, link: Link, destinations: Iterable[Destination | Delay]
    ) -> Mapping[Destination | Delay, MessageBusError]:
        self.verified.append(list(destinations))
        return {each: fault for each, fault in self.missing.items() if each in self.verified[-1]}

    async def plain_sources(self, destinations: Collection[str]) -> list[str]:
        return []

    async def delete(self, source: Subscription, *, timeout_ms: int) -> None:
        raise AssertionError("a publisher deletes nothing")


class Bench:
    """Destinations over real pending publishes."""

    def __init__(self, topology: FakeTopology) -> None:
        self.topology = topology
        self.pending = PendingPublishes(
            messages_max=100,
            bytes_max=1000,
            window=10,
            window_bytes_max=1000,
            attempts_max=3,
            retry_unknown=True,
        )
        self.tasks = Tasks()
        self.settled: list[Item] = []
        self.left = 0
        self.login: list[LoginRefused] = []
        self.link: Link | None = None
        self.destinations = Destinations(
            topology,
            self.pending,
            self.tasks,
            link=lambda: self.link,
            settle=self.settled.extend,
            wake=lambda: None,
            leave=self._leave,
            on_login_refused=self.login.append,
        )

    def _leave(self) -> None:
        self.left += 1

    def publish(self, destination: Destination) -> None:
        self.destinations.use(Address.of(destination))
        self.pending.backlog.accept(Item("id", destination.exchange, 1, 10_000))

    async def opened(self, destination: Destination) -> None:
        await eventually_async(
            lambda: self.pending.backlog.is_open(destination.exchange), within_s=5
        )


async def test_a_destination_is_registered_once_and_then_open() -> None:
    bench = Bench(FakeTopology())
    bench.publish(ORDERS)
    bench.publish(ORDERS)
    assert not bench.pending.backlog.is_open(ORDERS.exchange)
    await bench.opened(ORDERS)
    assert bench.topology.asked == 1
    assert bench.settled == []


async def test_a_deadline_while_the_queues_are_created_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bus, created = MemoryBus(), asyncio.Event()
    bus.declare("orders/billing")
    register = FakeTopology.register

    async def slowly(*given: Any, **more: Any) -> Registration:
        await created.wait()
        return await register(FakeTopology(), *given[1:], **more)

    monkeypatch.setattr("messagebus.testing.links._MemoryTopology.register", slowly)
    async with bus.async_publisher() as publisher:
        late = await (await publisher.submit("orders", b"x", timeout_s=0.05))
        assert (late.outcome, late.reason) == (Outcome.REFUSED, LATE_WHILE_OPENED)
        created.set()
        assert (await publisher.send_safe("orders", b"y")).outcome is Outcome.CONFIRMED


async def test_a_link_that_ends_meanwhile_is_left_and_the_registration_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0)
    bench = Bench(FakeTopology(LinkLost("mb1:5672", "ended")))
    bench.publish(ORDERS)
    await bench.opened(ORDERS)
    assert (bench.left, bench.topology.asked) == (1, 2)


async def test_what_cannot_be_registered_is_refused_with_the_reason() -> None:
    bench = Bench(FakeTopology(RegistrationIncomplete("orders", {"mb2:5672": "agent dead"})))
    bench.publish(ORDERS)
    await eventually_async(lambda: bench.settled, within_s=5)
    assert bench.settled[0].end is not None
    assert bench.settled[0].end.outcome == "refused"
    assert "mb2:5672" in bench.settled[0].end.reason


async def test_a_refused_login_is_told_and_settles() -> None:
    bench = Bench(FakeTopology(LoginRefused("mb1:5672", "wrong password")))
    bench.publish(ORDERS)
    await eventually_async(lambda: bench.settled, within_s=5)
    assert bench.login


async def test_a_forbidden_destination_is_refused_for_a_while_and_no_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(FakeTopology())
    bench.publish(ORDERS)
    bench.publish(SECRETS)
    await bench.opened(ORDERS)
    await bench.opened(SECRETS)
    text = "ACCESS_REFUSED - access to exchange 'mb.topic/secrets' refused for user 'bus'"
    bench.destinations.link_lost(ChannelRefused("mb1:5672", 403, text))
    assert [each.destination for each in bench.settled] == [SECRETS.exchange]
    bench.publish(SECRETS)
    await eventually_async(lambda: len(bench.settled) == 2, within_s=5)
    assert bench.pending.backlog.is_open(ORDERS.exchange)
    monkeypatch.setattr("time.monotonic", lambda: float("inf"))
    bench.publish(SECRETS)
    await bench.tasks.cancel()
    assert len(bench.settled) == 2, "after a while it is tried again"


async def test_a_destination_that_may_not_even_be_looked_at_is_refused_and_costs_no_link() -> None:
    text = "ACCESS_REFUSED - configure access to exchange 'mb.topic/secrets' refused for user 'bus'"
    bench = Bench(FakeTopology(ChannelRefused("mb1:5672", 403, text)))
    bench.publish(SECRETS)
    await eventually_async(lambda: bench.settled, within_s=5)
    assert bench.settled[0].end is not None
    assert bench.settled[0].end.reason.endswith(text)
    assert (bench.left, bench.topology.asked) == (0, 1)


async def test_a_destination_that_was_deleted_costs_the_others_nothing_and_is_not_revived() -> None:
    bench, link = Bench(FakeTopology()), cast(Link, None)
    for topic in (ORDERS, SECRETS):
        bench.publish(topic)
        await bench.opened(topic)
    bench.pending.in_flight.opened(1, after=())
    bench.pending.take(0)
    bench.topology.missing = {SECRETS: ChannelRefused("mb1:5672", 404, "no exchange")}
    await bench.destinations.verify(link)
    assert bench.topology.verified == [[ORDERS, SECRETS]]
    assert bench.pending.backlog.is_open(ORDERS.exchange)
    assert not bench.pending.backlog.is_open(SECRETS.exchange)
    assert (bench.settled, bench.topology.asked) == ([], 2)
    bench.topology.missing = {}
    await bench.destinations.verify(link)
    assert bench.topology.verified[-1] == [ORDERS]
    bench.publish(SECRETS)
    await bench.opened(SECRETS)
    assert bench.topology.asked == 3


async def test_what_waits_for_a_destination_that_was_deleted_has_it_registered_again() -> None:
    bench, link = Bench(FakeTopology()), cast(Link, None)
    bench.publish(SECRETS)
    await bench.opened(SECRETS)
    bench.topology.missing = {SECRETS: ChannelRefused("mb1:5672", 404, "no exchange")}
    await bench.destinations.verify(link)  # its publish is still in the backlog
    await bench.opened(SECRETS)
    bench.pending.in_flight.opened(1, after=())
    bench.pending.take(0)
    await bench.destinations.verify(link)
    assert bench.topology.asked == 2
    bench.pending.link_lost(1, 0)  # and comes back with the link that it went out on
    bench.destinations.link_lost(LinkLost("mb1:5672", "ended"))
    await bench.opened(SECRETS)
    assert (bench.topology.asked, bench.settled) == (3, [])


async def test_what_exists_otherwise_on_a_new_link_is_refused_and_no_other() -> None:
    bench = Bench(FakeTopology())
    for topic in (ORDERS, SECRETS):
        bench.publish(topic)
        await bench.opened(topic)
    bench.topology.missing = {SECRETS: TopologyMismatch("durability is wanted ...")}
    await bench.destinations.verify(cast(Link, None))
    assert [each.destination for each in bench.settled] == [SECRETS.exchange]
    assert bench.pending.backlog.is_open(ORDERS.exchange)


@pytest.mark.parametrize(
    "why", [LinkLost("mb1:5672", "'mb.topic/orders'"), ChannelRefused("mb1:5672", 404, "gone")]
)
async def test_other_ends_of_a_link_refuse_nothing(why: LinkLost | ChannelRefused) -> None:
    bench = Bench(FakeTopology())
    bench.publish(ORDERS)
    await bench.opened(ORDERS)
    bench.destinations.link_lost(why)
    assert bench.settled == []


async def test_a_queue_that_nobody_declared_is_unroutable_and_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench, queue = Bench(FakeTopology()), Queue("remniders")
    bench.publish(queue)
    await eventually_async(lambda: bench.settled, within_s=5)
    bench.publish(queue)
    await eventually_async(lambda: len(bench.settled) == 2, within_s=5)
    ends = [item.end for item in bench.settled]
    assert [end.outcome for end in ends if end] == ["unroutable", "unroutable"]
    assert "queue:remniders was never declared" in ends[0].reason  # type: ignore[union-attr]
    assert bench.topology.asked == 0
    # Once it is asked for by name, or has been declared, it is open.
    bench.publish(Queue("remniders", create=True))
    await bench.opened(queue)
    monkeypatch.setattr(module, "ABSENT_S", 0.0)
    other = Queue("reminders")
    bench.publish(other)
    await eventually_async(lambda: len(bench.settled) == 3, within_s=5)
    bench.topology.queues.add(other)
    bench.publish(other)
    await bench.opened(other)


LANES = [Topic(f"lane{number}") for number in range(10_000)]


async def with_lanes() -> Bench:
    """Return destinations that have used all lanes and have no message of them any more."""
    bench = Bench(FakeTopology())
    for topic in LANES:
        address = Address.of(topic)
        bench.destinations.known[address.destination] = address
        bench.pending.backlog.open(address.destination)
    return bench


async def adopt(bench: Bench, link: Link) -> None:
    """Dial this link and use it, as the driver does."""
    unseen = await bench.destinations.verify(link)
    bench.link = link
    bench.destinations.rest(unseen)


async def test_thousands_of_used_destinations_do_not_keep_a_new_link_from_its_first_publish() -> (
    None
):
    bench, link = await with_lanes(), cast(Link, object())
    waiting = [LANES[5_000], LANES[9_999]]
    for topic in waiting:
        bench.publish(topic)
    await adopt(bench, link)
    (looked_for,) = bench.topology.verified
    assert len(looked_for) == module.LOOKS_AT_ONCE
    assert looked_for[:2] == waiting, "those for which messages wait come first"
    bench.pending.in_flight.opened(1, after=())
    assert {entry.destination for entry in bench.pending.take(0)} == {t.exchange for t in waiting}


async def test_a_destination_that_rests_is_looked_for_once_a_message_waits_and_not_registered() -> (
    None
):
    bench = await with_lanes()
    await adopt(bench, cast(Link, object()))
    bench.topology.missing = {LANES[501]: ChannelRefused("mb1:5672", 403, "forbidden")}
    for number in (500, 501, 500, 502):
        bench.publish(LANES[number])
    await bench.opened(LANES[502])
    await bench.opened(LANES[500])
    assert bench.topology.verified[1:] == [[LANES[500], LANES[501], LANES[502]]], "together"
    assert [each.destination for each in bench.settled] == [LANES[501].exchange]
    assert bench.topology.asked == 0


async def test_more_messages_than_a_dial_looks_for_go_out_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0)
    bench = await with_lanes()
    many = LANES[: 3 * module.LOOKS_AT_ONCE]
    for topic in many:
        bench.publish(topic)
    await adopt(bench, cast(Link, object()))
    await bench.opened(many[-1])
    assert [len(each) for each in bench.topology.verified] == 3 * [module.LOOKS_AT_ONCE]


async def test_what_came_back_with_a_link_opens_a_destination_that_rests() -> None:
    bench = await with_lanes()
    bench.publish(LANES[700])
    bench.pending.in_flight.opened(1, after=())
    bench.pending.take(0)
    bench.link = cast(Link, object())
    bench.destinations.rest([bench.destinations.known[LANES[700].exchange]])
    assert bench.destinations.of_place(LANES[700].exchange), "a return of it still counts"
    bench.pending.link_lost(1, 0)
    bench.destinations.open_held()
    await bench.opened(LANES[700])


async def test_a_destination_that_nobody_uses_is_forgotten_after_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FORGET_S", 0)
    bench = await with_lanes()
    await adopt(bench, cast(Link, object()))
    assert len(bench.destinations.known) == module.LOOKS_AT_ONCE
    await adopt(bench, cast(Link, object()))
    assert len(bench.pending.backlog._destinations) == module.LOOKS_AT_ONCE
    bench.publish(LANES[600])
    await bench.opened(LANES[600])
    assert bench.topology.asked == 1, "it is registered again"

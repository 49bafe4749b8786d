"""The driver of a consumer, and runs of its handlers."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from messagebus import (
    AlreadySettled,
    BusConfig,
    ConsumerConfig,
    Delivery,
    Hooks,
    Message,
    Park,
    Queue,
    Receipt,
    Reject,
    RetryLater,
    RetryPolicy,
    Secret,
    Subscription,
    Topic,
    TopologyMismatch,
)
from messagebus._io.amqp.link import Link
from messagebus._io.amqp.properties import encode
from messagebus._io.consume.driver import ConsumeDriver
from messagebus._io.consume.runs import (
    LINES_MAX,
    Handling,
    is_coroutine_handler,
    words_of,
)
from messagebus._io.hooks import hook_chain
from messagebus._io.wire import Registration, Topology
from messagebus.broker import Broker, BrokerList, ListedBroker
from messagebus.consumer import fulfilled
from messagebus.handling import Words
from messagebus.message import Header
from messagebus.testing.brokers import MemoryBrokers, Route
from messagebus.testing.links import MemoryWire
from messagebus.testing.queues import MemoryQueue, Stored
from messagebus.topology import Wanted

TOLD = "queue:q: durability is wanted page-cache and exists fsync"
WAIT_S = 10.0


def nothing(_before_ns: int, _all_if_any: bool) -> list[Delivery]:
    return []


class RefusedFirst(MemoryWire):
    """Wire that refuses the registration at once; links open only after that."""

    def __init__(self, brokers: MemoryBrokers) -> None:
        super().__init__(brokers)
        self.refused = asyncio.Event()

    def topology(self) -> Topology:
        topology, refused = super().topology(), self.refused

        async def register(
            wanted: Sequence[Wanted],
            *,
            timeout_ms: int,
            enough: bool = False,
            on_answer: object = None,
        ) -> Registration:
            refused.set()
            raise TopologyMismatch(TOLD)

        topology.register = register  # type: ignore[method-assign]
        return topology

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        await self.refused.wait()
        return await super().dial(broker, timeout_ms=timeout_ms)


async def test_a_mismatch_is_told_even_where_links_open_after_it() -> None:
    brokers = MemoryBrokers(["mb1:5672", "mb2:5672"])
    brokers.declare(Queue("q"))
    driver = ConsumeDriver(
        BusConfig(broker="mb1"),
        Queue("q"),
        ConsumerConfig(),
        lambda: None,
        RefusedFirst(brokers),
        withdraw=nothing,
    )
    driver.start()
    try:
        assert await driver.wait_until(
            lambda: [each.state for each in driver.stats().brokers.values()] == ["open"] * 2, WAIT_S
        )
        with pytest.raises(TopologyMismatch, match=TOLD):
            await fulfilled(driver, "all", timeout_s=0)
    finally:
        await driver.stop(0)


class Answering(MemoryWire):
    """Wire whose registrations create what they are asked for, every time."""

    def topology(self) -> Topology:
        topology = super().topology()

        async def register(
            wanted: Sequence[Wanted],
            *,
            timeout_ms: int,
            enough: bool = False,
            on_answer: Callable[[Registration], None] | None = None,
        ) -> Registration:
            found = Registration(True, created=tuple(map(str, wanted)))
            assert on_answer is not None
            on_answer(found)
            return found

        topology.register = register  # type: ignore[method-assign]
        return topology


@pytest.mark.parametrize(("expires_s", "lines"), [(0, 1), (60, 0)])
async def test_a_subscription_that_nobody_had_declared_is_named_when_its_consumer_creates_it(
    caplog: pytest.LogCaptureFixture, expires_s: int, lines: int
) -> None:
    brokers = MemoryBrokers(["mb1:5672"])
    source = Subscription(Topic("orders"), "biling", expires_s=expires_s)
    brokers.declare(source)
    driver = ConsumeDriver(
        BusConfig(broker="mb1"),
        source,
        ConsumerConfig(),
        lambda: None,
        Answering(brokers),
        withdraw=nothing,
    )
    driver.start()
    assert await driver.wait_until(lambda: driver.registering.registration is not None, WAIT_S)
    await driver.stop(0)
    created = [each for each in caplog.messages if "created source=orders/biling" in each]
    assert len(created) == lines


ORDERED = Subscription(Topic("orders"), "billing", single_active=True)


@pytest.mark.guarantee("single-active-keeps-order")
async def test_of_a_removed_broker_a_single_active_consumer_finishes_what_it_has_and_keeps_the_order() -> (
    None
):
    brokers = MemoryBrokers(["mb1:5672", "mb2:5672"])
    brokers.declare(ORDERED)
    queue = brokers.all["mb1:5672"].queues[ORDERED.amqp_queue]
    _put(brokers, queue, 0, 4)
    first, second = [
        ConsumeDriver(
            BusConfig(),
            ORDERED,
            ConsumerConfig(),
            lambda: None,
            MemoryWire(brokers),
            withdraw=nothing,
        )
        for _ in range(2)
    ]
    first.start()
    assert await first.wait_until(lambda: _owed(first) == 4, WAIT_S)
    second.start()
    try:
        assert await second.wait_until(second.links.is_attached_to_all, WAIT_S)
        held = [first.take(), first.take()]
        first.links.listed(_listed("mb2:5672"))
        _put(brokers, queue, 4, 6)
        assert await first.wait_until(lambda: _owed(first) == 6, WAIT_S), "not cancelled"
        held += [first.take(), first.take()]
        assert first.take() is None, "what came later goes back"
        assert _owed(second) == 0
        for delivery in held:
            assert delivery is not None
            assert first.ack(delivery)
        assert await second.wait_until(lambda: _owed(second) == 2, WAIT_S)
        assert await first.wait_until(lambda: list(first.stats().brokers) == ["mb2:5672"], WAIT_S)
        rest = [second.take(), second.take()]
        bodies = [each.body for each in [*held, *rest] if each is not None]
        assert bodies == [b"0", b"1", b"2", b"3", b"4", b"5"]
    finally:
        await first.stop(0)
        await second.stop(0)


def _put(brokers: MemoryBrokers, queue: MemoryQueue, begin: int, end: int) -> None:
    with brokers.lock:
        for number in range(begin, end):
            raw = encode(Message(body=b""), str(number), 0)
            queue.put(
                Stored(next(brokers.places), Route("", queue.name), raw, str(number).encode())
            )
        queue.hand_out()


def _owed(driver: ConsumeDriver) -> int:
    return sum(each.owed for each in driver.stats().brokers.values())


def _listed(*names: str) -> BrokerList:
    return BrokerList(listed=tuple(ListedBroker(broker=Broker.parse(name)) for name in names))


class SwallowsSome(MemoryWire):
    """Wire with some brokers that never answer a dial."""

    def __init__(self, brokers: MemoryBrokers, deaf: frozenset[str]) -> None:
        super().__init__(brokers)
        self._deaf = deaf

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        if broker is not None and broker.name in self._deaf:
            await asyncio.sleep(timeout_ms / 1000 + WAIT_S)
        return await super().dial(broker, timeout_ms=timeout_ms)


async def test_brokers_that_swallow_their_dials_do_not_keep_others_from_being_dialled() -> None:
    deaf = [f"mb{number:02d}:5672" for number in range(40)]
    brokers = MemoryBrokers([*deaf, "mb99:5672"])
    brokers.declare(Queue("q"))
    wire = SwallowsSome(brokers, frozenset(deaf))
    driver = ConsumeDriver(
        BusConfig(dial_timeout_s=8),
        Queue("q"),
        ConsumerConfig(),
        lambda: None,
        wire,
        withdraw=nothing,
    )
    driver.start()
    try:
        assert await driver.wait_until(driver.links.is_attached_to_one, WAIT_S)
        assert [
            broker for broker, each in driver.stats().brokers.items() if each.state == "open"
        ] == ["mb99:5672"]
    finally:
        await driver.stop(0)


class EndsWhileAttaching(MemoryWire):
    """Wire whose first links end at the moment at which they are about to consume."""

    def __init__(self, brokers: MemoryBrokers, count: int) -> None:
        super().__init__(brokers)
        self._left = count

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        link = await super().dial(broker, timeout_ms=timeout_ms)
        if self._left:
            self._left -= 1
            call = link.call

            async def call_and_end(method: str, **arguments: Any) -> Any:
                found = await call(method, **arguments)
                link.abort()
                return found

            link.call = call_and_end  # type: ignore[method-assign]
        return link


@pytest.mark.parametrize("redial_first_ms", [0, 1])
async def test_a_link_that_ends_while_it_attaches_leaves_the_next_one_to_consume(
    redial_first_ms: int,
) -> None:
    brokers = MemoryBrokers(["mb1:5672"])
    brokers.declare(Queue("q"))
    wire = EndsWhileAttaching(brokers, 2)
    wire.redial_first_ms = redial_first_ms
    driver = ConsumeDriver(
        BusConfig(), Queue("q"), ConsumerConfig(), lambda: None, wire, withdraw=nothing
    )
    driver.start()
    try:
        _put(brokers, brokers.all["mb1:5672"].queues["mb.queue/q"], 0, 1)
        assert await driver.wait_until(lambda: _owed(driver) == 1, WAIT_S)
        assert len(brokers.all["mb1:5672"].sites) == 1
    finally:
        await driver.stop(0)


class CountsDials(MemoryWire):
    dials = 0

    async def dial(self, broker: Broker | None, *, timeout_ms: int) -> Link:
        self.dials += 1
        return await super().dial(broker, timeout_ms=timeout_ms)


async def test_a_link_that_is_lost_during_a_stop_is_not_dialled_again() -> None:
    brokers = MemoryBrokers(["mb1:5672"])
    brokers.declare(Queue("q"))
    wire = CountsDials(brokers)
    driver = ConsumeDriver(
        BusConfig(), Queue("q"), ConsumerConfig(), lambda: None, wire, withdraw=nothing
    )
    driver.start()
    _put(brokers, brokers.all["mb1:5672"].queues["mb.queue/q"], 0, 1)
    assert await driver.wait_until(lambda: _owed(driver) == 1, WAIT_S)
    assert driver.take() is not None
    stopping = asyncio.create_task(driver.stop(WAIT_S))
    await asyncio.sleep(0)
    brokers.lose(None)
    assert await stopping == 0
    assert wire.dials == 1, "nobody would close its link"


def delivery(attempt: int = 1, body: bytes = b"", received_ns: int = 0) -> Delivery:
    receipt = Receipt("mb1:5672", 1, 1)
    message = Message(body=body, message_id="id")
    return Delivery(message, receipt, Queue("jobs"), attempt=attempt, received_ns=received_ns)


class FakeAnswering:
    def __init__(self) -> None:
        self.answers: list[tuple[Any, ...]] = []
        self.live, self.settled = True, False

    def _answered(self, *answer: Any) -> bool:
        if self.settled:
            raise AlreadySettled("id was answered before")
        self.answers.append(answer)
        return self.live

    def ack(self, _delivery: Delivery) -> bool:
        return self._answered("ack")

    def retry(self, _delivery: Delivery, delay_ms: int, headers: Mapping[str, Header]) -> bool:
        return self._answered("retry", delay_ms, headers["mb-attempt"], headers["mb-retry-reason"])

    def park(self, _delivery: Delivery, headers: Mapping[str, Header]) -> bool:
        return self._answered("park", headers["mb-park-reason"], headers["mb-park-exception"])


class Told(Hooks):
    def __init__(self) -> None:
        self.handled_: list[tuple[str, BaseException | None]] = []

    def handled(self, delivery: Delivery, answer: str, error: BaseException | None) -> None:
        self.handled_.append((answer, error))


POLICY = RetryPolicy(attempts_max=2, first_delay_s=3, jitter=0, give_up_on=(LookupError,))


class Bench:
    def __init__(
        self,
        policy: RetryPolicy | None = POLICY,
        *,
        time_limit_s: float | None = None,
        answers_first: bool = False,
        handler: Callable[[Delivery], object] = lambda _delivery: None,
    ) -> None:
        self.answering, self.told = FakeAnswering(), Told()
        self.handling = Handling(
            handler,
            self.answering,
            policy=policy,
            time_limit_s=time_limit_s,
            chain=hook_chain([self.told]),
            words=lambda: Words(["s3cret"]),
            answers_first=answers_first,
            consumer_timeout_s=100,
        )

    @property
    def answers(self) -> list[tuple[Any, ...]]:
        return self.answering.answers


ERROR = ValueError("not s3cret")


@pytest.mark.parametrize(
    ("error", "attempt", "answer", "told", "failed"),
    [
        (ERROR, 1, ("retry", 3_000, 2, "ValueError: not ***"), ("retry", ERROR), 1),
        (ERROR, 2, ("park", "2 of 2 attempts failed", "ValueError: not ***"), ("park", ERROR), 1),
        (RetryLater(9, "why"), 1, ("retry", 9_000, 2, "why"), ("retry", None), 0),
        (Park("why s3cret"), 1, ("park", "why ***", "Park: why ***"), ("park", None), 0),
        (Reject("why"), 1, ("park", "why", "Reject: why"), ("park", None), 0),
    ],
)
def test_each_end_has_its_answer_its_words_and_its_count(
    error: Exception,
    attempt: int,
    answer: tuple[Any, ...],
    told: tuple[str, BaseException | None],
    failed: int,
) -> None:
    bench = Bench()
    bench.handling.failed(delivery(attempt), error)
    assert bench.answers == [answer]
    assert bench.told.handled_ == [told]
    assert bench.handling.stats()["failed"] == failed


def test_what_a_handler_returns_counts_only_where_it_says_something() -> None:
    bench = Bench()
    for result in (None, 17, "Park", Exception, Park("x")):
        bench.handling.returned(delivery(), result)
    assert [answer[0] for answer in bench.answers] == ["ack"] * 4 + ["park"]


class Proxy:
    """Proxy of nothing: it cannot even be asked what it is."""

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        raise RuntimeError("no object")


def test_what_a_handler_returns_by_mistake_is_a_failed_run_and_no_ack() -> None:
    bench = Bench()
    mistakes = [RetryLater, Park, (each for each in "x"), Proxy()]
    for result in mistakes:
        bench.handling.returned(delivery(), result)
    assert [answer[0] for answer in bench.answers] == ["retry"] * len(mistakes)


def test_stale_answers_and_those_of_the_handler_itself_are_told_as_such() -> None:
    bench = Bench()
    bench.answering.live = False
    gone = delivery()
    gone._ledger.end()
    bench.handling.acked(gone)
    bench.handling.failed(gone, ERROR)
    assert bench.told.handled_ == [("stale", None), ("stale", ERROR)]
    bench = Bench()
    bench.answering.settled = True
    bench.handling.acked(delivery())
    bench.handling.failed(delivery(), ERROR)
    assert [answer for answer, _ in bench.told.handled_] == ["ack", "ack"]


def test_one_line_is_told_of_a_failed_run_without_passwords(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)

    def fails() -> None:
        raise ValueError("s3cret " + "x" * 10_000_000)

    bench = Bench()
    try:
        fails()
    except ValueError as error:
        bench.handling.failed(delivery(), error)
    (line,) = caplog.messages
    assert line.startswith("run failed handler=")
    assert f"broker={delivery().broker} message=id attempt=1 answer=retry delay_s=5 error=" in line
    assert line.endswith(" fails'")
    assert len(line) < 3_000
    assert "s3cret" not in line


def test_a_handler_that_always_fails_fills_no_disk(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    for _ in range(LINES_MAX + 50):
        bench.handling.failed(delivery(), ERROR)
    assert len(caplog.messages) == LINES_MAX


def test_coroutine_functions_are_known_in_every_dress() -> None:
    async def coroutine(_delivery: Delivery) -> None: ...

    class WithCall:
        async def __call__(self, _delivery: Delivery) -> None: ...

        async def method(self, _delivery: Delivery) -> None: ...

    for handler in (coroutine, functools.partial(coroutine), WithCall(), WithCall().method):
        assert is_coroutine_handler(handler)
    for plain in (print, lambda _delivery: None, Bench):
        assert not is_coroutine_handler(plain)


def test_the_password_of_the_bus_is_hidden_as_it_is_now(tmp_path: Any) -> None:
    file = tmp_path / "password"
    file.write_text("first")
    bus = BusConfig(password=Secret("plain"), password_file=str(file))
    file.write_text("second")
    assert words_of(bus).short("plain first second") == "*** first ***"
    file.unlink()
    assert words_of(bus).short("plain second") == "*** second"


def test_a_message_id_forges_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    forged = Message(body=b"", message_id="id\nforged\x1b[2J")
    strange = Delivery(forged, Receipt("mb1:5672", 1, 1), Queue("jobs"))
    Bench().handling.failed(strange, ValueError("x"))
    (line,) = caplog.messages
    assert "message=id\\nforged\\x1b[2J attempt=" in line
    assert line.isprintable()

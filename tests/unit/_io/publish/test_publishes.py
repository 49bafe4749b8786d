"""_io.publish.publishes: ids that never repeat, and exactly one end for each waiting call."""

from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from messagebus._io.publish.publishes import (
    Address,
    Bundle,
    Many,
    Publish,
    Targets,
    destination_name,
    message_ids,
    tell,
)
from messagebus.core.outbox import End
from messagebus.destination import Queue, Topic, delay_step
from messagebus.stats import Durability, Outcome, Published


def publish(waiter: object = None, durability: Durability = Durability.FSYNC) -> Publish:
    target = Targets().of(Queue("jobs", durability), "text/x")
    return Publish("id", target, b"body", None, 1_000, waiter)  # type: ignore[arg-type]


def test_ids_are_32_hex_digits_and_never_repeat() -> None:
    ids = list(islice(message_ids(), 10_000))
    assert len({*ids, *islice(message_ids(), 10_000)}) == 20_000
    assert all(len(each) == 32 and int(each, 16) >= 0 for each in ids)
    assert ids == sorted(ids)


def test_an_address_names_exchange_and_routing_key_as_a_return_does() -> None:
    at_once, later = Address.of(Topic("orders")), Address.of(Topic("orders"), delay_step(1000))
    copy = Address.queue("mb.park/x", Durability.FSYNC)
    assert (at_once.destination, later.destination) == (
        "mb.topic/orders",
        "mb.delay/1000 mb.topic/orders",
    )
    for address in (at_once, later, copy):
        assert address.destination == destination_name(address.exchange, address.routing_key)
    assert [len(address.wanted) for address in (at_once, later, copy)] == [1, 2, 0]


async def test_who_waits_is_told_the_end_once() -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    one = publish(future)
    one.attempts, one.sent, one.end = 2, ("mb1:5672", 5), End("confirmed")
    tell([one], 9)
    tell([one], 10)
    assert await future == Published(
        "id", Outcome.CONFIRMED, Durability.FSYNC, "mb1:5672", 2, 5, 9, ""
    )


@pytest.mark.parametrize("outcome", ["refused", "unroutable", "unknown"])
async def test_only_what_is_confirmed_is_durable(outcome: str) -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    one = publish(future)
    one.end = End(outcome, "why")
    tell([one], 9)
    published = await future
    assert (published.outcome.value, published.reason) == (outcome, "why")
    assert published.durability is Durability.NONE


@pytest.mark.parametrize("durability", list(Durability))
async def test_the_level_reached_is_that_of_the_destination(durability: Durability) -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    one = publish(future, durability)
    one.end = End("confirmed")
    tell([one], 9)
    assert (await future).durability is durability


async def test_a_future_that_was_given_up_is_let_be() -> None:
    future: asyncio.Future[Published] = asyncio.get_running_loop().create_future()
    future.cancel()
    one = publish(future)
    one.end = End("confirmed")
    tell([one, publish()], 9)


async def test_many_are_told_together_when_the_last_is_settled_in_the_order_of_their_adding() -> (
    None
):
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    many = Many(finished)
    publishes = [publish(many) for _ in range(3)]
    for number, each in enumerate(publishes):
        each.message_id = str(number)
        each.end = End("confirmed")
        many.add(each)
    tell(publishes[:0:-1], 9)
    many.all_added()
    assert not finished.done()
    tell(publishes[:1], 9)
    await finished
    assert [each.message_id for each in many.results()] == ["0", "1", "2"]


async def test_many_of_none_are_finished_at_once() -> None:
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    many = Many(finished)
    many.all_added()
    assert finished.done()
    assert many.results() == []


async def test_every_message_of_a_bundle_has_the_end_under_its_own_id() -> None:
    finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    many, target = Many(finished), Targets().of(Queue("jobs"), "text/x")
    bundle, single = Bundle(["a", "b"], [b"1", b"22"], 3, target, 1_000, many), publish(many)
    for each in (bundle, single):
        many.add(each)
        each.attempts, each.sent, each.end = 1, ("mb1:5672", 5), End("confirmed")
    many.all_added()
    tell([bundle, single], 9)
    await finished
    rest = (Outcome.CONFIRMED, Durability.FSYNC, "mb1:5672", 1, 5, 9, "")
    assert many.results() == [Published(name, *rest) for name in ("a", "b", "id")]
    assert (bundle.count, bundle.size) == (2, 3)

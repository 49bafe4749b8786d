"""Handlers' parameters and their arguments, and handlers that are refused."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from messagebus import Delivery, Message, Queue, Receipt
from messagebus._io.consume.runs import Batch
from messagebus.errors import BindingError
from messagebus.handling import Park
from messagebus.payloads.binding import bind, bind_batch, name_of

if TYPE_CHECKING:
    from decimal import Decimal as Hidden


@dataclass
class Order:
    number: int


@dataclass
class Numbered:
    number: int


Json = list["Json"] | None


DELIVERY = Delivery(Message.json({"number": 5}), Receipt("b:5672", 1, 1), Queue("q"))


def payload_alone(order: Order) -> object:
    return order


def delivery_alone(delivery: Delivery) -> object:
    return delivery


def both(order: Order, delivery: Delivery) -> object:
    return order, delivery


def turned(delivery: Delivery, order: Order) -> object:
    return order, delivery


def by_name(order: Order, *args: int, delivery: Delivery, **more: int) -> object:
    return order, delivery


def with_defaults(order: Order, count: int = 3, delivery: Delivery | None = None) -> object:
    return order, count, delivery


def returns_hidden(order: Order) -> Hidden:
    return cast("Hidden", order)


def hidden_default(order: Order, session: Hidden | None = None) -> object:
    return order


def taking_names(handler: Callable[..., object]) -> Callable[..., object]:
    """Wrap a handler so that it takes its arguments by name alone, which its signature does not tell."""

    @functools.wraps(handler)
    def wrapper(**given: Any) -> object:
        return handler(**given)

    return wrapper


def wrapped(handler: Callable[..., object]) -> Callable[..., object]:
    return functools.wraps(handler)(lambda *args, **named: handler(*args, **named))


class Service:
    def handle(self, order: Order) -> object:
        return order

    def __call__(self, order: Order) -> object:
        return order


class AsyncService:
    async def __call__(self, order: Order) -> object:
        return order


@pytest.mark.parametrize(
    ("handler", "result"),
    [
        (payload_alone, Order(5)),
        (delivery_alone, DELIVERY),
        (both, (Order(5), DELIVERY)),
        (turned, (Order(5), DELIVERY)),
        (by_name, (Order(5), DELIVERY)),
        (with_defaults, (Order(5), 3, None)),
        (returns_hidden, Order(5)),
        (hidden_default, Order(5)),
        (wrapped(payload_alone), Order(5)),
        (wrapped(Service().handle), Order(5)),
        (taking_names(payload_alone), Order(5)),
        (taking_names(both), (Order(5), DELIVERY)),
        (Service().handle, Order(5)),
        (Service(), Order(5)),
        (functools.partial(with_defaults, count=4), (Order(5), 4, None)),
    ],
)
def test_parameters_are_given_by_their_annotations(
    handler: Callable[..., object], result: object
) -> None:
    assert bind(handler)(DELIVERY) == result


@pytest.mark.parametrize("handler", [AsyncService(), AsyncService().__call__])
def test_a_coroutine_function_stays_one(handler: Callable[..., object]) -> None:
    bound = bind(handler)
    assert inspect.iscoroutinefunction(bound)

    async def run() -> object:
        return await cast(Awaitable[object], bound(DELIVERY))

    assert asyncio.run(run()) == Order(5)


def test_what_does_not_fit_is_parked_with_the_reason() -> None:
    bad = Delivery(Message.json({"number": "5"}), Receipt("b:5672", 1, 1), Queue("q"))
    with pytest.raises(Park) as caught:
        bind(payload_alone)(bad)
    assert caught.value.reason == (
        "payload does not fit: number: a whole number wanted, not a text"
    )


def untyped(order): ...  # type: ignore[no-untyped-def]


def nothing() -> None: ...


def too_much(order: Order, other: Order) -> None: ...


def by_place(order: Order, /) -> None: ...


def hidden(number: Hidden) -> None: ...


def unusable(order: complex) -> None: ...


def generator(order: Order) -> Iterator[int]:
    yield 1


def either(order: Order | Numbered) -> None: ...


def endless(order: Json) -> None: ...


def divided(order: (1 / 0)) -> None: ...  # type: ignore[valid-type]


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (untyped, "parameter 'order' has no type: bytes, str, dict"),
        (nothing, "takes nothing: a parameter wanted"),
        (too_much, "nothing to give to parameter 'other'"),
        (by_place, "parameter 'order' cannot be given by name"),
        (hidden, "annotation not found: name 'Hidden' is not defined; types of payloads stand"),
        (unusable, "parameter 'order': complex is no type that a payload can have"),
        (generator, "generator: a function or coroutine function wanted"),
        (either, "parameter 'order': Order | Numbered: nothing tells them apart in JSON"),
        (endless, "parameter 'order': 'Json' is no type that a payload can have"),
        (divided, "annotations cannot be read: division by zero"),
        (5, "handler 5: a function wanted"),
    ],
)
def test_a_handler_that_could_never_work_is_told_at_once(handler: Any, words: str) -> None:
    with pytest.raises(BindingError, match=words):
        bind(handler)


def test_handlers_are_named_as_applications_know_them() -> None:
    here = __name__
    assert name_of(payload_alone) == f"{here}.payload_alone"
    assert name_of(Service().handle) == f"{here}.Service.handle"
    assert name_of(Service()) == f"{here}.Service"
    assert name_of(functools.partial(payload_alone)) == f"{here}.payload_alone"


# Batches.
def a_batch(*values: object) -> Batch:
    made = Batch(given(Message.json(value)) for value in values)
    return made


def given(message: Message) -> Delivery:
    return Delivery(message, Receipt("mb1:5672", 1, 1), Queue("jobs"))


async def test_a_batch_handler_gets_lists_of_payloads_and_of_deliveries() -> None:
    got: list[object] = []

    def plain(orders: list[dict[str, int]], deliveries: list[Delivery], note: str = "") -> None:
        got.append((orders, deliveries))

    async def only_deliveries(deliveries: list[Delivery]) -> None:
        got.append(deliveries)

    bound, batch = bind_batch(plain), a_batch({"n": 1}, {"n": 2})
    assert bound.read is not None
    batch.payloads = [bound.read(each) for each in batch]
    bound.function(batch)
    assert got.pop() == ([{"n": 1}, {"n": 2}], list(batch))
    with pytest.raises(Park, match="payload does not fit"):
        bound.read(given(Message.json({"n": "x"})))
    bound = bind_batch(only_deliveries)
    assert bound.read is None
    assert inspect.iscoroutinefunction(bound.function)
    await bound.function(batch)
    assert got == [list(batch)]


def single(order: dict[str, int]) -> None: ...


def two(first: list[dict[str, int]], second: list[str]) -> None: ...


def takes_nothing() -> None: ...


@pytest.mark.parametrize(
    ("handler", "words"),
    [
        (single, "a list wanted, as in"),
        (two, "nothing to give to parameter 'second'"),
        (takes_nothing, "takes nothing"),
    ],
)
def test_what_no_batch_fits_is_told_when_it_is_declared(handler: Any, words: str) -> None:
    with pytest.raises(BindingError, match=words):
        bind_batch(handler)

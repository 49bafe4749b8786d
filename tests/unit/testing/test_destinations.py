"""What is said of a destination is what was found; one name where several are taken is one name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from messagebus import (
    BusConfig,
    ConfigError,
    Destination,
    Durability,
    Message,
    MessageInvalid,
    NameInvalid,
    Publisher,
    Queue,
    Refused,
    Subscription,
    Topic,
    Unroutable,
    declare,
)
from messagebus.admin import directory, parked
from messagebus.testing import MemoryBus
from messagebus.topology import as_list

CLICKS = Topic("clicks", durability=Durability.PAGE_CACHE)


@pytest.fixture
def bus() -> Iterator[MemoryBus]:
    made = MemoryBus()
    made.declare(CLICKS, Subscription(CLICKS, "counted"), "orders/a")
    yield made
    made.close()


@pytest.fixture
def publisher(bus: MemoryBus) -> Iterator[Publisher]:
    with bus.publisher() as made:
        yield made


@pytest.mark.guarantee("unsettled-is-never-fsync")
@pytest.mark.parametrize("wrong", ["clicks", Topic("clicks", durability=Durability.FSYNC)])
@pytest.mark.parametrize("first", ["right", "wrong"])
def test_the_durability_that_is_reported_is_the_one_that_was_found(
    publisher: Publisher, wrong: Destination | str, first: str
) -> None:
    for which in (first, "right", "wrong", "right"):
        if which == "wrong":
            with pytest.raises(Refused, match="page-cache"):
                publisher.send_safe(wrong, b"x")
        else:
            assert publisher.send_safe(CLICKS, b"x").durability is Durability.PAGE_CACHE


ALONE = Queue("alone", single_active=True)
PARTED = Topic("parted", partitions=2)


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        (ALONE, Queue("alone", plain=True)),
        (ALONE, Queue("alone", delivery_limit=3)),
        (ALONE, Queue("alone", plain=True, create=True)),
        (PARTED, Topic("parted", partitions=4)),
    ],
)
@pytest.mark.parametrize("first", ["right", "wrong", "name"])
def test_a_destination_with_options_that_it_does_not_have_is_refused_whatever_was_known_before(
    bus: MemoryBus,
    publisher: Publisher,
    right: Queue | Topic,
    wrong: Queue | Topic,
    first: str,
) -> None:
    bus.declare(right, f"{PARTED}/a")
    for which in (first, "right", "wrong", "name", "right", "wrong"):
        if which == "wrong":
            with pytest.raises(
                (Refused, ConfigError), match=f"{wrong}: .* is wanted .* and exists"
            ):
                publisher.send_safe(wrong, b"x")
        else:
            publisher.send_safe(str(right) if which == "name" else right, b"x")


async def test_a_return_of_the_broker_finds_the_publish_whatever_was_asked_of_its_place(
    bus: MemoryBus,
) -> None:
    bus.declare(Topic("bare"))
    async with bus.async_publisher() as publisher:
        for bare in (Topic("bare"), Topic("bare", mqtt=False)):
            with pytest.raises(Unroutable):
                await publisher.send_safe(bare, b"x")


def test_an_unroutable_message_of_any_durability_is_reported(bus: MemoryBus) -> None:
    bare = Topic("bare", durability=Durability.PAGE_CACHE)
    bus.declare(bare)
    with bus.publisher() as publisher, pytest.raises(Unroutable):
        publisher.send_safe(bare, b"x")


@pytest.mark.parametrize("payloads", ["abc", b"abc", {"a": 1}, Message(body=b"abc")])
async def test_one_payload_is_not_sent_in_pieces(
    bus: MemoryBus, publisher: Publisher, payloads: Any
) -> None:
    with pytest.raises(MessageInvalid, match="a list of payloads wanted"):
        publisher.send_many("orders", payloads)
    async with bus.async_publisher() as other:
        with pytest.raises(MessageInvalid, match="a list of payloads wanted"):
            await other.send_many("orders", payloads)
    assert not bus.published("orders")


def test_one_name_is_one_name(bus: MemoryBus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "topology_for", lambda _config: bus._wire.topology())
    config = BusConfig()
    for one in ("orders/b", Queue("jobs"), ["orders/b", "queue:jobs"]):
        assert declare(config, one).complete
    assert set(bus._brokers._wanted) == {
        "clicks",
        "clicks/counted",
        "orders/a",
        "orders/b",
        "queue:jobs",
    }


def test_names_are_a_list_or_one() -> None:
    assert as_list("orders/billing") == ["orders/billing"]
    assert as_list(CLICKS) == [CLICKS]
    assert as_list(name for name in ("a", "b")) == ["a", "b"]
    for strange in (b"orders", {"orders": 1}, None, 7):
        with pytest.raises(NameInvalid, match="a list of names"):
            as_list(strange)


def test_parked_messages_of_one_name_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "brokers", lambda _bus: (_ for _ in ()).throw(LookupError))
    with pytest.raises(LookupError):  # it went on to ask for the brokers: the name was read
        parked.read_parked(BusConfig(), "orders/billing")
    with pytest.raises(ConfigError, match="several brokers"):
        parked.ParkedFilter(brokers="mb1:5672")  # type: ignore[arg-type]

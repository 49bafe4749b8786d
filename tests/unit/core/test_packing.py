"""core.packing: a batch keeps its bounds; `test_outbox` shows what travels together."""

from __future__ import annotations

from messagebus.core.outbox import Item
from messagebus.core.packing import Batch, Packing

PACKING = Packing(count_max=3, bytes_max=100, linger_ms=0)


def item(name: str, size: int) -> Item:
    return Item(name, "lane", size, 1_000)


def batch(*sizes: int) -> Batch[Item]:
    made = Batch(item("0", sizes[0]))
    for number, size in enumerate(sizes[1:], start=1):
        made.add(item(str(number), size))
    return made


def test_a_batch_is_bounded_by_messages() -> None:
    assert batch(1, 1).has_room(item("x", 1), PACKING)
    assert not batch(1, 1).is_full(PACKING)
    assert not batch(1, 1, 1).has_room(item("x", 1), PACKING)
    assert batch(1, 1, 1).is_full(PACKING)


def test_a_batch_is_bounded_by_bytes() -> None:
    assert batch(60).has_room(item("x", 40), PACKING)
    assert not batch(60).has_room(item("x", 41), PACKING)
    assert batch(60, 40).is_full(PACKING)


def test_its_name_is_that_of_the_first_message_that_is_left() -> None:
    made = batch(10, 20, 30)
    assert (made.message_id, made.size) == ("0", 60)
    made.keep(made.items[1:])
    assert (made.message_id, made.size, len(made.items)) == ("1", 50, 2)

"""core.packing: what a batch is; `test_outbox` shows what travels together."""

from __future__ import annotations

from messagebus.core.outbox import Item
from messagebus.core.packing import Batch


def item(name: str, size: int) -> Item:
    return Item(name, "lane", size, 1_000)


def batch(*sizes: int) -> Batch[Item]:
    made = Batch(item("0", sizes[0]))
    for number, size in enumerate(sizes[1:], start=1):
        made.items.append(item(str(number), size))
        made.size += size
    return made


def test_its_name_is_that_of_the_first_message_that_is_left() -> None:
    made = batch(10, 20, 30)
    assert (made.message_id, made.size) == ("0", 60)
    made.keep(made.items[1:])
    assert (made.message_id, made.size, len(made.items)) == ("1", 50, 2)

"""core.packing: what a batch is; `test_outbox` shows what travels together."""

from __future__ import annotations

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from messagebus.core.outbox import Item
from messagebus.core.packing import Batch, Packing, bundled


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


@example([b"12", b"34", b"5"], 5, 3)
@given(
    st.lists(st.binary(max_size=12) | st.text(max_size=3), max_size=40),
    st.integers(1, 5),
    st.integers(1, 20),
)
def test_what_is_given_together_is_bundled_in_order_within_a_batch_s_bounds(
    payloads: list[bytes | str], count_max: int, bytes_max: int
) -> None:
    found = list(bundled(payloads, Packing(count_max, bytes_max, 0)))
    assert [each for one in found for each in (one if isinstance(one, list) else [one])] == payloads
    bundles = [one for one in found if isinstance(one, list)]
    assert all(0 < len(one) <= count_max and sum(map(len, one)) <= bytes_max for one in bundles)
    alone = [one for one in found if isinstance(one, bytes)]
    assert all(len(one) >= bytes_max for one in alone)
    # No bundle could have taken the first of the next one too.
    for one, after in itertools.pairwise(found):
        if isinstance(one, list) and isinstance(after, list):
            assert len(one) == count_max or sum(map(len, one)) + len(after[0]) > bytes_max

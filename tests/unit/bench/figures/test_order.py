"""bench.figures.order: every message is handled, with an order and without."""

from __future__ import annotations

import pytest

from bench.figures import cli, order


def test_keyed_handlers_are_a_group_of_figures() -> None:
    assert [group.name for group in cli.chosen(["order.keyed"])] == ["order.keyed"]


@pytest.mark.parametrize("partitions", [0, 4])
def test_all_messages_are_published_with_partitions_and_without(partitions: int) -> None:
    assert order.published_us(partitions, 300) > 0


@pytest.mark.parametrize("kept", ["none", "key"])
def test_all_messages_are_handled_whatever_order_is_kept(kept: order.Order) -> None:
    assert order.handled_us(kept, 300) > 0

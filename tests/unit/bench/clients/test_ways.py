from __future__ import annotations

import pytest

from bench.clients.messagebus import consumer_config, publisher_config
from bench.clients.ways import Order, check, content_of, turn
from bench.errors import BenchError
from messagebus import Delivery, Durability, Message, Outcome, Published, Queue, Receipt
from messagebus.payloads import reader
from tests.support.bench_task import bench_task


def test_what_is_measured_is_a_kilobyte_that_fits_its_type() -> None:
    message = content_of(bench_task(typed=True))
    assert isinstance(message, Message)
    assert len(message.body) == 1024
    order = reader(Order)(Delivery(message, Receipt("b:5672", 1, 1), Queue("q")))
    assert order.number == 17


def test_a_batch_is_asked_for_by_destination() -> None:
    assert not publisher_config(bench_task(window=50).profile.load, "figures").batch
    config = publisher_config(bench_task(window=50, batch=16).profile.load, "figures")
    assert config.batch["figures"].count_max == 16
    assert config.window == 50
    assert config.backlog_messages_max >= 50 * 16


def test_prefetch_counts_batches() -> None:
    config = consumer_config(bench_task(window=10_000, batch=50).profile.load)
    assert (config.prefetch, config.handed_out_max) == (200, 10_000)
    assert consumer_config(bench_task(window=1000).profile.load).prefetch == 1000


def test_one_outcome_that_is_not_confirmed_spoils_the_turn() -> None:
    good = Published(message_id="1", outcome=Outcome.CONFIRMED, durability=Durability.FSYNC)
    bad = Published(message_id="2", outcome=Outcome.UNKNOWN, durability=Durability.NONE)
    check([good, good])
    with pytest.raises(BenchError, match="1 publishes"):
        check([good, bad])


async def test_all_that_is_published_in_memory_is_received_and_acked() -> None:
    took = await turn(bench_task(way="memory", window=50, messages=300, warm_up=100))
    assert took.messages == 300
    assert took.took_s > 0


async def test_a_whole_test_in_memory_is_one_turn() -> None:
    assert (await turn(bench_task(way="memory_start", messages=1, warm_up=0))).messages == 1

import pytest

from bench.errors import BenchError
from bench.systems.ours_async import check, consumer_config, publisher_config, slices
from messagebus import Durability, Outcome, Published
from tests.support.bench_task import bench_task


def test_slices_are_whole_and_the_last_is_what_is_left() -> None:
    assert slices(25, 10) == [10, 10, 5]
    assert slices(20, 10) == [10, 10]
    assert slices(3, 10) == [3]
    assert slices(0, 10) == []


def test_a_batch_is_asked_for_by_destination() -> None:
    assert not publisher_config(bench_task(window=50)).batch
    config = publisher_config(bench_task(window=50, batch=16))
    assert config.batch["figures"].count_max == 16
    assert config.window == 50
    assert config.backlog_messages_max >= 50 * 16


def test_prefetch_counts_batches() -> None:
    config = consumer_config(bench_task(window=10_000, batch=50))
    assert (config.prefetch, config.handed_out_max) == (200, 10_000)
    assert consumer_config(bench_task(window=1000)).prefetch == 1000


def test_one_outcome_that_is_not_confirmed_spoils_the_turn() -> None:
    good = Published(message_id="1", outcome=Outcome.CONFIRMED, durability=Durability.FSYNC)
    bad = Published(message_id="2", outcome=Outcome.UNKNOWN, durability=Durability.NONE)
    check([good, good])
    with pytest.raises(BenchError, match="1 publishes"):
        check([good, bad])

"""Partitions and homes, as docs/WIRE.md has them."""

from __future__ import annotations

import pytest

from messagebus.core.homes import Home, partition_of, read_homes, segment_of

# The vectors of docs/WIRE.md.
VECTORS = [("customer-17", 32, 31), ("a", 32, 3), ("grün", 7, 4), ("k" * 255, 1_024, 697)]


@pytest.mark.parametrize(("key", "partitions", "partition"), VECTORS)
def test_a_keys_partition_is_its_crc_32(key: str, partitions: int, partition: int) -> None:
    assert partition_of(key, partitions) == partition


def test_keys_spread_over_all_partitions() -> None:
    counts = [0] * 64
    for number in range(10_000):
        counts[partition_of(f"customer-{number}", 64)] += 1
    assert 120 < min(counts) <= max(counts) < 200


def test_homes_begin_anew_behind_the_last_and_have_an_epoch() -> None:
    homes = read_homes("mb1:5672 2@[::1]:5672 mb3:5672", 5)
    assert [home.broker for home in homes] == [
        "mb1:5672",
        "[::1]:5672",
        "mb3:5672",
        "mb1:5672",
        "[::1]:5672",
    ]
    assert segment_of(4, homes[4]) == "4.2"
    assert read_homes("", 5) == ()
    assert segment_of(0, Home("mb1:5672")) == "0.1"


def test_an_epoch_that_is_no_number_is_an_error() -> None:
    with pytest.raises(ValueError, match="invalid literal"):
        read_homes("x@mb1:5672", 1)

import asyncio
import itertools

import pytest

from bench.errors import BenchError
from bench.systems.paced import Latencies, intended_in, paced, stamped


def test_the_intended_time_travels_in_the_body() -> None:
    body = stamped(b"x" * 100, 123_456_789)
    assert len(body) == 100
    assert intended_in(body) == 123_456_789


async def test_latencies_count_from_the_intended_time_and_not_before_the_warm_up_is_over() -> None:
    found = Latencies(expected=2, from_ns=1000)
    found.confirmed(999)
    found.confirmed(1000)
    found.received(stamped(b"x" * 8, 10))
    assert not found.all_delivered.is_set()
    found.received(stamped(b"x" * 8, 2000))
    assert found.all_delivered.is_set()
    assert found.confirm.get_total_count() == 1
    assert found.delivery.get_total_count() == 1
    assert set(found.encoded(1)) == {"confirm", "delivery"}
    with pytest.raises(BenchError, match="1 of 2 messages were not confirmed"):
        found.encoded(2)


async def test_intended_times_are_even_however_late_the_sending_is() -> None:
    intended: list[int] = []

    async def send(body: bytes, at_ns: int) -> None:
        assert intended_in(body) == at_ns
        intended.append(at_ns)
        await asyncio.sleep(0)

    await paced(1e6, 50, b"x" * 8, send)
    steps = {b - a for a, b in itertools.pairwise(intended)}
    assert len(intended) == 50
    assert steps <= {999, 1000, 1001}

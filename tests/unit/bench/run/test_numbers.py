from __future__ import annotations

import pytest

from bench.run.numbers import numbers_of
from tests.support.results import CLOSED, PROFILE, result


def test_costs_are_per_message() -> None:
    found = numbers_of(result())
    assert found["client CPU us"] == pytest.approx(3000)
    assert found["broker CPU us"] == pytest.approx(1000)
    assert "delivery p99" not in found


def test_parts_of_a_closed_loop_count_for_the_time_that_each_took() -> None:
    both = [{"cpu_share": 0.5, "seconds": 10}, {"cpu_share": 0.5, "seconds": 20}]
    closed = result(profile=CLOSED, measured_s=10.0, clients=both)
    assert numbers_of(closed)["client CPU us"] == pytest.approx(15 / 1000 * 1e6)


@pytest.mark.parametrize("clients", [[], [{"cpu_share": 0.5, "seconds": 10}, {"cpu_share": 0.5}]])
def test_what_is_not_known_of_the_clients_is_left_out(clients: list[dict[str, float]]) -> None:
    assert "client CPU us" not in numbers_of(result(profile=CLOSED, clients=clients))


def test_the_cost_of_fewer_brokers_than_there_were_is_left_out() -> None:
    two = PROFILE | {"system": PROFILE["system"] | {"brokers": 2}}
    assert "broker CPU us" not in numbers_of(result(profile=two))


def test_a_rate_of_nothing_is_a_number_and_costs_of_nothing_are_none() -> None:
    assert numbers_of(result(rate=0, delivered_per_s=0.0, percentiles_ms={})) == {
        "confirmed a second": 0.0,
        "delivered a second": 0.0,
    }


def test_without_consumers_there_is_no_rate_of_deliveries() -> None:
    alone = PROFILE | {"load": PROFILE["load"] | {"consumers": 0}}
    assert "delivered a second" not in numbers_of(result(profile=alone, delivered_per_s=0.0))


def test_what_a_message_costs_brokers_is_not_told_of_a_short_run() -> None:
    assert "broker CPU us" not in numbers_of(result(profile=CLOSED, measured_s=9.9))
    assert "broker CPU us" in numbers_of(result(profile=CLOSED, measured_s=10.0))


def test_all_that_brokers_used_for_the_messages_of_a_closed_loop_counts() -> None:
    """Deliveries after the last confirm, too: it is not spread over the time that is measured."""
    brokers = {"mb1": {"cpu_s": 4.0, "seconds": 16.0, "messages_cpu_s": 4.0}}
    found = numbers_of(result(profile=CLOSED, measured_s=10.0, brokers=brokers))
    assert found["broker CPU us"] == pytest.approx(4.0 / 1000 * 1e6)

from __future__ import annotations

import dataclasses

from inventory.inventory import Address
from lb.state import cold, rows, warm
from tests.support.balancer import inventory

# Written by HAProxy 2.6.12: mb1 up, mb2 drained, mb7 of no inventory; and the agents' backend.
SAVED = """\
1
# be_id be_name srv_id srv_name srv_addr srv_op_state srv_admin_state srv_uweight srv_iweight \
srv_time_since_last_change srv_check_status srv_check_result srv_check_health srv_check_state \
srv_agent_state bk_f_forced_id srv_f_forced_id srv_fqdn srv_port srvrecord srv_use_ssl \
srv_check_port srv_check_addr srv_agent_addr srv_agent_port
3 mb_brokers 1 mb1 10.0.1.1 2 0 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.1 8082
3 mb_brokers 2 mb2 10.0.1.2 2 8 40 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.2 8082
3 mb_brokers 3 mb7 10.0.1.7 2 0 100 100 2 15 3 3 6 22 0 0 - 5672 - 0 0 - 10.0.1.7 8082
5 mb_agents 1 mb1 10.0.1.1 0 0 1 1 3 8 2 0 6 0 0 0 - 8081 - 0 0 - - 0
"""
UP, DOWN = "2", "0"


def _states(text: str) -> dict[str, tuple[str, int]]:
    """Return name -> (operational state, administrative state)."""
    return {name: (row.text.split()[5], row.admin_state) for name, row in rows(text).items()}


def test_rows_are_those_of_the_brokers() -> None:
    read = rows(SAVED)
    assert list(read) == ["mb1", "mb2", "mb7"]
    assert read["mb2"].address == Address("10.0.1.2", 5672)


def test_over_a_reload_brokers_stay_as_they_are() -> None:
    assert _states(warm(SAVED, inventory(2).brokers)) == {"mb1": (UP, 0), "mb2": (UP, 8)}
    assert rows(SAVED)["mb2"].text in warm(SAVED, inventory(2).brokers)


def test_a_new_broker_is_down_until_its_first_check() -> None:
    assert _states(warm(SAVED, inventory(3).brokers))["mb3"] == (DOWN, 0)


def test_a_broker_that_moved_is_down_until_its_first_check() -> None:
    node = dataclasses.replace(inventory().brokers[0], address=Address("10.0.9.9", 5672))
    assert _states(warm(SAVED, [node])) == {"mb1": (DOWN, 0)}
    node = dataclasses.replace(inventory().brokers[0], address=Address("10.0.1.1", 5673))
    assert _states(warm(SAVED, [node])) == {"mb1": (DOWN, 0)}


def test_a_host_name_is_taken_to_mean_the_same_host() -> None:
    node = dataclasses.replace(inventory().brokers[0], address=Address("mb1.example", 5672))
    assert _states(warm(SAVED, [node])) == {"mb1": (UP, 0)}


def test_a_start_from_nothing_takes_nobody_as_up() -> None:
    assert _states(cold("", inventory(2).brokers)) == {"mb1": (DOWN, 0), "mb2": (DOWN, 0)}


def test_a_start_from_nothing_keeps_drains() -> None:
    assert _states(cold(SAVED, inventory(2).brokers)) == {"mb1": (DOWN, 0), "mb2": (DOWN, 8)}


def test_what_was_written_is_read_again() -> None:
    once = cold(SAVED, inventory(3).brokers)
    assert warm(once, inventory(3).brokers) == once


def test_a_broken_file_is_no_state() -> None:
    assert rows("1\n3 mb_brokers 1 mb1\n\x00 garbage " + "x " * 40) == {}

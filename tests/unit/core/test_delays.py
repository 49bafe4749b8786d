"""What came out of a delay step: too early, too late, or now."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from messagebus.core.delays import TTL_HEADER, Early, is_late, read_early, read_ttl_ms

DUE_S = 1_700_000_000
DUE_MS = DUE_S * 1_000


def came_out(queue: object = "mb.delay/2000", **more: Any) -> dict[str, Any]:
    due = datetime.fromtimestamp(DUE_S, UTC)
    return {"x-death": [{"queue": queue, "reason": "expired", "time": due, **more}]}


def test_what_its_own_expiration_let_go_waits_for_the_rest() -> None:
    assert read_early(came_out(**{"original-expiration": "200"})) == Early(1_800, 200)
    assert read_early(came_out(**{"original-expiration": "0"})) == Early(2_000, 0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-death": "no"},
        {"x-death": ["no"]},
        came_out(),
        came_out(**{"original-expiration": "2000"}),
        came_out(**{"original-expiration": "-1"}),
        came_out(**{"original-expiration": "9" * 400}),
        came_out(**{"original-expiration": "\u0662"}),
        came_out("mb.sub/orders/a", **{"original-expiration": "200"}),
        came_out(7, **{"original-expiration": "200"}),
    ],
)
def test_what_waited_its_time_or_was_in_no_step_comes_now(headers: dict[str, Any]) -> None:
    assert read_early(headers) is None


def test_a_life_ends_so_long_after_it_was_due_and_the_brokers_second_is_given() -> None:
    headers = came_out() | {TTL_HEADER: 500}
    assert not is_late(headers, DUE_MS + 1_500)
    assert is_late(headers, DUE_MS + 1_501)
    assert not is_late(came_out(), DUE_MS + 1_501)
    assert not is_late({TTL_HEADER: 500}, DUE_MS + 1_501)
    assert not is_late(came_out("mb.sub/o/a") | {TTL_HEADER: 500}, DUE_MS + 1_501)
    assert not is_late(came_out([]) | {TTL_HEADER: 500}, DUE_MS + 1_501)
    assert not is_late(came_out(time="now") | {TTL_HEADER: 500}, DUE_MS + 1_501)


@pytest.mark.parametrize("forged", [-1, 1 << 32, (1 << 63) - 1, True, "5", 1.5, None])
def test_a_forged_life_is_none(forged: object) -> None:
    assert read_ttl_ms({TTL_HEADER: forged}) is None
    assert not is_late(came_out() | {TTL_HEADER: forged}, 1 << 60)

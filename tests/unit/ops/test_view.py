from __future__ import annotations

from ops.view import ClientSeen, newest


def seen(id: str, applied: int, age_s: float, subscription: str = "orders/billing") -> ClientSeen:
    return ClientSeen(id=id, subscription=subscription, applied=applied, age_s=age_s)


def test_of_a_client_seen_by_several_agents_the_newest_sighting_counts() -> None:
    assert newest([seen("a", 3, 20.0), seen("a", 4, 0.5), seen("a", 2, 60.0)]) == [
        seen("a", 4, 0.5)
    ]


def test_one_client_with_two_subscriptions_counts_twice() -> None:
    both = [seen("a", 3, 1.0), seen("a", 4, 1.0, "orders/audit")]
    assert newest(both) == both

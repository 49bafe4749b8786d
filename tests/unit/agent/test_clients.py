"""Who fetches the list."""

from __future__ import annotations

import pytest

from messagebus.agent import clients
from messagebus.agent.clients import EXPIRY_MS, LEFT_MS, Client, Clients


def test_the_last_word_of_each_client_counts() -> None:
    seen = Clients()
    seen.seen("a", "orders/x", 3, 100)
    seen.seen("b", "orders/x", 3, 200)
    seen.seen("a", "orders/x", 4, 300)
    assert seen.living(300) == [
        Client(id="b", subscription="orders/x", applied=3, age_ms=100),
        Client(id="a", subscription="orders/x", applied=4, age_ms=0),
    ]


def test_one_client_may_have_several_subscriptions() -> None:
    seen = Clients()
    seen.seen("a", "orders/x", 3, 0)
    seen.seen("a", "orders/y", 4, 0)
    assert len(seen.living(0)) == 2


def test_whoever_is_silent_is_forgotten() -> None:
    seen = Clients()
    seen.seen("a", "", 1, 0)
    seen.seen("b", "", 1, 1)
    assert len(seen.living(EXPIRY_MS)) == 2
    assert [client.id for client in seen.living(EXPIRY_MS + 1)] == ["b"]


def test_there_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "CLIENTS_MAX", 2)
    seen = Clients()
    for number, name in enumerate("abc"):
        seen.seen(name, "", 1, number)
    assert [client.id for client in seen.living(3)] == ["b", "c"]
    seen.seen("x" * 1000, "y" * 1000, 1, 3)
    assert (
        max(len(client.id + client.subscription) for client in seen.living(3))
        == 2 * clients.TEXT_MAX
    )


def test_who_hung_up_is_forgotten_soon_unless_he_asks_again() -> None:
    seen = Clients()
    for name in ("stays", "ends", "moves"):
        seen.seen(name, "a/b", 1, 100)
    for name in ("ends", "moves", "unknown"):
        seen.left(name, "a/b", 1_000)
    assert len(seen.living(1_000 + LEFT_MS)) == 3
    seen.seen("moves", "a/b", 2, 2_000)
    assert {each.id for each in seen.living(1_001 + LEFT_MS)} == {"stays", "moves"}
    assert [each.id for each in seen.living(101 + EXPIRY_MS)] == ["moves"]

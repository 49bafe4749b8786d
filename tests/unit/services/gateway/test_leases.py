"""Leases, against a table."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from messagebus.services.gateway.leases import (
    ANSWERED,
    DONE,
    ENDS_SPARE,
    STALE,
    UNKNOWN,
    Lease,
    Leases,
)

KEY = b"k" * 32


def make(most: int = 100) -> Leases[str]:
    return Leases("gw", "5e55", KEY, most)


def test_a_lease_is_taken_once_and_a_repeated_answer_is_told_so() -> None:
    leases = make()
    token = leases.grant("shop", "a", 0, 1_000).token
    taken = leases.take(token, "shop", "ack")
    assert isinstance(taken, Lease)
    assert taken.item == "a"
    assert len(leases) == 0
    assert leases.take(token, "shop", "ack") == DONE
    assert leases.take(token, "shop", "release") == ANSWERED
    assert leases.extend(token, "shop", 0, 1_000) == ANSWERED
    leases.failed(taken)
    assert leases.take(token, "shop", "ack") == STALE


def test_what_ran_out_or_was_answered_long_ago_is_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("messagebus.services.gateway.leases.RECENT", 3)
    leases = make()
    over = leases.grant("shop", "a", 0, 1_000)
    leases.run_out(1_000)
    assert leases.take(over.token, "shop", "ack") == STALE
    tokens = [leases.grant("shop", "b", 0, 1_000).token for _ in range(4)]
    for token in tokens[:2]:
        leases.take(token, "shop", "ack")
    assert leases.take(tokens[0], "shop", "ack") == STALE
    assert leases.take(tokens[1], "shop", "ack") == DONE


def test_a_lease_that_is_extended_without_end_costs_no_more() -> None:
    leases = make()
    token = leases.grant("shop", "a", 0, 1_000).token
    for now_ms in range(10 * ENDS_SPARE):
        leases.extend(token, "shop", now_ms, 1_000)
    assert len(leases._ends) <= ENDS_SPARE + 3
    assert leases.run_out(10 * ENDS_SPARE) == []
    assert len(leases.run_out(10 * ENDS_SPARE + 1_000)) == 1


def test_no_other_principal_and_no_forged_lease_is_good() -> None:
    leases = make()
    token = leases.grant("shop", "a", 0, 1_000).token
    assert leases.take(token, "other", "ack") == UNKNOWN
    begin, number, mac = token.rsplit(".", 2)
    forged = [
        f"{begin}.{int(number) + 1}.{mac}",
        f"{begin}.{number}.{'0' * 32}",
        f"gw.0000.{number}.{mac}",
        "",
        ".",
        "x" * 1_000,
        f"{begin}.²." + mac,
        f"{begin}.{number}.é",
    ]
    assert [leases.find(each, "shop") for each in forged] == [UNKNOWN] * len(forged)
    restarted = Leases[str]("gw", "6e66", b"l" * 32, 100)
    assert restarted.find(token, "shop") == UNKNOWN
    assert isinstance(leases.take(token, "shop", "ack"), Lease)


def test_a_principal_holds_no_more_than_it_may() -> None:
    leases = make(most=2)
    first = leases.grant("shop", "a", 0, 1_000)
    leases.grant("shop", "b", 0, 1_000)
    assert (leases.room("shop"), leases.room("other")) == (0, 2)
    assert leases.end(first)
    assert not leases.end(first)
    assert leases.room("shop") == 1


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["grant", "take", "extend", "wait"]),
            st.integers(0, 20),
            st.integers(1, 500),
        ),
        max_size=80,
    )
)
def test_every_lease_ends_once_by_an_answer_or_its_time(calls: list[tuple[str, int, int]]) -> None:
    """Oracle: a plain table of ends."""
    leases, table, tokens, now_ms = make(), dict[str, int](), list[str](), 0
    for what, place, ms in calls:
        token = tokens[place % len(tokens)] if tokens else ""
        match what:
            case "grant":
                lease = leases.grant("p", f"item {len(tokens)}", now_ms, ms)
                tokens.append(lease.token)
                table[lease.token] = now_ms + ms
            case "take":
                found = leases.take(token, "p", "ack")
                assert isinstance(found, Lease) == (token in table)
                table.pop(token, None)
            case "extend":
                assert isinstance(leases.extend(token, "p", now_ms, ms), Lease) == (token in table)
                if token in table:
                    table[token] = now_ms + ms
            case "wait":
                now_ms += ms
                over = {each for each, until_ms in table.items() if until_ms <= now_ms}
                assert {each.token for each in leases.run_out(now_ms)} == over
                table = {each: until for each, until in table.items() if each not in over}
        assert len(leases) == len(table)
